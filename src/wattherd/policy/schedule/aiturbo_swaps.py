"""AITurbo's sizing: resources change hands where that leaves the least service to be rendered.

A job's remaining service is V = (T_rem + pause) R, with R = kappa GPUs + cores and the pause of a
restart where the shape is not the one it runs in. Delta(x) is by how much V falls when one unit of
resource x is added or removed. Three trades use it:

- `settle`: a job trades with what is free as long as its V falls;
- `swap`: of all pairs of jobs the one with the largest gain G = Delta_i(+x) + Delta_j(-x) swaps,
  and again while G > 0. V grows with the work that is left, so that resources move to jobs that
  will be done soon, and to those whom one more unit of x unblocks;
- `spread`: devices that nobody waits for go, unit by unit, to whom they save most time per share of
  the cluster (Optimus' marginal gain): V alone would leave them idle, since no job scales
  perfectly.

The swap is the published one (HPDC'21, talk); the other two are ours, after the increase and
decrease queues of its authors' later code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wattherd.estimate.speed import JobShape
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.resize import ResizeAxis, ShapeDevices, cost_of, moved

MOST_SWAPS = 200
"""Per adaptation; a guard against cycles of gains that differ in the last digit."""


@dataclass(frozen=True, slots=True)
class ShapeBelief:
    """What is believed of a job in one shape: its cost, seconds per step, and moves by axis."""

    cost: ShapeDevices
    step_s: float
    adds: tuple[JobShape | None, ...]
    removals: tuple[JobShape | None, ...]


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """All shapes of one job that were ever considered; `step_s` infinite where it is not known."""

    spec: JobSpec
    step_s: Callable[[JobShape], float | None]
    _known: dict[JobShape, ShapeBelief] = field(default_factory=dict, repr=False)

    def at(self, shape: JobShape) -> ShapeBelief:
        """What is believed of a shape."""
        found = self._known.get(shape)
        if found is None:
            found = self._known[shape] = self._look(shape)
        return found

    def _look(self, shape: JobShape) -> ShapeBelief:
        step_s = self.step_s(shape)
        adds, removals = (
            tuple(moved(self.spec, shape, axis, sign) for axis in ResizeAxis) for sign in (1, -1)
        )
        return ShapeBelief(cost_of(shape), math.inf if step_s is None else step_s, adds, removals)


@dataclass(slots=True, kw_only=True)
class JobInSizing:
    """A job while its shape is being chosen; `runs_in` is None if it does not run now.

    `told`: its remaining steps come from its own curve.
    """

    number: int
    atlas: ShapeTable
    shape: JobShape
    runs_in: JobShape | None
    steps_left: float
    pause_s: float
    kappa: float
    told: bool = True
    _service: dict[JobShape, float] = field(default_factory=dict)

    def time_s(self, shape: JobShape) -> float:
        """Until it is done in this shape, the pause of a change included."""
        pause_s = 0.0 if shape == self.runs_in else self.pause_s
        return self.steps_left * self.atlas.at(shape).step_s + pause_s

    def service(self, shape: JobShape) -> float:
        """V."""
        known = self._service.get(shape)
        if known is None:
            cost = self.atlas.at(shape).cost
            known = self.time_s(shape) * (self.kappa * cost.gpus + cost.cores)
            self._service[shape] = known
        return known

    def delta(self, shape: JobShape) -> float:
        """By how much V falls from the present shape to another one."""
        return self.service(self.shape) - self.service(shape)

    def cost(self) -> ShapeDevices:
        """Of the present shape."""
        return self.atlas.at(self.shape).cost

    def benefit(self) -> float:
        """The largest Delta of adding anything; what ranks a predictable job."""
        adds = self.atlas.at(self.shape).adds
        return max((self.delta(shape) for shape in adds if shape is not None), default=-math.inf)


@dataclass(frozen=True, slots=True)
class _Move:
    """One job's move along one axis."""

    job: JobInSizing
    shape: JobShape
    gain: float

    @property
    def cost(self) -> ShapeDevices:
        return self.job.atlas.at(self.shape).cost - self.job.cost()


def settle(job: JobInSizing, free: ShapeDevices) -> None:
    """Trade with what is free (the job's own devices not counted) while V falls."""
    while True:
        known = job.atlas.at(job.shape)
        steps = (*known.removals, *known.adds)
        best, gain = None, 0.0
        for at, shape in enumerate(steps):
            if shape is None or job.delta(shape) <= gain:
                continue
            if at < len(known.removals) or job.atlas.at(shape).cost.within(free):
                best, gain = shape, job.delta(shape)
        if best is None:
            return
        job.shape = best


def swap(jobs: Sequence[JobInSizing], free: ShapeDevices) -> ShapeDevices:
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


def _both(job: JobInSizing) -> _Both:
    """Its additions and its removals, by axis."""
    known = job.atlas.at(job.shape)
    return [_move(job, one) for one in known.adds], [_move(job, one) for one in known.removals]


def _move(job: JobInSizing, shape: JobShape | None) -> _Move | None:
    if shape is None or not math.isfinite(gain := job.delta(shape)):
        return None
    return _Move(job, shape, gain)


def _best_pair(found: dict[int, _Both], free: ShapeDevices) -> tuple[_Move, _Move] | None:
    """(removal, addition) of one resource by two jobs with the largest gain above zero."""
    best: tuple[_Move, _Move] | None = None
    gain = 0.0
    for axis in ResizeAxis:
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


def spread(jobs: Sequence[JobInSizing], free: ShapeDevices, whole: ShapeDevices) -> ShapeDevices:
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


def _faster(job: JobInSizing, whole: ShapeDevices) -> list[tuple[float, _Move]]:
    """Moves that save time, with seconds saved per dominant share."""
    now_s = job.time_s(job.shape)
    found = []
    for shape in job.atlas.at(job.shape).adds:
        if shape is None:
            continue
        move = _Move(job, shape, now_s - job.time_s(shape))
        cost = move.cost
        share = max(cost.gpus / max(whole.gpus, 1), cost.cores / max(whole.cores, 1.0))
        if move.gain > 0 and share > 0:
            found.append((move.gain / share, move))
    return found
