"""HiveD on Kubernetes beside pods that it did not place: those of others, and of a life before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kube_builders import a_pod, bound, pod_json
from kube_core_desk import CoreDesk, GangJob

from wattherd.catalog.gpus import GPUS
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine


def machines(count: int, gpus: int) -> list[NodeSpec]:
    return [a_machine(f"n{at}", gpus=gpus, model="A100-40GB") for at in range(count)]


def halves() -> QueueTree:
    """Each is promised half of the GPUs."""
    both = [
        CapacityQueue(name=name, guaranteed_pct=50, user_limit_factor=2) for name in ("blue", "red")
    ]
    return QueueTree(CapacityQueue(name="root", children=tuple(both)))


def a_desk(nodes: int, gpus: int) -> CoreDesk:
    return CoreDesk(machines(nodes, gpus), core_choice("hived"), queues=halves())


def others_on(desk: CoreDesk, node: str, gpus: int, queue: str = "") -> None:
    """A pod of another scheduler, with GPUs from the first that is free."""
    made = pod_json("foreign", Request(cpu_milli=1000, gpu_count=gpus, gpu_milli=1000))
    made["metadata"]["labels"] = {"wattherd.dev/queue": queue} if queue else {}
    desk.scheduler.pod_seen(a_pod(bound(made, node)), desk.now_s)
    desk.settle()


def come(desk: CoreDesk, *jobs: tuple[str, str, int]) -> None:
    """Of each its name, its queue, and how many GPUs its pod asks for."""
    for name, queue, gpus in jobs:
        desk.submit(GangJob(name=name, at_s=desk.now_s, duration_s=1e6, queue=queue, gpus=gpus))
        desk.settle()


def where(desk: CoreDesk) -> dict[str, Sequence[tuple[str, tuple[int, ...]]]]:
    return {name: places for _, what, name, places in desk.story if what == "start"}


@pytest.mark.parametrize("taken", ["n0", "n1"])
def test_a_cell_is_found_beside_pods_of_others(taken: str) -> None:
    """One of two GPUs of a node is theirs: three jobs of one GPU find the other three."""
    desk = a_desk(2, 2)
    others_on(desk, taken, 1)
    come(desk, ("a", "blue", 1), ("b", "red", 1), ("c", "red", 1))
    places = [place for each in where(desk).values() for place in each]
    free = {("n0", (0,)), ("n0", (1,)), ("n1", (0,)), ("n1", (1,))} - {(taken, (0,))}
    assert set(places) <= free
    assert len(where(desk)) >= 2
    assert len(places) == len(set(places))


def test_a_queue_whose_first_cell_is_taken_gets_another_one() -> None:
    """Two nodes of four are promised to each queue, and others have one of these four."""
    desk = a_desk(4, 2)
    others_on(desk, "n0", 2)
    come(desk, ("b0", "blue", 2), ("b1", "blue", 2), ("r0", "red", 2))
    assert {name: places[0][0] for name, places in where(desk).items()} == {
        "b0": "n1", "b1": "n2", "r0": "n3",
    }  # fmt: skip


def test_who_finds_no_cell_for_pods_of_others_is_told_where_they_are() -> None:
    desk = a_desk(2, 2)
    others_on(desk, "n0", 1)
    come(desk, ("b0", "blue", 2), ("r0", "red", 2))
    assert set(where(desk)) == {"b0"}
    [told] = [one for uid, one in desk.told.items() if "r0" in uid]
    assert told.reason == "QuotaExceeded"
    assert "virtual cluster 'red' has no cells free for it" in told.text
    assert "1 GPU of others, or out of use, in no cell: n0 (1)" in told.text


def test_a_job_starts_once_others_have_gone() -> None:
    desk = a_desk(2, 2)
    others_on(desk, "n0", 1)
    come(desk, ("b0", "blue", 2), ("r0", "red", 2))
    desk.now_s += 10.0
    desk.scheduler.pod_gone("uid-foreign")
    desk.settle()
    assert where(desk)["r0"] == (("n0", (0, 1)),)


def test_opportunistic_jobs_take_what_others_leave() -> None:
    desk = a_desk(2, 2)
    others_on(desk, "n0", 1)
    for name in ("o0", "o1", "o2", "o3"):
        job = GangJob(name=name, at_s=0.0, duration_s=1e6, queue="red", priority=-1)
        desk.submit(job)
        desk.settle()
    places = [place for each in where(desk).values() for place in each]
    assert sorted(places) == [("n0", (1,)), ("n1", (0,)), ("n1", (1,))]


def test_a_new_process_counts_the_pods_that_it_finds() -> None:
    """It does not know whose cells they are, and gives out none of their GPUs."""
    desk = a_desk(4, 2)
    come(desk, ("b0", "blue", 1), ("r0", "red", 1))
    before = where(desk)
    desk.restart()
    desk.settle()
    come(desk, ("b1", "blue", 2), ("r1", "red", 2), ("b2", "blue", 1))
    started = {name: places for name, places in where(desk).items() if name not in before}
    assert set(started) == {"b1", "r1", "b2"}
    taken = [place for places in where(desk).values() for place in places]
    devices = [(node, gpu) for node, gpus in taken for gpu in gpus]
    assert len(devices) == len(set(devices))
    assert sorted(desk.running()) == ["b0", "b1", "b2", "r0", "r1"]


@pytest.mark.parametrize("queue", ["", "blue", "nobody"])
@pytest.mark.parametrize("scheduler", ["fifo", "capacity", "hived"])
def test_pods_that_are_there_count_whatever_queue_they_name(scheduler: str, queue: str) -> None:
    """No queue has room for them, or there is none of that name: they hold GPUs and draw watts."""
    queues = None if scheduler == "fifo" else halves()
    desk = CoreDesk(machines(1, 4), core_choice(scheduler), queues=queues, agents=False)
    enough = 1000.0 * (GPUS["A100-40GB"].max_w * 3 + GPUS["A100-40GB"].idle_w * 1)
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": round(enough)})
    others_on(desk, "n0", 2, queue)
    come(desk, ("r0", "red", 1))
    assert where(desk) == {"r0": (("n0", (2,)),)}
    come(desk, ("r1", "red", 1))
    assert set(where(desk)) == {"r0"}, "there are watts for three"
    [told] = [one for uid, one in desk.told.items() if "r1" in uid]
    assert told.reason == "WaitingForPower"
