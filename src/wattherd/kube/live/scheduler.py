"""The second scheduler on a cluster: hears, plans, binds, evicts, and says why pods wait.

Plans are made in the thread that hears the news, when there is any; what they order is carried out
by the loop that talks to the API, up to 64 bindings at once; what became of it is heard in turn.
Nothing is planned before everything was listed and heard, without the lease, or on an old picture.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import numpy as np

from wattherd.kube.account.cluster_news import each, follow_cluster, follow_volumes
from wattherd.kube.account.enforcement_tally import is_undone
from wattherd.kube.account.power_metrics import (
    PREFIX,
    NodeDraws,
    Series,
    Tally,
    Untold,
    ledger,
)
from wattherd.kube.api import names
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.binder import FREES, Bind, BindingOutcome, BindingState
from wattherd.kube.api.changes import Key, ObjectChange
from wattherd.kube.api.feed import LOOK_S, ApiFeed
from wattherd.kube.api.objects import Node, ObjectMeta, Pod
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.decide.budget_enforcer import BUDGET_CUT
from wattherd.kube.decide.core_driver import Question
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.job_sets import SETS, as_groups
from wattherd.kube.facts.kueue_objects import API as KUEUE
from wattherd.kube.facts.kueue_objects import KueueTopology
from wattherd.kube.facts.orders import (
    BindPod,
    CapPod,
    EvictPod,
    Order,
    ReleasePod,
    ResizeOwner,
    ResumeOwner,
    StopPods,
    StopRun,
    TellGroup,
    TellPod,
)
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.facts.reason_throttle import SCHEDULED, ReasonNotice, ReasonThrottle
from wattherd.kube.live.answers import Answers
from wattherd.kube.live.enforcer_io import EnforcerIo
from wattherd.kube.live.fencing_notes import FencingNotes
from wattherd.kube.live.leadership import Leadership
from wattherd.kube.live.learned_object import LearnedObject
from wattherd.kube.live.lookup import found_pod, note_overfull
from wattherd.kube.live.power_objects import PowerWatch
from wattherd.kube.live.queue_objects import QueueWatch
from wattherd.kube.live.reason_events import (
    Speaker,
    Voice,
    pod_subject,
)
from wattherd.model.reason import StopReason

HOLD_S = 60.0
_AGAIN_S = 5.0
_SEEN_S = 0.5
"""After which a change on the API server has been seen."""
_PAUSE_S = 0.01
"""From one plan to the next at least: news of one burst are planned together."""
_UNDONE = "GangUndone"
_JOB_ORDERS: dict[type, str] = {StopPods: "suspend", ResumeOwner: "resume", ResizeOwner: "resize"}
_GONE_FOR = {
    str(StopReason.PREEMPTED_FOR_PRIORITY): "pods of higher priority take its place",
    str(StopReason.BUDGET_CUT): "the power budget is less than what runs needs",
    str(StopReason.RECLAIMED): "its queue had borrowed what is wanted back",
    str(StopReason.RESIZED): "it goes on with more or fewer pods",
    str(StopReason.MIGRATED): "it goes on elsewhere",
    str(StopReason.TIME_SLICE): "its turn is over, and comes round again",
}
"""What the owner of an evicted pod is told, by the reason for stopping it."""


class LiveScheduler:
    """A scheduler at work; `begin` and `close` it."""

    def __init__(
        self,
        scheduler: KubeScheduler,
        access: Access,
        draws: np.random.Generator,
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
        power: PowerPlan | None = None,
        learned: ObjectMeta | None = None,
    ) -> None:
        """`lease` names the record by which copies agree on who schedules, as `identity`.

        `power` makes budgets of objects; without it they are those of `scheduler`. `learned` names
        the ConfigMap in which what jobs taught outlives the process.
        """
        self.scheduler = scheduler
        self.feed = ApiFeed(access, draws)
        self._news = threading.Event()
        follow = self._follow
        self.tally: Tally = Untold()
        self._draws = NodeDraws(scheduler.chooser, self)
        self._waits_s: dict[str, float] = {}
        """Since when pods wait that have no place."""
        self._gpus = follow_cluster(
            follow, self._node_seen, self._node_gone, self._pod_seen, self._pod_gone
        )
        follow_volumes(follow, scheduler)
        self.feed.also(self._work)
        stands = scheduler.fleet.stands
        self.seat = Leadership(self.feed, draws, stands, lease=lease, identity=identity)
        self._notes = FencingNotes(self.feed)
        choice = scheduler.choice
        self._answers = Answers({} if choice is None else choice.computers, self._hear_answer)
        self.steward = EnforcerIo(self.feed, scheduler, scheduler.not_suspended)
        self.power: PowerWatch | None = None
        if power is not None:
            watched = (self.feed, power, scheduler, self.seat.leads)
            self.power = PowerWatch(*watched, doing=lambda: scheduler.curb.doing)
        self._learned: LearnedObject | None = None
        if learned is not None:
            self._learned = LearnedObject(self.feed, scheduler.learned, self.seat, learned)
        self.queues = QueueWatch(self.feed, scheduler, self.seat.leads)
        speaker = Speaker(scheduler.name, identity or scheduler.name, scheduler.way.unplaced)
        self.voice = Voice(
            self.feed.transport, speaker, self.seat.leads, ReasonThrottle(), busy=self.seat.binds
        )

    def begin(self) -> None:
        """Start; groups are followed where the API server knows them, and as soon as it does."""
        self.feed.open()
        for kind, selection in self.voice.groups.selections(self.feed).items():
            served, refused = self._groups_served(kind), self._groups_refused(kind)
            self._follow(selection, self._hear_groups(kind), served, refused)
        if self.scheduler.way.together:
            path, there = f"{KUEUE}/topologies", Served.WHILE_INSTALLED
            hear = each(self._topology_seen, self._topology_gone)
            self._follow(Selection(path, KueueTopology, served=there, optional=True), hear)
        if self.scheduler.way.suspends:
            self._follow_sets()
        if self.power is not None:
            self.power.begin()
            if self.scheduler.way.suspends:
                self.steward.begin()
            if self.scheduler.way.queued:
                self.queues.begin()
        if self._learned is not None:
            self._learned.begin()
        self.feed.begin(*self.seat.beside(), self.voice.run())

    def series(self) -> Series:
        """The account in numbers, asked for in turn."""
        return self.feed.turn(self._series)

    def _series(self) -> Series:
        found = ledger(self.scheduler.chooser) | self._draws.series()
        pending = self.scheduler.pending().items()
        found[f"{PREFIX}pending_pods"] = [(labels, count) for labels, count in pending]
        return found

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Implements Tally for what works here, whoever counts."""
        self.tally.count(name, *labels, by=by)

    def took(self, name: str, seconds: float, *labels: str) -> None:
        """Implements Tally."""
        self.tally.took(name, seconds, *labels)

    def close(self) -> None:
        """Stop; a lease is given back, what runs stays."""
        self._answers.close()
        self.feed.close()
        if self.power is not None:
            self.power.close()

    def _follow(
        self,
        selection: Selection[Any],
        hear: Callable[[list[ObjectChange[Any]]], None],
        served: Callable[[bool], object] = lambda _: None,
        refused: Callable[[bool], object] = lambda _: None,
    ) -> None:
        def hear_and_plan(batch: list[ObjectChange[Any]]) -> None:
            hear(batch)
            self._news.set()

        self.feed.follow(selection, hear_and_plan, served, refused)

    def _groups_served(self, kind: GroupKind) -> Callable[[bool], None]:
        noting = self.voice.groups.noting(kind)

        def note(served: bool) -> None:  # noqa: FBT001
            noting(served)
            self.scheduler.groups_are_objects(kind, served)

        return note

    def _groups_refused(self, kind: GroupKind) -> Callable[[bool], None]:
        return lambda refused: self.scheduler.groups_are_unread(kind, refused)

    # News -----------------------------------------------------------------------------------------

    def _node_seen(self, node: Node) -> None:
        self.scheduler.node_seen(node)
        self._draws.node_seen(node, time.monotonic())

    def _node_gone(self, key: Key) -> None:
        self.scheduler.node_gone(key.name)
        self._draws.node_gone(key.name, time.monotonic())

    def _pod_seen(self, pod: Pod) -> None:
        uid, now_s = pod.metadata.uid, time.monotonic()
        known = self.scheduler.curb.pods.get(uid)
        read_back = pod.metadata.annotation(names.CAP_APPLIED_W)
        if known is not None and read_back not in (
            None,
            known.metadata.annotation(names.CAP_APPLIED_W),
        ):
            self.count("caps_read_back_total")
        self.scheduler.pod_seen(pod, now_s)
        if self.scheduler.way.waits(pod):
            self._waits_s.setdefault(uid, now_s)
        else:
            self._wait_over(uid, counts=bool(self.scheduler.way.seat(pod)) and self.seat.leads())
        if self.scheduler.way.seat(pod):
            self.voice.forget(pod_subject(f"{pod.metadata.namespace}/{pod.metadata.name}"))

    def _pod_gone(self, key: Key) -> None:
        self.scheduler.pod_gone(key.uid)
        self._waits_s.pop(key.uid, None)
        self.voice.forget(pod_subject(f"{key.namespace}/{key.name}"))

    def _topology_seen(self, topology: KueueTopology) -> None:
        self.scheduler.topology_seen(topology.metadata.name, topology.ladder)

    def _topology_gone(self, key: Key) -> None:
        self.scheduler.topology_seen(key.name, None)

    def _hear_groups(self, kind: GroupKind) -> Callable[[list[ObjectChange[PodGroup]]], None]:
        scheduler = self.scheduler
        return each(
            lambda group: scheduler.group_seen(
                GroupId(kind, group.metadata.namespace, group.metadata.name), group
            ),
            lambda key: self._group_gone(GroupId(kind, key.namespace, key.name)),
        )

    def _group_gone(self, group: GroupId) -> None:
        self.scheduler.group_gone(group)
        subject = self.voice.groups.subject(group)
        if subject is not None:
            self.voice.forget(subject)

    def _follow_sets(self) -> None:
        """Whoever makes pods of a gang says how many there will be."""
        for kind in SETS:
            path, there = f"{kind.api}/{kind.plural}", Served.WHILE_INSTALLED
            sets = Selection(path, kind.made, labels=kind.labels, served=there, optional=True)
            hear = as_groups(self._hear_groups(kind.group))
            self._follow(sets, hear, refused=self._groups_refused(kind.group))

    # Work -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Plan as soon as there are news, and now and then without any."""
        looked_s = planned_s = time.monotonic()
        while not self.feed.over.wait(planned_s + _PAUSE_S - time.monotonic()):
            self._news.wait(LOOK_S)
            self._news.clear()
            planned_s = time.monotonic()
            if not self.seat.ready() or not (self._learned is None or self._learned.is_read()):
                continue
            self._carry_out_all(self.feed.turn(self._plan, planned_s))
            self._answers.ask(self.feed.turn(self.scheduler.dialogue.take_questions))
            if time.monotonic() - looked_s > LOOK_S:
                looked_s = time.monotonic()
                self._look_after()

    def _plan(self, at_s: float) -> list[Order]:
        """In turn: no word about a pod comes after the news that it is gone."""
        orders = self.scheduler.plan(at_s)
        if orders:
            self.took("plan_seconds", time.monotonic() - at_s)
        for order in orders:
            self._tell(order)
        if self.steward.returning:  # of the same news: who is to return in another size has it
            self.steward.resume_those_without(self.scheduler.curb.pods.values(), orders)
        return orders

    def _hear_answer(self, question: Question, result: object) -> None:
        self.feed.turn(self.scheduler.dialogue.answer, question, result)
        self._news.set()

    def _look_after(self) -> None:
        self.feed.turn(self._draws.look, time.monotonic())
        self._notes.write(self.feed.turn(self.scheduler.unfenced.to_write))
        if not self.scheduler.way.moves:  # where a pod may turn up elsewhere, that is no news
            note_overfull(self.feed, self.feed.turn(self.scheduler.fleet.overfull))
        for order in self.feed.turn(self.scheduler.curb_orders, time.monotonic()):
            self._carry_out(order)
        for holding in self.feed.turn(self.scheduler.overdue, time.monotonic(), HOLD_S):
            found = found_pod(self.feed, holding)
            if found is not None and self.scheduler.way.seat(found):
                self.feed.turn(self._found, found)
            elif found is not None:
                self.feed.turn(self.scheduler.not_bound, holding.uid)

    def _found(self, pod: Pod) -> None:
        self.scheduler.pod_seen(self._gpus.known(pod), time.monotonic())

    def _carry_out_all(self, orders: Iterable[Order]) -> None:
        binds: list[BindPod] = []
        going: list[EvictPod] = []
        for order in orders:
            if isinstance(order, BindPod):
                binds.append(order)
            elif isinstance(order, EvictPod):
                going.append(order)
            else:
                self._carry_out(order)
        self.feed.loop.begin_all(map(self._bind, binds))
        if going:
            for stop in self.feed.turn(self.scheduler.stops_of, going):
                self.feed.loop.begin(self._stop(stop))
            for one in going:
                self.voice.say(_stopped(one))

    def _bind(self, order: BindPod) -> Coroutine[Any, Any, None]:
        """Of the term that it was decided in, though it may begin in another."""
        sent = self.seat.bind(order.key, order.uid, order.node, order.decision, order.annotations)

        async def heard() -> None:
            self._bound(await sent)

        return heard()

    def _release(self, order: ReleasePod) -> Coroutine[Any, Any, None]:
        """Of the term that it was decided in, like a binding."""
        sent = self.seat.release(order)

        async def heard() -> None:
            done = await sent
            self._heard("pods are not released", done.uid, done.outcome, done.why)

        return heard()

    def _carry_out(self, order: Order) -> None:
        match order:
            case BindPod() | EvictPod():
                self._carry_out_all([order])
            case ReleasePod():
                self.feed.loop.begin(self._release(order))
            case CapPod():
                self.count("cap_orders_total", "lift" if order.cap_w is None else "set")
                self.steward.carry_out(order)
            case StopPods() | ResumeOwner() | ResizeOwner():
                self.count("job_orders_total", _JOB_ORDERS[type(order)])
                self.steward.carry_out(order)
            case TellPod() | TellGroup():
                pass  # it was told in the turn of the plan

    def _tell(self, order: Order) -> None:
        if isinstance(order, TellPod):
            subject = pod_subject(order.key, order.uid)
            self.voice.tell(ReasonNotice(subject, order.reason, order.text))
        elif isinstance(order, TellGroup):
            self._tell_group(order)

    def _tell_group(self, order: TellGroup) -> None:
        subject = self.voice.groups.subject(order.group, order.uid)
        if subject is not None:
            notice = ReasonNotice(subject, order.reason, order.text, order.waits)
            (self.voice.tell if order.waits else self.voice.say)(notice)

    def _bound(self, result: BindingOutcome) -> None:
        self._heard("pods are not bound", result.bind.uid, result.outcome, result.why)
        self.count("attempts_total", str(result.outcome))
        if result.outcome is BindingState.BOUND:
            self._wait_over(result.bind.uid, counts=True)
            self.voice.say(_placed(result.bind))

    def _wait_over(self, uid: str, *, counts: bool) -> None:
        """A pod waits no more: its binding was answered, or seen, whichever came first."""
        since_s = self._waits_s.pop(uid, None)
        if counts and since_s is not None:
            self.took("wait_seconds", time.monotonic() - since_s)

    def _heard(self, trouble: str, uid: str, outcome: BindingState, why: str) -> None:
        """What became of a pod; only a leader who is refused is in `trouble`."""
        denied = outcome is BindingState.DENIED
        if outcome in (BindingState.BOUND, BindingState.DENIED, BindingState.FENCED):
            self.feed.note(trouble, why if denied else "")
        if outcome in (BindingState.BOUND, BindingState.DENIED):
            self.feed.refusals.heard(why if denied else "", time.monotonic())
        if outcome in FREES:
            # It is tried again: not before what stands in its way is seen, or may have changed.
            pause_s = _AGAIN_S if denied else _SEEN_S
            self.feed.loop.begin(self._later(self.scheduler.not_bound, uid, pause_s))

    async def _stop(self, order: StopRun) -> None:
        """Asked again when refused."""
        why = order.evictions[0].why
        told = _UNDONE if is_undone(why) else why.partition(":")[0]
        way = "evicted" if order.owner is None else "suspended"
        self.count("stopped_pods_total", told, way, by=len(order.evictions))
        refused = await self.steward.stop_run(order, self.seat.leads)
        if refused:
            await asyncio.sleep(_AGAIN_S)
        for uid in refused:
            await self._later(self.scheduler.not_evicted, uid, 0.0)

    async def _later(
        self, tell: Callable[[str], None], uid: str, pause_s: float = _AGAIN_S
    ) -> None:
        """What was refused is asked for again, but not at once."""
        await asyncio.sleep(pause_s)
        self.feed.turns.submit(tell, uid)
        self._news.set()


def _placed(bind: Bind) -> ReasonNotice:
    """Where a pod went, in the words of kube-scheduler, and what it may draw there."""
    key = f"{bind.namespace}/{bind.pod}"
    text = f"Successfully assigned {key} to {bind.node}"
    watts, domain = bind.annotations.get(names.WATTS), bind.annotations.get(names.DOMAIN)
    if watts is not None and watts != "0":
        text += f", where it adds {watts} W" + (f" in power domain {domain}" if domain else "")
    return ReasonNotice(pod_subject(key, bind.uid), SCHEDULED, text, waits=False)


def _stopped(order: EvictPod) -> ReasonNotice:
    subject = pod_subject(order.key, order.uid)
    reason, colon, text = order.why.partition(": ")
    if colon and reason == BUDGET_CUT:
        return ReasonNotice(subject, reason, f"evicted: {text}", waits=False)
    if is_undone(order.why):
        return ReasonNotice(subject, _UNDONE, f"evicted: {order.why}", waits=False)
    why = _GONE_FOR.get(order.why, order.why)
    return ReasonNotice(subject, order.why, f"evicted: {why}", waits=False)
