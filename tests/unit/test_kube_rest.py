"""Starts under caps rest on what was read back: agents that are dead let nothing draw too much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra `kube` is not installed")
from kube_builders import Json, a_node, a_pod
from kube_rest_room import IDLE_W, LOWEST_W, TOP_W, Machine, Room

from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.agent_caps import GpuState, held_gpus
from wattherd.kube.decide.agent_notes import NodeNote, PodNote
from wattherd.kube.decide.agent_round import AgentRound
from wattherd.kube.facts.gpus_at_rest import RestPromise, promised, written

GPUS, MACHINES = 4, 3
NOTE = "wattherd.dev/gpus-at-rest"


def a_room(seed: int, *, rests: bool = True, share: float = 0.4) -> Room:
    """With a budget for a share of what all GPUs can draw beyond idling."""
    count = GPUS * MACHINES
    lowest_w, highest_w = count * IDLE_W, count * TOP_W
    budget_w = lowest_w + share * (highest_w - lowest_w)
    draws = random.Random(seed)
    room = Room(draws, machines=MACHINES, gpus=GPUS, budget_w=budget_w, rests=rests)
    for _ in range(10):
        room.step()
    room.highest_w = 0.0
    return room


def a_hard_life(room: Room, seconds: int) -> None:
    """Agents die, for a while or for long; machines boot; jobs come and end."""
    draws = room.draws
    for _ in range(seconds):
        if draws.random() < 0.3 and len(room.pods) < 24:
            room.submit(draws.choice((1, 1, 2, 4)))
        for name in room.plant:
            if name in room.agents and draws.random() < 0.01:
                room.kill_agent(name)
            elif name not in room.agents and draws.random() < 0.02:
                room.revive(name)
            elif draws.random() < 0.002:
                room.boot(name)
        room.step()


def _peace(room: Room, seconds: int) -> None:
    for name in room.plant:
        if name not in room.agents:
            room.revive(name)
    for _ in range(seconds):
        room.step()


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(3, 60), (50, 90), *(pytest.param(at, 300, marks=pytest.mark.long) for at in range(40))],
)
def test_nothing_draws_above_the_budget_whoever_dies(seed: int, seconds: int) -> None:
    room = a_room(seed)
    a_hard_life(room, seconds)
    assert room.highest_w <= room.budget_w + 1.0
    done = room.done
    _peace(room, 60)
    assert room.highest_w <= room.budget_w + 1.0
    assert room.done > done
    assert not room.scheduler._closed, "all agents are alive"


def test_where_agents_promise_nothing_the_same_life_is_too_hard() -> None:
    """What is tried above can fail: starts under caps then go by agents that may be dead."""
    room = a_room(0, rests=False)
    a_hard_life(room, 120)
    assert room.highest_w > 1.2 * room.budget_w


# The agent's side -----------------------------------------------------------------------------


class Api:
    """What agents wrote; it may be away, and it may take what it does not answer."""

    def __init__(self) -> None:
        self.notes: list[str | None] = []
        self.node = a_node(_node_json(None))
        self.away = self.takes_unanswered = False
        self.caps_then_w: list[list[float]] = []
        self.machine = Machine("n", 2)

    def apply_pod(self, told: PodNote) -> None:
        pass

    def apply_node(self, node: Node, note: NodeNote) -> bool:
        del node
        if self.away and not self.takes_unanswered:
            return False
        self.notes.append(note.annotations.get(NOTE))
        self.caps_then_w.append(list(self.machine.caps_w))
        self.node = a_node(_node_json(self.notes[-1]))
        return not self.away


def _node_json(note: str | None, boot: str = "b1") -> Json:
    annotations = {} if note is None else {NOTE: note}
    about = {"name": "n", "uid": "n", "annotations": annotations}
    return {"metadata": about, "status": {"nodeInfo": {"bootID": boot}}}


def a_gpu_pod(name: str, cap_w: float | None = None, phase: str = "Running") -> Pod:
    limits = {"nvidia.com/gpu": "1"}
    notes = {} if cap_w is None else {"wattherd.dev/cap-w": f"{cap_w:g}"}
    about = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    spec = {"containers": containers, "nodeName": "n"}
    return a_pod({"metadata": about, "spec": spec, "status": {"phase": phase}})


def a_round(agent: AgentRound, api: Api, pods: Sequence[Pod], at_s: float) -> str:
    return agent.work(api.node, pods, {}, at_s, at_s, 60.0)


def test_a_pod_is_named_before_its_gpus_are_raised_and_until_they_rest_again() -> None:
    api = Api()
    agent, machine = AgentRound(api.machine, api, rests=True), api.machine
    a_round(agent, api, [], 0.0)
    assert machine.caps_w == [LOWEST_W, LOWEST_W]
    assert api.notes == ["b1 -"]
    machine.has["a"] = (1,)
    a_round(agent, api, [a_gpu_pod("a", 250.0)], 1.0)
    assert (machine.caps_w, api.notes) == ([LOWEST_W, 250.0], ["b1 -", "b1 uid-a"])
    assert api.caps_then_w[-1] == [LOWEST_W, LOWEST_W], "first told, then raised"
    del machine.has["a"]
    a_round(agent, api, [], 2.0)
    assert (machine.caps_w, api.notes[-1]) == ([LOWEST_W, LOWEST_W], "b1 -")
    assert api.caps_then_w[-1] == [LOWEST_W, LOWEST_W], "first lowered, then told"


def test_what_cannot_be_written_raises_no_cap_and_lowers_others_all_the_same() -> None:
    api = Api()
    agent, machine = AgentRound(api.machine, api, rests=True), api.machine
    machine.has["a"] = (0,)
    a_round(agent, api, [a_gpu_pod("a", 300.0)], 0.0)
    machine.has["b"], api.away = (1,), True
    a_round(agent, api, [a_gpu_pod("a", 200.0), a_gpu_pod("b", 300.0)], 1.0)
    assert machine.caps_w == [200.0, LOWEST_W]
    api.away = False
    a_round(agent, api, [a_gpu_pod("a", 200.0), a_gpu_pod("b", 300.0)], 2.0)
    assert machine.caps_w == [200.0, 300.0]


def test_a_promise_that_may_have_come_through_is_kept() -> None:
    api = Api()
    agent, machine = AgentRound(api.machine, api, rests=True), api.machine
    api.away = api.takes_unanswered = True
    a_round(agent, api, [], 0.0)
    assert api.notes[-1] == "b1 -"
    api.takes_unanswered = False
    machine.has["a"] = (0,)
    a_round(agent, api, [a_gpu_pod("a", 300.0)], 1.0)
    assert machine.caps_w == [LOWEST_W, LOWEST_W]


def test_a_successor_keeps_what_was_promised_before_it_raises_anything() -> None:
    api = Api()
    a_round(AgentRound(api.machine, api, rests=True), api, [], 0.0)
    api.machine.has["a"], api.away = (0,), True
    successor = AgentRound(api.machine, api, rests=True)
    a_round(successor, api, [a_gpu_pod("a", 300.0)], 1.0)
    assert api.machine.caps_w == [LOWEST_W, LOWEST_W]
    api.away = False
    a_round(successor, api, [a_gpu_pod("a", 300.0)], 2.0)
    assert api.machine.caps_w == [300.0, LOWEST_W]
    assert api.notes[-1] == "b1 uid-a"


def test_one_that_does_not_rest_any_more_says_so_before_it_puts_back() -> None:
    api = Api()
    a_round(AgentRound(api.machine, api, rests=True), api, [], 0.0)
    a_round(AgentRound(api.machine, api), api, [], 1.0)
    assert api.notes[-1] is None
    assert api.caps_then_w[-1] == [LOWEST_W, LOWEST_W]
    assert api.machine.caps_w == [TOP_W, TOP_W]


def test_caps_that_a_driver_forgot_are_promised_no_more() -> None:
    api = Api()
    agent = AgentRound(_Stubborn(api.machine), api, rests=True)
    a_round(agent, api, [], 0.0)
    assert api.notes[-1] == "b1 -"
    api.machine.caps_w[1] = TOP_W
    a_round(agent, api, [], 1.0)
    assert api.notes[-1] == "b1 ?"


class _Stubborn:
    """GPUs that were told once, and take nothing more."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self._told = machine, False
        self.look, self.put_back = machine.look, machine.put_back

    def hold(self, *given: Any) -> Any:
        if not self._told:
            self._told = True
            return self.machine.hold(*given)
        return self.machine.look()


