"""How calmly caps follow budgets: ramps, hysteresis, orders that are still under way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.power.budgets import SLACK_MW, CapRules, Ramp
from wattherd.errors import UserError
from wattherd.experiments.schedule.power_tree import cap_rules
from wattherd.model.command import Command, SetCap, StartJob, StopJob, WakeAt
from wattherd.model.event import (
    BudgetAnnounced,
    BudgetChanged,
    CapApplied,
    Event,
    JobExited,
    JobStarted,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.simple import Uniform
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.scenario import CapsSpec

CLUSTER = parse_cluster("4x2:T4", known=GPUS)  # 10 W idle, 60 to 70 W busy: 80 W idle in all


class Desk:
    """A core whose caps are read back when the test says so."""

    def __init__(self, power: PowerPolicy | None = None, **rules: Any) -> None:
        config = CoreConfig(
            cluster=CLUSTER, planner=Tiresias(), rules=CapRules(**rules), power=power or Uniform()
        )
        self.core = Core(config)
        self.attempts: dict[str, int] = {}
        self.quick = False
        """Whether caps are read back at once."""

    def tell(self, event: Event) -> list[Command]:
        found = self.core.handle(event)
        for order in found:
            if isinstance(order, StartJob):
                self.attempts[order.job_id] = order.attempt
                at_s = self.core.now_s
                found += self.tell(
                    JobStarted(at_s=at_s, job_id=order.job_id, attempt=order.attempt)
                )
            elif isinstance(order, SetCap) and self.quick:
                found += self.read_back(order.job_id, order.cap_w, self.core.now_s)
        return found

    def fill(self, watts: float | None, *names: str) -> None:
        """Jobs of two GPUs each, settled under a budget."""
        self.quick = True
        self.budget(watts)
        for name in names:
            self.submit(name, 2)
        self.quick = False

    def submit(self, name: str, gpus: int, at_s: float = 0.0, grace_s: float = 0.0) -> list[Any]:
        role = TaskRole(count=gpus)
        job = JobSpec(id=name, submit_s=at_s, roles=(role,), grace_s=grace_s)
        return self.tell(JobSubmitted(at_s=at_s, job=job))

    def budget(self, watts: float | None, at_s: float = 0.0) -> list[Any]:
        return self.tell(BudgetChanged(at_s=at_s, budget_w=watts))

    def read_back(self, name: str, cap_w: float | None, at_s: float) -> list[Any]:
        attempt = self.attempts[name]
        return self.tell(CapApplied(at_s=at_s, job_id=name, attempt=attempt, cap_w=cap_w))


def caps(commands: list[Any]) -> dict[str, float | None]:
    return {one.job_id: one.cap_w for one in commands if isinstance(one, SetCap)}


def started(commands: list[Any]) -> list[str]:
    return [one.job_id for one in commands if isinstance(one, StartJob)]


def wakes(commands: list[Any], key: str) -> list[float]:
    return [one.at_s for one in commands if isinstance(one, WakeAt) and one.key == key]


# --- the ramp --------------------------------------------------------------------------------


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 20), st.integers(-3000, 3000)), max_size=40),
    rate_w_s=st.floats(0.1, 50),
    window_s=st.floats(1, 60),
)
def test_the_draw_never_rises_faster_than_the_rate_and_a_window(
    steps: list[tuple[float, int]], rate_w_s: float, window_s: float
) -> None:
    """But for single rises of more than a window's worth, which wait until the credit is full."""
    ramp = Ramp(rate_w_s, window_s, 0)
    now_s, drawn, most = 0.0, 0, 0.0
    for passed_s, change in steps:
        now_s += passed_s
        ramp.settle(now_s, drawn)
        most += passed_s * rate_w_s * 1000
        if change <= 0 or ramp.lets(drawn + change):
            if change > 0:
                most -= change
            drawn += change
        else:
            assert ramp.next_s is not None
            assert ramp.next_s > now_s
        most = min(most, window_s * rate_w_s * 1000) if change <= 0 else most
    full = window_s * rate_w_s * 1000
    biggest = max([change for _, change in steps if change > 0], default=0)
    assert most >= -full - max(biggest, 0) - len(steps) * SLACK_MW


