"""Phases of checkpoints: jobs that go on together save one after the other."""

from __future__ import annotations

import pytest

from wattherd.local.run_plan import checkpoint_phase


def closest(ids: list[str]) -> float:
    """The smallest distance of two phases on the circle, as a share of an even spread."""
    phases = sorted(checkpoint_phase(one) for one in ids)
    apart = [
        after - before for before, after in zip(phases, [*phases[1:], 1 + phases[0]], strict=True)
    ]
    return min(apart) * len(ids)


@pytest.mark.parametrize("first", [1, 17, 1000, 123_456])
@pytest.mark.parametrize("jobs", [2, 7, 64])
def test_jobs_in_a_row_are_spread_over_the_period(first: int, jobs: int) -> None:
    assert closest([f"j-{first + number}" for number in range(jobs)]) > 0.3


def test_tasks_of_an_array_are_spread_too() -> None:
    assert closest([f"a-3[{number}]" for number in range(16)]) > 0.2


def test_every_phase_is_in_its_period_and_stays() -> None:
    for job in ("j-1", "j-999999999999", "nameless", "a-1[0]"):
        assert 0 <= checkpoint_phase(job) < 1
        assert checkpoint_phase(job) == checkpoint_phase(job)
