"""Sharing watts under nested budgets: the power policies of a single budget, in a power tree.

Rooms are for whole devices at their caps. A job that sits below several branches takes from all of
them at one cap, so that a tight branch holds it back everywhere: one synchronous job, one level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np

from wattherd.estimate.power_curve import PowerCurve
from wattherd.jit import kernel
from wattherd.policy.power.choices import Floats, Ints
from wattherd.policy.power.contract import Asks, CurveNumbers, PowerAsk, columns
from wattherd.policy.power.limits import DomainRoom

PiecesOf = Callable[[PowerCurve], Sequence[tuple[float, float]]]
"""Makes (gain, watts) pieces of a curve; a pure function, whose answers are kept."""
_HALVINGS = 50
"""Leave less than a microwatt of a level."""
_ROUNDING = 1e-11
"""Of a room: more than sums of it are off by, and a microwatt of 100 kW."""


@runtime_checkable
class SharesInTree(Protocol):
    """A power policy that knows of branches."""

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """A cap in watts per device for each ask; the rooms cover at least all floors."""
        ...


@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of all asks' curves (P,): whose, what it gains per step, watts per device."""

    job: Ints
    gain: Floats
    width_w: Floats


def segments_of(asks: Sequence[PowerAsk], of_curve: PiecesOf) -> Segments:
    """The (gain, watts) pieces that `of_curve` makes of each ask's curve, one ask after the other.

    Jobs of a kind have one curve: its pieces are made once.
    """
    return _segments(columns(asks).curves, of_curve)


