"""Arrival and tie orders, drawn by the published procedure or read; and impossible pods."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload import arrivals as module
from wattherd.workload.arrivals import draw_arrivals, inflate, read_order
from wattherd.workload.impossible_requests import never_fits
from wattherd.workload.openb import read_nodes, read_pods
from wattherd.workload.random_streams import stream


def a_pod(name: str, *, gpus: int = 0, milli: int = 1000, **asked: int) -> TracePod:
    request = Request(
        cpu_milli=asked.get("cpu", 1000),
        memory_mib=asked.get("memory", 0),
        gpu_count=gpus,
        gpu_milli=milli if gpus else 0,
    )
    return TracePod(name=name, request=request)


def a_cluster(count: int, *, gpus: int = 4) -> ClusterSpec:
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"n{number}",
                cpu_milli=64_000,
                memory_mib=1 << 18,
                gpu_count=gpus,
                gpu_model="T4" if gpus else "",
            )
            for number in range(count)
        )
    )


def asked_by(pods: list[TracePod], order: np.ndarray) -> int:
    return sum(pods[row].request.total_gpu_milli for row in order)


ONES = [a_pod(f"p{number:02}", gpus=1) for number in range(10)]


# --- streams --------------------------------------------------------------------------------


def test_a_stream_is_its_seed_and_purpose() -> None:
    assert stream(7, "a").integers(1 << 60) == stream(7, "a").integers(1 << 60)
    draws = {int(stream(seed, name).integers(1 << 60)) for seed in (7, 8) for name in "ab"}
    assert len(draws) == 4


def test_a_stream_is_the_same_in_every_version() -> None:
    assert stream(42, "arrivals").integers(1 << 30, size=3).tolist() == [
        int(value) for value in np.random.default_rng([42, 0xD7595DC2]).integers(1 << 30, size=3)
    ]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UserError, match="seed -1 is negative"):
        stream(-1, "a")


# --- inflation ------------------------------------------------------------------------------


def test_the_whole_trace_comes_first_and_picks_are_appended_up_to_the_load() -> None:
    order = inflate(ONES, capacity_milli=20_000, load=1.3, rng=stream(1, "test"))
    assert sorted(order[:10]) == list(range(10))
    assert asked_by(ONES, order) == 26_000


def test_a_trace_that_asks_for_too_much_loses_random_pods() -> None:
    order = inflate(ONES, capacity_milli=4_000, load=1.5, rng=stream(1, "test"))
    assert len(order) == len(set(order.tolist())) == 6


def test_a_trace_that_asks_for_exactly_the_load_is_only_shuffled() -> None:
    order = inflate(ONES, capacity_milli=10_000, load=1.0, rng=stream(1, "test"))
    assert sorted(order) == list(range(10))
    assert order.tolist() != list(range(10))


def test_the_stop_test_counts_one_gpu_of_a_pick_as_published() -> None:
    """One milli short of the target a pick of eight GPUs still enters, if one GPU would fit."""
    eights = [a_pod(f"p{number}", gpus=8) for number in range(3)]
    order = inflate(eights, capacity_milli=25_000, load=1.0, rng=stream(1, "test"))
    assert asked_by(eights, order) == 32_000
    order = inflate(eights, capacity_milli=24_999, load=1.0, rng=stream(1, "test"))
    assert asked_by(eights, order) == 24_000


def test_cpu_only_pods_stop_too_once_the_target_is_passed() -> None:
    mixed = [a_pod("gpu", gpus=8), a_pod("cpu")]
    order = inflate(mixed, capacity_milli=9_000, load=1.0, rng=stream(3, "test"))
    assert asked_by(mixed, order) == 16_000
    assert order[-1] == 0


def test_picks_are_uniform() -> None:
    counts = Counter(
        inflate(ONES, capacity_milli=40_000_000, load=1.0, rng=stream(5, "test")).tolist()
    )
    assert min(counts.values()) > 3_800
    assert max(counts.values()) < 4_200


def test_removal_is_uniform() -> None:
    kept: Counter[int] = Counter()
    for seed in range(2_000):
        kept.update(
            inflate(ONES, capacity_milli=5_000, load=1.0, rng=stream(seed, "test")).tolist()
        )
    assert min(kept.values()) > 900
    assert max(kept.values()) < 1_100


@given(
    gpus=st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=40),
    capacity=st.integers(1, 200),
    load=st.floats(0.1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=times(200), deadline=None)
def test_inflation_hits_its_target(gpus: list[int], capacity: int, load: float, seed: int) -> None:
    pods = [a_pod(f"p{number:02}", gpus=count) for number, count in enumerate(gpus)]
    if not any(gpus):
        return
    target = round(load * capacity * 1000)
    order = inflate(pods, capacity_milli=capacity * 1000, load=load, rng=stream(seed, "t"))
    asked = asked_by(pods, order)
    if sum(gpus) * 1000 > target:
        assert asked <= target
        assert len(set(order.tolist())) == len(order)
    else:
        assert sorted(order[: len(pods)]) == list(range(len(pods)))
        assert target - 1000 < asked <= target + 7000


@pytest.mark.parametrize(
    ("what", "pods", "capacity", "load", "problem"),
    [
        ("no load", ONES, 1000, 0.0, "load 0.0 is not between"),
        ("a negative load", ONES, 1000, -1.0, "load -1.0 is not between"),
        ("no number", ONES, 1000, float("nan"), "load nan is not between"),
        ("percent for a share", ONES, 1000, 1e9, "is not between"),
        ("no pods", [], 1000, 1.0, "no pods"),
        ("no GPU in the cluster", ONES, 0, 1.0, "the cluster has no GPU"),
        ("no GPU in the trace", [a_pod("a")], 1000, 1.0, "no pod asks for a GPU"),
        ("crumbs", [a_pod("a", gpus=1, milli=1)], 10**9, 1.3, "more than 10,000,000 pods"),
    ],
)
def test_what_cannot_be_inflated(
    what: str, pods: list[TracePod], capacity: int, load: float, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        inflate(pods, capacity_milli=capacity, load=load, rng=stream(1, what))


# --- drawing --------------------------------------------------------------------------------


def test_a_draw_depends_on_the_seed_alone() -> None:
    cluster = a_cluster(20)
    first, again, other = (draw_arrivals(ONES, cluster, load=1.3, seed=s) for s in (1, 1, 2))
    assert first.pods.tolist() == again.pods.tolist() != other.pods.tolist()
    assert first.nodes.tolist() == again.nodes.tolist() != other.nodes.tolist()
    assert sorted(first.nodes) == list(range(20))
    assert first.pods.dtype == first.nodes.dtype == np.int64


def test_a_draw_does_not_depend_on_the_order_of_the_rows() -> None:
    cluster = a_cluster(20)
    turned = ClusterSpec(cluster.nodes[::-1])
    one = draw_arrivals(ONES, cluster, load=1.3, seed=1)
    two = draw_arrivals(ONES[::-1], turned, load=1.3, seed=1)
    assert [ONES[row].name for row in one.pods] == [ONES[::-1][row].name for row in two.pods]
    assert [cluster.nodes[row].name for row in one.nodes] == [
        turned.nodes[row].name for row in two.nodes
    ]


def test_the_tie_order_does_not_depend_on_the_load() -> None:
    cluster = a_cluster(20)
    low, high = (draw_arrivals(ONES, cluster, load=load, seed=1) for load in (0.1, 2.0))
    assert low.nodes.tolist() == high.nodes.tolist()


def test_a_draw_is_the_same_under_another_hash_seed() -> None:
    program = (
        "from wattherd.workload.random_streams import stream;"
        "print(stream(42, 'arrivals').permutation(50).tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(printed) == 1


@pytest.mark.data
def test_the_default_trace_grows_as_published(openb: Path) -> None:
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    drawn = draw_arrivals(pods, cluster, load=1.3, seed=42)
    asked = sum(pods[row].request.total_gpu_milli for row in drawn.pods)
    assert 8_075_600 - 1_000 < asked <= 8_075_600 + 7_000
    # Published for its own random numbers: 10,866.
    assert 10_700 < len(drawn.pods) < 11_000


# --- order files ----------------------------------------------------------------------------

GOOD = {"seeds": {"42": {"pods": [2, 0, 1, 1], "nodes": [1, 0]}, "7": {}}}


def an_order(folder: Path, content: object) -> Path:
    path = folder / "order.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_an_order_file_is_taken_literally(tmp_path: Path, packed: bool) -> None:
    raw = json.dumps(GOOD).encode()
    path = tmp_path / "order"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    order = read_order(path, seed=42, pods=3, nodes=2)
    assert order.pods.tolist() == [2, 0, 1, 1]
    assert order.nodes.tolist() == [1, 0]
    assert order.pods.dtype == order.nodes.dtype == np.int64


def replaced(**lists: object) -> dict[str, object]:
    return {"seeds": {"42": {**GOOD["seeds"]["42"], **lists}}}


@pytest.mark.parametrize(
    ("what", "content", "problem", "hint"),
    [
        ("an absent seed", {"seeds": {"10": {}, "9": {}}}, "no seed 42", "present: 9, 10"),
        ("no seeds", {"pods": []}, "no object 'seeds'", "expected"),
        ("a list of seeds", {"seeds": [42]}, "no object 'seeds'", "expected"),
        ("not an object", [], "no object 'seeds'", "expected"),
        ("a seed without pods", {"seeds": {"42": {}}}, "seeds.42.pods: no list", ""),
        ("no pods", replaced(pods=[]), "seeds.42.pods: no list of rows", ""),
        ("a pod too far", replaced(pods=[0, 3]), "entry 1 is row 3 of a list of 3", "from 0"),
        ("a pod before the first", replaced(pods=[-1]), "entry 0 is row -1", ""),
        ("a fraction", replaced(pods=[1.0]), "entry 0 is '1.0', not a whole", ""),
        ("a truth", replaced(pods=[True]), "entry 0 is 'True', not a whole", ""),
        ("a huge row", replaced(pods=[10**300]), "entry 0 is row 1000", ""),
        ("a node twice", replaced(nodes=[1, 1]), "2 rows, 1 of them distinct, for 2", "once"),
        ("a node missing", replaced(nodes=[1]), "1 rows, 1 of them distinct, for 2", "once"),
        ("a node too far", replaced(nodes=[0, 2]), "entry 1 is row 2 of a list of 2", ""),
        ("no JSON", '{"seeds": ', "not JSON", ""),
        ("an empty file", "", "not JSON", ""),
        ("nesting without end", "[" * 200_000, "nested too deeply", ""),
        ("a number without end", "9" * 10_000, "a number too long", ""),
    ],
)
def test_a_bad_order_file(
    tmp_path: Path, what: str, content: object, problem: str, hint: str
) -> None:
    path = an_order(tmp_path, content)
    with pytest.raises(UserError) as refused:
        read_order(path, seed=42, pods=3, nodes=2)
    line = refused.value.line()
    assert line.startswith(str(path)), what
    assert problem in line, what
    assert hint in refused.value.hint, what
    assert len(line) < 300 + len(str(path)), what


def test_a_truncated_order_file(tmp_path: Path) -> None:
    path = tmp_path / "order.json.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-12])
    with pytest.raises(UserError, match="truncated gzip file"):
        read_order(path, seed=42, pods=3, nodes=2)


def test_an_order_file_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_ORDER_BYTES", 1 << 20)
    path = tmp_path / "order.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(UserError, match="more than 1 MiB"):
        read_order(path, seed=42, pods=3, nodes=2)


@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode)))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_an_order_or_a_user_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "anything"
    path.write_bytes(content)
    with pytest.raises(UserError):
        read_order(path, seed=42, pods=3, nodes=2)


@pytest.mark.data
def test_the_published_orders_name_rows_of_the_published_lists(openb: Path) -> None:
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    order = read_order(
        openb / "orders" / "openb_pod_list_default.json.gz", seed=42, pods=len(pods), nodes=1213
    )
    assert len(order.pods) == 10_866
    assert sorted(order.nodes) == list(range(1213))
    with pytest.raises(UserError, match="seeds present: 42, 43, 44"):
        read_order(
            openb / "orders" / "openb_pod_list_default.json.gz", seed=1, pods=8152, nodes=1213
        )


# --- impossible pods ------------------------------------------------------------------------

CLUSTER = ClusterSpec(
    (
        NodeSpec(name="big", cpu_milli=96_000, memory_mib=400, gpu_count=8, gpu_model="G2"),
        NodeSpec(name="fat", cpu_milli=128_000, memory_mib=900, gpu_count=2, gpu_model="T4"),
        NodeSpec(name="odd", cpu_milli=16_000, memory_mib=2000, gpu_count=8, gpu_model="G2"),
    )
)


@pytest.mark.parametrize(
    ("what", "request_", "reason"),
    [
        ("too many GPUs", Request(cpu_milli=1, gpu_count=9, gpu_milli=1000),
         "needs 9 GPUs, a node has at most 8"),
        ("too much CPU", Request(cpu_milli=200_000),
         "needs 200000 milli-vCPU, a node has at most 128000"),
        ("too much memory", Request(cpu_milli=1, memory_mib=2001),
         "needs 2001 MiB, a node has at most 2000"),
        ("an absent model", Request(cpu_milli=1, gpu_count=1, gpu_milli=5, models=("A10", "P4")),
         "needs A10 or P4, which no node has"),
        ("too many of a model", Request(cpu_milli=1, gpu_count=4, gpu_milli=1000, models=("T4",)),
         "needs 4 GPUs, a T4 node has at most 2"),
        ("wants no node joins", Request(cpu_milli=100_000, gpu_count=8, gpu_milli=1000),
         "needs 100000 milli-vCPU, a node with 8 GPUs has at most 96000"),
        ("three wants", Request(cpu_milli=50_000, memory_mib=500, gpu_count=8, gpu_milli=1000),
         "needs 500 MiB, a node with 8 GPUs and 50000 milli-vCPU has at most 400"),
    ],
)  # fmt: skip
def test_why_a_request_never_fits(what: str, request_: Request, reason: str) -> None:
    found = never_fits([TracePod(name="p", request=request_)], CLUSTER)
    assert [entry.reason for entry in found] == [reason], what


def test_impossible_pods_are_counted_by_request_most_frequent_first() -> None:
    pods = [
        a_pod("fine", gpus=8),
        a_pod("nine", gpus=9),
        a_pod("huge", cpu=10**9),
        a_pod("huge2", cpu=10**9),
    ]
    assert [(entry.count, entry.example) for entry in never_fits(pods, CLUSTER)] == [
        (2, "huge"),
        (1, "nine"),
    ]


@given(
    cpu=st.integers(0, 150_000),
    memory=st.integers(0, 1000),
    gpus=st.integers(0, 10),
    models=st.lists(st.sampled_from(["T4", "G2", "A10"]), max_size=3).map(tuple),
)
@settings(max_examples=times(200), deadline=None)
def test_a_request_is_impossible_exactly_if_no_node_could_hold_it(
    cpu: int, memory: int, gpus: int, models: tuple[str, ...]
) -> None:
    request = Request(
        cpu_milli=cpu, memory_mib=memory, gpu_count=gpus, gpu_milli=1000 * bool(gpus), models=models
    )
    found = never_fits([TracePod(name="p", request=request)], CLUSTER)
    assert bool(found) != any(request.fits(node) for node in CLUSTER.nodes)


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "counts"),
    [("default", []), ("gpuspec10", [2]), ("gpuspec20", []), ("gpuspec25", [1])],
)
def test_impossible_pods_of_the_published_traces(
    openb: Path, trace: str, counts: list[int]
) -> None:
    """Some gpuspec pods want 120 vCPU and a G2, whose nodes have 96: the constraint came later."""
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    pods = read_pods(openb / f"openb_pod_list_{trace}.csv", known=GPUS)
    found = never_fits(pods, cluster)
    assert [entry.count for entry in found] == counts
    assert all("a G2 node has at most 96000" in entry.reason for entry in found)
