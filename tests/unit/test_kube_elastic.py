"""Jobs that move, grow and shrink: their owner makes pods anew, and as many as it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from kube_builders import a_node, pod_json
from kube_core_desk import CoreDesk, GangJob, _Run

from wattherd.kube.facts.job_sets import ElasticJob, as_group
from wattherd.kube.facts.orders import BindPod, EvictPod, Order, ResizeOwner
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice

NODES = [NodeSpec(name="n", cpu_milli=64000, memory_mib=1 << 20, gpu_count=4, gpu_model="T4")]
TWO_NODES = [replace(NODES[0], name=name, gpu_count=2) for name in ("n0", "n1")]
SLICES_S = 3000.0
ELASTIC = "wattherd.dev/elastic"


class Desk(CoreDesk):
    """Of one elastic Job, whose controller makes pods only when it is told to."""

    def __init__(
        self,
        widths: str,
        pods: int,
        scheduler: str = "gandiva",
        nodes: Sequence[NodeSpec] = NODES,
    ) -> None:
        super().__init__(nodes, core_choice(scheduler, "pause"), agents=False)
        self.widths, self.size, self.round = widths, pods, 0
        self.seen: list[Order] = []
        self.say()
        self.make()

    def say(self) -> None:
        spec: Any = {"parallelism": self.size}

        job = msgspec.convert(
            {"metadata": {"name": "el", "namespace": "t"}, "spec": spec}, ElasticJob
        )
        self.scheduler.group_seen(GroupId(GroupKind.JOB, "t", "el"), as_group(job))

    def make(self) -> None:
        """As many pods as the Job says by now."""
        self.say()
        self.round += 1
        for number in range(self.size):
            self.make_one(number)

    def make_one(self, number: int) -> None:
        """Its pod of this index."""
        made = pod_json(
            f"el-{number}-{self.round}",
            Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000),
            schedulerName="wattherd",
            terminationGracePeriodSeconds=0,
        )
        meta = made["metadata"]
        meta["namespace"] = "t"
        meta["labels"] = {ELASTIC: self.widths}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "el", "uid": "job-el"}
        meta["ownerReferences"] = [owner | {"controller": True}]
        self._of[meta["uid"]] = _Run(
            GangJob(name="el", at_s=0, duration_s=1e6, pods=self.size), 1e6
        )
        self._put(made)

    def _obey(self, order: Order) -> None:
        self.seen.append(order)
        if isinstance(order, ResizeOwner):
            self.size = order.pods
        elif isinstance(order, EvictPod):
            self._gone(order.uid)
        else:
            super()._obey(order)

    def at(self, now_s: float) -> None:
        """Let time pass, second by second."""
        while self.now_s < now_s:
            self.now_s += 1.0
            self.settle()

    def until_resized(self) -> None:
        """At a slice's end: what was idle for one is lent."""
        until_s = self.now_s + SLICES_S
        while self.now_s < until_s and not any(isinstance(one, ResizeOwner) for one in self.seen):
            self.at(self.now_s + 1)

    def take(self, kind: type[Any]) -> list[Any]:
        found = [one for one in self.seen if isinstance(one, kind)]
        self.seen.clear()
        return found


def test_a_job_grows_into_idle_gpus_and_gives_them_back() -> None:
    desk = Desk("1-4", pods=1)
    desk.at(1)
    assert len(desk.take(BindPod)) == 1
    desk.until_resized()
    assert [one.pods for one in desk.take(ResizeOwner)] == [4]
    desk.make()
    desk.at(desk.now_s + 2)
    assert len(desk.take(BindPod)) == 4
    # Somebody else comes.
    desk.submit(GangJob(name="other", at_s=desk.now_s, duration_s=1e6, pods=2))
    desk.until_resized()
    (resize,) = desk.take(ResizeOwner)
    assert resize.pods == 1
    desk.make()
    desk.at(desk.now_s + 5)
    assert len([one for one in desk.take(BindPod) if "el-" in one.key]) == 1
    core = desk.scheduler.core
    assert core is not None
    assert len([job for job in core.jobs.values() if job.active]) == 2


def test_a_pod_that_is_one_too_many_is_not_started_beside_a_job_that_runs() -> None:
    """The Job was run on in its old size first; its controller is about to delete that pod."""
    desk = Desk("1-4", pods=1)
    desk.at(1)
    assert len(desk.take(BindPod)) == 1
    desk.make_one(1)
    desk.at(2)
    assert not desk.take(BindPod)
    assert [one.text for one in desk.told.values()] == ["2 pods of el are there, 1 are to be"]
    desk.size = 2
    desk.say()
    desk.at(3)
    assert len(desk.take(BindPod)) == 1


