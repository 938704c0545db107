"""Steps left, learned from jobs that are sound, that lie, and that break."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from wattherd.estimate.curve_judge import MOST_POINTS
from wattherd.estimate.learned_steps import (
    AT_ITS_END_S,
    MOST_MOVES,
    STALLED_S,
    LearnedSteps,
    LossHistory,
    StepsLeft,
    StepsSource,
)

TARGET = 0.5


def falling(step: float) -> float:
    """Reaches `TARGET` after 600 steps."""
    return 1.0 / (0.005 * step + 0.333) + 0.2


def trained(
    losses: Iterable[tuple[float, float]], *, gap_s: float = 5.0, total: float | None = None
) -> LearnedSteps:
    learned = LearnedSteps()
    for number, (step, loss) in enumerate(losses):
        learned.heard(
            "a", 1, step, number * gap_s, loss=loss, total=total, target_loss=TARGET
        )  # fmt: skip
    return learned


def curve(steps: Iterable[int]) -> list[tuple[float, float]]:
    return [(step, falling(step)) for step in steps]


def left(learned: LearnedSteps, at_s: float, *, runs: bool = True) -> StepsLeft | None:
    return learned.left("a", at_s, 0.0 if runs else None)


def test_a_sound_curve_tells_when_its_target_is_reached() -> None:
    found = left(trained(curve(range(10, 400, 10))), 195.0)
    assert found is not None
    assert found.source is StepsSource.CURVE
    assert found.steps == pytest.approx(600 - 390, rel=0.1)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param([(s, 0.5 + s / 100) for s in range(10, 400, 10)], id="losses that rise"),
        pytest.param([(s, math.nan) for s in range(10, 400, 10)], id="losses that are no number"),
        pytest.param([(s, -1.0 / s) for s in range(10, 400, 10)], id="losses below zero"),
        pytest.param([(s, math.inf) for s in range(10, 400, 10)], id="losses without an end"),
        pytest.param([(s, 2.0) for s in range(10, 400, 10)], id="losses that stay"),
        pytest.param(
            [(s, random.Random(s).uniform(0.6, 9.0)) for s in range(10, 400, 10)], id="noise"
        ),
        pytest.param([(5.0, 2.0)] * 60, id="a count that stays"),
        pytest.param(curve(range(10, 60, 10)), id="too few points"),
    ],
)
def test_an_unkind_curve_tells_nothing(losses: list[tuple[float, float]]) -> None:
    assert left(trained(losses), 1.0) is None


def test_some_losses_that_are_no_number_spoil_no_curve() -> None:
    points = curve(range(10, 400, 10))
    points[5:30:6] = [(step, math.nan) for step, _ in points[5:30:6]]
    found = left(trained(points), 195.0)
    assert found is not None
    assert found.steps == pytest.approx(210, rel=0.15)


def test_a_burst_of_reports_leaves_a_curve_as_even_as_others() -> None:
    history = LossHistory()
    for step in [*range(10, 300, 10), *(300 + 0.0002 * n for n in range(5000)), 310, 320]:
        history.add(step, falling(step))
    points = history.points()
    assert len(points) <= MOST_POINTS
    assert len([one for one in points if 295 <= one[0] <= 306]) <= 2
    for step, loss in points:
        assert loss == pytest.approx(falling(step), rel=0.01)


def test_what_comes_again_after_a_resume_takes_the_place_of_what_was() -> None:
    history = LossHistory()
    for step in [*range(1, 30), *range(20, 25)]:
        history.add(step, 100.0 if 20 <= step < 30 and len(history.points()) > 28 else 1.0)
    assert [step for step, _ in history.points()] == list(range(1, 25))


def test_a_total_is_believed() -> None:
    learned = LearnedSteps()
    learned.heard("a", 1, 30, 10.0, total=100)
    assert left(learned, 11.0) == (70, StepsSource.TOTAL)
    assert left(learned, 1e6, runs=False) == (70, StepsSource.TOTAL), "who waits is not stalled"


@pytest.mark.parametrize("total", [math.nan, math.inf, 0.0, -5.0, None])
def test_a_total_that_is_none_tells_nothing(total: float | None) -> None:
    learned = LearnedSteps()
    learned.heard("a", 1, 3, 10.0, total=total)
    assert left(learned, 11.0) is None


@pytest.mark.parametrize("progress", [math.nan, math.inf, -1.0])
def test_a_count_that_is_none_is_passed_over(progress: float) -> None:
    learned = LearnedSteps()
    learned.heard("a", 1, 40, 5.0, total=100)
    learned.heard("a", 1, progress, 10.0, total=100)
    assert left(learned, 11.0) == (60, StepsSource.TOTAL)


def test_a_total_that_runs_away_is_believed_no_more() -> None:
    learned = LearnedSteps()
    for n in range(1, MOST_MOVES + 3):
        learned.heard("a", 1, 10 * n, 5.0 * n, total=10 * n + 1)
    assert left(learned, 5.0 * n) is None
    learned.heard("a", 1, 10 * n + 5, 5.0 * n + 1, total=1000)
    assert left(learned, 5.0 * n + 1) is None, "its word is broken for good"


def test_a_run_that_goes_on_after_its_total_is_believed_no_more() -> None:
    learned = LearnedSteps()
    learned.heard("a", 1, 100, 50.0, total=100)
    assert left(learned, 50.0 + AT_ITS_END_S / 2) == (1, StepsSource.TOTAL), "its last checkpoint"
    assert left(learned, 50.0 + 1.1 * AT_ITS_END_S) is None
    learned.heard("a", 1, 101, 55.0 + AT_ITS_END_S, total=100)
    learned.heard("a", 2, 10, 300.0, total=100)
    assert left(learned, 301.0) is None, "also after a restart"


def test_a_count_that_swings_is_believed_no_more() -> None:
    learned = LearnedSteps()
    for n in range(20):
        learned.heard("a", 1, 99 if n % 2 else 90, 5.0 * n, total=100)
    assert left(learned, 100.0) is None


def test_a_count_from_a_checkpoint_breaks_no_word() -> None:
    learned = LearnedSteps()
    for attempt in range(1, 9):
        for step in range(5):
            learned.heard("a", attempt, 10 * attempt + step, 60.0 * attempt + step, total=100)
        learned.heard("a", attempt, 10 * attempt + 4, 60.0 * attempt + 9, total=100)
    assert left(learned, 500.0) == (16, StepsSource.TOTAL)


def test_a_run_without_progress_tells_nothing_until_it_moves() -> None:
    learned = LearnedSteps()
    for n in range(10):
        learned.heard("a", 1, n, 2.0 * n, total=100)
    assert left(learned, 20.0) is not None
    assert left(learned, 18.0 + 1.1 * STALLED_S) is None
    learned.heard("a", 1, 9, 18.0 + 1.1 * STALLED_S, total=100)
    assert left(learned, 18.0 + 1.2 * STALLED_S) is None, "it repeats itself"
    learned.heard("a", 1, 10, 18.0 + 1.2 * STALLED_S, total=100)
    assert left(learned, 18.0 + 1.3 * STALLED_S) is not None


def test_slow_reporters_are_not_stalled() -> None:
    learned = LearnedSteps()
    for n in range(5):
        learned.heard("a", 1, n, 100.0 * n, total=50)
    assert left(learned, 400.0 + 3 * STALLED_S) == (46, StepsSource.TOTAL)


def test_the_earlier_of_two_ends_counts() -> None:
    assert left(trained(curve(range(10, 400, 10)), total=430), 195.0) == (40, StepsSource.TOTAL)
    found = left(trained(curve(range(10, 400, 10)), total=5000), 195.0)
    assert found is not None
    assert found.source is StepsSource.CURVE


def test_jobs_that_are_over_are_forgotten_where_there_are_many() -> None:
    learned = LearnedSteps()
    for n in range(300):
        learned.heard(f"j{n}", 1, 1, 1.0, total=10)
    learned.forget({"j7"}, 1)
    assert learned.left("j7", 1.0, 0.0) is not None
    assert learned.left("j8", 1.0, 0.0) is None
