"""The Pollux suite (OSDI'21): every job's completion time, as the authors published it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.service.presets import preset
from wattherd.service.schedule import Setting, simulate
from wattherd.service.workloads import read_workload
from wattherd.workload.cluster_text import parse_cluster

pytest.importorskip("scipy", reason="step times of unmeasured placements need SciPy")

QUICK = [("tiresias", "1.0", "workload-6"), ("optimus", "0.5", "workload-3")]
LOADS = {"0.5": "workloads-0.5", "1.0": "workloads", "1.5": "workloads-1.5", "2.0": "workloads-2.0"}


def differing(traces: Path, policy: str, load: str, workload: str) -> dict[str, object]:
    folder = traces / "pollux"
    published = json.loads(
        (folder / f"published_results/results-jobload/{policy}-{load}/summary.json").read_text()
    )["jcts"][workload]
    jobs = read_workload("pollux", folder / LOADS[load] / f"{workload}.csv", folder / "profiles")
    chosen = preset("pollux-osdi21")
    setting = Setting(
        round_s=chosen.round_s,
        restart_s=chosen.restart_s,
        plant=chosen.plant,
        planner=chosen.planner,
        cluster=parse_cluster("16x4:T4", known=GPUS),
        jobs=jobs,
    )
    ours = {one.job_id: one.jct_s for one in simulate(setting, policy).outcomes}
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
