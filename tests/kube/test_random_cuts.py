"""Random cuts and raises on a control plane, where pods take their time to go.

Pods have a finalizer, which stays for some steps after they were deleted. After every change those
who were told to stop are compared with the choice of an oracle (`cut_oracle`), which knows what was
on the nodes right before; 0.2 s apart it is read from the API what may be drawn. Nobody who need
not stop may be stopped, at once or later, and nothing may be drawn beyond a budget but after a cut,
and then ever less: but by pods that were on their way when it was written. Those are bound within
the same second, before anybody has heard of the cut, or were let in by Kueue, which had been told.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from typing import Any, Self

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_binaries import NoBinaries
from kube_server import wait_until
from kueue_manager import a_queue, workloads
from kueue_manager import at_work as kueue_at_work
from power_api import an_object, defined, path_of, there
from shipped_rights import account
from stock_modes import STOCK, Mode, beside_kube_scheduler
from test_kueue import answering
from test_power_budgets import NAME, a_scheduler

from cut_oracle import Work, who_must_stop
from promises import promise

NODES, GPUS, IDLE_W, RISE_W = 4, 4, 10, 60
BESIDE = (*STOCK, "kueue")
EMPTY_W = {"hall": NODES * GPUS * IDLE_W, "rack-0": NODES * GPUS * IDLE_W // 2}
SLOW = "test.wattherd.dev/slow"
EVERY_S, SETTLED_S, LONG_S = 0.2, 1.2, 240.0
GOES_WITHIN_S = 8.0
"""A pod that takes 30 s is passed over for another one, which is no mistake; steps take seconds."""
TOLD_WITHIN_S = 5.0
ADMITTED_S = 15.0
"""Pods of what Kueue has let in may take so long to be there, and watts count from then on."""
ANSWERED_S = 4.0
"""What was let in may be told to try again before its pods are there; they come, and go, then. An
answer that met a change is given again after two seconds."""
MOST_WAITING = 25
"""Jobs in Kueue's queue: each is refused and tried again every second, for as long as it waits."""
BUDGETS = {"hall": "now", "rack-0": "of-rack-0"}


class ByName:
    """Pods for the scheduler of our own; those of a Job are a gang, and start and stop together."""

    def pod(self, name: str, **more: Any) -> Object:
        return a_pod(name, scheduler=NAME, **more)


@dataclass(frozen=True)
class ByQueue:
    """Pods of jobs that wait in a queue of Kueue, which asks our check."""

    queue: str
    pod = staticmethod(a_pod)


@contextmanager
def _as_kueues_check(plane: ControlPlane, namespace: str) -> Iterator[ByQueue]:
    """Kueue at work, and a stock kube-scheduler; `namespace` has a queue."""
    try:
        with kueue_at_work(plane):
            scheduler = plane.scheduler(name=f"{namespace}-kueue")
            scheduler.start()
            with (
                a_queue(plane.api, namespace) as queue,
                account(plane, "admission-check") as ours,
                answering(ours),
            ):
                yield ByQueue(queue)
            scheduler.kill()
    except NoBinaries as absent:
        pytest.skip(str(absent))


@contextmanager
def _as_scheduler(plane: ControlPlane) -> Iterator[ByName]:
    with a_scheduler(plane):
        yield ByName()


