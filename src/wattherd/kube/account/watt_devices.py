"""Watts as devices: of each power domain one, whose capacity is what claims may take of its budget.

A claim asks for its watts once on each level of the power tree, so that a pod is counted in its
domain and in all above (`watt_claims`). Levels count from the site, which is 0; where a branch is
shorter than the deepest one, its nodes get devices without a limit for the levels that it lacks.
A domain's capacity is its budget, less the idle watts of its nodes and what pods without a claim
may draw there: these are nobody's to grant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.kube.account.domains import Columns
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.facts.domain_tree import SITE
from wattherd.kube.facts.node_facts import NodeFacts

UNLIMITED_MW = 10**12
"""A gigawatt: more than any claim asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WattDevice:
    """Watts that pods on nodes fed by `leaves` may claim on one level.

    `most_gpu_mw` is what the hungriest GPU there adds in use: claims that name no model are made
    for some number, and must not be met where it is too low.
    """

    domain: str
    level: int
    leaves: tuple[str, ...]
    capacity_mw: int
    most_gpu_mw: int

    @property
    def limited(self) -> bool:
        """Whether there is a budget behind it."""
        return self.capacity_mw < UNLIMITED_MW

    @property
    def everywhere(self) -> bool:
        """Whether it is the site's own."""
        return self.level == 0


@dataclass(frozen=True, slots=True)
class DomainLoad:
    """Of the nodes that one domain feeds itself: what nobody can claim, and the hungriest GPU."""

    unclaimable_mw: int = 0
    most_gpu_mw: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WattSite:
    """The account that devices are made from.

    `loads` are by the domain that feeds nodes, `path` tells a domain and all above it, the site
    last, `budgets_mw` are those that are set.
    """

    loads: Mapping[str, DomainLoad]
    path: Callable[[str], Sequence[str]]
    budgets_mw: Mapping[str, int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return max((len(self.path(leaf)) for leaf in self.loads), default=1)

    def devices(self) -> list[WattDevice]:
        """All there are, by level and name."""
        found: dict[tuple[int, str], list[str]] = {(0, SITE): []}
        for leaf in sorted(self.loads):
            chain = list(reversed(self.path(leaf)))
            for level in range(self.depth):
                name = chain[level] if level < len(chain) else leaf
                found.setdefault((level, name), []).append(leaf)
        return [
            self._device(level, name, leaves) for (level, name), leaves in sorted(found.items())
        ]

    def _device(self, level: int, name: str, leaves: Sequence[str]) -> WattDevice:
        loads = [self.loads[leaf] for leaf in leaves]
        return WattDevice(
            domain=name,
            level=level,
            leaves=tuple(leaves),
            capacity_mw=self._capacity_mw(level, name, loads),
            most_gpu_mw=max((load.most_gpu_mw for load in loads), default=0),
        )

    def _capacity_mw(self, level: int, name: str, loads: Iterable[DomainLoad]) -> int:
        budget = self.budgets_mw.get(name)
        if budget is None or level != len(self.path(name)) - 1:
            return UNLIMITED_MW
        return max(0, budget - sum(load.unclaimable_mw for load in loads))


def loads_of(
    fleet: NodeFleet,
    columns: Columns,
    claims: Callable[[str], bool],
    beyond_mw: Mapping[str, int],
) -> dict[str, DomainLoad]:
    """What each domain carries beside pods (by uid) of whom `claims` holds.

    What these draw `beyond_mw` their claims is carried, too.
    """
    found: dict[str, DomainLoad] = {}
    for row, facts in enumerate(fleet.order):
        rise, before = int(columns.rise_mw[row]), found.get(facts.domain, DomainLoad())
        drawn = int(columns.base_mw[row]) + rise * _used_by_others(fleet, facts, claims)
        if beyond_mw:
            drawn += sum(beyond_mw.get(one.uid, 0) for one in fleet.held_on(facts.name))
        most = max(before.most_gpu_mw, rise)
        found[facts.domain] = DomainLoad(before.unclaimable_mw + drawn, most)
    return found


def drawn_mw(fleet: NodeFleet, columns: Columns, uids: Iterable[str]) -> dict[str, int]:
    """What these of the pods add where they are."""
    return {
        uid: sum(int(columns.rise_mw[seat.node]) * len(seat.gpus) for seat in fleet.seats(uid))
        for uid in uids
        if uid in fleet.holdings
    }


def _used_by_others(fleet: NodeFleet, facts: NodeFacts, claims: Callable[[str], bool]) -> int:
    """GPUs of a node that pods without a claim use."""
    used = {
        gpu
        for one in fleet.held_on(facts.name)
        if not claims(one.uid)
        for seat in fleet.seats(one.uid)
        for gpu in seat.gpus
    }
    return len(used)
