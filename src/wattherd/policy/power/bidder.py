"""A learned power policy: a small network bids for every job, alone, by what is known of it.

Bids become parts of the jobs' ranges of watts: part = 1 / (1 + exp(-bid - level)), with the common
level at which the watts are just used up. So the network decides who gets more, never how much
there is, and the number of jobs does not matter to it. It only proposes.

`guarded` is what becomes of proposals: the guard's projection onto what the budgets allow.
Proposals may come from anywhere, a learned policy for one, and may be anything, even no numbers.
What is above a job's least is cut by the same part in every domain that would be exceeded,
innermost first; then every job gets its highest measured point within its watts, and what that
leaves over goes to those whose proposals were cut most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wattherd.errors import UserError
from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices
from wattherd.policy.power.limits import SLACK_W, DomainRoom

# --- The network ------------------------------------------------------------------------------
FEATURES = ("exponent", "doubt", "remaining", "length", "floor", "size", "weight", "room")
"""Of a job: the exponent believed of its power law, and its standard deviation; log2 of the half
hours that it still needs, and needs in all, uncapped; floor over maximum; log2 of its range in
units of 300 W; log2 of its weight; and for how much of all ranges there is room."""
IDLE_PART = 0.12
"""Power laws begin at this part of the maximum: an A100 of 400 W idles at some 50."""
HIDDEN = 8
SIZE = len(FEATURES) * HIDDEN + 2 * HIDDEN
_HALVINGS = 30
_FAR = 40.0
"""Levels beyond which every part is 0 or 1."""


@dataclass(frozen=True, slots=True)
class BidderInputs:
    """What is known of jobs, arrays of one shape (..., J); watts and seconds."""

    exponent: Floats
    doubt: Floats
    remaining_s: Floats
    length_s: Floats
    floor_w: Floats
    max_w: Floats
    weight: Floats

    @property
    def range_w(self) -> Floats:
        """Watts between floor and maximum."""
        return self.max_w - self.floor_w


def features(known: BidderInputs, running: Bools, room_w: Floats) -> Floats:
    """What the network sees (..., J, F); `running` says who runs.

    `room_w` (...) are the watts there are above the floors of those that run.
    """
    wanted_w = np.maximum(np.where(running, known.range_w, 0.0).sum(axis=-1), 1.0)
    room = np.clip(room_w / wanted_w, 0.0, 1.0)
    half_hour = 1800.0
    columns = (
        2.0 * known.exponent - 1.0,
        4.0 * known.doubt,
        np.log2(np.maximum(known.remaining_s, 10.0) / half_hour) / 2.0,
        np.log2(np.maximum(known.length_s, 10.0) / half_hour) / 2.0,
        known.floor_w / known.max_w,
        np.log2(np.maximum(known.range_w, 1.0) / 300.0),
        np.log2(known.weight),
        np.broadcast_to(2.0 * room[..., None] - 1.0, known.exponent.shape),
    )
    return np.stack(columns, axis=-1)


@dataclass(frozen=True, slots=True)
class Bidder:
    """One hidden layer of tanh; `parameters` (..., SIZE), leading axes are so many networks.

    Raises:
        UserError: the wrong number of parameters, or one that is no number.
    """

    parameters: Floats

    def __post_init__(self) -> None:
        """Refuse what was not trained for these features."""
        if self.parameters.shape[-1] != SIZE or not np.isfinite(self.parameters).all():
            problem = f"a policy has {SIZE} finite parameters"
            raise UserError(problem, field="parameters", hint="train it again: power train-rl")

    def bids(self, seen: Floats) -> Floats:
        """One bid per job (..., J) from features (..., J, F)."""
        wide = len(FEATURES) * HIDDEN
        shape = (*self.parameters.shape[:-1], len(FEATURES), HIDDEN)
        first = self.parameters[..., :wide].reshape(shape)
        offset = self.parameters[..., None, wide : wide + HIDDEN]
        last = self.parameters[..., wide + HIDDEN :]
        hidden = np.tanh(seen @ first + offset)
        return np.asarray((hidden @ last[..., :, None])[..., 0])


def sigmoid_parts(bids: Floats) -> Callable[[Floats], Floats]:
    """Parts of the ranges (..., J) at a level (..., 1)."""
    return lambda level: np.asarray(0.5 * (1.0 + np.tanh(0.5 * (bids + level))))


def levelled_parts(
    part_at: Callable[[Floats], Floats], range_w: Floats, room_w: Floats, far: float = _FAR
) -> Floats:
    """Parts (..., J) at the highest level, -far to far, at which `range_w` of them fit `room_w`.

    `part_at` must not fall when the level rises.
    """
    low, high = np.full((*room_w.shape, 1), -far), np.full((*room_w.shape, 1), far)
    enough = (part_at(high) * range_w).sum(axis=-1, keepdims=True) <= room_w[..., None]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = (part_at(middle) * range_w).sum(axis=-1, keepdims=True) <= room_w[..., None]
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(np.where(enough, part_at(np.full_like(low, far)), part_at(low)))


# --- What becomes of a proposal ---------------------------------------------------------------


def guarded(menu: PowerChoices, limits: DomainRoom, proposed_w: Floats) -> Ints:
    """The row of each job (J,) for proposals (J,) in watts; NaN stands for the least.

    Raises:
        UserError: the least choices do not fit.
    """
    least_w, most_w = menu.watts[menu.least], menu.watts[menu.most]
    wanted_w = np.clip(np.where(np.isnan(proposed_w), least_w, proposed_w), least_w, most_w)
    room_w = limits.left_w(least_w)
    allowed_w = least_w + cut(wanted_w - least_w, room_w, limits)
    rows = menu.highest(menu.watts <= allowed_w[menu.job] + SLACK_W)
    return _raised(menu, limits, rows, wanted_w)


def cut(above_w: Floats, room_w: Floats, limits: DomainRoom) -> Floats:
    """Watts above the least (J,), cut to the rooms (D,) above it by one part per domain."""
    above_w = above_w.copy()
    ranks = limits.ranks
    for rank in range(int(ranks.max(initial=-1)) + 1):
        load_w = limits.load_w(above_w)
        part = np.where(ranks == rank, kept_part(load_w, room_w), 1.0)
        above_w *= np.append(part, 1.0)[limits.path].min(axis=1)
    return above_w


def kept_part(load_w: Floats, room_w: Floats) -> Floats:
    """The part of loads that their rooms hold, at most 1."""
    return np.minimum(room_w / np.maximum(load_w, SLACK_W), 1.0)


def _raised(menu: PowerChoices, limits: DomainRoom, rows: Ints, wanted_w: Floats) -> Ints:
    """One more choice for each job where it fits, those first that lack most of their wish."""
    rows = rows.copy()
    room_w = limits.room_w - limits.load_w(menu.watts[rows])
    lack_w = wanted_w - menu.watts[rows]
    for job in np.argsort(-lack_w, kind="stable").tolist():
        if rows[job] == menu.most[job]:
            continue
        more_w = menu.watts[rows[job] + 1] - menu.watts[rows[job]]
        above = limits.path[job] >= 0
        domains, load_w = limits.path[job][above], more_w * limits.scale[job][above]
        if lack_w[job] > SLACK_W and bool((load_w <= room_w[domains]).all()):
            rows[job] += 1
            room_w[domains] -= load_w
    return rows
