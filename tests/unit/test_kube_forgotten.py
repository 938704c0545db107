"""What is gone is forgotten: pods, groups, nodes and workloads come and go, and leave nothing.

All that goes has `mortal` in its name; afterwards that word is nowhere in what the deciding object
can reach, and none of its tables is larger than it was after the same had happened once before.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_builders import a_node, a_pod, an_extender, bound, node_json, pod_json
from kube_core_desk import CoreDesk, GangJob
from test_kube_fencing import SERVICE, TAINT, machine
from test_kube_gate import World as Gated
from test_kube_kueue import World as Kueued
from test_kube_power_plan import NOON_S, a_plan, budget, domain
from test_kube_scheduler import World as Bound

from wattherd.kube.account.fleet import Holding
from wattherd.kube.api.api_objects import PodGroup, decoder
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.extender import HOLD_S, Extender
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive, sharing
from wattherd.testing.table_sizes import grown, remembered, sizes

NODES, GPUS = 4, 4
TRIES = 3


def group_of(name: str) -> GroupId:
    return GroupId(GroupKind.NATIVE, "default", name)


def a_group(name: str, least: int) -> PodGroup:
    made = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
    }
    return decoder(PodGroup).decode(json.dumps(made).encode())


# --- the second scheduler -------------------------------------------------------------------------


class Turnover:
    """A scheduler, and lives of pods that begin and end in any order."""

    def __init__(self) -> None:
        self.world = Bound("fgd", budgets_mw={"": 10_000_000})
        self.world.add_nodes(NODES, gpus=GPUS)
        self.world.settle()
        self.serial = 0
        self.alive: list[tuple[list[str], GroupId | None]] = []

    def begin(self, life: str) -> None:
        self.serial += 1
        name, world = f"mortal-{life}-{self.serial}", self.world
        before, group = set(world.pods), group_of(name) if "group" in life else None
        match life:
            case "whole":
                world.create(name)
            case "shared":
                world.create(name, sharing(1_000, 300))
            case "urgent":
                world.create(name, exclusive(1_000, GPUS), priority=self.serial)
            case "hopeless":
                world.create(name, exclusive(1_000, 64))
            case "refused":
                world.create(name, resourceClaims=[{"name": "watts"}])
            case _:
                self._begin_otherwise(life, name)
        world.settle()
        self.alive.append((sorted(set(world.pods) - before), group))

    def _begin_otherwise(self, life: str, name: str) -> None:
        world = self.world
        match life:
            case "never bound":
                world.create(name)
                world.scheduler.plan(world.now_s + 1.0)  # nobody carries out what it orders
            case "foreign":
                made = pod_json(name, exclusive(1_000, 1), schedulerName="other")
                world.put(bound(made, f"n{self.serial % NODES}"))
            case "gang":
                world.gang(name, 3)
            case "incomplete":
                world.gang(name, 3, size=4)
            case "group" | "late group":
                for member in range(3):
                    world.create(f"{name}-{member}", schedulingGroup={"podGroupName": name})
                if life == "group":
                    world.scheduler.group_seen(group_of(name), a_group(name, 3))

    def end(self, which: int = 0) -> None:
        uids, group = self.alive.pop(which)
        for uid in uids:
            if uid in self.world.pods:  # nobody evicted it
                self.world.delete(uid.removeprefix("uid-"))
        if group is not None:
            self.world.scheduler.group_gone(group)
        self.world.settle()


LIVES = ("whole", "shared", "urgent", "hopeless", "refused", "never bound", "foreign",
         "gang", "incomplete", "group", "late group")  # fmt: skip


@pytest.mark.parametrize("life", LIVES)
def test_the_scheduler_forgets_a_pod_whatever_became_of_it(life: str) -> None:
    turnover = Turnover()
    begun = Counter[str]()
    for number in range(3 + TRIES):
        turnover.begin(life)
        assert remembered(turnover.world.scheduler, "mortal"), "this would find it"
        turnover.end()
        if number == 2:
            begun = sizes(turnover.world.scheduler)
    assert remembered(turnover.world.scheduler, "mortal") == {}
    assert grown(begun, sizes(turnover.world.scheduler)) == {}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from((*LIVES, "end", "end", "end")), max_size=30), st.data())
def test_the_scheduler_forgets_pods_in_whatever_order_they_come_and_go(
    happening: list[str], data: st.DataObject
) -> None:
    turnover = Turnover()
    for one in happening:
        if one != "end":
            turnover.begin(one)
        elif turnover.alive:
            turnover.end(data.draw(st.integers(0, len(turnover.alive) - 1)))
    while turnover.alive:
        turnover.end()
    scheduler = turnover.world.scheduler
    assert remembered(scheduler, "mortal") == {}
    assert (len(scheduler.fleet.holdings), len(scheduler.fleet.reserved)) == (0, 0)
    assert scheduler.core is not None
    assert (len(scheduler.core.jobs), len(scheduler.core.finished)) == (0, 0)


@pytest.mark.parametrize("scheduler", ["", "gang", "wattherd"])
def test_what_a_core_found_at_work_is_forgotten_when_it_is_gone(scheduler: str) -> None:
    """A node comes meanwhile, so that another core finds it than the one that started it."""
    desk = CoreDesk([a_machine("n0", gpus=8)], core_choice(scheduler))
    for number in range(TRIES):
        desk.submit(GangJob(name=f"mortal-{number}", at_s=0, duration_s=10_000, pods=2, bare=True))
        desk.settle()
        desk.scheduler.node_seen(a_node(node_json(a_machine(f"n{1 + number}", gpus=1))))
        desk.settle()
        assert remembered(desk.scheduler.learned, "mortal"), "this would find it"
        for uid in list(desk.pods):
            desk._gone(uid)
        desk.settle()
        assert remembered(desk.scheduler, "mortal") == {}


def test_nothing_is_heaped_up_while_there_is_no_node() -> None:
    world = Bound()
    world.create("waits")
    world.settle()
    before = sizes(world.scheduler)
    for number in range(5):
        world.create(f"mortal-{number}")
        world.settle()
        world.delete(f"mortal-{number}")
        world.settle()
    assert remembered(world.scheduler, "mortal") == {}
    assert grown(before, sizes(world.scheduler)) == {}
    world.add_nodes(1)
    world.settle()
    assert set(world.places) == {"waits"}


def test_nodes_that_are_gone_are_forgotten_with_who_was_there() -> None:
    """Deleted while pods are on them, while silent, and after somebody made sure."""
    world = Bound("first-fit")
    world.add_nodes(1)

    def live(number: int, end: Callable[[str], None]) -> None:
        node = f"mortal-node-{number}"
        there = {"kubernetes.io/hostname": node}
        made = machine(node)
        made["metadata"]["labels"]["kubernetes.io/hostname"] = node
        world.scheduler.node_seen(a_node(made))
        world.create(f"mortal-{number}", nodeSelector=there)
        world.settle()
        assert world.places == {f"mortal-{number}": node}
        end(node)
        for uid in list(world.pods):
            world.delete(uid.removeprefix("uid-"))
        world.scheduler.node_gone(node)
        world.settle()

    def silent(node: str) -> None:
        world.scheduler.node_seen(a_node(machine(node, "Unknown", TAINT)))
        world.delete(node.replace("-node", ""))
        assert world.scheduler.fleet.holdings, "it may run on"

    def fenced(node: str) -> None:
        silent(node)
        world.scheduler.node_seen(a_node(machine(node, "Unknown", TAINT, SERVICE)))
        assert not world.scheduler.fleet.holdings

    ends: list[Callable[[str], None]] = [lambda _: None, world.scheduler.node_gone, silent, fenced]
    for number, end in enumerate(ends):
        live(number, end)
        assert world.scheduler.fleet.holdings == {}
    world.add_nodes(1)
    world.create("any")  # who may go where is kept as long as nodes stay as they are
    world.settle()
    assert remembered(world.scheduler, "mortal") == {}


@pytest.mark.long
def test_requests_that_nobody_makes_any_more_are_forgotten() -> None:
    """Autoscalers of pods write ever new ones; each has a row for all nodes in the tables."""
    world = Bound("fgd")
    world.add_nodes(NODES)
    stays = 2
    for number in range(stays):
        world.create(f"stays-{number}")
    world.settle()
    most, made_anew, placer = 0, 0, world.scheduler.fleet.placer
    for number in range(2_100):
        name = f"mortal-{number}"
        world.create(name, exclusive(1_000 + number, 1))
        world.settle()
        assert name in world.places
        world.delete(name)
        now = world.scheduler.fleet.placer
        assert now is not None
        most, made_anew = max(most, now.state.shapes.spellings), made_anew + (now is not placer)
        placer = now
    assert most < 1_100
    assert 1 <= made_anew <= 2, "all is made anew then, which is dear"
    assert len(world.places) == stays


def test_as_many_different_requests_as_pods_make_are_known() -> None:
    world = Bound("first-fit")
    world.add_nodes(1)
    for number in range(1_500):
        world.create(f"waits-{number}", exclusive(10_000_000 + number, 1))
    world.settle()
    placer = world.scheduler.fleet.placer
    world.create("one-more")
    world.settle()
    assert world.scheduler.fleet.placer is placer


def test_tables_of_a_fleet_that_changed_are_given_back_at_once() -> None:
    """They have a row for every node: none of them may wait for a collection of garbage."""
    turnover = Turnover()
    scheduler = turnover.world.scheduler
    for life in LIVES:
        turnover.begin(life)
    gc.collect()
    gc.disable()
    try:
        for _ in range(TRIES):
            before = [weakref.ref(one) for one in (scheduler.fleet.placer, scheduler.core)]
            assert all(one() is not None for one in before)
            turnover.world.add_nodes(1)
            turnover.world.settle()
            assert [one() for one in before] == [None, None]
    finally:
        gc.enable()


# --- other ways -----------------------------------------------------------------------------------


def test_pods_that_were_released_by_a_gate_are_forgotten() -> None:
    world = Gated()
    for row in range(NODES):
        world.add_node(f"r{row % 2}")
    begun = Counter[str]()
    for number in range(3 + TRIES):
        one, gang = f"mortal-{number}", f"mortal-gang-{number}"
        world.create(one)
        world.create(f"{one}-hopeless", exclusive(1_000, 64))
        world.gang(gang, 2)
        world.settle()
        world.bind(one, f"n{number % NODES}")
        world.settle()
        for uid in list(world.pods):
            world.delete(uid.removeprefix("uid-"))
        world.settle()
        if number == 2:
            begun = sizes(world.scheduler)
    assert remembered(world.scheduler, "mortal") == {}
    assert grown(begun, sizes(world.scheduler)) == {}


def test_workloads_of_kueue_are_forgotten() -> None:
    world = Kueued()
    for row in range(2):
        world.add_node(f"r{row}")
    begun = Counter[str]()
    for number in range(3 + TRIES):
        name = f"mortal-{number}"
        world.submit(name, main=2)
        world.settle()
        world.run(name, f"{name}-pod", "n0")
        world.settle()
        world.end(f"{name}-pod")
        world.finish(name)
        world.settle()
        world.check.workload_gone(f"uid-{name}", world.now_s)
        del world.workloads[f"uid-{name}"]
        world.settle()
        if number == 2:
            begun = sizes(world.check)
    assert remembered(world.check, "mortal") == {}
    assert grown(begun, sizes(world.check)) == {}


# --- the extender ---------------------------------------------------------------------------------


@pytest.fixture
def extender() -> Extender:
    made = an_extender("fgd", budgets_mw={"": 10_000_000})
    for row in range(NODES):
        made.node_seen(a_node(node_json(a_machine(f"n{row}", gpus=GPUS, model="T4"))))
    return made


def asked(name: str, gpus: int = 1) -> Pod:
    return a_pod(pod_json(name, exclusive(1_000, gpus)))


NAMES = [f"n{row}" for row in range(NODES)]


def bound_and_gone(extender: Extender, name: str) -> None:
    node = extender.filter(asked(name), NAMES, 0.0).node
    assert node is not None
    extender.grant(f"uid-{name}", node, 0.0)
    extender.pod_seen(a_pod(bound(pod_json(name, exclusive(1_000, 1)), node)), 0.0)
    extender.pod_gone(f"uid-{name}")


def gone_before_it_was_bound(extender: Extender, name: str) -> None:
    extender.filter(asked(name), NAMES, 0.0)
    extender.pod_gone(f"uid-{name}")


def asked_for_when_it_was_gone(extender: Extender, name: str) -> None:
    """kube-scheduler sees it later than we do: nothing tells us that it is gone, but time."""
    extender.pod_gone(f"uid-{name}")
    extender.filter(asked(name), NAMES, 0.0)
    assert extender.overdue(HOLD_S) == []
    late: list[Holding] = extender.overdue(HOLD_S + 1.0)
    assert [one.uid for one in late] == [f"uid-{name}"]
    extender.unbound(late[0].uid)


def taken_by_others(extender: Extender, name: str) -> None:
    node = extender.filter(asked(name), NAMES, 0.0).node
    assert node is not None
    extender.grant(f"uid-{name}", node, 0.0)
    other = next(one for one in NAMES if one != node)
    extender.pod_seen(a_pod(bound(pod_json(name, exclusive(1_000, 1)), other)), 0.0)
    extender.pod_gone(f"uid-{name}")


def granted_in_an_earlier_term(extender: Extender, name: str) -> None:
    extender.filter(asked(name), NAMES, 0.0)
    extender.term_began()


def hopeless(extender: Extender, name: str) -> None:
    waits = pod_json(name, exclusive(1_000, 64), schedulingGroup={"podGroupName": name})
    waits["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    ]
    group = group_of(name)
    extender.groups[group] = a_group(name, 2)
    extender.pod_seen(a_pod(waits), 0.0)
    extender.onlooker.pod_seen(a_pod(waits))
    assert extender.filter(a_pod(waits), NAMES, 0.0).node is None
    assert extender.onlooker.told(f"uid-{name}")
    assert not extender.onlooker.rests(group)
    extender.pod_gone(f"uid-{name}")
    extender.onlooker.pod_gone(f"uid-{name}")
    assert extender.onlooker.rests(group)
    del extender.groups[group]


FATES = (bound_and_gone, gone_before_it_was_bound, asked_for_when_it_was_gone, taken_by_others,
         granted_in_an_earlier_term, hopeless)  # fmt: skip


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.__name__)
def test_the_extender_forgets_a_pod_whatever_became_of_it(
    extender: Extender, fate: Callable[[Extender, str], None]
) -> None:
    begun = Counter[str]()
    for number in range(3 + TRIES):
        fate(extender, f"mortal-{number}")
        if number == 2:
            begun = sizes(extender)
    assert remembered(extender, "mortal") == {}
    assert grown(begun, sizes(extender)) == {}
    assert (len(extender.fleet.holdings), len(extender.fleet.reserved)) == (0, 0)


# --- power ----------------------------------------------------------------------------------------


def test_domains_and_budgets_that_were_deleted_are_forgotten() -> None:
    plan = a_plan()
    before = sizes(plan)
    for number in range(TRIES):
        domain(plan, f"mortal-{number}", limit="9kW", parent="mortal-parent")
        budget(plan, f"mortal-budget-{number}", domain=f"mortal-{number}", constant="4kW")
        budget(plan, f"mortal-wrong-{number}", domain=f"mortal-{number}")
        assert plan.state(NOON_S).budgets_mw[f"mortal-{number}"] == 4_000_000
        for name in (f"mortal-budget-{number}", f"mortal-wrong-{number}"):
            plan.budget_seen(name, None)
        plan.domain_seen(f"mortal-{number}", None)
        plan.state(NOON_S)
    assert remembered(plan, "mortal") == {}
    assert grown(before, sizes(plan)) == {}
