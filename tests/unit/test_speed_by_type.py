"""A GPU's model reaches a simulated job's speed, and results say where that speed is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattherd import simulate
from wattherd.errors import UserError
from wattherd.estimate.job_rate import prior_speed
from wattherd.library.simulation import Simulation

A100_TO_T4 = prior_speed("A100") / prior_speed("T4")


def run(cluster: str, jobs: list[dict[str, Any]], **fields: Any) -> Simulation:
    return simulate(jobs, cluster=cluster, policies="fifo", **fields)


def jobs(count: int = 2, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"j{at}", "submit_s": 0, "gpus": 1, "duration_s": 100, **fields}
        for at in range(count)
    ]


def lasted_s(simulation: Simulation) -> list[float]:
    (one,) = simulation.runs
    return sorted(round(outcome.jct_s or 0.0, 6) for outcome in one.outcomes)


def test_a_job_ends_sooner_on_the_faster_of_two_models() -> None:
    found = run("T4=1,A100=1", jobs())
    assert lasted_s(found) == pytest.approx([100 / A100_TO_T4, 100.0], abs=1e-5)


def test_the_same_workload_is_faster_on_another_cluster_only_if_durations_have_a_model() -> None:
    assert lasted_s(run("1x2:A100", jobs())) == [100.0, 100.0]
    found = run("1x2:A100", jobs(), speed={"durations_on": "T4"})
    assert lasted_s(found) == pytest.approx([100 / A100_TO_T4] * 2, abs=1e-5)


def test_models_are_as_fast_as_each_other_where_a_scenario_says_so() -> None:
    found = run("T4=1,A100=1", jobs(), speed={"types": "equal"})
    assert lasted_s(found) == [100.0, 100.0]
    assert "2 jobs run equally fast on A100, T4, as was stated." in found.assumptions


def test_a_measured_speed_decides_and_reports_tell_it_from_a_prior(tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text("kind,gpu_model,gpus,rate\nbert,T4,1,10\nbert,A100,1,50\n")
    mixed = [*jobs(2, profile="bert"), *jobs(0)]
    found = run("T4=1,A100=1", mixed, speed={"table": str(table)})
    assert lasted_s(found) == [20.0, 100.0]
    assert (
        "Speeds of 2 of 2 jobs on A100 were measured: 5 x the pace that they state."
        in found.assumptions
    )
    other = run("T4=1,A100=1", jobs())
    assert any("on A100 are a prior" in line for line in other.assumptions)
    assert any("What is known of 2 of 2 jobs holds on T4." in line for line in other.assumptions)


def test_a_job_across_models_goes_at_the_pace_of_the_slowest() -> None:
    found = run("T4=1,A100=1", jobs(1, gpus=2))
    assert lasted_s(found) == [100.0]


def test_unknown_models_and_presets_with_tables_of_their_own_are_told_apart() -> None:
    with pytest.raises(UserError, match="unknown GPU model 'T5'"):
        run("1x2:A100", jobs(), speed={"durations_on": "T5"})
    with pytest.raises(UserError, match="nothing is known of the speed of 'Gaudi3'"):
        run("Gaudi3=1,A100=1", jobs())
    assert lasted_s(run("Gaudi3=1,A100=1", jobs(), speed={"types": "equal"})) == [100.0, 100.0]
