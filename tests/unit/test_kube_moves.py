"""Who may be stopped or moved for a better plan on Kubernetes, and where to."""

from __future__ import annotations

import pytest
from kube_builders import a_node, a_pod, bound, pod_json
from kube_core_desk import CoreDesk, GangJob

from wattherd.kube.decide.core_driver import Question
from wattherd.kube.facts.orders import BindPod
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import KEEP_BOOKS, STOP_BY_RANK, core_choice, schedulers
from wattherd.testing.builders import a_node as a_machine

EVERYBODY = ("", *schedulers())
SLOW, FAST = "T4", "A100-40GB"
LONG_S = 90_000.0


def a_desk(scheduler: str, *models: str, gpus: int = 2) -> CoreDesk:
    nodes = [a_machine(f"n{at}", gpus=gpus, model=model) for at, model in enumerate(models)]
    return CoreDesk(nodes, core_choice(scheduler), agents=False)


def stops(desk: CoreDesk, name: str) -> int:
    return sum(what == "stop" and who == name for _, what, who, _ in desk.story)


def crowd(desk: CoreDesk) -> None:
    """Shorter and wider jobs come, of many users."""
    for number in range(3):
        for name, pods, gpus in (("short", 1, 1), ("wide", 2, 2), ("pair", 1, 2)):
            job = GangJob(
                name=f"{name}-{number}", at_s=desk.now_s, duration_s=400, pods=pods, gpus=gpus,
                user=f"user-{number}",
            )  # fmt: skip
            desk.submit(job)
            desk.pass_by(70)
    desk.pass_by(8000)


def bare(name: str, **more: object) -> GangJob:
    return GangJob(name=name, at_s=0, duration_s=LONG_S, bare=True, **more)  # type: ignore[arg-type]


# Pods that nothing makes anew --------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("scheduler", EVERYBODY)
def test_a_pod_that_nothing_makes_anew_is_not_stopped_for_a_better_plan(
    scheduler: str, *, restart: bool
) -> None:
    """It is long, and narrow, and on the slower node; all that come have as good a priority."""
    desk = a_desk(scheduler, SLOW, FAST)
    desk.submit(bare("bare", models=(SLOW,)))
    desk.pass_by(5)
    desk.submit(bare("free"))
    desk.pass_by(1000)
    if restart:
        desk.restart()
    crowd(desk)
    assert stops(desk, "bare") == stops(desk, "free") == 0
    assert {"bare", "free"} <= set(desk.running())
    started = {who for _, what, who, _ in desk.story if what == "start"}
    assert any(name.startswith("short") for name in started)


class SlowServer(CoreDesk):
    """The API server answers no binding while it is `busy`."""

    busy = True
    asked: list[BindPod]

    def _bind(self, order: BindPod) -> None:
        if self.busy:
            self.asked = [order]
        else:
            super()._bind(order)


@pytest.mark.parametrize("scheduler", ["wattherd", "srtf", "gandiva"])
def test_a_pod_that_was_not_bound_after_all_is_planned_again(scheduler: str) -> None:
    """By then it counted as one that runs."""
    desk = SlowServer([a_machine("n0", gpus=1, model=SLOW)], core_choice(scheduler), agents=False)
    desk.submit(bare("bare"))
    desk.pass_by(15)
    desk.submit(GangJob(name="other", at_s=15, duration_s=LONG_S, gpus=2))
    desk.pass_by(60)
    desk.busy = False
    desk.scheduler.not_bound(desk.asked[0].uid)
    desk.pass_by(60)
    assert desk.running() == ["bare"]
    desk.submit(GangJob(name="short", at_s=100, duration_s=10))
    desk.pass_by(1000)
    assert stops(desk, "bare") == 0


class SlowSolver(CoreDesk):
    """What planners have worked out is answered when somebody says so."""

    def settle(self) -> None:
        self.asked: list[Question] = getattr(self, "asked", [])
        for _ in range(200):
            orders = self.scheduler.plan(self.now_s)
            for order in orders:
                self._obey(order)
            self.asked += self.scheduler.dialogue.take_questions()
            if not orders and not self.scheduler._dirty:
                return

    def solve(self) -> int:
        """How many questions were answered."""
        asked, self.asked = self.asked, []
        for one in asked:
            found = self._computers[one.order.kind](one.order.payload)
            self.scheduler.dialogue.answer(one, found)
        self.settle()
        return len(asked)


