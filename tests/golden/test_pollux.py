"""The Pollux suite (OSDI'21): every job's completion time, as the authors published it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.experiments.published.pollux_osdi21 import completion_times
from wattherd.experiments.schedule.workloads import read_workload

pytest.importorskip("scipy", reason="step times of unmeasured placements need SciPy")

QUICK = [("tiresias", "1.0", "workload-6"), ("optimus", "0.5", "workload-3")]
LOADS = {"0.5": "workloads-0.5", "1.0": "workloads", "1.5": "workloads-1.5", "2.0": "workloads-2.0"}


def differing(traces: Path, policy: str, load: str, workload: str) -> dict[str, object]:
    folder = traces / "pollux"
    published = json.loads(
        (folder / f"published_results/results-jobload/{policy}-{load}/summary.json").read_text()
    )["jcts"][workload]
    jobs = read_workload("pollux", folder / LOADS[load] / f"{workload}.csv", folder / "profiles")
    ours = completion_times(policy, jobs)
    assert ours.keys() == published.keys()
    return {job: (ours[job], jct) for job, jct in published.items() if ours[job] != jct}


@pytest.mark.data
@pytest.mark.parametrize(("policy", "load", "workload"), QUICK)
def test_every_completion_time_equals_the_published_one(
    traces: Path, policy: str, load: str, workload: str
) -> None:
    assert differing(traces, policy, load, workload) == {}


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
@pytest.mark.parametrize("load", LOADS)
def test_every_published_workload_of_a_load(traces: Path, policy: str, load: str) -> None:
    path = traces / f"pollux/published_results/results-jobload/{policy}-{load}/summary.json"
    for workload in json.loads(path.read_text())["jcts"]:
        if (traces / "pollux" / LOADS[load] / f"{workload}.csv").exists():
            assert differing(traces, policy, load, workload) == {}, workload
