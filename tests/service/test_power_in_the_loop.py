"""A budget cut by a quarter in the middle of 160 jobs: it holds, and water-filling is ahead."""

from __future__ import annotations

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.run import POWER_POLICIES, ComparedRun, ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.sim.usage_levels import COLUMNS
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.generate_jobs import JobMix, generate_jobs

FULL_W, CUT_W, CUT_S = 6400.0, 4800.0, 3600.0
MIX = JobMix(
    jobs=160,
    gpus=32,
    load=1.5,
    longest_s=7200.0,
    power_profiles=("resnet50", "bert-squad", "deepspeech2", "shufflenet"),
)


def run(policy: str, power: str, seed: int) -> ComparedRun:
    given = SchedulerContext(
        jobs=ReadJobs(specs=generate_jobs(MIX, seed)),
        cluster=parse_cluster("4x8:V100M16", known=GPUS),
    )
    budget = ((0.0, FULL_W), (CUT_S, CUT_W))
    setting = ComparisonSetup(
        preset=preset("none"), given=given, budget=budget, power=power, history=True
    )
    return simulate(setting, policy)


@pytest.mark.parametrize("power", POWER_POLICIES)
def test_not_a_second_above_the_budget(power: str) -> None:
    result = run("tiresias", power, 1)
    assert (result.row["finished"], result.row["over_budget_s"]) == (160, 0.0)
    assert result.levels is not None
    steps = [dict(zip(COLUMNS, row, strict=True)) for row in result.levels.rows()]
    drawn_w = [float(str(step["peak_w"])) for step in steps if float(str(step["time_s"])) > CUT_S]
    assert max(drawn_w) <= CUT_W
    # The budget binds: at times it is used to within a few caps.
    assert max(drawn_w) >= 0.95 * CUT_W


@pytest.mark.long
@pytest.mark.parametrize("policy", ["tiresias", "fifo-backfill"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_water_filling_is_ahead_of_uniform_and_of_pausing(policy: str, seed: int) -> None:
    jct_s = {
        power: float(str(run(policy, power, seed).row["avg_jct_s"]))
        for power in ("water-filling", "uniform", "pause")
    }
    assert jct_s["water-filling"] < jct_s["uniform"] < jct_s["pause"]
