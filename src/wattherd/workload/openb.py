"""Node and pod lists in the CSV format of the openb traces (Alibaba cluster-trace-gpu-v2023).

Pod lists differ in their columns: some published ones carry only the first five. Times are in
seconds since the trace began, everything else in the units of `model`. Plain and gzip files are
read alike.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from wattherd.catalog.cpus import CPUS
from wattherd.errors import UserError
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.workload.cells import CellPlace
from wattherd.workload.source import shown
from wattherd.workload.table import Layout, rows

NODE_LIST = Layout(
    kind="node list",
    required=("sn", "cpu_milli", "memory_mib", "gpu", "model"),
    optional=("cpu_model",),
)
POD_LIST = Layout(
    kind="pod list",
    required=("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    optional=("gpu_spec", "creation_time", "deletion_time", "scheduled_time"),
)

# The widest node one can buy holds 72; a slip such as milli-GPU in this column would otherwise
# cost arrays of nodes × GPUs their memory.
MAX_GPUS_PER_NODE = 128

# Sums over millions of rows have to fit int64; beyond these no unit makes sense anyway.
_MAX_GPUS_PER_POD = 1_000_000
_MAX_NODE_AMOUNT = 2**40


def read_nodes(
    path: Path, *, known: Collection[str], known_cpus: Collection[str] = CPUS
) -> ClusterSpec:
    """The nodes of `path` in file order; `known` and `known_cpus` are the models one may name.

    Raises:
        UserError: the file is no usable node list; names file, line and column.
    """
    seen: dict[str, int] = {}
    nodes = []
    for line, cells in rows(path, NODE_LIST, others=(POD_LIST,)):
        place = CellPlace(f"{path}:{line}")
        node = _node(cells, place, known, known_cpus)
        _once(node.name, line, seen, place, "sn")
        nodes.append(node)
    return ClusterSpec(tuple(nodes))


def read_pods(path: Path, *, known: Collection[str]) -> tuple[TracePod, ...]:
    """The pods of `path` in file order; `known` are the GPU models a `gpu_spec` may name.

    Pods that ask for the same share one `Request` object. A pod's run time is its deletion less
    its scheduling (less its creation where it was never scheduled).

    Raises:
        UserError: the file is no usable pod list; names file, line and column.
    """
    seen: dict[str, int] = {}
    requests: dict[tuple[str, ...], Request] = {}
    pods = []
    for line, cells in rows(path, POD_LIST, others=(NODE_LIST,)):
        place = CellPlace(f"{path}:{line}")
        asked = cells[1:6]
        request = requests.get(asked)
        if request is None:
            request = requests[asked] = _request(asked, place, known)
        name = place.name("name", cells[0])
        _once(name, line, seen, place, "name")
        submit_s, duration_s = _times(cells[6:], place)
        pods.append(TracePod(name=name, request=request, submit_s=submit_s, duration_s=duration_s))
    return tuple(pods)


def _once(name: str, line: int, seen: dict[str, int], place: CellPlace, field: str) -> None:
    first = seen.setdefault(name, line)
    if first != line:
        raise place.error(field, f"{shown(name)} appears twice", f"first in line {first}")


def _node(
    cells: tuple[str, ...], place: CellPlace, known: Collection[str], known_cpus: Collection[str]
) -> NodeSpec:
    sn, cpu, memory, gpus, model, cpu_model = cells
    gpu_count = place.integer("gpu", gpus, at_most=MAX_GPUS_PER_NODE)
    has_model = bool(model.strip())
    if gpu_count and not has_model:
        raise place.error("model", f"is empty on a node with {gpu_count} GPUs", "name its model")
    if has_model and not gpu_count:
        raise place.error("model", f"{shown(model)} on a node without GPUs", "is gpu 0 right?")
    return NodeSpec(
        name=place.name("sn", sn),
        cpu_milli=place.integer("cpu_milli", cpu, at_most=_MAX_NODE_AMOUNT),
        memory_mib=place.integer("memory_mib", memory, at_most=_MAX_NODE_AMOUNT),
        gpu_count=gpu_count,
        gpu_model=place.model("model", model, known, "GPU") if has_model else "",
        cpu_model=_cpu_model(cpu_model, place, known_cpus),
    )


def _cpu_model(text: str, place: CellPlace, known_cpus: Collection[str]) -> str:
    return place.model("cpu_model", text, known_cpus, "CPU") if text.strip() else ""


def _request(asked: tuple[str, ...], place: CellPlace, known: Collection[str]) -> Request:
    cpu, memory, gpus, milli, spec = asked
    gpu_count = place.integer("num_gpu", gpus, at_most=_MAX_GPUS_PER_POD)
    gpu_milli = place.integer("gpu_milli", milli, at_most=WHOLE_GPU_MILLI)
    problem = _contradiction(gpu_count, gpu_milli, place)
    if problem is not None:
        raise problem
    return Request(
        cpu_milli=place.integer("cpu_milli", cpu),
        memory_mib=place.integer("memory_mib", memory),
        gpu_count=gpu_count,
        gpu_milli=gpu_milli,
        models=_models(spec, place, known),
    )


def _contradiction(gpu_count: int, gpu_milli: int, place: CellPlace) -> UserError | None:
    """What `num_gpu` and `gpu_milli` cannot mean together.

    Shares of several GPUs are refused: no published trace has them, and the published policies
    disagree about them (their filter counts shares, their placement takes whole GPUs).
    """
    if gpu_count and not gpu_milli:
        return place.error("gpu_milli", f"is 0 with num_gpu {gpu_count}", "a whole GPU is 1000")
    if gpu_milli and not gpu_count:
        return place.error("gpu_milli", f"is {gpu_milli} with num_gpu 0", "a share has num_gpu 1")
    if gpu_count > 1 and gpu_milli < WHOLE_GPU_MILLI:
        problem = f"is {gpu_milli} with num_gpu {gpu_count}"
        return place.error("gpu_milli", problem, "several GPUs are taken whole, each 1000")
    return None


def _models(spec: str, place: CellPlace, known: Collection[str]) -> tuple[str, ...]:
    """Allowed models in the spelling of the trace: order and repetition are kept."""
    if not spec.strip():
        return ()
    return tuple(place.model("gpu_spec", name, known, "GPU") for name in spec.split("|"))


def _times(cells: tuple[str, ...], place: CellPlace) -> tuple[float | None, float | None]:
    """Submit time and run time in seconds, each where the trace tells it."""
    if not any(cells):
        return None, None
    created = place.seconds("creation_time", cells[0])
    deleted = place.seconds("deletion_time", cells[1])
    scheduled = place.seconds("scheduled_time", cells[2])
    started = created if scheduled is None else scheduled
    if deleted is None or started is None or deleted < started:
        return created, None
    return created, deleted - started
