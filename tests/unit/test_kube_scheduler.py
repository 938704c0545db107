"""The second scheduler's decisions: gangs, priorities, budgets, reasons, and restarts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kube_builders import (
    a_node,
    a_pod,
    bound,
    fleet_of,
    node_json,
    pod_json,
)
from kube_desk import Desk

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import BindPod, Order, TellGroup
from wattherd.model.job import Request
from wattherd.policy.schedule.gang import PATIENCE_S
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive, sharing

IDLE_MW = round(1000 * GPUS["T4"].idle_w)
RISE_MW = round(1000 * GPUS["T4"].max_w) - IDLE_MW
WHOLE = exclusive(1_000, 1)


class World(Desk):
    """An API server's truth, told to a scheduler at once; bindings succeed unless they may not."""

    def __init__(
        self,
        policy: str = "first-fit",
        budgets_mw: dict[str, int] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__()
        self.refuse: set[str] = set()
        self.gangs_told: list[TellGroup] = []
        self.policy, self.budgets_mw, self.patience_s = policy, budgets_mw or {}, patience_s
        self.scheduler = self.a_scheduler()

    def a_scheduler(self) -> KubeScheduler:
        fleet = fleet_of(self.policy)
        return KubeScheduler(fleet, self.budgets_mw, holder="test", patience_s=self.patience_s)

    def restart(self) -> None:
        """All that is remembered is what the API says."""
        self.scheduler = self.a_scheduler()
        for made in self.nodes.values():
            self.scheduler.node_seen(a_node(made))
        for made in self.pods.values():
            self.scheduler.pod_seen(a_pod(made), self.now_s)
        self.settle()

    def add_nodes(self, count: int, *, gpus: int = 2, **labels: str) -> None:
        for _ in range(count):
            name = f"n{len(self.nodes)}"
            made = node_json(a_machine(name, gpus=gpus, model="T4"))
            made["metadata"]["labels"].update(labels)
            self.nodes[name] = made
            self.scheduler.node_seen(a_node(made))

    def create(self, name: str, request: Request = WHOLE, **spec: Any) -> None:
        self.put(pod_json(name, request, schedulerName="wattherd", **spec))

    def gang(
        self, name: str, count: int, request: Request = WHOLE, *, size: int = 0, **spec: Any
    ) -> None:
        """`count` members of a group that says it has `size` (or as many)."""
        for member in range(count):
            made = pod_json(f"{name}-{member}", request, schedulerName="wattherd", **spec)
            made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": name}
            total = {"kueue.x-k8s.io/pod-group-total-count": str(size or count)}
            made["metadata"]["annotations"].update(total)
            self.put(made)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, TellGroup):
            self.gangs_told.append(order)
        elif order.uid in self.refuse:
            self.scheduler.not_bound(order.uid)
        else:
            self.put(bound(self.pods[order.uid], order.node, **order.annotations))

    @property
    def places(self) -> dict[str, str]:
        """Nodes of the pods that are bound, by name."""
        found = {
            made["metadata"]["name"]: made["spec"].get("nodeName") for made in self.pods.values()
        }
        return {name: node for name, node in found.items() if node}

    def why(self, name: str) -> str:
        told = self.told[f"uid-{name}"]
        return f"{told.reason}: {told.text}"


@pytest.fixture
def world() -> World:
    made = World()
    made.add_nodes(2)
    return made


# --- pods and gangs -----------------------------------------------------------------------------


def test_pods_are_bound_with_all_that_must_be_remembered(world: World) -> None:
    world.create("p", sharing(1_000, 300))
    world.settle()
    assert world.places == {"p": "n0"}
    written = world.pods["uid-p"]["metadata"]["annotations"]
    assert written["wattherd.dev/gpus"] == "0"
    assert written["wattherd.dev/watts"] == f"{RISE_MW / 1000:g}"


def test_pods_of_other_schedulers_and_gated_ones_are_left_alone(world: World) -> None:
    world.create("gated", schedulingGates=[{"name": "wait"}])
    made = pod_json("other", WHOLE, schedulerName="default-scheduler")
    world.scheduler.pod_seen(a_pod(made), 0.0)
    world.settle()
    assert world.places == {}


def test_a_gang_waits_for_its_members_then_starts_whole(world: World) -> None:
    world.gang("g", 2, size=3)
    world.settle()
    assert world.places == {}
    assert world.why("g-0") == ("WaitingForGang: 2 of 3 pods of g are there; create the others")
    world.gang("g", 3)
    world.settle()
    assert len(world.places) == 3


