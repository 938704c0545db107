"""Caps that are ordered and not read back: what a device may be at, and when orders are worth it.

The world of these tests keeps every order that is on its way: a device may be at any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tree_shell import TreeShell

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import CoreConfig
from wattherd.engine.core.power_control import MOST_GONE, CapOrders
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.budgets import OFF, CapRules
from wattherd.model.command import Command, SetCap
from wattherd.model.event import BudgetChanged, CapApplied, Event, JobCancelled, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.simple import Pause, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.workload.cluster_text import parse_cluster

# --- orders of one job ---------------------------------------------------------------------------

CAPS_W = st.sampled_from([60.0, 62.0, 65.0, 70.0, None])


def watts(cap_w: float | None) -> float:
    return math.inf if cap_w is None else cap_w


@settings(max_examples=times(400), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["order", "order", "arrives", "hand", "again"]), CAPS_W),
        max_size=25,
    )
)
def test_a_device_is_held_to_be_at_the_highest_of_what_may_be_in_force(
    story: Sequence[tuple[str, float | None]],
) -> None:
    """What was read back, or any order after it; of equal orders it was the first that arrived."""
    job, orders = JobRecord(spec=JobSpec(id="a", submit_s=0.0), number=0), CapOrders()
    job.attempt, flying = 1, list[float]()
    for what, cap_w in story:
        if what == "order":
            command = orders.give(job, cap_w, 0.0)
            assert (command.job_id, command.attempt, command.cap_w) == ("a", job.attempt, cap_w)
            flying.append(watts(cap_w))
        elif what == "again":
            job.attempt += 1  # what was under way to the run before died with it
            flying = []
        elif watts(cap_w) in flying:
            flying = flying[flying.index(watts(cap_w)) + 1 :]
            assert watts(orders.read_back(job, cap_w)) == max([watts(cap_w), *flying])
        elif what == "hand":
            assert orders.read_back(job, cap_w) == cap_w, "nobody ordered it: as it was read"
        assert orders.promised_w(job) == min(flying, default=math.inf)


def test_what_the_run_before_was_told_is_nothing_to_the_next_one() -> None:
    job, orders = JobRecord(spec=JobSpec(id="a", submit_s=0.0), number=0, attempt=1), CapOrders()
    orders.give(job, 60.0, 0.0)
    orders.give(job, 70.0, 1.0)
    job.attempt = 2
    assert orders.promised_w(job) == math.inf
    assert orders.read_back(job, 60.0) == 60.0


def test_when_a_cap_last_changed_is_when_another_one_was_ordered() -> None:
    job, orders = JobRecord(spec=JobSpec(id="a", submit_s=0.0), number=0), CapOrders()
    assert orders.changed_s("a") == -math.inf
    for at_s, cap_w in ((1.0, 60.0), (2.0, 60.0), (3.0, None), (4.0, None)):
        orders.give(job, cap_w if cap_w is None else cap_w * at_s / at_s, at_s)
        assert orders.changed_s("a") == (1.0 if at_s < 3 else 3.0), "the same again is no change"


def test_orders_of_jobs_that_are_over_are_forgotten() -> None:
    orders = CapOrders()
    jobs = [
        JobRecord(spec=JobSpec(id=f"j{number}", submit_s=0.0), number=number)
        for number in range(MOST_GONE + 50)
    ]
    for job in jobs:
        orders.give(job, 60.0, 5.0)
    last = jobs[-1]
    orders.forget({last.id})
    assert (orders.promised_w(last), orders.changed_s(last.id)) == (60.0, 5.0)
    for job in jobs[:-1]:
        assert orders.promised_w(job) == math.inf
        assert orders.changed_s(job.id) == -math.inf
    orders.forget(())
    assert orders.promised_w(last) == math.inf


# --- a site --------------------------------------------------------------------------------------

CLUSTER = parse_cluster("4x2:T4", known=GPUS)  # 10 W idle, 60 to 70 W busy: 80 W idle in all
HALL = PowerTree((TreeDomain(name="hall", nodes=tuple(one.name for one in CLUSTER.nodes)),))
T4 = GPUS["T4"]
RULES = st.sampled_from(
    [OFF, CapRules(change_w=4.0), CapRules(hold_s=30.0), CapRules(change_w=4.0, hold_s=30.0)]
)
BUDGETS_W = (None, 190.0, 204.0, 290.0, 330.0, 372.0, 404.0, 480.0)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit"] * 3 + ["confirm"] * 4 + ["arrives"] * 5 + ["budget"] * 2
            + ["lost", "exit", "cancel", "wait"]
        ),
        st.integers(0, 11),
    ),
    min_size=8, max_size=50,
)  # fmt: skip


class Site(TreeShell):
    """Checks what orders are given, and that they are steady."""

    def __init__(self, rules: CapRules, power: PowerPolicy) -> None:
        self.rules = rules
        self.in_force: dict[str, float] = {}
        self.ordered: dict[str, tuple[float, float]] = {}
        """When the last change of each job's cap was ordered, and to what."""
        super().__init__(
            CoreConfig(cluster=CLUSTER, planner=Tiresias(), rules=rules, power=power), HALL
        )

    def deliver(self, event: Event) -> None:
        self.in_force = {job.id: watts(job.cap_w) for job in self.core.jobs.values()}
        if isinstance(event, CapApplied):
            self.in_force[event.job_id] = watts(event.cap_w)
        super().deliver(event)
        orders = [one for one in self.commands[-1] if isinstance(one, SetCap)]
        for job_id in {one.job_id for one in orders}:
            said = [watts(one.cap_w) for one in orders if one.job_id == job_id]
            assert said == sorted(said, reverse=True), "raised behind a cut"
            # A plan says its cuts again: once after shedding, once after planning.
            assert not isinstance(event, CapApplied) or len(said) == 1, "said twice"

    def _obey(self, command: Command) -> None:
        super()._obey(command)
        if not isinstance(command, SetCap):
            return
        job, cap_w = self.core.jobs[command.job_id], watts(command.cap_w)
        changed_s, last_w = self.ordered.get(job.id, (-math.inf, -1.0))
        if watts(job.cap_w) == cap_w:  # a raise: in force from the order on
            known_w = self.in_force[job.id]
            assert cap_w > known_w, "no change"
            worth = cap_w - known_w >= self.rules.change_w or cap_w >= T4.max_w
            assert worth, "hardly worth an order"
            assert self.now_s >= changed_s + self.rules.hold_s, "changed just now"
        if cap_w != last_w:
            self.ordered[job.id] = self.now_s, cap_w

    def act(self, what: str, number: int) -> None:
        self.now_s += 1.0
        match what:
            case "submit":
                role = TaskRole(count=1 + number % 2)
                name = f"j{len(self.submitted)}"
                self.submit(JobSpec(id=name, submit_s=self.now_s, roles=(role,)))
            case "confirm":
                for run in self.with_status("ordered", "stopping")[:1]:
                    (self.started if run.status == "ordered" else self.stopped)(run)
            case "arrives" | "lost":
                self.fly(what, number)
            case "exit":
                runs = self.with_status("running")
                if runs:
                    self.exited(runs[number % len(runs)])
            case "cancel":
                self.deliver(JobCancelled(at_s=self.now_s, job_id=f"j{number}"))
            case "budget":
                budget_w = BUDGETS_W[number % len(BUDGETS_W)]
                self.deliver(BudgetChanged(at_s=self.now_s, budget_w=budget_w))
            case "wait":
                self.now_s += number
        for key in sorted(key for key, at_s in self.wakes.items() if at_s <= self.now_s):
            del self.wakes[key]
            self.deliver(Woke(at_s=self.now_s, key=key))

    def fly(self, what: str, number: int) -> None:
        """The oldest order to some run arrives, or is lost and nobody hears of it."""
        runs = [run for run in self.runs.values() if run.cap_order is not None]
        if not runs:
            return
        run = runs[number % len(runs)]
        if what == "arrives":
            self.capped(run)
        else:
            sent = self.sent[run.job_id, run.attempt]
            del sent[0]
            run.cap_order = sent[0] if sent else None

    def check_settled(self) -> None:
        """Said of the end, where no order is lost any more."""

    def settle(self) -> None:
        """All that was ordered is done and told, and there is time for more."""
        for _ in range(30):
            for run in self.with_status("ordered", "stopping"):
                (self.started if run.status == "ordered" else self.stopped)(run)
            for run in list(self.runs.values()):
                if run.cap_order is not None:
                    self.capped(run)
            self.act("wait", 11)
            # Cuts are ordered again with every plan.
            self.deliver(BudgetChanged(at_s=self.now_s, budget_w=self.site_w))
        super().check_settled()
        slack_w = self.rules.change_w
        for job in self.core.jobs.values():
            if job.state is State.RUNNING:
                wanted_w = min(watts(job.wanted_cap_w), T4.max_w)
                cap_w = min(watts(job.cap_w), T4.max_w)
                assert cap_w == wanted_w or abs(cap_w - wanted_w) < slack_w, "never got its cap"
                assert cap_w == wanted_w or wanted_w < T4.max_w


@settings(max_examples=times(60), deadline=None)
@given(
    actions=ACTIONS, rules=RULES, power=st.sampled_from([Uniform(), WaterFilling(), Pause()])
)  # fmt: skip
def test_orders_that_overtake_each_other_or_are_lost_break_no_budget(
    actions: list[tuple[str, int]], rules: CapRules, power: PowerPolicy
) -> None:
    """Also: no order is doubled, none is small or hasty, and in the end everybody has his cap."""
    site = Site(rules, power)
    site.deliver(BudgetChanged(at_s=0.0, budget_w=330.0))
    for what, number in actions:
        site.act(what, number)
    site.settle()
    site.finish()
    caps = site.core.power.caps
    known = (caps._to_lower, caps._held_back, caps._deferred, caps._orders._sent)
    assert not any(known), "remembered of jobs that are over"
