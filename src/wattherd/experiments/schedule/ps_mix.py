"""Partly predictable jobs under several schedulers: one simulated run per policy, mix and seed."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import UserError
from wattherd.estimate.curve_judge import CurveJudge
from wattherd.estimate.speed import PsBelief
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import JobSubmitted
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.policy.schedule.optimus_estimated import OptimusEstimated
from wattherd.policy.schedule.speed_forecast import LossForesight
from wattherd.policy.schedule.tiresias_gang import TiresiasGang
from wattherd.sim.collector import Collector
from wattherd.sim.ps_plant import REPORT_S, Overheads, PsPlant, Utilisation, utilisation
from wattherd.sim.world import SimWorld
from wattherd.spelling import hint_for
from wattherd.workload.ps_jobs import PsMix, generate
from wattherd.workload.ps_profile import beliefs, judge_of_the_past

GPUS_PER_NODE = 8
CORES_PER_NODE = 40
"""Jobs of the data set ask for 5.0 cores per GPU on average: neither is short by construction."""
PAST_SEED = 1000
"""The workload that taught the judge; never one that is scheduled."""
_HOUR_S = 3600.0

Beliefs = dict[str, PsBelief]
PLANNERS: dict[str, Callable[[Beliefs, CurveJudge], Planner]] = {
    "fifo": lambda _, __: FifoGang(),
    "tiresias": lambda _, __: TiresiasGang(),
    "optimus": lambda known, _: OptimusEstimated(foresight=LossForesight(beliefs=known)),
    "aiturbo": lambda known, judge: AITurbo(foresight=LossForesight(beliefs=known, judge=judge)),
    "aiturbo-told": lambda known, judge: AITurbo(
        foresight=LossForesight(beliefs=known, judge=judge), sizes_all=False
    ),
}
"""`aiturbo-told` resizes predictable jobs only, as published."""
COMPARED = ("fifo", "tiresias", "optimus", "aiturbo")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRun:
    """One run; `starts` counts all starts per job."""

    policy: str
    unpredictable: float
    seed: int
    avg_jct_h: float
    median_jct_h: float
    p99_jct_h: float
    makespan_h: float
    starts: float
    use: Utilisation
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixMean:
    """Means over seeds of what `MixRun` and `Utilisation` hold; `seeds` is how many."""

    policy: str
    unpredictable: float
    seeds: int
    avg_jct_h: float
    median_jct_h: float
    p99_jct_h: float
    makespan_h: float
    starts: float
    gpu_pct: float
    cpu_pct: float
    held_pct: float
    gap_points: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Which runs: every policy on every share of unpredictable jobs and every seed."""

    policies: tuple[str, ...] = COMPARED
    shares: tuple[float, ...] = SHARES
    seeds: tuple[int, ...] = tuple(range(8))
    mix: PsMix = field(default_factory=PsMix)

    def __post_init__(self) -> None:
        """Refuse names that nobody has."""
        for policy in self.policies:
            known(policy)
        cluster_of(self.mix.gpus)


def known(policy: str) -> Callable[[Beliefs, CurveJudge], Planner]:
    """How a policy is made.

    Raises:
        UserError: no such policy.
    """
    if policy not in PLANNERS:
        hint = hint_for(policy, PLANNERS)
        raise UserError(f"unknown policy {policy!r}", field="--policy", hint=hint)
    return PLANNERS[policy]


def sweep(wish: Sweep, *, processes: int = 1) -> Iterator[MixRun]:
    """Every run, in order of shares, seeds, policies."""
    judge = taught_judge(wish.mix)
    tasks = [
        (policy, replace(wish.mix, unpredictable=share), seed, judge)
        for share in wish.shares
        for seed in wish.seeds
        for policy in wish.policies
    ]
    if processes <= 1 or len(tasks) == 1:
        yield from (run_mix(*task) for task in tasks)
        return
    # A fresh interpreter per worker: forking a process that shows progress from a thread may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), context) as pool:
        yield from pool.map(run_mix, *zip(*tasks, strict=True))


