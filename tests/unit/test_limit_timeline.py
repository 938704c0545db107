"""Limits merged into a timeline, and events that come, change and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.power.limit_timeline import (
    FOREVER,
    EventBook,
    LimitEvent,
    LimitPeriod,
    OptState,
    merged,
)
from wattherd.errors import UserError

BASE = LimitPeriod(0.0, FOREVER, 100.0, "base")


def steps(*spans: LimitPeriod, now_s: float = 0.0) -> list[tuple[float, float, str]]:
    return [(one.start_s, one.limit_w, one.source) for one in merged(BASE, spans, now_s).spans]


@pytest.mark.parametrize(
    ("story", "spans", "expected"),
    [
        ("nothing asked", [], [(0, 100, "base")]),
        ("one event to come", [LimitPeriod(10, 20, 70, "a")],
         [(0, 100, "base"), (10, 70, "a"), (20, 100, "base")]),
        ("two overlap, the lower counts",
         [LimitPeriod(10, 30, 70, "a"), LimitPeriod(20, 40, 80, "b")],
         [(0, 100, "base"), (10, 70, "a"), (30, 80, "b"), (40, 100, "base")]),
        ("one within the other", [LimitPeriod(10, 40, 70, "a"), LimitPeriod(20, 30, 50, "b")],
         [(0, 100, "base"), (10, 70, "a"), (20, 50, "b"), (30, 70, "a"), (40, 100, "base")]),
        ("above the base nothing changes", [LimitPeriod(10, 20, 170, "a")], [(0, 100, "base")]),
        ("adjacent and equal is one", [LimitPeriod(10, 20, 70, "a"), LimitPeriod(20, 30, 70, "a")],
         [(0, 100, "base"), (10, 70, "a"), (30, 100, "base")]),
        ("begun before now", [LimitPeriod(-5, 20, 70, "a")], [(0, 70, "a"), (20, 100, "base")]),
        ("over before now", [LimitPeriod(-9, -5, 70, "a")], [(0, 100, "base")]),
    ],
)  # fmt: skip
def test_spans_are_merged(story: str, spans: list[LimitPeriod], expected: list[tuple]) -> None:
    assert steps(*spans) == expected, story


SPANS = st.lists(
    st.builds(
        lambda start, length, limit: LimitPeriod(start, start + length, limit, "x"),
        st.integers(0, 50), st.integers(1, 30), st.floats(0, 150),
    ),
    max_size=8,
)  # fmt: skip


@given(spans=SPANS, now_s=st.integers(0, 40), at_s=st.integers(0, 100))
def test_at_any_time_the_lowest_of_all_counts(
    spans: list[LimitPeriod], now_s: int, at_s: int
) -> None:
    timeline = merged(BASE, spans, now_s)
    at_s = max(at_s, now_s)
    assert timeline.at(at_s).limit_w == min([100.0, *(s.limit_w for s in spans if s.holds(at_s))])
    ends = [one.end_s for one in timeline.spans]
    assert [one.start_s for one in timeline.spans] == [now_s, *ends[:-1]]
    assert ends[-1] == FOREVER


@given(spans=SPANS, from_s=st.integers(0, 60), length=st.integers(0, 30))
def test_the_lowest_of_a_stretch_is_the_least_of_its_moments(
    spans: list[LimitPeriod], from_s: int, length: int
) -> None:
    timeline = merged(BASE, spans, 0.0)
    moments = [timeline.at(at).limit_w for at in range(from_s, from_s + length + 1)]
    assert timeline.lowest_w(from_s, from_s + length) == min(moments)


@pytest.mark.parametrize("span", [(5, 5, 1.0), (5, 4, 1.0), (0, 1, -1.0), (0, 1, float("nan"))])
def test_spans_that_cannot_be_kept_are_refused(span: tuple) -> None:
    with pytest.raises(UserError):
        LimitPeriod(*span)


def an_event(limit_w: float = 70.0, revision: int = 0, **more: object) -> LimitEvent:
    return LimitEvent(
        event_id="e", revision=revision, spans=(LimitPeriod(10, 20, limit_w),), **more
    )


def test_a_higher_revision_replaces_an_event_and_a_lower_one_is_old_news() -> None:
    book = EventBook()
    for revision, limit_w in ((1, 70.0), (3, 60.0), (2, 10.0)):
        assert book.take(an_event(limit_w, revision)) is OptState.IN
    assert [span.limit_w for span in book.spans()] == [60.0]


def test_a_cancelled_event_asks_for_nothing() -> None:
    book = EventBook()
    book.take(an_event())
    book.take(an_event(revision=1, cancelled=True))
    assert book.spans() == ()


def test_an_event_beyond_what_is_possible_is_declined_as_a_whole() -> None:
    book = EventBook(least_w=50.0)
    deep = LimitEvent(event_id="d", spans=(LimitPeriod(0, 5, 80.0), LimitPeriod(5, 9, 49.0)))
    assert book.take(deep) is OptState.OUT
    assert "49 W" in book.problem(deep)
    assert book.spans() == ()
    assert book.take(an_event(50.0)) is OptState.IN


def test_a_complete_list_cancels_what_it_leaves_out_and_time_what_is_over() -> None:
    book = EventBook()
    book.take(an_event())
    book.take(LimitEvent(event_id="f", spans=(LimitPeriod(10, 30, 1.0),)))
    book.forget(20.0)
    assert set(book.events) == {"f"}
    book.take(LimitEvent(event_id="g", spans=(LimitPeriod(10, 30, 1.0),)))
    book.only(["g"])
    assert set(book.events) == {"g"}
