"""Budgets that are cut, raised and cut again while agents are slow, deaf or absent.

A small world of nodes in two racks below a hall, pods of a scheduler, agents that set caps when it
suits them. Counted watts are compared with what devices may really draw: a device at the cap that
its agent set, in use without one at its maximum, else idle.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kube_builders import a_node, a_pod, bound, fleet_of, node_json, pod_json

from effort import times
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.enforcement_tally import Suspended
from wattherd.kube.account.fleet import Holding
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.budget_enforcer import CAP_WAIT_S, PLEDGE_S, BudgetEnforcer
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.orders import (
    BindPod,
    CapPod,
    EvictPod,
    Order,
    ResumeOwner,
    StopPods,
)
from wattherd.kube.facts.pod_request import ask_of
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

Json = dict[str, Any]
GPUS, IDLE_W, MAX_W, LEAST_W = 2, 10, 70, 30
TREE = DomainTree({"hall": DomainBranch(), "r0": DomainBranch("hall"), "r1": DomainBranch("hall")})
AGENTS = [frozenset({0, 1, 2, 3}), frozenset({0, 1, 2, 3}), frozenset({0, 1}), frozenset[int]()]
"""On which nodes there are agents."""
EMPTY_W = 4 * GPUS * IDLE_W


def gpus_of(pod: Json) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"])


class Curbed(RuleBasedStateMachine):
    """What the API says in `pods`, what agents did in `caps`."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.caps: dict[str, float] = {}
        self.jobs: dict[str, Suspended] = {}
        self.serial = 0
        self.budgets = {"hall": EMPTY_W + 400}
        self.over: dict[str, float] = {}

    @initialize(agents=st.sampled_from(AGENTS), full=st.sampled_from([True, True, False]))
    def begin(self, agents: frozenset[int], full: bool) -> None:
        for row in range(4):
            labels = {"wattherd.dev/power-domain": f"r{row % 2}"}
            if row in agents:
                labels |= {"wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": str(LEAST_W)}
            made = node_json(a_machine(f"n{row}", gpus=GPUS, model="T4"))
            made["metadata"]["labels"].update(labels)
            self.nodes[f"n{row}"] = made
        self.start()
        self.come([(row % 3, 1, row % 2 == 0) for row in range(8 if full else 0)])

    def start(self) -> None:
        """A scheduler that knows what the API says and nothing else."""
        self.scheduler = KubeScheduler(fleet_of("first-fit"), {}, holder="test")
        for made in self.nodes.values():
            self.scheduler.node_seen(a_node(made))
        for uid in self.pods:
            self.see(uid)
        self.scheduler.curb.suspended.update(self.jobs)
        self.say()

    def say(self) -> None:
        budgets = {name: 1000 * most for name, most in self.budgets.items()}
        self.scheduler.power_seen(TREE, budgets)

    def see(self, uid: str) -> None:
        self.scheduler.pod_seen(a_pod(self.pods[uid]), self.now_s)

    # --- what happens ------------------------------------------------------------------------

    @rule(
        wanted=st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, GPUS), st.booleans()),
            min_size=2,
            max_size=6,
        )
    )
    def come(self, wanted: list[tuple[int, int, bool]]) -> None:
        """Pods, as many as there are GPUs in all."""
        for priority, gpus, owned in wanted[: 4 * GPUS - len(self.pods)]:
            self.create(priority, gpus, owned=owned)
        self.pass_time(0.25)

    def create(self, priority: int, gpus: int, *, owned: bool) -> None:
        self.serial += 1
        made = pod_json(f"p{self.serial}", exclusive(1000, gpus=gpus), schedulerName="wattherd",
                        priority=priority)  # fmt: skip
        made["metadata"]["creationTimestamp"] = f"2026-11-21T00:00:{self.serial % 60:02d}Z"
        if owned:
            owner = {"kind": "Job", "apiVersion": "batch/v1", "name": f"j{self.serial}"}
            owner |= {"uid": f"job-{self.serial}", "controller": True}
            made["metadata"]["ownerReferences"] = [owner]
        uid = made["metadata"]["uid"]
        self.pods[uid] = made
        self.see(uid)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.pods:
            self.drop(data.draw(st.sampled_from(sorted(self.pods))))

    def drop(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.caps.pop(uid, None)
        self.scheduler.pod_gone(uid)

    @rule(
        name=st.sampled_from(["hall", "r0", "r1"]),
        watts=st.sampled_from([0, 60, 130, 240, 330, 480]),
        rests=st.sampled_from(["", "with agents", "without"]),
    )
    def set_budget(self, name: str, watts: int, rests: str) -> None:
        empty = EMPTY_W if name == "hall" else EMPTY_W // 2
        self.budgets[name] = empty + watts
        self.say()
        self.over = self.beyond()
        self.pass_time(0.25)
        if rests:
            self.come_to_rest(rests == "with agents")

    @rule(tells=st.booleans(), racks=st.sampled_from(["r0", "r1", "r0 r1"]))
    def agents_act(self, tells: bool, racks: str) -> None:
        """Those of some racks set what is asked for, and say so or not yet."""
        for uid in sorted(self.pods):
            if self.has_agent(uid) and self.rack(uid) in racks:
                self.obey(uid, tells=tells)
        self.pass_time(0.25)

    def rack(self, uid: str) -> str:
        labels = self.nodes[self.pods[uid]["spec"]["nodeName"]]["metadata"]["labels"]
        return str(labels["wattherd.dev/power-domain"])

    def has_agent(self, uid: str) -> bool:
        node = self.pods[uid]["spec"].get("nodeName", "")
        return bool(node) and "wattherd.dev/agent" in self.nodes[node]["metadata"]["labels"]

    def obey(self, uid: str, *, tells: bool) -> None:
        notes = self.pods[uid]["metadata"]["annotations"]
        asked = notes.get("wattherd.dev/cap-w")
        if asked is None:
            self.caps.pop(uid, None)
        else:
            self.caps[uid] = float(asked)
        if tells:
            notes.pop("wattherd.dev/cap-applied-w", None)
            notes |= {} if asked is None else {"wattherd.dev/cap-applied-w": asked}
        self.see(uid)

    @rule()
    def restart(self) -> None:
        self.start()

    @rule(seconds=st.sampled_from([0.25, 2.0, CAP_WAIT_S + 1, PLEDGE_S + 1]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for order in [*self.scheduler.curb_orders(self.now_s), *self.scheduler.plan(self.now_s)]:
            self.carry_out(order)

    def carry_out(self, order: Order) -> None:
        match order:
            case BindPod():
                made = self.pods[order.uid]
                made["spec"]["nodeName"] = order.node
                made["metadata"]["annotations"].update(order.annotations)
                self.see(order.uid)
            case EvictPod():
                self.drop(order.uid)
            case CapPod() if order.uid in self.pods:
                notes = self.pods[order.uid]["metadata"]["annotations"]
                if order.cap_w is None:
                    notes.pop("wattherd.dev/cap-w", None)
                else:
                    notes["wattherd.dev/cap-w"] = f"{order.cap_w:g}"
                if order.forgets:
                    notes.pop("wattherd.dev/cap-applied-w", None)
                self.see(order.uid)
            case StopPods():
                assert order.owner is not None
                needs = {name: round(1000 * watts) for name, watts in order.needs_w.items()}
                job = Suspended(order.owner.uid, needs, order.priority)
                self.jobs[order.owner.uid] = self.scheduler.curb.suspended[order.owner.uid] = job
                for uid in order.uids:
                    self.drop(uid)
            case ResumeOwner():
                del self.jobs[order.uid]
                self.scheduler.curb.suspended.pop(order.uid)
            case _:
                pass

    # --- what must hold ----------------------------------------------------------------------

    def draws_w(self) -> dict[str, float]:
        """What each domain may really draw."""
        found = dict.fromkeys(TREE.branches, 0.0)
        for name, node in self.nodes.items():
            rack = node["metadata"]["labels"]["wattherd.dev/power-domain"]
            watts = float(GPUS * IDLE_W)
            for uid, pod in self.pods.items():
                if pod["spec"].get("nodeName") == name:
                    count = int(
                        pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"]
                    )
                    watts += min(self.caps.get(uid, 1e9), count * MAX_W) - count * IDLE_W
            found[rack] += watts
            found["hall"] += watts
        return found

    def beyond(self) -> dict[str, float]:
        drawn = self.draws_w()
        return {name: max(0.0, drawn[name] - most) for name, most in self.budgets.items()}

    @invariant()
    def no_budget_is_exceeded_but_by_a_cut_and_then_ever_less(self) -> None:
        if self.nodes:
            now = self.beyond()
            assert all(now[name] <= self.over.get(name, 0.0) + 1e-6 for name in now), (
                now,
                self.over,
            )
            self.over = now

    def come_to_rest(self, answers: bool) -> None:
        """Every budget is kept in the end, whether agents answer or not."""
        for _ in range(12):
            self.pass_time(1.0 if answers else CAP_WAIT_S / 2)
            for uid in [uid for uid in self.pods if answers and self.has_agent(uid)]:
                self.obey(uid, tells=True)
        # An empty node draws its idle watts, whatever the budget.
        assert not any(self.beyond().values()), (self.beyond(), json.dumps(self.pods))


TestCurbed = Curbed.TestCase
TestCurbed.settings = settings(max_examples=times(80), stateful_step_count=30, deadline=None)


def test_a_look_costs_as_many_pods_as_are_on_nodes_with_an_agent() -> None:
    """Eight pods on four nodes, of which one has an agent."""
    fleet, pods, asked_about = fleet_of("first-fit"), {}, list[str]()
    for row in range(4):
        made = node_json(a_machine(f"n{row}", gpus=GPUS, model="T4"))
        agent = {"wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": str(LEAST_W)}
        made["metadata"]["labels"].update(agent if row == 1 else {})
        fleet.node_seen(node_facts(a_node(made)))
    for row in range(8):
        pod = a_pod(bound(pod_json(f"p{row}", exclusive(1_000, 1)), f"n{row // 2}"))
        uid, key = pod.metadata.uid, f"default/p{row}"
        held = Holding(uid=uid, key=key, ask=ask_of(pod), node=f"n{row // 2}", gpus=(),
                       confirmed=True, since_s=0.0)  # fmt: skip
        pods[uid] = pod
        fleet.hold(held)

    def owns(pod: Pod) -> bool:
        asked_about.append(pod.metadata.name)
        return True

    curb = BudgetEnforcer(Chooser(fleet, Domains({"": 1_000_000})), pods, owns, {})
    assert curb.orders(0.0) == []
    assert sorted(asked_about) == ["p2", "p3"]


class _OnePod:
    """A node with an agent, one pod on it, and what their annotations say."""

    def __init__(self) -> None:
        self.fleet = fleet_of("first-fit")
        made = node_json(a_machine("n0", gpus=1, model="T4"))
        made["metadata"]["labels"] |= {
            "wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": str(LEAST_W),
        }  # fmt: skip
        self.fleet.node_seen(node_facts(a_node(made)))
        self.made = bound(pod_json("p0", exclusive(1_000, 1)), "n0")
        pod = a_pod(self.made)
        self.uid = pod.metadata.uid
        held = Holding(uid=self.uid, key="default/p0", ask=ask_of(pod), node="n0", gpus=(),
                       confirmed=True, since_s=0.0)  # fmt: skip
        self.fleet.hold(held)
        self.domains, self.now_s = Domains({"": 1_000_000}), 0.0
        self.begin()

    def begin(self) -> None:
        """A scheduler that knows what the API says and nothing else."""
        self.pods = {self.uid: a_pod(self.made)}
        self.curb = BudgetEnforcer(Chooser(self.fleet, self.domains), self.pods, lambda _: True, {})

    @property
    def counted_w(self) -> float:
        return MAX_W - self.domains.saved_mw.get("n0", 0) / 1000

    def look(self, budget_w: int) -> list[CapPod]:
        self.now_s += 0.25
        self.domains.budgets_mw = {"": 1000 * budget_w}
        return [one for one in self.curb.orders(self.now_s) if isinstance(one, CapPod)]

    def write(self, order: CapPod) -> None:
        notes = self.made["metadata"]["annotations"]
        notes["wattherd.dev/cap-w"] = f"{order.cap_w:g}"
        if order.forgets:
            notes.pop("wattherd.dev/cap-applied-w", None)
        self.pods[self.uid] = a_pod(self.made)

    def report(self, watts: float) -> None:
        self.made["metadata"]["annotations"]["wattherd.dev/cap-applied-w"] = f"{watts:g}"
        self.pods[self.uid] = a_pod(self.made)

    def capped_at(self, watts: int) -> None:
        (order,) = self.look(watts)
        assert order.cap_w == watts
        self.write(order)
        self.report(watts)
        assert self.look(watts) == []
        assert self.counted_w == watts


@pytest.mark.parametrize("lower_w", [40, 37])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_cap_that_was_raised_and_lowered_again_counts_until_that_is_read_back(
    lower_w: int, seen: bool, restarts: bool
) -> None:
    """The agent sets 60 W and has not said so when less is asked for, be it what it said last."""
    one = _OnePod()
    one.capped_at(40)
    (raised,) = one.look(60)
    assert raised.cap_w == 60
    if seen or restarts:
        one.write(raised)
        one.look(60)
    (lowered,) = one.look(lower_w)
    assert lowered.cap_w == lower_w
    one.look(lower_w)
    assert one.counted_w >= 60
    one.write(lowered)
    if restarts:
        one.begin()
    for _ in range(3):
        one.look(lower_w)
        assert one.counted_w >= 60
    one.report(60)  # late news
    one.look(lower_w)
    assert one.counted_w >= 60
    one.report(lower_w)
    assert one.look(lower_w) == []
    assert one.counted_w == lower_w


def test_a_lowering_whose_writing_was_lost_is_written_again() -> None:
    one = _OnePod()
    one.capped_at(40)
    one.look(60)
    (lost,) = one.look(40)  # neither this nor the raise is seen to be written
    one.now_s += 10.0
    (again,) = one.look(40)
    assert again == lost
    assert again.forgets
    one.write(again)
    one.look(40)
    one.report(40)
    assert one.look(40) == []
    assert one.counted_w == 40