def means(runs: Iterable[MixRun]) -> list[MixMean]:
    """One row per share and policy, in the order in which they first occur."""
    grouped: dict[tuple[float, str], list[MixRun]] = {}
    for run in runs:
        grouped.setdefault((run.unpredictable, run.policy), []).append(run)
    return [_mean(share, policy, found) for (share, policy), found in grouped.items()]


def _mean(share: float, policy: str, runs: Sequence[MixRun]) -> MixMean:
    def over(value: Callable[[MixRun], float]) -> float:
        return math.fsum(value(run) for run in runs) / len(runs)

    return MixMean(
        policy=policy,
        unpredictable=share,
        seeds=len(runs),
        avg_jct_h=over(lambda run: run.avg_jct_h),
        median_jct_h=over(lambda run: run.median_jct_h),
        p99_jct_h=over(lambda run: run.p99_jct_h),
        makespan_h=over(lambda run: run.makespan_h),
        starts=over(lambda run: run.starts),
        gpu_pct=over(lambda run: run.use.gpu_pct),
        cpu_pct=over(lambda run: run.use.cpu_pct),
        held_pct=over(lambda run: run.use.held_pct),
        gap_points=over(lambda run: run.use.gap_points),
    )


def cluster_of(gpus: int) -> ClusterSpec:
    """Equal nodes with P100s, on which the models' speeds were measured."""
    if gpus % GPUS_PER_NODE:
        raise UserError(f"{gpus} GPUs are no whole nodes of {GPUS_PER_NODE}", field="gpus")
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"n{number:02}",
                cpu_milli=1000 * CORES_PER_NODE,
                memory_mib=512 * 1024,
                gpu_count=GPUS_PER_NODE,
                gpu_model="P100",
            )
            for number in range(gpus // GPUS_PER_NODE)
        )
    )


def taught_judge(mix: PsMix) -> CurveJudge:
    """The judge that AITurbo asks, taught by past jobs of the same kind of workload."""
    return judge_of_the_past(mix, PAST_SEED, REPORT_S)


def run_mix(
    policy: str, mix: PsMix, seed: int, judge: CurveJudge, overheads: Overheads | None = None
) -> MixRun:
    """Simulate one policy to the end.

    Raises:
        UserError: no such policy, or jobs that do not fit on so few GPUs in the shape asked for.
    """
    planner_of = known(policy)
    work, cluster = generate(mix, seed), cluster_of(mix.gpus)
    planner = planner_of(beliefs(work, seed), judge)
    core = Core(CoreConfig(cluster=cluster, planner=planner))
    plant, collector = PsPlant(work.truths, overheads=overheads), Collector(core)
    given = [JobSubmitted(at_s=spec.submit_s, job=spec) for spec in work.specs]
    world = SimWorld(core, plant, given, watchers=[collector], record=False)
    began = time.process_time()
    world.run()
    cpu_s = time.process_time() - began
    outcomes = collector.outcomes.values()
    jcts = sorted(one.jct_s for one in outcomes if one.jct_s is not None)
    if len(jcts) < len(work.specs):
        problem = f"{len(work.specs) - len(jcts)} of {len(work.specs)} jobs never ended"
        raise UserError(problem, where=f"{policy}, seed {seed}", field="gpus", hint="more GPUs")
    return MixRun(
        policy=policy,
        unpredictable=mix.unpredictable,
        seed=seed,
        avg_jct_h=math.fsum(jcts) / len(jcts) / _HOUR_S,
        median_jct_h=jcts[len(jcts) // 2] / _HOUR_S,
        p99_jct_h=jcts[min(math.ceil(0.99 * len(jcts)), len(jcts)) - 1] / _HOUR_S,
        makespan_h=max(one.finish_s or 0.0 for one in outcomes) / _HOUR_S,
        starts=len(plant.paused_s) / len(work.specs),
        use=utilisation(plant.use, cluster, work.specs[-1].submit_s),
        cpu_s=cpu_s,
    )
