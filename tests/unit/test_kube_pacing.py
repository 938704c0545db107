"""Rates and pauses, and what waits between two threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.kube.api.changes import Changes, Key, ObjectChange
from wattherd.kube.api.pacing import Backoff, TokenBucket


@given(
    rate_per_s=st.integers(1, 1000),
    burst=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 0.1), min_size=1, max_size=200),
)
def test_no_window_ever_carries_more_than_burst_and_rate(
    rate_per_s: int, burst: int, gaps_s: list[float]
) -> None:
    bucket = TokenBucket(rate_per_s, burst)
    went_s = []
    now_s = 100.0
    for gap_s in gaps_s:
        now_s += gap_s
        went_s.append(now_s + bucket.wait_s(now_s))
    assert went_s == sorted(went_s), "in the order of asking"
    for first in range(len(went_s)):
        for last in range(first, len(went_s)):
            span_s = went_s[last] - went_s[first]
            assert last - first + 1 <= burst + rate_per_s * span_s + 1e-6


def test_a_bucket_that_was_left_alone_is_full_and_no_more() -> None:
    bucket = TokenBucket(10, 3)
    assert [bucket.wait_s(50.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])
    assert [bucket.wait_s(99.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_pauses_double_up_to_a_bound_and_are_spread() -> None:
    pauses = Backoff(np.random.default_rng(1), first_s=1, most_s=8)
    drawn = [pauses.pause_s() for _ in range(100)]
    for step_s, pause_s in zip([1, 2, 4, *[8] * 97], drawn, strict=True):
        assert 0.5 * step_s <= pause_s <= 1.5 * step_s
    assert len(set(drawn)) == 100
    pauses.reset()
    assert pauses.pause_s() <= 1.5


def test_the_latest_state_of_each_object_waits_once() -> None:
    changes: Changes[str] = Changes()
    one, two = Key("u1", "ns", "a"), Key("u2", "ns", "a")
    changes.put(one, "young")
    changes.put(two, "other")
    changes.put(one, None)
    assert len(changes) == 2
    assert changes.take(0) == [ObjectChange(one, None), ObjectChange(two, "other")]
    assert changes.take(0) == []
    assert not changes.wait_complete(0)
    changes.mark_complete()
    assert changes.wait_complete(0)
