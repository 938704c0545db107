"""The scheduler extender's decisions: snapshot events in, answers out; no clock, no I/O.

A stock kube-scheduler asks which of its nodes a pod may go to. It tells an extender nothing between
that question and the binding, so the answer is one node, and the room and the watts are reserved
with it: several pods asked about at once never get the same watts (measured: 18 of 10 otherwise).
Asked again, the answer is the same while it holds. A reservation is confirmed by the pod being seen
on its node, and given up when nothing was seen of it for `hold_s`.

Decisions are those of `Placer.choose`, as in the simulator; ties go to the first node by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fencing import Unfenced
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet
from wattherd.kube.account.pending_pods import Waiting
from wattherd.kube.account.quota import OUTSIDE, QueueQuota
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.budget_enforcer import BudgetEnforcer
from wattherd.kube.decide.diagnosis import Diagnosis
from wattherd.kube.decide.feasibility import PodFeasibility
from wattherd.kube.decide.foreign_reasons import ForeignReasons
from wattherd.kube.decide.queue_status import QueueFigures, figures
from wattherd.kube.decide.reasons import finding_of
from wattherd.kube.decide.refusals import Refusals
from wattherd.kube.decide.remedies import Remedies
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.orders import EvictPod, Order, StopPods
from wattherd.kube.facts.pod_groups import GroupId
from wattherd.kube.facts.pod_request import PodRequest, ask_of, ask_of_foreign, gpus_of
from wattherd.kube.facts.queue_plan import QueueState
from wattherd.kube.facts.refusal import NodeRefusal, PodRefused, RefusalToken
from wattherd.kube.facts.workload import WorkloadPod, grace_s

HOLD_S = 60.0
"""A binding is seen within a second; after this long something is wrong and worth a look."""
TOP_SCORE = 10
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class ExtenderVerdict:
    """The one node a pod may go to, or None and why each node (or any: `""`) will not do."""

    node: str | None
    refusals: dict[str, NodeRefusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to bind: `decision` names it for ever, `annotations` go onto the pod with it."""

    decision: str
    annotations: dict[str, str]


