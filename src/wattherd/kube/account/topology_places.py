"""Places of the network for gangs that want to be together: racks, blocks, NVLink domains.

A gang is tried in one place after the other, the one that it would fill most first, so that large
places stay whole for large gangs; a place without watts, or one that the policy cannot fill, is
passed. Places that have too little room are not tried at all. Inside a place the placement policy
chooses. Pods that come when their gang has places already are to join it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattherd.kube.account.fleet import Ints, Mask, NodeFleet
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.pod_groups import GroupId, group_of
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.kube.facts.topology_wish import Ladder, Level, TopologyWish, topology_wish
from wattherd.kube.facts.workload import WorkloadPod
from wattherd.model.reason import ReasonCode
from wattherd.units import counted

_NOWHERE = -1
MayGo = Callable[[WorkloadPod], Mask]
"""Nodes (N,) that a member may go to."""


@dataclass(slots=True)
class TopologyWishes:
    """In which place of the network members want to be with their gangs; found out once for each.

    `groups` and `ladders` (levels by the name of their Topology object) are kept by somebody else,
    who says so when they change. Where pods do not start `together` nobody has a wish.
    """

    together: bool
    groups: Mapping[GroupId, PodGroup]
    ladders: Mapping[str, Ladder]
    _known: dict[str, tuple[Pod, TopologyWish | None]] = field(default_factory=dict)

    def of(self, member: WorkloadPod) -> TopologyWish | None:
        """What a member wishes for, as its pod is now."""
        known = self._known.get(member.uid)
        if known is None or known[0] is not member.pod:
            known = self._known[member.uid] = member.pod, self._found(member)
        return known[1]

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        self._known.pop(uid, None)

    def forget(self) -> None:
        """Groups or ladders have changed."""
        self._known.clear()

    def _found(self, member: WorkloadPod) -> TopologyWish | None:
        group = group_of(member.pod)
        if group is None or not self.together:
            return None
        ladders = [self.ladders[name] for name in sorted(self.ladders)]
        return topology_wish(member.pod, self.groups.get(group), ladders)


@dataclass(slots=True)
class TopologyPlaces:
    """On `fleet`; `wish_of` a member, `mates` are the pods of its gang by uid."""

    fleet: NodeFleet
    wish_of: Callable[[WorkloadPod], TopologyWish | None] = lambda _: None
    mates: Callable[[WorkloadPod], Iterable[str]] = lambda _: ()
    _codes: dict[Level, tuple[Ints, list[str]]] = field(default_factory=dict)
    _empty: NodeFleet | None = None
    _version: tuple[int, int] = (-1, -1)

    def trial(self, members: Sequence[WorkloadPod], may: MayGo) -> TopologyTrial:
        """An attempt to seat these together, each where it may go."""
        kin: dict[TopologyWish, list[WorkloadPod]] = {}
        for member in members:
            wish = self.wish_of(member)
            if wish is not None and (len(members) > 1 or set(self.mates(member)) - {member.uid}):
                kin.setdefault(wish, []).append(member)
        made = [_Kin(self, wish, tuple(found), may) for wish, found in kin.items()]
        return TopologyTrial({one.uid: each for each in made for one in each.members})

    def masks(self, members: Sequence[WorkloadPod], may: MayGo) -> list[Mask | None]:
        """For each member: nodes (N,) of the place where its kin go first; None: any place.

        For planners that choose nodes themselves, and know nothing of places.
        """
        trial = self.trial(members, may)
        for each in trial.kin.values():
            each.roomiest()
        return [kin.place if (kin := trial.kin.get(one.uid)) else None for one in members]

    def could(self, members: Sequence[WorkloadPod], lasting: MayGo) -> list[Mask | None]:
        """For each member: nodes (N,) of the places that would hold its kin with nobody there.

        None: all that it may go to at all.
        """
        trial = self.trial(members, lasting)
        found: list[Mask | None] = []
        for member in members:
            kin = trial.kin.get(member.uid)
            found.append(None if kin is None else kin.could())
        return found

    def places(self, level: Level) -> tuple[Ints, list[str]]:
        """Of each node its place (N,), -1: none; and what places are called."""
        if self._version != (now := (self.fleet.version, len(self.fleet.order))):
            self._version, self._codes, self._empty = now, {}, None
        if level not in self._codes:
            numbers: dict[tuple[str, ...], int] = {}
            codes = np.full(len(self.fleet.order), _NOWHERE, dtype=np.int64)
            for row, facts in enumerate(self.fleet.order):
                values = tuple(facts.labels.get(one, "") for one in level)
                if all(values):
                    codes[row] = numbers.setdefault(values, len(numbers))
            self._codes[level] = codes, ["/".join(values) for values in numbers]
        return self._codes[level]

    def empty(self) -> NodeFleet:
        """The same nodes with nobody on them."""
        self.places(())
        if self._empty is None:
            self._empty = self.fleet.emptied()
        return self._empty


@dataclass(slots=True)
class TopologyTrial:
    """Which kin are tried where."""

    kin: dict[str, _Kin]

    def narrowed(self, member: WorkloadPod, among: Mask) -> Mask:
        """Of the nodes (N,) `among` those of the place in which its kin are tried."""
        kin = self.kin.get(member.uid)
        return among if kin is None or kin.place is None else among & kin.place

    def elsewhere(self, failed: WorkloadPod) -> bool:
        """Whether there is another place for the kin of who found none in theirs."""
        kin = self.kin.get(failed.uid)
        return kin is not None and kin.go_on()

    def why(self, member: WorkloadPod) -> PodFinding | None:
        """Why no place was tried, where that is so."""
        kin = self.kin.get(member.uid)
        return None if kin is None else kin.why()


@dataclass(slots=True)
class _Kin:
    """Members of one wish, and the place they are tried in: `place` (N,), None: anywhere."""

    topology: TopologyPlaces
    wish: TopologyWish
    members: tuple[WorkloadPod, ...]
    may: MayGo
    place: Mask | None = None
    found: bool = True
    """Whether any place was there to be tried."""
    _left: Iterator[Mask | None] = field(init=False)

    def __post_init__(self) -> None:
        self._left = self._tries()
        if not self.go_on():
            self.place, self.found = np.zeros(len(self.topology.fleet.order), dtype=np.bool_), False

    def go_on(self) -> bool:
        """To the next place; whether there is one."""
        try:
            self.place = next(self._left)
        except StopIteration:
            return False
        return True

    def _tries(self) -> Iterator[Mask | None]:
        holdings = self.topology.fleet.holdings
        uids = {one.uid for one in self.members}
        there = {
            holdings[uid].node
            for uid in self.topology.mates(self.members[0])
            if uid in holdings and uid not in uids
        }
        for level in self.wish.levels:
            yield from self._beside(level, there) if there else self._by_fit(level)
        if not self.wish.must:
            yield None

    def _beside(self, level: Level, there: set[str]) -> Iterator[Mask]:
        """The place of those who are there; where they are scattered, no more can be lost."""
        codes, _ = self.topology.places(level)
        order = self.topology.fleet.order
        theirs = {int(codes[row]) for row, facts in enumerate(order) if facts.name in there}
        if len(theirs) == 1 and _NOWHERE not in theirs:
            yield codes == theirs.pop()
        elif self.wish.must:
            yield np.ones(len(order), dtype=np.bool_)

    def _by_fit(self, level: Level) -> Iterator[Mask]:
        codes, names = self.topology.places(level)
        fits, spare = self._fits(level, self.topology.fleet)
        rows = np.flatnonzero(fits).tolist()
        others_follow = len(self.members) == 1
        tightest = -1 if others_follow else 1
        for place in sorted(rows, key=lambda one: (tightest * int(spare[one]), names[one])):
            yield codes == place

    def _fits(self, level: Level, fleet: NodeFleet) -> tuple[Mask, Ints]:
        """(P,) whether all members may find room in a place, and room for how many there is."""
        codes, names = self.topology.places(level)
        fits = np.ones(len(names), dtype=np.bool_)
        spare = np.full(len(names), np.iinfo(np.int64).max, dtype=np.int64)
        kinds: dict[tuple[object, ...], list[WorkloadPod]] = {}
        for member in self.members:
            kinds.setdefault(member.ask.key, []).append(member)
        inside = codes != _NOWHERE
        for alike in kinds.values():
            ask = alike[0].ask
            rooms = fleet.rooms(ask, self.may(alike[0]) & inside)
            room = np.bincount(codes[inside], rooms[inside], len(names)).astype(np.int64)
            fits &= room >= len(alike)
            spare = np.minimum(spare, room)
        return fits, spare

    def could(self) -> Mask | None:
        """(N,) nodes of places that would hold all members with nobody there; None: all."""
        if not self.wish.must:
            return None
        level = self.wish.levels[-1]
        codes, names = self.topology.places(level)
        fits = np.append(self._fits(level, self.topology.empty())[0], False)
        nodes: Mask = fits[codes] if names else np.zeros(len(codes), dtype=np.bool_)
        return nodes

    def roomiest(self) -> None:
        """Where there is no place with room, the one that lacks least of those that could have it.

        For planners that make room, and do so where they may go.
        """
        if self.found:
            return
        level = self.wish.levels[-1]
        codes, _ = self.topology.places(level)
        could = self.could()
        _, room = self._fits(level, self.topology.fleet)
        for place in np.argsort(-room, kind="stable").tolist():
            if could is None or could[codes == place].any():
                self.place = codes == place
                return

    def why(self) -> PodFinding | None:
        """No one place has enough room, or none would ever have."""
        if self.found or not self.wish.must:
            return None
        level, count = self.wish.levels[-1], len(self.members)
        _, names = self.topology.places(level)
        told = f"its {counted(count, 'pod')} must share one {level[-1]}"
        wider = "ask for a wider level, or a smaller gang"
        if not names:
            facts = f"{told}, and no node has that label"
            return PodFinding(RefusalToken.SELECTOR, facts, "label nodes, or ask for another level")
        _, most = self._fits(level, self.topology.empty())
        best = int(np.argmax(most))
        if most[best] < count:
            facts = f"{told}, the largest ({names[best]}) holds {most[best]} when empty"
            return PodFinding(str(ReasonCode.NEVER_FITS), facts, wider)
        _, room = self._fits(level, self.topology.fleet)
        best, total = int(np.argmax(room)), int(room.sum())
        code = ReasonCode.WAITING_FOR_GPUS if total < count else ReasonCode.FRAGMENTED
        facts = f"{told}; there is room for {total}, but at most {room[best]} in one"
        until = f"wait until there is room for {count - room[best]} more in {names[best]}"
        return PodFinding(str(code), f"{facts} ({names[best]})", f"{until}, or {wider}")
