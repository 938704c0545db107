"""Gavel (Narayanan et al., OSDI'20): average JCT and makespan of the released continuous trace.

96 jobs on 8 V100, 16 P100 and 24 K80, one GPU per server, 360-second rounds, seed 0. The published
side is the authors' released simulator, which solves with ECOS. The allocation programs have many
optima and the solver decides which one is found, so the tolerances are the solver's: with ECOS
installed all jobs agree, Clarabel stays within 2 %; with HiGHS, a vertex solver, the figures are
shown only. Any solver must reach the same objective, which is checked against another one.
`gavel-makespan` has no published figures here, so only its programs are checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.experiments.published.checks import FigureCheck
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Compute
from wattherd.model.event import Computed, JobExited, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.gavel import ROUND_S, Gavel
from wattherd.policy.schedule.gavel_goals import FIFO
from wattherd.policy.schedule.gavel_lp import KIND, solve, solver
from wattherd.policy.schedule.gavel_solvers import best_solver
from wattherd.sim.gavel_plant import GavelPlant
from wattherd.sim.world import RunRecording, SimWorld
from wattherd.workload.gavel import read_jobs, read_throughputs

TRACE = "max_min_fairness.trace"
THROUGHPUTS = "physical_cluster_throughputs.json.gz"
GPUS = {"V100M16": 8, "P100": 16, "K80": 24}
PUBLISHED_H = {
    "gavel-max-min-agnostic": (5.20, 19.70),
    "gavel-max-min": (3.82, 17.11),
    "gavel-ftf": (3.94, 17.18),
    "gavel-fifo": (5.18, 18.98),
}
"""Hours: average job completion time, makespan."""
PUBLISHED_CPU_S = {"gavel-max-min-agnostic": 1.5, "gavel-max-min": 1.3, "gavel-ftf": 2.7}
"""User seconds of the released simulator, imports included."""
POLICIES = (*PUBLISHED_H, "gavel-makespan")
TOLERANCE = {"ecos": 0.005, "clarabel": 0.02, "highs": None}
FIFO_TOLERANCE = 0.005
OBJECTIVE_TOLERANCE = 1e-6
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelRun:
    """One policy's run: completion times by job, and what it took."""

    policy: str
    jct_s: dict[str, float]
    makespan_s: float
    cpu_s: float
    recording: RunRecording

    @property
    def mean_jct_s(self) -> float:
        """Average job completion time."""
        return math.fsum(self.jct_s.values()) / len(self.jct_s)


def cluster() -> ClusterSpec:
    """The experiment's cluster: every GPU is a server of its own."""
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"{model.lower()}-{i:02}",
                cpu_milli=0,
                memory_mib=0,
                gpu_count=1,
                gpu_model=model,
            )
            for model, count in GPUS.items()
            for i in range(count)
        )
    )


def run(
    policy: str, jobs: tuple[JobSpec, ...], table: ThroughputTable, *, program: str
) -> GavelRun:
    """Simulate one policy, its programs solved by the solver called `program`."""
    nodes = cluster()
    last_s = max(job.submit_s for job in jobs)
    planner = Gavel(table=table, goal=policy.removeprefix("gavel-"), last_submit_s=last_s)
    world = SimWorld(
        Core(CoreConfig(cluster=nodes, planner=planner)),
        GavelPlant(table, nodes, round_s=ROUND_S),
        [JobSubmitted(at_s=job.submit_s, job=job) for job in jobs],
        computers={KIND: solver(program)},
    )
    began = time.process_time()
    recording = world.run()
    cpu_s = time.process_time() - began
    submitted = {job.id: job.submit_s for job in jobs}
    ends = {event.job_id: event.at_s for event in recording.events if isinstance(event, JobExited)}
    return GavelRun(
        policy=policy,
        jct_s={name: ends[name] - submitted[name] for name in submitted if name in ends},
        makespan_s=max(ends.values()) - min(submitted.values()),
        cpu_s=cpu_s,
        recording=recording,
    )


def compare(directory: Path, *, program: str = "auto") -> Iterator[FigureCheck]:
    """Every check, from the folder of Gavel's files.

    Raises:
        UserError: the files are not there, or no solver is installed.
    """
    if not (directory / TRACE).exists():
        hint = "set WATTHERD_DATA to a folder that has traces/gavel"
        raise UserError(f"no {TRACE}", where=str(directory), hint=hint)
    table = read_throughputs(directory / THROUGHPUTS)
    jobs = read_jobs(directory / TRACE, table)
    used = _program(program)
    for policy in POLICIES:
        done = run(policy, jobs, table, program=used)
        yield from _figures(done, TOLERANCE[used] if policy != f"gavel-{FIFO}" else FIFO_TOLERANCE)
        yield from _objectives(done, _other(used))
        yield _check(done, "jobs finished", float(len(jobs)), float(len(done.jct_s)), 0.0)
        if policy in PUBLISHED_CPU_S:
            yield _check(done, "CPU time (s)", PUBLISHED_CPU_S[policy], done.cpu_s, None)


def _program(asked: str) -> str:
    """The solver of the published runs where it is installed, else the best there is."""
    if asked == "auto" and find_spec("ecos") is not None:
        return best_solver("ecos")
    return best_solver(asked)


def _other(used: str) -> str:
    """A solver to check the objectives against: vertices against interior points."""
    return best_solver("auto") if used == "highs" else "highs"


def _figures(done: GavelRun, tolerance: float | None) -> Iterator[FigureCheck]:
    if done.policy not in PUBLISHED_H:
        return
    theirs = PUBLISHED_H[done.policy]
    ours = (done.mean_jct_s / _HOUR_S, done.makespan_s / _HOUR_S)
    for name, published, found in zip(("average JCT", "makespan"), theirs, ours, strict=True):
        allowed = None if tolerance is None else tolerance * published
        yield _check(done, f"{name} (h)", published, found, allowed)


def _objectives(done: GavelRun, other: str) -> Iterator[FigureCheck]:
    """The worst of all programs of a run: its objective over that of another solver."""
    asked = {one.key: one.payload for one in done.recording.commands if isinstance(one, Compute)}
    answers = [one for one in done.recording.events if isinstance(one, Computed)]
    ratios = [
        answer.result["objective"] / solve(asked[answer.key], other)["objective"]
        for answer in answers
    ]
    if ratios:
        worst = max(ratios, key=lambda ratio: abs(ratio - 1.0))
        name = f"objective over that of {other}, worst of {len(ratios)} programs"
        yield _check(done, name, 1.0, worst, OBJECTIVE_TOLERANCE)


def _check(
    done: GavelRun, quantity: str, published: float, ours: float, tolerance: float | None
) -> FigureCheck:
    return FigureCheck(
        trace=TRACE.removesuffix(".trace"),
        policy=done.policy,
        quantity=quantity,
        published=published,
        ours=ours,
        tolerance=tolerance,
    )
