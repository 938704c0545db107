"""Power domains and budgets as a tree and limits: whatever is written, something can be held."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import fleet_of

from wattherd.devices.wire.clock import Clock
from wattherd.errors import UserError
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.changes import Key, ObjectChange
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import SITE
from wattherd.kube.facts.power_kinds import PowerBudget, PowerBudgetSpec, PowerDomain
from wattherd.kube.facts.power_plan import (
    AHEAD_S,
    SILENT_S,
    PlanVerdict,
    PowerPlan,
    Stated,
    Timetable,
    Word,
)
from wattherd.kube.live.power_objects import PowerWatch
from wattherd.server.kube.budgets import open_timetable

NOON_S = 1_795_262_400.0
"""2026-11-21 12:00 UTC."""
NAMES = st.sampled_from("abcde")
_DOMAIN, _BUDGET = decoder(PowerDomain), decoder(PowerBudget)


class At:
    """A clock that stands still until it is put on."""

    def __init__(self) -> None:
        self.now_s = NOON_S

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, lambda: self.now_s, lambda _: None)


class Silent:
    """A signal that has not said anything yet, and has a level for that."""

    def stated(self) -> Stated:
        return Stated(2000.0, verdict=PlanVerdict(Word.SIGNAL_WAITING, "nothing heard yet"))

    def close(self) -> None:
        """Nothing is open."""


def a_plan(at: At | None = None, **stated_mw: int) -> PowerPlan:
    clock = (at or At()).clock

    def opened(spec: PowerBudgetSpec, limit_w: float | None) -> Timetable:
        return open_timetable(spec, limit_w, clock)

    return PowerPlan(opened, stated_mw)


def domain(plan: PowerPlan, name: str, **spec: Any) -> None:
    text = json.dumps({"metadata": {"name": name, "uid": name}, "spec": spec})
    plan.domain_seen(name, _DOMAIN.decode(text))


def budget(plan: PowerPlan, name: str, *, told_w: float | None = None, **spec: Any) -> None:
    status = {} if told_w is None else {"watts": told_w}
    text = json.dumps({"metadata": {"name": name}, "spec": spec, "status": status})
    plan.budget_seen(name, _BUDGET.decode(text))


@given(st.lists(st.tuples(NAMES, st.none() | NAMES, st.integers(1, 9)), max_size=12))
def test_there_is_always_a_tree_and_every_limit_counts(
    news: list[tuple[str, str | None, int]],
) -> None:
    """Domains come, change and go in any order; parents are missing, or make circles."""
    plan, limits = a_plan(), dict[str, int]()
    for name, parent, limit in news:
        if limit == 9:
            plan.domain_seen(name, None)
            limits.pop(name, None)
        else:
            domain(plan, name, limit=f"{limit}W", **({"parent": parent} if parent else {}))
            limits[name] = limit
        state = plan.state(NOON_S)
        assert state.budgets_mw == {name: 1000 * watts for name, watts in limits.items()}
        assert set(state.tree.branches) == set(limits) == set(state.domains)
        for one in limits:
            above = state.tree.path(one)
            assert above[-1] == SITE
            assert len(set(above)) == len(above) <= len(limits) + 1


def test_a_domain_that_loses_its_parent_stays_where_it_was_and_says_so() -> None:
    plan = a_plan()
    for name, spec in (("hall", {}), ("row", {"parent": "hall"}), ("rack", {"parent": "row"})):
        domain(plan, name, **spec)
    assert plan.state(NOON_S).tree.path("rack") == ("rack", "row", "hall", SITE)
    domain(plan, "rack", parent="rwo")
    state = plan.state(NOON_S)
    assert state.tree.path("rack") == ("rack", "row", "hall", SITE)
    assert state.domains["rack"].word is Word.UNKNOWN_PARENT
    assert "stays below row" in state.domains["rack"].text
    plan.domain_seen("row", None)
    assert plan.state(NOON_S).tree.path("rack") == ("rack", SITE)


def test_a_circle_keeps_what_was_before_it() -> None:
    plan = a_plan()
    domain(plan, "hall")
    domain(plan, "row", parent="hall")
    plan.state(NOON_S)
    domain(plan, "hall", parent="row")
    state = plan.state(NOON_S)
    assert state.tree.path("row") == ("row", "hall", SITE)
    assert {one.word for one in state.domains.values()} == {Word.CYCLE}
    assert "hall < row < hall" in state.domains["hall"].text


def test_nodes_are_fed_by_the_deepest_domain_that_selects_them() -> None:
    plan = a_plan()
    domain(plan, "hall", nodeSelector={"matchLabels": {"hall": "1"}})
    domain(plan, "rack", parent="hall", nodeSelector={
        "matchExpressions": [{"key": "rack", "operator": "In", "values": ["7", "8"]}]})  # fmt: skip
    tree = plan.state(NOON_S).tree
    assert tree.feeder({"hall": "1"}) == "hall"
    assert tree.feeder({"hall": "1", "rack": "8"}) == "rack"
    assert tree.feeder({"rack": "9"}) == SITE
    assert tree.feeder({"wattherd.dev/power-domain": "rack"}) == "rack"


def test_the_lowest_of_several_limits_counts() -> None:
    plan = a_plan(hall=9_000_000)
    domain(plan, "hall", limit="10kW")
    assert plan.state(NOON_S).budgets_mw == {"hall": 9_000_000}
    budget(plan, "b", domain="hall", constant="80%")
    assert plan.state(NOON_S).budgets_mw == {"hall": 8_000_000}
    budget(plan, "c", domain="hall", constant="8.5kW")
    budget(plan, "b", domain="hall", constant="95%")
    assert plan.state(NOON_S).budgets_mw == {"hall": 8_500_000}


def test_shares_follow_the_limit_that_they_are_of() -> None:
    plan = a_plan()
    budget(plan, "b", domain="hall", constant="50%")
    state = plan.state(NOON_S)
    assert state.budgets["b"].word is Word.UNKNOWN_DOMAIN
    plan.fed = frozenset({"hall"})
    assert plan.state(NOON_S).budgets["b"].word is Word.INVALID
    domain(plan, "hall", limit="10kW")
    assert plan.state(NOON_S).budgets_mw == {"hall": 5_000_000}
    domain(plan, "hall", limit="6kW")
    state = plan.state(NOON_S)
    assert state.budgets_mw == {"hall": 3_000_000}
    assert state.budgets["b"].ready


def test_what_makes_no_sense_leaves_what_was_said_before_in_force() -> None:
    plan = a_plan()
    domain(plan, "hall")
    budget(plan, "b", domain="hall", constant="5kW")
    plan.state(NOON_S)
    rows = [{"at": "18:00", "limit": "1kW"}, {"at": "12:00"}]
    budget(plan, "b", domain="hall", schedule={"rows": rows})
    state = plan.state(NOON_S)
    assert state.budgets_mw == {"hall": 5_000_000}
    assert state.budgets["b"].word is Word.INVALID
    assert "not after the row before" in state.budgets["b"].text


def test_after_a_restart_a_signal_that_is_silent_counts_as_it_was_told_last() -> None:
    plan = PowerPlan(lambda spec, limit_w: Silent())
    domain(plan, "hall", limit="10kW")
    address = {"address": "https://grid.example/limits?safe=2kW"}
    budget(plan, "b", domain="hall", signal=address, told_w=4000.0)
    state = plan.state(NOON_S)
    assert state.budgets_mw == {"hall": 4_000_000}
    assert state.budgets["b"].word is Word.SIGNAL_WAITING


@pytest.mark.parametrize(("told_w", "first_w"), [(None, None), (4000.0, 4000.0), (1000.0, 1000.0)])
def test_a_signal_that_stays_silent_counts_no_more_than_its_safe_level(
    told_w: float | None, first_w: float | None
) -> None:
    plan = PowerPlan(lambda spec, limit_w: Silent())
    domain(plan, "hall")
    budget(plan, "b", domain="hall", signal={"address": "https://grid.example/"}, told_w=told_w)
    assert plan.state(NOON_S).said["b"].now_w == first_w
    assert plan.state(NOON_S + SILENT_S - 1).said["b"].now_w == first_w
    later = plan.state(NOON_S + SILENT_S).said["b"]
    assert (later.now_w, later.verdict.word) == (
        min(2000.0, first_w or 2000.0),
        Word.SIGNAL_WAITING,
    )


def test_a_budget_of_nothing_that_is_there_says_so() -> None:
    plan = a_plan()
    budget(plan, "b", domain="hal", constant="5kW")
    assert plan.state(NOON_S).budgets["b"].word is Word.UNKNOWN_DOMAIN
    plan.fed = frozenset({"hal"})
    assert plan.state(NOON_S).budgets["b"].ready


@pytest.mark.parametrize("constant", ["5kW", "75%"])
def test_a_budget_of_a_missing_domain_is_told_that_whatever_it_says(constant: str) -> None:
    plan = a_plan()
    budget(plan, "b", domain="hal", constant=constant)
    told = plan.state(NOON_S).budgets["b"]
    assert (told.word, told.text) == (
        Word.UNKNOWN_DOMAIN,
        "no PowerDomain, and no node, is called 'hal'",
    )
    plan.fed = frozenset({"hal"})
    assert plan.state(NOON_S).budgets["b"].word is not Word.UNKNOWN_DOMAIN


def test_a_schedule_is_kept_ahead_of_a_fall_and_told_as_the_next_step() -> None:
    at = At()
    plan = a_plan(at)
    domain(plan, "hall", limit="10kW")
    rows = [{"at": "6:00", "limit": "90%"}, {"at": "18:00", "limit": "4 kW", "until": "21:00"}]
    budget(plan, "b", domain="hall", schedule={"rows": rows})
    state = plan.state(at.now_s)
    assert state.budgets_mw == {"hall": 9_000_000}
    six_s = NOON_S + 6 * 3600
    assert state.steps == {"hall": (six_s, 4000.0)}
    at.now_s = six_s - AHEAD_S
    assert plan.state(at.now_s).budgets_mw == {"hall": 4_000_000}
    assert plan.state(at.now_s).said["b"].now_w == 9000.0
    at.now_s = six_s + 3 * 3600
    state = plan.state(at.now_s)
    assert state.budgets_mw == {"hall": 10_000_000}
    assert state.said["b"] == Stated(None, NOON_S + 18 * 3600, 9000.0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"schedule": {"rows": [{"at": "18:00"}], "timeZone": "Mars"}}, "no time zone 'Mars'"),
        ({"signal": {"address": "https://h/l?credentials=/srv/key"}}, "is not below"),
        ({"signal": {"address": "https://h/l?credentials=/etc/wattherd/../shadow"}}, "not below"),
        ({"signal": {"address": "https://h/l?safe=60%25"}}, "is a share of a limit"),
        ({"constant": "60%"}, "60% is a share of a limit"),
    ],
    ids=["zone", "file", "way out", "share of a signal", "share"],
)
def test_what_cannot_be_meant_is_refused(spec: dict[str, Any], said: str) -> None:
    read = decoder(PowerBudget).decode(json.dumps({"spec": {"domain": "d", **spec}}))
    with pytest.raises(UserError, match=said):
        open_timetable(read.spec, None)


def test_what_domains_might_draw_when_budgets_could_be_read_bounds_them_while_they_cannot() -> None:
    plan = a_plan()
    domain(plan, "hall", limit="10kW")
    plan.last_w = {"hall": 4000.0}
    assert plan.state(NOON_S).budgets_mw == {"hall": 4_000_000}
    plan.last_w = {}
    assert plan.state(NOON_S).budgets_mw == {"hall": 10_000_000}


@pytest.mark.parametrize("first", ["domain", "kind"])
def test_who_begins_without_the_kind_of_budgets_never_takes_a_domains_own_limit(first: str) -> None:
    """Heard in either order, before anything is planned: what the domain was told last holds."""
    scheduler = KubeScheduler(fleet_of("first-fit"))
    feed: Any = SimpleNamespace(note=lambda *_: None)
    watch = PowerWatch(feed, a_plan(), scheduler, lambda: False)
    meta = {"name": "hall", "uid": "u", "generation": 1}
    status = {"observedGeneration": 1, "budgetWatts": 160.0}
    text = {"metadata": meta, "spec": {"limit": "280W"}, "status": status}
    hall = _DOMAIN.decode(json.dumps(text).encode())
    steps = {
        "domain": lambda: watch._hear_domains([ObjectChange(Key("u", "", "hall"), hall)]),
        "kind": lambda: watch._hear_budgets_served(served=False),
    }
    for step in sorted(steps, key=lambda name: name != first):
        steps[step]()
    assert scheduler.domains.budgets_mw == {"hall": 160_000}
