"""Pollux (Qiao et al., OSDI'21) in its simulator: 16 nodes of 4 T4, measured applications.

Tiresias and Optimus are deterministic there, so that every single job must finish at the published
second (`compare`). Pollux' own search is a matter of chance: what must agree is the mean over
workloads and seeds (`compare_policy`, about a minute per workload and seed).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wattherd.catalog.gpus import GPUS
from wattherd.errors import Bug, UserError
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs, read_workload
from wattherd.workload.cluster_text import parse_cluster

PRESET = "pollux-osdi21"
CLUSTER = "16x4:T4"
POLICIES = ("tiresias", "optimus")
FOLDERS = {
    "0.5": "workloads-0.5",
    "1.0": "workloads",
    "1.5": "workloads-1.5",
    "2.0": "workloads-2.0",
}
"""Load to the folder of its workloads."""
WITHIN = 0.05
"""How far the mean completion time under Pollux may lie from the published one, relatively."""


def compare(directory: Path) -> Iterator[FigureCheck]:
    """Every published run whose workload is in `directory` (the artifact's files).

    Raises:
        UserError: the files are not there.
    """
    results = _results(directory)
    for load, folder in FOLDERS.items():
        for policy in POLICIES:
            published = json.loads((results / f"{policy}-{load}" / "summary.json").read_text())
            for workload, jcts in sorted(published["jcts"].items()):
                file = directory / folder / f"{workload}.csv"
                if file.exists():
                    jobs = read_workload("pollux", file, directory / "profiles")
                    yield from _checks(f"load {load}, {workload}", policy, jobs, jcts)


def _checks(
    name: str, policy: str, jobs: ReadJobs, published: dict[str, float]
) -> Iterator[FigureCheck]:
    ours = completion_times(policy, jobs)
    equal = sum(ours.get(job) == jct for job, jct in published.items())
    yield FigureCheck(
        trace=name,
        policy=policy,
        quantity="jobs with the published completion time",
        published=len(published),
        ours=equal,
        tolerance=0.0,
    )
    known = [jct for jct in ours.values() if jct is not None]
    yield FigureCheck(
        trace=name,
        policy=policy,
        quantity="mean completion time (s)",
        published=sum(published.values()) / len(published),
        ours=sum(known) / max(len(known), 1),
        tolerance=1e-6,
    )


def _results(directory: Path) -> Path:
    results = directory / "published_results" / "results-jobload"
    if not results.is_dir():
        hint = "set WATTHERD_DATA to a folder that has traces/pollux"
        raise UserError("no published results", where=str(directory), hint=hint)
    return results


def compare_policy(directory: Path, seeds: Sequence[int]) -> Iterator[FigureCheck]:
    """Mean completion times under Pollux at load 1.0, over `seeds`, of each workload and of all.

    Raises:
        UserError: the files are not there.
    """
    published = json.loads((_results(directory) / "pollux-1.0" / "summary.json").read_text())
    theirs, ours = [], []
    for workload, jcts in sorted(published["jcts"].items()):
        file = directory / FOLDERS["1.0"] / f"{workload}.csv"
        jobs = read_workload("pollux", file, directory / "profiles")
        runs = [_mean(completion_times("pollux", jobs, seed=seed)) for seed in seeds]
        theirs.append(sum(jcts.values()) / len(jcts))
        ours.append(sum(runs) / len(runs))
        yield _policy_check(f"load 1.0, {workload}", theirs[-1:], ours[-1:], tolerance=None)
    yield _policy_check("load 1.0, all workloads", theirs, ours, tolerance=WITHIN)


def _policy_check(
    name: str, theirs: Sequence[float], ours: Sequence[float], *, tolerance: float | None
) -> FigureCheck:
    published = sum(theirs) / len(theirs)
    return FigureCheck(
        trace=name,
        policy="pollux",
        quantity="mean completion time (s), mean over seeds",
        published=published,
        ours=sum(ours) / len(ours),
        tolerance=None if tolerance is None else tolerance * published,
    )


def _mean(times: Mapping[str, float | None]) -> float:
    """Mean completion time.

    Raises:
        Bug: a job did not finish.
    """
    known = [time for time in times.values() if time is not None]
    if len(known) < len(times):
        raise Bug(f"{len(times) - len(known)} jobs did not finish under Pollux")
    return sum(known) / len(known)


def completion_times(policy: str, jobs: ReadJobs, *, seed: int = 1) -> dict[str, float | None]:
    """Every job's completion time under `policy` in the artifact's setting."""
    given = SchedulerContext(jobs=jobs, cluster=parse_cluster(CLUSTER, known=GPUS), seed=seed)
    setting = ComparisonSetup(preset=preset(PRESET), given=given)
    return {one.job_id: one.jct_s for one in simulate(setting, policy).outcomes}
