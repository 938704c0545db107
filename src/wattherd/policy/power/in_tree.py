"""Sharing watts under nested budgets: the power policies of a single budget, in a power tree.

Rooms are for whole devices at their caps. A job that sits below several branches takes from all of
them at one cap, so that a tight branch holds it back everywhere: one synchronous job, one level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from wattherd.jit import kernel
from wattherd.policy.power.contract import Ask
from wattherd.policy.power.limits import Limits
from wattherd.policy.power.menu import Floats, Ints

_HALVINGS = 50
"""Leave less than a microwatt of a level."""


@runtime_checkable
class SharesInTree(Protocol):
    """A power policy that knows of branches."""

    def share_in(self, asks: Sequence[Ask], limits: Limits) -> list[float]:
        """A cap in watts per device for each ask; the rooms cover at least all floors."""
        ...


def steepest_first(asks: Sequence[Ask], limits: Limits) -> list[float]:
    """Every watt where it buys most progress per watt at the site (`fill`).

    Optimal where every job sits below one branch (a polymatroid: Edmonds, 1970); jobs across
    branches bend that a little.
    """
    return in_order_of(asks, limits, segments_of(asks, limits))


def segments_of(asks: Sequence[Ask], limits: Limits) -> list[tuple[float, int, float]]:
    """(minus worth per watt at the site, number of the ask, watts per device) of all pieces."""
    price = limits.price.tolist()
    return [
        (-slope * ask.weight / (ask.curve.rates[-1] * ask.devices * price[job]), job, width)
        for job, ask in enumerate(asks)
        for slope, width in ask.curve.segments()
    ]


def in_order_of(
    asks: Sequence[Ask], limits: Limits, rows: Iterable[tuple[float, int, float]]
) -> list[float]:
    """Caps where pieces (key, number of the ask, watts per device) are served by ascending key."""
    rows = sorted(rows)
    devices = np.array([ask.devices for ask in asks], dtype=np.float64)
    floors = np.array([ask.curve.floor_w for ask in asks])
    owner: Ints = np.array([job for _, job, _ in rows], dtype=np.int64)
    watts: Floats = np.array([width * asks[job].devices for _, job, width in rows])
    given: Floats = np.zeros(len(rows))
    room = np.maximum(_left(limits, floors * devices), 0.0)
    fill(owner, watts, limits.path, limits.scale, room, given)
    more = np.bincount(owner, given, len(asks)) / devices
    tops = np.array([ask.curve.max_w for ask in asks])
    caps: list[float] = np.minimum(floors + more, tops).tolist()
    return caps


@kernel
def fill(job, watts, path, scale, room, given):  # type: ignore[no-untyped-def]
    """Serve pieces in order within `room` (D,) watts of each domain; `given` (P,) gets the parts.

    `path` (J, L) are the domains above a job, -1 where there are fewer, `scale` (J, L) what a watt
    of the job is there. Piece by piece, since jobs may sit below several branches; where none does,
    `filling` does the same in a few passes over arrays.
    """
    stopped = np.zeros(path.shape[0], dtype=np.bool_)
    for piece in range(job.shape[0]):
        owner = job[piece]
        if stopped[owner]:
            continue
        part = watts[piece]
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                part = min(part, room[domain] / scale[owner, level])
        stopped[owner] = part < watts[piece]
        given[piece] = max(part, 0.0)
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                room[domain] -= given[piece] * scale[owner, level]


def in_turn(asks: Sequence[Ask], limits: Limits, order: Sequence[int]) -> list[float]:
    """As much as its branches have left to each ask in `order`, above all floors."""
    caps = [ask.curve.floor_w for ask in asks]
    room = _left(limits, _watts(asks, caps))
    for job in order:
        ask = asks[job]
        above = limits.path[job] >= 0
        domains, scale = limits.path[job][above], limits.scale[job][above]
        free_w = max(float((room[domains] / scale).min(initial=np.inf)), 0.0)
        more = min(free_w / ask.devices, ask.curve.max_w - ask.curve.floor_w)
        caps[job] += more
        room[domains] -= more * ask.devices * scale
    return caps


def levelled(
    asks: Sequence[Ask], limits: Limits, low_w: Sequence[float], high_w: Sequence[float]
) -> list[float]:
    """The highest common level 0..1 between `low_w` and `high_w`, within each curve's range."""
    low, high = np.array(low_w), np.array(high_w)
    return levelled_by(asks, limits, lambda level: low + level * (high - low))


def levelled_by(asks: Sequence[Ask], limits: Limits, wanted: _At) -> list[float]:
    """Caps `wanted` (J,) at the highest common level 0..1, within each curve's range.

    Progressive filling: where a branch is full, those below it stay; the level of others rises on.
    """
    floors = np.array([ask.curve.floor_w for ask in asks])
    tops = np.array([ask.curve.max_w for ask in asks])
    devices = np.array([ask.devices for ask in asks], dtype=np.float64)
    caps, open_, level = floors.copy(), np.ones(len(asks), dtype=np.bool_), 0.0

    def at(part: float) -> Floats:
        tried = np.clip(wanted(part), floors, tops)
        chosen: Floats = np.where(open_, np.maximum(tried, caps), caps)
        return chosen

    def fits(tried: Floats) -> bool:
        return bool((_left(limits, tried * devices) >= 0).all())

    while open_.any():
        if fits(at(1.0)):
            return list(map(float, at(1.0)))
        level = _highest(level, fits, at)
        caps = at(level)
        full = np.flatnonzero(_left(limits, at(min(level + 1e-9, 1.0)) * devices) < 1e-6)
        held = np.isin(limits.path, full).any(axis=1) & open_
        if not held.any():
            break
        open_ &= ~held
    return list(map(float, caps))


def _highest(low: float, fits: _Fits, at: _At) -> float:
    """The highest level from `low` on that fits; `low` itself where none does."""
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return low


class _Fits(Protocol):
    def __call__(self, tried: Floats) -> bool: ...


class _At(Protocol):
    def __call__(self, part: float) -> Floats: ...


def within(asks: Sequence[Ask], caps_w: Sequence[float], limits: Limits) -> list[float]:
    """The caps, cut towards the floors below every domain that they are too much for."""
    floors = np.array([ask.curve.floor_w for ask in asks])
    devices = np.array([ask.devices for ask in asks], dtype=np.float64)
    caps = np.clip(np.array(caps_w), floors, [ask.curve.max_w for ask in asks])
    for domain in range(len(limits.room_w)):
        here = limits.path == domain
        weight = np.where(here, limits.scale, 0.0).sum(axis=1) * devices
        over_w = float(weight @ caps) - float(limits.room_w[domain])
        above_w = float(weight @ (caps - floors))
        if over_w > 0 and above_w > 0:
            keep = max(1.0 - over_w / above_w, 0.0)
            below = here.any(axis=1)
            caps[below] = floors[below] + keep * (caps - floors)[below]
    return list(map(float, caps))


def _watts(asks: Sequence[Ask], caps: Sequence[float]) -> Floats:
    return np.array([ask.devices * cap for ask, cap in zip(asks, caps, strict=True)])


def _left(limits: Limits, watts: Floats) -> Floats:
    """Room of every domain (D,) beside the jobs' `watts` (J,)."""
    room: Floats = limits.room_w.astype(np.float64, copy=True)
    here = limits.path >= 0
    taken = (watts[:, None] * limits.scale)[here]
    np.subtract.at(room, limits.path[here], taken)
    return room