class Reports:
    """The elastic Job at work: it is made in the size that is asked for, and tells its progress."""

    def __init__(self, desk: Desk, steps_per_s: dict[int, float]) -> None:
        self.desk, self.steps_per_s = desk, steps_per_s
        self.noise_scale: float | None = None
        """In samples, of which each pod takes 32 a step."""
        self.done, self.sizes = 0.0, list[int]()

    def work(self, seconds: float) -> None:
        desk, until_s = self.desk, self.desk.now_s + seconds
        while desk.now_s < until_s:
            desk.at(desk.now_s + 10.0)
            asked = [one.pods for one in desk.take(ResizeOwner)]
            if asked:  # it is suspended first: its pods go
                self.sizes += asked
                for uid in [uid for uid in desk.pods if "el-" in uid]:
                    desk._gone(uid)
                desk.make()
                continue
            runs = sorted(uid for uid, of in desk._of.items() if of.places and uid in desk.pods)
            mine = [uid for uid in runs if "el-" in uid]
            if mine:
                self.done += 10.0 * self.steps_per_s[len(mine)]
                told = {"step": self.done, "total": 1e6}
                if self.noise_scale is not None:
                    told |= {"noise_scale": self.noise_scale, "batch": 32.0 * len(mine)}
                desk.write_progress(mine[0], json.dumps(told))


@pytest.mark.parametrize(("at_four", "then"), [(1.0, 2), (1.9, 4)], ids=["no-faster", "faster"])
@pytest.mark.parametrize("scheduler", ["optimus", "aiturbo", "wattherd"])
def test_a_job_grows_again_only_if_it_was_faster_so(
    scheduler: str, at_four: float, then: int
) -> None:
    """Before anything is known more GPUs are taken to help; what the job reported decides then."""
    desk = Desk("1-4", pods=1, scheduler=scheduler)
    job = Reports(desk, {1: 0.5, 2: 1.0, 3: 1.0, 4: at_four})
    job.work(600.0)
    assert job.sizes == [4]
    desk.submit(GangJob(name="other", at_s=desk.now_s, duration_s=1e6, pods=2))
    job.work(1200.0)
    assert job.sizes[-1] == 2
    desk.end("other")
    job.work(2400.0)
    assert job.sizes[-1] == then


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("scheduler", ["gandiva", "optimus", "aiturbo", "wattherd"])
def test_a_job_grows_no_further_than_its_pods_may_go(scheduler: str, *, restart: bool) -> None:
    """The other node is empty, and tainted: pods for it would wait, and the others have stopped."""
    desk = Desk("1-4", pods=1, scheduler=scheduler, nodes=TWO_NODES)
    desk.nodes["n1"]["spec"]["taints"] = [{"key": "own", "effect": "NoSchedule"}]
    desk.scheduler.node_seen(a_node(desk.nodes["n1"]))
    job = Reports(desk, {1: 0.5, 2: 1.0, 3: 1.5, 4: 1.9})
    job.work(600.0)
    if restart:
        desk.restart()
    job.work(900.0)
    assert {*job.sizes} == {2}
    assert len([one for one in desk.pods if "el-" in one]) == 2


def test_who_waits_too_long_for_its_pods_gives_its_places_back_and_runs_once_they_come() -> None:
    desk = Desk("1-4", pods=1)
    desk.until_resized()
    desk.at(desk.now_s + 70)
    core = desk.scheduler.core
    assert core is not None
    assert not [job for job in core.jobs.values() if job.active]
    desk.make()
    desk.at(desk.now_s + 70)
    assert [job for job in core.jobs.values() if job.active]


def test_a_size_that_changes_before_its_pods_are_made_is_the_last_one() -> None:
    """Another job comes while four pods are awaited."""
    desk = Desk("1-4", pods=1)
    desk.until_resized()
    assert [one.pods for one in desk.take(ResizeOwner)] == [4]
    desk.submit(GangJob(name="other", at_s=desk.now_s, duration_s=1e6, pods=2))
    desk.until_resized()
    assert desk.take(ResizeOwner)[-1].pods < 4
    desk.make()
    desk.at(desk.now_s + 5)
    core = desk.scheduler.core
    assert core is not None
    assert len([job for job in core.jobs.values() if job.active]) == 2
    assert sum(len(run.wanted) > 0 for run in core.jobs.values()) == 2


@pytest.mark.parametrize("widths", ["four", "4-1", "0-3", "1-", "1-99999"])
def test_widths_that_cannot_be_read_are_told(widths: str) -> None:
    desk = Desk(widths, pods=1)
    desk.at(1)
    assert [one.reason for one in desk.told.values()] == ["InvalidPod"]
