"""The core's commands, fulfilled: what it starts is ordered to its place, what it stops is to go.

A start is booked at once, and its pods' orders are signed: no two decisions have the same name. A
stop is for pods that chose this scheduler alone; they hold their places until they are seen to be
gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from wattherd.kube.account.binding_mode import BindingMode, ChosenPod
from wattherd.kube.account.core_places import CorePlaces
from wattherd.kube.account.domain_nodes import DomainNodes
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.pending_pods import Queueing
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.core_caps import CoreCaps
from wattherd.kube.decide.core_driver import CoreDriver
from wattherd.kube.decide.evictions import Evictions
from wattherd.kube.decide.reasons import Reasons
from wattherd.kube.facts.orders import BindPod, Order
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.command import Command, FinishJob, RejectJob, SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobHeld, JobStopped

AWAITED_S = 60.0
"""For the pods of a job that was moved or resized to be made; then its places are given up."""


@dataclass(slots=True, kw_only=True)
class CommandExecutor:
    """Of works in `book`, on the account of `fleet`, by `way`; `pods` are all that are known.

    `holder` signs decisions; who must go is told to `leaving` and `queueing`, what is over to
    `dialogue`. `places` holds what the core gives; where it shares watts, `caps` carries caps to
    pods.
    """

    holder: str
    way: BindingMode
    fleet: NodeFleet
    nodes_of: DomainNodes
    pods: Mapping[str, Pod]
    book: WorkloadIndex
    dialogue: CoreDriver
    leaving: Evictions
    queueing: Queueing
    reasons: Reasons
    places: CorePlaces
    caps: CoreCaps | None = None
    evicts: bool = False
    """Whether somebody was told to go; whoever looks puts it back."""
    refused: list[str] = field(default_factory=list)
    """Jobs whose places could not be given, and that are held until there are news."""
    _decisions: count[int] = field(default_factory=lambda: count(1))

    def of(self, events: Iterable[Event], at_s: float) -> list[Order]:
        """Tell the core, and carry out what it commands, until it has no more to say now."""
        orders = list[Order]()

        def obey(command: Command) -> list[Event]:
            if isinstance(command, StartJob):
                made, news = self._start(command, at_s)
            elif isinstance(command, SetCap) and self.caps is not None:
                made, news = self._cap(command, at_s)
            elif isinstance(command, StopJob) and command.job_id in self.book.awaited:
                stopped = self.book.await_no_more(command.job_id, at_s, str(command.reason))
                made, news = [], [stopped]
                self.evicts = True  # who is not started again is held with the next look
            else:
                made, news = self._carry_out(command), []
            orders.extend(made)
            return news

        self.dialogue.say(events, at_s, obey)
        self.dialogue.say(self._start_awaited(orders, at_s), at_s, obey)
        return orders

    def is_late(self, at_s: float) -> bool:
        """Whether pods of a started job are to be waited for no longer."""
        return any(at_s - since_s > AWAITED_S for since_s, _ in self.book.awaited.values())

    def _start_awaited(self, orders: list[Order], at_s: float) -> list[Event]:
        """Those whose pods have been made have their places; those that took too long have not."""
        news = list[Event]()
        for job_id, (since_s, command) in list(self.book.awaited.items()):
            work = self.book.works.get(job_id)
            if work is not None and len(work.members) == _pods_of(command):
                del self.book.awaited[job_id]
                made, heard = self._start(command, at_s)
                orders.extend(made)
                news += heard
            elif at_s - since_s > AWAITED_S:
                news += self.book.give_up(job_id, at_s, "its pods were not made")
        return news

    def evict(self, job_id: str, why: str) -> None:
        """Those pods of a work that are ours to stop must go."""
        work = self.book.works.get(job_id)
        for member in () if work is None else work.members:
            pod = self.pods.get(member.uid, member.pod)
            goes = pod.metadata.deletion_timestamp is not None or member.uid in self.leaving.uids
            if self.way.is_ours(pod) and not goes:
                self.leaving.add([member.uid], why)
                self.queueing.stir(member.uid)
                self.evicts = True

    def is_starting(self, work: Workload) -> bool:
        """Whether any of its pods has a place on which it was not seen yet."""
        held = self.fleet.holdings
        return any(one.uid in held and not held[one.uid].confirmed for one in work.members)

    def undo(self, work: Workload, why: str) -> None:
        """All its pods that have places are to go, as soon as they are seen on their nodes."""
        self.book.undoes(work.id)
        for member in work.members:
            if member.uid not in self.fleet.holdings:
                continue  # it was refused before, and waits
            self.leaving.add([member.uid], why)
            self.queueing.stir(member.uid)

    def _carry_out(self, command: Command) -> list[Order]:
        match command:
            case StopJob():
                self.book.stops(command.job_id)
                self.evict(command.job_id, str(command.reason))
            case RejectJob():
                work = self.book.works.get(command.job_id)
                self.book.rejected[command.job_id] = self.reasons.hopeless(command.reason, work)
                self.dialogue.forget(command.job_id)
            case FinishJob():
                self.dialogue.forget(command.job_id)
            case _:
                pass
        return []

    def _start(self, command: StartJob, at_s: float) -> tuple[list[Order], list[Event]]:
        """Order its pods to their places, unless they are there: then it was found running.

        A place that the core named and the account cannot give is taken back at once.
        """
        work = self.book.works.get(command.job_id)
        if work is None or not (work.seated or len(work.members) == _pods_of(command)):
            resize = self.book.await_pods(command, at_s)
            return [] if resize is None else [resize], []
        if work.seated:
            self.book.known_to_run(work.id)
            return [], [] if self.caps is None else self.caps.found(command, at_s)
        if not self.places.take(work, command.allocations, at_s):
            self.refused.append(work.id)
            why = "its places were taken by others"
            stopped = JobStopped(at_s=at_s, job_id=work.id, attempt=command.attempt, cause=why)
            return [], [stopped, JobHeld(at_s=at_s, job_id=work.id, cause=why)]
        self.book.seated(work, command.allocations)
        written = {} if self.caps is None else self.caps.with_start(command, at_s)
        return [*self._orders(work, written), *self.reasons.gang_starts(work)], []

    def _cap(self, command: SetCap, at_s: float) -> tuple[list[Order], list[Event]]:
        if self.caps is None:
            return [], []
        asked, news = self.caps.order(command, at_s)
        return list(asked), news

    def _orders(self, work: Workload, written: Mapping[str, Mapping[str, str]]) -> list[Order]:
        orders = list[Order]()
        for member in work.members:
            order = self.way.order(self._chosen(member))
            if isinstance(order, BindPod) and member.uid in written:
                order = replace(order, annotations={**order.annotations, **written[member.uid]})
            orders.append(order)
        return orders

    def _chosen(self, member: WorkloadPod) -> ChosenPod:
        holding = self.fleet.holdings[member.uid]
        decision = f"{self.holder}/{next(self._decisions)}"
        facts = self.fleet.nodes[holding.node]
        needs = self.nodes_of.needs(facts.domain) if self.way.moves else ()
        return ChosenPod(
            member=member, holding=holding, facts=facts, needs=needs, decision=decision
        )


def _pods_of(command: StartJob) -> int:
    return sum(one.tasks for one in command.allocations)