@pytest.mark.parametrize("scheduler", ["gavel-max-min", "gavel-ftf", "pollux-climb"])
def test_an_answer_that_comes_late_moves_nobody_who_is_to_stay(scheduler: str) -> None:
    """It was asked when the bare pod waited; by now it runs, and others have come and gone."""
    nodes = [a_machine(f"n{at}", gpus=2, model=model) for at, model in enumerate((SLOW, FAST))]
    desk = SlowSolver(nodes, core_choice(scheduler), agents=False)
    for name in ("first", "second"):
        desk.submit(GangJob(name=name, at_s=0, duration_s=LONG_S, gpus=2))
    desk.submit(bare("bare"))
    desk.pass_by(100)
    desk.end("first")
    desk.pass_by(30)
    assert "bare" in desk.running()
    desk.submit(GangJob(name="third", at_s=130, duration_s=LONG_S, gpus=2))
    answered = desk.solve()
    for _ in range(20):
        desk.pass_by(400)
        answered += desk.solve()
    assert answered
    assert stops(desk, "bare") == 0
    assert "bare" in desk.running()


@pytest.mark.parametrize("scheduler", EVERYBODY)
def test_a_pod_that_nothing_makes_anew_goes_for_priority_where_schedulers_go_by_it(
    scheduler: str,
) -> None:
    """As Kubernetes' own scheduler has it; where jobs change places all the time it stays."""
    desk = a_desk(scheduler, SLOW, gpus=1)
    desk.submit(bare("bare"))
    desk.pass_by(100)
    desk.submit(GangJob(name="first", at_s=100, duration_s=10, priority=5))
    desk.pass_by(2000)
    goes = scheduler in ("", "gang", "priority", "hived")
    assert stops(desk, "bare") == goes
    assert (desk.running() == ["first"]) == goes
    assert not goes or not scheduler or scheduler in STOP_BY_RANK


def test_a_cut_stops_pods_that_nothing_makes_anew_all_the_same() -> None:
    desk = a_desk("wattherd", SLOW, gpus=4)
    for at in range(4):
        desk.submit(bare(f"bare-{at}"))
    desk.pass_by(30)
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 200_000})
    desk.pass_by(30)
    assert len(desk.running()) == 2
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 900_000})
    desk.submit(GangJob(name="next", at_s=60, duration_s=1000, gpus=2))
    desk.pass_by(30)
    assert "next" in desk.running()


@pytest.mark.parametrize("scheduler", sorted({*EVERYBODY} - KEEP_BOOKS))
def test_devices_of_other_schedulers_pods_are_planned_for_nobody(scheduler: str) -> None:
    """Who keeps books of cells does not know theirs."""
    desk = a_desk(scheduler, SLOW, gpus=3)
    foreign = pod_json("foreign", Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    desk.scheduler.pod_seen(a_pod(bound(foreign, "n0")), 0.0)
    for name, gpus in (("pair", 2), ("one", 1), ("wide", 3)):
        desk.submit(GangJob(name=name, at_s=1, duration_s=LONG_S, gpus=gpus))
    desk.pass_by(4000)
    desk.end(desk.running()[0])
    desk.pass_by(4000)
    started = {who for _, what, who, _ in desk.story if what == "start"}
    assert started == {"pair", "one"}


# Nodes that are not for everybody ----------------------------------------------------------------


def close(desk: CoreDesk, node: str) -> None:
    made = desk.nodes[node]
    made["spec"]["taints"] = [{"key": "own", "effect": "NoSchedule"}]
    desk.scheduler.node_seen(a_node(made))


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("scheduler", EVERYBODY)
def test_nobody_is_stopped_for_a_better_node_that_does_not_take_its_pods(
    scheduler: str, *, restart: bool
) -> None:
    """The faster node is empty and tainted; the slower one has all there is to have."""
    desk = a_desk(scheduler, SLOW, FAST)
    close(desk, "n1")
    desk.submit(GangJob(name="long", at_s=0, duration_s=LONG_S))
    desk.submit(GangJob(name="gang", at_s=0, duration_s=LONG_S, models=(SLOW, FAST)))
    desk.pass_by(1000)
    if restart:
        desk.restart()
    desk.pass_by(3000)
    assert desk.running() == ["long", "gang"]
    assert stops(desk, "long") == stops(desk, "gang") == 0


@pytest.mark.parametrize("scheduler", ["wattherd", "gavel-max-min"])
def test_others_do_move_to_the_faster_node(scheduler: str) -> None:
    """Else nothing would be seen above."""
    desk = a_desk(scheduler, SLOW, FAST)
    close(desk, "n1")
    desk.submit(GangJob(name="long", at_s=0, duration_s=LONG_S))
    desk.pass_by(1000)
    del desk.nodes["n1"]["spec"]["taints"]
    desk.scheduler.node_seen(a_node(desk.nodes["n1"]))
    desk.pass_by(3000)
    assert stops(desk, "long") == 1
    assert desk.story[-1][1:] == ("start", "long", (("n1", (0,)),))
