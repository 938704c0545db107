"""The core's commands, fulfilled: what it starts is ordered to its place, what it stops is to go.

A start is booked at once, and its pods' orders are signed: no two decisions have the same name. A
stop is for pods that chose this scheduler alone; they hold their places until they are seen to be
gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from wattherd.kube.account.binding_mode import BindingMode, ChosenPod
from wattherd.kube.account.domain_nodes import DomainNodes
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.pending_pods import Queueing
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.core_driver import CoreDriver
from wattherd.kube.decide.evictions import Evictions
from wattherd.kube.decide.reasons import Reasons
from wattherd.kube.facts.orders import Order
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.command import Command, FinishJob, RejectJob, StartJob, StopJob
from wattherd.model.event import Event


@dataclass(slots=True, kw_only=True)
class CommandExecutor:
    """Of works in `book`, on the account of `fleet`, by `way`; `pods` are all that are known.

    `holder` signs decisions; who must go is told to `leaving` and `queueing`, what is over to
    `dialogue`.
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
    evicts: bool = False
    """Whether somebody was told to go; whoever looks puts it back."""
    _decisions: count[int] = field(default_factory=lambda: count(1))

    def of(self, events: Iterable[Event], at_s: float) -> list[Order]:
        """Tell the core, and carry out what it commands, until it has no more to say now."""
        orders = list[Order]()

        def obey(command: Command) -> None:
            orders.extend(self._carry_out(command))

        self.dialogue.say(events, at_s, obey)
        return orders

    def evict(self, job_id: str, why: str) -> None:
        """Those pods of a work that are ours to stop must go."""
        work = self.book.works.get(job_id)
        for member in () if work is None else work.members:
            ours = self.way.is_ours(self.pods.get(member.uid, member.pod))
            if ours and member.uid not in self.leaving.uids:
                self.leaving.add([member.uid], why)
                self.queueing.stir(member.uid)
                self.evicts = True

    def is_starting(self, work: Workload) -> bool:
        """Whether any of its pods has a place on which it was not seen yet."""
        held = self.fleet.holdings
        return any(one.uid in held and not held[one.uid].confirmed for one in work.members)

    def undo(self, work: Workload, why: str) -> None:
        """All its pods are to go, as soon as they are seen on their nodes."""
        for member in work.members:
            self.leaving.add([member.uid], why)
            self.queueing.stir(member.uid)

    def _carry_out(self, command: Command) -> list[Order]:
        match command:
            case StartJob():
                return self._start(command)
            case StopJob():
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

    def _start(self, command: StartJob) -> list[Order]:
        """Order its pods to their places, unless they are there: then it was found running."""
        work = self.book.works[command.job_id]
        if work.seated:
            return []
        self.book.seated(work, command.allocations)
        return [*self._orders(work), *self.reasons.gang_starts(work)]

    def _orders(self, work: Workload) -> list[Order]:
        return [self.way.order(self._chosen(member)) for member in work.members]

    def _chosen(self, member: WorkloadPod) -> ChosenPod:
        holding = self.fleet.holdings[member.uid]
        decision = f"{self.holder}/{next(self._decisions)}"
        facts = self.fleet.nodes[holding.node]
        needs = self.nodes_of.needs(facts.domain) if self.way.moves else ()
        return ChosenPod(
            member=member, holding=holding, facts=facts, needs=needs, decision=decision
        )
