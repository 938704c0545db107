"""The account of a cluster as a plan would have it: who stays, who is to come, nobody who goes.

A fleet says who is on which node at this moment. A plan is made for a later one: pods that were
told to go are not there any more, pods that wait for their places have them. Nodes are those of the
fleet, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from wattherd.kube.account.core_places import parts_of
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.allocation import Allocation


class PlannedFleet:
    """Of `real`; `fleet` is the account."""

    def __init__(self, real: NodeFleet) -> None:
        """Nobody is planned to be anywhere."""
        self.real = real
        self.fleet = real.emptied()
        self._uids: dict[str, tuple[str, ...]] = {}

    def renew(self) -> None:
        """Nodes may have changed."""
        self.fleet.share_nodes(self.real)

    def stay(self, jobs: Mapping[str, Workload]) -> None:
        """Pods of these jobs are on their nodes, whatever the core makes of it.

        All are let go first, as one may now have what another had. Who finds less on its node than
        it asks for comes last: it would take a device of somebody who is still to be counted.
        """
        there = {job_id: self._there(work) for job_id, work in jobs.items()}
        for job_id in there:
            self._hold(job_id, ())
        short = {name: any(map(self._is_short, found)) for name, found in there.items()}
        for job_id in sorted(there, key=lambda name: short[name]):
            self._hold(job_id, there[job_id])

    def _is_short(self, holding: Holding) -> bool:
        return self.real.is_short(holding.uid)

    def follow(self, job_id: str, work: Workload | None, wanted: Sequence[Allocation]) -> None:
        """The plan gives this to a job now: nothing, or a place for each of its pods."""
        if work is None or not wanted:
            found: list[Holding] = []
        elif work.seated:
            found = self._there(work)
        else:
            order = self.fleet.order
            parts = zip(work.members, parts_of(work, wanted), strict=True)
            found = [_planned(member, order[part.node].name, part) for member, part in parts]
        self._hold(job_id, found)
        if work is not None and not found:
            self._let_go(work.uids)

    def _there(self, work: Workload) -> list[Holding]:
        there = (self.real.holdings.get(uid) for uid in sorted(work.uids))
        return [self._as_seated(one) for one in there if one is not None]

    def _as_seated(self, holding: Holding) -> Holding:
        """On the devices that it counts on in the real account.

        Where nobody said which, this one would choose others than the core was told of, and offer
        those of the core to somebody else.
        """
        gpus = tuple(gpu for seat in self.real.seats(holding.uid) for gpu in seat.gpus)
        return replace(holding, gpus=gpus)

    def _hold(self, job_id: str, found: Sequence[Holding]) -> None:
        uids = tuple(one.uid for one in found)
        self._let_go(set(self._uids.pop(job_id, ())) - set(uids))
        known = self.fleet.holdings
        for one in found:
            before = known.get(one.uid)
            if before is None or (before.node, before.gpus) != (one.node, one.gpus):
                self.fleet.hold(one)
        if uids:
            self._uids[job_id] = uids

    def _let_go(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.fleet.let_go(uid)


def _planned(member: WorkloadPod, node: str, part: Allocation) -> Holding:
    return Holding(uid=member.uid, key=member.key, ask=member.ask, node=node, gpus=part.gpus)
