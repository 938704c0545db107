"""The admission check of Kueue: which workloads there are watts for, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube_builders import Json, a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.objects import LabelSelector, Requirement
from wattherd.kube.decide.budget_enforcer import SETTLE_S
from wattherd.kube.decide.kueue_check import READY, RETRY, ByCheck, CheckVerdict, KueueCheck
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.kueue_objects import KueueWorkload
from wattherd.model.job import Request
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

IDLE_MW = round(1000 * GPUS["T4"].idle_w)
RISE_MW = round(1000 * GPUS["T4"].max_w) - IDLE_MW
ONE = exclusive(1_000, 1)
_WORKLOAD = decoder(KueueWorkload)


class World:
    """Kueue's truth; answers are written at once, and quota is there unless a test takes it."""

    def __init__(self, budgets_mw: dict[str, int] | None = None) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, Json] = {}
        self.workloads: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.budgets_mw = budgets_mw or {}
        self.check = self._a_check()

    def _a_check(self) -> KueueCheck:
        fleet = fleet_of("first-fit")
        scheduler = KubeScheduler(fleet, self.budgets_mw, holder="test", way=ByCheck())
        check = KueueCheck(scheduler)
        check.check_seen("power", self.now_s, ours=True)
        return check

    def restart(self) -> None:
        self.check = self._a_check()
        for made in self.pods.values():
            self.check.pod_seen(a_pod(made), self.now_s)
        for made in self.workloads.values():
            self._tell(made)
        for made in self.nodes.values():
            self.check.scheduler.node_seen(a_node(made))
        self.settle()

    def add_node(self, domain: str, *, gpus: int = 2) -> None:
        made = node_json(a_machine(f"n{len(self.nodes)}", gpus=gpus, model="T4"))
        made["metadata"]["labels"] |= {"wattherd.dev/power-domain": domain} if domain else {}
        self.nodes[made["metadata"]["name"]] = made
        self.check.scheduler.node_seen(a_node(made))

    def submit(
        self, name: str, *, quota: bool = True, **pod_sets: int | tuple[int, Request]
    ) -> None:
        """Pods (of one GPU, or of a request) by pod set."""
        sets = []
        for each, given in pod_sets.items():
            count, request = given if isinstance(given, tuple) else (given, ONE)
            template = pod_json("template", request)
            sets.append({"name": each, "count": count, "template": template})
        status: Json = {"admissionChecks": [_state("Pending")]}
        status["conditions"] = [{"type": "QuotaReserved", "status": str(quota)}]
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self._put({"metadata": meta, "spec": {"podSets": sets}, "status": status})

    def change(self, name: str, **status: Any) -> None:
        made = self.workloads[f"uid-{name}"]
        self._put(made | {"status": made["status"] | status})

    def finish(self, name: str) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Finished")]
        self.change(name, conditions=conditions)

    def run(self, name: str, pod: str, node: str) -> None:
        """A real pod of a workload is seen on a node."""
        made = bound(pod_json(pod, ONE), node, **{"wattherd.dev/workload": f"uid-{name}"})
        self.pods[made["metadata"]["uid"]] = made
        self.check.pod_seen(a_pod(made), self.now_s)

    def end(self, pod: str) -> None:
        del self.pods[f"uid-{pod}"]
        self.check.pod_gone(f"uid-{pod}", self.now_s)

    def settle(self) -> None:
        for _ in range(50):
            self.now_s += 1.0
            verdicts = self.check.plan(self.now_s)
            if not verdicts:
                return
            for verdict in verdicts:
                self.write(verdict)
        raise AssertionError("it never comes to rest")

    def write(self, verdict: CheckVerdict) -> None:
        made = self.workloads[verdict.workload.metadata.uid]
        state = _state(verdict.state) | {"message": verdict.message}
        state["podSetUpdates"] = [
            {"name": one.name, "annotations": one.annotations, "nodeSelector": one.node_selector}
            for one in verdict.updates
        ]
        self.check.written(verdict, self.now_s)
        self._put(made | {"status": made["status"] | {"admissionChecks": [state]}})

    def _put(self, made: Json) -> None:
        self.workloads[made["metadata"]["uid"]] = made
        self._tell(made)

    def _tell(self, made: Json) -> None:
        self.check.workload_seen(_WORKLOAD.decode(json.dumps(made).encode()), self.now_s)

    def seats(self, name: str) -> set[str]:
        """Nodes that stand-ins of a workload count on."""
        held = self.check.scheduler.fleet.holdings.values()
        return {one.node for one in held if one.uid.startswith(f"uid-{name}/")}

    def held(self) -> dict[str, int]:
        """By node, how many count on it."""
        held = self.check.scheduler.fleet.holdings.values()
        return {node: sum(one.node == node for one in held) for node in sorted(self.nodes)}

    def answer(self, name: str) -> Json:
        found: Json = self.workloads[f"uid-{name}"]["status"]["admissionChecks"][0]
        return found

    @property
    def ready(self) -> set[str]:
        states = {one["metadata"]["name"]: one for one in self.workloads.values()}
        return {name for name in states if self.answer(name)["state"] == READY}


