"""What comparisons of schedulers say of ways of sharing watts."""

from __future__ import annotations

from typing import Any

import pytest

from wattherd.experiments.schedule.compare import sharing_sentences

MEASURED = {"jobs": 5, "prior": 0}


def a_row(power: str | None, time_s: float = 100.0, energy_j: float = 1e6, **more: Any) -> Any:
    return {
        "policy": "fifo",
        "budget": "9kW",
        "power": power,
        "avg_jct_s": time_s,
        "energy_j": {"run": energy_j},
        "finished": 5,
        "jobs": 5,
        "over_budget_s": 0.0,
        **more,
    }


@pytest.mark.parametrize(
    ("time_s", "energy_j", "told"),
    [
        (92.0, 1.01e6, "8.0 % sooner on average, with 1.0 % more energy"),
        (104.0, 0.9e6, "4.0 % later on average, with 10.0 % less energy"),
        (100.01, 1.0004e6, "no better and no worse"),
        (100.0, 1.02e6, "as fast, with 2.0 % more energy"),
    ],
)
def test_a_way_of_sharing_is_held_against_uniform(
    time_s: float, energy_j: float, told: str
) -> None:
    rows = [a_row("uniform"), a_row("water-filling", time_s, energy_j)]
    assert sharing_sentences(rows, MEASURED) == [
        f"fifo within 9kW: water-filling instead of uniform is {told}."
    ]


def test_runs_that_left_jobs_undone_are_not_compared() -> None:
    rows = [a_row("uniform"), a_row("water-filling", 50.0, finished=4)]
    assert sharing_sentences(rows, MEASURED) == []


def test_priors_are_named_and_the_comparison_is_asked_for() -> None:
    (told,) = sharing_sentences([a_row("water-filling")], {"jobs": 5, "prior": 4})
    assert told.startswith("Watts of 4 of 5 jobs are priors: nobody measured their power curves.")
    assert told.endswith(" Add `uniform` to `power` to see what sharing gains.")
    assert sharing_sentences([a_row(None, budget=None)], {"jobs": 5, "prior": 5}) == []