def test_a_pod_that_is_not_known_yet_has_a_gpu_that_rests() -> None:
    api = Api()
    api.machine.has["unseen"] = (0,)
    a_round(AgentRound(api.machine, api, rests=True), api, [], 0.0)
    assert api.machine.caps_w == [LOWEST_W, LOWEST_W]
    assert api.notes == ["b1 -"]


def test_a_pod_without_a_cap_is_raised_to_what_was_found() -> None:
    api = Api()
    agent = AgentRound(api.machine, api, rests=True)
    a_round(agent, api, [], 0.0)
    api.machine.has["a"] = (0,)
    a_round(agent, api, [a_gpu_pod("a")], 1.0)
    assert (api.machine.caps_w, api.notes[-1]) == ([TOP_W, LOWEST_W], "b1 uid-a")


def test_what_kubelets_still_tell_of_pods_that_ended_is_idle() -> None:
    gpus = [GpuState(uuid=f"G{at}", number=at) for at in range(3)]
    pods = [a_gpu_pod("over", phase="Succeeded"), a_gpu_pod("on")]
    assigned = {"default/over": ["G0"], "default/on": ["G1"]}
    found = held_gpus(pods, a_node(_node_json(None)), gpus, assigned)
    assert found is not None
    assert (found.by, [one.uuid for one in found.idle]) == ({"uid-on"}, ["G0", "G2"])


def test_where_nobody_knows_who_has_which_nothing_is_promised() -> None:
    gpus = [GpuState(uuid=f"G{at}", number=at) for at in range(3)]
    node = a_node(_node_json(None))
    assert held_gpus([a_gpu_pod("on")], node, gpus, None) is None
    assert held_gpus([a_gpu_pod("on")], node, gpus, {"default/on": ["MIG-7"]}) is None
    assert held_gpus([a_gpu_pod("on")], node, gpus, {}) is not None, "it was given none yet"


@pytest.mark.parametrize(
    ("note", "read"),
    [
        (None, None),
        ("b1 -", RestPromise(frozenset())),
        ("b1 u1,u2", RestPromise(frozenset({"u1", "u2"}))),
        ("b1 ?", RestPromise()),
        ("b0 -", RestPromise()),
        ("b1", RestPromise()),
        ("", RestPromise()),
        ("b1 ", RestPromise()),
    ],
)
def test_a_promise_is_of_one_boot_and_what_cannot_be_read_promises_nothing(
    note: str | None, read: RestPromise | None
) -> None:
    assert promised(a_node(_node_json(note))) == read


def test_promises_are_read_as_they_are_written() -> None:
    node = a_node(_node_json(None))
    for but in (None, frozenset[str](), frozenset({"u2", "u1"})):
        assert promised(a_node(_node_json(written(but, node)))) == RestPromise(but)
