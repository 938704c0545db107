"""Places that a core gave to pods, taken on the account of the cluster: all of a work, or none.

The core plans by what it was told; the account may know better by the time an order is carried out.
So every place is looked at once more: the node takes the pod (ports, neighbours, resources that the
core does not count), and the very GPUs are free. What does not hold is no error: the job waits
again, and the next plan sees why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattherd.engine.placement.state import ClusterState
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domains import added_mw
from wattherd.kube.account.fleet import Holding, Mask, NodeFleet
from wattherd.kube.facts.workload import Workload, WorkloadPod
from wattherd.model.allocation import Allocation


@dataclass(frozen=True, slots=True)
class CorePlaces:
    """On the account of `chooser`; `open_to` are the nodes (N,) that take a pod now.

    Where no core keeps the budgets, each place is within those of the account.
    """

    chooser: Chooser
    open_to: Callable[[WorkloadPod], Mask]
    keeps_budgets: bool = False

    @property
    def _fleet(self) -> NodeFleet:
        return self.chooser.fleet

    def take(self, work: Workload, allocations: Sequence[Allocation], at_s: float) -> bool:
        """Hold the places of all pods of a work, or of none."""
        held: list[str] = []
        for member, part in zip(work.members, parts_of(work, allocations), strict=True):
            holding = self._holding(member, part, at_s)
            if holding is None:
                for uid in held:
                    self._fleet.let_go(uid)
                return False
            self._fleet.hold(holding)
            held.append(member.uid)
        return True

    def _holding(self, member: WorkloadPod, part: Allocation, at_s: float) -> Holding | None:
        fleet, placer = self._fleet, self._fleet.placer
        if placer is None or not self.open_to(member)[part.node]:
            return None
        facts = fleet.order[part.node]
        request = member.ask.on(facts.offer)
        if request is None or not request.allows(facts.spec.gpu_model):
            return None
        if not _is_free(placer.state, part, request.cpu_milli, request.memory_mib):
            return None
        added = added_mw(self.chooser.columns(), placer.state, part)
        limited = self.keeps_budgets and added and self.chooser.domains.budgets_mw
        if limited and added > self.chooser.room_mw(placer.state)[part.node]:
            return None
        return Holding(
            uid=member.uid,
            key=member.key,
            ask=member.ask,
            node=facts.name,
            gpus=part.gpus,
            since_s=at_s,
            watts_mw=added,
        )


def _is_free(state: ClusterState, part: Allocation, cpu_milli: int, memory_mib: int) -> bool:
    nodes, milli = state.world.nodes, part.request.gpu_milli
    free = nodes.gpu_free[part.node]
    return (
        cpu_milli <= int(nodes.cpu_free[part.node])
        and memory_mib <= int(nodes.memory_free[part.node])
        and all(int(free[gpu]) >= milli for gpu in part.gpus)
    )


def parts_of(work: Workload, allocations: Sequence[Allocation]) -> list[Allocation]:
    """What each member gets of what its role got, in the order of members."""
    by_role: list[list[Allocation]] = [[] for _ in work.spec.roles]
    for one in allocations:
        each = work.spec.roles[one.role].gpu_count
        by_role[one.role] += [
            Allocation(one.request, one.node, one.gpus[at * each : (at + 1) * each], one.role)
            for at in range(one.tasks)
        ]
    return [part for parts in by_role for part in parts]