def _state(state: str) -> Json:
    return {"name": "power", "state": state, "lastTransitionTime": "", "message": ""}


def watts_of(nodes: int, gpus: int, used: int) -> int:
    return nodes * gpus * IDLE_MW + used * RISE_MW


def test_as_many_are_ready_as_the_budget_bears_and_others_are_to_try_again() -> None:
    world = World({"a": watts_of(2, 2, 3)})
    world.add_node("a")
    world.add_node("a")
    world.submit("first", main=2)
    world.submit("second", main=2)
    world.submit("third", main=1)
    world.settle()
    assert world.ready == {"first", "third"}
    told = world.answer("second")
    assert told["state"] == RETRY
    assert "WaitingFor" in told["message"]
    world.change("second", admissionChecks=[_state("Pending")])
    world.settle()
    assert world.answer("second")["state"] == RETRY
    world.finish("first")
    world.change("second", admissionChecks=[_state("Pending")])
    world.settle()
    assert world.ready == {"first", "second", "third"}


def test_a_pod_set_is_told_one_domain_and_model_for_all_its_pods() -> None:
    world = World()
    for domain in "aab":
        world.add_node(domain, gpus=1)
    world.add_node("b", gpus=2)
    world.submit("job", main=3, side=2)
    world.settle()
    updates = {one["name"]: one for one in world.answer("job")["podSetUpdates"]}
    domains = {name: one["annotations"]["wattherd.dev/power-domain"]
               for name, one in updates.items()}  # fmt: skip
    assert domains == {"main": "b", "side": "a"}
    assert updates["main"]["nodeSelector"] == {
        "wattherd.dev/power-domain": "b",
        "nvidia.com/gpu.product": "T4",
    }
    assert updates["main"]["annotations"]["wattherd.dev/workload"] == "uid-job"


def test_limits_of_a_template_are_requests_where_none_are_stated() -> None:
    world = World({"a": watts_of(1, 2, 1)})
    world.add_node("a")
    world.submit("first", main=1)
    world.submit("second", quota=False, main=1)
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = world.workloads["uid-second"]["spec"]["podSets"][0]["template"]
    template["spec"]["containers"] = [container]
    world.change("second", conditions=[{"type": "QuotaReserved", "status": "True"}])
    world.settle()
    assert world.ready == {"first"}


def test_nodes_that_no_selector_can_tell_apart_are_not_used() -> None:
    world = World()
    world.add_node("")
    world.submit("alone", main=1)
    world.settle()
    assert world.ready == {"alone"}
    world.add_node("a")
    world.submit("other", main=1)
    world.settle()
    [update] = world.answer("other")["podSetUpdates"]
    assert update["nodeSelector"]["wattherd.dev/power-domain"] == "a"


def test_pods_of_a_workload_are_not_counted_beside_it() -> None:
    world = World({"a": watts_of(2, 2, 2)})
    world.add_node("a")
    world.add_node("a")
    world.submit("first", main=1)
    world.settle()
    world.run("first", "p", "n1")
    world.submit("second", main=1)
    world.settle()
    assert world.ready == {"first", "second"}