@dataclass
class Seen:
    """Pods of a namespace at one moment, by name; `rack_of` is by node."""

    pods: dict[str, Object]
    rack_of: dict[str, str]
    since: dict[str, str] = field(default_factory=dict)
    """Of jobs whose age is not that of their pods of now."""

    @property
    def bound(self) -> dict[str, Object]:
        return {name: pod for name, pod in self.pods.items() if pod["spec"].get("nodeName")}

    @property
    def going(self) -> set[str]:
        """On nodes, and deleted; one that still waited has nothing to stop."""
        return {name for name, pod in self.bound.items() if _is_going(pod)}

    def gives_w(self, pod: Object) -> dict[str, float]:
        rack = self.rack_of[pod["spec"]["nodeName"]]
        return {"hall": float(RISE_W)} | ({"rack-0": float(RISE_W)} if rack == "rack-0" else {})

    def drawn_w(self) -> dict[str, float]:
        found = {name: float(watts) for name, watts in EMPTY_W.items()}
        for pod in self.bound.values():
            for name, watts in self.gives_w(pod).items():
                found[name] += watts
        return found

    # Of works as old as each other any may go first. If `told` is right for any order of them, it
    # is for this one: whatever is better here leaves out some of `told`, and is better there too.
    def must_stop(
        self, budgets_w: dict[str, float], told: AbstractSet[str] = frozenset()
    ) -> set[str]:
        """Names of pods; of works as old as each other those who were `told` before others."""
        over = {name: drawn - budgets_w[name] for name, drawn in self.drawn_w().items()}
        works: dict[str, list[str]] = {}
        for name, pod in self.bound.items():
            if _is_going(pod):
                for domain, watts in self.gives_w(pod).items():
                    over[domain] -= watts
            else:
                works.setdefault(_owner(pod) or name, []).append(name)
        ranked = sorted(works, key=lambda work: (not told.isdisjoint(works[work]), work))
        named = {f"{number:04d}": works[work] for number, work in enumerate(ranked)}
        chosen = who_must_stop(over, [self._work(one, pods) for one, pods in named.items()])
        return {name for one in chosen for name in named[one]}

    def and_of(self, since: dict[str, Object], told: AbstractSet[str]) -> Iterator[Seen]:
        """This, with some of those who came `since`, as they came: at least those `told` to go.

        Two budgets that change in one instant are two writes: who starts between them is there when
        the second one is heard. Nobody can see from outside who that was.
        """
        sure, others = sorted(since.keys() & told), sorted(since.keys() - told)
        for many in range(len(others) + 1):
            for some in combinations(others, many):
                came = {name: _as_it_came(since[name]) for name in (*sure, *some)}
                yield Seen(self.pods | came, self.rack_of, self.since)

    def ages(self) -> dict[str, str]:
        """Of those on nodes, when their work came as far as it is told."""
        return {
            name: self.since.get(_owner(pod), pod["metadata"]["creationTimestamp"])
            for name, pod in sorted(self.bound.items())
        }

    def _work(self, work: str, names: list[str]) -> Work:
        pods = [self.pods[name] for name in names]
        gives = dict.fromkeys(EMPTY_W, 0.0)
        for pod in pods:
            for domain, watts in self.gives_w(pod).items():
                gives[domain] += watts
        newest = max(pod["metadata"]["creationTimestamp"] for pod in pods)
        newest = self.since.get(_owner(pods[0]), newest)
        given = {domain: watts for domain, watts in gives.items() if watts}
        return Work(work, pods[0]["spec"].get("priority", 0), newest, not _owner(pods[0]), given)


def _conditions(one: Object) -> set[tuple[str, str]]:
    found = one.get("status", {}).get("conditions", ())
    return {(condition["type"], condition["status"]) for condition in found}


def _stamp_s(told: str) -> float:
    """Whole seconds: what is stamped so was up to a second later."""
    return datetime.fromisoformat(told).timestamp()


def _bound_s(pod: Object) -> float:
    for one in pod.get("status", {}).get("conditions", ()):
        if (one["type"], one["status"]) == ("PodScheduled", "True"):
            return _stamp_s(one["lastTransitionTime"])
    return math.inf


def _is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _as_it_came(pod: Object) -> Object:
    about = {key: told for key, told in pod["metadata"].items() if key != "deletionTimestamp"}
    return {**pod, "metadata": about}


def _owner(pod: Object) -> str:
    return next((one["name"] for one in pod["metadata"].get("ownerReferences", ())), "")


