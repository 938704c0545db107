"""The placement experiment: every policy on every seed, over a pool of processes.

Results do not depend on how many processes there are or on the order of policies: each run gets
its own random streams, named by its seed. A run leaves behind its decisions and the final cluster,
all runs together the `wattherd.pack/1` document.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd import __version__
from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.state import ClusterState
from wattherd.errors import UserError
from wattherd.experiments.placement.policies import (
    build_placer,
    idle_and_full_w,
    place_policy,
    warm_up,
)
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import TracePod
from wattherd.sim.curve import LoadCurve, LoadGrid, binned, gridded
from wattherd.sim.pack import PackingRun, by_core, pack, ready_placer
from wattherd.store.run_dir import RunDir, file_stem
from wattherd.workload.arrivals import Arrivals, draw_arrivals, list_load, read_order
from wattherd.workload.impossible_requests import ImpossibleRequest
from wattherd.workload.random_streams import stream

SCHEMA = "wattherd.pack/1"
ORDER_LOAD = 1.3
"""Curves of published orders go to 130 %, as the published ones do."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What all runs share.

    Without `load` the list arrives as it is, each pod once. `compiled` False takes the NumPy
    definitions of the policies; `by_core` submits every pod to a core as a live cluster would.
    """

    cluster: ClusterSpec
    pods: tuple[TracePod, ...]
    load: float | None = 1.3
    order_file: Path | None = None
    random_ties: bool = False
    compiled: bool = True
    by_core: bool = False
    out: RunDir | None = None
    keep_decisions: bool = False

    @property
    def offered(self) -> float:
        """GPU demand that arrives, over capacity; curves go so far. An order file may have more."""
        if self.load is not None:
            return self.load
        return ORDER_LOAD if self.order_file else list_load(self.pods, self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPack:
    """One policy on one seed, measured.

    `allocated_pct`, `frag_ratio_pct` and `power_w` are those at the end; `grar` is allocated over
    arrived GPU demand when the arrived demand equals the capacity (PWR, CCGrid'25), or at the end
    if it never does.
    """

    policy: str
    seed: int
    pods: int
    placed: int
    allocated_pct: float
    grar: float
    frag_ratio_pct: float
    power_w: float
    cpu_s: float
    curve: LoadCurve
    grid: LoadGrid = field(repr=False)


def run_once(experiment: Experiment, policy: str, seed: int) -> MeasuredPack:
    """Run one policy on one seed and, if asked, leave its decisions and final state behind."""
    arrivals = _arrivals(experiment, seed)
    requests = [experiment.pods[row].request for row in arrivals.pods]
    placer = ready_placer(_placer(experiment, policy, seed, arrivals), requests)
    warm_up(placer.policy)
    began = time.process_time()
    packing = pack(placer, requests, by_core(placer) if experiment.by_core else None)
    cpu_s = time.process_time() - began
    if experiment.out:
        keep_final(experiment.out, policy, seed, placer.state, arrivals)
        if experiment.keep_decisions:
            keep_decisions(experiment.out, policy, seed, packing, arrivals)
    return _measured(experiment, policy, seed, packing, cpu_s)


def _arrivals(experiment: Experiment, seed: int) -> Arrivals:
    pods, cluster, load = experiment.pods, experiment.cluster, experiment.load
    if not cluster.gpu_milli:
        raise UserError("the cluster has no GPU", hint="load is a share of its GPUs")
    if experiment.order_file is None:
        drawn = draw_arrivals(pods, cluster, load=load, seed=seed)
        if not len(drawn.pods):
            problem = f"load {load} is too little for any pod to arrive"
            raise UserError(problem, field="--load", hint="raise it; 1.3 is 130 %")
        return drawn
    return read_order(experiment.order_file, seed=seed, pods=len(pods), nodes=len(cluster.nodes))


def _placer(experiment: Experiment, policy: str, seed: int, arrivals: Arrivals) -> Placer:
    return build_placer(
        experiment.cluster.reordered(tuple(arrivals.nodes.tolist())),
        experiment.pods,
        place_policy(policy),
        draws=stream(seed, "placement"),
        random_ties=experiment.random_ties,
        compiled=experiment.compiled,
    )


def _measured(
    experiment: Experiment, policy: str, seed: int, packing: PackingRun, cpu_s: float
) -> MeasuredPack:
    steps, capacity = packing.steps, experiment.cluster.gpu_milli
    used = int(steps.used_milli[-1])
    arrived = int(steps.arrived_milli[-1]) / capacity
    grid = gridded(steps, capacity, until=min(1.0, arrived))
    return MeasuredPack(
        policy=policy,
        seed=seed,
        pods=len(packing.decisions),
        placed=packing.placed,
        allocated_pct=100 * used / capacity,
        grar=float(grid.grar[-1]),
        frag_ratio_pct=100 * float(steps.fragment_milli[-1]) / max(capacity - used, 1),
        power_w=float(steps.power_w[-1]),
        cpu_s=cpu_s,
        # The last pod may ask for more than the load left: on three nodes, for a third of all GPUs.
        curve=binned(steps, capacity, load=max(experiment.offered, arrived)),
        grid=grid,
    )


_shared: list[Experiment] = []
"""The worker's experiment: sent once per process instead of once per run."""


def _enter(experiment: Experiment) -> None:
    _shared[:] = [experiment]


def _work(policy: str, seed: int) -> MeasuredPack:
    return run_once(_shared[0], policy, seed)


def run_all(
    experiment: Experiment, policies: Sequence[str], seeds: Sequence[int], *, processes: int
) -> Iterator[tuple[int, MeasuredPack]]:
    """Every policy on every seed, as they finish: (position in policy-major order, run).

    Raises:
        UserError: whatever `run_once` finds wrong with the input.
    """
    tasks = [(policy, seed) for policy in policies for seed in seeds]
    if processes <= 1 or len(tasks) == 1:
        for position, (policy, seed) in enumerate(tasks):
            yield position, run_once(experiment, policy, seed)
        return
    # Compile once, here: workers that start together would each do it.
    warm_up(place_policy(policies[0]))
    # A fresh interpreter per worker: forking a process that shows progress from a thread may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(processes, len(tasks)), context, initializer=_enter, initargs=(experiment,)
    ) as pool:
        futures = {
            pool.submit(_work, policy, seed): position
            for position, (policy, seed) in enumerate(tasks)
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# What it leaves behind -------------------------------------------------------------------------


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
        "load": experiment.offered,
        "whole_list": experiment.load is None and experiment.order_file is None,
        "ties": "random" if experiment.random_ties else "order",
        "cluster": _cluster(experiment),
        "impossible": {
            "pods": sum(one.count for one in impossible),
            "requests": [_impossible(one) for one in impossible],
        },
        "runs": [_run(run, trace) for run in runs],
    }


def fit_sentences(runs: Sequence[MeasuredPack]) -> list[str]:
    """Whether the list fits: a sentence for each policy, in the order of the runs."""
    told = []
    for policy in dict.fromkeys(run.policy for run in runs):
        lost = [run.pods - run.placed for run in runs if run.policy == policy]
        pods = next(run.pods for run in runs if run.policy == policy)
        orders = "the one order tried" if len(lost) == 1 else f"all {len(lost)} orders tried"
        if not any(lost):
            told.append(f"The list fits under {policy}: all {pods} pods find room in {orders}.")
            continue
        fewest = f"{min(lost)} to {max(lost)}" if min(lost) < max(lost) else f"{max(lost)}"
        some = f" It fits in {lost.count(0)} of {len(lost)} orders." if 0 in lost else ""
        told.append(
            f"The list does not fit under {policy}: {fewest} of {pods} pods find no room.{some}"
        )
    return told


def _cluster(experiment: Experiment) -> dict[str, object]:
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