def test_starts_wait_for_the_ramp_and_are_woken_for() -> None:
    desk = Desk(ramp_up_w_s=12.0, ramp_window_s=10.0)
    # Each of them draws 120 W above idle: all that the first window allows.
    assert started(desk.submit("a", 2)) == ["a"]
    commands = desk.submit("b", 2)
    assert started(commands) == []
    assert wakes(commands, "ramp") == [pytest.approx(10.0, abs=0.01)]
    assert started(desk.tell(Woke(at_s=5.0, key="ramp"))) == []
    assert started(desk.tell(Woke(at_s=10.001, key="ramp"))) == ["b"]
    # What ends and is replaced at once is no rise.
    desk.submit("c", 2, at_s=10.002)
    done = JobExited(at_s=10.003, job_id="a", attempt=1)
    commands = desk.tell(done)
    assert started(commands) == ["c"]


def test_what_is_more_than_a_window_passes_when_the_credit_is_full_and_is_paid_off() -> None:
    desk = Desk(ramp_up_w_s=1.0, ramp_window_s=10.0)
    assert started(desk.submit("a", 2)) == ["a"]
    commands = desk.submit("b", 1, at_s=1.0)
    assert started(commands) == []
    # 120 W were taken of 10 W: only after 120 s is the credit full again.
    assert wakes(commands, "ramp") == [pytest.approx(120.0, abs=0.1)]


def test_a_cap_is_raised_only_as_the_ramp_allows() -> None:
    desk = Desk(ramp_up_w_s=1.0, ramp_window_s=10.0)
    desk.quick = True
    desk.budget(280.0)
    desk.submit("a", 4)
    commands = desk.tell(Woke(at_s=500.0, key="ramp"))
    assert desk.core.jobs["a"].cap_w == 60.0
    # 40 W more are four windows' worth: let pass once the credit is full, then paid off.
    commands = desk.budget(320.0, 501.0)
    assert caps(commands) == {"a": 70.0}
    desk.budget(280.0, 502.0)
    commands = desk.budget(320.0, 503.0)
    assert caps(commands) == {}
    assert wakes(commands, "ramp") == [pytest.approx(541.0)]


# --- hysteresis ------------------------------------------------------------------------------


def test_a_small_raise_is_not_worth_an_order_and_one_to_the_top_is() -> None:
    desk = Desk(change_w=5.0)
    desk.fill(280.0, "a", "b")
    assert {job.cap_w for job in desk.core.jobs.values()} == {60.0}
    assert caps(desk.budget(290.0, 1.0)) == {}
    assert caps(desk.budget(304.0, 2.0)) == {"a": 66.0, "b": 66.0}
    assert caps(desk.budget(330.0, 3.0)) == {"a": 70.0, "b": 70.0}


def test_a_cap_is_held_for_a_while_and_the_core_asks_to_be_woken() -> None:
    desk = Desk(hold_s=60.0)
    desk.fill(280.0, "a", "b")
    assert caps(desk.budget(300.0, 70.0)) == {"a": 65.0, "b": 65.0}
    desk.read_back("a", 65.0, 70.0)
    desk.read_back("b", 65.0, 70.0)
    commands = desk.budget(320.0, 80.0)
    assert caps(commands) == {}
    assert wakes(commands, "hold") == [130.0]
    assert caps(desk.tell(Woke(at_s=130.0, key="hold"))) == {"a": 70.0, "b": 70.0}


