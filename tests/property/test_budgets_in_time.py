"""What is stated and announced, against a list of all that was said, in the order it was said in.

The list knows no books: each question is answered from its first line on. Times are whole seconds,
so that "at this very second" comes up often.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.power.budgets import STEP_S, BudgetFall, Budgets, CapRules

DOMAINS = ("", "row")
SOURCES = ("", "grid", "plan")
END_S = 12
WATTS = st.sampled_from([None, 50.0, 60.0, 60.0, 80.0, 100.0])


class Said(NamedTuple):
    """A budget from now on (`begins_s` is None), or from a second on."""

    at_s: float
    begins_s: float | None
    domain: str
    source: str
    budget_w: float | None


SAYINGS = st.lists(
    st.builds(
        Said,
        at_s=st.sampled_from([0.0, 2.0, 4.0, 6.0]),
        begins_s=st.none() | st.sampled_from([2.0, 4.0, 6.0, 9.0, 9.0, 12.0]),
        domain=st.sampled_from(DOMAINS),
        source=st.sampled_from(SOURCES),
        budget_w=WATTS,
    ),
    max_size=12,
).map(lambda said: sorted(said, key=lambda one: one.at_s))
RULES = st.builds(
    CapRules, ahead_s=st.sampled_from([0.0, 4.0]), refuse_s=st.sampled_from([0.0, 7.0])
)


def grace_s(fall: BudgetFall) -> float:
    """Deep falls need notice, as where jobs must stop for them."""
    return 3.0 if fall.budget_w < 55.0 else 0.0


def told(said: list[Said], rules: CapRules) -> Budgets:
    budgets = Budgets(CapRules(refuse_s=99.0), ("",))
    budgets.go_by(rules)
    for one in said:
        if one.begins_s is None:
            budgets.change(one.domain, one.budget_w, one.at_s, one.source)
        else:
            budgets.announce(one.domain, one.begins_s, one.budget_w, one.source)
    return budgets


def stated(said: list[Said], domain: str, source: str) -> float | None:
    """What a source said last that a domain may draw."""
    words = [one for one in said if (one.domain, one.source) == (domain, source)]
    words = [one for one in words if one.begins_s is None]
    return words[-1].budget_w if words else None


def known(said: list[Said]) -> list[BudgetFall]:
    """What is still announced: the last word on each second, where nothing has come of it since."""
    last: dict[tuple[str, str, float], float | None] = {}
    for one in said:
        if one.begins_s is not None:
            last[one.domain, one.source, one.begins_s] = one.budget_w
            continue
        for key in last:
            if key[:2] == (one.domain, one.source) and key[2] <= one.at_s:
                last[key] = None
    return [BudgetFall(at_s, w, name, by) for (name, by, at_s), w in last.items() if w is not None]


def lowest(watts: list[float | None]) -> float | None:
    return min((one for one in watts if one is not None), default=None)


def stated_of(said: list[Said], domain: str) -> float | None:
    return lowest([stated(said, domain, source) for source in SOURCES])


@settings(max_examples=times(300), deadline=None)
@given(said=SAYINGS, rules=RULES, passed_s=st.integers(0, 4))
def test_what_holds_is_the_lowest_that_anybody_said(
    said: list[Said], rules: CapRules, passed_s: int
) -> None:
    budgets, falls = told(said, rules), known(said)
    now_s = (said[-1].at_s if said else 0.0) + passed_s
    assert sorted(budgets.announced, key=str) == sorted(falls, key=str)
    assert [one.begins_s for one in budgets.announced] == sorted(one.begins_s for one in falls)
    assert {one.begins_s for one in budgets.due(now_s)} == {
        one.begins_s for one in falls if one.begins_s <= now_s
    }
    assert set(budgets.coming) == {one.domain for one in falls}
    assert budgets.pending == bool(falls)
    for domain in DOMAINS:
        mine = [one for one in falls if one.domain == domain]
        assert budgets.stated_w.get(domain) == stated_of(said, domain)
        met = [one for one in mine if now_s >= one.begins_s - rules.ahead_s - grace_s(one)]
        assert budgets.held_w(domain, now_s, grace_s) == lowest(
            [stated_of(said, domain), *(one.budget_w for one in met)]
        )
        soon = [one.budget_w for one in mine if one.begins_s - now_s <= rules.refuse_s]
        nearest = budgets.soon(domain, now_s)
        assert (nearest.budget_w if nearest else None) == lowest([*soon])


@settings(max_examples=times(300), deadline=None)
@given(said=SAYINGS, rules=RULES, passed_s=st.integers(0, 4))
def test_who_looks_again_when_asked_to_misses_nothing(
    said: list[Said], rules: CapRules, passed_s: int
) -> None:
    """Between now and the next look nothing changes; after the last look nothing ever does."""
    budgets = told(said, rules)
    now_s = (said[-1].at_s if said else 0.0) + passed_s

    def seen(at_s: float) -> list[object]:
        held: list[object] = [budgets.held_w(domain, at_s, grace_s) for domain in DOMAINS]
        return held + [budgets.soon(domain, at_s) for domain in DOMAINS]

    next_s = budgets.next_s(now_s, 1000.0, grace_s)
    assert next_s is None or next_s > now_s
    until_s = now_s + 2 * END_S if next_s is None else next_s
    half_seconds = range(int(2 * now_s), int(2 * until_s))
    assert all(seen(one / 2) == seen(now_s) for one in half_seconds)
    falls = known(said)
    looks = {one.begins_s - rules.ahead_s - grace_s(one) for one in falls}
    looks |= {one.begins_s - rules.refuse_s for one in falls}
    assert next_s is None or next_s in looks, "nothing is to be seen then"


@settings(max_examples=times(300), deadline=None)
@given(said=SAYINGS, passed_s=st.integers(0, 4))
def test_the_outlook_is_what_everybody_would_have_said_by_then(
    said: list[Said], passed_s: int
) -> None:
    now_s = (said[-1].at_s if said else 0.0) + passed_s
    falls = sorted(known(said), key=lambda one: one.begins_s)
    levels = {}
    for fall in falls:
        come = [
            Said(one.begins_s, None, one.domain, one.source, one.budget_w)
            for one in falls
            if one.begins_s <= fall.begins_s
        ]
        levels[fall.begins_s] = {name: stated_of([*said, *come], name) for name in DOMAINS}
    found = told(said, CapRules()).outlook(now_s)
    assert [at_s for at_s, _ in found] == sorted(one for one in levels if one > now_s)
    for at_s, level in found:
        assert {name: level.get(name) for name in DOMAINS} == levels[at_s]


@settings(max_examples=times(200), deadline=None)
@given(said=SAYINGS)
def test_only_what_its_own_source_announced_is_no_surprise(said: list[Said]) -> None:
    budgets, surprised = Budgets(CapRules(), ("",)), {}
    for at, one in enumerate(said):
        before = known(said[:at])
        if one.begins_s is not None:
            budgets.announce(one.domain, one.begins_s, one.budget_w, one.source)
            continue
        budgets.change(one.domain, one.budget_w, one.at_s, one.source)
        mine = [fall for fall in before if (fall.domain, fall.source) == (one.domain, one.source)]
        if not any(fall.budget_w == one.budget_w and fall.begins_s <= one.at_s for fall in mine):
            surprised[one.domain] = one.at_s
    assert budgets.surprised_s == surprised


@settings(max_examples=times(100), deadline=None)
@given(
    rate_w_s=st.sampled_from([2.0, 5.0, 12.5]),
    ahead_s=st.sampled_from([0.0, 3.0]),
    drawn_w=st.sampled_from([70.0, 95.0, 100.0, 140.0]),
    falls=st.dictionaries(st.integers(60, 90), st.sampled_from([40.0, 55.0, 80.0]), max_size=3),
)
def test_a_ramp_is_walked_down_by_no_more_than_a_step_a_look(
    rate_w_s: float, ahead_s: float, drawn_w: float, falls: dict[int, float]
) -> None:
    """Who draws what he may and looks when asked to is at the fall in time, without a jump."""
    budgets = Budgets(CapRules(ahead_s=ahead_s, ramp_down_w_s=rate_w_s), ("",))
    budgets.change("", 100.0, 0.0)
    for begins_s, budget_w in falls.items():
        budgets.announce("", float(begins_s), budget_w)
        budgets.announce("row", float(begins_s), budget_w)
    now_s, looks = 0.0, 0
    first_w = left_w = min(drawn_w, 100.0)
    while (next_s := budgets.next_s(now_s, drawn_w, lambda _: 0.0)) is not None:
        now_s, looks = next_s, looks + 1
        held_w = budgets.held_w("", now_s, lambda _: 0.0)
        come = [watts for at_s, watts in falls.items() if at_s - ahead_s <= now_s]
        assert held_w is not None
        assert held_w <= min(come, default=100.0), "late"
        assert left_w - held_w <= rate_w_s * STEP_S * (1 + 1e-9), "in a jump"
        assert budgets.held_w("row", now_s, lambda _: 0.0) == lowest([*come]), "the site's alone"
        drawn_w = left_w = min(left_w, held_w)
    assert looks <= (first_w - left_w) / rate_w_s / STEP_S + 4 * len(falls) + 2
    assert all(now_s >= begins_s - ahead_s for begins_s in falls)


def test_a_budget_that_is_lifted_was_announced_by_nobody() -> None:
    budgets = Budgets(CapRules(), ("",))
    budgets.begin("", 100.0)
    assert budgets.surprised_s == {}
    budgets.announce("", 5.0, 80.0)
    budgets.change("", None, 6.0)
    assert budgets.surprised_s == {"": 6.0}
    assert budgets.announced == []
    assert budgets.next_s(6.0, 10.0, lambda _: 0.0) is None


@pytest.mark.parametrize("stated_w", [None, 71.0, 100.0])
@pytest.mark.parametrize("drawn_w", [71.0, 140.0])
def test_the_first_look_is_when_the_ramp_begins_to_bind(
    stated_w: float | None, drawn_w: float
) -> None:
    """Nothing above what is drawn, or may be drawn, has to be walked down."""
    budgets = Budgets(CapRules(ramp_down_w_s=4.0), ("",))
    budgets.begin("", stated_w)
    budgets.announce("", 600.0, 60.0)
    top_w = min(drawn_w, stated_w or 1000.0)
    first_s = budgets.next_s(0.0, drawn_w, lambda _: 0.0)
    assert first_s == 600.0 - (top_w - 60.0) / 4.0
    assert budgets.held_w("", first_s, lambda _: 0.0) == top_w
    assert budgets.next_s(first_s, top_w, lambda _: 0.0) == first_s + STEP_S
    other = Budgets(CapRules(ramp_down_w_s=4.0), ("",))
    other.announce("row", 600.0, 60.0)
    assert other.next_s(0.0, drawn_w, lambda _: 0.0) == 600.0, "the ramp is the site's"


def test_falls_of_one_second_are_one_step_of_the_outlook() -> None:
    budgets = Budgets(CapRules(), ("",))
    for domain, budget_w, source in (("", 60.0, "grid"), ("row", 50.0, ""), ("", 80.0, "")):
        budgets.announce(domain, 10.0, budget_w, source)
    budgets.announce("", 20.0, 40.0)
    budgets.announce("row", 20.0, 45.0)
    first, second = {"": 60.0, "row": 50.0}, {"": 40.0, "row": 45.0}
    assert budgets.outlook(9.0) == [(10.0, first), (20.0, second)]
    assert budgets.outlook(10.0) == [(20.0, second)]
    assert budgets.outlook(20.0) == []


def test_what_comes_at_the_second_it_was_announced_for_is_no_surprise() -> None:
    budgets = Budgets(CapRules(), ("",))
    budgets.announce("", 10.0, 60.0)
    budgets.change("", 60.0, 10.0)
    assert (budgets.surprised_s, budgets.announced) == ({}, [])


@pytest.mark.parametrize("early_s", [0.0, 2.5])
def test_a_fall_is_met_at_its_very_second_and_not_before(early_s: float) -> None:
    budgets = Budgets(CapRules(ahead_s=early_s), ("",))
    budgets.begin("", 100.0)
    budgets.announce("", 20.0, 80.0)
    last_s = 20.0 - early_s
    assert budgets.next_s(0.0, 50.0, lambda _: 0.0) == last_s
    assert budgets.held_w("", last_s - 1e-6, lambda _: 0.0) == 100.0
    assert budgets.held_w("", last_s, lambda _: 0.0) == 80.0
