"""The placement experiment: every policy on every seed, over a pool of processes.

Results do not depend on how many processes there are or on the order of policies: each run gets
its own random streams, named by its seed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from wattherd.engine.placement.placer import Placer
from wattherd.errors import UserError
from wattherd.experiments.placement.pack_files import keep_decisions, keep_final
from wattherd.experiments.placement.policies import build_placer, place_policy, warm_up
from wattherd.model.cluster import ClusterSpec
from wattherd.model.request import TracePod
from wattherd.sim.curve import Grid, LoadCurve, binned, gridded
from wattherd.sim.pack import PackingRun, by_core, pack, ready_placer
from wattherd.store.run_dir import RunDir
from wattherd.workload.arrivals import Arrivals, draw_arrivals, read_order
from wattherd.workload.streams import stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What all runs share.

    `compiled` False takes the NumPy definitions of the policies; `by_core` submits every pod to a
    core as a live cluster would.
    """

    cluster: ClusterSpec
    pods: tuple[TracePod, ...]
    load: float = 1.3
    order_file: Path | None = None
    random_ties: bool = False
    compiled: bool = True
    by_core: bool = False
    out: RunDir | None = None
    keep_decisions: bool = False


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
    grid: Grid = field(repr=False)


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
    reached = min(1.0, int(steps.arrived_milli[-1]) / capacity)
    grid = gridded(steps, capacity, until=reached)
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
        curve=binned(steps, capacity, load=experiment.load),
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
