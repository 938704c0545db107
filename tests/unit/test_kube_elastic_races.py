"""An elastic Job whose controller, whose pods and whose own object are each told of in their time.

Written from the API server's side. The Job's controller deletes and makes pods one after another,
whenever it comes to it; news of Jobs and news of pods are two streams, each in order, and neither
waits for the other; a Job that was suspended is run on in its old size before it is told its new
one. Whatever the order: no pod is evicted from under a Job that runs, for the Job would count it as
failed, and once all is quiet the Job has the size that is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from kube_builders import Json, bound, pod_json
from kube_core_desk import CoreDesk, GangJob

from wattherd.experiments.schedule import simulators
from wattherd.kube.facts.job_sets import ElasticJob, as_group
from wattherd.kube.facts.orders import BindPod, EvictPod, Order, ResizeOwner
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.model.job import Request
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node

GROUP = GroupId(GroupKind.JOB, "t", "el")
SLICE_S, PATIENCE_S = 20.0, 1500.0
REFUSED = 0.03
"""The part of bindings that the API server refuses."""


class RacingDesk(CoreDesk):
    """One elastic Job of 1 to 4 pods on four GPUs, whose news come when `rng` says so."""

    def __init__(self, scheduler: str, rng: Random) -> None:
        choice = core_choice(scheduler, "pause")
        super().__init__([a_node("n", gpus=4, model="T4")], choice, agents=False)
        self.scheduler.groups_are_objects(GroupKind.JOB)
        self.rng = rng
        self.size, self.suspended, self.made = 1, False, 0
        self.actual: dict[str, Json] = {}
        """Pods of the Job by uid, as the API server has them."""
        self.job_news: deque[Callable[[], None]] = deque()
        self.pod_news: deque[Callable[[], None]] = deque()
        self.calls: list[Callable[[], None]] = []
        """Bindings, which the API server carries out in any order."""
        self.job_calls: deque[Callable[[], None]] = deque()
        """What is written of the Job, in the order in which it was decided."""
        self.resumed = False
        """Whether the shell has asked already that the Job runs on."""
        self.failed: list[str] = []
        self.returning = False
        """Whether the shell has heard that its Job is suspended, and is to run it on."""
        self.sizes: list[int] = []
        self.going: list[EvictPod] = []
        self._tell_job()

    # The API server and the Job's controller ------------------------------------------------------

    def _tell_job(self) -> None:
        spec: Any = {"parallelism": self.size, "completions": self.size}
        job = {"metadata": {"name": "el", "namespace": "t"}, "spec": spec}
        told, suspended = msgspec.convert(job, ElasticJob), self.suspended

        def hear() -> None:
            self.scheduler.group_seen(GROUP, as_group(told))
            self.returning, self.resumed = suspended, False

        self.job_news.append(hear)

    def _tell_pod(self, made: Json) -> None:
        self.pod_news.append(lambda: self._put(made))

    def controller(self) -> bool:
        """It makes or deletes one pod; whether there was any to."""
        wanted = 0 if self.suspended else self.size
        indices = {made["metadata"]["labels"]["index"]: uid for uid, made in self.actual.items()}
        surplus = [uid for index, uid in indices.items() if int(index) >= wanted]
        missing = [at for at in range(wanted) if str(at) not in indices]
        if surplus:
            uid = self.rng.choice(surplus)
            del self.actual[uid]
            self.pod_news.append(lambda: self._gone(uid))
        elif missing:
            self._make(missing[0])
        return bool(surplus or missing)

    def _make(self, index: int) -> None:
        self.made += 1
        request = Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000)
        made = pod_json(
            f"el-{index}-{self.made}", request, schedulerName="wattherd",
            terminationGracePeriodSeconds=0,
        )  # fmt: skip
        meta = made["metadata"]
        meta["namespace"] = "t"
        meta["labels"] = {"wattherd.dev/elastic": "1-4", "index": str(index)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "el", "uid": "job-el"}
        meta["ownerReferences"] = [owner | {"controller": True}]
        self.actual[meta["uid"]] = made
        self._tell_pod(made)

    # The shell ------------------------------------------------------------------------------------

    def _obey(self, order: Order) -> None:
        if isinstance(order, ResizeOwner):
            self.resumed = True
            self.job_calls.append(lambda: self._resize(order.pods))
        elif isinstance(order, BindPod) and "el-" in order.key:
            self.calls.append(lambda: self._bind_one(order))
        elif isinstance(order, EvictPod) and "el-" in order.key:
            self.going.append(order)
        else:
            super()._obey(order)

    def _resize(self, pods: int) -> None:
        self.sizes.append(pods)
        self.size, self.suspended = pods, False
        self._tell_job()

    def _suspend(self) -> None:
        self.suspended = True
        self._tell_job()

    def _resume(self) -> None:
        self.suspended = False
        self._tell_job()

    def _bind_one(self, order: BindPod) -> None:
        refused = self.rng.random() < REFUSED
        if refused or order.uid not in self.actual:  # for good, or it is gone
            self.scheduler.not_bound(order.uid)
            return
        made = bound(self.actual[order.uid], order.node, **order.annotations)
        self.actual[order.uid] = made
        self._tell_pod(made)

    def look(self) -> None:
        """One plan, its orders, and what follows from them."""
        self.going.clear()
        for order in self.scheduler.plan(self.now_s):
            self._obey(order)
        for stop in self.scheduler.stops_of(self.going):
            if stop.owner is not None:
                self.job_calls.append(self._suspend)
            else:
                self.failed += [one.key for one in stop.evictions if one.uid in self.actual]
        self.resume()

    def resume(self) -> None:
        """As the shell does after a plan: it runs on once none of its pods is seen."""
        if self.returning and not self.resumed and not any("el-" in uid for uid in self.pods):
            self.resumed = True
            self.job_calls.append(self._resume)

    # Time -----------------------------------------------------------------------------------------

    def race(self, until: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Anything happens, in any order, until it is so."""
        end_s = self.now_s + within_s
        while not until():
            assert self.now_s < end_s, self.story_of()
            assert not self.failed, self.story_of()
            for _ in range(self.rng.randint(1, 12)):
                self._anything()
            self.now_s += self.rng.choice((0.05, 0.5, 2.0))

    def _anything(self) -> None:
        what = self.rng.randrange(8)
        if what == 0:
            self.controller()
        elif what == 1 and self.job_news:
            self.job_news.popleft()()
        elif what == 2 and self.pod_news:
            self.pod_news.popleft()()
        elif what in (3, 4):
            self.look()
        elif what == 5 and self.calls:
            self.calls.pop(self.rng.randrange(len(self.calls)))()
        elif what == 6 and self.job_calls:
            self.job_calls.popleft()()
        elif what == 7:  # a planner may decide on the new size later than this
            self.resume()

    def running_pods(self) -> int:
        return sum(1 for made in self.actual.values() if made["spec"].get("nodeName"))

    def story_of(self) -> str:
        pods = {uid: made["spec"].get("nodeName") for uid, made in self.actual.items()}
        return f"{self.now_s=} {self.size=} {self.suspended=} {self.sizes=} {pods} {self.failed=}"


@pytest.mark.parametrize("seed", [*range(50), 152, 169, 263])
@pytest.mark.parametrize("scheduler", ["gandiva", "wattherd", "optimus"])
def test_no_pod_of_a_job_that_runs_is_evicted_and_it_gets_what_is_idle(
    scheduler: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of seconds instead of minutes, so that many changes meet."""
    monkeypatch.setattr(
        simulators, "Gandiva", lambda quantum_s, within: Gandiva(quantum_s=SLICE_S, within=within)
    )
    desk = RacingDesk(scheduler, Random(seed))
    desk.race(lambda: desk.running_pods() == 4)
    desk.submit(GangJob(name="rigid", at_s=desk.now_s, duration_s=1e6))
    desk.race(lambda: desk.running() == ["rigid"] and desk.running_pods() in (1, 2, 3))
    desk.end("rigid")
    desk.race(lambda: desk.running_pods() == 4)
