"""What would let pods that wait start: each remedy tried out on the account, none merely guessed.

The account is put back as it was after every try. Remedies are looked for one at a time: more
watts, the end of pods that are there (the least important first, the fewest that do), less asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.fleet import Holding, Mask, Spot
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.finding import cpus, memory
from wattherd.kube.facts.pod_groups import GroupId, priority_of
from wattherd.kube.facts.workload import WorkloadPod

Place = tuple[str, tuple[int, ...], int]
"""A node, numbers of GPUs, and milliwatts that are added there."""
_MOST_ENDS = 2000
"""Pods whose end is tried out alone; beyond, only their ends together are."""
_PLENTY_MW = 1 << 60


@dataclass(frozen=True, slots=True)
class Remedy:
    """`kind` is for programs (`budget`, `end`, `less`), `text` for people.

    `watts` are by domain what its budget would have to rise; `pods` those whose end would do.
    """

    kind: str
    text: str
    watts: dict[str, float] | None = None
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedies:
    """Tries on `chooser`'s account; `pods` are those that are known, by uid.

    `allowed` are the nodes (N,) that a member may go to at all.
    """

    chooser: Chooser
    allowed: Callable[[WorkloadPod], Mask]
    pods: Mapping[str, Pod]
    groups: Mapping[GroupId, PodGroup]

    def of(self, members: Sequence[WorkloadPod]) -> list[Remedy]:
        """What would let all `members`, which find no place now, start at once."""
        if self.fits(members):
            return []
        found = (self._watts(members), self._ends(members), self._less(members))
        return [remedy for remedy in found if remedy is not None]

    def fits(self, members: Sequence[WorkloadPod]) -> bool:
        """Whether they would all find a place now."""
        with self.placed(members) as places:
            return len(places) == len(members)

    @contextmanager
    def placed(self, members: Sequence[WorkloadPod]) -> Iterator[list[Place]]:
        """Meanwhile members have places, up to the first that finds none: which these are."""
        fleet, places = self.chooser.fleet, list[Place]()
        try:
            for member in members:
                may = self.allowed(member) & fleet.open_for(member.ask)
                spot, added_mw = self.chooser.choose(member.ask, may)
                if spot is None:
                    break
                fleet.hold(_held(member, spot))
                places.append((spot.node, spot.allocation.gpus, added_mw))
            yield places
        finally:
            for member in reversed(members[: len(places)]):
                fleet.let_go(member.uid)

    # More watts -----------------------------------------------------------------------------------

    def _watts(self, members: Sequence[WorkloadPod]) -> Remedy | None:
        domains, placer = self.chooser.domains, self.chooser.fleet.placer
        before = domains.budgets_mw
        if placer is None or not before:
            return None
        domains.budgets_mw = dict.fromkeys(before, _PLENTY_MW)
        try:
            with self.placed(members) as places:
                carried = self.chooser.carried_mw(placer.state)
        finally:
            domains.budgets_mw = before
        more = {name: carried[name] - most for name, most in sorted(before.items())}
        short = {name: -(-mw // 1000) for name, mw in more.items() if mw > 0}
        if len(places) < len(members) or not short:
            return None
        told = " and ".join(
            f"{_whose(name)} were {watts:,} W higher" for name, watts in short.items()
        )
        return Remedy("budget", f"if {told}", watts={k: float(v) for k, v in short.items()})

    # Others that end ------------------------------------------------------------------------------

    def _ends(self, members: Sequence[WorkloadPod]) -> Remedy | None:
        theirs = self._least_important({member.uid for member in members})
        for held in theirs[:_MOST_ENDS]:
            with self._gone([held]):
                if self.fits(members):
                    return self._end_of([held])
        with self._gone(theirs):
            if not self.fits(members):
                return None
        return self._end_of(self._fewest(members, theirs))

    def _fewest(self, members: Sequence[WorkloadPod], theirs: list[Holding]) -> list[Holding]:
        """As many from the front as are needed, less those that are not."""
        low, high = 1, len(theirs)
        while low < high:
            middle = (low + high) // 2
            with self._gone(theirs[:middle]):
                low, high = (low, middle) if self.fits(members) else (middle + 1, high)
        needed = theirs[:low]
        for held in reversed(theirs[: low - 1]):
            others = [one for one in needed if one is not held]
            with self._gone(others):
                if self.fits(members):
                    needed = others
        return needed

    def _least_important(self, ours: set[str]) -> list[Holding]:
        """Pods that are on nodes; of equal priority the youngest first."""
        held = [one for one in self.chooser.fleet.holdings.values() if one.uid not in ours]
        held.sort(key=lambda one: one.key)
        held.sort(key=lambda one: self._made(one.uid), reverse=True)
        held.sort(key=lambda one: self._priority(one.uid))
        return held

    def _priority(self, uid: str) -> int:
        pod = self.pods.get(uid)
        return priority_of([pod], self.groups) if pod is not None else 0

    def _made(self, uid: str) -> str:
        pod = self.pods.get(uid)
        return (pod.metadata.creation_timestamp or "") if pod is not None else ""

    @contextmanager
    def _gone(self, held: Sequence[Holding]) -> Iterator[None]:
        fleet = self.chooser.fleet
        for one in held:
            fleet.let_go(one.uid)
        try:
            yield
        finally:
            for one in held:
                fleet.hold(one)

    def _end_of(self, held: Sequence[Holding]) -> Remedy:
        shown = [f"{one.key} (priority {self._priority(one.uid)})" for one in held[:3]]
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        end = "ends" if len(held) == 1 else "end"
        text = f"when {', '.join(shown)}{more} {end}"
        return Remedy("end", text, pods=tuple(one.key for one in held))

    # Less asked -----------------------------------------------------------------------------------

    def _less(self, members: Sequence[WorkloadPod]) -> Remedy | None:
        """The largest pod that would start now, where one thing alone is too much."""
        if len(members) != 1:
            return self._smaller_gang(members)
        (member,) = members
        ask = member.ask
        for whole in range(ask.whole - 1, 0, -1):
            if self.fits([replace(member, ask=replace(ask, whole=whole))]):
                return Remedy("less", f"now, with {whole} GPU{'s' if whole > 1 else ''}")
        for part in (0.75, 0.5, 0.25):
            less = replace(ask, cpu_milli=int(ask.cpu_milli * part))
            if self.fits([replace(member, ask=less)]):
                return Remedy("less", f"now, with {cpus(less.cpu_milli)}")
            less = replace(ask, memory_mib=int(ask.memory_mib * part))
            if self.fits([replace(member, ask=less)]):
                return Remedy("less", f"now, with {memory(less.memory_mib)}")
        return None

    def _smaller_gang(self, members: Sequence[WorkloadPod]) -> Remedy | None:
        low, high = 0, len(members) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(members[:middle]) else (low, middle - 1)
        return Remedy("less", f"now, with {low} of its {len(members)} pods") if low else None


def _held(member: WorkloadPod, spot: Spot) -> Holding:
    gpus = spot.allocation.gpus
    return Holding(uid=member.uid, key=member.key, ask=member.ask, node=spot.node, gpus=gpus)


def _whose(domain: str) -> str:
    return f"the budget of {f'power domain {domain}' if domain else 'the site'}"