def test_pods_draw_until_they_are_gone_though_their_workload_is_evicted() -> None:
    world = World({"a": watts_of(1, 2, 1)})
    world.add_node("a")
    world.submit("first", main=1)
    world.settle()
    world.run("first", "p", "n0")
    world.change("first", conditions=[{"type": "QuotaReserved", "status": "False"}])
    world.submit("second", main=1)
    world.settle()
    assert world.answer("second")["state"] == RETRY
    world.end("p")
    world.submit("third", main=1)
    world.settle()
    assert "third" in world.ready


@pytest.mark.parametrize("running", [False, True])
def test_a_restart_changes_nothing_that_was_granted(running: bool) -> None:
    world = World({"a": watts_of(2, 2, 3)})
    world.add_node("a")
    world.add_node("a")
    world.submit("first", main=3)
    world.settle()
    if running:
        world.run("first", "p", "n1")
    world.restart()
    assert world.ready == {"first"}
    world.submit("second", main=1)
    world.settle()
    assert world.answer("second")["state"] == RETRY
    world.finish("first")
    if running:
        world.end("p")
    world.submit("third", main=3)
    world.settle()
    assert "third" in world.ready


def test_a_cut_has_the_least_important_tried_again() -> None:
    world = World({"a": watts_of(2, 2, 4)})
    world.add_node("a")
    world.add_node("a")
    for name, priority in (("first", 1), ("second", 0)):
        world.submit(name, quota=False, main=2)
        world.workloads[f"uid-{name}"]["spec"]["priority"] = priority
        world.change(name, conditions=[{"type": "QuotaReserved", "status": "True"}])
    world.settle()
    assert world.ready == {"first", "second"}
    world.now_s += SETTLE_S  # their pods are not on their nodes by then: they may be stopped
    orders = world.check.scheduler.budget("a", watts_of(2, 2, 2), world.now_s)
    for verdict in world.check.verdicts(orders):
        world.write(verdict)
    world.settle()
    assert world.ready == {"first"}
    assert world.answer("second")["state"] == RETRY


def test_without_quota_or_our_check_nothing_is_said() -> None:
    world = World()
    world.add_node("a")
    world.submit("poor", quota=False, main=1)
    world.settle()
    assert world.ready == set()
    world.check.check_seen("power", world.now_s, ours=False)
    world.submit("rich", main=1)
    world.settle()
    assert world.ready == set()
    world.check.check_seen("power", world.now_s, ours=True)
    world.settle()
    assert world.ready == {"rich"}


def test_an_answer_that_was_not_taken_frees_what_it_held() -> None:
    world = World({"a": watts_of(1, 2, 1)})
    world.add_node("a")
    world.submit("first", main=1)
    [verdict] = world.check.plan(1.0)
    assert verdict.state == READY
    world.change("first", conditions=[{"type": "QuotaReserved", "status": "False"}])
    world.check.not_written(verdict, 2.0)
    world.submit("second", main=1)
    world.settle()
    assert world.ready == {"second"}


def test_a_second_workload_stays_while_kueue_ends_the_first() -> None:
    """Between our answer and Kueue's act the pods run on, and nothing says that they will go."""
    world = World({"a": watts_of(2, 2, 4)})
    world.add_node("a")
    world.add_node("a")
    for name, node in (("first", "n0"), ("second", "n1")):
        world.submit(name, main=2)
        world.settle()
        for number in range(2):
            world.run(name, f"{name}-{number}", node)
    world.now_s += SETTLE_S
    scheduler = world.check.scheduler
    for verdict in world.check.verdicts(scheduler.budget("a", watts_of(2, 2, 2), world.now_s)):
        world.write(verdict)
    [ended] = {"first", "second"} - world.ready
    for _ in range(8):
        world.now_s += 1.0
        assert not world.check.verdicts(scheduler.curb_orders(world.now_s))
    for number in range(2):
        world.end(f"{ended}-{number}")
    world.settle()
    assert len(world.ready) == 1


