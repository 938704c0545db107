"""The account of watts, question by question, with numbers that can be worked out by hand.

Two T4 (10 W idle, 60 to 70 W) in each of n0 to n2, two V100 (30 W idle, 150 to 300 W) in n3. n0
hangs on a rack, the rack and n1 on a row, the row, n2 and n3 on the site. A watt at a node of the
row is 2 W at the input of the row and 2.5 W at that of the site, elsewhere it is 1.25 W there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.engine.power.budgets import BudgetFall, Ramps
from wattherd.estimate.power_curve import prior
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.simple import Pause
from wattherd.policy.power.water_filling import WaterFilling

CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=64_000, memory_mib=64_000, gpu_count=2, gpu_model=model,
                 idle_w=idle_w)
        for name, model, idle_w in (
            ("n0", "T4", 4.0), ("n1", "T4", 0.0), ("n2", "T4", 0.0), ("n3", "V100M16", 0.0)
        )
    )
)  # fmt: skip
TREE = PowerTree(
    (
        TreeDomain(name="site", loss=0.2, budget_w=None, nodes=("n2", "n3")),
        TreeDomain(name="row", parent="site", loss=0.5, nodes=("n1",)),
        TreeDomain(name="rack", parent="row", nodes=("n0",)),
    )
)
IDLE_W = {"rack": 24.0, "row": 88.0, "site": 210.0}
RISE = {"rack": 1.0, "row": 2.0, "site": 2.5}
"""Of a watt in n0."""
MW = 0.001


def account(policy: PowerPolicy | None = None, **budgets_w: float) -> PowerAccount:
    found = PowerAccount(CLUSTER, policy or WaterFilling(), prior, TREE)
    for name, budget_w in budgets_w.items():
        found.set_budget(budget_w, [], name)
    return found


def place(node: int, gpus: int = 2) -> tuple[Allocation, ...]:
    return (
        Allocation(Request(cpu_milli=0, gpu_count=gpus, gpu_milli=1000), node, tuple(range(gpus))),
    )


def job(name: str, **more: Any) -> JobRecord:
    spec = JobSpec(id=name, submit_s=0.0, roles=(TaskRole(count=2),))
    return JobRecord(spec=spec, number=int(name[1:]), **more)


def running(
    watts: PowerAccount, name: str, node: int, cap_w: float, least: bool = True
) -> JobRecord:
    found = job(name, allocations=place(node), wanted=place(node), cap_w=cap_w, wanted_cap_w=cap_w)
    watts.plan(found)
    watts.note(found)
    return found


# --- now -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", RISE)
@pytest.mark.parametrize("others", [False, True])
def test_a_start_fits_to_the_milliwatt_below_every_budget_above_it(
    domain: str, others: bool
) -> None:
    """An inner budget counts as an outer one, beside what others may draw at their caps."""
    beside_w = {"rack": 0.0, "row": 100.0 * 2, "site": 100.0 * 2.5}[domain] * others
    need_w = IDLE_W[domain] + RISE[domain] * 120.0 + beside_w
    for budget_w, fits in ((need_w, True), (need_w - MW, False)):
        watts = account(**{domain: budget_w})
        if others:
            running(watts, "j1", 1, 60.0)
        assert watts.fits(job("j0", wanted_cap_w=70.0), place(0)) == fits
        assert watts.fits(job("j0"), place(0)) == fits, "without a cap: all that it can draw"


@pytest.mark.parametrize("domain", RISE)
def test_of_a_raise_only_the_difference_must_fit(domain: str) -> None:
    need_w = IDLE_W[domain] + RISE[domain] * 110.0
    for budget_w, fits in ((need_w, True), (need_w - MW, False)):
        watts = account(**{domain: budget_w})
        raised = running(watts, "j0", 0, 60.0)
        raised.wanted_cap_w = 65.0
        assert watts.fits(raised, raised.allocations) == fits
        assert not watts.exceeded()


def test_what_is_carried_is_told_by_domain_and_sleeping_nodes_draw_nothing() -> None:
    watts = account()
    first, second = running(watts, "j0", 0, 65.0), running(watts, "j3", 3, 200.0)
    above = {"rack": 110.0, "row": 220.0, "site": 275.0 + 1.25 * 340.0}
    carried = {name: round((IDLE_W[name] + above[name]) * 1000) for name in above}
    assert watts.drawn_by == {**carried, "": carried["site"]}
    assert watts.drawn_mw == carried["site"]
    assert watts.load_mw(first) == {"": 275_000, "rack": 110_000, "row": 220_000, "site": 275_000}
    assert watts.load_mw(second) == {"": 425_000, "site": 425_000}
    asleep = dict(zip(watts.feeds.names, watts.carried_nw([1, 2]), strict=True))
    lost_w = {"rack": 0.0, "row": 40.0, "site": 50.0 + 25.0}
    assert asleep == {name: (carried[name] - lost_w[name] * 1000) * 1_000_000 for name in above}
    assert (watts.run_w, watts.held_w("j0")) == (130.0 + 400.0, 130.0)
    assert watts.free_w == 4.0 + 40.0
    assert (watts.idle_w(first), watts.idle_w(second), watts.idle_w(job("j9"))) == (10.0, 30.0, 0.0)
    assert watts.idle_mw_of("V100M16") == 30_000
    second.allocations = ()
    watts.note(second)
    assert watts.drawn_by["site"] == ((210 + 275) * 1000)


@pytest.mark.parametrize("domain", RISE)
def test_a_budget_is_exceeded_by_a_milliwatt_in_any_domain(domain: str) -> None:
    carried_w = IDLE_W[domain] + RISE[domain] * 120.0
    for budget_w, over in ((carried_w, False), (carried_w - MW, True)):
        watts = account(**{domain: budget_w})
        running(watts, "j0", 0, 70.0)
        assert watts.exceeded() == over


def test_a_ramp_is_asked_for_all_that_a_domain_would_carry() -> None:
    """What the job draws already, and what others draw, is no rise."""
    watts = account()
    running(watts, "j1", 1, 70.0)
    raised = running(watts, "j0", 0, 60.0)
    raised.wanted_cap_w = 70.0
    for name, rise_w in (("", 50.0), ("site", 50.0), ("row", 40.0), ("rack", 20.0)):
        ramps = Ramps({name: rise_w / 2}, 1.0, watts.drawn_by)
        ramps.settle(0.0, watts.drawn_by)
        # Another one has had a tenth of a watt: the window is no longer full.
        assert ramps.refusal("j9", {name: watts.drawn_by[name] + 100}, 0.0) is None
        refusal = watts.climbs(raised, raised.allocations, ramps, 0.0)
        assert refusal is not None
        assert refusal.asked_w == pytest.approx(rise_w - 0.1)
    assert watts.climbs(raised, raised.allocations, Ramps({}, 1.0, {}), 0.0) is None


def test_how_fast_a_job_runs_is_the_share_of_its_full_rate() -> None:
    watts = account()
    runs = running(watts, "j0", 0, 65.0)
    curve = prior(runs.spec, "T4")
    assert watts.speed(runs) == curve.rate(65.0) / curve.rate(70.0)
    assert 0.0 < watts.speed(runs) < 1.0
    runs.cap_w = None
    assert watts.speed(runs) == 1.0
    assert watts.speed(job("j9", cap_w=60.0)) == 1.0
    # One cap on both models: the one that it slows more sets the pace.
    runs.allocations, runs.cap_w = (*place(0), *place(3)), 70.0
    slow = prior(runs.spec, "V100M16")
    assert watts.speed(runs) == slow.rate(70.0) / slow.rate(300.0)


# --- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", RISE)
@pytest.mark.parametrize(("policy", "least_w"), [(WaterFilling(), 100.0), (Pause(), 120.0)])
def test_a_plan_is_refused_by_the_milliwatt_with_the_numbers_of_its_domain(
    domain: str, policy: PowerPolicy, least_w: float
) -> None:
    beside_w = {"rack": 0.0, "row": least_w * 2, "site": least_w * 2.5}[domain]
    used_w = IDLE_W[domain] + beside_w
    need_w = used_w + RISE[domain] * least_w
    asking = job("j0")
    for budget_w, fits in ((need_w, True), (need_w - MW, False)):
        watts = account(policy, **{domain: budget_w})
        running(watts, "j1", 1, 70.0)
        assert watts.needs_mw(asking, place(0)) == least_w * 1000
        reason = watts.refused(asking, place(0), 3.0)
        assert (reason is None) == fits
        asking.wanted = place(0)
        watts.plan(asking)
        assert watts.overloaded() == watts.overloaded(asking) == (not fits)
        asking.wanted = ()
        watts.plan(asking)
        assert not watts.overloaded()
        if reason is not None:
            assert reason.code is ReasonCode.WAITING_FOR_POWER
            assert (reason.asked, reason.in_use) == (RISE[domain] * least_w, used_w)
            assert reason.available == pytest.approx(budget_w - used_w)
            assert reason.unit == f"W at {domain}"


def test_of_several_domains_that_are_short_the_nearest_is_named() -> None:
    asking = job("j0")
    for budgets_w, name in (
        ({"rack": 100.0, "row": 200.0, "site": 300.0}, "rack"),
        ({"row": 200.0, "site": 300.0}, "row"),
        ({"site": 300.0}, "site"),
    ):
        reason = account(**budgets_w).refused(asking, place(0), 0.0)
        assert reason is not None
        assert reason.unit == f"W at {name}"


def test_a_domain_that_is_over_is_nothing_to_jobs_beside_it() -> None:
    watts = account(rack=IDLE_W["rack"] + 99.0)
    inside, beside = running(watts, "j0", 0, 60.0), running(watts, "j1", 1, 60.0)
    assert watts.overloaded()
    assert watts.overloaded(inside)
    assert not watts.overloaded(beside)
    assert not watts.overloaded(job("j9"))


def test_what_a_stopped_job_is_told_of_a_cut() -> None:
    watts = account(row=IDLE_W["row"] + 150.0)
    stopped = running(watts, "j0", 0, 60.0)
    stopped.wanted = ()
    watts.plan(stopped)
    reason = watts.cut(stopped, stopped.allocations, 4.0)
    assert (reason.asked, reason.available, reason.unit) == (200.0, 150.0, "W at row")
    watts.set_budget(IDLE_W["row"] + 200.0, [], "row")
    watts.set_budget(300.0, [], "")
    watts.set_budget(None, [], "row")
    watts.set_budget(5_000.0, [])
    reason = watts.cut(stopped, stopped.allocations, 4.0)
    assert (reason.asked, reason.available, reason.since_s) == (100.0, 0.0, 4.0)


# --- what is to come -----------------------------------------------------------------------------


@pytest.mark.parametrize("domain", RISE)
def test_who_is_new_must_fit_under_a_fall_to_the_milliwatt(domain: str) -> None:
    beside_w = {"rack": 0.0, "row": 200.0, "site": 250.0}[domain]
    need_w = IDLE_W[domain] + beside_w + RISE[domain] * 100.0
    for budget_w, fits in ((need_w, True), (need_w - MW, False)):
        watts = account()
        planned = running(watts, "j1", 1, 60.0)
        watts.expect(domain, BudgetFall(60.0, budget_w, domain))
        reason = watts.refused(job("j0"), place(0), 3.0)
        assert (reason is None) == fits
        if reason is not None:
            assert reason.code is ReasonCode.WAITING_FOR_BUDGET_RISE
            assert reason.asked == need_w - IDLE_W[domain]
            assert reason.available == pytest.approx(budget_w - IDLE_W[domain])
            assert (reason.due_s, reason.since_s) == (60.0, 3.0)
            assert reason.unit == f"W above idle at {domain}"
        # Who has a plan stays until the fall itself, whatever it leaves.
        watts.expect(domain, BudgetFall(60.0, 1.0, domain))
        assert watts.refused(planned, place(1), 3.0) is None
        assert watts.refused(job("j0"), place(0), 3.0) is not None
        watts.expect(domain, None)
        assert watts.refused(job("j0"), place(0), 3.0) is None


def test_a_fall_asks_for_notice_only_where_the_floors_no_longer_fit() -> None:
    watts = account()
    running(watts, "j0", 0, 70.0)
    for domain, rise in RISE.items():
        need_w = IDLE_W[domain] + rise * 100.0
        assert not watts.too_many(BudgetFall(9.0, need_w, domain))
        assert watts.too_many(BudgetFall(9.0, need_w - MW, domain))
    assert watts.too_many(BudgetFall(9.0, IDLE_W["site"] + 249.0))
    assert not watts.too_many(BudgetFall(9.0, 0.0, "unheard-of"))


def test_the_falls_of_the_site_and_of_its_root_are_two_and_the_lower_counts() -> None:
    watts, new = account(), job("j0")
    enough_w = IDLE_W["site"] + 250.0
    watts.expect("", BudgetFall(60.0, enough_w - 5.0))
    watts.expect("site", BudgetFall(50.0, enough_w, "site"))
    assert watts.refused(new, place(0), 0.0) is not None
    watts.expect("site", None)
    reason = watts.refused(new, place(0), 0.0)
    assert reason is not None, "what one name says is not taken back by the other"
    assert reason.due_s == 60.0
    watts.expect("site", BudgetFall(50.0, enough_w - 9.0, "site"))
    watts.expect("", None)
    reason = watts.refused(new, place(0), 0.0)
    assert reason is not None
    assert reason.due_s == 50.0
    watts.expect("site", None)
    assert watts.refused(new, place(0), 0.0) is None
    watts.expect("unheard-of", BudgetFall(1.0, 0.0, "unheard-of"))
    assert watts.refused(new, place(0), 0.0) is None


def test_below_one_plain_budget_a_fall_is_told_in_watts_above_idling() -> None:
    watts = PowerAccount(CLUSTER, WaterFilling(), prior)
    watts.set_budget(1_000.0, [])
    idle_w = 4.0 + 60.0 + 60.0
    running(watts, "j1", 1, 60.0)
    watts.expect("", BudgetFall(60.0, idle_w + 150.0))
    reason = watts.refused(job("j0"), place(0), 3.0)
    assert reason is not None
    assert (reason.asked, reason.available) == (100.0, 50.0)
    assert reason.unit == "W above idle"
    watts.expect("", BudgetFall(60.0, idle_w + 200.0))
    assert watts.refused(job("j0"), place(0), 3.0) is None


# --- budgets -------------------------------------------------------------------------------------


def test_what_is_stated_and_what_is_held_to_are_two() -> None:
    watts = account(row=500.0)
    watts.set_budget(900.0, [])
    assert watts.held_mw == [900_000, 500_000, None]
    assert (watts.stated_w, watts.stated_nw) == (None, [None, None, None])
    watts.state(700.0, "row")
    watts.state(2_000.0, "site")
    assert (watts.stated_w, watts.stated_nw) == (2_000.0, [2_000 * 10**9, 700 * 10**9, None])
    watts.state(1_500.0)
    assert (watts.stated_w, watts.stated_nw) == (1_500.0, [1_500 * 10**9, 700 * 10**9, None])
    levels = {"": 1_000.5, "site": 1_200.0, "rack": 80.0, "row": None}
    assert watts.limits_mw(levels) == [1_000_500, None, 80_000]


def test_room_is_what_the_plan_leaves_of_the_sites_budget() -> None:
    watts = account()
    assert watts.room_mw() is None
    watts.set_budget(1_000.0, [])
    assert watts.room_mw() == 790_000
    running(watts, "j0", 0, 70.0)
    assert watts.room_mw() == 540_000


# --- sharing out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
def test_nobody_is_capped_where_all_tops_fit_and_all_is_used_where_they_do_not(tree: bool) -> None:
    factor = 1.25 if tree else 1.0
    idle_w = IDLE_W["site"] if tree else 124.0
    top_w = idle_w + factor * 120.0
    for budget_w, cap_w in ((top_w, 70.0), (top_w - MW, 69.0), (top_w - 5 * 2 * factor, 65.0)):
        watts = account() if tree else PowerAccount(CLUSTER, WaterFilling(), prior)
        watts.set_budget(budget_w, [])
        planned = job("j2", wanted=place(2))
        watts.plan(planned)
        assert watts.share([planned]) == [planned]
        assert planned.wanted_cap_w == cap_w
        assert watts.share([planned]) == [], "nothing has changed"


@settings(max_examples=times(120), deadline=None)
@given(
    gpus=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    rack_w=st.sampled_from([None, 24.0, 74.0, 120.0]),
    row_w=st.sampled_from([None, 100.0, 188.0, 300.0, 450.0]),
    site_w=st.sampled_from([None, 335.0, 460.0, 585.0, 900.0]),
    least=st.integers(0, 8),
    busy=st.booleans(),
)
def test_devices_that_are_shown_could_all_be_powered_and_not_one_more(
    gpus: list[int], rack_w: float | None, row_w: float | None, site_w: float | None, least: int,
    busy: bool,
) -> None:  # fmt: skip
    watts = account()
    limits = {"rack": rack_w, "row": row_w, "site": site_w}
    for name, budget_w in limits.items():
        watts.set_budget(budget_w, [], name)
    plan = [0, 0, 2 * busy, 0]
    if busy:
        running(watts, "j2", 2, 70.0)
    step_w = [50.0, 50.0, 50.0, 120.0]

    def possible(shown: list[int]) -> bool:
        at_w = [(one + had) * step for one, had, step in zip(shown, plan, step_w, strict=True)]
        carried = {
            "rack": 24.0 + at_w[0],
            "row": 88.0 + 2 * (at_w[0] + at_w[1]),
            "site": 210.0 + 2.5 * (at_w[0] + at_w[1]) + 1.25 * (at_w[2] + at_w[3]),
        }
        return all(w is None or carried[name] <= w for name, w in limits.items())

    shown = watts.powered(np.array(gpus), 0).tolist()
    assert possible(shown)
    # Too few to be of use: all of them are shown, for the guard to say what they lack.
    enough = sum(shown) >= min(least, sum(gpus))
    assert watts.powered(np.array(gpus), least).tolist() == (shown if enough else gpus)
    for node in range(4):
        more = [one + (at == node) for at, one in enumerate(shown)]
        assert more[node] > gpus[node] or not possible(more), "one more could be powered"
    free = [2 * one for one in gpus]
    pairs = watts.powered(np.array(free), 0, together=2).tolist()
    assert possible(pairs)
    assert all(one % 2 == 0 for one in pairs), "half a task helps nobody"
    for node in range(4):
        more = [one + 2 * (at == node) for at, one in enumerate(pairs)]
        assert more[node] > free[node] or not possible(more), "a task more could be powered"