def test_a_lowering_waits_until_somebody_needs_the_watts() -> None:
    desk = Desk(change_w=5.0)
    desk.fill(320.0, "a", "b")
    assert {job.cap_w for job in desk.core.jobs.values()} == {70.0}
    # A cut that asks for it is obeyed at once, however small.
    assert caps(desk.budget(316.0, 1.0)) == {"a": 69.0, "b": 69.0}
    for name in "ab":
        desk.read_back(name, 69.0, 1.5)
    # A new job brings the others down by little, and is not starved for that.
    desk.budget(372.0, 2.0)
    desk.quick = True
    commands = desk.submit("c", 1, at_s=3.0)
    assert caps(commands) == {"a": 68.0, "b": 68.0}
    assert started(commands) == ["c"]


def test_caps_do_not_flap_where_jobs_come_and_go() -> None:
    """A job of one GPU comes and goes under a tight budget, and the others do not follow it."""
    orders = {}
    for hold_s in (0.0, 60.0):
        desk, count = Desk(hold_s=hold_s), 0
        desk.fill(358.0, "a", "b")
        desk.quick = True
        for number in range(10):
            found = desk.submit(f"c{number}", 1, at_s=10.0 * number + 1)
            assert started(found) == [f"c{number}"]
            found += desk.tell(JobExited(at_s=10.0 * number + 5, job_id=f"c{number}", attempt=1))
            count += sum(isinstance(one, SetCap) for one in found)
        orders[hold_s] = count
    assert orders[0.0] == 40
    assert orders[60.0] <= 8


# --- orders under way ------------------------------------------------------------------------


def test_a_higher_order_behind_a_lower_one_counts_from_the_start() -> None:
    """Read back is 60 W while 65 W are on their way: others may not have the difference."""
    desk = Desk()
    desk.fill(320.0, "a", "b")
    assert caps(desk.budget(280.0, 1.0)) == {"a": 60.0, "b": 60.0}
    # More is a raise as soon as a lower cap is under way: not before that was read back.
    assert caps(desk.budget(300.0, 2.0)) == {"a": 60.0, "b": 60.0}
    commands = desk.read_back("a", 60.0, 3.0)
    assert desk.core.jobs["a"].cap_w == 60.0
    assert caps(commands) == {}
    commands = desk.read_back("b", 60.0, 3.0)
    assert caps(commands) == {"a": 65.0, "b": 65.0}


# --- what is announced -----------------------------------------------------------------------


def announced(desk: Desk, begins_s: float, watts: float) -> list[Any]:
    return desk.tell(BudgetAnnounced(at_s=0.0, begins_s=begins_s, budget_w=watts))


def test_caps_are_lowered_ahead_and_jobs_that_must_stop_have_their_grace() -> None:
    desk = Desk(ahead_s=5.0)
    desk.budget(400.0)
    desk.submit("a", 2, grace_s=20.0)
    desk.submit("b", 2)
    assert wakes(announced(desk, 100.0, 300.0), "budget") == [95.0]
    assert caps(desk.tell(Woke(at_s=95.0, key="budget"))) == {"a": 65.0, "b": 65.0}
    other = Desk(ahead_s=5.0)
    other.budget(400.0)
    other.submit("a", 2, grace_s=20.0)
    other.submit("b", 2)
    assert wakes(announced(other, 100.0, 200.0), "budget") == [75.0]
    stops = [type(one).__name__ for one in other.tell(Woke(at_s=75.0, key="budget"))]
    assert "StopJob" in stops


def test_a_rise_is_believed_when_it_comes_and_a_fall_even_if_nobody_says_so() -> None:
    desk = Desk(ahead_s=5.0)
    desk.budget(300.0)
    desk.submit("a", 4)
    announced(desk, 50.0, 360.0)
    assert caps(desk.tell(Woke(at_s=50.0, key="budget"))) == {}
    assert desk.core.jobs["a"].cap_w == 65.0
    assert caps(desk.budget(360.0, 51.0)) == {"a": 70.0}
    announced(desk, 100.0, 280.0)
    assert caps(desk.tell(Woke(at_s=95.0, key="budget"))) == {"a": 60.0}
    desk.read_back("a", 60.0, 96.0)
    # Nothing was said at 100 s, and nothing is given back.
    assert caps(desk.tell(Woke(at_s=200.0, key="plan"))) == {}
    assert caps(desk.budget(360.0, 300.0)) == {"a": 70.0}


