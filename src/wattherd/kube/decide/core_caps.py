"""The core's caps on pods: ordered by annotation, held by the agent, told to the core as read back.

A cap of the core is for each GPU of a job; a pod is asked for the sum of its GPUs. It is in force
once the agents of all its pods have read it back (`cap-applied-w`). The core then hears
`CapApplied`, and others rise or start. A pod that starts under a cap has it written with its
binding, so that the agent knows of it no later than of the pod.

An agent that lets `WAIT_S` pass has died: the pods that it was to cap are stopped where a budget
does not bear them without (`budget_enforcer`). Nothing more starts on its node, under a cap that
nobody sets, until it answers, tells otherwise that it holds caps, or was asked for nothing during
`CLOSED_S`.

An order that leaves no trace on a pod is given again. Of pods that nobody can cap (no agent, shared
GPUs, bound by others) the core has a curve of one point: what it orders for them is in force as it
is, since it is never below what they can draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.facts.orders import CapPod
from wattherd.kube.facts.stopping import WAIT_S
from wattherd.kube.facts.workload import Workload
from wattherd.model.command import SetCap, StartJob
from wattherd.model.event import CapApplied, Event
from wattherd.units import plain, watts

AGAIN_S = 5.0
"""After this long without a trace an order is given again."""
CLOSED_S = 600.0
"""Then a node is tried again whose agent did not answer, and is asked for nothing any more."""
SETS_NO_CAPS = "the node's agent sets no caps"
SAME_W = 0.5
"""Caps nearer than this are the same: drivers round, agents write what they read."""


@dataclass(slots=True)
class _Ordered:
    """The last order for a run, by the core's words; `cap_w` (None: none) is what pods are asked.

    `high_w` is the highest cap of a GPU that may be in force until this one is read back.
    """

    order: SetCap
    cap_w: float | None
    at_s: float
    high_w: float


@dataclass(frozen=True, slots=True)
class _Unheard:
    """A pod whose agent is to set a cap, since when, and what it read back (W) last."""

    node: str
    since_s: float
    read_w: float | None


@dataclass(frozen=True, slots=True)
class _Stale:
    """A pod of which `asked_w` is asked; that `read_w` was read back before says nothing any more.

    While nothing is shown as read back, an answer to an earlier order may be on its way.
    """

    asked_w: float | None
    read_w: float | None

    def is_over(self, asked_w: float | None, read_w: float | None) -> bool:
        """Whether what a pod shows by now was written after the order."""
        changed = self.read_w is not None and read_w != self.read_w
        return _same(asked_w, self.asked_w) and (changed or read_w is None)


@dataclass(slots=True)
class CoreCaps:
    """Of `works` by job id, on the account of `fleet`; `pods` are as they were seen last, by uid.

    `is_capped` says of a work whether agents hold caps on all of its GPUs.
    """

    works: Mapping[str, Workload]
    fleet: NodeFleet
    pods: Mapping[str, Pod]
    is_capped: Callable[[Workload], bool]
    _ordered: dict[str, _Ordered] = field(default_factory=dict)
    _stale: dict[str, _Stale] = field(default_factory=dict)
    """By pod of which a lower cap is asked after a higher one."""
    _overtaken_w: dict[str, float] = field(default_factory=dict)
    """By job the highest cap of a GPU that was ordered before the one heard last, if higher."""
    _left_over: dict[str, SetCap] = field(default_factory=dict)
    """Runs that were found under caps of a leader before, of which this core wants none."""
    _unheard: dict[str, _Unheard] = field(default_factory=dict)
    _closed: dict[str, float] = field(default_factory=dict)
    """By node whose agent does not answer: when it is tried again."""
    _shows: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """By node what its agent tells once it has held caps: what it promises, since when it works."""

    def forget_all(self) -> None:
        """Another core leads."""
        self._ordered.clear()
        self._stale.clear()
        self._overtaken_w.clear()
        self._left_over.clear()

    def saw(self, uid: str) -> None:
        """A pod changed, or is gone."""
        known = self._stale.get(uid)
        if known is not None and (uid not in self.pods or known.is_over(*self._shown(uid))):
            del self._stale[uid]

    def node_seen(self, node: Node) -> bool:
        """A node is there, or changed: whether it is open again.

        Its pods may all be gone that its agent did not answer for: nothing but what the agent tells
        of the node itself shows then that it works.
        """
        name, note = node.metadata.name, node.metadata.annotation
        shows = note(names.AT_REST), note(names.AGENT_SINCE)
        before = self._shows.get(name, shows)
        self._shows[name] = shows
        return before != shows and self._closed.pop(name, None) is not None

    def node_gone(self, name: str) -> None:
        """A node was deleted."""
        self._shows.pop(name, None)

    @property
    def at_work(self) -> bool:
        """Whether a cap was ordered and not read back."""
        return bool(self._ordered)

    @property
    def under_way(self) -> int:
        """Of how many works a cap was ordered and not read back."""
        return len(self._ordered)

    def with_start(self, order: StartJob, at_s: float) -> dict[str, dict[str, str]]:
        """By pod what is to be written with its binding, so that it starts under its cap."""
        work, cap_w = self.works[order.job_id], order.cap_w
        if cap_w is None or not self.is_capped(work) or self._is_top(work, cap_w):
            return {}
        set_cap = SetCap(job_id=work.id, attempt=order.attempt, cap_w=cap_w)
        self._ordered[work.id] = _Ordered(set_cap, cap_w, at_s, cap_w)
        return {
            uid: {names.CAP_ASKED_W: f"{cap_w * gpus:g}"} for uid, _, gpus in self._pods_of(work)
        }

    def found(self, order: StartJob, at_s: float) -> list[Event]:
        """What holds of pods that were found running: not what the core took for granted."""
        work = self.works[order.job_id]
        if not self.is_capped(work):
            return []
        if order.cap_w is None or self._is_top(work, order.cap_w):
            if any(self._shown(uid)[0] is not None for uid, _, _ in self._pods_of(work)):
                lift = SetCap(job_id=work.id, attempt=order.attempt, cap_w=None)
                self._left_over[work.id] = lift
            return []
        most_w = max((self._in_force_w(uid) / n for uid, _, n in self._pods_of(work)), default=0.0)
        told_w = None if math.isinf(most_w) else most_w
        return [CapApplied(at_s=at_s, job_id=work.id, attempt=order.attempt, cap_w=told_w)]

    def _in_force_w(self, uid: str) -> float:
        """The highest cap that may be in force on a pod, infinite where there is none."""
        asked_w, read_w = self._shown(uid)
        return math.inf if asked_w is None or read_w is None else max(asked_w, read_w)

    def order(self, order: SetCap, at_s: float) -> tuple[list[CapPod], list[Event]]:
        """Ask the pods of a run; what cannot be asked of anybody is in force as it is."""
        self._left_over.pop(order.job_id, None)
        work = self.works.get(order.job_id)
        if work is None:
            return [], []
        if not self.is_capped(work):
            return [], [_applied(order, at_s)]
        known = self._ordered.get(work.id)
        if known is not None and known.order == order:
            return [], []  # the core repeats itself until it is read back
        cap_w = order.cap_w
        if cap_w is not None and self._is_top(work, cap_w):
            cap_w = None
        now_w = math.inf if cap_w is None else cap_w
        before_w = max(
            known.high_w if known else 0.0,
            self._overtaken_w.pop(work.id, 0.0),
            self._rises_to_w(work),
        )
        ordered = _Ordered(order, cap_w, at_s, max(now_w, before_w))
        for uid, _, gpus in self._pods_of(work):
            if before_w > now_w or uid in self._stale:
                wanted_w = None if cap_w is None else cap_w * gpus
                self._stale[uid] = _Stale(wanted_w, self._shown(uid)[1])
        self._ordered[work.id] = ordered
        orders = self._ask(work, ordered, even_if_seen=known is not None)
        return orders, [] if orders else self._heard(work.id, at_s)

    def _rises_to_w(self, work: Workload) -> float:
        """The highest cap of a GPU that agents were asked for and have not read back; 0 if none.

        The core hears of a raise as soon as a pod shows that it was asked for: from then on it
        counts. What the pod shows as read back is of the time before, and answers no later order.
        """
        highest_w = 0.0
        for uid, _, gpus in self._pods_of(work):
            asked_w, read_w = self._shown(uid)
            asked_w = math.inf if asked_w is None else asked_w
            if read_w is not None and read_w < asked_w - SAME_W:
                highest_w = max(highest_w, asked_w / gpus)
        return highest_w

    def _ask(self, work: Workload, ordered: _Ordered, *, even_if_seen: bool) -> list[CapPod]:
        """Orders for the pods that do not show the cap yet, or may soon not show it any more."""
        orders = []
        for uid, key, gpus in self._pods_of(work):
            wanted_w = None if ordered.cap_w is None else ordered.cap_w * gpus
            forgets = uid in self._stale
            if even_if_seen or forgets or not _same(self._shown(uid)[0], wanted_w):
                orders.append(CapPod(uid, key, wanted_w, forgets=forgets))
        return orders

    def heard(self, at_s: float) -> list[Event]:
        """What was read back since this was last asked."""
        gone = self._overtaken_w.keys() - self.works.keys()
        for job_id in gone:
            del self._overtaken_w[job_id]
        return [event for job_id in list(self._ordered) for event in self._heard(job_id, at_s)]

    def _heard(self, job_id: str, at_s: float) -> list[Event]:
        work, ordered = self.works.get(job_id), self._ordered[job_id]
        if work is None:
            del self._ordered[job_id]
            return []
        highest_w = 0.0
        for uid, _, gpus in self._pods_of(work):
            asked_w, read_w = self._shown(uid)
            wanted_w = None if ordered.cap_w is None else ordered.cap_w * gpus
            seen = _same(asked_w, wanted_w) and (read_w is None) is (wanted_w is None)
            if not seen or uid in self._stale:
                return []
            highest_w = max(highest_w, (read_w or 0.0) / gpus)
        del self._ordered[job_id]
        # One answer to several orders may be that to the first of equal ones. Where the core asks
        # again, since a higher one was among them, what pods show by now answers nothing.
        if ordered.cap_w is not None and ordered.high_w > ordered.cap_w:
            self._overtaken_w[job_id] = ordered.high_w
        if ordered.cap_w is not None and highest_w > ordered.cap_w + SAME_W:
            # As low as its devices go: that is what counts.
            run = (ordered.order.job_id, ordered.order.attempt)
            return [CapApplied(at_s=at_s, job_id=run[0], attempt=run[1], cap_w=highest_w)]
        return [_applied(ordered.order, at_s)]

    def lift_left_over(self, at_s: float) -> list[CapPod]:
        """Ask for no caps where the core, which knows the budgets by now, has asked for none."""
        orders = list[CapPod]()
        for lift in list(self._left_over.values()):
            orders += self.order(lift, at_s)[0]
        return orders

    def again(self, at_s: float) -> list[CapPod]:
        """Orders that left no trace for long enough."""
        orders = list[CapPod]()
        for job_id, ordered in self._ordered.items():
            work = self.works.get(job_id)
            if work is not None and at_s - ordered.at_s >= AGAIN_S:
                ordered.at_s = at_s
                orders += self._ask(work, ordered, even_if_seen=False)
        return orders

    def silent(self, at_s: float) -> set[str]:
        """Nodes whose agents were asked for caps and do not answer."""
        before, self._unheard = self._unheard, {}
        for ordered in self._ordered.values():
            work = self.works.get(ordered.order.job_id)
            for uid, _, gpus in () if work is None else self._pods_of(work):
                wanted_w = None if ordered.cap_w is None else ordered.cap_w * gpus
                asked_w, read_w = self._shown(uid)
                if _same(asked_w, wanted_w) and (read_w is None) is (wanted_w is None):
                    continue
                known, node = before.get(uid), self.fleet.holdings[uid].node
                if known is None or known.read_w != read_w:  # it is at work
                    known = _Unheard(node, at_s, read_w)
                elif at_s - known.since_s >= WAIT_S:
                    self._closed[node] = at_s + CLOSED_S
                self._unheard[uid] = known
        for uid, one in before.items():
            if uid in self.pods and self._shown(uid)[1] != one.read_w:
                self._closed.pop(one.node, None)
        self._closed = {node: till_s for node, till_s in self._closed.items() if till_s > at_s}
        return set(self._closed)

    def is_late(self, at_s: float) -> bool:
        """Whether other agents than before do not answer by now."""
        late = any(
            at_s - one.since_s >= WAIT_S and one.node not in self._closed
            for one in self._unheard.values()
        )
        return late or any(till_s <= at_s for till_s in self._closed.values())

    def _pods_of(self, work: Workload) -> list[tuple[str, str, int]]:
        """Uid and key of each pod with GPUs, and how many it has."""
        found = []
        for member in work.members:
            gpus = sum(len(seat.gpus) for seat in self.fleet.seats(member.uid))
            if gpus:
                found.append((member.uid, member.key, gpus))
        return found

    def _shown(self, uid: str) -> tuple[float | None, float | None]:
        """What a pod shows that is asked of it, and that was read back, in watts."""
        pod = self.pods.get(uid)
        if pod is None:
            return None, None
        return _watts(pod, names.CAP_ASKED_W), _watts(pod, names.CAP_APPLIED_W)

    def _is_top(self, work: Workload, cap_w: float) -> bool:
        """Whether a cap is none: as high, in whole watts, as the most that its GPUs can draw."""
        rows = {seat.node for uid in work.uids for seat in self.fleet.seats(uid) if seat.gpus}
        models = {self.fleet.order[row].spec.gpu_model for row in rows}
        return all(cap_w >= int(GPUS[model].max_w) for model in models)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_W


def _watts(pod: Pod, name: str) -> float | None:
    text = pod.metadata.annotation(name)
    try:
        return None if text is None else watts(plain(text))
    except UserError:
        return None


def _applied(order: SetCap, at_s: float) -> CapApplied:
    return CapApplied(at_s=at_s, job_id=order.job_id, attempt=order.attempt, cap_w=order.cap_w)
