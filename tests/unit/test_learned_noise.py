"""What a step is worth at a width, by the gradient noise and the batch that a job tells."""

from __future__ import annotations

import math

import pytest

from wattherd.estimate.learned_noise import ALIKE_STEPS, LearnedNoise


def told(*words: tuple[int, float | None, float | None]) -> LearnedNoise:
    learned = LearnedNoise()
    for gpus, noise, batch in words:
        learned.heard("a", gpus, noise, batch)
    return learned


@pytest.mark.parametrize(
    "words",
    [(), [(1, None, 64.0)], [(1, 500.0, None)], [(1, math.nan, 64.0)], [(1, -3.0, 64.0)],
     [(1, 500.0, 0.0)], [(1, math.inf, math.inf)], [(1, 1e300, 64.0)]],
)  # fmt: skip
def test_who_tells_half_or_nonsense_has_steps_that_count_alike(words: list[object]) -> None:
    assert told(*words).worth("a", 4) == ALIKE_STEPS  # type: ignore[arg-type]


def test_a_batch_that_does_not_follow_the_width_makes_all_steps_alike() -> None:
    for words in ([(1, 500.0, 64.0)], [(1, 500.0, 64.0), (4, 500.0, 64.0)]):
        learned = told(*words)
        assert learned.worth("a", 1).share == learned.worth("a", 16).share


def test_twice_the_batch_far_below_the_noise_is_worth_twice_and_far_beyond_nothing() -> None:
    wide = told((1, 1e6, 64.0), (2, 1e6, 128.0))
    assert wide.worth("a", 2).share / wide.worth("a", 1).share == pytest.approx(2.0, rel=1e-3)
    quiet = told((1, 1.0, 64.0), (2, 1.0, 128.0))
    assert quiet.worth("a", 2).share / quiet.worth("a", 1).share == pytest.approx(1.0, rel=0.01)


def test_batches_at_other_widths_lie_between_those_seen_or_follow_the_width() -> None:
    learned = told((2, 100.0, 128.0), (4, 100.0, 256.0))
    assert [learned.worth("a", gpus).batch for gpus in (1, 3, 8)] == [64.0, 192.0, 512.0]


def test_noise_is_a_median_of_late_words_and_one_liar_moves_it_little() -> None:
    learned = told(*[(1, 100.0, 64.0)] * 9, (1, 1e11, 64.0))
    assert learned.worth("a", 1).noise == 100.0
    late = told(*[(1, 100.0, 64.0)] * 40, *[(1, 900.0, 64.0)] * 31)
    assert late.worth("a", 1).noise == 900.0


def test_jobs_that_are_over_are_forgotten_where_there_are_many() -> None:
    learned = LearnedNoise()
    for n in range(300):
        learned.heard(f"j{n}", 1, 10.0, 10.0)
        learned.forget({"j0"}, 1)
    assert learned.worth("j0", 1) != ALIKE_STEPS
    assert learned.worth("j5", 1) == ALIKE_STEPS
