"""Why a pod finds no place: the one thing that keeps it, found on the account of the cluster.

Looked for from the most lasting to the most passing: nodes that may take it at all; that could take
it if they were empty; that have room now; whose domains have watts. The first of these that no node
passes is the reason: who can never be placed is not told to wait, and who has room on some node
lacks only watts. What would help is counted on the same account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.placement.state import ClusterState
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fleet import Mask, NodeFleet
from wattherd.kube.facts.finding import ADVICE, PodFinding, cpus, gpus, memory, watts_down, watts_up
from wattherd.kube.facts.node_filter import has_wishes, host_ports
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.kube.facts.workload import WorkloadPod
from wattherd.model.job import Request
from wattherd.model.reason import ReasonCode
from wattherd.units import counted

# --- What nodes that are large enough have too little of just now: devices, then what is beside
# them.
#
# GPUs that are free but in pieces are told apart from GPUs that are not free: waiting for the first
# may take for ever where nobody moves, and a smaller pod would start at once.

Ints = NDArray[np.int64]
Shown = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class NodeShortage:
    """`request` is what the pod takes of the nodes in `rows` (their numbers), none of which has it.

    `behind` are pods of its gang that need as much as well.
    """

    fleet: NodeFleet
    state: ClusterState
    ask: PodRequest
    request: Request
    rows: Ints
    behind: int = 0

    def finding(self) -> PodFinding:
        """The first thing that all of them have too little of."""
        if not self.request.gpu_count:
            return self._beside(self.rows)
        devices = self._devices()
        enough = self.rows[devices >= self.request.gpu_count]
        if len(enough):
            return self._beside(enough)
        return self._share() if self.request.is_sharing else self._whole(devices)

    # GPUs -----------------------------------------------------------------------------------------

    def _devices(self) -> Ints:
        """(R,) devices with as much free as is asked of each."""
        free = self.state.world.nodes.gpu_free[self.rows]
        count: Ints = (free >= max(1, self.request.gpu_milli)).sum(axis=1)
        return count

    def _all_devices(self) -> int:
        return int(self.state.world.nodes.gpu_count[self.rows].sum())

    def _name(self, row: int) -> str:
        return self.fleet.order[row].name

    def _whole(self, free: Ints) -> PodFinding:
        wanted, total = self.request.gpu_count, int(free.sum())
        best = int(np.argmax(free))
        most, node = int(free[best]), self._name(int(self.rows[best]))
        more = counted(wanted - most, "more GPU")
        are = "is" if wanted - most == 1 else "are"
        if total >= wanted * (1 + self.behind) and wanted > 1:
            return PodFinding(
                str(ReasonCode.FRAGMENTED),
                f"needs {wanted} GPUs on one node; {total} of {self._all_devices()} are free, but "
                f"on {counted(int((free > 0).sum()), 'node')}, at most {most} on one ({node})",
                f"wait until {more} on {node} {are} free, or ask for {counted(most, 'GPU')} a pod",
            )
        return PodFinding(
            str(ReasonCode.WAITING_FOR_GPUS),
            f"needs {counted(wanted, 'GPU')}, {total} of {self._all_devices()} that it may use "
            f"{'is' if total == 1 else 'are'} free{self._others()}",
            f"wait until {more} on {node} {are} free, or add a node",
        )

    def _others(self) -> str:
        return f", and {counted(self.behind, 'more pod')} of its gang" if self.behind else ""

    def _share(self) -> PodFinding:
        free = self.state.world.nodes.gpu_free[self.rows]
        wanted, total = self.request.gpu_milli, int(free.sum())
        best = int(np.argmax(free.max(axis=1)))
        most, node = int(free[best].max()), self._name(int(self.rows[best]))
        until = f"wait until {wanted - most}/1000 more of one GPU on {node} is free"
        if total >= wanted * (1 + self.behind):
            return PodFinding(
                str(ReasonCode.FRAGMENTED),
                f"needs {gpus(wanted)}; {gpus(total)} in all are free, but in pieces, the largest "
                f"{most}/1000 ({node})",
                f"{until}, or ask for {most}/1000",
            )
        return PodFinding(
            str(ReasonCode.WAITING_FOR_GPUS),
            f"needs {gpus(wanted)}, {total}/1000 in all of {counted(self._all_devices(), 'GPU')} "
            f"that it may use are free{self._others()}",
            f"{until}, or add a node",
        )

    # Beside them ----------------------------------------------------------------------------------

    def _beside(self, rows: Ints) -> PodFinding:
        """Processors, memory, other resources, places for pods: the first that is short on all."""
        where = f"on {counted(len(rows), 'node')}"
        if self.request.gpu_count:
            where += " with enough free GPUs"
        nodes, request = self.state.world.nodes, self.request
        if nodes.cpu_free[rows].max() < request.cpu_milli:
            return self._short(where, rows, nodes.cpu_free, request.cpu_milli, cpus)
        if nodes.memory_free[rows].max() < request.memory_mib:
            return self._short(where, rows, nodes.memory_free, request.memory_mib, memory)
        return self._other(where, rows)

    def _short(self, where: str, rows: Ints, free: Ints, wanted: int, shown: Shown) -> PodFinding:
        best = int(rows[np.argmax(free[rows])])
        most, node = int(free[best]), self._name(best)
        return PodFinding(
            RefusalToken.RESOURCE,
            f"needs {shown(wanted)} on one node; {where} at most {shown(most)} free ({node})",
            f"wait until {shown(wanted - most)} more free on {node}, or ask for less",
        )

    def _other(self, where: str, rows: Ints) -> PodFinding:
        nodes = [self.fleet.order[row] for row in rows.tolist()]
        short = {self.fleet.short_of(facts, self.ask) for facts in nodes}
        if "" not in short:
            text = f"{where} too little {' and '.join(sorted(short))} is left"
            return PodFinding(RefusalToken.RESOURCE, text, "wait until a pod that uses it ends")
        if all(len(self.fleet.held_on(one.name)) >= one.most_pods for one in nodes):
            text = f"{where} no more pods are taken"
            return PodFinding(RefusalToken.TOO_MANY_PODS, text, ADVICE[RefusalToken.TOO_MANY_PODS])
        text = f"{where} what it asks for is not free together"
        return PodFinding(RefusalToken.ROOM, text, "wait until a pod there ends, or ask for less")


_MOST_CAUSES = 3
"""Of nodes that are out of the question, named in one text."""
_PLENTY = 1 << 60
_NO_PLACE = PodFinding(str(ReasonCode.WAITING_FOR_TURN), "no node is known yet", "add a node")


@dataclass(frozen=True, slots=True)
class _Could:
    suits: Mask
    large: Mask


@dataclass(slots=True)
class Diagnosis:
    """Looks at what `chooser` chooses from; books nothing."""

    chooser: Chooser
    eligible: Eligible
    _seen: tuple[int, int] = (-1, -1)
    _could: dict[tuple[object, ...], _Could] = field(default_factory=dict)

    def of(self, member: WorkloadPod, behind: int = 0, within: Mask | None = None) -> PodFinding:
        """What keeps `member`, for which no node was chosen, from being placed.

        `behind` are pods like it that need a place as well: what they all need is counted. Of nodes
        that it may use only those `within` (N,) matter, where any are left.
        """
        if self.chooser.fleet.placer is None:
            return _NO_PLACE
        may = self.eligible.mask(member.pod)
        if not may.any():
            return self._nowhere(member)
        if within is not None and (may & within).any():
            may &= within
        could = self._lasting(member.ask)
        suits, large = may & could.suits, may & could.large
        if not suits.any():
            return self._wrong_gpus(member.ask, may)
        if not large.any():
            return self._too_large(member.ask, suits)
        roomy = large & self.chooser.fleet.open_for(member.ask) & self._roomy(member.ask)
        if not roomy.any():
            return self._short(member.ask, large, behind)
        return self._never(member.ask, large) or self._watts(member.ask, roomy, behind)

    def _lasting(self, ask: PodRequest) -> _Could:
        """The same for all pods that ask for the same, until nodes change."""
        if self._seen != (now := (self.chooser.fleet.version, len(self.chooser.fleet.order))):
            self._seen, self._could = now, {}
        key = ask.key
        if key not in self._could:
            self._could[key] = _Could(self._suits(ask), self._large(ask))
        return self._could[key]

    # Nodes that may take it -----------------------------------------------------------------------

    def _nowhere(self, member: WorkloadPod) -> PodFinding:
        order = self.chooser.fleet.order
        nodes, models = len(order), member.ask.models
        if models and not any(facts.spec.gpu_model in models for facts in order):
            return self._wrong_gpus(member.ask, np.ones(nodes, dtype=np.bool_))
        causes = self.eligible.why(member.pod)
        if sum(count for _, count in causes) < nodes:
            token = (
                RefusalToken.HOST_PORT
                if host_ports(member.pod.spec)
                else RefusalToken.ANTI_AFFINITY
            )
            who = "its host port is taken" if token is RefusalToken.HOST_PORT else "pods repel it"
            if token is RefusalToken.ANTI_AFFINITY and has_wishes(member.pod):
                who = "the pods there are not as its affinity or spread wants them"
            return PodFinding(token, f"on every node that it may use {who}", ADVICE[token])
        token = causes[0][0].token
        told = "; ".join(f"{counted(n, 'node')}: {one.line()}" for one, n in causes[:_MOST_CAUSES])
        return PodFinding(
            token, f"none of {counted(nodes, 'node')} may take the pod: {told}", ADVICE[token]
        )

    def _suits(self, ask: PodRequest) -> Mask:
        """(N,) nodes that give GPUs as asked, of a model that will do."""
        fleet = self.chooser.fleet
        suits = np.zeros(len(fleet.order), dtype=np.bool_)
        for request, giving in fleet.requests(ask):
            models = [request.allows(facts.spec.gpu_model) for facts in fleet.order]
            suits |= giving & np.array(models, dtype=np.bool_)
        return suits

    def _wrong_gpus(self, ask: PodRequest, may: Mask) -> PodFinding:
        nodes = [self.chooser.fleet.order[row] for row in np.flatnonzero(may).tolist()]
        unknown = sorted({facts.unknown_gpu for facts in nodes if facts.unknown_gpu})
        there = sorted({facts.spec.gpu_model for facts in nodes if facts.spec.gpu_count})
        if unknown and not there:
            token, facts = RefusalToken.GPU_UNKNOWN, f"{', '.join(unknown)} is not in the catalog"
        elif not there:
            token, facts = RefusalToken.GPU_MODEL, "no node that it may use has a GPU"
        elif ask.models and not set(ask.models) & set(there):
            wanted = " or ".join(ask.models)
            token, facts = RefusalToken.GPU_MODEL, f"asks for {wanted}, there is {', '.join(there)}"
        else:
            token = RefusalToken.GPU_SHARES
            ways = sorted({str(one.offer.giving) for one in nodes if one.spec.gpu_count})
            facts = f"nodes give GPUs as {', '.join(ways)}, not as asked"
        return PodFinding(token, facts, ADVICE[token])

    # Nodes that could, if they were empty ---------------------------------------------------------

    def _large(self, ask: PodRequest) -> Mask:
        fleet = self.chooser.fleet
        large = np.zeros(len(fleet.order), dtype=np.bool_)
        for request, giving in fleet.requests(ask):
            fits = [
                request.fits(facts.spec)
                and all(facts.amounts.get(name, 0) >= n for name, n in ask.others.items())
                for facts in fleet.order
            ]
            large |= giving & np.array(fits, dtype=np.bool_)
        return large

    def _too_large(self, ask: PodRequest, suits: Mask) -> PodFinding:
        nodes = [self.chooser.fleet.order[row] for row in np.flatnonzero(suits).tolist()]
        wanted = ask.whole + ask.slots
        most_gpus = max(facts.spec.gpu_count for facts in nodes)
        most_cpu = max(facts.spec.cpu_milli for facts in nodes)
        most_mib = max(facts.spec.memory_mib for facts in nodes)
        short = [
            (counted(wanted, "GPU"), str(most_gpus)) if wanted > most_gpus else None,
            (cpus(ask.cpu_milli), cpus(most_cpu)) if ask.cpu_milli > most_cpu else None,
            (memory(ask.memory_mib), memory(most_mib)) if ask.memory_mib > most_mib else None,
            *(
                (f"{amount} of {name}", str(most))
                for name, amount in sorted(ask.others.items())
                if amount > (most := max(facts.amounts.get(name, 0) for facts in nodes))
            ),
        ]
        needs, has = next(
            (one for one in short if one), ("all that it asks for", "only a part of it")
        )
        facts = f"asks for {needs} on one node, the largest of {counted(len(nodes), 'node')}"
        return PodFinding(
            str(ReasonCode.NEVER_FITS),
            f"{facts} that it may use has {has}",
            "ask for less in one pod, or add a larger node",
        )

    # Nodes that have room now ---------------------------------------------------------------------

    def _roomy(self, ask: PodRequest) -> Mask:
        """(N,) nodes with room, watts aside."""
        fleet = self.chooser.fleet
        roomy = np.zeros(len(fleet.order), dtype=np.bool_)
        if fleet.placer is None:
            return roomy
        nodes = fleet.placer.state.world.nodes
        for request, giving in fleet.requests(ask):
            fits = (nodes.cpu_free >= request.cpu_milli) & (nodes.memory_free >= request.memory_mib)
            devices = (nodes.gpu_free >= max(1, request.gpu_milli)).sum(axis=1)
            roomy |= giving & fits & (devices >= request.gpu_count)
        return roomy

    def _short(self, ask: PodRequest, large: Mask, behind: int) -> PodFinding:
        fleet = self.chooser.fleet
        if fleet.placer is None:
            return _NO_PLACE
        request, giving = next(one for one in fleet.requests(ask) if (one[1] & large).any())
        rows = np.flatnonzero(large & giving)
        return NodeShortage(fleet, fleet.placer.state, ask, request, rows, behind).finding()

    # Nodes whose domains have watts ---------------------------------------------------------------

    def _never(self, ask: PodRequest, large: Mask) -> PodFinding | None:
        """What keeps a pod from every node as budgets stand, were nobody else there."""
        chooser = self.chooser
        if any(request.is_sharing for request, _ in chooser.fleet.requests(ask)):
            return None  # it may join others on a device that draws already
        domains, columns, needs = chooser.domains, chooser.columns(), self._needs(ask)
        lacks, rows = needs - domains.most_mw(columns), np.flatnonzero(large)
        if not rows.size or (lacks[rows] <= 0).any():
            return None
        row = int(rows[np.argmin(lacks[rows])])
        idle, budgets, need = domains.idle_mw(columns), domains.budgets_mw, int(needs[row])
        facts, helps = f"the pod adds {watts_up(need)}", []
        for name in domains.tree.path(chooser.fleet.order[row].domain):
            short = need + idle[name] - budgets[name] if name in budgets else 0
            if short > 0:
                who = f"power domain {name}" if name else "the site"
                facts += f", {who} may draw {watts_down(budgets[name])}"
                facts += f" and draws {watts_up(idle[name])} with idle nodes"
                helps.append(f"raise the budget of {who} by {watts_up(short)}")
        return PodFinding(
            str(ReasonCode.NEVER_FITS), facts, f"{' and '.join(helps)}, or ask for less"
        )

    def _watts(self, ask: PodRequest, roomy: Mask, behind: int) -> PodFinding:
        """Of the nodes with room, the one that lacks the fewest watts says what is lacking."""
        chooser = self.chooser
        needs, room = self._needs(ask), self._left()
        rows = np.flatnonzero(roomy)
        row = int(rows[np.argmin((needs - room)[rows])])
        need, domain = int(needs[row]), chooser.fleet.order[row].domain
        lacks = (self._lack(one, need, need * (1 + behind)) for one in self._limits(domain))
        lacking = [one for one in lacks if one is not None]
        if not lacking:
            return PodFinding(
                str(ReasonCode.WAITING_FOR_TURN), "the policy chose no node for it yet"
            )
        facts = f"the pod adds {watts_up(need)}" + "".join(f", {has}" for has, _ in lacking)
        if behind:
            facts += f"; {counted(behind, 'more pod')} of its gang must start with it"
        helps = " and ".join(one for _, one in lacking)
        return PodFinding(str(ReasonCode.WAITING_FOR_POWER), facts, helps)

    def _needs(self, ask: PodRequest) -> Ints:
        """(N,) what the pod would add in mW, with a device of its own."""
        chooser = self.chooser
        columns = chooser.columns()
        needs = np.full(len(columns.base_mw), _PLENTY, dtype=np.int64)
        for request, giving in chooser.fleet.requests(ask):
            needs = np.where(giving, columns.rise_mw * request.gpu_count, needs)
        return needs

    def _left(self) -> Ints:
        placer = self.chooser.fleet.placer
        return np.zeros(0, dtype=np.int64) if placer is None else self.chooser.room_mw(placer.state)

    def _limits(self, domain: str) -> list[tuple[str, int, int]]:
        """Of the domain and those that feed it: who has a budget, which, and how much may be drawn.

        The lowest first; milliwatts.
        """
        domains, placer = self.chooser.domains, self.chooser.fleet.placer
        if placer is None:
            return []
        carried, budgets = self.chooser.carried_mw(placer.state), domains.budgets_mw
        above = domains.tree.path(domain)
        return [(name, budgets[name], carried[name]) for name in above if name in budgets]

    def _lack(
        self, limit: tuple[str, int, int], need_mw: int, all_mw: int
    ) -> tuple[str, str] | None:
        """What a domain has left, and what would be enough, if it is too little for the pod."""
        domain, budget, draw = limit
        if draw + need_mw <= budget:
            return None
        who = f"power domain {domain}" if domain else "the site"
        more = watts_up(draw + all_mw - budget)
        left = watts_down(max(0, budget - draw))
        return (
            f"{who} has {left} left of {watts_down(budget)}",
            f"raise the budget of {who} by {more}, or free {more} there",
        )
