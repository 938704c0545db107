"""Pollux' own policy in its simulator: means as published, runs that repeat and replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core
from wattherd.experiments.published.pollux_osdi21 import compare_policy
from wattherd.experiments.schedule.run import ComparedRun, ComparisonSetup, core_config, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs, read_workload
from wattherd.jit import HAVE_JIT
from wattherd.store.event_log import digest, read_log, write_log
from wattherd.workload.cluster_text import parse_cluster

pytest.importorskip("scipy", reason="step times of unmeasured placements need SciPy")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not HAVE_JIT, reason="the search needs Numba"),
]


def early_jobs(traces: Path, count: int) -> ReadJobs:
    folder = traces / "pollux"
    jobs = read_workload("pollux", folder / "workloads" / "workload-6.csv", folder / "profiles")
    return replace(jobs, specs=jobs.specs[:count])


def setting(jobs: ReadJobs, *, seed: int = 1, until_s: float = float("inf")) -> ComparisonSetup:
    given = SchedulerContext(jobs=jobs, cluster=parse_cluster("4x4:T4", known=GPUS), seed=seed)
    return ComparisonSetup(
        preset=preset("pollux-osdi21"), given=given, record=True, until_s=until_s
    )


def commands(result: ComparedRun) -> str:
    return digest(result.recording.commands)


@pytest.mark.long
def test_a_run_repeats_under_its_seed_and_replays_from_its_log(
    traces: Path, tmp_path: Path
) -> None:
    asked = setting(early_jobs(traces, 12), until_s=6000.0)
    first = simulate(asked, "pollux")
    assert commands(first) == commands(simulate(asked, "pollux"))
    write_log(tmp_path / "log", first.recording)
    events, written = read_log(tmp_path / "log")
    scheduler = asked.preset.scheduler("pollux", asked.given)
    core = Core(core_config(asked, scheduler))
    assert digest(one for event in events for one in core.handle(event)) == written


@pytest.mark.long
def test_another_seed_is_another_search(traces: Path) -> None:
    jobs = early_jobs(traces, 12)
    runs = {commands(simulate(setting(jobs, seed=s, until_s=6000.0), "pollux")) for s in (1, 2)}
    assert len(runs) == 2


@pytest.mark.long
def test_adapting_sizes_and_batches_beats_least_attained_service(traces: Path) -> None:
    jobs = early_jobs(traces, 12)
    ours, theirs = (simulate(setting(jobs), policy).row for policy in ("pollux", "tiresias"))
    assert ours["finished"] == theirs["finished"] == 12
    assert float(str(ours["avg_jct_s"])) < float(str(theirs["avg_jct_s"]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_mean_completion_time_is_within_five_percent_of_the_published_one(
    traces: Path,
) -> None:
    checks = list(compare_policy(traces / "pollux", seeds=(1, 2, 3)))
    published = json.loads(
        (traces / "pollux/published_results/results-jobload/pollux-1.0/summary.json").read_text()
    )
    assert [check.published for check in checks[:-1]] == [
        pytest.approx(published["avgs"][name]) for name in sorted(published["avgs"])
    ]
    assert checks[-1].holds, checks[-1]
