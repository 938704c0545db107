"""The hardware tables: sane, sourced, and equal to the published cluster constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.catalog.cpus import CPUS, PAPER_CPU_BY_GPU, REFERENCE_CPU, CpuModel, cpu
from wattherd.catalog.gpus import GPUS, GpuModel, gpu
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.spelling import hint_for, nearest
from wattherd.workload.openb import read_nodes

EVERYTHING: list[GpuModel | CpuModel] = [*GPUS.values(), *CPUS.values()]


@pytest.mark.parametrize("entry", EVERYTHING, ids=lambda entry: entry.name)
def test_idle_is_more_than_nothing_and_less_than_the_maximum(entry: GpuModel | CpuModel) -> None:
    assert 0 < entry.idle_w < entry.max_w


@pytest.mark.parametrize("entry", EVERYTHING, ids=lambda entry: entry.name)
def test_every_entry_says_where_its_figures_come_from(entry: GpuModel | CpuModel) -> None:
    assert entry.source.strip()
    from_the_paper = "PWR" in entry.source
    assert from_the_paper or "idle measured" in entry.note or "estimated" in entry.note


@pytest.mark.parametrize("entry", GPUS.values(), ids=lambda entry: entry.name)
def test_a_gpu_has_memory_and_a_cap_range(entry: GpuModel) -> None:
    assert entry.memory_mib > 0
    if entry.min_cap_w is not None:
        assert entry.idle_w < entry.min_cap_w < entry.max_w


@pytest.mark.parametrize("entry", CPUS.values(), ids=lambda entry: entry.name)
def test_a_cpu_has_cores(entry: CpuModel) -> None:
    assert entry.cores > 0


def test_names_are_unique_and_the_tables_cannot_be_changed() -> None:
    assert [*GPUS, *CPUS] == [entry.name for entry in EVERYTHING]
    with pytest.raises(TypeError):
        GPUS["T4"] = gpu("A10")  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "idle_w", "max_w", "memory_mib"),
    [
        ("T4", 10, 70, 15109),
        ("A10", 30, 150, 22731),
        ("G2", 30, 150, 20000),
        ("G3", 50, 400, 30000),
        ("P100", 25, 250, 16280),
        ("V100M16", 30, 300, 16160),
        ("V100M32", 30, 300, 32510),
        ("A100", 50, 400, 81251),
    ],
)
def test_the_paper_s_gpus_are_as_published(
    name: str, idle_w: float, max_w: float, memory_mib: int
) -> None:
    entry = gpu(name)
    assert (entry.idle_w, entry.max_w, entry.memory_mib) == (idle_w, max_w, memory_mib)


@pytest.mark.parametrize(
    ("name", "idle_w", "max_w", "cores"),
    [
        ("Xeon E5-2682 v4", 15, 120, 16),
        ("Xeon 8163", 20, 165, 24),
        ("Xeon 8369B", 20, 270, 32),
        ("Xeon 6326", 20, 185, 16),
        ("Xeon 8269CY", 20, 205, 26),
    ],
)
def test_the_paper_s_cpus_are_as_published(
    name: str, idle_w: float, max_w: float, cores: int
) -> None:
    entry = cpu(name)
    assert (entry.idle_w, entry.max_w, entry.cores) == (idle_w, max_w, cores)


@pytest.mark.parametrize(
    ("what", "look_up", "asked", "hint"),
    [
        ("a slip of the finger", gpu, "V100M23", "did you mean 'V100M32'?"),
        ("lower case", gpu, "t4", "did you mean 'T4'?"),
        ("a name begun", gpu, "h100", "did you mean 'H100-PCIe' or 'H100-SXM'?"),
        ("nothing near", gpu, "potato", "known: 1080, "),
        ("a missing blank", cpu, "Xeon8163", "did you mean 'Xeon 8163'?"),
        ("empty", cpu, "", "known: EPYC 7742, "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    what: str, look_up: type, asked: str, hint: str
) -> None:
    with pytest.raises(UserError) as refused:
        look_up(asked)
    assert refused.value.hint.startswith(hint), what
    assert repr(asked) in refused.value.line()


def test_hints_do_not_depend_on_the_order_of_the_names() -> None:
    names = ["A100", "A10", "A30", "A40"]
    assert nearest("a20", names) == nearest("a20", reversed(names))
    assert hint_for("zzz", names) == hint_for("zzz", set(names))


def _gpu_watts(cluster: ClusterSpec) -> tuple[float, float]:
    idle = sum(node.gpu_count * gpu(node.gpu_model).idle_w for node in cluster.nodes)
    busy = sum(node.gpu_count * gpu(node.gpu_model).max_w for node in cluster.nodes)
    return idle, busy


def _packages(node: NodeSpec, model: CpuModel) -> int:
    """Packages of a node: two vCPU are a core, a package begun counts whole (PWR, code)."""
    cores = -(-node.cpu_milli // 2000)
    return -(-cores // model.cores)


@pytest.mark.data
def test_published_gpu_watts_of_the_openb_cluster(openb: Path) -> None:
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    assert _gpu_watts(cluster) == (174_435, 1_028_790)


@pytest.mark.data
def test_published_cpu_watts_with_the_reference_cpu_everywhere(openb: Path) -> None:
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    model = cpu(REFERENCE_CPU)
    packages = sum(_packages(node, model) for node in cluster.nodes)
    assert packages == 3_711
    assert (packages * model.idle_w, packages * model.max_w) == (55_665, 445_320)


@pytest.mark.data
def test_published_cpu_watts_with_the_paper_s_cpu_map(openb: Path) -> None:
    cluster = read_nodes(openb / "openb_node_list_gpu_node.csv", known=GPUS)
    models = [cpu(PAPER_CPU_BY_GPU[node.gpu_model]) for node in cluster.nodes]
    idle = sum(_packages(n, m) * m.idle_w for n, m in zip(cluster.nodes, models, strict=True))
    full = sum(_packages(n, m) * m.max_w for n, m in zip(cluster.nodes, models, strict=True))
    assert (idle, full) == (52_740, 561_320)


def test_the_cpu_map_names_known_parts_only() -> None:
    assert set(PAPER_CPU_BY_GPU) - {""} <= set(GPUS)
    assert set(PAPER_CPU_BY_GPU.values()) | {REFERENCE_CPU} <= set(CPUS)
