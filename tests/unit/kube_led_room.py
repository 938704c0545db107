"""A cluster whose budgets the core keeps: an API that is heard late, controllers, pods that linger.

Two racks below a hall. The API is the truth; pods, jobs and budgets are each heard in the order in
which they were written, some time later, and not in step with each other. What is ordered arrives
after a while. Pods go when their finalizer is taken off, as the test likes; the controller of Jobs
makes others as soon as they are being deleted.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

from kube_builders import Json, a_node, a_pod, fleet_of, node_json, pod_json

from cut_oracle import Work, who_must_stop
from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.orders import BindPod, EvictPod, Order, StopRun
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

NODES, GPUS, IDLE_W, RISE_W = 4, 4, 10, 60
TREE = DomainTree(
    {"hall": DomainBranch(), "rack-0": DomainBranch("hall"), "rack-1": DomainBranch("hall")}
)
EMPTY_W = {"hall": float(NODES * GPUS * IDLE_W), "rack-0": NODES * GPUS * IDLE_W / 2}
LOOK_S, PAUSE_S = 0.25, 0.01
"""The loop looks at least so often, and plans at most so often (`kube/live/scheduler.py`)."""
GOES_WITHIN_S, TOLD_WITHIN_S = 8.0, 5.0
_BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


@dataclass
class Job:
    """Pods of a GPU each that start and stop together; made anew by a controller."""

    name: str
    pods: int
    priority: int
    suspended: bool = False
    serial: int = 0


@dataclass
class LedRoom:
    """By its own clock; `draws` decide how long everything takes."""

    draws: random.Random
    slow_s: float = 0.3
    """What is heard or ordered may take so long."""
    priorities: Sequence[int] = (0,)
    now_s: float = 1000.0
    pods: dict[str, Json] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    budgets_w: dict[str, float] = field(default_factory=dict)
    serial: int = 0
    returning: set[str] = field(default_factory=set)
    """Jobs of which it was heard that they were suspended until their pods are gone."""
    beyond: list[object] = field(default_factory=list)
    """Bindings beyond the budgets that were known when they were ordered."""
    first: dict[str, str] = field(default_factory=dict)
    """By job: when the newest of its first pods was made."""
    ordered_s: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By uid: to which node it was ordered last, and when."""
    together: dict[str, str] = field(default_factory=dict)
    """By uid: of pods that are on nodes, which of a gang started together, or were found so."""
    undone: set[str] = field(default_factory=set)
    """Stopped for the rest of their gang, of which a pod was deleted before it was bound."""
    known_s: float = 0.0
    """When budgets were heard last."""
    story: list[tuple[float, str]] = field(default_factory=list)
    _ahead: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _heard_s: dict[str, float] = field(default_factory=dict)
    _planned_s: float = 0.0
    _plans_s: float | None = None
    _term: int = 0
    _resumed: set[str] = field(default_factory=set)
    _again: set[str] = field(default_factory=set)
    _known_w: dict[str, float] = field(default_factory=dict)
    """Budgets as they were heard."""
    _going_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rack_of = {f"n{row}": f"rack-{row % 2}" for row in range(NODES)}
        self.budgets_w = {name: watts + 8 * RISE_W for name, watts in EMPTY_W.items()}
        self.lead()
        self._later(0.0, self._look)

    def lead(self) -> None:
        """A scheduler that knows nothing yet is told all that is; stops on their way arrive.

        Jobs are as old to it as the pods that they have now.
        """
        self.scheduler = KubeScheduler(
            fleet_of("first-fit"), holder="t", way=ByBinding("wattherd"), choice=core_choice()
        )
        self._term += 1
        self._hear_budgets(dict(self.budgets_w))
        for name, rack in self.rack_of.items():
            made = node_json(a_machine(name, gpus=GPUS, model="T4"))
            del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
            made["metadata"]["labels"]["wattherd.dev/power-domain"] = rack
            self.scheduler.node_seen(a_node(made))
        self.together.clear()
        self.first.clear()
        self._again.clear()
        for made in self.pods.values():
            self.scheduler.pod_seen(a_pod(made), self.now_s)
        for name, job in self.jobs.items():
            pods = [made for made in self.pods.values() if _owner(made) == name]
            bound = [made for made in pods if _node(made)]
            if known := bound or pods:
                self.first[name] = max(one["metadata"]["creationTimestamp"] for one in known)
            if bound or len(pods) == job.pods:
                self._again.add(name)
        self.returning = {name for name, job in self.jobs.items() if job.suspended}
        self._resumed.clear()

    # Time -----------------------------------------------------------------------------------------

    def _later(self, wait_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._ahead, (self.now_s + wait_s, next(self._order), what))

    def _soon(self, what: Callable[[], None]) -> None:
        self._later(self._wait_s(), what)

    def _wait_s(self) -> float:
        return self.draws.choice((0.005, 0.02, 0.05, self.draws.random() * self.slow_s))

    def _news(self, kind: str, hear: Callable[[], None]) -> None:
        """Of one kind in the order in which they were written."""
        at_s = max(self._heard_s.get(kind, 0.0), self.now_s + self._wait_s())
        self._heard_s[kind] = at_s

        def heard() -> None:
            hear()
            self._plan_soon()

        self._later(at_s - self.now_s, heard)

    def run(self, seconds: float) -> None:
        """Whatever happens until then."""
        until_s = self.now_s + seconds
        while self._ahead and self._ahead[0][0] <= until_s:
            at_s, _, what = heapq.heappop(self._ahead)
            self.now_s = max(self.now_s, at_s)
            what()
        self.now_s = until_s

    # The scheduler's loop -------------------------------------------------------------------------

    def _plan_soon(self) -> None:
        at_s = max(self.now_s, self._planned_s + PAUSE_S)
        if self._plans_s is None:
            self._plans_s = at_s
            self._later(at_s - self.now_s, self._plan)

    def _plan(self) -> None:
        self._plans_s, self._planned_s = None, self.now_s
        self._carry_out(self.scheduler.plan(self.now_s))
        for name in sorted(self.returning - self._resumed):
            if not any(_owner(pod) == name for pod in self._heard_pods()):
                self._resumed.add(name)
                self._soon(partial(self._suspend, name, suspended=False))

    def _heard_pods(self) -> list[Json]:
        return [self.pods[uid] for uid in self.scheduler.curb.pods if uid in self.pods]

    def _look(self) -> None:
        self._plan_soon()
        self._carry_out(self.scheduler.curb_orders(self.now_s))
        self._later(LOOK_S, self._look)

    def _carry_out(self, orders: list[Order]) -> None:
        going = list[EvictPod]()
        for order in orders:
            if isinstance(order, BindPod):
                self.ordered_s[order.uid] = order.node, self.now_s
                self.together[order.uid] = f"{self.now_s}"
                self._soon(partial(self._bind, order, self._known_w, self._term))
            elif isinstance(order, EvictPod):
                self.story.append((self.now_s, f"evict {order.key} {order.why}"))
                if not order.why.startswith("BudgetCut"):
                    self.undone.add(order.uid)
                going.append(order)
        for stop in self.scheduler.stops_of(going):
            self._soon(partial(self._stop, stop))

    # The API --------------------------------------------------------------------------------------

    def _write(self, made: Json) -> None:
        uid = made["metadata"]["uid"]
        self.pods[uid] = made
        seen = a_pod(made)
        self._news("pods", lambda: self._pod_heard(seen))

    def _pod_heard(self, seen: Pod) -> None:
        self.scheduler.pod_seen(seen, self.now_s)

    def _pod_gone_heard(self, uid: str) -> None:
        self.scheduler.pod_gone(uid)

    def _bind(self, order: BindPod, known_w: dict[str, float], term: int) -> None:
        """Ordered within the budgets `known_w`; a cut that is heard later comes too late for it.

        What a leader of an earlier term has on its way is fenced off (`kube/live/leadership.py`).
        """
        if term != self._term:
            return
        made = self.pods.get(order.uid)
        if made is None or is_going(made):
            self._later(0.5, lambda: self._not_bound(order.uid))
            return
        self.story.append((self.now_s, f"bound {order.key} {order.node}"))
        notes = made["metadata"]["annotations"] | order.annotations
        meta = made["metadata"] | {"annotations": notes}
        before_w = self.drawn_w()
        self._write(made | {"metadata": meta, "spec": made["spec"] | {"nodeName": order.node}})
        for name, watts in self.drawn_w().items():
            if watts > max(self.budgets_w[name], known_w[name], before_w[name]):
                self.beyond.append((self.now_s, order.key, name, watts, known_w))

    def _not_bound(self, uid: str) -> None:
        self.scheduler.not_bound(uid)
        self._plan_soon()

    def _stop(self, stop: StopRun) -> None:
        if stop.owner is not None:
            self._suspend(stop.owner.name, suspended=True)
            return
        for order in stop.evictions:
            self._mark(order.uid)

    def _suspend(self, name: str, *, suspended: bool) -> None:
        self.story.append((self.now_s, f"{'suspended' if suspended else 'resumed'} {name}"))
        self.jobs[name].suspended = suspended

        def hear() -> None:
            if suspended:
                self.returning.add(name)
            else:
                self.returning.discard(name)
            self._resumed.discard(name)

        self._news("jobs", hear)
        self._soon(lambda: self._control(name))

    def _mark(self, uid: str) -> None:
        made = self.pods.get(uid)
        if made is None or is_going(made):
            return
        self._write(made | {"metadata": made["metadata"] | {"deletionTimestamp": self._clock()}})
        if _owner(made):
            self._again.add(_owner(made))
            self._soon(lambda: self._control(_owner(made)))

    def _control(self, name: str) -> None:
        """What the controller of Jobs does: others for those that go, or none for a suspended."""
        job = self.jobs[name]
        there = [pod for pod in self.pods.values() if _owner(pod) == name and not is_going(pod)]
        if job.suspended:
            for pod in there:
                self._mark(pod["metadata"]["uid"])
            return
        for _ in range(job.pods - len(there)):
            job.serial += 1
            self._create(f"{name}-{job.serial}", job.priority, job)

    def _create(self, name: str, priority: int, job: Job | None = None) -> None:
        ask = Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000)
        made = pod_json(name, ask, schedulerName="wattherd", terminationGracePeriodSeconds=30,
                        priority=priority, preemptionPolicy="Never")  # fmt: skip
        meta = made["metadata"]
        meta["creationTimestamp"] = self._clock()
        if job is not None:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name}
            meta["ownerReferences"] = [owner | {"uid": f"job-{job.name}", "controller": True}]
            meta["labels"] = {"kueue.x-k8s.io/pod-group-name": job.name}
            meta["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(job.pods)
            if job.name not in self._again:
                self.first[job.name] = max(self._clock(), self.first.get(job.name, ""))
        self._write(made)

    def _clock(self) -> str:
        return f"{_BEGAN + timedelta(seconds=int(self.now_s)):%Y-%m-%dT%H:%M:%SZ}"

    def _hear_budgets(self, budgets_w: dict[str, float]) -> None:
        self._known_w, self.known_s = budgets_w, self.now_s
        found = {name: round(1000 * watts) for name, watts in budgets_w.items()}
        self.scheduler.power_seen(TREE, found | {"rack-1": 1_000_000_000})

    # What is tried --------------------------------------------------------------------------------

    def arrive(self, many: int) -> None:
        for _ in range(many):
            self.serial += 1
            name, kind = f"w-{self.serial:04d}", self.draws.choice(("bare", "bare", "job", "jobs"))
            priority = self.draws.choice(self.priorities)
            if kind == "bare":
                self._create(name, priority)
            else:
                self.jobs[name] = Job(name, 2 if kind == "jobs" else 1, priority)
                self._soon(partial(self._control, name))
            self.run(self.draws.random() * 0.05)

    def let_go(self, share: float) -> None:
        """Some of those that were deleted are gone, and all that would soon be passed over."""
        for uid, made in list(self.pods.items()):
            if not is_going(made):
                continue
            since_s = self._going_s.setdefault(uid, self.now_s)
            late = self.now_s - since_s > GOES_WITHIN_S
            if late or not _node(made) or self.draws.random() < share:
                self.free(uid)

    def delete(self) -> set[str]:
        """Somebody deletes a pod; who, if there is any."""
        there = sorted(uid for uid, made in self.pods.items() if not is_going(made))
        gone = set(self.draws.sample(there, 1)) if there else set[str]()
        for uid in gone:
            self._mark(uid)
        return gone

    def free(self, uid: str) -> None:
        made = self.pods.pop(uid)
        self._news("pods", lambda: self._pod_gone_heard(uid))
        if _owner(made):
            self._soon(lambda: self._control(_owner(made)))

    def set_budgets(self, changes: dict[str, float]) -> None:
        """One after the other, as two writes."""
        for name, watts in changes.items():
            self.budgets_w[name] = watts
            heard = dict(self.budgets_w)
            self.story.append((self.now_s, f"budgets {heard}"))
            self._news("budgets", partial(self._hear_budgets, heard))
            self.run(self.draws.choice((0.0, 0.01, 0.05, 0.2)))

    # What is seen ---------------------------------------------------------------------------------

    def bound(self) -> dict[str, Json]:
        return {uid: made for uid, made in self.pods.items() if _node(made)}

    def going(self) -> set[str]:
        return {uid for uid, made in self.bound().items() if is_going(made)}

    def gives_w(self, node: str) -> dict[str, float]:
        rack = self.rack_of[node]
        return {"hall": float(RISE_W)} | ({"rack-0": float(RISE_W)} if rack == "rack-0" else {})

    def drawn_w(self) -> dict[str, float]:
        found = dict(EMPTY_W)
        for made in self.bound().values():
            for name, watts in self.gives_w(_node(made)).items():
                found[name] += watts
        return found

    def settle(self) -> None:
        """Nobody was bound, told to go or gone for a while."""
        since_s, before = self.now_s, (set(self.bound()), self.going())
        for _ in range(2000):
            self.run(0.2)
            now = set(self.bound()), self.going()
            if now != before:
                since_s, before = self.now_s, now
            elif self.now_s - since_s >= 4 * self.slow_s:
                return
        raise AssertionError("it never comes to rest")


@dataclass(frozen=True)
class Seen:
    """Who was on nodes at one moment."""

    bound: dict[str, Json]
    node_of: dict[str, str]
    room: LedRoom
    first: dict[str, str]
    now_s: float

    @property
    def going(self) -> set[str]:
        return {uid for uid, made in self.bound.items() if is_going(made)}

    def must_stop(
        self, budgets_w: dict[str, float], told: AbstractSet[str] = frozenset()
    ) -> set[str]:
        """Of works as old as each other those who were `told` before others."""
        over = {name: EMPTY_W[name] - most for name, most in budgets_w.items()}
        works: dict[str, list[str]] = {}
        for uid, made in self.bound.items():
            if uid in self.going:
                continue
            gang = f"{_owner(made)} {self.room.together.get(uid, '')}"
            works.setdefault(gang if _owner(made) else uid, []).append(uid)
            for name, watts in self._gives_w(uid).items():
                over[name] += watts
        ranked = sorted(works, key=lambda work: (not told.isdisjoint(works[work]), work))
        named = {f"{number:04d}": works[work] for number, work in enumerate(ranked)}
        chosen = who_must_stop(over, [self._work(one, uids) for one, uids in named.items()])
        return {uid for one in chosen for uid in named[one]}

    def _gives_w(self, uid: str) -> dict[str, float]:
        return self.room.gives_w(self.node_of[uid])

    def with_those_ordered_since(self) -> Seen:
        """Two budgets that change together are two writes: some may start between them."""
        came = {
            uid: _as_it_came(self.room.pods[uid])
            for uid, (_, at_s) in self.room.ordered_s.items()
            if self.now_s <= at_s < self.room.known_s and uid in self.room.pods
        }
        nodes = {uid: self.room.ordered_s[uid][0] for uid in came}
        first = self.first | self.room.first
        return Seen(came | self.bound, nodes | self.node_of, self.room, first, self.now_s)

    def _work(self, work: str, uids: list[str]) -> Work:
        gives: Counter[str] = Counter()
        for uid in uids:
            gives.update(self._gives_w(uid))  # type: ignore[arg-type]
        first = self.bound[uids[0]]
        newest = max(self.bound[uid]["metadata"]["creationTimestamp"] for uid in uids)
        newest = self.first.get(_owner(first), newest)
        return Work(work, first["spec"]["priority"], newest, not _owner(first), dict(gives))


def seen(room: LedRoom) -> Seen:
    bound = room.bound()
    nodes = {uid: _node(made) for uid, made in bound.items()}
    return Seen(bound, nodes, room, dict(room.first), room.now_s)


def is_going(made: Json) -> bool:
    return "deletionTimestamp" in made["metadata"]


def _as_it_came(made: Json) -> Json:
    meta = {key: told for key, told in made["metadata"].items() if key != "deletionTimestamp"}
    return made | {"metadata": meta}


def _node(made: Json) -> str:
    return str(made["spec"].get("nodeName", ""))


def _owner(made: Json) -> str:
    owners: list[Any] = made["metadata"].get("ownerReferences", [])
    return str(owners[0]["name"]) if owners else ""
