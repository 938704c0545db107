"""What was in use when: integrals stay exact however long a run is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.model.event import BudgetChanged, Event, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.sim.meter import EnergyMeter
from wattherd.sim.stretches import Stretches
from wattherd.sim.usage_levels import COLUMNS, MOST_STEPS, UseLevels
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import TimedPlant, t4_nodes, timed


def watched(
    jobs: Sequence[JobSpec], *gpus: int, events: Sequence[Event] = (), **more: Any
) -> tuple[EnergyMeter, UseLevels, Stretches]:
    core = Core(CoreConfig(cluster=t4_nodes(*gpus), planner=Tiresias(**more), round_s=60.0))
    meter = EnergyMeter(core)
    levels, stretches = UseLevels(core, meter), Stretches(core)
    given = [*events, *(JobSubmitted(at_s=job.submit_s, job=job) for job in jobs)]
    SimWorld(core, TimedPlant(), given, watchers=[meter, levels, stretches], record=False).run()
    return meter, levels, stretches


def columns(levels: UseLevels) -> dict[str, list[Any]]:
    return {name: list(one) for name, one in zip(COLUMNS, zip(*levels.rows(), strict=True),
                                                 strict=True)}  # fmt: skip


def test_two_jobs_one_after_the_other() -> None:
    jobs = [timed("a", 4, lasts_s=120.0), timed("b", 2, at_s=60.0, lasts_s=100.0)]
    _, _, stretches = watched(jobs, 4)
    assert stretches.rows() == [("a", 0.0 + 60.0, 180.0, 4, "n0:4"), ("b", 180.0, 280.0, 2, "n0:2")]


def test_a_preempted_job_has_a_stretch_for_every_run() -> None:
    jobs = [timed("long", 4, lasts_s=500.0), timed("short", 4, at_s=200.0, lasts_s=60.0)]
    _, _, stretches = watched(jobs, 4, thresholds_gpu_s=(400.0,))
    rows = stretches.rows()
    assert [row[0] for row in rows] == ["long", "short", "long"]
    assert sum(row[2] - row[1] for row in rows if row[0] == "long") == 500.0
    assert all(one[2] <= other[1] for one, other in pairwise(rows))


def test_levels_follow_the_budget_and_what_runs() -> None:
    cut = [BudgetChanged(at_s=0.0, budget_w=300.0), BudgetChanged(at_s=600.0, budget_w=None)]
    _, levels, _ = watched([timed("a", 4, lasts_s=1200.0)], 4, events=cut)
    found = columns(levels)
    assert found["time_s"][0] == 0.0
    assert found["gpus"][0] == 0.0
    assert max(found["gpus"]) == 4.0
    assert found["budget_w"][1] == 300.0
    assert found["budget_w"][-1] == ""
    assert all(peak <= 300.0 for peak, budget in zip(found["peak_w"], found["budget_w"],
                                                     strict=True) if budget)  # fmt: skip


lengths = st.floats(1.0, 40_000.0)


@pytest.mark.long
@given(
    jobs=st.lists(st.tuples(st.floats(0, 90_000.0), st.integers(1, 4), lengths), min_size=1,
                  max_size=6)
)  # fmt: skip
def test_however_long_the_run_integrals_stay_and_steps_are_few(
    jobs: list[tuple[float, int, float]],
) -> None:
    specs = [
        timed(f"j{at}", gpus, at_s=at_s, lasts_s=lasts_s)
        for at, (at_s, gpus, lasts_s) in enumerate(jobs)
    ]
    meter, levels, stretches = watched(specs, 4, 4)
    found, core = columns(levels), levels.core
    assert len(found["time_s"]) <= MOST_STEPS
    ends = [*found["time_s"][1:], core.now_s]
    held = [end - begin for begin, end in zip(found["time_s"], ends, strict=True)]
    energy = sum(watts * s for watts, s in zip(found["draw_w"], held, strict=True))
    assert energy == pytest.approx(sum(meter.energy_j().values()), rel=1e-4, abs=10.0)
    gpu_s = sum(gpus * s for gpus, s in zip(found["gpus"], held, strict=True))
    in_stretches = sum((row[2] - row[1]) * row[3] for row in stretches.rows())
    asked = sum(gpus * lasts_s for _, gpus, lasts_s in jobs)
    assert gpu_s == pytest.approx(asked, rel=1e-3, abs=10.0)
    assert in_stretches == pytest.approx(asked)
    assert all(mean <= peak + 0.01 for mean, peak in zip(found["draw_w"], found["peak_w"],
                                                         strict=True))  # fmt: skip
