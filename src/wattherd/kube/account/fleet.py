"""The account of a cluster: its nodes, and who is on them or about to be.

Fed with what the API says (nodes and pods seen or gone, in any order, late, repeated) and with what
was decided and is not yet seen there. What is on a node is a fact, also where others put more there
than it has: the account then takes what there is and closes the node until it has room again.

The engine's state is of a fixed set of nodes; it is made anew when that set or a node's size
changes, and everybody is put back where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.state import ClusterState
from wattherd.kube.facts.node_facts import Giving, GpuOffer, NodeFacts
from wattherd.kube.facts.pod_request import PodRequest
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import Request

# --- Seats for a pod that is on a node already, whether or not the node has room for it.
#
# Where others over-commit a node (two schedulers on the same nodes do: the API server checks
# nothing) or chose GPUs that nobody tells us, the account takes what there is: the GPUs named, else
# those that have room, lowest number first, else whatever is left of them.

Seats = tuple[Allocation, ...]


def crowd_in(
    state: ClusterState, row: int, offer: GpuOffer, holding: Holding
) -> tuple[Seats, bool]:
    """Allocations that stand for `holding` on node `row`, and whether they are all of it."""
    nodes, ask = state.world.nodes, holding.ask
    cpu = min(ask.cpu_milli, int(nodes.cpu_free[row]))
    memory = min(ask.memory_mib, int(nodes.memory_free[row]))
    whole = (cpu, memory) == (ask.cpu_milli, ask.memory_mib)
    milli, wanted = _devices(offer, ask)
    free = {gpu: int(nodes.gpu_free[row, gpu]) for gpu in range(int(nodes.gpu_count[row]))}
    parts = _pick(free, milli, wanted, holding.gpus)
    whole = whole and parts == [(gpu, milli) for gpu, _ in parts] and len(parts) == wanted
    claimed = ask.claimed if free else 0  # of GPUs whose watts nobody knows nothing is counted
    held = _pick(free, WHOLE_GPU_MILLI, claimed, None)
    whole = whole and sum(took for _, took in held) == claimed * WHOLE_GPU_MILLI
    return _seats(row, cpu, memory, parts + held, ask.models), whole


def _devices(offer: GpuOffer, ask: PodRequest) -> tuple[int, int]:
    """Milli-GPU of each device or slot that it takes, and how many of them; claims aside."""
    if not (ask.whole or ask.slots or ask.share_milli):
        return 0, 0
    if offer.giving is Giving.SLOTS:
        return offer.slot_milli, max(1, ask.whole + ask.slots)
    if ask.share_milli is not None and not ask.whole:
        return ask.share_milli, 1
    return WHOLE_GPU_MILLI, ask.whole + ask.slots


def _pick(
    free: dict[int, int], milli: int, wanted: int, named: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    """(GPU, milli) of `wanted` parts; less of them, or smaller ones, where there is no more."""
    parts: list[tuple[int, int]] = []
    ahead = list(named or ())
    for _ in range(wanted):
        gpu = _next(free, milli, ahead)
        if gpu is None:
            break
        took = min(milli, free[gpu])
        free[gpu] -= took
        parts.append((gpu, took))
    return parts


def _next(free: dict[int, int], milli: int, ahead: list[int]) -> int | None:
    while ahead:
        gpu = ahead.pop(0)
        if free.get(gpu, 0) > 0:
            return gpu
    roomy = [gpu for gpu, left in free.items() if left >= milli]
    if roomy:
        return roomy[0]
    some = [gpu for gpu, left in free.items() if left > 0]
    return max(some, key=lambda gpu: free[gpu]) if some else None


def _seats(
    row: int, cpu: int, memory: int, parts: list[tuple[int, int]], models: tuple[str, ...]
) -> Seats:
    """Whole GPUs in one allocation, every share in its own; the first one carries the rest."""
    full = tuple(sorted(gpu for gpu, milli in parts if milli == WHOLE_GPU_MILLI))
    shares = [((gpu,), milli) for gpu, milli in parts if milli != WHOLE_GPU_MILLI]
    groups = ([(full, WHOLE_GPU_MILLI)] if full else []) + shares
    if not groups:
        return (_seat(row, cpu, memory, (), 0, models),)
    (gpus, milli), *rest = groups
    return (
        _seat(row, cpu, memory, gpus, milli, models),
        *(_seat(row, 0, 0, gpus, milli, models) for gpus, milli in rest),
    )


def _seat(
    row: int, cpu: int, memory: int, gpus: tuple[int, ...], milli: int, models: tuple[str, ...]
) -> Allocation:
    request = Request(
        cpu_milli=cpu,
        memory_mib=memory,
        gpu_count=len(gpus),
        gpu_milli=milli if gpus else 0,
        models=models if gpus else (),
    )
    return Allocation(request, row, gpus)


Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
_GROWTH = 4
"""So many times the pods learned from, and it is time to learn again."""
_NODES_PER_POD = 16
"""Not before there is a pod for so many nodes: all is made anew then, at a cost of every node."""
_MOST_REQUESTS = 1024
"""Different requests that the engine's tables may know, however few pods there are."""
_REQUESTS_PER_POD = 4
MakePlacer = Callable[[ClusterSpec, list[Request]], Placer]
"""A policy at work on an empty cluster, given what pods ask for as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One pod (by uid) on a node, or reserved there; `gpus` are None where nobody told us.

    `watts_mw` is what it added to its domain's draw, `decision` names what put it there.
    """

    uid: str
    key: str
    ask: PodRequest
    node: str
    gpus: tuple[int, ...] | None = None
    confirmed: bool = False
    since_s: float = 0.0
    watts_mw: int = 0
    decision: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a pod would go, and what it would take there."""

    node: str
    allocation: Allocation


class NodeFleet:
    """Nodes and holdings; every change keeps the engine's state true to them."""

    def __init__(self, make_placer: MakePlacer, *, learns: bool = False) -> None:
        """Empty, until it is told; one that `learns` takes the pods it holds for those to come."""
        self.nodes: dict[str, NodeFacts] = {}
        self.holdings: dict[str, Holding] = {}
        self.version = 0
        """Counts changes of nodes, for whoever keeps things derived from them."""
        self._make_placer = make_placer
        self._learns = learns
        self._learned_from = 0
        self._on: dict[str, dict[str, Holding]] = {}
        self._reserved: dict[str, Holding] = {}
        self._gone: set[str] = set()
        self._left: AbstractSet[str] = frozenset()
        """Nodes that are gone from the account whose nodes these are."""
        self._placed: dict[str, tuple[Allocation, ...]] = {}
        self._crowded: dict[str, dict[str, None]] = {}
        """By node: who got less there than it asks for."""
        self._reseated: set[str] = set()
        self._placer: Placer | None = None
        self._order: list[NodeFacts] = []
        self._row: dict[str, int] = {}
        self._giving: dict[GpuOffer, Mask] = {}
        self._shut: Mask = np.zeros(0, dtype=np.bool_)
        self._pods_left: Ints = np.zeros(0, dtype=np.int64)

    def emptied(self) -> NodeFleet:
        """Another account of the same nodes, with nobody on them."""
        other = NodeFleet(self._make_placer)
        asked = [self._plain(holding) for holding in self.holdings.values()]
        other._placer = self._new_placer(asked)
        other.share_nodes(self)
        return other

    def share_nodes(self, other: NodeFleet) -> None:
        """The nodes are those of `other`, as they are now, in the same order."""
        if self.version == other.version and self._order is other._order:
            return
        self.version, self.nodes = other.version, other.nodes
        self._order, self._row = other._order, other._row
        self._giving = other._giving
        self._left = other._gone
        self._shut = np.zeros(len(self._order), dtype=np.bool_)
        self._pods_left = np.zeros(len(self._order), dtype=np.int64)
        for row in range(len(self._order)):
            self._count_pods(row)
            self._mark(row)

    # What is --------------------------------------------------------------------------------------

    def node_seen(self, facts: NodeFacts) -> None:
        """A node is there, and so."""
        known = self.nodes.get(facts.name)
        if known == facts and facts.name not in self._gone:
            return
        self._gone.discard(facts.name)
        self.nodes[facts.name] = facts
        self.version += 1
        resized = known is None or (known.spec, known.offer) != (facts.spec, facts.offer)
        if resized or self._placer is None:
            self._placer = None
            return
        row = self._row[facts.name]
        self._order[row] = facts
        self._count_pods(row)
        self._mark(row)

    def feed(self, fed: Callable[[NodeFacts], NodeFacts]) -> None:
        """Nodes have other power domains: `fed` tells a node's, and changes nothing else."""
        for name, facts in self.nodes.items():
            now = fed(facts)
            if now is facts:
                continue
            self.nodes[name] = now
            self.version += 1
            if self._placer is not None:
                self._order[self._row[name]] = now

    def node_gone(self, name: str) -> None:
        """A node was deleted; it stays on the books until its pods are gone, too."""
        if name not in self.nodes:
            return
        self._gone.add(name)
        self.version += 1
        if self._on.get(name):
            if self._placer is not None:
                self._mark(self._row[name])
        else:
            self._strike(name)

    def _strike(self, name: str) -> None:
        self._gone.discard(name)
        del self.nodes[name]
        self._placer = None

    def stands(self, name: str) -> bool:
        """Whether a node is there: known, and not deleted, even where pods are still on it."""
        return name in self.nodes and name not in self._gone

    def hold(self, holding: Holding) -> None:
        """A pod is on a node, or is to be; what it held before it gives back."""
        self.let_go(holding.uid)
        self.holdings[holding.uid] = holding
        if not holding.confirmed:
            self._reserved[holding.uid] = holding
        self._on.setdefault(holding.node, {})[holding.uid] = holding
        if self._learns and self._has_more_to_learn():
            self._placer = None
        if self._placer is not None and holding.node in self._row:
            self._seat(holding)

    def _has_more_to_learn(self) -> bool:
        pods = len(self.holdings)
        grown = pods > _GROWTH * max(1, self._learned_from)
        return grown and pods * _NODES_PER_POD >= len(self.nodes)

    def confirm(self, uid: str, at_s: float) -> None:
        """What was reserved is seen to be so."""
        self._note(replace(self.holdings[uid], confirmed=True, since_s=at_s))
        self._reserved.pop(uid, None)

    def prolong(self, uid: str, at_s: float) -> None:
        """What is reserved, and stays where it is, counts from now on."""
        self._reserved[uid] = self._note(replace(self._reserved[uid], since_s=at_s))

    def _note(self, holding: Holding) -> Holding:
        self.holdings[holding.uid] = self._on[holding.node][holding.uid] = holding
        return holding

    def let_go(self, uid: str) -> None:
        """A pod is gone, or its reservation is."""
        known = self.holdings.pop(uid, None)
        if known is None:
            return
        self._reserved.pop(uid, None)
        del self._on[known.node][uid]
        if self._placer is not None and known.node in self._row:
            self._unseat(known)
        self._reseated.discard(uid)
        if not self._on[known.node]:
            del self._on[known.node]
            if known.node in self._gone:
                self._strike(known.node)

    @property
    def reserved(self) -> Collection[Holding]:
        """Those that are not seen to be there yet."""
        return self._reserved.values()

    def is_reserved(self, uid: str, node: str) -> bool:
        """Whether it has its place on this node and is not seen there yet."""
        known = self._reserved.get(uid)
        return known is not None and known.node == node

    def held_on(self, node: str) -> Collection[Holding]:
        """Everybody on a node."""
        return self._on.get(node, {}).values()

    def seats(self, uid: str) -> tuple[Allocation, ...]:
        """What a holding takes in the engine's state; nothing while its node is not known."""
        return self._placed.get(uid, ()) if self.placer is not None else ()

    def reseated(self) -> set[str]:
        """Who was seated anew since this was last asked, as somebody left a node too full."""
        found, self._reseated = self._reseated, set()
        return found

    def is_short(self, uid: str) -> bool:
        """Whether a holding got less on its node than it asks for."""
        holding = self.holdings.get(uid)
        return holding is not None and uid in self._crowded.get(holding.node, ())

    def overfull(self) -> list[str]:
        """Nodes on which others put more than there is, by name; nothing more goes there."""
        return sorted(self._crowded) if self.placer is not None else []

    def missing(self) -> dict[int, int]:
        """By row of a node: whole GPUs that its pods ask for and that others have there."""
        found = {}
        for name in self._crowded:
            lacking = sum(self.lacks(one) for one in self.held_on(name))
            if lacking:
                found[self._row[name]] = lacking
        return found

    def lacks(self, holding: Holding) -> int:
        """Whole GPUs that one asks for and that others have on its node."""
        if holding.uid not in self._crowded.get(holding.node, ()):
            return 0
        seated = sum(len(seat.gpus) for seat in self.seats(holding.uid))
        return max(0, holding.ask.whole + holding.ask.claimed - seated)

    # Where to -------------------------------------------------------------------------------------

    def tidy(self, pods: int) -> None:
        """Have tables made anew if most of what they know cannot be what these many `pods` ask for.

        Each request that differs from all before takes room for every node, for as long as they
        last; autoscalers of pods write ever new ones. Not to be asked within a decision.
        """
        known = 0 if self._placer is None else self._placer.state.shapes.spellings
        if known > max(_MOST_REQUESTS, _REQUESTS_PER_POD * pods):
            self._placer = None

    @property
    def placer(self) -> Placer | None:
        """The policy at work on what is; None while there is no node."""
        if self._placer is None and self.nodes:
            self._rebuild()
        return self._placer

    @property
    def ready(self) -> bool:
        """Whether the policy is at work: it is made anew, at a cost of every node, when asked."""
        return self._placer is not None or not self.nodes

    @property
    def prompt(self) -> bool:
        """Whether it answers in milliseconds; what scores without a kernel may take any time."""
        return self.ready and (self._placer is None or self._placer.policy.compiled)

    @property
    def order(self) -> list[NodeFacts]:
        """Nodes by row of the engine's arrays."""
        return self._order

    def row_of(self, name: str) -> int:
        """Of a node, in the engine's arrays."""
        return self._row[name]

    def rows_of(self, names: Collection[str]) -> Mask:
        """(N,) which nodes are named; names that nobody knows are left out."""
        if 2 * len(names) > len(self._row):  # few are left out: half the time
            return ~self._mask(self._row.keys() - names)
        return self._mask(name for name in names if name in self._row)

    def _mask(self, names: Iterable[str]) -> Mask:
        found = np.zeros(len(self._order), dtype=np.bool_)
        found[[self._row[name] for name in names]] = True
        return found

    def open_for(self, ask: PodRequest) -> Mask:
        """(N,) nodes that take pods at all, and have what policies do not look at."""
        usable: Mask = ~self._shut & (self._pods_left > 0)
        if ask.others:
            for row in np.flatnonzero(usable).tolist():
                usable[row] = not self.short_of(self._order[row], ask)
        return usable

    def short_of(self, facts: NodeFacts, ask: PodRequest) -> str:
        """The first resource of which a node has too little left, or nothing."""
        for name, amount in ask.others.items():
            used = sum(one.ask.others.get(name, 0) for one in self.held_on(facts.name))
            if used + amount > facts.amounts.get(name, 0):
                return name
        return ""

    def requests(self, ask: PodRequest) -> list[tuple[Request, Mask]]:
        """What `ask` takes of nodes by how they give GPUs, the smallest share that does first."""
        by_request: dict[Request, Mask] = {}
        for offer, giving in self._giving.items():
            request = ask.on(offer)
            if request is not None:
                before = by_request.get(request)
                by_request[request] = giving if before is None else before | giving
        return sorted(by_request.items(), key=lambda item: item[0].gpu_milli)

    def room_for(self, ask: PodRequest, among: Mask) -> int:
        """At most so many such pods fit on the nodes (N,) `among` now, one beside the other.

        By processors, memory, GPUs and places for pods; what else there is may leave room for less.
        """
        return int(self.rooms(ask, among).sum())

    def rooms(self, ask: PodRequest, among: Mask) -> NDArray[np.int64]:
        """The same of each node (N,)."""
        placer, total = self.placer, np.zeros(len(self._order), dtype=np.int64)
        if placer is None:
            return total
        state = placer.state
        for request, giving in self.requests(ask):
            shape, nodes = state.intern(request), state.world.nodes
            room = self._pods_left
            if request.cpu_milli:
                room = np.minimum(room, nodes.cpu_free // request.cpu_milli)
            if request.memory_mib:
                room = np.minimum(room, nodes.memory_free // request.memory_mib)
            rows = among & giving & ~self._shut
            if request.gpu_count:
                parts = (nodes.gpu_free // request.gpu_milli).sum(axis=1)
                room = np.minimum(room, parts // request.gpu_count)
                rows &= state.world.shapes.allowed[shape][nodes.model]
            total += np.where(rows, np.maximum(room, 0), 0)
        return total

    def choose(self, ask: PodRequest, among: Mask) -> Spot | None:
        """Where the policy wants a pod, of the nodes in `among`; books nothing."""
        placer = self.placer
        if placer is None:
            return None
        for request, giving in self.requests(ask):
            chosen = placer.choose(request, among & giving)
            if chosen is not None:
                return Spot(self._order[chosen.node].name, chosen)
        return None

    # Keeping the engine's state true --------------------------------------------------------------

    def _rebuild(self) -> None:
        self._order = [self.nodes[name] for name in sorted(self.nodes)]
        self._row = {facts.name: row for row, facts in enumerate(self._order)}
        self._placed, self._crowded = {}, {}
        self._learned_from = len(self.holdings)
        asked = [self._plain(holding) for holding in self.holdings.values()]
        self._placer = self._new_placer(asked)
        self._shut = np.zeros(len(self._order), dtype=np.bool_)
        offers = [facts.offer for facts in self._order]
        self._giving = {
            one: np.array([offer == one for offer in offers], dtype=np.bool_)
            for one in dict.fromkeys(offers)
        }
        self._pods_left = np.array([facts.most_pods for facts in self._order], dtype=np.int64)
        for row in range(len(self._order)):
            self._mark(row)
        for holding in self.holdings.values():
            if holding.node in self._row:
                self._seat(holding)

    def _new_placer(self, asked: list[Request]) -> Placer:
        return self._make_placer(ClusterSpec(tuple(one.spec for one in self._order)), asked)

    def _plain(self, holding: Holding) -> Request:
        facts = self.nodes.get(holding.node)
        found = holding.ask.on(facts.offer) if facts is not None else None
        return found or holding.ask.without_gpus()

    def _mark(self, row: int) -> None:
        """Whether a node takes pods."""
        facts = self._order[row]
        gone = facts.name in self._gone or facts.name in self._left
        shut = gone or facts.name in self._crowded or bool(facts.problem)
        self._shut[row] = shut

    def _count_pods(self, row: int) -> None:
        facts = self._order[row]
        self._pods_left[row] = facts.most_pods - len(self.held_on(facts.name))

    def _seat(self, holding: Holding) -> None:
        row = self._row[holding.node]
        placer = self._placer
        if placer is None:
            return
        seats, whole = crowd_in(placer.state, row, self._order[row].offer, holding)
        for seat in seats:
            placer.state.place(seat)
        self._placed[holding.uid] = seats
        self._pods_left[row] -= 1
        if not whole:
            self._crowded.setdefault(holding.node, {})[holding.uid] = None
            self._mark(row)

    def _unseat(self, holding: Holding) -> None:
        row = self._row[holding.node]
        self._stand_up(holding.uid)
        self._pods_left[row] += 1
        if holding.node in self._crowded:
            self._reseat(row)

    def _stand_up(self, uid: str) -> None:
        for seat in self._placed.pop(uid, ()):
            if self._placer is not None:
                self._placer.state.release(seat)

    def _reseat(self, row: int) -> None:
        """Somebody left a node that holds too much: count anew who got less than they ask for.

        Who has all keeps its devices: plans were made around them.
        """
        name = self._order[row].name
        uids = self._crowded.pop(name)
        short = [one for one in self.held_on(name) if one.uid in uids]
        for one in short:
            self._stand_up(one.uid)
        self._pods_left[row] += len(short)
        for one in short:
            self._seat(one)
        self._reseated.update(one.uid for one in short)
        self._mark(row)
