"""AITurbo's sizing: resources change hands where that leaves the least service to be rendered.

A job's remaining service is V = (T_rem + pause) R, with R = kappa GPUs + cores (kappa = 10 CPU
equivalents per GPU) and the pause of a restart where the shape is not the one it runs in. Delta(x)
is by how much V falls when one unit of resource x is added or removed. Of all pairs of jobs the one
with the largest gain G = Delta_i(+x) + Delta_j(-x) swaps, and again while G > 0. V grows with the
work that is left, so that resources move to jobs that will be done soon, and to those whom one more
unit of x unblocks.

Devices that nobody wants after that go, unit by unit, to whom they save most time per share of the
cluster (Optimus' marginal gain): V alone would leave them idle, since no job scales perfectly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wattherd.estimate.speed import Shape
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.resize import Axis, Cost, cost_of, moved, moves

KAPPA = 10.0
MOST_SWAPS = 200
"""Per adaptation; a guard against cycles of gains that differ in the last digit."""


@dataclass(slots=True, kw_only=True)
class Sized:
    """A job while its shape is being chosen; `runs_in` is None if it does not run now."""

    number: int
    spec: JobSpec
    shape: Shape
    runs_in: Shape | None
    steps_left: float
    step_s: Callable[[Shape], float | None]
    pause_s: float
    kappa: float = KAPPA
    _service: dict[Shape, float] = field(default_factory=dict)

    def time_s(self, shape: Shape) -> float:
        """Until it is done in this shape, the pause of a change included."""
        step_s = self.step_s(shape)
        if step_s is None:
            return math.inf
        pause_s = 0.0 if shape == self.runs_in else self.pause_s
        return self.steps_left * step_s + pause_s

    def service(self, shape: Shape) -> float:
        """V."""
        known = self._service.get(shape)
        if known is None:
            cost = cost_of(shape)
            known = self._service[shape] = self.time_s(shape) * (
                self.kappa * cost.gpus + cost.cores
            )
        return known

    def delta(self, shape: Shape) -> float:
        """By how much V falls from the present shape to another one."""
        return self.service(self.shape) - self.service(shape)

    def benefit(self) -> float:
        """The largest Delta of adding anything; what ranks a predictable job."""
        gains = [self.delta(shape) for _, shape in moves(self.spec, self.shape, 1)]
        return max(gains, default=-math.inf)


@dataclass(frozen=True, slots=True)
class _Move:
    """One job's move along one axis."""

    job: Sized
    shape: Shape
    gain: float

    @property
    def cost(self) -> Cost:
        return cost_of(self.shape) - cost_of(self.job.shape)


def _best_first(job: Sized, axis: Axis, sign: int) -> _Move | None:
    shape = moved(job.spec, job.shape, axis, sign)
    if shape is None or not math.isfinite(gain := job.delta(shape)):
        return None
    return _Move(job, shape, gain)


def swap(jobs: Sequence[Sized], free: Cost) -> Cost:
    """Swap while anything is gained; changes the jobs' shapes, returns what is free then."""
    found = {job.number: _both(job) for job in jobs}
    for _ in range(MOST_SWAPS):
        best = _best_pair(found, free)
        if best is None:
            return free
        for move in best:
            free = free - move.cost
            move.job.shape = move.shape
            found[move.job.number] = _both(move.job)
    return free


_Both = tuple[list[_Move | None], list[_Move | None]]


def _both(job: Sized) -> _Both:
    """Its additions and its removals, by axis."""
    adds, removals = ([_best_first(job, axis, sign) for axis in Axis] for sign in (1, -1))
    return adds, removals


def _best_pair(found: dict[int, _Both], free: Cost) -> tuple[_Move, _Move] | None:
    """(removal, addition) of one resource by two jobs with the largest gain above zero."""
    best: tuple[_Move, _Move] | None = None
    gain = 0.0
    for axis in Axis:
        adds = _ranked([both[0][axis] for both in found.values()])
        removals = _ranked([both[1][axis] for both in found.values()])
        if not (adds and removals) or adds[0].gain + removals[0].gain <= gain:
            continue
        for add in adds:
            if add.gain + removals[0].gain <= gain:
                break
            for removal in removals:
                total = add.gain + removal.gain
                if total <= gain:
                    break
                if add.job is not removal.job and (add.cost + removal.cost).within(free):
                    best, gain = (removal, add), total
                    break
    return best


def _ranked(found: Sequence[_Move | None]) -> list[_Move]:
    return sorted(
        (move for move in found if move is not None), key=lambda move: (-move.gain, move.job.number)
    )


def spread(jobs: Sequence[Sized], free: Cost, whole: Cost) -> Cost:
    """Give what is free to whom it saves most time per share of the whole; changes shapes."""
    best = {job.number: _faster(job, whole) for job in jobs}
    by_number = {job.number: job for job in jobs}
    while True:
        open_ = [
            (gain, number, move)
            for number, options in best.items()
            for gain, move in options
            if move.cost.within(free)
        ]
        if not open_:
            return free
        _, number, move = max(open_, key=lambda one: (one[0], -one[1]))
        free = free - move.cost
        move.job.shape = move.shape
        best[number] = _faster(by_number[number], whole)


def _faster(job: Sized, whole: Cost) -> list[tuple[float, _Move]]:
    """Moves that save time, with seconds saved per dominant share."""
    now_s = job.time_s(job.shape)
    found = []
    for _, shape in moves(job.spec, job.shape, 1):
        move = _Move(job, shape, now_s - job.time_s(shape))
        share = max(move.cost.gpus / max(whole.gpus, 1), move.cost.cores / max(whole.cores, 1.0))
        if move.gain > 0 and share > 0:
            found.append((move.gain / share, move))
    return found