def test_a_known_fall_is_approached_along_the_ramp() -> None:
    desk = Desk(ramp_down_w_s=8.0)
    desk.budget(320.0)
    desk.submit("a", 4)
    assert wakes(announced(desk, 100.0, 280.0), "budget") == [pytest.approx(95.0)]
    found, at_s = [], 95.0
    while at_s < 100.0:
        commands = desk.tell(Woke(at_s=at_s, key="budget"))
        for cap_w in caps(commands).values():
            found.append(cap_w)
            desk.read_back("a", cap_w, at_s)
        (at_s,) = wakes(commands, "budget")[:1] or (100.0,)
    desk.tell(Woke(at_s=100.0, key="budget"))
    assert found == [68.0, 66.0, 64.0, 62.0]
    assert desk.core.jobs["a"].wanted_cap_w == 60.0


def test_why_a_job_is_not_started_before_a_fall_is_told() -> None:
    desk = Desk(refuse_s=60.0)
    desk.budget(400.0)
    assert wakes(announced(desk, 100.0, 150.0), "budget") == [40.0]
    desk.tell(Woke(at_s=40.0, key="budget"))
    desk.submit("a", 2, at_s=50.0)
    reason = desk.core.jobs["a"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_BUDGET_RISE
    assert (reason.asked, reason.available) == (100.0, 70.0)
    assert "(the budget falls to 150 W in about 50 s)" in reason.text()


# --- the scenario ----------------------------------------------------------------------------


def test_a_scenario_says_it_in_words() -> None:
    spec = CapsSpec(
        delay="4s", refuse="10m", ramp_up="2kW", ramp_down="500W/s", change="10W", hold="1m"
    )
    assert cap_rules(spec) == CapRules(
        ahead_s=4.0,
        refuse_s=600.0,
        ramp_up_w_s=2000.0,
        ramp_down_w_s=500.0,
        change_w=10.0,
        hold_s=60.0,
    )
    assert cap_rules(CapsSpec()) == CapRules()


@pytest.mark.parametrize(
    ("field", "value"),
    [("ramp_up", "0W"), ("ramp_down", "fast"), ("hold", "-1"), ("ramp_window", 0)],
)
def test_a_rule_that_makes_no_sense_is_named(field: str, value: Any) -> None:
    with pytest.raises(UserError) as refused:
        cap_rules(CapsSpec.model_validate({field: value}))
    assert refused.value.field == f"caps.{field}"
    assert refused.value.hint


# --- starts and stops along a ramp ------------------------------------------------------------


def test_64_starts_at_once_are_spread_and_each_says_how_long_it_waits() -> None:
    cluster = parse_cluster("64x1:T4", known=GPUS)
    rules = CapRules(ramp_up_w_s=12.0, ramp_window_s=10.0)
    core = Core(CoreConfig(cluster=cluster, planner=Tiresias(), rules=rules, power=Uniform()))
    commands: list[Command] = []
    for number in range(64):
        spec = JobSpec(id=f"j{number}", submit_s=0.0, roles=(TaskRole(count=1),))
        commands += core.handle(JobSubmitted(at_s=0.0, job=spec))
    # 60 W above idle each, 120 W of credit: two at once, then one every 5 s.
    assert started(commands) == ["j0", "j1"]
    reasons = [core.jobs[f"j{number}"].reason for number in (2, 3, 63)]
    assert [one.code for one in reasons if one] == [ReasonCode.WAITING_FOR_RAMP] * 3
    assert [round(one.due_s or 0.0) for one in reasons if one] == [5, 10, 310]
    assert reasons[1] is not None
    assert reasons[1].text(0.0) == (
        "WaitingForRamp: asked 60 W at once, available 0 W at once"
        " (starts are spread to 12 W/s on the site, in about 10 s)"
    )
    times = {"j0": 0.0, "j1": 0.0}
    for _ in range(200):
        due = [one.at_s for one in commands if isinstance(one, WakeAt) and one.key == "ramp"]
        if not due:
            break
        commands = core.handle(Woke(at_s=due[0], key="ramp"))
        times |= dict.fromkeys(started(commands), due[0])
    assert len(times) == 64
    assert times["j63"] == pytest.approx(310.0, abs=0.5)
    assert core.jobs["j63"].reason is None


class Away:
    """Plans as another one does, and everything away once told to."""

    name = "away"

    def __init__(self) -> None:
        self.usual, self.away = Tiresias(), False

    def plan(self, view: Any, draft: Any) -> None:
        if not self.away:
            self.usual.plan(view, draft)
            return
        for job in [one for one in view.live() if one.wanted]:
            draft.stop(job, StopReason.PREEMPTED_FOR_PRIORITY)


def stops(commands: list[Command]) -> list[str]:
    return [one.job_id for one in commands if isinstance(one, StopJob)]


def test_stops_that_a_plan_makes_are_spread_and_those_that_a_limit_demands_are_not() -> None:
    planner = Away()
    rules = CapRules(ramp_down_w_s=12.0, ramp_window_s=10.0)
    core = Core(CoreConfig(cluster=CLUSTER, planner=planner, rules=rules, power=Uniform()))
    for number in range(4):
        spec = JobSpec(id=f"j{number}", submit_s=0.0, roles=(TaskRole(count=2),))
        core.handle(JobSubmitted(at_s=0.0, job=spec))
        core.handle(JobStarted(at_s=0.0, job_id=f"j{number}", attempt=1))
    planner.away = True
    commands = core.handle(Woke(at_s=100.0, key="pass"))
    extra = JobSpec(id="x", submit_s=0.0, roles=(TaskRole(count=2),))
    commands += core.handle(JobSubmitted(at_s=100.0, job=extra))
    assert len(stops(commands)) == 1
    assert wakes(commands, "fall") == [pytest.approx(110.0, abs=0.1)]
    found = [stops(core.handle(Woke(at_s=110.0 + 10.01 * n, key="fall"))) for n in range(3)]
    assert [len(one) for one in found] == [1, 1, 1]


def test_a_budget_cut_stops_at_once_whatever_the_ramp() -> None:
    desk = Desk(ramp_down_w_s=1.0, ramp_window_s=10.0)
    desk.fill(None, "a", "b")
    commands = desk.budget(210.0, 50.0)
    assert stops(commands) == ["b"]


def test_a_ramp_of_a_feed_holds_back_what_it_feeds_alone() -> None:
    domains = (
        TreeDomain(name="site", budget_w=None),
        TreeDomain(name="feed-a", parent="site", nodes=("n0", "n1"), ramp_up_w_s=12.0),
        TreeDomain(name="feed-b", parent="site", nodes=("n2", "n3")),
    )
    names = [node.name for node in CLUSTER.nodes]
    tree = PowerTree(tuple(
        replace(one, nodes=tuple(names[int(at[1])] for at in one.nodes)) for one in domains
    ))  # fmt: skip
    core = Core(CoreConfig(cluster=CLUSTER, planner=Tiresias(), tree=tree, power=Uniform()))
    commands: list[Command] = []
    for number in range(4):
        spec = JobSpec(id=f"j{number}", submit_s=0.0, roles=(TaskRole(count=2),))
        commands += core.handle(JobSubmitted(at_s=0.0, job=spec))
    assert len(started(commands)) == 3
    waiting = [job for job in core.jobs.values() if job.reason is not None]
    assert len(waiting) == 1
    assert waiting[0].reason is not None
    assert "on feed-a" in waiting[0].reason.text(0.0)
