"""Statistics of small clusters and workloads whose numbers can be counted by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload.inspect import ClassSummary, NodeShape, class_of, summarise
from wattherd.workload.openb import read_nodes, read_pods


def a_node(name: str, *, gpus: int = 0, model: str = "", cpu_milli: int = 8000) -> NodeSpec:
    return NodeSpec(
        name=name, cpu_milli=cpu_milli, memory_mib=1024, gpu_count=gpus, gpu_model=model
    )


def a_pod(
    name: str,
    *,
    cpu_milli: int = 1000,
    gpus: int = 0,
    milli: int = 0,
    models: tuple[str, ...] = (),
    submit_s: float | None = None,
    duration_s: float | None = None,
) -> TracePod:
    request = Request(
        cpu_milli=cpu_milli, memory_mib=10, gpu_count=gpus, gpu_milli=milli, models=models
    )
    return TracePod(name=name, request=request, submit_s=submit_s, duration_s=duration_s)


def test_a_cluster_is_counted_by_model_most_gpus_first() -> None:
    summary = summarise(
        ClusterSpec(
            (
                a_node("a"),
                a_node("b", gpus=1, model="T4"),
                a_node("c", gpus=2, model="P100"),
                a_node("d", gpus=2, model="P100"),
                a_node("e", gpus=1, model="P100", cpu_milli=500),
            )
        )
    )
    assert (summary.nodes, summary.gpus, summary.vcpu, summary.memory_mib) == (5, 6, 32.5, 5120)
    assert [(one.model, one.nodes, one.gpus) for one in summary.models] == [
        ("P100", 3, 5),
        ("T4", 1, 1),
        ("", 1, 0),
    ]
    assert summary.models[0].shapes == (
        NodeShape(gpus=2, vcpu=8.0, memory_mib=1024, nodes=2),
        NodeShape(gpus=1, vcpu=0.5, memory_mib=1024, nodes=1),
    )
    assert ("without GPU", "1 nodes, 0 GPUs") in summary.rows()


@pytest.mark.parametrize(
    ("gpus", "milli", "name"),
    [(0, 0, "cpu-only"), (1, 999, "sharing"), (1, 1000, "1-gpu"), (16, 1000, "16-gpu")],
)
def test_a_request_belongs_to_one_population(gpus: int, milli: int, name: str) -> None:
    assert class_of(a_pod("p", gpus=gpus, milli=milli).request) == name


def test_pods_are_counted_by_population_and_request() -> None:
    summary = summarise(
        [
            a_pod("a", cpu_milli=2000),
            a_pod("b", gpus=1, milli=250, models=("T4",)),
            a_pod("c", gpus=1, milli=250),
            a_pod("d", gpus=1, milli=250),
            a_pod("e", gpus=4, milli=1000),
        ]
    )
    assert (summary.pods, summary.gpus, summary.vcpu, summary.memory_mib) == (5, 4.75, 6.0, 50)
    assert summary.classes == (
        ClassSummary(name="cpu-only", pods=1, pod_share=0.2, gpus=0.0, gpu_share=0.0),
        ClassSummary(name="sharing", pods=3, pod_share=0.6, gpus=0.75, gpu_share=0.75 / 4.75),
        ClassSummary(name="4-gpu", pods=1, pod_share=0.2, gpus=4.0, gpu_share=4 / 4.75),
    )
    assert (summary.shapes, summary.shapes_for_95) == (4, 4)
    assert summary.most_frequent[0].pods == 2
    assert summary.constrained == 0.25
    assert (summary.run_s, summary.span_s) == (None, None)


def test_requests_equally_frequent_are_shown_in_a_fixed_order() -> None:
    pods = [a_pod(str(cpu), cpu_milli=cpu) for cpu in (3000, 1000, 2000)]
    assert [one.vcpu for one in summarise(pods).most_frequent] == [1.0, 2.0, 3.0]


def test_times_are_summed_up_over_the_pods_that_have_them() -> None:
    pods = [a_pod(str(n), submit_s=10.0 + n, duration_s=float(n)) for n in range(1, 102)]
    summary = summarise([*pods, a_pod("no times")])
    assert summary.span_s == 100
    assert summary.run_s is not None
    spread = (summary.run_s.least, summary.run_s.median, summary.run_s.p90, summary.run_s.most)
    assert spread == (1, 51, 91, 101)
    assert summary.run_s.mean == 51
    assert ("submitted within", "100 s") in summary.rows()


def test_cpu_only_workloads_have_no_gpu_share_to_divide_by() -> None:
    summary = summarise([a_pod("a")])
    assert [one.gpu_share for one in summary.classes] == [0.0, 0.0]
    assert summary.constrained == 0.0


def test_no_pod_at_all_is_no_error() -> None:
    assert summarise(()).pods == 0
    assert summarise(()).rows()


def test_summaries_turn_into_plain_data() -> None:
    plain = asdict(summarise([a_pod("a", gpus=1, milli=500, submit_s=1.0, duration_s=2.0)]))
    assert plain["classes"][1]["name"] == "sharing"
    assert plain["run_s"]["median"] == 2.0


def test_the_trace_has_the_published_statistics(openb: Path) -> None:
    nodes = summarise(read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS))
    assert (nodes.nodes, nodes.gpus, nodes.vcpu, nodes.memory_mib) == (
        1213, 6212, 107_018, 503_828_480,
    )  # fmt: skip
    pods = summarise(read_pods(openb / "openb_pod_list_default.csv", known=GPUS))
    assert (pods.pods, round(pods.vcpu), pods.memory_mib) == (8152, 85_436, 303_546_211)
    assert pods.gpus == pytest.approx(6086.8)
    assert [one.pods for one in pods.classes] == [1088, 3078, 3911, 16, 15, 44]
    assert (pods.shapes, pods.shapes_for_95) == (91, 35)
    assert [one.pods for one in pods.most_frequent] == [1047, 874, 599, 470, 388]
    assert pods.span_s == 12_901_761