@dataclass
class Cluster:
    """A namespace on the plane, and what is tried on it."""

    api: KubeApi
    namespace: str
    rack_of: dict[str, str]
    mode: ByName | Mode | ByQueue
    draws: random.Random
    budgets_w: dict[str, float]
    serial: int = 0
    ended: set[str] = field(default_factory=set)
    """Pods that had to stop, of all steps."""
    cuts: int = 0
    broken: list[object] = field(default_factory=list)
    looks: int = 0
    came_after: int = 0
    """Pods that came after a cut, beyond the budget, and were on their way when it was written."""
    _first: dict[str, str] = field(default_factory=dict)
    """By job: when the newest of its first pods was made."""
    _again: set[str] = field(default_factory=set)
    """Jobs of which pods have been deleted: those that are made from now on are not their first."""
    _going_s: dict[str, float] = field(default_factory=dict)
    """By uid: since when a pod is known to be going."""
    _before: Seen | None = None
    """At the last look."""
    _let_in_s: dict[str, float] = field(default_factory=dict)
    """By job: when our check last told Kueue that it may come, as it is stamped: in seconds."""
    _changed_s: float = 0.0
    """When a budget was last written."""
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def seen(self) -> Seen:
        items = self.api.get(self.path)["items"]
        pods = {pod["metadata"]["name"]: pod for pod in items}
        return Seen(pods, self.rack_of, self._since(pods))

    def _since(self, pods: dict[str, Object]) -> dict[str, str]:
        """Since when jobs are there that keep their turn, in Kueue's queue or with the core.

        With the core a job is as old as its first pods, which a busy Job controller may make later
        than others came. Where budgets alone are ours, their pods are all that is known of them.
        """
        if isinstance(self.mode, ByName):
            owned = [(_owner(pod), pod) for pod in pods.values() if _owner(pod)]
            self._again |= {owner for owner, pod in owned if _is_going(pod)}
            for owner, pod in owned:
                if owner not in self._again:
                    made = pod["metadata"]["creationTimestamp"]
                    self._first[owner] = max(made, self._first.get(owner, ""))
            return dict(self._first)
        if not isinstance(self.mode, ByQueue):
            return {}
        return {
            one["metadata"]["ownerReferences"][0]["name"]: one["metadata"]["creationTimestamp"]
            for one in workloads(self.api, self.namespace)
        }

    # What may be drawn ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._looking:
                self._look()

    def _look(self) -> None:
        seen, before = self.seen(), self._before or Seen({}, self.rack_of)
        self._note_let_in()
        came = {
            name: pod
            for name, pod in seen.bound.items()
            if name not in before.bound and self._was_on_its_way(pod)
        }
        now_w, before_w = seen.drawn_w(), Seen(before.pods | came, self.rack_of).drawn_w()
        for name, watts in now_w.items():
            if watts > max(self.budgets_w[name], before_w[name]):
                self.broken.append((name, now_w, dict(self.budgets_w), before_w))
            elif watts > max(self.budgets_w[name], before.drawn_w()[name]):
                self.came_after += len(came)
        self._before = seen
        self.looks += 1

    def _was_on_its_way(self, pod: Object) -> bool:
        """Bound in the second of the change, of which nobody had heard, or let in by then."""
        let_in_s = self._let_in_s.get(_owner(pod), math.inf)
        return min(let_in_s, _bound_s(pod)) <= self._changed_s

    def _note_let_in(self) -> None:
        if not isinstance(self.mode, ByQueue):
            return
        for one in workloads(self.api, self.namespace):
            for check in one.get("status", {}).get("admissionChecks", ()):
                if check["state"] == "Ready":
                    owner = one["metadata"]["ownerReferences"][0]["name"]
                    self._let_in_s[owner] = _stamp_s(check["lastTransitionTime"])

    def set(self, changes: dict[str, float]) -> None:
        with self._looking:
            self._look()
            for name, watts in changes.items():
                spec = {"spec": {"constant": f"{watts:g}W"}}
                self.api.merge(path_of("PowerBudget", BUDGETS[name]), spec)
                self.budgets_w[name], self._changed_s = watts, time.time()

    # One step -------------------------------------------------------------------------------------

    def arrive(self, count: int) -> None:
        queue = self.mode.queue if isinstance(self.mode, ByQueue) else ""
        waiting = len(workloads(self.api, self.namespace)) - len(self._let_in()) if queue else 0
        for _ in range(min(count, max(0, MOST_WAITING - waiting))):
            self.serial += 1
            kinds = ("job", "jobs") if queue else ("bare", "bare", "job", "jobs")
            name, kind = f"w-{self.serial:04d}", self.draws.choice(kinds)
            meta = {"finalizers": [SLOW]}
            if kind == "bare":
                made = self.mode.pod(name, gpus=1)
                made["metadata"] |= meta
                self.api.create(self.path, made)
                continue
            pod = self.mode.pod("any", gpus=1, spec={"restartPolicy": "Never"})
            about: Object = meta | {"labels": pod["metadata"].get("labels", {})}
            pods = 2 if kind == "jobs" else 1
            if isinstance(self.mode, ByName):
                about["labels"] |= {"kueue.x-k8s.io/pod-group-name": name}
                about["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": str(pods)}
            spec = {"parallelism": pods, "completions": pods,
                    "template": {"metadata": about, "spec": pod["spec"]}}  # fmt: skip
            jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
            told = {"labels": {"kueue.x-k8s.io/queue-name": queue}} if queue else {}
            held = {"suspend": True} if queue else {}
            self.api.create(jobs, {"metadata": {"name": name, **told}, "spec": {**spec, **held}})

    def let_go(self, share: float) -> None:
        """Some of those that were deleted are gone, and all that would soon be passed over."""
        for name, pod in self.seen().pods.items():
            if not _is_going(pod):
                continue
            since_s = self._going_s.setdefault(pod["metadata"]["uid"], time.monotonic())
            late = time.monotonic() - since_s > GOES_WITHIN_S
            if late or not pod["spec"].get("nodeName") or self.draws.random() < share:
                self._free(name, pod)

    def _free(self, name: str, pod: Object) -> None:
        left = [one for one in pod["metadata"].get("finalizers", ()) if one != SLOW]
        about = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": left}}
        self.api.call("PATCH", f"{self.path}/{name}", about, kind="application/merge-patch+json")

    def settled(self, quiet_s: float = SETTLED_S) -> Seen:
        """Nobody was bound, told to go or gone for a while."""
        deadline = time.monotonic() + LONG_S
        before, since_s = self._standing(), time.monotonic()
        while time.monotonic() - since_s < (quiet_s if not before[2] else ADMITTED_S):
            assert time.monotonic() < deadline, "it never comes to rest"
            time.sleep(EVERY_S)
            now = self._standing()
            if now != before:
                before, since_s = now, time.monotonic()
        return self.seen()

    def _standing(self) -> tuple[set[str], set[str], set[str]]:
        """Who is bound, who is going, and which jobs Kueue has let in whose pods are not bound."""
        seen = self.seen()
        staying = Counter(_owner(pod) for name, pod in seen.bound.items() if name not in seen.going)
        return set(seen.bound), seen.going, {one for one in self._let_in() if not staying[one]}

    def _let_in(self) -> list[str]:
        if not isinstance(self.mode, ByQueue):
            return []
        return [
            one["metadata"]["ownerReferences"][0]["name"]
            for one in workloads(self.api, self.namespace)
            if ("Admitted", "True") in _conditions(one)
        ]

    def change(self) -> dict[str, float]:
        """One budget is cut or raised; or one is raised and the other cut, in one instant."""
        most = {"hall": NODES * GPUS, "rack-0": NODES * GPUS // 2}
        name, other = self.draws.sample(sorted(most), 2)
        wanted = {name: float(EMPTY_W[name] + RISE_W * self.draws.randint(0, most[name]))}
        if self.draws.random() < 0.3:
            raised = self.budgets_w[other] + RISE_W * self.draws.randint(0, 3)
            return {other: raised, **wanted}
        return wanted

    def step(self) -> None:
        self.let_go(0.5)
        self.arrive(self.draws.randint(0, 3))
        before = self.settled()
        late = before.going - self.ended
        promise(not late, (late, "were stopped, and need not", self._about(late, before)))
        wanted = self.change()
        wanted_w = self.budgets_w | wanted
        answer = before.must_stop(wanted_w)
        self.set(wanted)
        self.cuts += bool(answer)

        def look() -> tuple[set[str], set[str]]:
            """Who was told to go, and who had to."""
            now = self.seen()
            told = now.going - before.going
            since = {name: pod for name, pod in now.bound.items() if name not in before.bound}
            # What Kueue has let in counts before its pods are seen on nodes.
            if len(wanted) == 1 and not isinstance(self.mode, ByQueue):
                told, since = told & before.bound.keys(), {}
            right = set[str]()
            for seen in before.and_of(since, told):
                right = seen.must_stop(wanted_w, told)
                if right == told:
                    break
            return told, right

        (stopped, right), since_s = look(), time.monotonic()
        deadline = since_s + LONG_S
        while stopped != right and time.monotonic() < deadline:
            # Much later others are passed over, and what went wrong cannot be told apart.
            if stopped - right and time.monotonic() - since_s > TOLD_WITHIN_S:
                break
            time.sleep(0.05)
            now, right = look()
            if now != stopped:
                stopped, since_s = now, time.monotonic()
        self.arrive(self.draws.randint(0, 1))
        time.sleep(1.0)
        if isinstance(self.mode, ByQueue):
            self.settled(quiet_s=ANSWERED_S)
        stopped, right = look()
        since = self.seen().bound.keys() - before.bound.keys()
        told_of = (stopped, right, answer, wanted, self.budgets_w, before.ages(), since)
        where = {name: pod["spec"]["nodeName"] for name, pod in self.seen().bound.items()}
        about = self._about(stopped ^ right, before)
        promise(stopped == right, (told_of, where, self.broken, about))
        self.ended |= self.seen().going

    def _about(self, pods: AbstractSet[str], before: Seen) -> list[object]:
        """What is known of some pods: when they came and went, what Kueue says of their jobs."""
        now = before.pods | self.seen().pods
        meta = {name: now[name]["metadata"] for name in sorted(pods & now.keys())}
        told: list[object] = [
            (name, one["creationTimestamp"], one.get("deletionTimestamp"))
            for name, one in meta.items()
        ]
        owners = {_owner(now[name]) for name in pods if name in now}
        if isinstance(self.mode, ByQueue):
            for one in workloads(self.api, self.namespace):
                owner = one["metadata"]["ownerReferences"][0]["name"]
                if owner in owners:
                    status = one.get("status", {})
                    told.append((owner, status.get("conditions"), status.get("admissionChecks"),
                                 status.get("requeueState")))  # fmt: skip
        return [*told, dict(self.budgets_w), before.ages(), before.going]

    def _clear(self) -> None:
        """Nothing of ours keeps the namespace from going."""
        self.api.delete(f"/apis/batch/v1/namespaces/{self.namespace}/jobs",
                        propagationPolicy="Background")  # fmt: skip
        self.api.delete(self.path)

        def gone() -> bool:
            pods = self.seen().pods
            for name, pod in pods.items():
                self._free(name, pod)
            return not pods

        wait_until(gone, "all pods are gone", within_s=LONG_S)


@contextmanager
def _cluster(plane: ControlPlane, namespace: str, name: str, seed: int) -> Iterator[Cluster]:
    racks = {f"{namespace}-{row}": f"rack-{row % 2}" for row in range(NODES)}
    nodes = [
        a_node(node, gpus=GPUS,
               labels={"nvidia.com/gpu.product": "Tesla-T4", "rack": rack[-1]})
        for node, rack in racks.items()
    ]  # fmt: skip
    budgets_w = {one: float(EMPTY_W[one] + 8 * RISE_W) for one in EMPTY_W}
    objects = [
        an_object("PowerDomain", "hall", limit="1MW"),
        *(an_object("PowerDomain", f"rack-{row}", parent="hall", limit="1MW",
                    nodeSelector={"matchLabels": {"rack": str(row)}}) for row in range(2)),
        *(an_object("PowerBudget", BUDGETS[one], domain=one, constant=f"{watts:g}W")
          for one, watts in budgets_w.items()),
    ]  # fmt: skip
    at_work: Callable[[], AbstractContextManager[ByName | Mode | ByQueue]]
    if name == "scheduler":
        at_work = lambda: _as_scheduler(plane)  # noqa: E731
    elif name == "kueue":
        at_work = lambda: _as_kueues_check(plane, namespace)  # noqa: E731
    else:
        at_work = lambda: beside_kube_scheduler(plane, name, namespace)  # noqa: E731
    with defined(plane.api):
        made = plane.api.fleet(nodes)
        try:
            with there(plane.api, objects), at_work() as mode:
                draws = random.Random(seed)
                with Cluster(plane.api, namespace, racks, mode, draws, budgets_w) as cluster:
                    yield cluster
        finally:
            plane.api.remove_nodes(made)


def _try(cluster: Cluster, steps: int) -> None:
    cluster.arrive(8)
    for _ in range(steps):
        cluster.step()
    for _ in range(steps):  # who comes when is not of the seed alone: perhaps no cut met anybody
        if not cluster.ended:
            cluster.step()
    promise(not cluster.broken, cluster.broken[:3])
    told = f"{steps} changes, {cluster.cuts} of them cuts below use; {len(cluster.ended)} pods "
    told += f"had to stop, {cluster.serial} works came, {cluster.looks} looks, "
    print(told + f"{cluster.came_after} pods came late")
    assert cluster.ended, cluster.seen().pods
    assert cluster.looks > steps


def test_who_need_not_stop_stays_through_ten_cuts_and_raises(
    plane: ControlPlane, namespace: str
) -> None:
    with _cluster(plane, namespace, "scheduler", 1) as cluster:
        _try(cluster, 10)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BESIDE)
def test_who_need_not_stop_stays_in_the_other_modes(
    plane: ControlPlane, namespace: str, name: str
) -> None:
    with _cluster(plane, namespace, name, 1) as cluster:
        _try(cluster, 10)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("name", ["scheduler", *BESIDE])
def test_who_need_not_stop_stays_through_a_hundred_cuts_and_raises(
    plane: ControlPlane, namespace: str, name: str
) -> None:
    """The number of rounds may be stated, to see more."""
    with _cluster(plane, namespace, name, 2) as cluster:
        _try(cluster, int(os.environ.get("WATTHERD_CUTS", "100")))
