"""The second scheduler's decisions: what the API shows in, bindings and evictions out; no I/O.

A shell over `engine.core.core.Core`. What was seen of nodes, pods and groups is kept level: late
and repeated news change nothing, and `plan` compares what is with what the core was told, tells it
the difference as events, and turns its commands into orders. Everything the core knows follows from
the API: pods on nodes become jobs that run there, waiting pods works that wait, and a new core,
after a restart or when the set of nodes changes, is told the same things.

The core is told of no budget: whom budgets let start is weighed by `Chooser`, whom they stop by
`BudgetEnforcer`, both on the account of the cluster as it was last heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.engine.core.cycle import WAKE
from wattherd.engine.placement.placer import Placer
from wattherd.kube.account.assignments import Assignments
from wattherd.kube.account.binding_mode import BindingMode, ByBinding
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domain_nodes import DomainNodes
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fencing import Unfenced
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet
from wattherd.kube.account.pending_pods import Queueing
from wattherd.kube.account.precedence import PATIENCE_S, Precedence
from wattherd.kube.account.quota import quota_of
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.budget_enforcer import BudgetEnforcer
from wattherd.kube.decide.command_executor import CommandExecutor
from wattherd.kube.decide.core_driver import CoreDriver
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.decide.evictions import Evictions
from wattherd.kube.decide.feasibility import PodFeasibility
from wattherd.kube.decide.gang_planner import GangPlanner
from wattherd.kube.decide.queue_status import QueueFigures, figures
from wattherd.kube.decide.reasons import Reasons, finding_of
from wattherd.kube.decide.remedies import Remedies
from wattherd.kube.decide.seating import Seating
from wattherd.kube.facts.core_config import core_config
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.orders import Order, StopPods
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.kube.facts.queue_plan import QueueState
from wattherd.kube.facts.workload import WorkloadPod, alike, queue_of
from wattherd.model.event import Woke

OVER = frozenset({"Succeeded", "Failed"})


class KubeScheduler:
    """One scheduler of a cluster, known to pods by `name`.

    `budgets_mw` are milliwatts by power domain (the site's name is empty); `holder` signs
    decisions.
    """

    def __init__(
        self,
        fleet: NodeFleet,
        budgets_mw: Mapping[str, int] | None = None,
        *,
        name: str = "wattherd",
        holder: str = "",
        way: BindingMode | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Nothing is known yet; `way` is how decisions take effect, by default by binding.

        A gang that has waited for room longer than `patience_s` goes before all behind it.
        """
        self.fleet = fleet
        self.volumes = Volumes()
        self.dialogue = CoreDriver()
        self.domains = Domains(budgets_mw or {})
        self.name = name
        self.way = way or ByBinding(name)
        self.nodes_of = DomainNodes(fleet, self.domains)
        self.chooser = Chooser(fleet, self.domains, counts_missing=self.way.moves)
        self._patience_s = patience_s
        self._pods: dict[str, Pod] = {}
        self.groups: dict[GroupId, PodGroup] = {}
        self.queues = QueueState()
        self.curb = BudgetEnforcer(self.chooser, self._pods, self.way.is_ours, self.groups)
        self.curb.is_ending = self._is_ending
        self.curb.is_undeclared = self.way.is_undeclared
        self._eligible = Eligible(fleet, self.volumes, self._pods)
        self.diagnosis = Diagnosis(self.chooser, self._eligible)
        self._reasons = Reasons(self.diagnosis, self.groups)
        self._queueing = Queueing(self.way, self._pods, self.groups, self.volumes)
        self._book = WorkloadIndex(self.way, fleet, self._pods, self.groups)
        self._planner = self._new_planner()
        self._core_of: Placer | None = None
        self._leaving = Evictions(fleet, self._pods)
        self._fulfilment = CommandExecutor(
            holder=holder,
            way=self.way,
            fleet=fleet,
            nodes_of=self.nodes_of,
            pods=self._pods,
            book=self._book,
            dialogue=self.dialogue,
            leaving=self._leaving,
            queueing=self._queueing,
            reasons=self._reasons,
        )
        self._seats = Assignments(fleet, self.way)
        self.unfenced = Unfenced(fleet, self._pods)
        self.curb.is_silent = self.unfenced.is_silent
        self.ends_elsewhere: Callable[[Pod], bool] = lambda _: False
        """Whether somebody beside us stops a pod already."""
        self._dirty = True
        self._freed = True
        """Whether there may be room that was not there before."""
        self._watts_moved = True
        """Whether anybody draws otherwise than was reserved, or may."""

    # What was seen --------------------------------------------------------------------------------

    def node_seen(self, node: Node) -> None:
        """A node is there, or changed."""
        before = self.fleet.version
        self.fleet.node_seen(self.domains.fed(node_facts(node)))
        changed = self.fleet.version != before
        self._dirty |= changed
        self._freed |= changed
        self._watts_moved |= changed
        for uid in self.unfenced.node_seen(node):
            self._strike(uid)
        for pod in self.unfenced.ghosts(node):
            self.pod_seen(pod, 0.0)

    def node_gone(self, name: str) -> None:
        """A node was deleted; its pods draw until they are gone, too.

        A gang that was just being bound there starts anew elsewhere; who ran is left to its owner.
        """
        works = (self._book.of(one.uid) for one in self.fleet.held_on(name))
        for work in {one.id: one for one in works if one is not None}.values():
            if len(work.members) > 1 and self._fulfilment.is_starting(work):
                self._fulfilment.undo(
                    work, f"node {name} was deleted while its gang was being bound"
                )
        self.fleet.node_gone(name)
        self._dirty = self._watts_moved = True
        for uid in self.unfenced.node_gone(name):
            self._strike(uid)

    def pod_seen(self, pod: Pod, at_s: float) -> None:
        """A pod is there, or changed; one that ended is as one that is gone."""
        uid = pod.metadata.uid
        if pod.status.phase in OVER:
            self.pod_gone(uid)
            return
        known = self._pods.get(uid)
        self._pods[uid] = pod
        self._eligible.note(pod)
        seat = self.way.seat(pod)
        reserved = self.fleet.is_reserved(uid, seat)
        seated = bool(seat) and self._seats.take(pod, at_s)
        if known is None or seated or not alike(known, pod):
            self._queueing.note(pod)
            self._dirty = True
            self._watts_moved |= bool(seat) and not reserved

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted; on a node that is silent it may run on."""
        held = self.fleet.holdings.get(uid)
        if held is None or not held.confirmed or not self.unfenced.keeps(uid, held.node):
            self._strike(uid)

    def _strike(self, uid: str) -> None:
        self.curb.stopping.forget(uid)
        self._freed |= uid in self.fleet.holdings
        self._watts_moved |= self._freed
        self._pods.pop(uid, None)
        self._eligible.drop(uid)
        self._reasons.forget(uid)
        if self._leaving.gone(uid):
            self._queueing.stir(uid)
        self._queueing.drop(uid)
        self._book.drop(uid)
        self.fleet.let_go(uid)
        self._dirty = True

    def groups_are_objects(self, kind: GroupKind, are: bool = True) -> None:  # noqa: FBT001, FBT002
        """Groups of this kind are told by `group_seen`: a gang waits until its own is there."""
        self._queueing.state(kind, stated=are)
        self._dirty = True

    def group_seen(self, group_id: GroupId, group: PodGroup) -> None:
        """A group is there, or changed."""
        self.groups[group_id] = group
        self._queueing.stir_group(group_id)
        self._dirty = True

    def group_gone(self, group_id: GroupId) -> None:
        """A group was deleted; what of it runs stays."""
        self.groups.pop(group_id, None)
        self._queueing.stir_group(group_id)
        self._reasons.forget(group_id)
        self._dirty = True

    def volumes_changed(self) -> None:
        """Somebody changed `volumes`."""
        self._eligible.forget()
        self._queueing.forget()
        self._dirty = self._freed = True

    def not_bound(self, uid: str) -> None:
        """The API server refused for good; a gang of which one pod cannot be bound is undone."""
        known = self.fleet.holdings.get(uid)
        if known is None or known.confirmed:
            return
        work = self._book.of(uid)
        if work is not None and len(work.members) > 1:
            self._fulfilment.undo(work, f"pod {known.key} of its gang could not be bound")
        self.fleet.let_go(uid)
        self._leaving.gone(uid)
        self._queueing.stir(uid)
        self._dirty = self._freed = self._watts_moved = True

    def not_evicted(self, uid: str) -> None:
        """The eviction was refused, by a disruption budget for instance: it is asked for again."""
        self.curb.not_stopped([uid])
        if not self._leaving.reconsider(uid):
            self._leaving.refused(uid)
        self._dirty = self._watts_moved = True

    def overdue(self, now_s: float, hold_s: float) -> list[Holding]:
        """Bindings not seen to happen: look there, then tell `pod_seen` or `not_bound`."""
        return [one for one in self.fleet.reserved if now_s - one.since_s > hold_s]

    def power_seen(self, tree: DomainTree, budgets_mw: Mapping[str, int]) -> None:
        """Domains and budgets as they stand from now on."""
        if tree != self.domains.tree:
            self.domains.tree = tree
            self.fleet.feed(self.domains.fed)
        self.domains.budgets_mw = dict(budgets_mw)
        self._dirty = self._freed = self._watts_moved = True

    # What to do -----------------------------------------------------------------------------------

    def budget(self, domain: str, budget_mw: int | None, at_s: float) -> list[Order]:
        """A domain may draw this much from now on; whoever is too many is evicted."""
        given = {} if budget_mw is None else {domain: budget_mw}
        others = {name: mw for name, mw in self.domains.budgets_mw.items() if name != domain}
        self.power_seen(self.domains.tree, others | given)
        return self.plan(at_s)

    def plan(self, at_s: float) -> list[Order]:
        """Orders that follow from all that was seen up to now."""
        wake_s = self.dialogue.wake_s
        awake = wake_s is not None and wake_s <= at_s
        if self._planner.gives_up(at_s):
            self._dirty = self._freed = True
        if not (self._dirty or awake):
            return []
        self._dirty = False
        for uid in self._seats.call_in(self._pods, at_s):
            self._queueing.stir(uid)
        self.fleet.tidy(len(self._pods))
        placer = self.fleet.placer
        if placer is None:
            self._queueing.look(self.fleet.holdings, self._leaving.uids)
            return []  # all are looked at anew once there is a node
        core = self.core
        if core is None or self._core_of is not placer:
            core = self._begin(placer, at_s)
        # What was reserved was weighed then: to look at all who run costs more than a decision.
        stops = self.curb_orders(at_s) if self._watts_moved or self.curb.at_work else []
        everybody = self._planner.changed = self._planner.changed or self._freed
        self._dirty = self._freed = False
        news = self._queueing.look(self.fleet.holdings, self._leaving.uids)
        events = self._book.differences(core, news, self._seats.moved(), at_s)
        if everybody:
            events.append(Woke(at_s=at_s, key=WAKE))
        orders = stops + self._fulfilment.of(events, at_s)
        again = self._planner.look_again()
        self._dirty |= bool(self._planner.stale)
        self._dirty |= self._fulfilment.evicts
        self._fulfilment.evicts = False
        orders += self._leaving.orders()
        told = self._queueing.waiting if everybody or again else news.waiting
        return orders + self._reasons.tell(told, self.fleet.holdings, self._why)

    @property
    def core(self) -> Core | None:
        """What plans; none before a node is known."""
        return self.dialogue.core

    def simulate(self, pods: Sequence[Pod]) -> dict[str, Any]:
        """Whether `pods` would start now, and where; nothing is reserved."""
        quota = quota_of(self.queues, self.fleet, self.domains, self._pods)
        return PodFeasibility(self.diagnosis, self.remedies, self.volumes, quota).of(pods)

    def told(self, key: str) -> str:
        """The reason that a pod (namespace/name) was told last; empty if it waits for nothing."""
        namespace, _, name = key.partition("/")
        for uid, pod in self._pods.items():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return "" if uid in self.fleet.holdings else self._reasons.told(uid)
        return ""

    @property
    def remedies(self) -> Remedies:
        """What would help those who wait, tried out on the account as it is."""
        return Remedies(self.chooser, self._allowed, self._pods, self.groups)

    def waits_with(self, uid: str) -> tuple[WorkloadPod, ...]:
        """The pods that wait together with this one, itself among them; none if it does not."""
        return self._queueing.waits_with(uid)

    def curb_orders(self, at_s: float) -> list[Order]:
        """What keeps those who run within the budgets; to be asked for now and then, too."""
        self._watts_moved = False
        orders: list[Order] = []
        for one in self.curb.orders(at_s):
            if isinstance(one, StopPods) and one.owner is None:
                self.not_suspended(one.uids, one.why)
            else:
                orders.append(one)
        self._dirty |= self.curb.changed
        self._freed |= self.curb.changed
        self.curb.changed = False
        return orders

    def _is_ending(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._leaving.uids or self.ends_elsewhere(pod)

    def not_suspended(self, uids: Iterable[str], why: str) -> None:
        """Nothing owns these pods that could be suspended: they are evicted."""
        there = [uid for uid in uids if uid in self.fleet.holdings]
        self.curb.stopping.evict(there)
        for uid in there:
            self._leaving.refused(uid)  # where they were told before, they are told again
        self._leaving.add(there, why)
        self._dirty = True

    def _new_planner(self) -> GangPlanner:
        allowed = self._allowed
        precedence = Precedence(self.fleet, allowed, self._patience_s)
        seating = Seating(self.chooser, allowed, self.way.confined, self.diagnosis)
        made = GangPlanner(self._book.works, seating, precedence, self._pods)
        made.queues, made.preempting = self.queues.tree, self.queues.preempting
        return made

    def _allowed(self, member: WorkloadPod) -> Mask:
        """Nodes that a member may go to: those that suit it, of its queue's power domain."""
        suits = self._eligible.mask(member.pod)
        domain = self.queues.domains.get(queue_of(member.pod))
        if domain is None:
            return suits
        return suits & self.domains.inside(domain, self.fleet.order)

    def queues_seen(self, state: QueueState) -> None:
        """These queues are in force from now on; what runs stays."""
        self.queues = state
        self._planner.queues, self._planner.preempting = state.tree, state.preempting
        self._dirty = self._freed = True

    def queue_figures(self) -> QueueFigures:
        """Who waits and runs of each queue."""
        waiting = self._queueing.waiting
        return figures(self.queues.tree, waiting, self.fleet, self._pods, self.way.is_ours)

    def _begin(self, placer: Placer, at_s: float) -> Core:
        """A core that knows nothing yet: it will be told all that is."""
        self._book.clear()
        self._queueing.stir_all()
        self._planner = self._new_planner()
        core = Core(core_config(self.fleet.order, self._planner))
        core.now_s = at_s
        self._core_of = placer
        self.dialogue.begin(core)
        return core

    # Saying why -----------------------------------------------------------------------------------

    def _why(self, member: WorkloadPod) -> PodFinding | None:
        """Of a pod that waits: what the planner found, else what the core says."""
        job_id = self._book.id_of(member.uid)
        found = self._book.rejected.get(job_id) or self._planner.findings.get(job_id)
        if found is not None:
            return found
        job = self.core.jobs.get(job_id) if self.core is not None else None
        return None if job is None or job.reason is None else finding_of(job.reason)
