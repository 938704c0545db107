"""A cluster at a scheduler's desk, by its own clock: pods run, end, are capped and made anew.

What is evicted is made anew at once by its owner, as a Job's controller does, and goes on where it
stopped; agents carry caps out and read them back at once. So what happens here is comparable with a
simulation, event for event.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kube_builders import Json, a_node, a_pod, fleet_of, node_json, pod_json
from kube_builders import bound as as_bound

from wattherd.estimate.power_curve import prior_of
from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.core_config import CoreChoice
from wattherd.kube.facts.orders import BindPod, CapPod, EvictPod, Order, TellGroup, TellPod
from wattherd.kube.facts.queue_plan import QueueState
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.policy.queue.tree import QueueTree

Line = tuple[float, str, str, tuple[tuple[str, tuple[int, ...]], ...]]
"""When, what, which job, and on which GPUs of which nodes."""


CAP = "wattherd.dev/cap-"
"""How annotations begin that ask for caps and tell of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangJob:
    """`pods` of `gpus` GPUs each that run for `duration_s` at full power."""

    name: str
    at_s: float
    duration_s: float
    pods: int = 1
    gpus: int = 1
    priority: int = 0
    queue: str = "default"
    user: str = "default"
    made: str = ""
    """When its pods were made, by the cluster's clock; empty where they do not say so."""
    bare: bool = False
    """Whether nothing makes its pods anew."""
    models: tuple[str, ...] = ()
    """GPU models that it may use; empty for all."""


@dataclass(slots=True)
class _Run:
    job: GangJob
    left_s: float
    since_s: float = math.inf
    speed: float = 1.0
    generation: int = 0
    places: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return self.since_s + self.left_s / self.speed if self.speed else math.inf


