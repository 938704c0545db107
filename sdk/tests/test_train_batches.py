"""The size of micro-batches changes nothing but the rounding of sums."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_runs import RunDir
from wattherd_train import BatchPlan, current

sizes = st.integers(1, 40)


@given(
    batch=st.integers(8, 64), width=st.integers(1, 8), micro=sizes, wanted=st.none() | sizes,
    data=st.data(),
)  # fmt: skip
def test_gradients_add_up_to_the_global_batch(batch, width, micro, wanted, data) -> None:
    """The mean over ranks of weighted micro-batch means is the mean over the global batch."""
    samples = data.draw(st.lists(st.integers(-99, 99), min_size=batch, max_size=batch))
    over_ranks, used, first = Fraction(0), [], 0
    for rank in range(width):
        plan = BatchPlan(batch, micro, rank=rank, size=width, wanted=lambda: wanted)
        mine = samples[first : first + plan.share]
        first += plan.share
        parts = list(plan.split(mine))
        assert len(parts) == plan.accumulation
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert all(part.size <= min(micro, wanted or micro) for part in parts)
        for part in parts:
            used += part.items
            weight = Fraction(part.weight).limit_denominator(10_000)
            over_ranks += weight * Fraction(sum(part.items), part.size) / width
    assert used == samples
    assert over_ranks == Fraction(sum(samples), batch)


def test_the_scheduler_may_lower_what_is_in_memory_but_not_raise_it(run: RunDir) -> None:
    plan = current(run.environ()).batches(global_batch=64, micro_batch=16)
    assert (plan.micro_batch, plan.accumulation) == (16, 4)
    run.want(micro_batch=5)
    assert [part.size for part in plan.split(list(range(64)))] == [5] * 12 + [4]
    run.want(micro_batch=32)
    assert plan.micro_batch == 16
    for nonsense in (0, -3, "x", None, True, [4]):
        run.want(micro_batch=nonsense)
        assert plan.micro_batch == 16


def test_a_step_keeps_the_size_it_was_begun_with(run: RunDir) -> None:
    plan = current(run.environ()).batches(global_batch=12)
    parts = plan.split(list(range(12)))
    run.want(micro_batch=3)
    assert next(parts).size == 3
    run.want(micro_batch=6)
    assert [part.size for part in parts] == [3, 3, 3]


def test_columns_are_cut_alike() -> None:
    plan = BatchPlan(4, 3)
    first, second = plan.split(([1, 2, 3, 4], {"y": "abcd"}))
    assert (first.items, second.items) == (([1, 2, 3], {"y": "abc"}), ([4], {"y": "d"}))
    assert (first.weight, second.weight) == (0.75, 0.25)


def test_a_short_step_is_weighed_by_what_it_has() -> None:
    plan = BatchPlan(8, 2)
    assert [part.weight for part in plan.split([1, 2, 3])] == [2 / 3, 1 / 3]
    of_two = BatchPlan(8, 2, rank=1, size=2)
    assert [part.weight for part in of_two.split([1, 2], total=5)] == [2 * 2 / 5]


@pytest.mark.parametrize(("batch", "micro"), [(1, None), (8, 0), (8, -1)])
def test_nothing_to_train_on_is_refused(batch, micro) -> None:
    with pytest.raises(ValueError, match=r"too small|at least 1"):
        BatchPlan(batch, micro, size=2)
