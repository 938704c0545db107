"""Ranks: ties are called ties, and whoever was not through with a problem has no rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.experiments.leaderboard.ranking import TIE, overall, ranked


def places(scores: dict[str, float | None], *, lowest: bool = True) -> dict[str, str]:
    return {one.policy: one.place() for one in ranked(scores, lowest=lowest)}


def test_less_is_better_or_more_is() -> None:
    scores: dict[str, float | None] = {"a": 30.0, "b": 10.0, "c": 20.0}
    assert places(scores) == {"b": "1", "c": "2", "a": "3"}
    assert places(scores, lowest=False) == {"a": "1", "c": "2", "b": "3"}


def test_ties_are_called_ties_and_the_next_rank_counts_them() -> None:
    scores: dict[str, float | None] = {"z": 100.0, "a": 100.4, "m": 101.0, "n": 101.0, "q": 300.0}
    assert places(scores) == {"a": "=1", "z": "=1", "m": "=3", "n": "=3", "q": "5"}


def test_a_tie_is_with_the_first_of_its_group_and_not_handed_on() -> None:
    steps = {f"p{n}": 100.0 * (1 + 0.8 * TIE) ** n for n in range(4)}
    assert list(places(dict(steps)).values()) == ["=1", "=1", "=3", "=3"]


def test_no_score_no_rank() -> None:
    found = ranked({"a": None, "b": 1.0, "c": None}, lowest=True, why={"a": "raised"})
    assert [(one.policy, one.place(), one.why) for one in found] == [
        ("b", "1", ""), ("a", "–", "raised"), ("c", "–", ""),
    ]  # fmt: skip
    assert ranked({}, lowest=True) == []


def test_over_all_problems_ratios_count() -> None:
    hours: dict[str, float | None] = {"a": 100.0, "b": 110.0, "c": 50.0}
    seconds: dict[str, float | None] = {"a": 2.0, "b": 1.0, "c": None}
    found = {one.policy: one for one in overall([hours, seconds], lowest=True)}
    assert found["b"].score == pytest.approx((110 / 50) ** 0.5)
    assert found["a"].score == pytest.approx((100 / 50 * 2 / 1) ** 0.5)
    assert found["c"].place() == "–"
    assert found["c"].why == "ranked on 1 of 2 problems"


SCORES = st.dictionaries(
    st.text("abcdefg", min_size=1, max_size=3),
    st.one_of(st.none(), st.floats(0.1, 1e6)),
    max_size=9,
)


@given(SCORES, st.booleans())
def test_ranks_keep_what_ranks_are(scores: dict[str, float | None], lowest: bool) -> None:
    found = ranked(scores, lowest=lowest)
    assert sorted(one.policy for one in found) == sorted(scores)
    numbers = [one.rank for one in found if one.rank is not None]
    assert numbers == sorted(numbers)
    for one in found:
        assert one.tied == (numbers.count(one.rank or 0) > 1)
        if one.rank is not None:
            before = sum(other < one.rank for other in numbers)
            assert one.rank == before + 1
    backwards = dict(reversed(scores.items()))
    assert ranked(backwards, lowest=lowest) == found
    twice = overall([scores, scores], lowest=lowest)
    assert {one.policy for one in twice if one.rank is None} == {
        name for name, score in scores.items() if score is None
    }
    assert [one.policy for one in twice if one.rank == 1] or not numbers
