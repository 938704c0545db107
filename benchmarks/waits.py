"""How long jobs wait at most under our planner, and what a bound on it costs everybody else.

    python benchmarks/waits.py [chosen] [unseen] [stream] [muri] [philly] [elasticflow] [grid]

Each workload is played twice, without a budget and with one: as it is, and with no bound on waiting
(`patience` infinite), restarts of 30 s. Prints one row a run, and under it what the bound changes.
`chosen` are the workloads on which `PATIENCE` and `OWED_PART` were chosen; `grid` prints what was
looked at for that. Nothing was chosen on the others. Traces are found by WATTHERD_DATA.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs, read_workload
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.job_progress import StatedProgress
from wattherd.policy.schedule.overdue import OWED_PART, PATIENCE
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.workload.cluster_text import parse_cluster

RESTART_S = 30.0
BUDGET_PART = 0.6
GPU = "V100M16"


@dataclass(frozen=True)
class Workload:
    """Jobs and the nodes of 8 GPUs on which they are played."""

    name: str
    jobs: ReadJobs
    nodes: int


@dataclass(frozen=True)
class Figures:
    """What a run came to; waiting is completion time less the time on devices."""

    mean_h: float
    mean_wait_h: float
    p95_h: float
    max_h: float
    most_times: float
    """The longest wait in times of what the job itself lasts, of jobs of ten minutes or more."""
    makespan_h: float
    energy_mj: float
    restarts: int
    cpu_s: float

    def row(self) -> str:
        """One line."""
        return (
            f"mean {self.mean_h:7.3f} h, wait mean {self.mean_wait_h:7.3f} p95 {self.p95_h:7.2f} "
            f"max {self.max_h:7.1f} h = {self.most_times:5.1f} x own, "
            f"makespan {self.makespan_h:7.1f} h, {self.energy_mj:8.0f} MJ, "
            f"{self.restarts:6} restarts, {self.cpu_s:5.1f} s CPU"
        )

    def against(self, other: Figures) -> str:
        """What is changed, in parts."""
        parts = {name: getattr(self, name) / getattr(other, name) - 1 for name in CHANGED}
        return ", ".join(f"{name.rsplit('_', 1)[0]} {part:+.1%}" for name, part in parts.items())


CHANGED = ("mean_h", "makespan_h", "energy_mj")


def played(
    workload: Workload, part: float | None, patience: float, owed_part: float = OWED_PART
) -> Figures:
    """One run, under `part` of all watts."""

    def ours(given: SchedulerContext) -> BuiltScheduler:
        progress = StatedProgress(restart_s=given.restart_s)
        planner = ProgressPerWatt(
            progress=progress, look_s=None, patience=patience, owed_part=owed_part
        )
        return BuiltScheduler(planner=planner)

    plain = replace(preset("none"), restart_s=RESTART_S, schedulers={"ours": ours})
    cluster = parse_cluster(f"{workload.nodes}x8:{GPU}", known=GPUS)
    given = SchedulerContext(jobs=workload.jobs, cluster=cluster, restart_s=RESTART_S)
    most_w = workload.nodes * 8 * GPUS[GPU].max_w
    budget = () if part is None else ((0.0, part * most_w),)
    run = simulate(ComparisonSetup(preset=plain, given=given, budget=budget), "ours")
    done = [one for one in run.outcomes if one.jct_s is not None]
    waits = np.array([(one.jct_s or 0.0) - one.held_s for one in done])
    own = {spec.id: spec.duration_s or 0.0 for spec in workload.jobs.specs}
    own_s = np.array([own[one.job_id] for one in done])
    row = run.row
    return Figures(
        mean_h=float(str(row["avg_jct_s"])) / 3600,
        mean_wait_h=float(waits.mean()) / 3600,
        p95_h=float(np.percentile(waits, 95)) / 3600,
        max_h=float(waits.max()) / 3600,
        most_times=float((waits / own_s)[own_s >= 600.0].max(initial=0.0)),
        makespan_h=float(str(row["makespan_s"])) / 3600,
        energy_mj=sum(run.meter.energy_j().values()) / 1e6,
        restarts=int(str(row["restarts"])),
        cpu_s=float(str(row["cpu_s"])),
    )


def drawn(seed: int, load: float, count: int = 800, nodes: int = 16) -> Workload:
    """Jobs of 1 to 64 GPUs, half of them of less than 20 min, at a load; the same for a seed."""
    draw = np.random.default_rng(seed)
    gpus = draw.choice([1, 2, 4, 8, 16, 64], count, p=[0.45, 0.2, 0.15, 0.13, 0.05, 0.02])
    lasts_s = np.maximum(draw.lognormal(7.0, 1.6, count), 30.0).round(1)
    every_s = float((gpus * lasts_s).mean()) / (load * 8 * nodes)
    at_s = draw.exponential(every_s, count).cumsum().round(1)
    specs = tuple(
        JobSpec(
            id=f"j{at}",
            submit_s=float(at_s[at]),
            roles=(TaskRole(count=int(gpus[at])),),
            duration_s=float(lasts_s[at]),
        )
        for at in range(count)
    )
    return Workload(f"drawn {seed}, load {load:g}", ReadJobs(specs=specs), nodes)


def chosen() -> Iterator[Workload]:
    for load in (0.9, 1.5):
        for seed in (1, 2, 3):
            yield drawn(seed, load)


def traces() -> Path:
    return Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "traces"


def muri() -> Iterator[Workload]:
    jobs = read_workload("muri", traces() / "muri/trace3.csv", None)
    yield Workload("Muri trace3, 992 jobs, 64 GPUs", jobs, 8)


def philly() -> Iterator[Workload]:
    jobs = read_workload("philly", traces() / "sia/philly_82248jobs.csv.gz", None)
    first = sorted(jobs.specs, key=lambda spec: (spec.submit_s, spec.id))[:1_000]
    yield Workload("Philly, first 1,000 jobs, 128 GPUs", replace(jobs, specs=tuple(first)), 16)


def elasticflow() -> Iterator[Workload]:
    jobs = read_workload("elasticflow", traces() / "elasticflow/philly_103959.csv", None)
    yield Workload("ElasticFlow, Philly 103959, 64 GPUs", jobs, 8)


def unseen() -> Iterator[Workload]:
    """As `chosen`, with other seeds and loads."""
    for load, seed in ((0.8, 11), (1.5, 12)):
        yield drawn(seed, load)


def stream() -> Iterator[Workload]:
    """One wide job behind one-minute jobs of one GPU that need half of eight, for twelve hours.

    The start of a job takes half a minute more.
    """
    draw = np.random.default_rng(3)
    at_s = draw.exponential(60.0 / 4, 12 * 240).cumsum().round(1)
    wide = JobSpec(id="wide", submit_s=0.0, roles=(TaskRole(count=8),), duration_s=3600.0)
    shorts = [
        JobSpec(id=f"s{at}", submit_s=float(one), roles=(TaskRole(),), duration_s=60.0)
        for at, one in enumerate(at_s)
    ]
    yield Workload("a wide hour behind 12 h of minutes", ReadJobs(specs=(wide, *shorts)), 1)


SETS: dict[str, Callable[[], Iterator[Workload]]] = {
    "chosen": chosen,
    "unseen": unseen,
    "stream": stream,
    "muri": muri,
    "philly": philly,
    "elasticflow": elasticflow,
}
OF_TRACES = ("muri", "philly", "elasticflow")


def compare(name: str) -> None:
    for workload in SETS[name]():
        for part in (None, BUDGET_PART):
            before = played(workload, part, math.inf)
            after = played(workload, part, PATIENCE)
            told = "no budget" if part is None else f"{part:.0%} of all watts"
            print(f"{workload.name}, {told}\n  no bound  {before.row()}")
            print(f"  bound     {after.row()}\n  {after.against(before)}", flush=True)


PATIENCES = (1.0, 4.0, 10.0)
PARTS = (0.125, 0.25)


def grid() -> None:
    """Geometric means over `chosen`, without and with a budget, against no bound."""
    workloads = [(one, part) for one in chosen() for part in (None, BUDGET_PART)]
    before = [played(one, part, math.inf) for one, part in workloads]
    for patience in PATIENCES:
        for owed_part in PARTS:
            after = [played(one, part, patience, owed_part) for one, part in workloads]
            told = {
                name: _mean([getattr(one, name) for one in after])
                / _mean([getattr(one, name) for one in before])
                - 1
                for name in (*CHANGED, "p95_h", "max_h", "most_times")
            }
            worst = max(one.mean_h / two.mean_h for one, two in zip(after, before, strict=True)) - 1
            parts = ", ".join(
                f"{name.rsplit('_', 1)[0]} {part:+.1%}" for name, part in told.items()
            )
            print(f"patience {patience:g}, part {owed_part:g}: {parts}, worst mean {worst:+.1%}",
                  flush=True)  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(max(one, 1e-9)) for one in values) / len(values))


def main(names: list[str]) -> None:
    for name in names or list(SETS):
        if name in OF_TRACES and not traces().is_dir():
            print(f"{name}: no traces, set WATTHERD_DATA", file=sys.stderr)
        elif name == "grid":
            grid()
        else:
            compare(name)


if __name__ == "__main__":
    main(sys.argv[1:])
