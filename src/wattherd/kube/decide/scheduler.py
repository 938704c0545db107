"""The second scheduler's decisions: what the API shows in, bindings and evictions out; no I/O.

A shell over `engine.core.core.Core`. What was seen of nodes, pods and groups is kept level: late
and repeated news change nothing, and `plan` compares what is with what the core was told, tells it
the difference as events, and turns its commands into orders. Everything the core knows follows from
the API: pods on nodes become jobs that run there, waiting pods works that wait, and a new core,
after a restart or when the set of nodes changes, is told the same things.

A scheduler of `policy.schedule` plans, through a `CorePlanner`. What the core orders is looked at
once more on the account as it was last heard (`CorePlaces`).

With a `CoreChoice` the core leads: it keeps the budgets, by the power policy that was chosen, and
`BudgetEnforcer` stays as the backstop for caps that are not kept. Without one, in the modes in
which others bind pods, `Gang` plans, and the core is told of no budget: whom budgets let start is
weighed by `Chooser`, whom they stop by `BudgetEnforcer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.placement.placer import Placer
from wattherd.kube.account.assignments import Assignments
from wattherd.kube.account.binding_mode import BindingMode, ByBinding
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.core_places import CorePlaces
from wattherd.kube.account.domain_nodes import DomainNodes
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.enforcement_tally import stops_of
from wattherd.kube.account.fencing import Unfenced
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet
from wattherd.kube.account.neighbours import apart
from wattherd.kube.account.pending_pods import Queueing
from wattherd.kube.account.planned_fleet import PlannedFleet
from wattherd.kube.account.quota import quota_of
from wattherd.kube.account.rest_proof import NOT_AT_REST, RestProof
from wattherd.kube.account.topology_places import TopologyPlaces, TopologyWishes
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.budget_enforcer import BudgetEnforcer
from wattherd.kube.decide.command_executor import CommandExecutor
from wattherd.kube.decide.core_caps import SETS_NO_CAPS, CoreCaps
from wattherd.kube.decide.core_driver import CoreDriver
from wattherd.kube.decide.core_planner import CorePlanner, WorkloadEligibility
from wattherd.kube.decide.departures import Departures
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.decide.evictions import Evictions
from wattherd.kube.decide.feasibility import PodFeasibility
from wattherd.kube.decide.learned_speeds import LearnedSpeeds
from wattherd.kube.decide.progress_reports import ProgressReports
from wattherd.kube.decide.queue_status import QueueFigures, figures
from wattherd.kube.decide.reasons import Reasons, finding_of, place_is_kept
from wattherd.kube.decide.remedies import Remedies
from wattherd.kube.decide.seating import Seating
from wattherd.kube.facts.core_config import (
    CoreChoice,
    CoreWorld,
    budgets_of_core,
    chosen_core,
    core_config,
    core_world,
    planned_caps_w,
)
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.node_facts import NodeFacts, node_facts
from wattherd.kube.facts.node_filter import Neighbour, Volumes, has_wishes
from wattherd.kube.facts.orders import EvictPod, Order, StopPods, StopRun
from wattherd.kube.facts.pod_groups import GroupId, GroupKind
from wattherd.kube.facts.queue_plan import QueueState
from wattherd.kube.facts.topology_wish import Ladder
from wattherd.kube.facts.workload import Workload, WorkloadPod, alike, queue_of
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.command import WAKE
from wattherd.model.event import BudgetChanged, Event, JobReleased, JobSubmitted, Woke
from wattherd.model.reason import ReasonCode
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.gang import PATIENCE_S, Gang

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
        choice: CoreChoice | None = None,
    ) -> None:
        """Nothing is known yet; `way` is how decisions take effect, by default by binding.

        A gang that has waited for room longer than `patience_s` goes before all behind it. With a
        `choice` the core leads, by that scheduler and power policy.
        """
        self.choice = choice
        self.fleet = fleet
        self.volumes = Volumes()
        self.dialogue = CoreDriver()
        self.domains = Domains(budgets_mw or {})
        self._planned_domains = Domains({})
        """Where a core leads: what it is told, with nothing saved by caps of the moment."""
        self.name = name
        self.way = way or ByBinding(name)
        self.nodes_of = DomainNodes(fleet, self.domains)
        self.chooser = Chooser(fleet, self.domains, counts_missing=self.way.moves)
        self._patience_s = patience_s
        self._pods: dict[str, Pod] = {}
        self.groups: dict[GroupId, PodGroup] = {}
        self.queues = QueueState()
        self.ladders: dict[str, Ladder] = {}
        """Labels of levels by the name of their Topology object."""
        self.curb = BudgetEnforcer(self.chooser, self._pods, self.way.is_ours, self.groups)
        self.curb.is_ending = self._is_ending
        self.curb.is_undeclared = self.way.is_undeclared
        self._eligible = Eligible(fleet, self.volumes, self._pods)
        self.diagnosis = Diagnosis(self.chooser, self._eligible)
        self._reasons = Reasons(self.diagnosis, self.groups)
        self._queueing = Queueing(self.way, self._pods, self.groups, self.volumes)
        self._wishes = TopologyWishes(self.way.together, self.groups, self.ladders)
        self._topology = self._places_on(fleet)
        self._book = WorkloadIndex(self.way, fleet, self._pods, self.groups, self._wishes.of)
        self._book.keeps_jobs = choice is not None
        self._closed: Mapping[str, str] = {}
        """By node that takes no pods under caps: why."""
        self._rest = RestProof(fleet, self._is_under_a_budget)
        self._caps = CoreCaps(self._book.works, fleet, self._pods, self._is_capped)
        self._planner: CorePlanner | None = None
        self._gang: Gang | None = None
        self._core_of: Placer | None = None
        self._world: CoreWorld | None = None
        self._seen_version = -1
        self._budgets_told: dict[str, int] = {}
        self._fresh = True
        """Whether the core has heard nothing yet."""
        self._leaving = Evictions(fleet, self._pods)
        self._departures = Departures(self._pods)
        self._progress = ProgressReports()
        self.learned = LearnedSpeeds()
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
            places=CorePlaces(self.chooser, self._open_to, keeps_budgets=choice is None),
            caps=None if choice is None else self._caps,
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
        self.fleet.node_seen(self._judged(self.domains.fed(node_facts(node))))
        changed = self.fleet.version != before
        self._dirty |= changed
        self._freed |= changed
        self._watts_moved |= changed
        self._strike_all(self.unfenced.node_seen(node))
        for pod in self.unfenced.ghosts(node):
            self.pod_seen(pod, 0.0)
        self._strike_all(self._rest.node_seen(node))
        self._dirty |= self._caps.node_seen(node)

    def _judged(self, facts: NodeFacts) -> NodeFacts:
        return replace(facts, problem=facts.problem or self._closed.get(facts.name, ""))

    def _close(self, at_s: float) -> None:
        """Nothing more goes to nodes where nobody would hold a cap; others are open again."""
        self._strike_all(self._rest.late(at_s))
        before = self._closed
        self._closed = dict.fromkeys(self._rest.unproven(), NOT_AT_REST)
        self._closed |= dict.fromkeys(self._caps.silent(at_s), SETS_NO_CAPS)
        for name in sorted((before.keys() | self._closed.keys()) & self.fleet.nodes.keys()):
            if before.get(name) == self._closed.get(name):
                continue
            facts = self.fleet.nodes[name]
            if facts.problem == before.get(name):
                facts = replace(facts, problem="")
            self.fleet.node_seen(self._judged(facts))
            self._freed = True

    def _is_under_a_budget(self, node: str) -> bool:
        """Whether the core shares out watts that this node may draw."""
        facts = self.fleet.nodes.get(node)
        if self.choice is None or facts is None:
            return False
        budgets_mw = self.domains.budgets_mw
        return any(name in budgets_mw for name in self.domains.tree.path(facts.domain))

    def node_gone(self, name: str) -> None:
        """A node was deleted; its pods draw until they are gone, too.

        A gang that was just being bound there starts anew elsewhere; who ran is left to its owner.
        """
        works = (self._book.of(one.uid) for one in self.fleet.held_on(name))
        for work in {one.id: one for one in works if one is not None}.values():
            if len(work.members) > 1 and self._fulfilment.is_starting(work):
                why = f"node {name} was deleted while its gang was being bound"
                self._fulfilment.undo(work, why)
        self.fleet.node_gone(name)
        self._dirty = self._watts_moved = True
        self._strike_all(self.unfenced.node_gone(name))
        self._strike_all(self._rest.node_gone(name))
        self._caps.node_gone(name)

    def pod_seen(self, pod: Pod, at_s: float) -> None:
        """A pod is there, or changed; one that ended is as one that is gone."""
        uid = pod.metadata.uid
        if pod.status.phase in OVER:
            if pod.status.phase == "Succeeded":
                self._book.ended_well(uid)
            self.pod_gone(uid)
            return
        if self.choice is not None:
            self._progress.saw(pod)
        known = self._pods.get(uid)
        self._pods[uid] = pod
        self._eligible.note(pod)
        self._caps.saw(uid)
        self._departures.saw(pod, at_s)
        seat = self.way.seat(pod)
        reserved = self.fleet.is_reserved(uid, seat)
        seated = bool(seat) and self._seats.take(pod, at_s)
        if known is None or seated or not alike(known, pod):
            self._queueing.note(pod)
            self._dirty = True
            self._watts_moved |= bool(seat) and not reserved
            self._freed |= bool(seat and self._eligible.wishful)

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted; on a node that is silent it may run on.

        Its GPUs may be at a cap that others are not to start at.
        """
        held = self.fleet.holdings.get(uid)
        if (
            held is not None
            and held.confirmed
            and (self.unfenced.keeps(uid, held.node) or self._rest.keeps(uid, held.node))
        ):
            return
        self._strike(uid)

    def _strike_all(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._strike(uid)

    def _strike(self, uid: str) -> None:
        self.curb.stopping.forget(uid)
        held = self.fleet.holdings.get(uid)
        if held is not None:
            self._freed = True
            self._rest.left(held.node)
        self._watts_moved |= self._freed
        self._pods.pop(uid, None)
        self._eligible.drop(uid)
        self._wishes.drop(uid)
        self._departures.gone(uid)
        self._progress.gone(uid)
        self._caps.saw(uid)
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

    def groups_are_unread(self, kind: GroupKind, are: bool) -> None:  # noqa: FBT001
        """What says how large groups of this kind are may not be read: those not known wait."""
        self._queueing.bar(kind, unread=are)
        self._dirty = True

    def group_seen(self, group_id: GroupId, group: PodGroup) -> None:
        """A group is there, or changed."""
        self.groups[group_id] = group
        self._stir_group(group_id)

    def group_gone(self, group_id: GroupId) -> None:
        """A group was deleted; what of it runs stays."""
        self.groups.pop(group_id, None)
        self._reasons.forget(group_id)
        self._stir_group(group_id)

    def _stir_group(self, group_id: GroupId) -> None:
        self._wishes.forget()
        self._queueing.stir_group(group_id)
        self._dirty = True

    def topology_seen(self, name: str, ladder: Ladder | None) -> None:
        """A Topology object has these levels, the widest first; None: it is gone."""
        self.ladders.pop(name, None)
        if ladder:
            self.ladders[name] = ladder
        self._wishes.forget()
        self._dirty = self._freed = True

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
            self.domains.tree, self._seen_version = tree, -1
            self.fleet.feed(self.domains.fed)
        self.domains.budgets_mw = dict(budgets_mw)
        self._rest.budgets_changed()
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
        if self._departures.are_late(at_s):
            self._dirty = self._freed = True
        late = self._fulfilment.is_late(at_s) or self._caps.is_late(at_s)
        late = late or self._rest.is_late(at_s) or self.dialogue.is_answered
        late = late or self._progress.are_due(at_s)
        if not (self._dirty or awake or late):
            return []
        self._dirty = False
        self._close(at_s)
        for uid in self._seats.call_in(self._pods, at_s):
            self._queueing.stir(uid)
        self.fleet.tidy(len(self._pods))
        placer = self.fleet.placer
        if placer is None:
            self._queueing.look(self.fleet.holdings, self._leaving.uids)
            return []  # all are looked at anew once there is a node
        core = self._core_for(placer, at_s)
        # What was reserved was weighed then: to look at all who run costs more than a decision.
        stops = self.curb_orders(at_s) if self._watts_moved or self.curb.at_work else []
        planner = self._planner
        everybody = planner is None or planner.changed or self._freed
        cuts, raises = self._told_to_core(at_s)
        self._dirty = self._freed = False
        news = self._queueing.look(self.fleet.holdings, self._leaving.uids)
        # Who goes is told first, so that a cut stops nobody for watts that come back anyway; then
        # cuts, so that nobody starts on what is free, or given by another budget, but taken away.
        events = self._departures.events(core, self._book, at_s) + cuts
        events += self._book.differences(core, news, self._seats.moved(), at_s) + raises
        self.dialogue.credits.update(self._book.credit(events))
        events += self._progress.events(core, self._book, at_s) + self.dialogue.answers(at_s)
        events += self._caps.heard(at_s)  # after runs that ended: so watts come back in turn
        if planner is not self._planner:
            everybody = True
        made = self._seat_first(core, events, at_s)
        if everybody:
            events.append(Woke(at_s=at_s, key=WAKE))
        made += self._fulfilment.of(events, at_s)
        made += self._caps.lift_left_over(at_s)
        seating = None if self._planner is None else self._planner.seating
        again = seating is not None and seating.look_again()
        self._dirty |= seating is not None and bool(seating.stale)
        self._dirty |= self._fulfilment.evicts
        self._fulfilment.evicts = False
        orders = stops + self._leaving.orders() + made
        told = self._queueing.waiting if everybody or again else news.waiting
        return orders + self._reasons.tell(told, self.fleet.holdings, self._why)

    def _seat_first(self, core: Core, events: list[Event], at_s: float) -> list[Order]:
        """Who is on a node draws, whatever the budgets are: a new core hears of budgets later.

        It then brings them to fit: by caps, else it stops the least important. Before that it
        hears who is on the way out, so that nobody is stopped for watts that come back anyway.
        """
        planner, fresh, self._fresh = self._planner, self._fresh, False
        if planner is None or not fresh or self.choice is None:
            return []
        works = self._book.works
        facts: list[Event] = [
            one for one in events if isinstance(one, JobSubmitted) and works[one.job.id].seated
        ]
        if not facts:
            return []
        events[:] = [one for one in events if one not in facts]
        planner.only_seats = True
        made = self._fulfilment.of([*facts, Woke(at_s=at_s, key=WAKE)], at_s)
        made += self._fulfilment.of(self._departures.events(core, self._book, at_s), at_s)
        planner.only_seats = False
        return made

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
        keep = self.curb.orders if self.choice is None else self.curb.backstop
        again = [] if self.choice is None else self._caps.again(at_s)
        for one in (*keep(at_s), *again):
            if isinstance(one, StopPods) and one.owner is None:
                self.not_suspended(one.uids, one.why)
            else:
                orders.append(one)
        changed, self.curb.changed = self.curb.changed, False
        self._dirty, self._freed = self._dirty or changed, self._freed or changed
        return orders

    def _is_ending(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._leaving.uids or self.ends_elsewhere(pod)

    def stops_of(self, evictions: Sequence[EvictPod]) -> list[StopRun]:
        """How these pods, which are to go, are stopped: with their jobs, or each alone."""
        return stops_of(evictions, self._pods, self._leaving.uids)

    def not_suspended(self, uids: Iterable[str], why: str) -> None:
        """Nothing owns these pods that could be suspended: they are evicted."""
        there = [uid for uid in uids if uid in self.fleet.holdings]
        self.curb.stopping.evict(there)
        for uid in there:
            self._leaving.refused(uid)  # where they were told before, they are told again
        self._leaving.add(there, why)
        self._dirty = True

    def _allowed(self, member: WorkloadPod) -> Mask:
        """Nodes that a member may go to: those that suit it, of its queue's power domain."""
        return self._allowed_beside(member, ())

    def _allowed_beside(self, member: WorkloadPod, beside: Sequence[Neighbour]) -> Mask:
        return self._in_domain(member, self._eligible.mask(member.pod, beside))

    def _lasting(self, member: WorkloadPod) -> Mask:
        """Nodes that a member may go to, whoever is there."""
        return self._in_domain(member, self._eligible.lasting(member.pod))

    def _in_domain(self, member: WorkloadPod, suits: Mask) -> Mask:
        domain = self.queues.domains.get(queue_of(member.pod))
        return suits if domain is None else suits & self.domains.inside(domain, self.fleet.order)

    def _open_to(self, member: WorkloadPod, beside: Sequence[Neighbour] = ()) -> Mask:
        """Nodes that take a member now, as far as devices, processors and memory will do."""
        mask = self._allowed_beside(member, beside) & self.fleet.open_for(member.ask)
        giving = [rows for _, rows in self.fleet.requests(member.ask)]
        return mask & np.logical_or.reduce(giving) if giving else np.zeros_like(mask)

    def _places_on(self, fleet: NodeFleet) -> TopologyPlaces:
        return TopologyPlaces(fleet, self._wishes.of, lambda one: self._queueing.mates(one.uid))

    def _gang_masks(self, work: Workload) -> Sequence[Mask | None]:
        """For each member the nodes that it may go to if the others go where they may."""
        if len(work.members) == 1 and not self._queueing.mates(work.members[0].uid):
            return ()
        places = self._topology.masks(work.members, self._open_to)
        near = {one.uid: place for one, place in zip(work.members, places, strict=True)}

        def open_to(member: WorkloadPod, beside: Sequence[Neighbour] = ()) -> Mask:
            """While others are taken to be on their nodes."""
            within = near[member.uid]
            mask = self._open_to(member, beside)
            return mask if within is None else mask & within

        each = len(work.spec.roles) == len(work.members) > 1
        if each and any(has_wishes(one.pod) for one in work.members):
            return apart(work.members, open_to, self.fleet)
        if all(one is None for one in near.values()):
            return ()
        return [open_to(one) for one in work.members]

    def _gang_lasting(self, work: Workload) -> Sequence[Mask | None]:
        """The same, whoever is there."""
        could = self._topology.could(work.members, self._lasting)
        if all(one is None for one in could):
            return ()
        return [
            self._lasting(member) if within is None else self._lasting(member) & within
            for member, within in zip(work.members, could, strict=True)
        ]

    def queues_seen(self, state: QueueState) -> None:
        """These queues are in force from now on; what runs stays."""
        self.queues = state
        if self._gang is not None:
            self._gang.queues = state.rules()
        self._seen_version = -1
        self._dirty = self._freed = True

    def pending(self) -> Counter[tuple[str, str]]:
        """Pods that wait, by the first word of why, and their queue."""
        found: Counter[tuple[str, str]] = Counter()
        for one in self._queueing.waiting:
            for member in one.members:
                if member.uid not in self.fleet.holdings:
                    reason = self._reasons.told(member.uid).partition(":")[0]
                    found[reason, queue_of(member.pod)] += 1
        return found

    def queue_figures(self) -> QueueFigures:
        """Who waits and runs of each queue."""
        waiting = self._queueing.waiting
        return figures(self.queues, waiting, self.fleet, self._pods, self.way.is_ours)

    def _core_for(self, placer: Placer, at_s: float) -> Core:
        """The core of the cluster as it is; a new one where it is another cluster."""
        core = self.core
        if self.choice is None:
            same = self._core_of is placer
            return core if core is not None and same else self._begin(placer, None, at_s)
        if self._seen_version == self.fleet.version and self._core_of is placer and core:
            return core
        world = core_world(self.fleet.order, self.domains.tree, self.queues.tree)
        if core is None or world != self._world:
            core = self._begin(placer, world, at_s)
        elif not self.choice.keeps_books:  # masks are others than before
            if self._gang is None:  # which remembers no mask
                core.go_on_by(core.config, anew=True)
            if self._planner is not None:
                self._planner.changed = True
        self._core_of, self._seen_version = placer, self.fleet.version
        return core

    def _begin(self, placer: Placer, world: CoreWorld | None, at_s: float) -> Core:
        """A core that knows nothing yet: it will be told all that is."""
        self._book.clear(self.core, at_s)
        self._departures.forget_told()
        self._queueing.stir_all()
        core = Core(self._config(world))
        core.now_s = at_s
        self.learned.go_on_in(core)
        self._core_of, self._world = placer, world
        self._budgets_told, self._fresh = {}, True
        self._caps.forget_all()
        self.dialogue.begin(core)
        return core

    def _config(self, world: CoreWorld | None) -> CoreConfig:
        self._gang = None
        ours = self._job_is_ours
        if self.choice is None or world is None:
            planner = self._gang_planner(self.domains, {})
            return core_config(self.fleet.order, planner, planner.eligible)
        if self.choice.build is None:
            caps_w = planned_caps_w(world.floors_w, self.choice.curve_of)
            planner, quota = self._gang_planner(self._planned_domains, caps_w), None
        else:
            scheduler, quota = self.choice.build(world.cluster, world.queues, self.queues.lately)
            planner = self._planner = self._core_planner(scheduler, None)
        return chosen_core(
            world,
            self.choice,
            planner,
            quota,
            planner.eligible,
            ours,
            self._book.returns,
            self._book.came_s,
            self._book.is_there,
        )

    def _gang_planner(self, domains: Domains, caps_w: Mapping[str, float]) -> CorePlanner:
        seating = self._seating(domains, caps_w)
        self._gang = Gang(seats=seating.at, patience_s=self._patience_s, queues=self.queues.rules())
        made = self._planner = self._core_planner(self._gang, seating)
        return made

    def _core_planner(self, scheduler: Planner, seating: Seating | None) -> CorePlanner:
        """With `seating` the guard need not ask who is on nodes now: the plan knows who will be."""
        found = self._lasting, self._gang_lasting
        if seating is None:
            found = self._open_to, self._gang_masks
        masks = WorkloadEligibility(self._book.works, *found, self._eligible.kind)
        return CorePlanner(
            scheduler,
            self._book.works,
            self._is_to_plan,
            masks,
            self.diagnosis,
            self._allowed,
            seating,
            self._runs_on,
        )

    def _seating(self, domains: Domains, caps_w: Mapping[str, float]) -> Seating:
        """On an account of its own, within the budgets of `domains`.

        GPUs of models in `caps_w` can be brought down to so many watts.
        """
        planned = PlannedFleet(self.fleet)
        eligible = self._eligible.beside(planned.fleet)
        chooser = Chooser(planned.fleet, domains, counts_missing=self.way.moves, caps_w=caps_w)

        def allowed(member: WorkloadPod) -> Mask:
            return self._in_domain(member, eligible.mask(member.pod))

        return Seating(
            self._book.works,
            planned,
            chooser,
            allowed,
            self.way.confined,
            self._places_on(planned.fleet),
            lambda one: eligible.preferred(one.pod),
            Diagnosis(chooser, eligible),
        )

    def _told_to_core(self, at_s: float) -> tuple[list[Event], list[Event]]:
        """Budgets that were cut; those that rose, and places that may be tried anew."""
        cuts, raises = list[Event](), list[Event]()
        refused, self._fulfilment.refused = self._fulfilment.refused, []
        raises += [JobReleased(at_s=at_s, job_id=job_id) for job_id in refused]
        if self.choice is None:
            return cuts, raises
        given_mw, before_mw = self._budgets_to_tell(), self._budgets_told
        now_mw = budgets_of_core(given_mw, () if self._world is None else self._world.common)
        for name in sorted(now_mw.keys() | before_mw.keys()):
            mw, was_mw = now_mw.get(name), before_mw.get(name)
            if mw != was_mw:
                watts = None if mw is None else mw / 1000
                is_cut = mw is not None and (was_mw is None or mw < was_mw)
                changed = BudgetChanged(at_s=at_s, budget_w=watts, domain=name)
                (cuts if is_cut else raises).append(changed)
        self._budgets_told = now_mw
        self._planned_domains.budgets_mw = given_mw
        self._planned_domains.tree = self.domains.tree
        return cuts, raises

    def _budgets_to_tell(self) -> dict[str, int]:
        """Budgets less the watts of pods on nodes that the core could not seat."""
        left = dict(self.domains.budgets_mw)
        unseated = () if self._planner is None else self._planner.unseated
        columns = self.chooser.columns() if unseated else None
        for work in (self._book.works[one] for one in unseated if one in self._book.works):
            for seat in (seat for uid in work.uids for seat in self.fleet.seats(uid)):
                if columns is None or not seat.gpus:
                    continue
                mw = len(seat.gpus) * int(columns.rise_mw[seat.node])
                for name in self.domains.tree.path(self.fleet.order[seat.node].domain):
                    if name in left:
                        left[name] = max(0, left[name] - mw)
        return left

    def _is_to_plan(self, work: Workload) -> bool:
        """Whether a work that has its place is ours to move, and not on its way out already."""
        return all(
            self.way.is_ours(pod := self._pods.get(member.uid, member.pod))
            and pod.metadata.deletion_timestamp is None
            and member.uid not in self._leaving.uids
            for member in work.members
        )

    def _runs_on(self, job_id: str) -> bool:
        """Whether a job that runs would be lost by a better plan."""
        return self.choice is not None and self.choice.improves and not self._book.returns(job_id)

    def _job_is_ours(self, job_id: str) -> bool:
        work = self._book.works.get(job_id)
        return work is None or all(self.way.is_ours(member.pod) for member in work.members)

    def _is_capped(self, work: Workload) -> bool:
        """Whether agents hold caps on all GPUs of a work."""
        floors_w = {} if self._world is None else self._world.floors_w
        seats = [seat for uid in work.uids for seat in self.fleet.seats(uid) if seat.gpus]
        return (
            bool(seats)
            and all(seat.request.gpu_milli == WHOLE_GPU_MILLI for seat in seats)
            and {self.fleet.order[seat.node].spec.gpu_model for seat in seats} <= floors_w.keys()
            and self._job_is_ours(work.id)
        )

    # Saying why -----------------------------------------------------------------------------------

    def _why(self, member: WorkloadPod) -> PodFinding | None:
        """Of a pod that waits: what the planner found, else what the core says."""
        job_id, planner = self._book.id_of(member.uid), self._planner
        job = self.core.jobs.get(job_id) if self.core is not None else None
        found = self._book.rejected.get(job_id)
        if found is not None or planner is None or job is None:
            return found
        reason = job.reason
        if job.wanted:
            return self._comes_later(job.wanted)
        if job.state is State.HELD:
            return self.diagnosis.of(member)
        if reason is not None and reason.code is ReasonCode.WAITING_FOR_TURN and self._gang:
            kept = self._gang.kept
            if kept is not None and kept.id != job_id and kept.id in self._book.works:
                return _behind(self._book.works[kept.id])
        return planner.finding(member, job_id) or (None if reason is None else finding_of(reason))

    def _comes_later(self, wanted: Iterable[Allocation]) -> PodFinding:
        """Of a pod that has its place in the plan: what is there still."""
        going = [
            uid
            for one in wanted
            for held in self.fleet.held_on(self.fleet.order[one.node].name)
            if (uid := held.uid) in self._leaving.uids or self._departures.goes(uid)
        ]
        return place_is_kept(len(set(going)), self._caps.under_way)


def _behind(first: Workload) -> PodFinding:
    key = first.members[0].key
    facts = f"the gang of {key} ({len(first.members)} pods) came first and has waited for long"
    unblocks = "wait until it has started, or give the pod a higher priority"
    return PodFinding(str(ReasonCode.WAITING_FOR_TURN), facts, unblocks)
