"""Kueue's workloads within power budgets: for each the answer of our admission check; no I/O.

A workload that has quota stands in the account as the pods that it will have: while the check is
pending they wait like gated pods, all of them together; once it is ready they are as released,
until Kueue takes the quota back or the job is finished. The pods themselves carry the workload's
uid and are not counted again: each stand-in is where its pod is (`pairing`), and capped through it
where a budget is cut. Whom a budget cannot bear is told to try again later (`Retry`), which
makes Kueue put it back into its queue, or end it, and give its quota to others.

The pods of a set are narrowed by one node selector, so that they share a power domain and a model;
where nodes of a domain have no label in common, also the values that it is selected by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from wattherd.kube.account.binding_mode import ChosenPod
from wattherd.kube.account.confinement import ConfinedPods
from wattherd.kube.account.domain_nodes import HOSTNAME, DomainNodes, Needs
from wattherd.kube.account.gates import ByGate, model_of
from wattherd.kube.api import names
from wattherd.kube.api.objects import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    Requirement,
    ResourceRequirements,
    SchedulingGate,
)
from wattherd.kube.decide.scheduler import OVER, KubeScheduler
from wattherd.kube.facts.kueue_objects import CheckState, KueueWorkload, PodSet, PodSetUpdate
from wattherd.kube.facts.kueue_pairing import Pairs, in_place
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.kube.facts.orders import EvictPod, Order, ReleasePod, StopPods, TellPod
from wattherd.kube.facts.workload import WorkloadPod

READY, PENDING, RETRY = "Ready", "Pending", "Retry"
_NO_NODE = "?"


class ByCheck(ByGate):
    """Pods that stand for those that a workload will have."""

    suspends = False
    queued = False

    def __init__(self) -> None:
        """All nodes are one place until `divided` says otherwise."""
        self.confined = ConfinedPods(kin_of, self._place)
        self._nodes_of: DomainNodes | None = None

    def divided(self, nodes_of: DomainNodes) -> None:
        """Domains are told apart by these labels."""
        self._nodes_of = nodes_of

    def waits(self, pod: Pod) -> bool:
        """Real pods with a gate are for others."""
        return _stands_in(pod) and super().waits(pod)

    def is_ours(self, pod: Pod) -> bool:
        """Kueue ends the real ones."""
        return _stands_in(pod)

    def is_undeclared(self, pod: Pod) -> bool:
        """A workload has our answer, or no stand-ins."""
        del pod
        return False

    def _place(self, facts: NodeFacts) -> str:
        """What a node selector can say of a node: labels that are equal to something."""
        nodes_of = self._nodes_of
        divided = nodes_of is not None and not nodes_of.undivided
        domain = nodes_of.needs(facts.domain) if nodes_of is not None and divided else ()
        needs = (*_equalities(domain, facts), *model_of(facts))
        if not all(_is_equality(need) for need in needs):
            return ""
        return ",".join(f"{need.key}={need.values}" for need in needs) or _NO_NODE

    def order(self, chosen: ChosenPod) -> Order:
        """What a node selector can say of the domain, on the node that was chosen."""
        told = _equalities(chosen.needs, chosen.facts)
        return super().order(dataclasses.replace(chosen, needs=told))


def _equalities(needs: Needs, facts: NodeFacts) -> Needs:
    """`needs` as the labels of a node that meet them; its name, where it meets one by lacking it.

    Nodes with the same values are nodes of the domain as well: of one that is selected by several
    values of a label a set of pods gets one.
    """
    found = []
    for need in needs:
        value = facts.labels.get(need.key)
        if _is_equality(need):
            found.append(need)
        elif value is not None:
            found.append(Requirement(key=need.key, operator="In", values=[value]))
        elif HOSTNAME in facts.labels:
            return (Requirement(key=HOSTNAME, operator="In", values=[facts.labels[HOSTNAME]]),)
        else:
            return needs
    return tuple(found)


def _is_equality(need: Requirement) -> bool:
    return need.operator == "In" and len(need.values or ()) == 1


def _stands_in(pod: Pod) -> bool:
    return "/" in pod.metadata.uid


def kin_of(member: WorkloadPod) -> str:
    """The pod set."""
    return member.uid.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What is to be written on a workload."""

    workload: KueueWorkload
    check: str
    state: str
    message: str
    updates: tuple[PodSetUpdate, ...] = ()


