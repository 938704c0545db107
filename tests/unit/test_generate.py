"""Generated clusters and pods against the published statistics, and against the trace itself."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload.generate import apportion, generate_cluster, generate_pods, write_openb
from wattherd.workload.inspect import class_of, summarise
from wattherd.workload.openb import read_nodes, read_pods
from wattherd.workload.published import FAMILIES, LIFETIME_MEAN_S

# Typed from the paper and the artifact's files, independently of the module under test.
PUBLISHED_GPUS = {
    "G2": 4392, "T4": 842, "G3": 312, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2,
}  # fmt: skip
PUBLISHED_DEMAND_GPUS = {
    "default": 6086.8, "cpu0": 6086.8, "cpu300": 6086.8, "gpuspec33": 6086.8,
    "gpushare20": 6531, "gpushare40": 5641, "gpushare60": 4908, "gpushare80": 4408,
    "gpushare100": 3953, "multigpu20": 7087, "multigpu30": 8087, "multigpu40": 9443,
    "multigpu50": 11359,
}  # fmt: skip


def default_pods(count: int = 8152, seed: int = 42) -> tuple[TracePod, ...]:
    return generate_pods(family="default", pods=count, seed=seed)


def test_1213_nodes_are_the_published_cluster() -> None:
    summary = summarise(generate_cluster(nodes=1213, seed=1))
    assert {model.model: model.gpus for model in summary.models} == PUBLISHED_GPUS
    assert (summary.gpus, summary.vcpu, summary.memory_mib) == (6212, 107_018, 503_828_480)


@pytest.mark.parametrize("nodes", [1, 2, 16, 100, 1212, 5000])
def test_every_node_shape_keeps_its_share_within_one_node(nodes: int) -> None:
    full = summarise(generate_cluster(nodes=1213, seed=1))
    shares = {
        (model.model, shape.gpus, shape.vcpu): shape.nodes / 1213
        for model in full.models
        for shape in model.shapes
    }
    counts = Counter(
        (node.gpu_model, node.gpu_count, node.cpu_milli / 1000)
        for node in generate_cluster(nodes=nodes, seed=1).nodes
    )
    assert sum(counts.values()) == nodes
    assert all(abs(counts[shape] - share * nodes) < 1 for shape, share in shares.items())


def test_the_seed_decides_the_order_of_the_nodes_and_nothing_else() -> None:
    one, same, other = (generate_cluster(nodes=300, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert summarise(one) == summarise(other)


def test_default_has_the_published_populations_exactly() -> None:
    counts = Counter(class_of(pod.request) for pod in default_pods())
    assert counts == {
        "cpu-only": 1088, "sharing": 3078, "1-gpu": 3911, "2-gpu": 16, "4-gpu": 15, "8-gpu": 44,
    }  # fmt: skip


def test_default_has_the_published_shares_totals_and_shapes() -> None:
    summary = summarise(default_pods())
    shares = {one.name: round(100 * one.gpu_share, 1) for one in summary.classes}
    assert shares["1-gpu"] == pytest.approx(64.3, abs=0.1)
    assert shares["sharing"] == pytest.approx(28.5, abs=0.1)
    assert shares["8-gpu"] == pytest.approx(5.8, abs=0.1)
    assert summary.gpus == pytest.approx(6086.8, rel=0.001)
    assert summary.vcpu == pytest.approx(85_436, rel=0.01)
    assert summary.memory_mib == pytest.approx(303_546_211, rel=0.01)
    assert (summary.shapes, summary.shapes_for_95) == (91, 35)
    assert (summary.cpu_vcpu.least, summary.cpu_vcpu.most) == (1.0, 120.2)
    memory = [pod.request.memory_mib for pod in default_pods()]
    assert (min(memory), max(memory)) == (0, 737_280)


def test_default_has_the_published_five_most_frequent_requests() -> None:
    frequent = summarise(default_pods()).most_frequent
    assert [(one.vcpu, one.gpus, one.gpu_milli, one.pods) for one in frequent] == [
        (3.152, 1, 810, 1047),
        (11.3, 1, 1000, 874),
        (11.4, 1, 1000, 599),
        (3.152, 1, 1000, 470),
        (11.908, 1, 470, 388),
    ]


def test_every_default_pod_fits_some_published_node() -> None:
    nodes = set(generate_cluster(nodes=1213, seed=1).nodes)
    requests = {pod.request for pod in generate_pods(family="gpuspec33", pods=8152, seed=1)}
    assert all(any(request.fits(node) for node in nodes) for request in requests)


@pytest.mark.parametrize("seed", range(5))
def test_lifetimes_have_the_published_quantiles_and_mean(seed: int) -> None:
    run = summarise(default_pods(seed=seed)).run_s
    assert run is not None
    assert run.median == pytest.approx(540, rel=0.01)
    assert run.p90 == pytest.approx(6_574, rel=0.01)
    assert run.p99 == pytest.approx(99_719, rel=0.03)
    assert run.mean == pytest.approx(LIFETIME_MEAN_S, rel=0.05)
    assert run.most <= 12_537_496


def test_arrivals_are_poisson_within_six_weeks() -> None:
    submitted = [pod.submit_s for pod in default_pods(50_000)]
    assert submitted == sorted(submitted)
    gaps = np.diff(np.array(submitted, dtype=float))
    assert submitted[-1] <= 42 * 86_400
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.03)  # exponential gaps


@pytest.mark.parametrize("family", PUBLISHED_DEMAND_GPUS)
def test_families_request_the_published_gpus_within_one_percent(family: str) -> None:
    pods = generate_pods(family=family, pods=FAMILIES[family].pods, seed=1)
    assert summarise(pods).gpus == pytest.approx(PUBLISHED_DEMAND_GPUS[family], rel=0.011)


@pytest.mark.parametrize(
    ("family", "share"),
    [("cpu0", 0), ("cpu037", 0.037), ("cpu050", 0.05), ("cpu200", 0.2), ("cpu300", 0.3)],
)
def test_cpu_families_have_their_share_of_cpu_only_pods(family: str, share: float) -> None:
    pods = generate_pods(family=family, pods=FAMILIES[family].pods, seed=1)
    cpu_only = sum(1 for pod in pods if not pod.request.gpu_count)
    assert cpu_only / len(pods) == pytest.approx(share, abs=0.001)
    assert len(pods) - cpu_only == 7064


@pytest.mark.parametrize("percent", [20, 40, 60, 80, 100])
def test_gpushare_families_have_their_share_of_gpu_demand(percent: int) -> None:
    classes = summarise(generate_pods(family=f"gpushare{percent}", pods=8152, seed=1)).classes
    sharing = next(one for one in classes if one.name == "sharing")
    assert 100 * sharing.gpu_share == pytest.approx(percent, abs=0.5)


@pytest.mark.parametrize(("percent", "published"), [(20, 20.3), (30, 30.2), (40, 40.2), (50, 50.4)])
def test_multigpu_families_have_their_share_of_gpu_demand(percent: int, published: float) -> None:
    family = f"multigpu{percent}"
    classes = summarise(generate_pods(family=family, pods=FAMILIES[family].pods, seed=1)).classes
    several = sum(one.gpu_share for one in classes if one.name in ("2-gpu", "4-gpu", "8-gpu"))
    assert 100 * several == pytest.approx(published, abs=0.15)


@pytest.mark.parametrize(
    ("family", "share"),
    [("gpuspec05", 5.2), ("gpuspec10", 10.4), ("gpuspec25", 24.9), ("gpuspec33", 33.8)],
)
def test_gpuspec_families_bind_their_share_of_gpu_pods(family: str, share: float) -> None:
    pods = generate_pods(family=family, pods=8152, seed=1)
    assert 100 * summarise(pods).constrained == pytest.approx(share, abs=0.01)


def test_a_load_is_met_within_half_a_percent() -> None:
    cluster = generate_cluster(nodes=500, seed=1)
    pods = generate_pods(
        family="multigpu30", gpu_capacity_milli=cluster.gpu_milli, load=1.3, seed=1
    )
    assert summarise(pods).gpus * 1000 / cluster.gpu_milli == pytest.approx(1.3, rel=0.005)


def test_the_seed_decides_order_times_and_lifetimes_but_not_the_mix() -> None:
    one, same, other = (default_pods(500, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert Counter(pod.request for pod in one) == Counter(pod.request for pod in other)


def test_equal_requests_are_one_object() -> None:
    requests = [pod.request for pod in generate_pods(family="gpuspec25", pods=8152, seed=1)]
    assert len({id(request) for request in requests}) == len(set(requests))


@pytest.mark.long
def test_20_000_nodes_and_170_000_pods_take_seconds() -> None:
    started = time.process_time()
    generate_cluster(nodes=20_000, seed=1)
    default_pods(170_000)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("count", [1, 2, 7, 90])
def test_few_pods_are_as_many_as_asked_for(count: int) -> None:
    assert len(default_pods(count)) == count


@pytest.mark.parametrize(
    ("story", "wanted", "said"),
    [
        ("unknown family", {"family": "cpu500", "pods": 5}, "did you mean"),
        ("no pods", {"family": "default", "pods": 0}, "not between 1 and"),
        ("too many pods", {"family": "default", "pods": 10**9}, "not between 1 and"),
        ("no size at all", {"family": "default"}, "neither"),
        ("no load", {"family": "default", "gpu_capacity_milli": 1000, "load": 0.0}, "load"),
        (
            "endless load",
            {"family": "default", "gpu_capacity_milli": 1000, "load": float("nan")},
            "load",
        ),
        ("no time", {"family": "default", "pods": 5, "span_s": 0.0}, "span"),
    ],
)
def test_senseless_wishes_are_refused_in_one_line(
    story: str, wanted: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        generate_pods(seed=1, **wanted)  # type: ignore[arg-type]
    assert "\n" not in refused.value.line(), story


def test_no_node_is_refused() -> None:
    with pytest.raises(UserError, match="nodes"):
        generate_cluster(nodes=0, seed=1)


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [(10, (1, 1), [5, 5]), (3, (1, 1), [2, 1]), (1, (2, 3), [0, 1]), (0, (1, 2), [0, 0])],
)
def test_apportion_is_by_largest_remainder(
    total: int, weights: tuple[int, ...], parts: list[int]
) -> None:
    assert apportion(total, weights) == parts


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    cluster = generate_cluster(nodes=60, seed=3)
    pods = generate_pods(family="gpuspec33", pods=700, seed=3)
    nodes_csv, pods_csv = write_openb(cluster, pods, tmp_path / "new" / "folder")
    assert read_nodes(nodes_csv, known=GPUS) == cluster
    assert read_pods(pods_csv, known=GPUS) == pods


def test_pods_without_times_and_nodes_with_cpu_models_are_read_back_the_same(
    tmp_path: Path,
) -> None:
    cluster = ClusterSpec(
        (
            NodeSpec(name="a", cpu_milli=8000, memory_mib=100, cpu_model="Xeon 8163"),
            NodeSpec(name="b", cpu_milli=8000, memory_mib=100, gpu_count=1, gpu_model="T4"),
        )
    )
    pods = (
        TracePod(name="p", request=Request(cpu_milli=1000)),
        TracePod(name="q", request=Request(cpu_milli=1000), submit_s=3.0),
    )
    nodes_csv, pods_csv = write_openb(cluster, pods, tmp_path)
    known_cpus = ("Xeon 8163",)
    assert read_nodes(nodes_csv, known=GPUS, known_cpus=known_cpus) == cluster
    assert read_pods(pods_csv, known=GPUS) == pods


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        write_openb(generate_cluster(nodes=1, seed=1), default_pods(1), tmp_path / "file")


def _distance(one: list[float], other: list[float]) -> float:
    """Kolmogorov-Smirnov: the largest gap between the two cumulative shares."""
    points = np.unique([*one, *other])
    cumulative = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (one, other)]
    return float(np.abs(cumulative[0] - cumulative[1]).max())


# Measured with seed 42 (0.049, 0.288, 0.047, 0.068) with some room. Memory is the weakest: only
# its total is published, and no published score looks at it.
TOLERATED = {"vcpu": 0.07, "memory": 0.32, "gpu_milli": 0.07, "run_s": 0.09}


def test_marginals_are_near_those_of_the_trace(openb: Path, record_property: object) -> None:
    columns = {
        "vcpu": lambda pod: pod.request.cpu_milli,
        "memory": lambda pod: pod.request.memory_mib,
        "gpu_milli": lambda pod: pod.request.total_gpu_milli,
        "run_s": lambda pod: pod.duration_s or 0.0,
    }
    trace = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    ours = default_pods()
    distances = {
        name: _distance([*map(value, trace)], [*map(value, ours)])
        for name, value in columns.items()
    }
    print("Kolmogorov-Smirnov distance to the default trace:", distances)
    record_property("ks_distance", distances)  # type: ignore[operator]
    assert all(distances[name] <= TOLERATED[name] for name in columns), distances
