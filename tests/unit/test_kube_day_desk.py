"""A day of jobs at the scheduler's desk, by the books of the benchmark: what a budget may cost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kube_day_desk import DayDesk
from kube_day_ledger import a_day, budget_w, gpus_by_model

NODES = 24
HOUR_S = 3600.0


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["", "wattherd"])
def test_a_day_under_a_budget_stops_pods_for_more_important_ones_alone(scheduler: str) -> None:
    """Caps keep the budget, of GPU models too of which nobody says how low they can be capped."""
    jobs = a_day(110, NODES, load=0.75, seed=5)
    desk = DayDesk(jobs, NODES, budget_w(gpus_by_model(NODES), 0.6), scheduler)
    scores = desk.play(14 * HOUR_S)
    assert scores["above_s"] == 0
    assert {why.partition(":")[0] for why in desk.reasons} <= {"PreemptedForPriority"}
    assert scores["wait_high_p95_min"] < 1
    assert scores["wait_high_mean_min"] <= scores["wait_low_mean_min"]
    assert scores["used_part"] > 0.5