@dataclass(slots=True)
class _Entry:
    """A workload that has quota; `seats` are nodes by uid of those that stand for its pods."""

    workload: KueueWorkload
    check: str
    pods: dict[str, Pod]
    seats: dict[str, str] = field(default_factory=dict)
    ready: bool = False
    pairs: Pairs = field(default_factory=Pairs)
    domains: dict[str, str] = field(default_factory=dict)
    """By pod set, where watts are reserved for it."""
    answer: CheckVerdict | None = None
    """What it was told last; news of an earlier answer, or of one to another admission, is old."""

    def released(self, uid: str) -> Pod:
        """A stand-in as its pod is, else where it was meant to be."""
        made = _released(
            self.pods[uid],
            self.seats.get(uid, _NO_NODE),
            self.domains.get(uid.split("/")[1], ""),
        )
        real = self.pairs.real.get(uid)
        return made if real is None or not real.spec.node_name else in_place(made, real)


class KueueCheck:
    """Workloads in the account of `scheduler`, which decides who may start, and where."""

    def __init__(self, scheduler: KubeScheduler) -> None:
        """Its way is `ByCheck`."""
        self.scheduler = scheduler
        if isinstance(scheduler.way, ByCheck):
            scheduler.way.divided(scheduler.nodes_of)
        scheduler.ends_elsewhere = self._is_ending
        self.checks: set[str] = set()
        """Names of the AdmissionChecks that are ours."""
        self._known: dict[str, KueueWorkload] = {}
        self._entries: dict[str, _Entry] = {}
        self._real: dict[str, dict[str, Pod]] = {}
        self._whose: dict[str, str] = {}

    # What was seen --------------------------------------------------------------------------------

    def check_seen(self, name: str, at_s: float, *, ours: bool) -> None:
        """An AdmissionCheck is there, and ours or not (any more)."""
        if ours == (name in self.checks):
            return
        (self.checks.add if ours else self.checks.discard)(name)
        for workload in list(self._known.values()):
            self.workload_seen(workload, at_s)

    def workload_seen(self, workload: KueueWorkload, at_s: float) -> None:
        """A workload is there, or changed."""
        uid = workload.metadata.uid
        self._known[uid] = workload
        check = self._our_check(workload)
        entry = self._entries.get(uid)
        if check is None or check.state in (RETRY, "Rejected"):
            self._leave(uid, at_s)
        elif entry is None or (check.state == READY and not entry.ready):
            self._leave(uid, at_s)
            self._enter(workload, check, at_s)
        else:
            entry.workload = workload

    def workload_gone(self, uid: str, at_s: float) -> None:
        """A workload was deleted."""
        self._known.pop(uid, None)
        self._leave(uid, at_s)

    def pod_seen(self, pod: Pod, at_s: float) -> None:
        """A real pod; one whose workload is in the account is counted there."""
        workload, uid = pod.metadata.annotation(names.WORKLOAD), pod.metadata.uid
        if workload is not None:
            self._whose[uid] = workload
            self._real.setdefault(workload, {})[uid] = pod
            entry = self._entries.get(workload)
            if entry is not None and entry.ready and self._pair(entry, pod, at_s):
                return
        self.scheduler.pod_seen(pod, at_s)

    def _pair(self, entry: _Entry, pod: Pod, at_s: float) -> bool:
        """What its stand-in is from now on; False for one that counts as itself.

        That is what is left of an earlier admission, and whoever comes beyond those admitted.
        """
        uid, over = pod.metadata.uid, pod.status.phase in OVER
        if over:
            self._part(entry, uid, at_s)
        going = pod.metadata.deletion_timestamp is not None
        if over or (going and not entry.pairs.knows(uid)):
            return False
        stand_in = entry.pairs.paired(pod, entry.pods)
        if stand_in is None:
            return False
        self.scheduler.pod_seen(entry.released(stand_in), at_s)
        if uid in self.scheduler.fleet.holdings:
            self.scheduler.pod_gone(uid)
        return True

    def _part(self, entry: _Entry, uid: str, at_s: float) -> None:
        """A real pod draws no more: its stand-in waits for another one."""
        stand_in = entry.pairs.parted(uid)
        if stand_in is None or not entry.ready:
            return
        self.scheduler.pod_seen(entry.released(stand_in), at_s)
        others = self._real.get(entry.workload.metadata.uid, {})
        for pod in others.values():
            if pod.metadata.uid != uid and not entry.pairs.knows(pod.metadata.uid):
                self._pair(entry, pod, at_s)

    def _is_ending(self, pod: Pod) -> bool:
        """Whether Kueue was told to stop the workload of a real pod, or does so by itself."""
        workload = pod.metadata.annotation(names.WORKLOAD)
        if _stands_in(pod) or workload not in self._known:
            return False
        entry = self._entries.get(workload)
        return entry is None or not entry.ready

    def real_of(self, uid: str) -> Pod | None:
        """The pod that a stand-in stands for, if it is there."""
        entry = self._entries.get(uid.partition("/")[0])
        return None if entry is None else entry.pairs.real.get(uid)

    def pod_gone(self, uid: str, at_s: float) -> None:
        """A real pod was deleted."""
        workload = self._whose.pop(uid, "")
        real = self._real.get(workload, {})
        real.pop(uid, None)
        if not real:
            self._real.pop(workload, None)
        entry = self._entries.get(workload)
        if entry is not None:
            self._part(entry, uid, at_s)
        self.scheduler.pod_gone(uid)

    def _our_check(self, workload: KueueWorkload) -> CheckState | None:
        """Of a workload that has quota and is not over: our check."""
        if not workload.holds("QuotaReserved"):
            return None
        if workload.holds("Finished") or workload.holds("Evicted"):
            return None
        states = workload.status.admission_checks or ()
        return next((one for one in states if one.name in self.checks), None)

    def _enter(self, workload: KueueWorkload, check: CheckState, at_s: float) -> None:
        uid = workload.metadata.uid
        pods = {pod.metadata.uid: pod for pod in _pods_of(workload)}
        self._entries[uid] = entry = _Entry(workload, check.name, pods)
        if check.state == READY:
            domains = {
                update.name: (update.annotations or {}).get(names.DOMAIN, "")
                for update in check.pod_set_updates or ()
            }
            self._seat(entry, domains, at_s)
        else:
            for pod in pods.values():
                self.scheduler.pod_seen(pod, at_s)

    def _seat(self, entry: _Entry, domains: dict[str, str], at_s: float) -> None:
        """Its pods count from now on; which nodes they were meant for may be forgotten."""
        entry.ready, entry.domains = True, domains
        for real in self._real.get(entry.workload.metadata.uid, {}).values():
            if self._pair(entry, real, at_s):
                self.scheduler.pod_gone(real.metadata.uid)
        for uid in entry.pods:
            self.scheduler.pod_seen(entry.released(uid), at_s)

    def _leave(self, uid: str, at_s: float) -> None:
        """Its watts are free, but for what its pods still draw."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        for each in entry.pods:
            self.scheduler.pod_gone(each)
        for pod in self._real.get(uid, {}).values():
            self.scheduler.pod_seen(pod, at_s)

    # What to do -----------------------------------------------------------------------------------

    def plan(self, at_s: float) -> list[CheckVerdict]:
        """Answers that follow from all that was seen."""
        return self.verdicts(self.scheduler.plan(at_s))

    def verdicts(self, orders: Iterable[Order]) -> list[CheckVerdict]:
        """One for each workload that any of the orders is about: ready, or to be tried again."""
        released: dict[str, dict[str, ReleasePod]] = {}
        found: dict[str, CheckVerdict] = {}
        for order in orders:
            if isinstance(order, StopPods):
                continue  # stand-ins have no owner: Kueue is told to end them
            uid = order.uid.partition("/")[0]
            entry = self._entries.get(uid)
            if entry is None:
                continue
            match order:
                case ReleasePod():
                    released.setdefault(uid, {})[order.uid] = order
                case EvictPod():
                    found[uid] = CheckVerdict(entry.workload, entry.check, RETRY, order.why)
                case TellPod() if not entry.ready:
                    text = f"{order.reason}: {order.text}"
                    found.setdefault(uid, CheckVerdict(entry.workload, entry.check, RETRY, text))
                case _:
                    pass
        for uid, orders_of in released.items():
            found[uid] = self._ready(self._entries[uid], orders_of)
        for uid, verdict in found.items():
            self._entries[uid].answer = verdict
        return list(found.values())

    def _ready(self, entry: _Entry, orders: dict[str, ReleasePod]) -> CheckVerdict:
        entry.seats = {uid: order.annotations[names.PLANNED_NODE] for uid, order in orders.items()}
        updates = [
            _update(entry.workload, pod_set, orders)
            for pod_set in entry.workload.spec.pod_sets or ()
        ]
        places = sorted({(one.annotations or {}).get(names.DOMAIN, "") for one in updates})
        text = f"watts are reserved in {', '.join(one or 'the site' for one in places)}"
        return CheckVerdict(entry.workload, entry.check, READY, text, tuple(updates))

    def written(self, verdict: CheckVerdict, at_s: float) -> None:
        """The API server took it."""
        uid = verdict.workload.metadata.uid
        entry = self._entries.get(uid)
        if entry is None or entry.answer is not verdict:
            return
        if verdict.state == READY:
            domains = {
                one.name: (one.annotations or {}).get(names.DOMAIN, "") for one in verdict.updates
            }
            self._seat(entry, domains, at_s)
        else:
            self._leave(uid, at_s)

    def not_written(self, verdict: CheckVerdict, at_s: float) -> None:
        """It did not, and will not: what is known of the workload is gone through again."""
        uid = verdict.workload.metadata.uid
        entry, known = self._entries.get(uid), self._known.get(uid)
        if entry is None or entry.answer is not verdict:
            return
        self._leave(uid, at_s)
        if known is not None:
            self.workload_seen(known, at_s)


def _pods_of(workload: KueueWorkload) -> list[Pod]:
    """Pods that stand for those to come, as a gang that waits."""
    admission = workload.status.admission
    assigned = (admission.pod_set_assignments or ()) if admission is not None else ()
    counts = {one.name: one.count for one in assigned if one.count is not None}
    sets = [(one, counts.get(one.name, one.count)) for one in workload.spec.pod_sets or ()]
    total = sum(count for _, count in sets)
    return [_pod(workload, one, number, total) for one, count in sets for number in range(count)]


def _pod(workload: KueueWorkload, pod_set: PodSet, number: int, total: int) -> Pod:
    meta, given = workload.metadata, pod_set.template.metadata
    labels = {key: value for key, value in (given.labels or {}).items() if key == names.QUEUE}
    about = ObjectMeta(
        name=f"{meta.name}-{pod_set.name}-{number}",
        namespace=meta.namespace,
        uid=f"{meta.uid}/{pod_set.name}/{number}",
        creation_timestamp=meta.creation_timestamp,
        labels=labels | {names.KUEUE_GROUP: meta.name},
        annotations=(given.annotations or {}) | {names.KUEUE_GROUP_COUNT: str(total)},
    )
    spec = pod_set.template.spec
    return Pod(metadata=about, spec=_waiting(spec, workload.spec.priority))


def _waiting(spec: PodSpec, priority: int | None) -> PodSpec:
    """The part of it that decisions are made by, gated."""
    return PodSpec(
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        priority=priority,
        preemption_policy="Never",  # who makes way for whom is Kueue's to say
        containers=_defaulted(spec.containers),
        init_containers=_defaulted(spec.init_containers),
        resources=spec.resources,
        overhead=spec.overhead,
        scheduling_gates=[SchedulingGate(name=names.GATE)],
        termination_grace_period_seconds=spec.termination_grace_period_seconds,
    )


def _defaulted(containers: list[Container] | None) -> list[Container] | None:
    """Limits are requests where none are stated: the API server says so on pods, not templates."""
    if containers is None:
        return None
    return [replace(one, resources=_with_limits(one.resources)) for one in containers]


def _with_limits(given: ResourceRequirements | None) -> ResourceRequirements | None:
    if given is None or not given.limits:
        return given
    return replace(given, requests={**given.limits, **(given.requests or {})})


def _released(pod: Pod, seat: str, domain: str) -> Pod:
    meta, spec = pod.metadata, pod.spec
    written = {names.PLANNED_NODE: seat} | ({names.DOMAIN: domain} if domain else {})
    about = replace(meta, annotations=(meta.annotations or {}) | written)
    free = replace(spec, scheduling_gates=None, preemption_policy=None)
    return Pod(metadata=about, spec=free)


def _update(
    workload: KueueWorkload, pod_set: PodSet, orders: dict[str, ReleasePod]
) -> PodSetUpdate:
    """Where the pods of a set are to go, in labels; what they ask for already is not said again."""
    uid = f"{workload.metadata.uid}/{pod_set.name}/0"
    order = orders.get(uid)
    written = {names.WORKLOAD: workload.metadata.uid}
    selector: dict[str, str] = {}
    if order is not None:
        domain = order.annotations.get(names.DOMAIN)
        written |= {names.DOMAIN: domain} if domain else {}
        asked = pod_set.template.spec.node_selector or {}
        selector = {
            need.key: need.values[0]
            for need in order.needs
            if _is_equality(need) and need.values and need.key not in asked
        }
    return PodSetUpdate(name=pod_set.name, annotations=written, node_selector=selector or None)