def test_pods_of_an_earlier_admission_count_until_they_are_gone() -> None:
    """A workload has quota again while its pods take their time: no watts are free for others."""
    world = World({"a": watts_of(1, 2, 2)})
    world.add_node("a")
    world.submit("first", main=2)
    world.settle()
    for number in range(2):
        world.run("first", f"first-{number}", "n0")
    world.change("first", conditions=[{"type": "QuotaReserved", "status": "False"}])
    world.settle()
    world.change("first", conditions=[{"type": "QuotaReserved", "status": "True"}],
                 admissionChecks=[_state("Pending")])  # fmt: skip
    scheduler = world.check.scheduler
    placer = scheduler.fleet.placer
    assert placer is not None
    assert scheduler.chooser.carried_mw(placer.state)["a"] == watts_of(1, 2, 2)
    world.settle()
    assert world.ready == set()
    for number in range(2):
        world.end(f"first-{number}")
    world.submit("second", main=1)
    world.settle()
    assert world.ready


def test_a_domain_that_selects_by_several_values_is_used_value_by_value() -> None:
    """By `In` of two racks: a node selector says one of them, and by `NotIn` the node's own."""
    world = World({"hall": 10**9})
    chosen = Requirement(key="rack", operator="In", values=["7", "8"])
    others = Requirement(key="rack", operator="NotIn", values=["7", "8"])
    tree = DomainTree(
        {
            "hall": DomainBranch("", LabelSelector(match_expressions=[chosen])),
            "rest": DomainBranch("", LabelSelector(match_expressions=[others])),
        }
    )
    world.check.scheduler.power_seen(tree, {"hall": 10**9, "rest": 0})
    for rack in ("7", "8", "9"):
        world.add_node("")
        name = f"n{len(world.nodes) - 1}"
        world.nodes[name]["metadata"]["labels"] |= {"rack": rack}
        world.check.scheduler.node_seen(a_node(world.nodes[name]))
    for job in ("one", "two"):
        world.submit(job, main=2)
    world.settle()
    assert world.ready == {"one", "two"}
    told = [world.answer(job)["podSetUpdates"][0]["nodeSelector"]["rack"] for job in ("one", "two")]
    assert sorted(told) == ["7", "8"]
    world.check.scheduler.power_seen(tree, {"hall": 10**9, "rest": 10**9})
    world.submit("three", main=2)
    world.settle()
    assert world.answer("three")["podSetUpdates"][0]["nodeSelector"]["rack"] == "9"


def test_a_node_that_is_of_a_domain_by_lacking_a_label_is_told_by_its_name() -> None:
    world = World({})
    lacks = Requirement(key="rack", operator="DoesNotExist")
    tree = DomainTree({"hall": DomainBranch("", LabelSelector(match_expressions=[lacks]))})
    world.check.scheduler.power_seen(tree, {})
    world.add_node("")
    world.nodes["n0"]["metadata"]["labels"] |= {"kubernetes.io/hostname": "n0"}
    world.check.scheduler.node_seen(a_node(world.nodes["n0"]))
    world.submit("one", main=2)
    world.settle()
    told = world.answer("one")["podSetUpdates"][0]["nodeSelector"]
    assert told["kubernetes.io/hostname"] == "n0"


def test_who_is_on_no_node_yet_makes_way_for_who_came_there() -> None:
    """A kube-scheduler takes another node of the domain: what was meant for it is free then."""
    world = World()
    for _ in range(2):
        world.add_node("a", gpus=2)
    world.submit("first", main=2)
    world.submit("second", main=1)
    world.settle()
    assert world.seats("first") == {"n0"}
    assert world.seats("second") == {"n1"}
    world.run("second", "second-1", "n0")
    world.run("first", "first-1", "n0")
    world.submit("third", main=2)
    world.settle()
    assert "third" not in world.ready, "one GPU of four is left"
    world.submit("fourth", main=1)
    world.settle()
    assert "fourth" in world.ready
    assert world.held() == {"n0": 2, "n1": 2}
    world.run("first", "first-2", "n1")
    world.settle()
    assert world.held() == {"n0": 2, "n1": 2}


