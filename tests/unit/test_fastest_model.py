"""Schedulers that send each job to the GPU model on which it is fastest of those with room."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from wattherd import simulate
from wattherd.experiments.schedule.run import simulate as run_policy
from wattherd.experiments.schedule.setup import setting_of
from wattherd.library.simulation import Simulation
from wattherd.workload.scenario import read_scenario

REPOSITORY = Path(__file__).parents[2]
STUDY = REPOSITORY / "examples" / "three-gpu-types"
PROFILES = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data").joinpath(
    "traces", "sia", "profiles"
)


def jobs(*widths: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"j{at}", "submit_s": 0, "gpus": gpus, "duration_s": 100, **fields}
        for at, gpus in enumerate(widths)
    ]


def run(cluster: str, given: list[dict[str, Any]], policy: str, **fields: Any) -> Simulation:
    return simulate(given, cluster=cluster, policies=policy, **fields)


def hours(simulation: Simulation) -> dict[str, float]:
    """GPU hours by model; a run that used a single one does not tell."""
    (one,) = simulation.runs
    found: Any = one.row.get("by_model", [])
    return {use["model"]: use["gpu_h"] for use in found}


@pytest.mark.parametrize("policy", ["fifo@fastest", "fifo-first-fit@fastest", "sjf@fastest"])
def test_a_job_goes_to_the_fastest_model_with_room_and_the_next_to_what_is_left(
    policy: str,
) -> None:
    one = run("2x1:T4,1x1:A100", jobs(1), policy)
    assert one.runs[0].outcomes[0].jct_s == pytest.approx(100 / 3.42, rel=0.01)
    two = run("2x1:T4,1x1:A100", jobs(1, 1), policy)
    assert set(hours(two)) == {"A100", "T4"}


def test_jobs_are_not_spread_over_models_while_a_single_one_has_room() -> None:
    found = run("1x2:A100,1x4:T4", jobs(1, 4), "fifo@fastest")
    assert set(hours(found)) == {"A100", "T4"}
    across = run("1x2:A100,1x3:T4", jobs(4), "fifo@fastest")
    assert across.runs[0].outcomes[0].jct_s == pytest.approx(100.0)


def test_what_was_measured_decides_not_the_catalogue(tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text("kind,gpu_model,gpus,rate\nodd,T4,1,10\nodd,A100,1,5\n")
    found = run(
        "1x1:A100,1x1:T4", jobs(1, profile="odd"), "fifo@fastest",
        speed={"table": str(table), "durations_on": "T4"},
    )  # fmt: skip
    assert found.runs[0].outcomes[0].jct_s == pytest.approx(100.0)


def test_where_models_are_said_to_be_equal_it_places_as_its_like_does() -> None:
    given, equal = jobs(1, 2, 1, 3, 1), {"types": "equal"}
    ends = []
    for policy in ("fifo", "fifo@fastest"):
        found = run("2x2:A100,1x4:T4", given, policy, speed=equal)
        ends.append([one.finish_s for one in found.runs[0].outcomes])
    assert ends[0] == ends[1]


def test_a_job_may_go_only_to_models_that_it_takes() -> None:
    given = [{**jobs(1)[0], "gpu_models": ["T4"]}]
    found = run("1x1:A100,1x1:T4", given, "fifo@fastest")
    assert found.runs[0].outcomes[0].jct_s == pytest.approx(100.0)


def test_hours_and_joules_by_model_add_up_to_those_of_all_jobs() -> None:
    found = run("2x2:A100,2x2:T4", jobs(1, 2, 4, 1, 3, 2), "fifo-first-fit", budget=1200)
    (one,) = found.runs
    uses: Any = one.row["by_model"]
    gpu_h = sum(outcome.gpu_s for outcome in one.outcomes) / 3600
    energy_j = sum(outcome.energy_j for outcome in one.outcomes)
    assert sum(use["gpu_h"] for use in uses) == pytest.approx(gpu_h)
    told_j = sum(use["gpu_h"] * 3600 * use["mean_w"] for use in uses)
    assert told_j == pytest.approx(energy_j)


@pytest.mark.long
@pytest.mark.parametrize("budget", ["14kW", "9kW", "5.5kW"])
def test_the_guides_table_of_three_gpu_models_is_what_the_example_gives(budget: str) -> None:
    page = (REPOSITORY / "docs" / "guides" / "scenarios.md").read_text()
    scenario = read_scenario(STUDY / "scenario.yaml")
    setting = setting_of(scenario, budget=budget, power="water-filling")
    for policy in ("fifo-first-fit", "fifo-first-fit@fastest", "wattherd"):
        row: Any = run_policy(setting, policy).row
        cells = [
            f"{use['gpu_h']:.0f} h, {use['mean_w']:.0f} W"
            for model in ("T4", "A100", "H100-SXM")
            for use in row["by_model"]
            if use["model"] == model
        ]
        figures = f"{row['avg_jct_s'] / 60:.1f} min | {sum(row['energy_j'].values()) / 1e6:.0f} MJ"
        said = f"| {budget.replace('kW', ' kW')} | `{policy}` | {figures} | {' | '.join(cells)} |"
        assert said in page


@pytest.mark.skipif(not PROFILES.is_dir(), reason=f"no {PROFILES}; set WATTHERD_DATA")
def test_the_examples_speeds_are_the_best_of_sias_profiles_by_width() -> None:
    folders = {"T4": "aws", "A100": "dgx"}
    with (STUDY / "speeds.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 30
    for row in rows:
        path = PROFILES / row["kind"] / f"placements-{folders[row['gpu_model']]}.csv"
        with path.open() as stream:
            best = max(
                int(row["gpus"]) * float(one["local_bsz"]) / float(one["step_time"])
                for one in csv.DictReader(stream)
                if one["placement"] == row["gpus"]
            )
        assert float(row["rate"]) == pytest.approx(best, rel=1e-3)
