"""Measured points for jobs within the budgets of a power tree: one point per job.

`allocate` rounds the water-filling optimum: whole pieces of the hulls first, then whatever single
step still fits and adds most, and under a single budget an exact search among what could still be
better (`knapsack`). With all jobs' watts in one budget the result is optimal unless the search runs
out of states; in a tree it is within a step per saturated branch of the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import Choice
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.knapsack import Relaxed, refined
from wattherd.policy.power.pieces import SLACK_W, Floats, Ints, Pieces, fill, pieces_of

MOST_REFINED_JOBS = 500
"""Beyond that a single step is less than a thousandth of the sum, and nothing is left to gain."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`room_w` (D,) of each domain with a budget; see `pieces.fill` for `path` and `scale`."""

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


def one_budget(jobs: int, budget_w: float) -> Limits:
    """A single budget for all jobs."""
    zeros = np.zeros((jobs, 1), dtype=np.int64)
    return Limits(np.array([budget_w]), zeros, np.ones((jobs, 1)), ("budget",))


def tree_limits(tree: PowerTree, domains: Sequence[str]) -> Limits:
    """The budgets above jobs that are fed by `domains`, the nearest first.

    Raises:
        UserError: an unknown domain.
    """
    limited = [one for one in tree.domains if one.budget_w is not None]
    number = {one.name: at for at, one in enumerate(limited)}
    rows = [_climb(tree, name, number) for name in domains]
    depth = max((len(row) for row in rows), default=1) or 1
    path = np.full((len(rows), depth), -1, dtype=np.int64)
    scale = np.ones((len(rows), depth))
    for job, row in enumerate(rows):
        for level, (domain, watts) in enumerate(row):
            path[job, level], scale[job, level] = domain, watts
    rooms = np.array([float(one.budget_w or 0.0) for one in limited])
    return Limits(rooms, path, scale, tuple(one.name for one in limited))


def _climb(tree: PowerTree, name: str, number: dict[str, int]) -> list[tuple[int, float]]:
    """Limited domains from `name` upwards, and what a watt below takes from each."""
    found, watts = [], 1.0
    for domain in tree.path_to_root(name):
        watts /= 1.0 - domain.loss
        if domain.name in number:
            found.append((number[domain.name], watts))
    return found


def bound(jobs: Sequence[Sequence[Choice]], limits: Limits) -> float:
    """The most that fractions of choices could be worth; exact without losses.

    Raises:
        UserError: the least choices do not fit.
    """
    pieces = pieces_of(jobs, limits.price)
    return _bound(pieces, limits)


def _bound(pieces: Pieces, limits: Limits) -> float:
    given, _ = _filled(pieces, limits, whole=False)
    return float(pieces.start_value.sum() + (pieces.worth * given / pieces.watts).sum())


def _filled(pieces: Pieces, limits: Limits, *, whole: bool) -> tuple[Floats, Floats]:
    """Parts of the pieces that are served, and what room they leave."""
    room = limits.room_w.copy()
    _take(room, limits, pieces.start_w)
    short = np.flatnonzero(room < -SLACK_W)
    if len(short):
        at = int(short[0])
        least_w = limits.room_w[at] - room[at]
        raise UserError(
            f"{limits.room_w[at]:,.0f} W are less than the {least_w:,.0f} W that all jobs need",
            where=limits.names[at],
            field="budget",
            hint="raise it, run fewer jobs, or allow pausing",
        )
    given = np.zeros(len(pieces.job))
    path, scale = limits.path, limits.scale
    fill(pieces.job, pieces.watts, path, scale, np.maximum(room, 0.0), whole, given)
    _take(room, limits, np.bincount(pieces.job, given, len(pieces.start_w)).astype(np.float64))
    return given, room


def _take(room: Floats, limits: Limits, watts: Floats) -> None:
    """Take each job's watts from all domains above it."""
    for level in range(limits.path.shape[1]):
        here = limits.path[:, level] >= 0
        np.subtract.at(room, limits.path[here, level], (watts * limits.scale[:, level])[here])


def allocate(jobs: Sequence[Sequence[Choice]], limits: Limits) -> list[int]:
    """A choice for every job, by index.

    Raises:
        UserError: the least choices do not fit.
    """
    if not jobs:
        return []
    pieces = pieces_of(jobs, limits.price)
    given, room = _filled(pieces, limits, whole=True)
    chosen = [0] * len(jobs)
    for piece in np.flatnonzero(given > 0).tolist():
        chosen[pieces.job[piece]] = int(pieces.target[piece])
    _step_up(jobs, limits, chosen, room)
    if not limits.plain or len(jobs) > MOST_REFINED_JOBS:
        return chosen
    relaxed = Relaxed(_bound(pieces, limits), _price(pieces, limits))
    return refined(jobs, float(limits.room_w[0]), relaxed, chosen)


def _price(pieces: Pieces, limits: Limits) -> float:
    """Worth of a watt where the bound's last piece is cut; 0 where watts are left over."""
    given, room = _filled(pieces, limits, whole=False)
    cut = np.flatnonzero(given < pieces.watts)
    if not len(cut) or room[0] > SLACK_W:
        return 0.0
    return float(pieces.worth[cut[0]] / pieces.watts[cut[0]])


def _step_up(
    jobs: Sequence[Sequence[Choice]], limits: Limits, chosen: list[int], room: Floats
) -> None:
    """While something fits: the step of one job that adds most."""
    while True:
        best = max(
            (
                (jobs[job][after].value - jobs[job][at].value, -job, after)
                for job, at in enumerate(chosen)
                if (after := _highest(jobs[job], at, _headroom(limits, room, job))) > at
            ),
            default=None,
        )
        if best is None:
            return
        job, after = -best[1], best[2]
        more_w = jobs[job][after].watts - jobs[job][chosen[job]].watts
        chosen[job] = after
        for domain, watts in zip(limits.path[job], limits.scale[job], strict=True):
            if domain >= 0:
                room[domain] -= more_w * watts


def _highest(choices: Sequence[Choice], at: int, headroom_w: float) -> int:
    """The highest choice within `headroom_w` more than choice `at` draws."""
    while at + 1 < len(choices) and choices[at + 1].watts - choices[at].watts <= headroom_w:
        headroom_w -= choices[at + 1].watts - choices[at].watts
        at += 1
    return at


def _headroom(limits: Limits, room: Floats, job: int) -> float:
    domains, scale = limits.path[job], limits.scale[job]
    return min(
        (room[domain] / watts for domain, watts in zip(domains, scale, strict=True) if domain >= 0),
        default=np.inf,
    )
