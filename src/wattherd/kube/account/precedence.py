"""Who goes before all others: the first gang that has waited for room too long.

Whatever becomes free would else go to works that came later and are small, again and again, and a
large gang would never start. So the nodes that it may go to are kept from those behind it, until
it has started. Nobody is stopped for it, and only one gang goes first at a time.

A gang is kept nodes for only where room is what it lacks, and where it would find enough of it if
nobody else were there: one that waits for watts, or for nodes that do not exist, holds up nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.reason import ReasonCode
from wattherd.policy.contract import JobView

PATIENCE_S = 600.0
FOR_ROOM = frozenset({str(ReasonCode.WAITING_FOR_GPUS), str(ReasonCode.FRAGMENTED)})
"""Reasons of those whom room would help."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Nodes (N,) that are kept for `job`, and what those are told who are behind it."""

    job: JobView
    nodes: Mask
    told: PodFinding

    def holds_up(self, other: JobView) -> bool:
        """Whether `other` is behind it."""
        return turn(self.job) < turn(other)


def turn(job: JobView) -> tuple[int, int]:
    """By priority, then in order of coming."""
    return -job.spec.priority, job.number


@dataclass(slots=True)
class Precedence:
    """`allowed` are the nodes (N,) that a member may go to at all; `patience_s` may be infinite."""

    fleet: NodeFleet
    allowed: Callable[[WorkloadPod], Mask]
    patience_s: float = PATIENCE_S
    _now: KeptNodes | None = None
    _at: tuple[str, int] = field(default=("", -1))

    def kept(
        self,
        waiting: Iterable[JobView],
        works: Mapping[str, Workload],
        findings: Mapping[str, PodFinding],
        now_s: float,
    ) -> KeptNodes | None:
        """For the first of those who `wait` that is a gang, out of patience, and may hope."""
        late = (
            job
            for job in waiting
            if len(works[job.id].members) > 1
            and now_s - job.spec.submit_s > self.patience_s
            and job.id in findings
            and findings[job.id].token in FOR_ROOM
        )
        for job in sorted(late, key=turn):
            self._keep(job, works[job.id])
            if self._now is not None:
                return self._now
        self._now = None
        return None

    def _keep(self, job: JobView, work: Workload) -> None:
        if self._at == (at := (job.id, self.fleet.version)):
            return
        masks = {member.ask.key: self.allowed(member) for member in work.members}
        count = Counter(member.ask.key for member in work.members)
        asks = {member.ask.key: member.ask for member in work.members}
        hopes = all(self._holds(asks[key], masks[key]) >= count[key] for key in count)
        nodes = np.logical_or.reduce(list(masks.values()))
        self._now, self._at = KeptNodes(job, nodes, _told(work)) if hopes else None, at

    def _holds(self, ask: PodRequest, among: Mask) -> int:
        """How many such pods there would be room for if nobody were there."""
        total = 0
        for row in np.flatnonzero(among).tolist():
            facts = self.fleet.order[row]
            request = ask.on(facts.offer)
            if request is None or not request.allows(facts.spec.gpu_model):
                continue
            gpus = request.gpu_count * request.gpu_milli
            parts = (
                (1000 * facts.spec.gpu_count, gpus),
                (facts.spec.cpu_milli, request.cpu_milli),
                (facts.spec.memory_mib, request.memory_mib),
            )
            total += min((there // asked for there, asked in parts if asked), default=1)
        return total


def _told(work: Workload) -> PodFinding:
    first = work.members[0].key
    facts = f"the gang of {first} ({len(work.members)} pods) came first and has waited for long"
    unblocks = "wait until it has started, or give the pod a higher priority"
    return PodFinding(str(ReasonCode.WAITING_FOR_TURN), facts, unblocks)