class CoreDesk:
    """`play` has jobs come and budgets change, and tells what was started where and stopped."""

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        choice: CoreChoice,
        *,
        agents: bool = True,
        answers: bool = True,
        queues: QueueTree | None = None,
    ) -> None:
        self._choice, self._queues = choice, queues
        self.scheduler = self._a_scheduler()
        self._computers = choice.computers
        self.now_s = 0.0
        self.model = nodes[0].gpu_model
        self.story: list[Line] = []
        self.caps_w: dict[str, float] = {}
        self.capped_w: dict[tuple[float, str], float] = {}
        """What each GPU of a job may draw from some time on."""
        self.told: dict[str, TellPod] = {}
        self.pods: dict[str, Json] = {}
        self._of: dict[str, _Run] = {}
        self._runs: dict[str, _Run] = {}
        self.nodes: dict[str, Json] = {}
        self.selector: dict[str, str] = {}
        self.profile = ""
        """Of the jobs that come, where it is not empty."""
        self.answers = answers
        """Whether agents carry out at once, or only when told to `answer`."""
        self._unheard: dict[str, float | None] = {}
        for spec in nodes:
            made = node_json(spec)
            if agents:
                made["metadata"]["labels"]["wattherd.dev/agent"] = "true"
            self.nodes[spec.name] = made
            self.scheduler.node_seen(a_node(made))

    def _a_scheduler(self) -> KubeScheduler:
        made = KubeScheduler(
            fleet_of("first-fit"), holder="test", way=ByBinding("wattherd"), choice=self._choice
        )
        if self._queues is not None:
            made.queues_seen(QueueState(self._queues))
        return made

    def restart(self) -> None:
        """The process ends; the next one sees what is there."""
        before, self.scheduler = self.scheduler, self._a_scheduler()
        for made in self.nodes.values():
            self.scheduler.node_seen(a_node(made))
        for group, known in before.groups.items():
            self.scheduler.group_seen(group, known)
        for made in self.pods.values():
            self.scheduler.pod_seen(a_pod(made), self.now_s)
        self.scheduler.power_seen(before.domains.tree, before.domains.budgets_mw)

    def play(
        self, jobs: Sequence[GangJob], budgets_w: Mapping[float, float] | None = None
    ) -> list[Line]:
        """Until all jobs are through."""
        ahead = [(job.at_s, at, job) for at, job in enumerate(jobs)]
        heapq.heapify(ahead)
        steps = sorted((budgets_w or {}).items())
        for _ in range(100_000):
            times = [run.end_s for run in self._runs.values()]
            times += [ahead[0][0]] if ahead else []
            times += [steps[0][0]] if steps else []
            wake_s = self.scheduler.dialogue.wake_s
            times += [] if wake_s is None else [max(wake_s, self.now_s)]
            now_s = min(times, default=math.inf)
            if math.isinf(now_s) or not (self._runs or ahead):
                return self.story
            self.now_s = max(now_s, self.now_s)
            self._end_runs()
            while steps and steps[0][0] <= self.now_s:
                budget_mw = round(1000 * steps.pop(0)[1])
                self.scheduler.power_seen(self.scheduler.domains.tree, {"": budget_mw})
            while ahead and ahead[0][0] <= self.now_s:
                self.submit(heapq.heappop(ahead)[2])
            self.settle()
        raise AssertionError("it never ends")

    def submit(self, job: GangJob) -> None:
        run = self._runs[job.name] = _Run(job, job.duration_s)
        self._make_pods(run)

    def _make_pods(self, run: _Run) -> None:
        job = run.job
        run.generation += 1
        for number in range(job.pods):
            made = pod_json(
                f"{job.name}-{number}-{run.generation}",
                Request(
                    cpu_milli=1000 * job.gpus,
                    gpu_count=job.gpus,
                    gpu_milli=1000,
                    models=job.models,
                ),
                schedulerName="wattherd",
                priority=job.priority,
                terminationGracePeriodSeconds=0,
            )
            if self.selector:
                made["spec"]["nodeSelector"] = self.selector
            meta = made["metadata"]
            meta["namespace"] = job.user
            if job.made:
                meta["creationTimestamp"] = job.made
            meta["annotations"]["wattherd.dev/duration"] = f"{job.duration_s}s"
            if self.profile:
                meta["annotations"]["wattherd.dev/power-profile"] = self.profile
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name}
            if not job.bare:
                meta["ownerReferences"] = [owner | {"uid": f"job-{job.name}", "controller": True}]
            meta["labels"] = {"wattherd.dev/queue": job.queue}
            if job.pods > 1:
                meta["labels"]["kueue.x-k8s.io/pod-group-name"] = job.name
                meta["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(job.pods)
            self._of[meta["uid"]] = run
            self._put(made)

    def _put(self, made: Json) -> None:
        self.pods[made["metadata"]["uid"]] = made
        self.scheduler.pod_seen(a_pod(made), self.now_s)

    def _gone(self, uid: str) -> None:
        if uid in self.pods:
            del self.pods[uid]
            self.scheduler.pod_gone(uid)

    def _end_runs(self) -> None:
        for name, run in list(self._runs.items()):
            if run.end_s <= self.now_s + 1e-9:
                self.end(name)

    def end(self, name: str) -> None:
        """A job ends by itself, well, and its pods go."""
        run = self._runs.pop(name)
        for uid in [uid for uid, of in self._of.items() if of is run]:
            if uid in self.pods:
                done = self.pods.pop(uid) | {"status": {"phase": "Succeeded"}}
                self.scheduler.pod_seen(a_pod(done), self.now_s)

    def report(self, name: str, **told: float) -> None:
        """The first pod of a job that runs says how far it is."""
        self.write_progress(min(self._runs[name].places), json.dumps(told))

    def write_progress(self, uid: str, text: str) -> None:
        """A pod says this of its progress, whatever it is."""
        made = self.pods[uid]
        notes = made["metadata"]["annotations"] | {"wattherd.dev/progress": text}
        self._put(made | {"metadata": made["metadata"] | {"annotations": notes}})

    def running(self) -> list[str]:
        """Jobs whose pods are on nodes."""
        return [name for name, run in self._runs.items() if run.places]

    def pass_by(self, seconds: float) -> None:
        """Time passes, and the scheduler looks whenever it wants to."""
        end_s = self.now_s + seconds
        self.settle()
        while (wake_s := self.scheduler.dialogue.wake_s) is not None and wake_s < end_s:
            self.now_s = max(wake_s, self.now_s)
            self.settle()
        self.now_s = end_s

    def settle(self) -> None:
        """Plan and carry out until there is nothing more to do at this time."""
        for _ in range(200):
            orders = self.scheduler.plan(self.now_s)
            for order in orders:
                self._obey(order)
            asked = self.scheduler.dialogue.take_questions()
            for question in asked:
                found = self._computers[question.order.kind](question.order.payload)
                self.scheduler.dialogue.answer(question, found)
            if not orders and not asked and not self.scheduler._dirty:
                return
        raise AssertionError("it never comes to rest")

    def _obey(self, order: Order) -> None:
        match order:
            case TellPod():
                self.told[order.uid] = order
            case BindPod():
                self._bind(order)
            case EvictPod():
                self._evict(order)
            case CapPod():
                if order.forgets:
                    self._forget(order.uid, order.cap_w)
                self._cap(order.uid, order.cap_w)
            case TellGroup():
                pass
            case _:
                raise AssertionError(f"nobody carries out {order}")

    def _bind(self, order: BindPod) -> None:
        made, run = self.pods[order.uid], self._of[order.uid]
        bound = as_bound(made, order.node, **order.annotations)
        gpus = tuple(int(one) for one in order.annotations["wattherd.dev/gpus"].split(","))
        run.places[order.uid] = order.node, gpus
        asked = order.annotations.get("wattherd.dev/cap-w")
        self._put(bound)
        self._cap(order.uid, None if asked is None else float(asked))
        if len(run.places) == run.job.pods:
            run.since_s = self.now_s
            self._pace(run)
            self.story.append((self.now_s, "start", run.job.name, _places(run)))

    def _evict(self, order: EvictPod) -> None:
        run = self._of[order.uid]
        if run.places:
            run.left_s = max(0.0, run.left_s - (self.now_s - run.since_s) * run.speed)
            run.since_s, run.places = math.inf, {}
            self.story.append((self.now_s, "stop", run.job.name, ()))
        self._gone(order.uid)
        del self._of[order.uid]
        if any(of is run for of in self._of.values()):
            return
        if run.job.bare:
            self._runs.pop(run.job.name, None)
        else:
            self._make_pods(run)

    def _cap(self, uid: str, cap_w: float | None) -> None:
        """The agent holds it and reads it back at once."""
        if not self.answers:
            self._unheard[uid] = cap_w
            return
        self._hold(uid, cap_w)

    def _forget(self, uid: str, cap_w: float | None) -> None:
        """The order is written and the answer to those before it taken off, with one write."""
        if uid in self.pods:
            made = self.pods[uid]
            kept = made["metadata"]["annotations"]
            kept = {key: one for key, one in kept.items() if not key.startswith(CAP)}
            if cap_w is not None:
                kept["wattherd.dev/cap-w"] = f"{cap_w:g}"
            self._put(made | {"metadata": made["metadata"] | {"annotations": kept}})

    def answer(self) -> None:
        """Agents carry out what they were asked."""
        unheard, self._unheard = self._unheard, {}
        for uid, cap_w in unheard.items():
            self._hold(uid, cap_w)

    def _hold(self, uid: str, cap_w: float | None) -> None:
        made = self.pods.get(uid)
        if made is None:
            return
        kept = made["metadata"]["annotations"]
        kept = {key: text for key, text in kept.items() if not key.startswith(CAP)}
        self.caps_w.pop(uid, None)
        if cap_w is not None:
            self.caps_w[uid] = cap_w
            kept |= {"wattherd.dev/cap-w": f"{cap_w:g}", "wattherd.dev/cap-applied-w": f"{cap_w:g}"}
        self._put(made | {"metadata": made["metadata"] | {"annotations": kept}})
        run = self._of[uid]
        top_w = prior_of(self.model).max_w
        cap_w = top_w if cap_w is None else cap_w / run.job.gpus
        self.capped_w[self.now_s, run.job.name] = cap_w
        if not math.isinf(run.since_s):
            run.left_s = max(0.0, run.left_s - (self.now_s - run.since_s) * run.speed)
            run.since_s = self.now_s
            self._pace(run)

    def _pace(self, run: _Run) -> None:
        curve = prior_of(self.model)
        caps = [self.caps_w[uid] / run.job.gpus for uid in run.places if uid in self.caps_w]
        run.speed = min((curve.rate(cap_w) / curve.rates[-1] for cap_w in caps), default=1.0)

    def drawn_w(self) -> float:
        """What GPUs may draw by the caps that were read back."""
        most_w = prior_of(self.model).max_w
        return math.fsum(
            self.caps_w.get(uid, most_w * len(gpus))
            for run in self._runs.values()
            for uid, (_, gpus) in run.places.items()
        )


def _places(run: _Run) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted(run.places.values()))
