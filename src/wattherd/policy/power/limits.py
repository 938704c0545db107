"""The budgets above each job: one for all, or those of a power tree with its losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattherd.errors import UserError
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.choices import Bools, Floats, Ints

ONE = ("budget",)
"""The names of limits that are a single budget."""
SLACK_W = 1e-6
"""Rounding of sums of watts."""


@dataclass(frozen=True, slots=True)
class DomainRoom:
    """`room_w` (D,) of each domain with a budget.

    `path` (J, L) are the domains above a job, the nearest first, -1 where there are fewer; `scale`
    (J, L) is what a watt of the job is there.
    """

    room_w: Floats
    path: Ints
    scale: Floats
    names: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether it is one budget for all, without losses."""
        one = len(self.room_w) == 1 and bool((self.path >= 0).all())
        return one and bool((self.scale == 1.0).all())

    @property
    def price(self) -> Floats:
        """Watts at the outermost budget for a watt of each job (J,)."""
        price: Floats = self.scale.max(axis=1)
        return price

    def with_room(self, room_w: Floats) -> DomainRoom:
        """The same tree with other budgets (D,)."""
        return replace(self, room_w=room_w)

    def of_jobs(self, jobs: Bools, room_w: Floats) -> DomainRoom:
        """The budgets above some of the jobs (J,), of which `room_w` (D,) is left."""
        return replace(self, room_w=room_w, path=self.path[jobs], scale=self.scale[jobs])

    @property
    def factor(self) -> Floats:
        """What a watt of each domain (D,) is at the outermost budget above it.

        It is the same for all jobs below, since from there up their watts take the same way.
        """
        factor = np.ones(len(self.room_w))
        for domain, scale in zip(self.path.T, self.scale.T, strict=True):
            here = domain >= 0
            factor[domain[here]] = (self.price / scale)[here]
        return factor

    @property
    def ranks(self) -> Ints:
        """How far each domain (D,) stands from the job farthest below it; -1: none is.

        No two domains of one rank feed each other.
        """
        rank = np.full(len(self.room_w), -1, dtype=np.int64)
        for level, domain in enumerate(self.path.T):
            rank[domain[domain >= 0]] = level
        return rank

    def above(self, domains: Bools) -> Ints:
        """Which one of `domains` (D,) of one rank is above each job (J,), as column; -1: none."""
        mine = np.append(domains, False)[self.path]
        return np.where(mine.any(axis=1), mine.argmax(axis=1), -1)

    def highest_above(self, level: Floats) -> Floats:
        """The highest `level` (D,) of any domain above each job (J,), 0 where there is none."""
        return np.asarray(np.append(level, 0.0)[self.path].max(axis=1))

    def load_w(self, watts: Floats) -> Floats:
        """What jobs of `watts` (J,) take from each domain (D,)."""
        load_w = np.zeros(len(self.room_w))
        for domain, scale in zip(self.path.T, self.scale.T, strict=True):
            here = domain >= 0
            load_w += np.bincount(domain[here], (watts * scale)[here], len(load_w))
        return load_w

    def left_w(self, least_w: Floats) -> Floats:
        """What domains (D,) have left above the least of all jobs (J,).

        Raises:
            UserError: less than nothing.
        """
        load_w = self.load_w(least_w)
        short = np.flatnonzero(self.room_w - load_w < -SLACK_W)
        if len(short):
            at = int(short[0])
            least = f"the {load_w[at]:,.0f} W that all jobs need"
            raise UserError(
                f"{self.room_w[at]:,.0f} W are less than {least}",
                where="" if self.names == ONE else self.names[at],
                field="budget",
                hint="raise it, run fewer jobs, or allow pausing",
            )
        return np.maximum(self.room_w - load_w, 0.0)

    def headroom_w(self, room_w: Floats) -> Floats:
        """How many watts more each job (J,) may take where domains have `room_w` (D,) left."""
        rooms = np.append(room_w, np.inf)[self.path]
        headroom: Floats = (rooms / self.scale).min(axis=1)
        return headroom


def one_budget(jobs: int, budget_w: float) -> DomainRoom:
    """A single budget for all jobs."""
    zeros = np.zeros((jobs, 1), dtype=np.int64)
    return DomainRoom(np.array([budget_w]), zeros, np.ones((jobs, 1)), ONE)


def tree_limits(tree: PowerTree, domains: Sequence[str]) -> DomainRoom:
    """The budgets above jobs that are fed by `domains`, the nearest first.

    Raises:
        UserError: an unknown domain.
    """
    limited = [one for one in tree.domains if one.budget_w is not None]
    number = {one.name: at for at, one in enumerate(limited)}
    climbs = {name: _climb(tree, name, number) for name in dict.fromkeys(domains)}
    depth = max((len(climb) for climb in climbs.values()), default=1) or 1
    path = np.full((len(domains), depth), -1, dtype=np.int64)
    scale = np.ones((len(domains), depth))
    for job, name in enumerate(domains):
        for level, (domain, watts) in enumerate(climbs[name]):
            path[job, level], scale[job, level] = domain, watts
    rooms = np.array([float(one.budget_w or 0.0) for one in limited])
    return DomainRoom(rooms, path, scale, tuple(one.name for one in limited))


def _climb(tree: PowerTree, name: str, number: dict[str, int]) -> list[tuple[int, float]]:
    """Limited domains from `name` upwards, and what a watt below takes from each."""
    found, watts = [], 1.0
    for domain in tree.path_to_root(name):
        watts /= 1.0 - domain.loss
        if domain.name in number:
            found.append((number[domain.name], watts))
    return found