def _segments(curves: CurveNumbers, of_curve: PiecesOf) -> Segments:
    pieces = [_pieces(of_curve, curve) for curve in curves.curves]
    if not pieces:
        return Segments(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    table = np.concatenate(pieces)
    lengths = np.array([len(rows) for rows in pieces], dtype=np.int64)
    counts = lengths[curves.of]
    job = np.repeat(np.arange(len(curves.of)), counts)
    begins = (np.cumsum(lengths) - lengths)[curves.of] - (np.cumsum(counts) - counts)
    rows = table[np.arange(len(job)) + begins[job]]
    return Segments(job, rows[:, 0], rows[:, 1])


@lru_cache(maxsize=4096)
def _pieces(of_curve: PiecesOf, curve: PowerCurve) -> Floats:
    """(n, 2) gain and watts of a curve's pieces."""
    return np.array(of_curve(curve), dtype=np.float64).reshape(-1, 2)


def steepest_first(asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
    """Every watt where it buys most progress per watt at the site (`fill`).

    Optimal where every job sits below one branch (a polymatroid: Edmonds, 1970); jobs across
    branches bend that a little.
    """
    table = columns(asks)
    caps = _steepest_by_class(table, limits)
    if caps is not None:
        return caps
    segments = segments_of(asks, PowerCurve.segments)
    return in_order_of(asks, limits, segments, -worth_of(asks, limits, segments))


def _steepest_by_class(table: Asks, limits: DomainRoom) -> list[float] | None:
    """The same, worked out class by class; None where any two pieces tie.

    Jobs with one curve, weight and cost have their pieces at the same places in that order: the
    pieces of some hundred classes are sorted instead of those of all jobs.
    """
    curves, weight = table.curves, table.weight
    if not curves.curves:
        return None
    cost = table.top_rate * table.devices * limits.price
    alike = np.lexsort((cost, weight, curves.of))  # stable: within a class as they were asked
    number, weight, cost = curves.of[alike], weight[alike], cost[alike]
    new = np.ones(len(alike), dtype=np.bool_)
    new[1:] = (number[1:] != number[:-1]) | (weight[1:] != weight[:-1]) | (cost[1:] != cost[:-1])
    first = np.flatnonzero(new)
    sizes = np.diff(np.append(first, len(alike)))
    kinds = CurveNumbers(curves.curves, number[first])
    pieces = _segments(kinds, PowerCurve.segments)
    key = -(pieces.gain * weight[first][pieces.job] / cost[first][pieces.job])
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    if not len(order) or (ranked[1:] == ranked[:-1]).any():
        return None  # among pieces that tie the job decides, whatever its class
    width_w, more_w = pieces.width_w[order], np.zeros(len(alike))
    room = np.maximum(_left(limits, table.floor_w * table.devices), 0.0)
    fill_by_class(
        pieces.job[order], width_w, first, sizes, alike, table.devices,
        limits.path, limits.scale, room, more_w,
    )  # fmt: skip
    return _caps(table, more_w)


def worth_of(asks: Sequence[PowerAsk], limits: DomainRoom, segments: Segments) -> Floats:
    """Weighted relative rate per watt at the site of each piece (P,) of the curves."""
    table = columns(asks)
    cost = table.top_rate * table.devices * limits.price
    worth: Floats = segments.gain * table.weight[segments.job] / cost[segments.job]
    return worth


def in_order_of(
    asks: Sequence[PowerAsk], limits: DomainRoom, segments: Segments, key: Floats
) -> list[float]:
    """Caps where pieces are served by ascending `key` (P,), ties in the order of the asks."""
    order, table = _served(segments, key), columns(asks)
    owner = segments.job[order]
    watts = segments.width_w[order] * table.devices[owner]
    given: Floats = np.zeros(len(order))
    room = np.maximum(_left(limits, table.floor_w * table.devices), 0.0)
    fill(owner, watts, limits.path, limits.scale, room, given)
    return _caps(table, np.asarray(np.bincount(owner, given, len(asks)), dtype=np.float64))


def _caps(table: Asks, more_w: Floats) -> list[float]:
    """Caps (J,) of jobs that have `more_w` (J,) above their floors, all devices together."""
    caps: list[float] = np.minimum(table.floor_w + more_w / table.devices, table.top_w).tolist()
    return caps


def _served(segments: Segments, key: Floats) -> Ints:
    """Pieces (P,) by `key`, then by job, then by width."""
    # Pieces stand job by job. Where each job's are in order already, as on every concave curve, a
    # stable sort by the key alone leaves them so, in a third of the time of three keys.
    ascends = (key[1:] > key[:-1]) | (segments.job[1:] != segments.job[:-1])
    if ascends.all():
        return np.argsort(key, kind="stable")
    return np.lexsort((segments.width_w, segments.job, key))


@kernel
def fill(job, watts, path, scale, room, given):  # type: ignore[no-untyped-def]
    """Serve pieces in order within `room` (D,) watts of each domain; `given` (P,) gets the parts.

    `path` (J, L) are the domains above a job, -1 where there are fewer, `scale` (J, L) what a watt
    of the job is there. Piece by piece, since jobs may sit below several branches; where none does,
    `filling` does the same in a few passes over arrays.
    """
    stopped = np.zeros(path.shape[0], dtype=np.bool_)
    going = path.shape[0]
    for piece in range(job.shape[0]):
        owner = job[piece]
        if stopped[owner]:
            continue
        part = watts[piece]
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                part = min(part, room[domain] / scale[owner, level])
        given[piece] = max(part, 0.0)
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                room[domain] -= given[piece] * scale[owner, level]
        if part < watts[piece]:
            stopped[owner] = True
            going -= 1
            if going == 0:
                break


@kernel
def fill_by_class(kind, width_w, first, sizes, alike, devices, path, scale, room, more_w):  # type: ignore[no-untyped-def]
    """As `fill`, of pieces that all jobs of a class have; `more_w` (J,) is what each job gets.

    Piece i of `width_w` watts per device is of class `kind[i]`, whose jobs are `sizes` of `alike`
    from `first` on. `devices` are each job's.
    """
    stopped = np.zeros(path.shape[0], dtype=np.bool_)
    going = path.shape[0]
    for piece in range(kind.shape[0]):
        begin = first[kind[piece]]
        for at in range(begin, begin + sizes[kind[piece]]):
            owner = alike[at]
            if stopped[owner]:
                continue
            watts = width_w[piece] * devices[owner]
            part = watts
            for level in range(path.shape[1]):
                domain = path[owner, level]
                if domain >= 0:
                    part = min(part, room[domain] / scale[owner, level])
            given = max(part, 0.0)
            more_w[owner] += given
            for level in range(path.shape[1]):
                domain = path[owner, level]
                if domain >= 0:
                    room[domain] -= given * scale[owner, level]
            if part < watts:
                stopped[owner] = True
                going -= 1
        if going == 0:
            break


def in_turn(asks: Sequence[PowerAsk], limits: DomainRoom, order: Sequence[int]) -> list[float]:
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
    asks: Sequence[PowerAsk], limits: DomainRoom, low_w: Sequence[float], high_w: Sequence[float]
) -> list[float]:
    """The highest common level 0..1 between `low_w` and `high_w`, within each curve's range."""
    low, high = np.array(low_w), np.array(high_w)
    return levelled_by(asks, limits, lambda level: low + level * (high - low))


def levelled_by(asks: Sequence[PowerAsk], limits: DomainRoom, wanted: _At) -> list[float]:
    """Caps `wanted` (J,) at the highest common level 0..1, within each curve's range.

    Progressive filling: where a branch is full, those below it stay; the level of others rises on.
    """
    table = columns(asks)
    floors, tops, devices = table.floor_w, table.top_w, table.devices
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


def within(asks: Sequence[PowerAsk], caps_w: Sequence[float], limits: DomainRoom) -> list[float]:
    """The caps, cut towards the floors below every domain that they are too much for."""
    table = columns(asks)
    floors, devices = table.floor_w, table.devices
    caps = np.clip(np.array(caps_w), floors, table.top_w)
    # Caps only fall here: a domain that holds them now holds them in the end. Policies that know
    # the tree fill it to the brim, so that a domain must be over by more than its sum may be off.
    over = _left(limits, caps * devices) < -_ROUNDING * limits.room_w
    for domain in np.flatnonzero(over).tolist():
        here = limits.path == domain
        weight = np.where(here, limits.scale, 0.0).sum(axis=1) * devices
        over_w = float(weight @ caps) - float(limits.room_w[domain])
        above_w = float(weight @ (caps - floors))
        if over_w > 0 and above_w > 0:
            keep = max(1.0 - over_w / above_w, 0.0)
            below = here.any(axis=1)
            caps[below] = floors[below] + keep * (caps - floors)[below]
    found: list[float] = caps.tolist()
    return found


def _watts(asks: Sequence[PowerAsk], caps: Sequence[float]) -> Floats:
    return np.array([ask.devices * cap for ask, cap in zip(asks, caps, strict=True)])


def _left(limits: DomainRoom, watts: Floats) -> Floats:
    """Room of every domain (D,) beside the jobs' `watts` (J,)."""
    room: Floats = limits.room_w.astype(np.float64, copy=True)
    here = limits.path >= 0
    taken = (watts[:, None] * limits.scale)[here]
    np.subtract.at(room, limits.path[here], taken)
    return room