def test_who_has_no_device_left_for_him_gives_his_watts_back_like_others() -> None:
    """The node is too full and so is all around it; what waits there is in the sum as well."""
    world = World({"": watts_of(2, 2, 6)})
    for _ in range(2):
        world.add_node("a", gpus=2)
    for name in ("a", "z"):
        world.submit(name, main=2)
    world.settle()
    assert world.ready == {"a", "z"}
    for number, node in enumerate(sorted(world.seats("a")) * 2):
        world.run("z", f"z-{number}", node)
    (left,) = {"n0", "n1"} - world.seats("a")
    for number in range(2):
        world.check.pod_seen(a_pod(bound(pod_json(f"foreign-{number}", ONE), left)), world.now_s)
    world.settle()
    world.now_s += SETTLE_S + 1.0
    for verdict in world.check.verdicts(
        world.check.scheduler.budget("", watts_of(2, 2, 4), world.now_s)
    ):
        world.write(verdict)
    world.settle()
    assert world.ready == {"a"}


def test_nobody_who_runs_goes_for_what_is_reserved_and_not_let_in() -> None:
    """An answer may take seconds, where the API is slow or the workload has changed meanwhile."""
    world = World({"": watts_of(1, 4, 3)})
    world.add_node("a", gpus=4)
    for name in ("runs", "soon"):
        world.submit(name, main=1)
        world.settle()
        world.run(name, f"{name}-1", "n0")
    world.submit("first", main=1)  # by its name the most important of three alike
    world.now_s += 1.0
    (verdict,) = world.check.plan(world.now_s)
    assert verdict.state == READY
    scheduler = world.check.scheduler
    assert not world.check.verdicts(scheduler.budget("", watts_of(1, 4, 2), world.now_s))

    def answers() -> list[CheckVerdict]:
        world.now_s += 0.5
        orders = [*scheduler.plan(world.now_s), *scheduler.curb_orders(world.now_s)]
        return world.check.verdicts(orders)

    assert not [one for _ in range(40) for one in answers()]
    world.write(verdict)  # it came through after all: now it counts
    for one in (one for _ in range(40) for one in answers()):
        world.write(one)
    assert world.ready == {"first", "runs"}


NO_QUOTA = [
    {"type": "QuotaReserved", "status": "False"},
    {"type": "Evicted", "status": "True"},
]
QUOTA = [{"type": "QuotaReserved", "status": "True"}]


def queued_anew(world: World, name: str) -> None:
    world.change(name, conditions=NO_QUOTA)
    world.change(name, conditions=QUOTA, admissionChecks=[_state("Pending")])


def test_an_answer_to_an_earlier_admission_that_failed_undoes_no_later_one() -> None:
    world = World({"": watts_of(1, 2, 1)})
    world.add_node("a", gpus=2)
    world.submit("first", main=1)
    world.now_s += 1.0
    (old,) = world.check.plan(world.now_s)
    queued_anew(world, "first")
    world.settle()
    assert world.ready == {"first"}
    world.check.not_written(old, world.now_s)
    world.submit("second", main=1)
    world.settle()
    assert world.ready == {"first"}, "there are watts for one"
    assert world.seats("first") == {"n0"}


@pytest.mark.parametrize("news", ["written", "not_written"])
def test_news_of_an_old_refusal_leaves_nobody_without_an_answer(news: str) -> None:
    world = World({"": watts_of(1, 2, 0)})
    world.add_node("a", gpus=2)
    world.submit("first", main=1)
    world.now_s += 1.0
    (old,) = world.check.plan(world.now_s)
    assert old.state == RETRY
    queued_anew(world, "first")
    getattr(world.check, news)(old, world.now_s)
    scheduler = world.check.scheduler
    for verdict in world.check.verdicts(scheduler.budget("", watts_of(1, 2, 2), world.now_s)):
        world.write(verdict)
    world.settle()
    assert world.ready == {"first"}