def test_a_gang_that_does_not_fit_holds_nothing(world: World) -> None:
    world.gang("large", 5)
    world.settle()
    assert world.places == {}
    world.gang("small", 4)
    world.settle()
    assert sorted(world.places) == [f"small-{n}" for n in range(4)]


def test_gangs_of_unequal_pods_start_together(world: World) -> None:
    world.gang("g", 2, exclusive(1_000, 2), size=3)
    made = pod_json("g-chief", exclusive(500, 0), schedulerName="wattherd")
    made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "g"}
    world.pods["uid-g-chief"] = made
    world.scheduler.pod_seen(a_pod(made), 0.0)
    world.settle()
    assert world.places == {"g-0": "n0", "g-1": "n1", "g-chief": "n0"}


def test_a_gang_of_which_one_pod_cannot_be_bound_is_undone(world: World) -> None:
    world.refuse = {"uid-g-1"}
    world.gang("g", 3)
    world.settle()
    assert sorted(world.evicted) == ["uid-g-0", "uid-g-2"]
    assert world.places == {}
    assert set(world.pods) == {"uid-g-1"}


def test_a_pod_whose_binding_was_refused_is_tried_again(world: World) -> None:
    world.create("p")
    assert [one.uid for one in world.scheduler.plan(1.0) if isinstance(one, BindPod)] == ["uid-p"]
    world.scheduler.not_bound("uid-p")
    world.settle()
    assert world.places == {"p": "n0"}


def test_a_member_that_ends_does_not_take_its_gang_along(world: World) -> None:
    world.gang("g", 3)
    world.settle()
    world.delete("g-0")
    world.settle()
    assert world.evicted == []
    assert len(world.places) == 2
    world.gang("g", 1, size=3)  # its controller makes it anew
    world.settle()
    assert len(world.places) == 3


def test_news_that_come_twice_or_late_change_nothing(world: World) -> None:
    world.create("p")
    waiting: Pod = a_pod(world.pods["uid-p"])
    world.settle()
    for made in (a_pod(world.pods["uid-p"]), waiting):
        world.scheduler.pod_seen(made, 5.0)
        assert [one for one in world.scheduler.plan(6.0) if isinstance(one, BindPod)] == []


# --- priority -----------------------------------------------------------------------------------


def test_who_matters_more_is_tried_first(world: World) -> None:
    for name, priority in (("low", 0), ("high", 10)):
        world.gang(name, 3, priority=priority)
    world.settle()
    assert sorted(world.places) == [f"high-{n}" for n in range(3)]


def test_the_fewest_and_least_important_make_room(world: World) -> None:
    for name, priority in (("a", 5), ("b", 1), ("c", 1), ("d", 3)):
        world.create(name, priority=priority)
        world.settle()
    world.create("boss", priority=10)
    world.settle()
    assert world.evicted == ["uid-c"]  # of the least important, the newest
    assert sorted(world.places) == ["a", "b", "boss", "d"]


def test_a_gang_is_preempted_whole_or_not_at_all(world: World) -> None:
    world.gang("g", 3)
    world.create("single")
    world.settle()
    world.create("boss", exclusive(1_000, 2), priority=10)
    world.settle()
    assert sorted(world.evicted) == ["uid-g-0", "uid-g-1", "uid-g-2"]
    assert sorted(world.places) == ["boss", "single"]


def test_equals_are_not_preempted_nor_is_anybody_in_vain(world: World) -> None:
    for n in range(4):
        world.create(f"p{n}", priority=5)
    world.create("equal", priority=5)
    world.create("too-large", exclusive(1_000, 3), priority=10)
    world.create("polite", priority=10, preemptionPolicy="Never")
    world.settle()
    assert world.evicted == []


def test_pods_of_others_are_nobodys_to_evict(world: World) -> None:
    for n in range(4):
        made = bound(pod_json(f"x{n}", WHOLE, schedulerName="default-scheduler"), f"n{n % 2}")
        world.scheduler.pod_seen(a_pod(made), 0.0)
    world.create("boss", priority=10)
    world.settle()
    assert (world.evicted, world.places) == ([], {})


