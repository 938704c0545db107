"""What `sim pack` leaves behind: the JSON document, the decisions and the final cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattherd import __version__
from wattherd.engine.placement.state import ClusterState
from wattherd.sim.curve import LoadCurve
from wattherd.sim.pack import PackingRun
from wattherd.store.run_dir import RunDir, file_stem
from wattherd.workload.arrivals import Arrivals
from wattherd.workload.impossible import ImpossibleRequest

if TYPE_CHECKING:
    from wattherd.experiments.placement.pack import Experiment, MeasuredPack

SCHEMA = "wattherd.pack/1"
DECISION_COLUMNS = (
    "step",
    "pod_row",
    "node_row",
    "gpu_ids",
    "arrived_gpu_milli",
    "used_gpu_milli",
    "frag_gpu_milli",
    "power_cpu_w",
    "power_gpu_w",
)
FINAL_COLUMNS = (
    "node",
    "gpu_model",
    "cpu_milli",
    "cpu_free_milli",
    "memory_free_mib",
    "gpu_free_milli",
)


def keep_decisions(
    out: RunDir, policy: str, seed: int, packing: PackingRun, arrivals: Arrivals
) -> Path:
    """One row per arrival; pod and node are rows of the input files, node -1 is a lost pod."""
    name = f"decisions-{file_stem(policy, seed)}.csv.gz"
    return out.write_table(name, DECISION_COLUMNS, _decision_rows(packing, arrivals))


def _decision_rows(packing: PackingRun, arrivals: Arrivals) -> Iterator[tuple[object, ...]]:
    steps = packing.steps
    for step, decision in enumerate(packing.decisions):
        yield (
            step,
            int(arrivals.pods[step]),
            int(arrivals.nodes[decision.node]) if decision else -1,
            "-".join(map(str, decision.gpus)) if decision else "",
            int(steps.arrived_milli[step]),
            int(steps.used_milli[step]),
            f"{steps.fragment_milli[step]:.4f}",
            f"{steps.cpu_w[step]:.1f}",
            f"{steps.gpu_w[step]:.1f}",
        )


def keep_final(
    out: RunDir, policy: str, seed: int, state: ClusterState, arrivals: Arrivals
) -> Path:
    """What is free on every node at the end, in the order of the node file."""
    rows = sorted(zip(arrivals.nodes.tolist(), _final_rows(state), strict=True))
    name = f"final-{file_stem(policy, seed)}.csv.gz"
    return out.write_table(name, FINAL_COLUMNS, [row for _, row in rows])


def _final_rows(state: ClusterState) -> Iterator[tuple[object, ...]]:
    nodes = state.world.nodes
    for n, spec in enumerate(state.cluster.nodes):
        free = nodes.gpu_free[n, : spec.gpu_count].tolist()
        yield (
            spec.name,
            spec.gpu_model,
            spec.cpu_milli,
            int(nodes.cpu_free[n]),
            int(nodes.memory_free[n]),
            "-".join(map(str, free)),
        )


def document(
    experiment: Experiment,
    runs: Sequence[MeasuredPack],
    *,
    nodes_file: str,
    pods_file: str,
    impossible: Sequence[ImpossibleRequest],
    command: str,
) -> dict[str, object]:
    """The `wattherd.pack/1` document (docs/reference/pack-json.md)."""
    trace = Path(pods_file).name.removesuffix(".gz").removesuffix(".csv")
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "trace": trace,
        "nodes_file": nodes_file,
        "pods_file": pods_file,
        "order_file": str(experiment.order_file) if experiment.order_file else None,
        "load": experiment.load,
        "ties": "random" if experiment.random_ties else "order",
        "cluster": _cluster(experiment),
        "impossible": {
            "pods": sum(one.count for one in impossible),
            "requests": [_impossible(one) for one in impossible],
        },
        "runs": [_run(run, trace) for run in runs],
    }


def _cluster(experiment: Experiment) -> dict[str, object]:
    from wattherd.experiments.placement.policies import idle_and_full_w

    cluster = experiment.cluster
    idle_w, full_w = idle_and_full_w(cluster)
    return {
        "nodes": len(cluster.nodes),
        "gpus": sum(node.gpu_count for node in cluster.nodes),
        "gpu_milli": cluster.gpu_milli,
        "cpu_milli": sum(node.cpu_milli for node in cluster.nodes),
        "idle_w": idle_w,
        "full_w": full_w,
    }


def _impossible(one: ImpossibleRequest) -> dict[str, object]:
    request = {key: value for key, value in asdict(one.request).items() if value}
    return {**request, "pods": one.count, "example": one.example, "reason": one.reason}


def _run(run: MeasuredPack, trace: str) -> dict[str, object]:
    return {
        "policy": run.policy,
        "seed": run.seed,
        "trace": trace,
        "pods": run.pods,
        "placed": run.placed,
        "failed": run.pods - run.placed,
        "allocated_pct": run.allocated_pct,
        "grar": run.grar,
        "frag_ratio_pct": run.frag_ratio_pct,
        "power_w": run.power_w,
        "cpu_s": round(run.cpu_s, 3),
        "curve": _curve(run.curve),
    }


def _curve(curve: LoadCurve) -> Mapping[str, list[float | None]]:
    return {item.name: _numbers(getattr(curve, item.name)) for item in fields(curve)}


def _numbers(values: NDArray[np.float64] | NDArray[np.int64]) -> list[float | None]:
    """Numbers for JSON: an empty bin is null, and ten digits carry all that was measured."""
    plain: list[float] = values.tolist()
    return [None if value != value else round(value, 10) for value in plain]
