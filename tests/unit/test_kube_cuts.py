"""Whom budgets stop: nobody who need not be, in every mode, however slowly the stopped ones go.

A small world of two racks below a hall. Budgets are cut and raised in any order, several in one
instant; pods come, end, are deleted by others and take their time to go; evictions are refused,
nodes fall silent, are deleted and come back; deciders start anew. At every look the works that are
told to stop are compared with the choice of an oracle that tries out every set (`cut_oracle`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kube_builders import a_node, a_pod, fleet_of, node_json, pod_json

from cut_oracle import Work, who_must_stop
from wattherd.kube.account.binding_mode import BindingMode, ByBinding
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.enforcement_tally import Suspended
from wattherd.kube.account.gates import ByGate
from wattherd.kube.account.watt_claims import CLAIM, ByClaim
from wattherd.kube.decide.budget_enforcer import SETTLE_S, BudgetEnforcer
from wattherd.kube.decide.extender import Extender
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.orders import (
    BindPod,
    CapPod,
    EvictPod,
    Order,
    ReleasePod,
    ResumeOwner,
    StopPods,
)
from wattherd.kube.facts.stopping import WAIT_S
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

Json = dict[str, Any]
NODES, GPUS, IDLE_W, MAX_W, LEAST_W = 4, 2, 10, 70, 30
TREE = DomainTree({"hall": DomainBranch(), "r0": DomainBranch("hall"), "r1": DomainBranch("hall")})
OFFERED_W = {"hall": 480, "r0": 240, "r1": 240}
EMPTY_W = {"hall": NODES * GPUS * IDLE_W, "r0": GPUS * GPUS * IDLE_W, "r1": GPUS * GPUS * IDLE_W}
BUDGET_CUT = "BudgetCut"
PATIENT_S = 20.0
"""Whoever was told to go is being deleted after this long, in these worlds."""


class Decider(ABC):
    """A mode: what it is told, and what it wants done."""

    places = True
    """Whether it says where pods go."""

    @abstractmethod
    def begin(self) -> None:
        """One that knows nothing."""

    @property
    @abstractmethod
    def curb(self) -> BudgetEnforcer:
        """What it does about those who run."""

    @abstractmethod
    def look(self, at_s: float) -> list[Order]:
        """What is to be done."""

    def written(self, made: Json) -> Json:
        """A pod as its users write it for this mode."""
        return made


class Schedules(Decider):
    def __init__(self, way: Callable[[], BindingMode]) -> None:
        self._way = way
        self.begin()

    def begin(self) -> None:
        self.it = KubeScheduler(fleet_of("first-fit"), {}, holder="test", way=self._way())
        self.places = not isinstance(self.it.way, ByClaim)

    @property
    def curb(self) -> BudgetEnforcer:
        return self.it.curb

    def look(self, at_s: float) -> list[Order]:
        return [*self.it.curb_orders(at_s), *self.it.plan(at_s)]

    def written(self, made: Json) -> Json:
        match self.it.way:
            case ByGate():
                made["spec"]["schedulingGates"] = [{"name": "wattherd.dev/power"}]
            case ByClaim():
                name = "wattherd-1-gpus-t4"
                claim = {"name": CLAIM, "resourceClaimTemplateName": name}
                made["spec"]["resourceClaims"] = [claim]
            case _:
                made["spec"]["schedulerName"] = "wattherd"
        return made


class Extends(Decider):
    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.it = Extender(fleet_of("first-fit"), Domains({}), holder="test")
        self.it.synced = True

    @property
    def curb(self) -> BudgetEnforcer:
        return self.it.curb

    def look(self, at_s: float) -> list[Order]:
        return self.it.curb_orders(at_s)


class Cuts(RuleBasedStateMachine):
    """`pods` and `nodes` are as the API has them, and heard as soon as they are so.

    `going` are pods that were told to go and are not deleted yet.
    """

    def __init__(self, decider: Decider) -> None:
        super().__init__()
        self.decider: Any = decider
        self.now_s = 1000.0
        self.serial = 0
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.jobs: dict[str, Suspended] = {}
        self.going: dict[str, str] = {}
        """How each was told: `evict` or `suspend`."""
        self.binds: dict[str, tuple[str, float, Callable[[], None]]] = {}
        """On their way, by uid of the pod: to which node, and since when."""
        self.asked_s: dict[str, float] = {}
        """Of pods that were told to go and refused to, or may yet: since when."""
        self.budgets = {name: EMPTY_W[name] + watts for name, watts in OFFERED_W.items()}

    @initialize(agents=st.sampled_from([frozenset({0, 1, 2, 3}), frozenset({0, 1}), frozenset()]))
    def begin(self, agents: frozenset[int]) -> None:
        for row in range(NODES):
            made = node_json(a_machine(f"n{row}", gpus=GPUS, model="T4"))
            labels = {"wattherd.dev/power-domain": f"r{row % 2}"}
            del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
            if row in agents:
                labels |= {"wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": str(LEAST_W)}
            made["metadata"]["labels"].update(labels)
            self.nodes[f"n{row}"] = made
        self.start()
        self.come([(n % 2, n % 3) for n in range(6)])
        self.come_to_rest()

    def start(self) -> None:
        self.decider.begin()
        self.told = self.decider.it
        self.told.power_seen(TREE, {name: 1000 * most for name, most in self.budgets.items()})
        for made in self.nodes.values():
            self.told.node_seen(a_node(made))
        for uid in self.pods:
            self.see(uid)
        self.decider.curb.suspended.update(self.jobs)

    def see(self, uid: str) -> None:
        self.told.pod_seen(a_pod(self.pods[uid]), self.now_s)

    # --- what happens ------------------------------------------------------------------------

    @rule(wanted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=4))
    def come(self, wanted: list[tuple[int, int]]) -> None:
        """Pods of a GPU each: bare ones, of a Job, of what makes them anew."""
        for priority, kind in wanted[: NODES * GPUS - len(self.pods)]:
            self.create(priority, ("", "Job", "ReplicaSet")[kind])
        self.look()

    def create(self, priority: int, kind: str) -> None:
        self.serial += 1
        made = pod_json(f"p{self.serial:03d}", exclusive(1000, gpus=1), priority=priority,
                        preemptionPolicy="Never")  # fmt: skip
        made["metadata"]["creationTimestamp"] = f"2026-11-21T00:{self.serial // 8:02d}:00Z"
        if kind:
            api = "batch/v1" if kind == "Job" else "apps/v1"
            owner = {"kind": kind, "apiVersion": api, "name": f"o{self.serial}"}
            owner |= {"uid": f"owner-{self.serial}", "controller": True}
            made["metadata"]["ownerReferences"] = [owner]
        made = self.decider.written(made)
        uid = made["metadata"]["uid"]
        self.pods[uid] = made
        self.see(uid)

    @rule(
        changes=st.lists(
            st.tuples(
                st.sampled_from(["hall", "r0", "r1"]),
                st.sampled_from([-60, 0, 60, 130, 240, 330, 480]),
            ),
            min_size=1,
            max_size=4,
        ),
        looks=st.booleans(),
    )
    def change_budgets(self, changes: list[tuple[str, int]], looks: bool) -> None:
        """In one instant, one after the other; a budget may be less than idle nodes draw."""
        for name, watts in changes:
            self.budgets[name] = EMPTY_W[name] + watts
            self.told.power_seen(TREE, {one: 1000 * most for one, most in self.budgets.items()})
        if looks:
            self.look()

    @rule(data=st.data(), what=st.sampled_from(["marked", "gone", "gone", "refused"]))
    def goes_on(self, data: st.DataObject, what: str) -> None:
        """What was ordered gets one step further, or is refused."""
        marked = [uid for uid in self.pods if self.is_marked(uid)]
        among = sorted(marked if what == "gone" else self.going)
        if not among:
            return
        uid = data.draw(st.sampled_from(among))
        if what == "gone":
            self.drop(uid)
        elif what == "marked":
            self.mark(uid)
        elif self.going[uid] == "evict" and self.now_s - self.asked_s[uid] < PATIENT_S:
            del self.going[uid]
            self.told.not_evicted(uid)

    @rule()
    def all_that_was_stopped_is_gone_and_a_budget_is_raised(self) -> None:
        for uid in [*self.going, *(uid for uid in self.pods if self.is_marked(uid))]:
            if uid in self.pods and not self.is_silent(uid):
                self.drop(uid)
        self.look()

    @rule(data=st.data())
    def is_deleted_by_its_user(self, data: st.DataObject) -> None:
        if self.pods:
            uid = data.draw(st.sampled_from(sorted(self.pods)))
            if self.node_of(uid):
                self.mark(uid)
            else:
                self.drop(uid)
            self.look()

    @rule(data=st.data(), silent=st.booleans())
    def kubelet_falls_silent_or_speaks(self, data: st.DataObject, silent: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        state = "Unknown" if silent else "True"
        self.nodes[name]["status"]["conditions"] = [{"type": "Ready", "status": state}]
        self.told.node_seen(a_node(self.nodes[name]))
        self.look()

    @rule(data=st.data())
    def node_is_deleted_and_registers_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        if self.used(name) and not self.silent(name):  # an empty one draws nothing any more
            self.told.node_gone(name)
            self.look()
            self.told.node_seen(a_node(self.nodes[name]))
            self.look()

    @rule(data=st.data())
    def binding_arrives(self, data: st.DataObject) -> None:
        if self.binds:
            self.binds.pop(data.draw(st.sampled_from(sorted(self.binds))))[2]()
            self.look()

    @rule()
    def somebody_else_leads(self) -> None:
        """Stops that were on their way may have come through, or not: those that are not do not."""
        self.all_are_bound()
        stay = [uid for uid, how in self.going.items() if how != "evict"]
        self.going = {uid: "found suspended" for uid in stay if self.owner_of(uid) in self.jobs}
        self.asked_s = {uid: at_s for uid, at_s in self.asked_s.items() if uid in self.going}
        self.start()
        self.look()

    @rule(seconds=st.sampled_from([0.25, 0.25, 2.5, 2.5, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.agents_act()
        for uid in [*self.going]:
            if self.now_s - self.asked_s[uid] > PATIENT_S:
                self.mark(uid)
        self.look()

    def agents_act(self) -> None:
        for uid in sorted(self.pods):
            notes = self.pods[uid]["metadata"]["annotations"]
            asked, applied = (
                notes.get("wattherd.dev/cap-w"),
                notes.get("wattherd.dev/cap-applied-w"),
            )
            if self.node_of(uid) and asked != applied and not self.is_silent(uid):
                notes.pop("wattherd.dev/cap-applied-w", None)
                notes |= {} if asked is None else {"wattherd.dev/cap-applied-w": asked}
                self.see(uid)

    # --- the cluster -------------------------------------------------------------------------

    def node_of(self, uid: str) -> str:
        return str(self.pods[uid]["spec"].get("nodeName", ""))

    def seat_of(self, uid: str) -> str:
        notes = self.pods[uid]["metadata"]["annotations"]
        reserved = self.binds[uid][0] if uid in self.binds else ""
        return self.node_of(uid) or str(notes.get("wattherd.dev/planned-node", reserved))

    def rack(self, node: str) -> str:
        return str(self.nodes[node]["metadata"]["labels"]["wattherd.dev/power-domain"])

    def is_marked(self, uid: str) -> bool:
        return "deletionTimestamp" in self.pods[uid]["metadata"]

    def silent(self, node: str) -> bool:
        conditions = self.nodes[node]["status"].get("conditions", [])
        return any(one["status"] == "Unknown" for one in conditions)

    def owner_of(self, uid: str) -> str:
        owners = self.pods[uid]["metadata"].get("ownerReferences", [])
        return str(owners[0]["uid"]) if owners else ""

    def is_silent(self, uid: str) -> bool:
        return bool(self.node_of(uid)) and self.silent(self.node_of(uid))

    def mark(self, uid: str) -> None:
        self.going.pop(uid, None)
        self.asked_s.pop(uid, None)
        self.pods[uid]["metadata"]["deletionTimestamp"] = "2026-11-21T01:00:00Z"
        self.see(uid)

    def drop(self, uid: str) -> None:
        """Gone; on a silent node only once that speaks again."""
        if self.is_silent(uid):
            return
        del self.pods[uid]
        self.going.pop(uid, None)
        self.asked_s.pop(uid, None)
        self.binds.pop(uid, None)
        self.told.pod_gone(uid)

    def used(self, node: str) -> int:
        return sum(1 for uid in self.pods if self.seat_of(uid) == node)

    def place(self) -> None:
        """What a kube-scheduler does, where it is not us."""
        for uid in sorted(self.pods):
            if self.seat_of(uid) or uid in self.binds or self.is_marked(uid):
                continue
            free = [name for name in self.nodes if self.used(name) < GPUS and not self.silent(name)]
            if isinstance(self.told, Extender):
                pod = a_pod(self.pods[uid])
                node = self.told.filter(pod, free, self.now_s).node
                if node is not None:
                    grant = self.told.grant(uid, node, self.now_s)
                    notes = {**grant.annotations, "wattherd.dev/decision": grant.decision}
                    self.begin_to_bind(uid, node, notes)
            elif not self.decider.places:
                for node in free:
                    names = (self.rack(node), "hall")
                    if all(self.drawn_w(one) + 60 <= self.budgets[one] for one in names):
                        self.bind(uid, node, {})
                        break

    def begin_to_bind(self, uid: str, node: str, notes: dict[str, str]) -> None:
        self.binds[uid] = (node, self.now_s, lambda: self.bind(uid, node, notes))

    def all_are_bound(self) -> None:
        for _, _, bind in list(self.binds.values()):
            bind()
        self.binds.clear()

    def bind(self, uid: str, node: str, notes: dict[str, str]) -> None:
        if uid in self.pods and not self.is_marked(uid):
            self.pods[uid]["spec"]["nodeName"] = node
            self.pods[uid]["metadata"]["annotations"].update(notes)
            self.see(uid)

    def drawn_w(self, name: str) -> float:
        return EMPTY_W[name] + sum(
            MAX_W - IDLE_W
            for uid in self.pods
            if self.seat_of(uid) and name in (self.rack(self.seat_of(uid)), "hall")
        )

    # --- what is decided ---------------------------------------------------------------------

    def look(self) -> None:
        self.place()
        over = self.over_w()
        must = set() if self.are_arriving(over) else self.must_stop(over)
        stopped = set[str]()
        for order in self.decider.look(self.now_s):
            stopped.update(self.carry_out(order))
        assert stopped == must, (stopped, must, self.told_story())

    def over_w(self) -> dict[str, float]:
        """By domain what is too much, with everybody at the lowest cap; what goes is gone."""
        over = {name: float(EMPTY_W[name] - most) for name, most in self.budgets.items()}
        gives_w = {uid: self.gives_w(uid) for uid in self.pods if self.seat_of(uid)}
        for uid, gives in gives_w.items():
            if self.is_silent(uid) or not (uid in self.going or self.is_marked(uid)):
                for name, watts in gives.items():
                    over[name] += watts
        for uid in [uid for uid in self.asked_s if uid not in self.going]:
            if all(over[name] <= 0 for name in gives_w.get(uid, ())):
                del self.asked_s[uid]
        return over

    def must_stop(self, over_w: dict[str, float]) -> set[str]:
        """By the oracle, pods that are told to go now: nobody goes for one that is not there."""
        over_w = dict(over_w)
        for uid in self.binds:
            if uid in self.pods and not (self.node_of(uid) or self.is_released(uid)):
                for name, watts in self.gives_w(uid).items():
                    over_w[name] -= watts
        able = [uid for uid in self.pods if self.seat_of(uid) and self.may_be_told(uid)]
        return who_must_stop(over_w, [self.work(uid, self.gives_w(uid)) for uid in able])

    def are_arriving(self, over_w: dict[str, float]) -> bool:
        """Whether pods are about to be seen where too much is drawn: then nobody is stopped yet."""
        fresh = [seat for seat, at_s, _ in self.binds.values() if self.now_s - at_s < SETTLE_S]
        return any(over_w[name] > 0 for seat in fresh for name in (self.rack(seat), "hall"))

    def may_be_told(self, uid: str) -> bool:
        """Those who are there, and do not go already; on a silent node nobody would listen."""
        there = self.node_of(uid) or uid not in self.binds or self.is_released(uid)
        goes = uid in self.going or self.is_marked(uid)
        return bool(there) and not goes and not self.silent(self.seat_of(uid))

    def is_released(self, uid: str) -> bool:
        return "wattherd.dev/planned-node" in self.pods[uid]["metadata"]["annotations"]

    def gives_w(self, uid: str) -> dict[str, float]:
        """By domain what it draws at least while it is there."""
        seat = self.seat_of(uid)
        capped = "wattherd.dev/agent" in self.nodes[seat]["metadata"]["labels"]
        watts = float((LEAST_W if capped and self.node_of(uid) else MAX_W) - IDLE_W)
        return dict.fromkeys((self.rack(seat), "hall"), watts)

    def work(self, uid: str, gives: dict[str, float]) -> Work:
        made = self.pods[uid]
        bare = "ownerReferences" not in made["metadata"]
        newest = made["metadata"]["creationTimestamp"]
        begun = uid in self.asked_s
        return Work(uid, made["spec"]["priority"], newest, bare, gives, begun=begun)

    def carry_out(self, order: Order) -> set[str]:
        """What is ordered is on its way; who is told to stop by it."""
        match order:
            case BindPod():
                notes = {**order.annotations, "wattherd.dev/decision": order.decision}
                self.begin_to_bind(order.uid, order.node, notes)
            case ReleasePod():
                self.release(order)
            case EvictPod():
                assert BUDGET_CUT in order.why, order
                assert order.uid not in self.going, "told twice"
                self.going[order.uid] = "evict"
                self.asked_s.setdefault(order.uid, self.now_s)
                return {order.uid}
            case StopPods():
                assert order.owner is not None
                if order.owner.kind != "Job":
                    return self.evict_all(order)
                needs = {name: round(1000 * watts) for name, watts in order.needs_w.items()}
                job = Suspended(order.owner.uid, needs, order.priority)
                self.jobs[order.owner.uid] = self.decider.curb.suspended[order.owner.uid] = job
                self.going.update(dict.fromkeys(order.uids, "suspend"))
                self.asked_s.update(dict.fromkeys(order.uids, self.now_s))
                return set(order.uids)
            case ResumeOwner():
                self.decider.curb.suspended.pop(order.uid)
                del self.jobs[order.uid]
                for uid in [one for one, how in self.going.items() if how == "found suspended"]:
                    if self.owner_of(uid) == order.uid:  # who leads now never told it to go
                        del self.going[uid], self.asked_s[uid]
            case CapPod() if order.uid in self.pods:
                self.ask(order)
            case _:
                pass
        return set()

    def evict_all(self, order: StopPods) -> set[str]:
        """Nothing owns them that can be suspended."""
        self.now_s += 0.01
        if isinstance(self.told, Extender):
            more: list[Order] = [*self.told.evictions(order.uids, order.why)]
        else:
            self.told.not_suspended(order.uids, order.why)
            more = [one for one in self.told.plan(self.now_s) if isinstance(one, EvictPod)]
        for each in more:
            self.carry_out(each)
        return {one.uid for one in more if isinstance(one, EvictPod)}

    def release(self, order: ReleasePod) -> None:
        made = self.pods[order.uid]
        made["spec"].pop("schedulingGates")
        made["metadata"]["annotations"].update(order.annotations)
        node = order.annotations["wattherd.dev/planned-node"]
        self.see(order.uid)
        self.begin_to_bind(order.uid, node, {})

    def ask(self, order: CapPod) -> None:
        notes = self.pods[order.uid]["metadata"]["annotations"]
        notes.pop("wattherd.dev/cap-w", None)
        if order.cap_w is not None:
            notes["wattherd.dev/cap-w"] = f"{order.cap_w:g}"
        if order.forgets:
            notes.pop("wattherd.dev/cap-applied-w", None)
        self.see(order.uid)

    def come_to_rest(self) -> None:
        for _ in range(20):
            self.all_are_bound()
            self.pass_time(1.0)

    def told_story(self) -> str:
        return json.dumps({"budgets": self.budgets, "going": self.going, "pods": self.pods})


class SchedulerCuts(Cuts):
    def __init__(self) -> None:
        super().__init__(Schedules(lambda: ByBinding("wattherd")))


class GateCuts(Cuts):
    def __init__(self) -> None:
        super().__init__(Schedules(ByGate))


class ClaimCuts(Cuts):
    def __init__(self) -> None:
        super().__init__(Schedules(ByClaim))


class ExtenderCuts(Cuts):
    def __init__(self) -> None:
        super().__init__(Extends())


_SETTINGS = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestSchedulerCuts, TestGateCuts = SchedulerCuts.TestCase, GateCuts.TestCase
TestClaimCuts, TestExtenderCuts = ClaimCuts.TestCase, ExtenderCuts.TestCase
TestSchedulerCuts.settings = TestGateCuts.settings = _SETTINGS
TestClaimCuts.settings = TestExtenderCuts.settings = _SETTINGS


SCHEDULES = [
    pytest.param(lambda: ByBinding("wattherd"), id="scheduler"),
    pytest.param(ByGate, id="admission"),
    pytest.param(ByClaim, id="devices"),
]


@pytest.mark.parametrize("way", SCHEDULES)
def test_who_must_not_stop_stays_when_the_one_that_had_to_is_gone(
    way: Callable[[], BindingMode],
) -> None:
    """Eight pods; the budget bears seven, so that one goes, then six of them, and so on."""
    world = Cuts(Schedules(way))
    world.begin(frozenset())
    world.come([(0, 0), (0, 2)])
    world.come_to_rest()
    assert len(world.pods) == NODES * GPUS
    for left in (7, 6, 4):
        world.change_budgets([("hall", 60 * left)], looks=True)
        world.pass_time(0.25)
        world.all_that_was_stopped_is_gone_and_a_budget_is_raised()
        world.come_to_rest()
        assert len(world.pods) == left


def test_one_that_does_not_go_within_thirty_seconds_is_passed_over_and_stays_when_watts_rise() -> (
    None
):
    """Its eviction is refused again and again: another goes, and it is not asked any more."""
    world = Cuts(Schedules(lambda: ByBinding("wattherd")))
    world.begin(frozenset())
    scheduler = world.told

    def told(at_s: float) -> list[str]:
        world.now_s = at_s
        return [one.uid for one in world.decider.look(at_s) if isinstance(one, EvictPod)]

    newest = max(uid for uid in world.pods if "ownerReferences" not in world.pods[uid]["metadata"])
    for uid in [uid for uid in world.pods if "ownerReferences" in world.pods[uid]["metadata"]]:
        world.drop(uid)
    left = sorted(world.pods)
    world.budgets["hall"] = EMPTY_W["hall"] + 60 * (len(left) - 1)
    scheduler.power_seen(TREE, {one: 1000 * most for one, most in world.budgets.items()})
    start_s = world.now_s
    [first] = told(start_s)
    for passed_s in range(5, 30, 5):
        scheduler.not_evicted(first)
        assert told(start_s + passed_s) == [first], "asked again, before any other"
    scheduler.not_evicted(first)
    [second] = told(start_s + WAIT_S)
    assert second != first
    assert newest in left
    scheduler.not_evicted(second)
    world.budgets["hall"] = EMPTY_W["hall"] + 480
    scheduler.power_seen(TREE, {one: 1000 * most for one, most in world.budgets.items()})
    assert told(start_s + WAIT_S + 5) == [], "there are watts again: nobody is asked"
    assert told(start_s + WAIT_S + 60) == []
