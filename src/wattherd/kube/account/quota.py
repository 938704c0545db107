"""What the pods of each queue hold, for those who place one pod at a time and stop nobody; pure.

Maxima and user limits hold; who goes first is for others to say, and what was borrowed comes back
as pods end. The arithmetic is that of the scheduler (`limits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wattherd.kube.account.domains import Domains
from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.queue_plan import DEFAULT, USER_WORD, QueueState
from wattherd.kube.facts.refusal import NodeRefusal, RefusalToken
from wattherd.kube.facts.workload import WorkloadPod, queue_of, work_of
from wattherd.model.reason import Reason
from wattherd.policy.queue.capacity import NOTHING, Usage
from wattherd.policy.queue.limits import QueueLimits

OUTSIDE = NodeRefusal(RefusalToken.AFFINITY, "not in the power domain of the pod's queue")
"""Of nodes that the queue keeps its pods from."""


@dataclass(frozen=True, slots=True)
class _Held:
    """By a pod: so many GPUs, of the queue that it names, for its namespace."""

    queue: str
    user: str
    gpus: int


@dataclass(slots=True)
class QueueQuota:
    """Of the queues in `state`, on the account of the cluster."""

    fleet: NodeFleet
    domains: Domains
    state: QueueState = field(default_factory=QueueState)
    _held: dict[str, _Held] = field(default_factory=dict)
    _usage: Usage = field(default_factory=Usage)
    _total: tuple[int, int] = (-1, 0)
    """GPUs of the cluster, as of a version of its account."""

    def queues_seen(self, state: QueueState) -> None:
        """These are in force from now on; what runs stays, and counts."""
        self.state, self._usage = state, Usage()
        for held in self._held.values():
            self._book(held, 1)

    def takes(self, pod: Pod, ask: PodRequest) -> None:
        """A pod has its place."""
        uid = pod.metadata.uid
        self.gives(uid)
        gpus = _gpus(ask)
        if gpus:
            self._held[uid] = held = _Held(queue_of(pod), pod.metadata.namespace, gpus)
            self._book(held, 1)

    def gives(self, uid: str) -> None:
        """A pod has its place no more, if it had one."""
        held = self._held.pop(uid, None)
        if held is not None:
            self._book(held, -1)

    def _book(self, held: _Held, sign: int) -> None:
        """What names no queue that there is, is held in the default queue."""
        tree = self.state.tree
        place = None if tree is None else tree.leaf(held.queue) or tree.leaf(DEFAULT)
        if place is not None:
            self._usage.add(place, held.user, sign * held.gpus, NOTHING)

    def refused(self, pod: Pod, ask: PodRequest) -> Reason | None:
        """Why its queue keeps a pod from starting now, or None."""
        if self.state.tree is None:
            return None
        work = work_of("pod", [WorkloadPod(pod, ask)], [ask.without_gpus()], 0.0)
        tree, word = self.state.tree, USER_WORD
        limits = QueueLimits(tree, self._gpus_there(), self._usage, user_word=word)
        return limits.refused(work.spec, _gpus(ask), 0.0)

    def admits(self, members: Iterable[WorkloadPod]) -> tuple[int, Reason | None]:
        """How many may start now, one after the other, and why the next may not; none is booked."""
        taken: list[str] = []
        try:
            for member in members:
                reason = self.refused(member.pod, member.ask)
                if reason is not None:
                    return len(taken), reason
                self.takes(member.pod, member.ask)
                taken.append(member.uid)
        finally:
            for uid in taken:
                self.gives(uid)
        return len(taken), None

    def within(self, pod: Pod) -> Mask | None:
        """(N,) nodes in the power domain of the pod's queue; None: the queue has no domain."""
        domain = self.state.domains.get(queue_of(pod))
        return None if domain is None else self.domains.inside(domain, self.fleet.order)

    def _gpus_there(self) -> int:
        if self._total[0] != self.fleet.version:
            there = sum(facts.spec.gpu_count for facts in self.fleet.nodes.values())
            self._total = self.fleet.version, there
        return self._total[1]


def quota_of(
    state: QueueState, fleet: NodeFleet, domains: Domains, pods: Mapping[str, Pod]
) -> QueueQuota:
    """As it stands, counted anew; `pods` are those that are known, by uid."""
    found = QueueQuota(fleet, domains, state)
    for uid, held in fleet.holdings.items():
        if uid in pods:
            found.takes(pods[uid], held.ask)
    return found


def _gpus(ask: PodRequest) -> int:
    """A share counts as a GPU."""
    return ask.devices or int(bool(ask.share_milli))
