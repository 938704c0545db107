"""The draft's books: a refused proposal changes nothing, an accepted one adds up from scratch.

A planner proposes whatever Hypothesis thinks of: starts, resizes, moves, shares of devices, stops,
ends, on lost nodes and for jobs that are too large. After each proposal, every sum that the draft
keeps up from change to change is compared with what it was before (refused) and with a recount of
all that the plan gives away, in exact fractions and from the catalogue alone.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from effort import times
from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.capacity import Book
from wattherd.engine.core.draft import GuardedDraft, share_request
from wattherd.engine.core.view import Questions
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.estimate.power_curve import prior
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.contract import Share
from wattherd.policy.power.simple import Pause
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.queue.tree import CapacityQueue, QueueTree

NODES = (
    ("n0", 4, "T4", 0.0),
    ("n1", 4, "T4", 30.0),
    ("n2", 2, "V100M16", 50.0),
    ("n3", 0, "", 9.0),
)
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=16_000, memory_mib=64_000, gpu_count=gpus, gpu_model=model,
                 idle_w=idle_w)
        for name, gpus, model, idle_w in NODES
    )
)  # fmt: skip
QUOTA = QueueTree(
    CapacityQueue(
        name="root",
        children=(
            CapacityQueue(name="a", guaranteed_pct=60, user_limit_factor=2),
            CapacityQueue(name="b", guaranteed_pct=40, maximum_pct=70, user_limit_factor=2),
        ),
    )
)
ROLES = (
    (TaskRole(count=2, cpu_milli=500),),
    (TaskRole(count=4, cpu_milli=1000, memory_mib=15_000, min_count=1, max_count=6),),
    (TaskRole(count=1, gpu_count=2, min_gpu_count=1, max_gpu_count=4),),
    (TaskRole(count=1, cpu_milli=500, gpu_memory_mib=2_000),),
    (TaskRole(count=1, cpu_milli=500, gpu_memory_mib=7_000),),
    (TaskRole(count=2, gpu_milli=400),),
    (TaskRole(count=2), TaskRole(name="ps", count=1, gpu_count=0, cpu_milli=3000)),
    (TaskRole(count=1, gpu_count=0, cpu_milli=4000),),
)
SPECS = tuple(
    JobSpec(
        id=f"j{number}", submit_s=0.0, roles=roles, queue="ab"[number % 2],
        user=("ann", "bob")[number % 3 > 0], tenant=("x", "y")[number % 2],
        group="g" if number % 2 else "",
    )
    for number, roles in enumerate(ROLES)
)  # fmt: skip
SHARES = st.builds(
    Share,
    node=st.integers(0, 3),
    tasks=st.integers(1, 4),
    role=st.sampled_from([0, 0, 0, 1]),
    cpu_milli=st.sampled_from([None, None, None, 500]),
    gpu_count=st.sampled_from([None, None, None, 1, 3]),
    gpu_milli=st.sampled_from([None, None, 400, 500, 1000]),
)
NONSENSE = st.one_of(
    st.lists(
        st.builds(
            Share,
            node=st.sampled_from([-5, -1, 0, 1, 4, 99, None, 0.5, "n0"]),
            tasks=st.sampled_from([-3, -1, 0, 1, 3, None, "all"]),
            role=st.sampled_from([-1, 0, 2, 9, None]),
            gpu_count=st.sampled_from([None, -1, 0, 8]),
            gpus=st.sampled_from([(), (7,), (-1, 0), None]),
            gpu_milli=st.sampled_from([None, -1, 0, 2000]),
        ),
        max_size=3,
    ),
    st.sampled_from([None, "n0", [None], [(0, 1)], [Share(0, 3), Share(1, -1)], [Share(0, 2), 7]]),
)
"""What somebody else may propose: it is refused or raises, and changes nothing."""
FITS = st.tuples(
    st.just("fit"), st.integers(0, 7), st.integers(0, 15), st.sampled_from([1, 0, 500])
)
PROPOSALS = st.lists(
    st.one_of(
        FITS,
        FITS,
        FITS,
        st.tuples(
            st.just("start"),
            st.integers(0, 7),
            st.lists(SHARES, min_size=1, max_size=3),
            st.just(0),
        ),
        st.tuples(st.just("nonsense"), st.integers(0, 7), NONSENSE, st.just(0)),
        st.tuples(st.sampled_from(["stop", "end"]), st.integers(0, 7), st.just([]), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


def whole_gang(spec: JobSpec, where: int, milli: int) -> list[Share]:
    """All tasks of every role, as wide as `where` says, on one node or across two."""
    shares, part = [], milli if milli > 1 and spec.roles[0].gpu_memory_mib else None
    for number in range(len(spec.roles)):
        able = spec.counts(number)
        tasks = able[where % len(able)]
        first = tasks if milli else tasks - tasks // 2
        shares.append(Share(where % 4, first, number, gpu_milli=part))
        if tasks > first:
            shares.append(Share(where // 4, tasks - first, number, gpu_milli=part))
    return shares


LOST = st.sampled_from([set(), set(), {1}])
LIMITS = st.sampled_from([{}, {"x": 3}])
POLICIES = st.sampled_from([WaterFilling(), Pause()])
IDLE_W = sum(
    Fraction(idle_w) + gpus * (Fraction(GPUS[model].idle_w) if gpus else 0)
    for _, gpus, model, idle_w in NODES
)


class Desk:
    """A draft, and what an outsider can know of it."""

    def __init__(
        self, watts: PowerAccount, lost: set[int], limits: dict[str, int], quota: bool
    ) -> None:
        self.watts, self.lost, self.limits = watts, lost, limits
        self.planned = Book(CLUSTER)
        self.jobs = {
            spec.id: JobRecord(spec=spec, number=number) for number, spec in enumerate(SPECS)
        }
        self.strikes: Counter[str] = Counter()
        self.draft = GuardedDraft(
            self.planned, self.jobs, lost, watts, Questions(), 0.0, QUOTA if quota else None, {},
            self.strikes, limits,
        )  # fmt: skip

    def books(self) -> dict[str, Any]:
        """Every account that a proposal touches."""
        planned, watts, draft = self.planned, self.watts, self.draft
        return {
            "cpu": planned.cpu_free.tolist(),
            "memory": planned.memory_free.tolist(),
            "whole": planned.whole.tolist(),
            "gpus": [planned.gpu_free(node) for node in range(len(NODES))],
            "sums": (planned.whole_gpus, planned.used_cpu_milli, planned.used_gpu_milli),
            "wanted": {job.id: job.wanted for job in self.jobs.values()},
            "plan room": watts.room_mw(),
            "asks": dict(watts._asks),
            "idle of the plan": watts._plan.idle_mw,
            "asked": len(watts._demand),
            "shared": {job_id: watts._plan.shared.devices(job_id) for job_id in self.jobs},
            "loads": list(watts._plan.nw),
            "quota": {key: gpus for key, gpus in draft._use.gpus.items() if gpus},
            "tenants": {key: gpus for key, gpus in draft._tenants._held.items() if gpus},
            "stops": dict(draft.stops),
            "ended": dict(draft.ended),
        }

    def propose(self, what: str, number: int, given: Any, milli: int) -> None:
        job = self.jobs[SPECS[number].id]
        planned = [one for one in self.jobs.values() if one.wanted]
        if what in ("stop", "end") and planned:
            job = planned[number % len(planned)]
        if what == "fit":
            what, shares = "start", whole_gang(job.spec, given, milli)
        else:
            shares = (
                given
                if what == "nonsense"
                else [one for one in given if one.role < len(job.spec.roles)]
            )
        if what == "nonsense":
            self.propose_nonsense(job, given)
            return
        before, struck = self.books(), sum(self.strikes.values())
        refusal = None
        if what == "start":
            refusal = self.draft.start(job, shares)
        elif what == "end":
            refusal = self.draft.end(job, StopReason.TRIAL_ENDED)
        else:
            self.draft.stop(job, StopReason.RECLAIMED)
        if refusal is not None:
            assert self.books() == before, f"refused ({refusal.text()}), and not undone"
            assert sum(self.strikes.values()) - struck <= 1
        elif what == "start":
            assert job.wanted
            check_asked(job, shares)
            self.check_within_limits()
        else:
            assert job.wanted == ()
        self.recount()

    def propose_nonsense(self, job: JobRecord, shares: Any) -> None:
        before = self.books()
        try:
            refusal = self.draft.start(job, shares)
        except (AttributeError, IndexError, TypeError, ValueError):
            refusal = "it cannot be looked at"
        if refusal is not None:
            assert self.books() == before, f"refused ({refusal}), and not undone"
        self.recount()

    def recount(self) -> None:
        """From what the plan gives away, as if it had been given at once."""
        books, given = self.books(), [one for job in self.jobs.values() for one in job.wanted]
        gpus = [[1000] * count for _, count, _, _ in NODES]
        cpu, memory = [16_000] * len(NODES), [64_000] * len(NODES)
        for one in given:
            cpu[one.node] -= one.request.cpu_milli
            memory[one.node] -= one.request.memory_mib
            for gpu in one.gpus:
                gpus[one.node][gpu] -= one.request.gpu_milli
        assert (books["cpu"], books["memory"], books["gpus"]) == (cpu, memory, gpus)
        quota: Counter[tuple[str, str]] = Counter()
        tenants: Counter[str] = Counter()
        for job in self.jobs.values():
            held = sum(len(one.gpus) for one in job.wanted)
            quota[job.spec.queue, job.spec.user] += held
            tenants[job.spec.tenant] += held if job.spec.tenant in self.limits else 0
        if self.draft._quota is not None:
            assert books["quota"] == +quota
        assert books["tenants"] == (+tenants if self.limits else {})

    def device_w(self) -> dict[tuple[int, int], Fraction]:
        """The least watts of every device that the plan gives away, by its dearest job."""
        found: dict[tuple[int, int], Fraction] = {}
        for job in self.jobs.values():
            devices = [(one.node, gpu) for one in job.wanted for gpu in one.gpus]
            models = [GPUS[NODES[node][2]] for node, _ in devices]
            if self.watts.policy.all_or_nothing:
                least_w = max((Fraction(one.max_w) for one in models), default=Fraction(0))
            else:
                floors = (one.min_cap_w or one.max_w / 2 for one in models)
                least_w = max(map(Fraction, floors), default=Fraction(0))
            for device, model in zip(devices, models, strict=True):
                own_w = min(least_w, Fraction(model.max_w))
                found[device] = max(found.get(device, Fraction(0)), own_w)
        return found

    def above_idle_w(self, nodes: set[int]) -> Fraction:
        """What the plan needs at `nodes` beyond idling."""
        return sum(
            (
                least_w - Fraction(GPUS[NODES[node][2]].idle_w)
                for (node, _), least_w in self.device_w().items()
                if node in nodes
            ),
            Fraction(0),
        )

    def check_within_limits(self) -> None:
        """No accepted start leaves a tenant above its limit."""
        for tenant, most in self.limits.items():
            held = sum(
                len(one.gpus)
                for job in self.jobs.values()
                for one in job.wanted
                if job.spec.tenant == tenant
            )
            assert held <= most


def check_asked(job: JobRecord, shares: list[Share]) -> None:
    """An accepted start gives what its roles and shares ask for, node by node."""
    asked: Counter[tuple[int, str]] = Counter()
    for share in shares:
        role = job.spec.roles[share.role]
        cpu_milli = role.cpu_milli if share.cpu_milli is None else share.cpu_milli
        gpus = role.gpu_count if share.gpu_count is None else share.gpu_count
        asked[share.node, "cpu"] += cpu_milli * share.tasks
        asked[share.node, "memory"] += role.memory_mib * share.tasks
        asked[share.node, "gpus"] += gpus * share.tasks
    given: Counter[tuple[int, str]] = Counter()
    for one in job.wanted:
        given[one.node, "cpu"] += one.request.cpu_milli
        given[one.node, "memory"] += one.request.memory_mib
        given[one.node, "gpus"] += len(one.gpus)
        assert len(set(one.gpus)) == len(one.gpus)
        assert (one.request.gpu_milli > 0) == bool(one.gpus)
    assert +asked == +given


class FlatDesk(Desk):
    def __init__(self, budget_w: float | None, policy: Any, *given: Any) -> None:
        watts = PowerAccount(CLUSTER, policy, prior)
        watts.set_budget(budget_w, [])
        self.budget_w = budget_w
        super().__init__(watts, *given)

    def left_w(self) -> Fraction:
        assert self.budget_w is not None
        return Fraction(self.budget_w) - IDLE_W - self.above_idle_w(set(range(len(NODES))))

    def recount(self) -> None:
        super().recount()
        if self.budget_w is not None:
            left_mw = self.left_w() * 1000
            assert self.watts.room_mw() == left_mw
            assert self.watts.overloaded() == (left_mw < 0)
            whole = [
                GPUS[NODES[one.node][2]].idle_w * len(one.gpus)
                for job in self.jobs.values()
                for one in job.wanted
                if one.gpus and one.request.gpu_milli == 1000
            ]
            assert self.watts._plan.idle_mw == round(1000 * sum(whole))

    def check_within_limits(self) -> None:
        super().check_within_limits()
        assert self.budget_w is None or self.left_w() >= 0, "accepted without watts for it"


TREE = PowerTree(
    (
        TreeDomain(name="site", budget_w=700.0),
        TreeDomain(name="row", parent="site", budget_w=420.0, loss=0.05, nodes=("n1",)),
        TreeDomain(name="rack", parent="row", budget_w=260.0, nodes=("n0",)),
        TreeDomain(name="other", parent="site", budget_w=500.0, nodes=("n2", "n3")),
    )
)
BELOW = {"site": ((0, 1, 1), (1, 1, 1), (2, 0, 1), (3, 0, 1)), "row": ((0, 1, 0), (1, 1, 0)),
         "rack": ((0, 0, 0),), "other": ((2, 0, 0), (3, 0, 0))}  # fmt: skip
"""Nodes below each domain, and whether the losses of the row apply; by hand."""


class TreeDesk(Desk):
    def __init__(self, policy: Any, *given: Any) -> None:
        super().__init__(PowerAccount(CLUSTER, policy, prior, TREE), *given)

    def carried_w(self, domain: str) -> Fraction:
        total = Fraction(0)
        for node, lossy, _ in BELOW[domain]:
            _, gpus, model, idle_w = NODES[node]
            idle = Fraction(idle_w) + (gpus * Fraction(GPUS[model].idle_w) if gpus else 0)
            factor = Fraction(1_052_632, 1_000_000) if lossy else 1  # 1 / 0.95, rounded up
            total += (idle + self.above_idle_w({node})) * factor
        return total

    def recount(self) -> None:
        super().recount()
        watts = self.watts
        over = False
        for at, domain in enumerate(TREE.domains):
            carried = self.carried_w(domain.name)
            assert watts.idle_nw(at) + watts._plan.nw[at] == carried * 1_000_000_000
            over |= carried > Fraction(domain.budget_w or 0)
        assert self.watts.overloaded() == over

    def check_within_limits(self) -> None:
        super().check_within_limits()
        for domain in TREE.domains:
            assert self.carried_w(domain.name) <= Fraction(domain.budget_w or 0)


@settings(max_examples=times(150), deadline=None)
@given(
    budget_w=st.sampled_from([None, 100.0, 330.5, 420.0, 560.0, 900.0]),
    policy=POLICIES, lost=LOST, limits=LIMITS, quota=st.booleans(), proposals=PROPOSALS,
)  # fmt: skip
def test_a_refused_proposal_changes_no_book_and_sums_add_up(
    budget_w: float | None, policy: Any, lost: set[int], limits: dict[str, int], quota: bool,
    proposals: list[Any],
) -> None:  # fmt: skip
    desk = FlatDesk(budget_w, policy, lost, limits, quota)
    for proposal in proposals:
        desk.propose(*proposal)


@settings(max_examples=times(150), deadline=None)
@given(policy=POLICIES, lost=LOST, limits=LIMITS, quota=st.booleans(), proposals=PROPOSALS)
def test_under_a_power_tree_the_same_holds_of_every_domain(
    policy: Any, lost: set[int], limits: dict[str, int], quota: bool, proposals: list[Any]
) -> None:
    desk = TreeDesk(policy, lost, limits, quota)
    for proposal in proposals:
        desk.propose(*proposal)


def test_the_watts_of_a_refused_resize_are_not_given_to_others() -> None:
    """Twenty refusals later there are as many watts left as before: too few for one more GPU."""
    idle_w, t4 = float(IDLE_W), GPUS["T4"]
    step_w = (t4.min_cap_w or t4.max_w / 2) - t4.idle_w
    desk = FlatDesk(idle_w + 1.5 * step_w, WaterFilling(), set(), {}, False)
    grows, other = desk.jobs["j1"], desk.jobs["j3"]
    assert desk.draft.start(grows, [Share(0, 1)]) is None
    for _ in range(20):
        refusal = desk.draft.start(grows, [Share(0, 4)])
        assert refusal is not None
        assert refusal.code is ReasonCode.WAITING_FOR_POWER
        assert refusal.available == pytest.approx(1.5 * step_w), "its own watts are its to use"
    refusal = desk.draft.start(other, [Share(0, 1)])
    assert refusal is not None
    assert refusal.asked == pytest.approx(step_w)
    assert refusal.available == pytest.approx(0.5 * step_w)


def test_what_was_shared_before_a_budget_was_lifted_is_forgotten() -> None:
    """A job that ends while nothing is limited leaves nothing behind for the next budget."""
    desk = FlatDesk(900.0, WaterFilling(), set(), {}, False)
    shares = desk.jobs["j3"]
    assert desk.draft.start(shares, [Share(0, 1, gpu_milli=500)]) is None
    assert desk.watts.room_mw() == desk.left_w() * 1000
    desk.watts.set_budget(None, desk.jobs.values())
    shares.wanted = ()
    desk.watts.plan(shares)
    desk.watts.set_budget(900.0, [])
    assert desk.watts.room_mw() == desk.left_w() * 1000


class EvenNodes:
    """Jobs may run on nodes with an even number only."""

    def nodes(self, spec: JobSpec, role: int) -> NDArray[np.bool_]:
        del spec, role
        return np.arange(len(NODES)) % 2 == 0

    def why(self, spec: JobSpec, role: int) -> str:
        del spec, role
        return "odd nodes are closed"


@settings(max_examples=times(60), deadline=None)
@given(lost=LOST, proposals=PROPOSALS, closed=st.booleans())
def test_room_is_what_the_guard_then_gives(lost: set[int], proposals: Any, closed: bool) -> None:
    """Without quotas and budgets a node takes as many tasks as it shows, and not one more."""
    desk = FlatDesk(None, Pause(), lost, {}, False)
    if closed:
        desk.draft._eligible = EvenNodes()  # type: ignore[assignment]
    for proposal in proposals:
        desk.propose(*proposal)
    for job in desk.jobs.values():
        # Parts of a device by memory are sized by the guard, and what ended in this plan stays so.
        sized = job.spec.roles[0].gpu_memory_mib
        if len(job.spec.roles) > 1 or sized or job.wanted or job.id in desk.draft.ended:
            continue
        able = job.spec.counts(0)
        for node, most in enumerate(desk.draft.room(job).tolist()):
            for tasks in {most, most + 1} & set(able):
                refusal = desk.draft.start(job, [Share(node, tasks)])
                assert (refusal is None) == (tasks <= most), (job.spec, node, tasks, most)
                if refusal is None:
                    desk.draft.stop(job, StopReason.RECLAIMED)


@settings(max_examples=times(60), deadline=None)
@given(lost=LOST, policy=POLICIES, proposals=PROPOSALS)
def test_what_can_start_below_a_tree_is_shown_room(
    lost: set[int], policy: Any, proposals: Any
) -> None:
    """Budgets hide GPUs that no start could power, and none that one could."""
    desk = TreeDesk(policy, lost, {}, False)
    for proposal in proposals:
        desk.propose(*proposal)
    for job in desk.jobs.values():
        if len(job.spec.roles) > 1 or job.wanted or job.id in desk.draft.ended:
            continue
        least = job.spec.counts(0).start
        shown = int(desk.draft.room(job).sum())
        for node in range(len(NODES)):
            if desk.draft.start(job, [Share(node, least)]) is None:
                assert shown >= least, (job.spec, node, shown)
                desk.draft.stop(job, StopReason.RECLAIMED)


def test_a_share_asks_for_all_its_tasks_together() -> None:
    worker = TaskRole(count=3, cpu_milli=500, memory_mib=2_000, gpu_count=2)
    asked = share_request(worker, Share(0, 3), ("T4",))
    assert (asked.cpu_milli, asked.memory_mib) == (1_500, 6_000)
    assert (asked.gpu_count, asked.gpu_milli, asked.models) == (6, 1_000, ("T4",))
    narrow = share_request(worker, Share(0, 2, cpu_milli=250, gpu_count=1, gpu_milli=400), ())
    assert (narrow.cpu_milli, narrow.memory_mib) == (500, 4_000)
    assert (narrow.gpu_count, narrow.gpu_milli) == (2, 400)
    without = share_request(TaskRole(count=2, cpu_milli=100, gpu_count=0), Share(1, 2), ("T4",))
    assert (without.gpu_count, without.gpu_milli, without.models) == (0, 0, ())
