"""The extender on a cluster: follows nodes and pods, binds, looks after what it reserved.

Nothing is decided before a whole list of nodes and pods was heard, nor while they have not been
heard of for long, nor without the lease where one is kept: several copies may stand behind one
address, and only the leader answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import numpy as np

from wattherd.kube.account.cluster_news import follow_cluster
from wattherd.kube.account.power_metrics import Series, ledger
from wattherd.kube.api.access import Access
from wattherd.kube.api.binder import FREES, BindingState
from wattherd.kube.api.changes import Key
from wattherd.kube.api.feed import LOOK_S, ApiFeed
from wattherd.kube.api.objects import ObjectMeta, Pod
from wattherd.kube.decide.extender import Extender, Grant
from wattherd.kube.decide.extender_wire import BindArgs
from wattherd.kube.facts.orders import CapPod, EvictPod, ResumeOwner, StopPods
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.facts.reason_throttle import ReasonThrottle
from wattherd.kube.live.enforcer_io import EnforcerIo, evicted
from wattherd.kube.live.extender_app import BindResult
from wattherd.kube.live.fencing_notes import FencingNotes
from wattherd.kube.live.foreign_reasons import ForeignReasonsWriter
from wattherd.kube.live.leadership import Leadership
from wattherd.kube.live.lookup import found_pod, note_overfull
from wattherd.kube.live.power_objects import PowerWatch
from wattherd.kube.live.queue_objects import QueueWatch
from wattherd.kube.live.reason_events import Speaker, Voice

_AGAIN_S = 5.0
_GATHER_S = 0.02
"""What was decided is on our books already: news can wait for each other, answers cannot."""


class LiveExtender:
    """An extender at work: `begin`, serve an `ExtenderApp` of its `turns` and `bind`, `close`."""

    def __init__(
        self,
        extender: Extender,
        access: Access,
        draws: np.random.Generator,
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
        power: PowerPlan | None = None,
    ) -> None:
        """`lease` names the record by which copies agree on who answers, as `identity`.

        `power` makes budgets of objects; without it they are those of `extender`.
        """
        self.extender = extender
        self.feed = ApiFeed(access, draws, gather_s=_GATHER_S)
        self._gpus = follow_cluster(
            self.feed.follow,
            extender.node_seen,
            lambda key: extender.node_gone(key.name),
            self._pod_seen,
            self._pod_gone,
        )
        self.feed.also(self._watch)
        stands = extender.fleet.stands
        self.seat = Leadership(self.feed, draws, stands, lease=lease, identity=identity)
        self._notes = FencingNotes(self.feed)
        self.steward = EnforcerIo(self.feed, extender, self._evict_all)
        speaker = Speaker("wattherd", identity or "wattherd", unplaced="")
        self.voice = Voice(self.feed.transport, speaker, self.seat.leads, ReasonThrottle())
        self.onlooking = ForeignReasonsWriter(
            self.feed, extender.onlooker, self.voice, self.seat.leads
        )
        self.feed.also(self.onlooking.work)
        self.power: PowerWatch | None = None
        if power is not None:
            watched = (self.feed, power, extender, self.seat.leads)
            self.power = PowerWatch(*watched, doing=lambda: extender.curb.doing)
        self.queues = QueueWatch(self.feed, extender, self.seat.leads)

    def begin(self) -> None:
        """Start reading; decisions begin when the cluster was seen."""
        self.feed.open()
        if self.power is not None:
            self.power.begin()
            self.steward.begin()
            self.queues.begin()
        self.onlooking.follow_groups(self.extender.groups)
        self.feed.begin(*self.seat.beside(), self.voice.run())

    def series(self) -> Series:
        """The account in numbers, asked for in turn."""
        return self.feed.turn(ledger, self.extender.chooser)

    def close(self) -> None:
        """Stop; a lease is given back, what was decided and not bound is decided anew by others."""
        self.feed.close()
        if self.power is not None:
            self.power.close()

    async def bind(self, args: BindArgs, grant: Grant) -> BindResult:
        """Bind a pod where it was reserved; for an `ExtenderApp` that is served in `feed.loop`."""
        key = f"{args.pod_namespace}/{args.pod_name}"
        bind = self.seat.bind(key, args.pod_uid, args.node, grant.decision, grant.annotations)
        done = await bind
        denied = done.outcome is BindingState.DENIED
        if done.outcome in (BindingState.BOUND, BindingState.DENIED, BindingState.FENCED):
            self.feed.note("pods are not bound", done.why if denied else "")
        if done.outcome in (BindingState.BOUND, BindingState.DENIED):
            self.feed.refusals.heard(done.why if denied else "", time.monotonic())
        if done.outcome is BindingState.BOUND:
            return BindResult()
        return BindResult(f"{done.outcome}: {done.why}", free=done.outcome in FREES)

    def _pod_seen(self, pod: Pod) -> None:
        self.extender.pod_seen(pod, time.monotonic())
        self.onlooking.pod_seen(pod)

    def _pod_gone(self, key: Key) -> None:
        self.extender.pod_gone(key.uid)
        self.onlooking.pod_gone(key)

    def _watch(self) -> None:
        """Whether to answer at all; and whether pods not seen to be bound are bound after all."""
        term = 0
        while not self.feed.over.wait(LOOK_S):
            ready = self.seat.ready()
            if ready and self.seat.term != term:
                term = self.seat.term
                self.feed.turn(self.extender.term_began)
            if ready and not self.extender.synced:
                self.feed.turn(self.extender.warm_up)
            self.extender.synced = ready
            if ready:
                self._keep_budgets()
                self._notes.write(self.feed.turn(self.extender.unfenced.to_write))
                note_overfull(self.feed, self.feed.turn(self.extender.fleet.overfull))
            for holding in self.feed.turn(self.extender.overdue, time.monotonic()):
                found = found_pod(self.feed, holding)
                if found is not None and found.spec.node_name:
                    self.feed.turn(self._found, found)
                elif found is not None:
                    self.feed.turn(self.extender.unbound, holding.uid)

    def _keep_budgets(self) -> None:
        """Cap and stop where a budget was cut below use; run again what was suspended."""
        for order in self.feed.turn(self.extender.curb_orders, time.monotonic()):
            match order:
                case EvictPod():
                    self.feed.loop.begin(self._evict(order))
                case CapPod() | StopPods() | ResumeOwner():
                    self.steward.carry_out(order)
                case _:
                    pass

    def _found(self, pod: Pod) -> None:
        self.extender.pod_seen(self._gpus.known(pod), time.monotonic())

    def _evict_all(self, uids: Iterable[str], why: str) -> None:
        for order in self.extender.evictions(tuple(uids), why):
            self.feed.loop.begin(self._evict(order))

    async def _evict(self, order: EvictPod) -> None:
        """One that is refused is asked for again, if it must still go."""
        if not await evicted(self.feed.transport, order):
            await asyncio.sleep(_AGAIN_S)
            self.feed.turns.submit(self.extender.not_evicted, order.uid)
