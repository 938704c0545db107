"""How fast training-job schedulers are simulated, and what a decision costs.

    python benchmarks/schedule.py [pollux] [muri] [philly] [tree] [events] [arrival] [growth]
        [ours] [budgeted] [ours-philly] [cycles] [memory]
        [--jobs N ...] [--planner NAME ...] [--svg FILE]

Prints one row a measurement; `cpu_s` counts user CPU time after imports and file reading. Traces
are found by WATTHERD_DATA; what needs an absent one is left out and said so. `budgeted` measures
every planner, or those of `--planner`, at 600, 1,250 and 2,500 jobs, or at those of `--jobs`, on a
tenth as many nodes; `--svg` draws what it measures.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

import argparse
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs, read_workload
from wattherd.model.command import Command
from wattherd.model.event import (
    BudgetChanged,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.job_progress import ReportedProgress, StatedProgress
from wattherd.policy.schedule.ordered import Ordered
from wattherd.policy.schedule.priorities import LeastAttained
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.report.charts import Chart
from wattherd.report.export import standalone
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.world import SimWorld
from wattherd.workload.cluster_text import parse_cluster

Row = tuple[str, str, str]
PHILLY_CLUSTER = "313x8:V100M16"
PHILLY_BUDGET_W = 300_000.0
TREE_CLUSTER = "64x8:V100M16"
TREE_JOBS = 3_000


def traces() -> Path:
    return Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "traces"


def run(kind: str, file: str, cluster: str, name: str, policy: str, budget_w: float | None) -> dict:
    given = SchedulerContext(
        jobs=read_workload(kind, traces() / file, None),
        cluster=parse_cluster(cluster, known=GPUS),
    )
    budget = ((0.0, budget_w),) if budget_w is not None else ()
    return simulate(ComparisonSetup(preset=preset(name), given=given, budget=budget), policy).row


def pollux() -> Iterator[Row]:
    folder = traces() / "pollux"
    jobs = read_workload("pollux", folder / "workloads" / "workload-6.csv", folder / "profiles")
    given = SchedulerContext(jobs=jobs, cluster=parse_cluster("16x4:T4", known=GPUS))
    for policy, most in (("tiresias", "<= 0.5 s"), ("optimus", "<= 2 s")):
        row = simulate(ComparisonSetup(preset=preset("pollux-osdi21"), given=given), policy).row
        yield f"Pollux suite, 160 jobs, {policy}", f"{row['cpu_s']} s", most


def muri() -> Iterator[Row]:
    for policy in ("srtf", "srsf", "tiresias"):
        row = run("muri", "muri/trace2.csv.gz", "8x8:V100M16", "muri-sigcomm22", policy, None)
        yield f"Muri trace2, 5,755 jobs, {policy}", f"{row['cpu_s']} s", "<= 2 s"


def philly() -> Iterator[Row]:
    file = "sia/philly_82248jobs.csv.gz"
    for budget_w in (None, PHILLY_BUDGET_W):
        row = run("philly", file, PHILLY_CLUSTER, "none", "tiresias", budget_w)
        shown = "no budget" if budget_w is None else f"{budget_w / 1000:g} kW"
        told = f"{row['cpu_s']} s ({row['finished']} finished, {row['over_budget_s']} s over)"
        yield f"Philly, 82,247 jobs, 2,504 GPUs, tiresias, {shown}", told, "<= 90 s"


def tree() -> Iterator[Row]:
    """A site of 4 rows and 32 racks, each a little too small for all that hangs on it."""
    cluster = parse_cluster(TREE_CLUSTER, known=GPUS)
    names = [node.name for node in cluster.nodes]
    per_rack, site_w = len(names) // 32, 0.6 * GPUS["V100M16"].max_w * 8 * len(names)
    domains = [TreeDomain(name="site", budget_w=site_w, loss=0.03)]
    for row in range(4):
        budget_w = 1.1 * site_w / 4
        domains.append(TreeDomain(name=f"row-{row}", parent="site", budget_w=budget_w, loss=0.02))
    for rack in range(32):
        nodes = tuple(names[rack * per_rack : (rack + 1) * per_rack])
        one = TreeDomain(
            name=f"rack-{rack}", parent=f"row-{rack % 4}", budget_w=1.2 * site_w / 32, nodes=nodes
        )
        domains.append(one)
    jobs = read_workload("philly", traces() / "sia" / "philly_82248jobs.csv.gz", None)
    first = sorted(jobs.specs, key=lambda spec: (spec.submit_s, spec.id))[:TREE_JOBS]
    given = SchedulerContext(jobs=replace(jobs, specs=tuple(first)), cluster=cluster)
    for tree in (None, PowerTree(tuple(domains))):
        row = simulate(
            ComparisonSetup(preset=preset("none"), given=given, tree=tree), "tiresias"
        ).row
        shown = "no budget" if tree is None else f"{len(domains)} domains"
        told = f"{row['cpu_s']} s ({row['finished']} finished, {row['over_budget_s']} s over)"
        yield f"Philly, first {TREE_JOBS:,} jobs, {64 * 8} GPUs, {shown}", told, ""


def tiresias() -> Ordered:
    return Ordered(rules=RankingRules(order=LeastAttained()))


def small(number: int, at_s: float, lasts_s: float = 1.0) -> JobSpec:
    roles = (TaskRole(count=1 + number % 4),)
    return JobSpec(id=f"j{number}", submit_s=at_s, roles=roles, duration_s=lasts_s)


def core_of(nodes: int, round_s: float | None = None) -> Core:
    cluster = parse_cluster(f"{nodes}x8:V100M16", known=GPUS)
    return Core(CoreConfig(cluster=cluster, planner=tiresias(), round_s=round_s))


GROWTH_PLANNERS = ("fifo", "tiresias", "drf", "capacity", "gandiva", "wattherd")
GROWTH_JOBS = (500, 1_000, 2_000)
GROWTH_NODES = 100


def overload(count: int, nodes: int) -> ReadJobs:
    """Twice as much work as `nodes` of 8 GPUs can do while jobs arrive; the same for a seed."""
    draw = np.random.default_rng(18)
    gpus = draw.choice([1, 2, 4, 8, 16], count, p=[0.45, 0.2, 0.15, 0.15, 0.05])
    lasts_s = np.maximum(draw.lognormal(7.0, 1.2, count), 30.0).round(1)
    every_s = float((gpus * lasts_s).mean()) / (2 * 8 * nodes)
    at_s = draw.exponential(every_s, count).cumsum().round(1)
    return ReadJobs(
        specs=tuple(
            JobSpec(
                id=f"j{at}",
                submit_s=float(at_s[at]),
                user=f"u{at % 20}",
                roles=(TaskRole(count=int(gpus[at])),),
                duration_s=float(lasts_s[at]),
            )
            for at in range(count)
        )
    )


def growth() -> Iterator[Row]:
    """What jobs that pile up cost: time by jobs, and the exponent between the last two."""
    cluster = parse_cluster(f"{GROWTH_NODES}x8:V100M16", known=GPUS)
    for policy in GROWTH_PLANNERS:
        times: list[float] = []
        for count in GROWTH_JOBS:
            given = SchedulerContext(jobs=overload(count, GROWTH_NODES), cluster=cluster)
            setting = ComparisonSetup(preset=preset("none"), given=given)
            times.append(float(simulate(setting, policy).row["cpu_s"]))  # type: ignore[arg-type]
        exponent = math.log2(times[-1] / times[-2])
        told = " / ".join(f"{one:.2f}" for one in times) + f" s, exponent {exponent:.2f}"
        sizes = " / ".join(f"{one:,}" for one in GROWTH_JOBS)
        yield f"load 2, {GROWTH_NODES} nodes, {sizes} jobs, {policy}", told, "<= 1.2"


OURS = ((1_250, 125), (2_500, 250), (5_000, 500), (10_000, 1_000))
BUDGET_PART = 0.6


def ours() -> Iterator[Row]:
    """Our planner where jobs and nodes grow together, at load 2, without and with a budget."""
    for part in (None, BUDGET_PART):
        yield _together("wattherd", OURS, part)


BUDGETED = (600, 1_250, 2_500)
"""Jobs, unless others are asked for: 10,000 take half a minute or more for each planner."""
LEFT_OUT = ("@fastest", "deadline", "hived")
"""Of what `budgeted` measures: speeds are equal here, and no job has a deadline or a cell."""
DRAWN = ("capacity", "drf", "fifo", "gandiva", "priority", "srtf", "tiresias", "wattherd")
Times = dict[str, list[float]]
"""By planner seconds of processor time, one for each size."""


def budgeted(
    times: Times | None = None, jobs: Sequence[int] = BUDGETED, planners: Sequence[str] = ()
) -> Iterator[Row]:
    """Every planner where jobs and nodes grow together, at load 2 with a budget."""
    sizes = [(count, count // 10) for count in jobs]
    measured = [name for name in preset("none").schedulers if not name.endswith(LEFT_OUT)]
    for policy in planners or measured:
        spent_s = [_together_s(policy, *size, BUDGET_PART) for size in sizes]
        if times is not None:
            times[policy] = spent_s
        yield _told(policy, sizes, spent_s, BUDGET_PART)


def _together(policy: str, sizes: Sequence[tuple[int, int]], part: float | None) -> Row:
    return _told(policy, sizes, [_together_s(policy, *size, part) for size in sizes], part)


def _together_s(policy: str, count: int, nodes: int, part: float | None) -> float:
    """What so many jobs on so many nodes cost, in seconds of processor time."""
    cluster = parse_cluster(f"{nodes}x8:V100M16", known=GPUS)
    given = SchedulerContext(jobs=overload(count, nodes), cluster=cluster)
    most_w = nodes * 8 * GPUS["V100M16"].max_w
    budget = () if part is None else ((0.0, part * most_w),)
    setting = ComparisonSetup(preset=preset("none"), given=given, budget=budget)
    return float(simulate(setting, policy).row["cpu_s"])  # type: ignore[arg-type]


def _told(
    policy: str, sizes: Sequence[tuple[int, int]], times_s: Sequence[float], part: float | None
) -> Row:
    """With the exponent between the first and the last."""
    told = " / ".join(f"{one:.1f}" for one in times_s) + " s"
    if len(sizes) > 1:
        exponent = math.log(times_s[-1] / times_s[0]) / math.log(sizes[-1][0] / sizes[0][0])
        told = f"{told}, exponent {exponent:.2f}"
    shown = " / ".join(f"{count:,}" for count, _ in sizes)
    watts = "no budget" if part is None else f"{part:.0%} of all watts"
    return f"load 2, a node for 10 of {shown} jobs, {policy}, {watts}", told, "<= 30 s, 1.2"


def growth_svg(times: Times, counts: Sequence[int]) -> str:
    """What a job costs against how many there are, for docs/speed.md: a level line is growth 1."""
    drawn = {policy: times[policy] for policy in DRAWN if policy in times}
    jobs = [float(count) for count in counts]
    series = [
        Series(
            name=policy,
            number=number,
            x=jobs,
            y=[1000 * one_s / count for one_s, count in zip(spent_s, jobs, strict=True)],
        )
        for number, (policy, spent_s) in enumerate(drawn.items())
    ]
    plot = LinePlot(
        title="Processor time per job",
        about="Processor time per job against the number of jobs, by scheduler",
        x_title="jobs, on a tenth as many nodes",
        y_title="milliseconds per job",
        series=tuple(series),
        x_low=0.0,
        x_high=jobs[-1],
        y_low=0.0,
    )
    chart = Chart(key="growth", title=plot.title, caption="", draw=partial(draw_lines, plot))
    return standalone(chart, len(series), "growth")


def ours_philly() -> Iterator[Row]:
    file = "sia/philly_82248jobs.csv.gz"
    row = run("philly", file, PHILLY_CLUSTER, "none", "wattherd", PHILLY_BUDGET_W)
    told = f"{row['cpu_s']} s ({row['finished']} finished, {row['over_budget_s']} s over)"
    yield "Philly, 82,247 jobs, 2,504 GPUs, wattherd, 300 kW", told, "<= 180 s"


def cycles() -> Iterator[Row]:
    """What one event costs with 2,000 live jobs on 1,000 nodes, half of the watts being there."""
    for elastic, reporting in ((False, False), (True, False), (True, True)):
        spent_ms = _cycles_ms(elastic=elastic, reporting=reporting)
        worst = spent_ms[int(0.99 * len(spent_ms))]
        told = (
            f"{len(spent_ms)} plans, median {spent_ms[len(spent_ms) // 2]:.0f}, p99 {worst:.0f} ms"
        )
        what = ("elastic" if elastic else "of one width") + (", reporting" if reporting else "")
        yield f"a plan of wattherd, 1,000 nodes, 2,000 live jobs {what}", told, "<= 1,000 ms"


def _cycles_ms(*, elastic: bool, reporting: bool) -> list[float]:
    """All 2,000 come at once; then one every 10 s, while others end."""
    nodes, live, more = 1_000, 2_000, 20
    progress = ReportedProgress() if reporting else StatedProgress()
    planner = ProgressPerWatt(progress=progress, look_s=10.0 if reporting else None)
    cluster = parse_cluster(f"{nodes}x8:V100M16", known=GPUS)
    core = TimedCore(CoreConfig(cluster=cluster, planner=planner, learns=reporting, round_s=0.0))
    given: list[Event] = [BudgetChanged(at_s=0.0, budget_w=0.5 * nodes * 8 * GPUS["V100M16"].max_w)]
    for number, spec in enumerate(overload(live + more, nodes).specs):
        at_s = 10.0 * max(number - live, 0)
        job = replace(spec, submit_s=at_s)
        if elastic:
            job = replace(job, min_width=1, max_width=2 * spec.roles[0].count)
        given.append(JobSubmitted(at_s=at_s, job=job))
    plant = DurationPlant(report_s=30.0 if reporting else None)
    SimWorld(core, plant, given, record=False).run(10.0 * more)
    return sorted(core.spent_ms)


class TimedCore(Core):
    """Notes how long it takes over events that make plans."""

    spent_ms: list[float]

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.spent_ms = []

    def handle(self, event: Event) -> list[Command]:
        began = time.process_time()
        commands = super().handle(event)
        if isinstance(event, Woke):
            self.spent_ms.append(1e3 * (time.process_time() - began))
        return commands


def events() -> Iterator[Row]:
    core, count = core_of(1000), 200_000
    for number in range(2000):
        core.handle(JobSubmitted(at_s=0.0, job=small(number, 0.0)))
        core.handle(JobStarted(at_s=0.0, job_id=f"j{number}", attempt=1))
    news = [
        JobProgressed(at_s=1.0, job_id=f"j{n % 2000}", attempt=1, progress=float(n))
        for n in range(count)
    ]
    rate = count / timed(lambda: [core.handle(one) for one in news])
    yield "progress of 2,000 running jobs, 1,000 nodes", f"{rate:,.0f} events/s", ">= 100,000"


def arrival() -> Iterator[Row]:
    """Jobs of 1 to 4 GPUs come while 2,000 run; each ends later, so that none has to wait."""
    core, count = core_of(1000), 5000
    spent_s = 0.0
    for number in range(count):
        at_s = float(number)
        came = JobSubmitted(at_s=at_s, job=small(number, at_s))
        spent_s += timed(lambda came=came: core.handle(came))
        core.handle(JobStarted(at_s=at_s, job_id=f"j{number}", attempt=1))
        if number >= 2000:
            core.handle(JobExited(at_s=at_s, job_id=f"j{number - 2000}", attempt=1))
    each_us = 1e6 * spent_s / count
    yield "arrival and placement at 1,000 nodes, 2,000 running", f"{each_us:.0f} us", "<= 100 us"


def timed(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


def memory() -> Iterator[Row]:
    """So many jobs pass through, one every 10 s; few or many of them live at a time.

    Of a finished job its id and how it ended are kept, for jobs that wait for it.
    """
    for jobs, live in ((10_000, 100), (82_000, 100), (10_000, 1000), (10_000, 2000)):
        given = (
            JobSubmitted(at_s=10.0 * n, job=small(n, 10.0 * n, 10.0 * live)) for n in range(jobs)
        )
        tracemalloc.start()
        SimWorld(core_of(1000, 0.0), DurationPlant(), given, record=False).run()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        told = f"{peak / 2**20:.1f} MiB peak"
        yield f"{jobs:,} jobs streamed, {live:,} live", told, "by live jobs"


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "pollux": pollux,
    "muri": muri,
    "philly": philly,
    "tree": tree,
    "events": events,
    "arrival": arrival,
    "growth": growth,
    "ours": ours,
    "budgeted": budgeted,
    "ours-philly": ours_philly,
    "cycles": cycles,
    "memory": memory,
}


def main() -> None:
    """Measure and print, and draw where that is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--jobs", type=int, nargs="+", default=BUDGETED, metavar="N",
        help="how many jobs `budgeted` plays, ascending; 10 or more",
    )  # fmt: skip
    parser.add_argument(
        "--planner", nargs="+", default=[], metavar="NAME", choices=preset("none").schedulers,
        help="of `budgeted`; without, every planner",
    )  # fmt: skip
    parser.add_argument("--svg", type=Path, help="what `budgeted` measures, as a picture")
    arguments = parser.parse_args()
    measured = partial(
        budgeted, times := dict[str, list[float]](), arguments.jobs, arguments.planner
    )
    for name in arguments.parts or PARTS:
        if name in ("pollux", "muri", "philly", "tree", "ours-philly") and not traces().is_dir():
            print(f"{name}: no traces, set WATTHERD_DATA", file=sys.stderr)
            continue
        rows = measured() if name == "budgeted" else PARTS[name]()
        for what, found, wanted in rows:
            print(f"{what:58} {found:42} {wanted}", flush=True)
    if arguments.svg is not None and times:
        arguments.svg.write_text(growth_svg(times, arguments.jobs))


if __name__ == "__main__":
    main()
