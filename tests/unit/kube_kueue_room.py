"""A cluster whose jobs Kueue queues, and whose budgets our admission check keeps; news comes late.

Kueue, the controller of Jobs and the kube-scheduler do what they do on a cluster (v0.14, batch/v1),
each some time after what it follows was written. What is told to try again loses its admission at
once and its quota when its pods are being deleted, waits as long as was said, and is queued anew.
Our answers are applied to workloads as they were seen: one that changed meanwhile is looked at
again, as `kube/live/kueue.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations

from kube_builders import Json, a_node, a_pod, fleet_of, node_json, pod_json
from kube_led_room import GPUS, LedRoom, Seen, is_going

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.kueue_check import READY, RETRY, ByCheck, CheckVerdict, KueueCheck
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.kueue_objects import KueueWorkload
from wattherd.kube.facts.orders import Order
from wattherd.model.job import Request
from wattherd.testing.builders import a_node as a_machine

RETRY_S, AGAIN_S = 5.0, 2.0
"""How long Kueue leaves alone whoever is to try again; when an answer that failed is looked at."""
PENDING = "Pending"
ONE = Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000)
_WORKLOAD = decoder(KueueWorkload)


@dataclass
class Queued:
    """A job of `pods` pods of a GPU each, and its workload."""

    name: str
    pods: int
    made: str
    quota: bool = False
    admitted: bool = False
    evicted: bool = False
    state: str = ""
    message: str = ""
    updates: list[Json] = field(default_factory=list)
    version: int = 0
    runs: bool = False
    """Whether the job is not suspended."""
    serial: int = 0
    again_s: float = 0.0


@dataclass
class KueueRoom(LedRoom):
    """By its own clock."""

    works: dict[str, Queued] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """By node."""

    def lead(self) -> None:
        """A check that knows nothing yet is told all that is."""
        way = ByCheck()
        self.scheduler = KubeScheduler(fleet_of("first-fit"), holder="t", way=way)
        self.check = KueueCheck(self.scheduler)
        self._term += 1
        self.check.check_seen("power", self.now_s, ours=True)
        self._hear_budgets(dict(self.budgets_w))
        for name, rack in self.rack_of.items():
            made = node_json(a_machine(name, gpus=GPUS, model="T4"))
            del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
            made["metadata"]["labels"]["wattherd.dev/power-domain"] = rack
            self.labels[name] = made["metadata"]["labels"]
            self.scheduler.node_seen(a_node(made))
        for made in self.pods.values():
            self._pod_heard(a_pod(made))
        for one in self.works.values():
            self.check.workload_seen(self._as_told(one), self.now_s)

    # What is heard --------------------------------------------------------------------------------

    def _news(self, kind: str, hear: Callable[[], None]) -> None:
        """Whoever takes over lists what there is, and hears of nothing that was before."""
        term = self._term
        super()._news(kind, lambda: hear() if term == self._term else None)

    def _pod_heard(self, seen: Pod) -> None:
        self.check.pod_seen(seen, self.now_s)

    def _pod_gone_heard(self, uid: str) -> None:
        self.check.pod_gone(uid, self.now_s)

    def _as_told(self, one: Queued) -> KueueWorkload:
        template = pod_json("template", ONE)
        told = {"QuotaReserved": one.quota, "Admitted": one.admitted, "Evicted": one.evicted}
        conditions = [{"type": kind, "status": str(is_so)} for kind, is_so in told.items()]
        check = {"name": "power", "state": one.state, "message": one.message,
                 "lastTransitionTime": "", "podSetUpdates": one.updates}  # fmt: skip
        made = {
            "metadata": {"name": one.name, "namespace": "default", "uid": f"uid-{one.name}",
                         "resourceVersion": str(one.version), "creationTimestamp": one.made},
            "spec": {"podSets": [{"name": "main", "count": one.pods, "template": template}],
                     "priority": 0},
            "status": {
                "conditions": conditions,
                "admissionChecks": [check] if one.state else [],
            },
        }  # fmt: skip
        return _WORKLOAD.decode(json.dumps(made).encode())

    def _changed(self, one: Queued) -> None:
        """It is written; the check hears of it, and so do Kueue's own controllers."""
        one.version += 1
        told = self._as_told(one)
        self._news("workloads", lambda: self.check.workload_seen(told, self.now_s))
        self._soon(partial(self._reconcile, one))

    # Kueue ----------------------------------------------------------------------------------------

    def _reconcile(self, one: Queued) -> None:
        if one.evicted:
            if one.runs:
                self._run_job(one, runs=False)
            elif one.quota and not self._active(one):
                one.quota = one.admitted = False
                self._changed(one)
                self._later(max(0.0, one.again_s - self.now_s), partial(self._queue, one))
            return
        if one.state == RETRY:
            self.story.append((self.now_s, f"evicted {one.name}"))
            one.evicted, one.state, one.updates = True, PENDING, []
            one.again_s = self.now_s + RETRY_S
            self._changed(one)
        elif one.quota and one.state == READY and not one.admitted:
            one.admitted = True
            self._changed(one)
        elif one.admitted and not one.runs:
            self._run_job(one, runs=True)

    def _queue(self, one: Queued) -> None:
        self.story.append((self.now_s, f"quota for {one.name}"))
        one.quota, one.evicted, one.state = True, False, PENDING
        one.message, one.updates = "", []
        self._changed(one)

    def _run_job(self, one: Queued, *, runs: bool) -> None:
        one.runs = runs
        self._soon(lambda: self._control(one.name))
        self._soon(partial(self._reconcile, one))

    def _active(self, one: Queued) -> list[Json]:
        return [made for made in self._pods_of(one.name) if not is_going(made)]

    def _pods_of(self, name: str) -> list[Json]:
        return [made for made in self.pods.values() if _of(made) == name]

    # Jobs and their pods --------------------------------------------------------------------------

    def _control(self, name: str) -> None:
        one = self.works[name]
        there = self._active(one)
        if not one.runs:
            for made in there:
                self._mark(made["metadata"]["uid"])
        else:
            for _ in range(one.pods - len(there)):
                one.serial += 1
                self._create_of(one)
        self._soon(partial(self._reconcile, one))

    def _create_of(self, one: Queued) -> None:
        made = pod_json(
            f"{one.name}-{one.serial}", ONE, terminationGracePeriodSeconds=30, priority=0
        )
        meta = made["metadata"]
        meta["creationTimestamp"] = self._clock()
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": one.name}
        meta["ownerReferences"] = [owner | {"uid": f"job-{one.name}", "controller": True}]
        meta["labels"] = {"kueue.x-k8s.io/podset": "main"}
        for update in one.updates:
            meta["annotations"] |= update["annotations"] or {}
            made["spec"]["nodeSelector"] = update["nodeSelector"] or {}
        self._write(made)
        self._soon(partial(self._place, meta["uid"]))

    def _place(self, uid: str) -> None:
        """As a kube-scheduler does: a node with room that has the labels asked for."""
        made = self.pods.get(uid)
        if made is None or is_going(made) or made["spec"].get("nodeName"):
            return
        free = dict.fromkeys(self.rack_of, GPUS)
        for other in self.bound().values():
            free[other["spec"]["nodeName"]] -= 1
        asked = made["spec"].get("nodeSelector", {}).items()
        able = [
            name for name, labels in self.labels.items() if free[name] and asked <= labels.items()
        ]
        if not able:
            self._later(1.0, partial(self._place, uid))
            return
        node = max(able, key=lambda name: (free[name], self.draws.random()))
        self.story.append((self.now_s, f"bound {uid} {node}"))
        self._write(made | {"spec": made["spec"] | {"nodeName": node}})

    # Our answers ----------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._plans_s, self._planned_s = None, self.now_s
        self._carry_out(self.scheduler.plan(self.now_s))

    def _carry_out(self, orders: list[Order]) -> None:
        for verdict in self.check.verdicts(orders):
            self.story.append(
                (
                    self.now_s,
                    f"answer {verdict.workload.metadata.name} {verdict.state} {verdict.message}",
                )
            )
            self._soon(partial(self._answer, verdict, self._term))

    def _answer(self, verdict: CheckVerdict, term: int) -> None:
        if term != self._term:
            return
        seen = verdict.workload.metadata
        one = self.works[seen.name]
        if str(one.version) == seen.resource_version:
            one.state, one.message = verdict.state, verdict.message
            one.updates = [
                {"name": each.name, "annotations": each.annotations,
                 "nodeSelector": each.node_selector}
                for each in verdict.updates
            ]  # fmt: skip
            self._changed(one)
            self._soon(partial(self._tell, "written", verdict, term))
            return
        self._later(AGAIN_S, partial(self._look_again, verdict, term))

    def _look_again(self, verdict: CheckVerdict, term: int) -> None:
        if term != self._term:
            return
        seen = verdict.workload.metadata
        one = self.works[seen.name]
        if (one.state, one.message) == (verdict.state, verdict.message):
            self._tell("written", verdict, term)
        elif str(one.version) != seen.resource_version:
            self.check.workload_seen(self._as_told(one), self.now_s)
            self._tell("not_written", verdict, term)
        else:
            self._answer(verdict, term)

    def _tell(self, what: str, verdict: CheckVerdict, term: int) -> None:
        if term == self._term:
            getattr(self.check, what)(verdict, self.now_s)
            self._plan_soon()

    # What is tried --------------------------------------------------------------------------------

    def arrive(self, many: int) -> None:
        for _ in range(many):
            self.serial += 1
            name = f"w-{self.serial:04d}"
            pods = self.draws.choice((1, 2))
            self.works[name] = one = Queued(name, pods, self._clock())
            self.first[name] = one.made
            self._changed(one)
            self._soon(partial(self._queue, one))
            self.run(self.draws.random() * 0.05)

    def free(self, uid: str) -> None:
        made = self.pods.pop(uid)
        self._news("pods", lambda: self._pod_gone_heard(uid))
        self._soon(lambda: self._control(_of(made)))

    def let_in(self) -> set[str]:
        """Who has been let in and has no pods on nodes."""
        there = {_of(made) for made in self.bound().values() if not is_going(made)}
        return {name for name, one in self.works.items() if one.admitted} - there

    def settle(self) -> None:
        """Nobody was bound, told to go or gone for a while, and who was let in is there."""
        since_s, before = self.now_s, (set(self.bound()), self.going(), self.let_in())
        for _ in range(4000):
            self.run(0.2)
            now = set(self.bound()), self.going(), self.let_in()
            if now != before:
                since_s, before = self.now_s, now
            elif self.now_s - since_s >= (4 * self.slow_s if not now[2] else 15.0):
                return
        raise AssertionError("it never comes to rest")


def and_of(seen: Seen, since: dict[str, Json], told: AbstractSet[str]) -> Iterator[Seen]:
    """`seen`, with some of those who came `since`, as they came: at least those `told` to go.

    What Kueue has let in counts before its pods are seen on nodes.
    """
    sure, others = sorted(since.keys() & told), sorted(since.keys() - told)
    for many in range(len(others) + 1):
        for some in combinations(others, many):
            came = {uid: _as_it_came(since[uid]) for uid in (*sure, *some)}
            nodes = {uid: made["spec"]["nodeName"] for uid, made in came.items()}
            both = seen.bound | came, seen.node_of | nodes
            yield Seen(*both, seen.room, dict(seen.room.first), seen.now_s)


def _as_it_came(made: Json) -> Json:
    meta = {key: told for key, told in made["metadata"].items() if key != "deletionTimestamp"}
    return made | {"metadata": meta}


def _of(made: Json) -> str:
    return str(made["metadata"]["ownerReferences"][0]["name"])