class Extender:
    """Answers filter, prioritize and bind for one kube-scheduler profile."""

    def __init__(
        self, fleet: NodeFleet, domains: Domains, *, holder: str = "", hold_s: float = HOLD_S
    ) -> None:
        """`holder` signs the decisions; `hold_s` is how long a reservation lasts unseen."""
        self.fleet = fleet
        self.domains = domains
        self.synced = False
        """Whether nodes and pods were listed once; nothing is decided before."""
        self._holder = holder
        self._hold_s = hold_s
        self._decisions = 0
        self._granted: set[str] = set()
        self._refused: set[str] = set()
        """Pods, by uid, that were refused and not asked about since."""
        self._pods: dict[str, Pod] = {}
        self.unfenced = Unfenced(fleet, self._pods)
        self.chooser = Chooser(fleet, domains)
        self._refusals = Refusals(self.chooser)
        self.groups: dict[GroupId, PodGroup] = {}
        self.onlooker = ForeignReasons(self._asks_us, self._why, self.groups, self._relents)
        self._quota = QueueQuota(fleet, domains)
        self._diagnosis = Diagnosis(self.chooser, Eligible(fleet, Volumes(), {}))
        self._schedulers: set[str] = set()
        """By name: those that ask us."""
        self.curb = BudgetEnforcer(self.chooser, self._pods, self._owns, self.groups)
        self.curb.is_undeclared = lambda pod: not _was_decided(pod)
        self.curb.is_silent = self.unfenced.is_silent

    # What happened --------------------------------------------------------------------------------

    def node_seen(self, node: Node) -> None:
        """A node is there, or changed."""
        self.fleet.node_seen(self.domains.fed(node_facts(node)))
        for uid in self.unfenced.node_seen(node):
            self._strike(uid)
        for pod in self.unfenced.ghosts(node):
            self.pod_seen(pod, 0.0)

    def node_gone(self, name: str) -> None:
        """A node was deleted."""
        self.fleet.node_gone(name)
        for uid in self.unfenced.node_gone(name):
            self._strike(uid)

    def power_seen(self, tree: DomainTree, budgets_mw: Mapping[str, int]) -> None:
        """Domains and budgets as they stand from now on."""
        self.domains.tree, self.domains.budgets_mw = tree, dict(budgets_mw)
        self.fleet.feed(self.domains.fed)

    def queues_seen(self, state: QueueState) -> None:
        """Queues as they stand from now on; their maxima and user limits hold."""
        self._quota.queues_seen(state)

    def queue_figures(self) -> QueueFigures:
        """Who waits and runs of each queue."""
        waiting = [Waiting((member,)) for member in self.onlooker.waiting()]
        return figures(self._quota.state, waiting, self.fleet, self._pods, self._asks_us)

    def pod_seen(self, pod: Pod, at_s: float) -> None:
        """A pod is there, or changed; one that ended gives back what it held.

        A pod that is being deleted holds until it is gone.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        if _was_decided(pod):
            self._schedulers.add(pod.spec.scheduler_name)
        if pod.status.phase in _OVER:
            self.pod_gone(uid)
        elif node:
            self._pods[uid] = pod
            self._seated(pod, at_s)

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted, bound or not; on a node that is silent it may run on."""
        held = self.fleet.holdings.get(uid)
        if held is None or not held.confirmed or not self.unfenced.keeps(uid, held.node):
            self._strike(uid)

    def _strike(self, uid: str) -> None:
        self.curb.stopping.forget(uid)
        self._pods.pop(uid, None)
        self._granted.discard(uid)
        self._refused.discard(uid)
        self._let_go(uid)

    def _let_go(self, uid: str) -> None:
        self._quota.gives(uid)
        self.fleet.let_go(uid)

    def _seated(self, pod: Pod, at_s: float) -> None:
        uid, node, ask = pod.metadata.uid, pod.spec.node_name, ask_of_foreign(pod)
        known = self.fleet.holdings.get(uid)
        if known is not None and (known.node, known.ask) == (node, ask):
            if not known.confirmed:
                self.fleet.confirm(uid, at_s)
                self._granted.discard(uid)
            return
        gpus = gpus_of(pod) if known is None or known.node != node else known.gpus
        self.fleet.hold(
            Holding(
                uid=uid, key=_key(pod), ask=ask, node=node, gpus=gpus, confirmed=True, since_s=at_s
            )
        )
        self._quota.takes(pod, ask)

    def overdue(self, now_s: float) -> list[Holding]:
        """Reservations that nobody was seen to take up: look there, then let go or tell."""
        return [one for one in self.fleet.reserved if now_s - one.since_s > self._hold_s]

    def warm_up(self) -> None:
        """Have what the first question needs made before it comes: it takes half a second."""
        if self.fleet.placer is not None:
            ask = PodRequest(cpu_milli=1, memory_mib=1, whole=1)
            self.chooser.choose(ask, self.fleet.open_for(ask))

    def curb_orders(self, at_s: float) -> list[Order]:
        """What keeps those who run within the budgets; to be asked for now and then."""
        orders: list[Order] = []
        for one in self.curb.orders(at_s):
            if isinstance(one, StopPods) and one.owner is None:
                orders += self.evictions(one.uids, one.why)
            else:
                orders.append(one)
        return orders

    def not_evicted(self, uid: str) -> None:
        """The eviction was refused, by a disruption budget for instance: it is decided anew."""
        self.curb.not_stopped([uid])

    def evictions(self, uids: Collection[str], why: str) -> list[EvictPod]:
        """Orders to evict these pods, as far as they are there."""
        self.curb.stopping.evict(uids)
        there = (self._pods[uid] for uid in uids if uid in self._pods)
        return [EvictPod(pod.metadata.uid, _key(pod), why, grace_s(pod)) for pod in there]

    @property
    def prompt(self) -> bool:
        """Whether an answer is a matter of milliseconds: all that it takes is there, and ours."""
        return self.fleet.prompt

    # Questions ------------------------------------------------------------------------------------

    def filter(self, pod: Pod, node_names: Collection[str], now_s: float) -> ExtenderVerdict:
        """The one node of `node_names` on which `pod` is to run, reserved for it."""
        self._schedulers.add(pod.spec.scheduler_name)
        known = self.fleet.holdings.get(pod.metadata.uid)
        if known is not None and known.node in node_names:
            return ExtenderVerdict(known.node)
        if known is not None and known.confirmed:
            problem = f"the pod is on {known.node} already"
            return ExtenderVerdict(None, {"": NodeRefusal(RefusalToken.INVALID_POD, problem)})
        self._let_go(pod.metadata.uid)
        try:
            ask = ask_of(pod)
        except PodRefused as refused:
            return ExtenderVerdict(None, {"": refused.refusal})
        verdict = self._decide(pod, ask, node_names, now_s)
        (self._refused.discard if verdict.node else self._refused.add)(pod.metadata.uid)
        return verdict

    def _relents(self, uid: str) -> bool:
        """Whether a pod was refused, for which nothing is wanting now; said once for each time."""
        relents = uid in self._refused
        self._refused.discard(uid)
        return relents

    def _decide(
        self, pod: Pod, ask: PodRequest, node_names: Collection[str], now_s: float
    ) -> ExtenderVerdict:
        self.fleet.tidy(len(self.fleet.holdings))
        if self.fleet.placer is None:
            return ExtenderVerdict(
                None, {"": NodeRefusal(RefusalToken.UNKNOWN_NODE, "no node is known yet")}
            )
        beyond = self._quota.refused(pod, ask)
        if beyond is not None:
            found = finding_of(beyond)
            return ExtenderVerdict(None, {"": NodeRefusal(RefusalToken(found.token), found.text)})
        candidates = self.fleet.rows_of(node_names)
        within = self._quota.within(pod)
        among = candidates if within is None else candidates & within
        spot, added = self.chooser.choose(ask, among & self.fleet.open_for(ask))
        if spot is None:
            elsewhere = dict.fromkeys(node_names, OUTSIDE) if within is not None else {}
            return ExtenderVerdict(None, elsewhere | self._refusals.find(ask, node_names, among))
        self._decisions += 1
        self.fleet.hold(
            Holding(
                uid=pod.metadata.uid,
                key=_key(pod),
                ask=ask,
                node=spot.node,
                gpus=spot.allocation.gpus,
                since_s=now_s,
                watts_mw=added,
                decision=f"{self._holder}/{self._decisions}",
            )
        )
        self._quota.takes(pod, ask)
        return ExtenderVerdict(spot.node)

    def prioritize(self, pod: Pod, node_names: Sequence[str]) -> dict[str, int]:
        """Integer scores from 0 to 10 for all of `node_names`, 10 for the policy's first choice.

        The next nine choices get 9 to 1; nodes that are not known, have no room or no watts get 0.
        """
        scores = dict.fromkeys(node_names, 0)
        known = self.fleet.holdings.get(pod.metadata.uid)
        if known is not None and known.node in scores:
            return scores | {known.node: TOP_SCORE}
        try:
            ask = ask_of(pod)
        except PodRefused:
            return scores
        if self.fleet.placer is None:
            return scores
        among = self.fleet.rows_of(node_names) & self.fleet.open_for(ask)
        for score in range(TOP_SCORE, 0, -1):
            spot, _ = self.chooser.choose(ask, among)
            if spot is None:
                break
            scores[spot.node] = score
            among[spot.allocation.node] = False
        return scores

    def simulate(self, pods: Sequence[Pod]) -> dict[str, Any]:
        """Whether `pods` would start now, and where; nothing is reserved.

        kube-scheduler's own filters are asked as far as they are ours, too: taints, selectors and
        node affinity, not the ports and volumes of others. Queues count as in `filter`.
        """
        remedies = Remedies(self.chooser, self._allowed, {}, self.groups)
        asked = PodFeasibility(self._diagnosis, remedies, Volumes(), self._quota)
        return asked.of(pods, seeks_help=False)

    def _allowed(self, member: WorkloadPod) -> Mask:
        """Nodes (N,) that a pod may go to: those that suit it, of its queue's power domain."""
        suits, within = self._diagnosis.eligible.mask(member.pod), self._quota.within(member.pod)
        return suits if within is None else suits & within

    def _owns(self, pod: Pod) -> bool:
        """Whether it is ours to stop: also one that lost, or never had, its decision."""
        return _was_decided(pod) or self._asks_us(pod)

    def _asks_us(self, pod: Pod) -> bool:
        """Whether its scheduler does."""
        return pod.spec.scheduler_name in self._schedulers

    def _why(self, member: WorkloadPod, behind: int) -> PodFinding:
        """What keeps a pod that kube-scheduler found no node for."""
        beyond = self._quota.refused(member.pod, member.ask)
        if beyond is not None:
            return finding_of(beyond)
        return self._diagnosis.of(member, behind, self._quota.within(member.pod))

    def grant(self, uid: str, node: str, now_s: float) -> Grant | NodeRefusal:
        """What to write when the pod is bound where it was reserved: all that must be remembered.

        A reservation that was given up meanwhile is no ground to bind: the pod is tried again.
        """
        known = self.fleet.holdings.get(uid)
        if known is None or known.node != node:
            text = f"nothing is reserved on {node}; the pod is tried again"
            return NodeRefusal(RefusalToken.NOT_CHOSEN, text)
        if not known.confirmed:
            self.fleet.prolong(uid, now_s)
            self._granted.add(uid)
        written = {names.WATTS: f"{known.watts_mw / 1000:g}"}
        if known.gpus:
            written[names.GPUS] = ",".join(map(str, known.gpus))
        domain = self.fleet.nodes[node].domain
        if domain:
            written[names.DOMAIN] = domain
        return Grant(known.decision, written)

    def term_began(self) -> None:
        """Others may have decided since our last term: only what was begun to be bound is held."""
        waiting = [one.uid for one in self.fleet.reserved if one.uid not in self._granted]
        for uid in waiting:
            self._let_go(uid)

    def unbound(self, uid: str) -> None:
        """The API server would not bind it: what was reserved is free, unless the pod is there."""
        self._granted.discard(uid)
        known = self.fleet.holdings.get(uid)
        if known is not None and not known.confirmed:
            self._let_go(uid)


def _was_decided(pod: Pod) -> bool:
    """Whether an extender of ours put it on its node."""
    return pod.metadata.annotation(names.DECISION) is not None


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