def going(world: World, name: str) -> None:
    """Somebody has deleted a pod, which takes its time."""
    made = copy.deepcopy(world.pods[f"uid-{name}"])
    made["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:30Z"
    world.put(made)


@pytest.mark.parametrize("restarts", [True, False])
def test_nobody_else_is_preempted_while_room_is_on_its_way(world: World, restarts: bool) -> None:
    for n in range(4):
        world.create(f"p{n}", terminationGracePeriodSeconds=10)
    world.settle()
    going(world, "p0")
    if restarts:
        world.restart()
    world.create("boss", priority=10)
    world.settle()
    assert world.evicted == []
    assert "WaitingForPreemption" in world.why("boss")
    world.create("chief", priority=10)  # what goes is the first one's
    world.settle()
    assert len(world.evicted) == 1
    world.delete("p0")
    world.settle()
    assert {"boss", "chief"} <= world.places.keys()
    assert len(world.evicted) == 1


def test_a_pod_that_does_not_go_is_not_waited_for(world: World) -> None:
    for n in range(4):
        world.create(f"p{n}", terminationGracePeriodSeconds=10)
    world.settle()
    going(world, "p0")
    world.create("boss", priority=10)
    world.settle()
    assert world.evicted == []
    world.now_s += 41.0
    world.settle()
    assert len(world.evicted) == 1
    assert world.evicted != ["uid-p0"]


# --- watts --------------------------------------------------------------------------------------


def test_a_budget_takes_exactly_as_many_as_fit() -> None:
    world = World(budgets_mw={"": 8 * IDLE_MW + 3 * RISE_MW})
    world.add_nodes(4)
    for n in range(6):
        world.create(f"p{n}")
    world.settle()
    assert len(world.places) == 3


def test_a_gang_is_kept_within_its_domains_budget() -> None:
    world = World(budgets_mw={"a": 4 * IDLE_MW + 2 * RISE_MW})
    world.add_nodes(2, **{"wattherd.dev/power-domain": "a"})
    world.add_nodes(1, **{"wattherd.dev/power-domain": "b"})
    world.gang("g", 4)
    world.settle()
    assert sorted(world.places.values()) == ["n0", "n0", "n2", "n2"]


def test_a_cut_below_use_evicts_the_least_important() -> None:
    site = 4 * IDLE_MW
    world = World(budgets_mw={"": site + 4 * RISE_MW})
    world.add_nodes(2)
    for n in range(4):
        world.create(f"p{n}", priority=n)
    world.settle()
    assert len(world.places) == 4
    for order in world.scheduler.budget("", site + 2 * RISE_MW, world.now_s):
        world._obey(order)
    world.settle()
    assert sorted(world.places) == ["p2", "p3"]


def test_after_a_restart_below_a_lower_budget_the_excess_goes() -> None:
    site = 4 * IDLE_MW
    world = World(budgets_mw={"": site + 4 * RISE_MW})
    world.add_nodes(2)
    for n in range(4):
        world.create(f"p{n}", priority=n)
    world.settle()
    world.budgets_mw = {"": site + 3 * RISE_MW}
    world.restart()
    assert sorted(world.places) == ["p1", "p2", "p3"]


# --- restarts and nodes -------------------------------------------------------------------------


def test_a_restart_changes_nothing_that_runs(world: World) -> None:
    world.gang("g", 2)
    world.create("p", sharing(1_000, 300))
    world.settle()
    before = world.places
    world.restart()
    assert (world.places, world.evicted) == (before, [])
    world.create("q", sharing(1_000, 300))
    world.settle()
    assert world.pods["uid-q"]["metadata"]["annotations"]["wattherd.dev/gpus"] == "0"


def test_a_new_node_is_used_and_what_runs_stays(world: World) -> None:
    world.gang("g", 5)
    world.create("p")
    world.settle()
    assert world.places == {"p": "n0"}
    world.add_nodes(1)
    world.settle()
    assert len(world.places) == 6


def test_why_a_pod_waits_is_told_once_with_numbers(world: World) -> None:
    world.create("picky", nodeSelector={"zone": "a"})
    world.create("large", exclusive(1_000, 3))
    world.settle()
    assert "2 nodes: NodeSelectorMismatch: label zone is not a" in world.why("picky")
    assert world.why("large") == (
        "NeverFits: asks for 3 GPUs on one node, the largest of 2 nodes that it may use has 2; "
        "ask for less in one pod, or add a larger node"
    )
    world.told.clear()
    world.create("p")
    world.settle()
    assert world.told == {}


def test_what_we_cannot_honour_is_refused_loudly(world: World) -> None:
    teams = {"matchLabels": {"team": "a"}}
    term = [{"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": teams}]
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    world.create("p", affinity=affinity)
    world.settle()
    assert world.why("p").startswith("Unsupported: wattherd does not place pods with required aff")


def test_taken_ports_and_shy_neighbours_are_minded(world: World) -> None:
    port = {"ports": [{"containerPort": 80, "hostPort": 80}]}
    for name in ("a", "b", "c"):
        made = pod_json(name, exclusive(100, 0), schedulerName="wattherd")
        made["spec"]["containers"][0] |= port
        world.pods[f"uid-{name}"] = made
        world.scheduler.pod_seen(a_pod(made), 0.0)
    world.settle()
    assert sorted(world.places.values()) == ["n0", "n1"]
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "name"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name, node in list(world.nodes.items()):
        node["metadata"]["labels"]["name"] = name
        world.scheduler.node_seen(a_node(node))
    shy = bound(pod_json("shy", exclusive(100, 0), affinity=anti), "n0")
    world.scheduler.pod_seen(a_pod(shy), 0.0)
    coming = pod_json("x", exclusive(100, 0), schedulerName="wattherd")
    coming["metadata"]["labels"] = {"app": "x"}
    world.pods["uid-x"] = coming
    world.scheduler.pod_seen(a_pod(coming), 0.0)
    world.settle()
    assert world.places["x"] == "n1"


def test_of_many_pods_that_are_alike_and_find_no_room_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.add_nodes(1, gpus=2)
    for row in range(2):
        world.create(f"first-{row}")
    world.settle()
    tries: list[object] = []
    choose = Chooser.choose
    monkeypatch.setattr(Chooser, "choose", lambda *asked: tries.append(asked) or choose(*asked))
    for row in range(20):
        world.create(f"late-{row}")
    world.create("small", exclusive(1_000, 0))
    world.settle()
    assert world.places.keys() == {"first-0", "first-1", "small"}
    assert len(tries) == 2
    world.delete("first-0")
    world.settle()
    assert "late-0" in world.places
    assert world.why("late-19").startswith("WaitingForGpus")


# --- the gang that waits too long -----------------------------------------------------------------


def crowd(world: World, rounds: int) -> int:
    """One pod after another ends and a new one comes; in which round the gang started, or 0."""
    for turn in range(1, rounds + 1):
        if "gang-0" in world.places:
            return turn
        ended = next((name for name in world.places if name.startswith("small")), None)
        if ended is not None:
            world.delete(ended)
        world.create(f"small-{100 + turn}")
        world.settle()
    return 0


def a_crowded_world(patience_s: float, **nodes: str) -> World:
    """Four GPUs, all in use by single pods, and a gang that needs all of them."""
    world = World(patience_s=patience_s)
    world.add_nodes(2, **nodes)
    for row in range(4):
        world.create(f"small-{row}")
    world.settle()
    world.gang("gang", 4)
    world.settle()
    return world


def test_small_works_that_keep_coming_do_not_starve_a_gang() -> None:
    assert crowd(a_crowded_world(patience_s=float("inf")), 30) == 0
    assert crowd(a_crowded_world(patience_s=5.0), 30)


def test_who_is_held_up_is_told_by_whom_and_runs_when_the_gang_is_gone() -> None:
    world = a_crowded_world(patience_s=5.0)
    world.now_s += 10.0
    world.delete("small-0")
    world.create("late")
    world.settle()
    assert "late" not in world.places
    assert world.why("late").startswith("WaitingForTurn: the gang of default/gang-0 (4 pods)")
    for row in range(4):
        world.delete(f"gang-{row}")
    world.settle()
    assert "late" in world.places


def test_more_important_works_are_not_held_up() -> None:
    world = a_crowded_world(patience_s=5.0)
    world.now_s += 10.0
    world.delete("small-0")
    world.create("urgent", priority=10)
    world.settle()
    assert "urgent" in world.places


def test_a_gang_that_could_never_run_holds_up_nobody() -> None:
    world = a_crowded_world(patience_s=5.0)
    world.gang("huge", 5)
    for row in range(4):
        world.delete(f"gang-{row}")
    world.settle()
    world.now_s += 10.0
    world.delete("small-0")
    world.create("late")
    world.settle()
    assert "late" in world.places


def test_a_restart_of_the_core_does_not_make_a_gang_wait_anew() -> None:
    world = a_crowded_world(patience_s=20.0)
    world.now_s += 15.0
    world.add_nodes(1, gpus=1)
    world.settle()
    world.now_s += 6.0
    world.delete("small-0")
    world.create("late")
    world.settle()
    assert "late" not in world.places
