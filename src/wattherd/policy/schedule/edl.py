"""Offline deadline scheduling of single-GPU tasks with DVFS (Mei et al., TPDS'21).

All tasks are there at time 0, none is preempted, each has a deadline. Every task first gets its
cheapest voltage and clocks (`estimate.dvfs`); one whose cheapest setting would miss the deadline on
an idle GPU is deadline-prior and gets the cheapest that does not. Tasks are then taken by deadline
(EDF) or longest first (LPT) and given to a GPU of a node that is on, or, if none fits, to the first
GPU of a further node:

- spt: the GPU that is free first. Where the task does not fit there, it may be sped up to `theta`
  of its time (theta-readjustment), if that makes it fit;
- bf, wf: of the GPUs where it fits, the one with the highest or lowest load, load being the
  greatest share of a deadline that the work up to that task takes;
- ff: the first GPU where it fits.

The published code never makes a task deadline-prior: it runs such a task at its cheapest and late
(`keep_deadlines=False` repeats that; it changes which heuristic is second).

A node is on from 0 until its last task ends, and its idle GPUs draw meanwhile. Work that is
stretched to save energy keeps whole nodes on: judge by the total, not by run energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.dvfs import FASTEST, ClockSetting, DvfsModel, OperatingPoint, at, cheapest

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineTask:
    """A task on one GPU, to be done by `deadline_s`."""

    model: DvfsModel
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EdlPool:
    """Nodes of `gpus_per_node`; what an idle GPU of a node that is on draws; cost of turning on.

    The defaults are those behind the published results: their idle energies are whole multiples of
    37 W (the published code now has 85).
    """

    gpus_per_node: int
    gpus: int = 2048
    idle_w: float = 37.0
    turn_on_j: float = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCost:
    """What a schedule costs; `missed` are tasks that no setting finishes in time."""

    run_j: float
    idle_j: float
    turn_on_j: float
    nodes: int
    missed: int

    @property
    def total_j(self) -> float:
        """Run, idle and turn-on."""
        return self.run_j + self.idle_j + self.turn_on_j


@dataclass(slots=True)
class _Gpus:
    """GPUs of all nodes that could be turned on; the first `used` are on.

    `end_s` is the end of the last task, `busy_s` the task times summed in whole seconds (the unit
    in which the published work books idle time), `load` as defined above.
    """

    end_s: Floats
    busy_s: Floats
    load: Floats
    used: int = 0


Chooser = Callable[[_Gpus, float, float], int | None]
"""(GPUs, the task's time, its deadline) -> GPU, or None where it does not fit."""


def _fitting(gpus: _Gpus, time_s: float, deadline_s: float) -> NDArray[np.int64]:
    return np.flatnonzero(gpus.end_s[: gpus.used] + time_s <= deadline_s)


def _first_free(gpus: _Gpus, _time_s: float, _deadline_s: float) -> int | None:
    """Whether it fits there is asked later: it may yet be sped up."""
    return int(np.argmin(gpus.end_s[: gpus.used])) if gpus.used else None


def _best_fit(gpus: _Gpus, time_s: float, deadline_s: float) -> int | None:
    """Among equals the last, as published."""
    fitting = _fitting(gpus, time_s, deadline_s)
    if not len(fitting):
        return None
    return int(fitting[len(fitting) - 1 - np.argmax(gpus.load[fitting][::-1])])


def _worst_fit(gpus: _Gpus, time_s: float, deadline_s: float) -> int | None:
    fitting = _fitting(gpus, time_s, deadline_s)
    return int(fitting[np.argmin(gpus.load[fitting])]) if len(fitting) else None


def _first_fit(gpus: _Gpus, time_s: float, deadline_s: float) -> int | None:
    fitting = _fitting(gpus, time_s, deadline_s)
    return int(fitting[0]) if len(fitting) else None


CHOOSERS: dict[str, Chooser] = {
    "spt": _first_free,
    "bf": _best_fit,
    "wf": _worst_fit,
    "ff": _first_fit,
}
ORDERS = ("edf", "lpt")
HEURISTICS = ("edf+spt", "edf+bf", "edf+wf", "lpt+ff")
"""The four that were published."""


def schedule(
    tasks: Sequence[DeadlineTask],
    heuristic: str,
    pool: EdlPool,
    *,
    dvfs: bool = True,
    theta: float = 1.0,
    keep_deadlines: bool = True,
) -> ScheduleCost:
    """Give every task a setting and a GPU.

    Raises:
        UserError: an unknown heuristic, theta outside of 0 to 1, or the pool is too small.
    """
    order, _, chooser = heuristic.partition("+")
    if order not in ORDERS or chooser not in CHOOSERS:
        raise UserError(f"unknown heuristic {heuristic!r}", hint=f"one of {', '.join(HEURISTICS)}")
    if not 0 < theta <= 1:
        raise UserError(f"theta {theta} is outside of 0 to 1", field="theta", hint="1: never")
    set_up = [
        (
            task,
            _operation(task, keep_deadline=keep_deadlines)
            if dvfs
            else at(task.model, ClockSetting()),
        )
        for task in tasks
    ]
    if order == "edf":
        set_up.sort(key=lambda pair: pair[0].deadline_s)
    else:
        set_up.sort(key=lambda pair: -pair[1].time_s)
    gpus = _Gpus(np.zeros(pool.gpus), np.zeros(pool.gpus), np.zeros(pool.gpus))
    speed_up = theta if dvfs and chooser == "spt" else None
    done = [_give(gpus, pool, pair, CHOOSERS[chooser], speed_up) for pair in set_up]
    return _outcome(gpus, pool, done, sum(late for _, late in done))


def _operation(task: DeadlineTask, *, keep_deadline: bool) -> OperatingPoint:
    """The cheapest setting on an idle GPU; the fastest there is where every one is too slow."""
    found = cheapest(task.model)
    if keep_deadline and found is not None and found.time_s > task.deadline_s:
        found = cheapest(task.model, max(task.deadline_s, task.model.fastest_s))
    return found or at(task.model, FASTEST)


def _give(
    gpus: _Gpus,
    pool: EdlPool,
    pair: tuple[DeadlineTask, OperatingPoint],
    choose: Chooser,
    theta: float | None,
) -> tuple[OperatingPoint, bool]:
    """Book the task; returns how it runs and whether it is late."""
    task, run = pair
    gpu = choose(gpus, run.time_s, task.deadline_s)
    left_s = -math.inf if gpu is None else task.deadline_s - float(gpus.end_s[gpu])
    faster = None if theta is None else _sped_up(task, run, left_s, theta)
    if left_s < run.time_s and faster is not None:
        run = faster
    elif left_s < run.time_s or gpu is None:
        gpu = _turn_on(gpus, pool)
    gpus.end_s[gpu] += run.time_s
    gpus.busy_s[gpu] += math.ceil(run.time_s)
    gpus.load[gpu] = max(gpus.load[gpu], gpus.busy_s[gpu] / task.deadline_s)
    return run, bool(gpus.end_s[gpu] > task.deadline_s * (1 + 1e-9))


def _sped_up(
    task: DeadlineTask, run: OperatingPoint, left_s: float, theta: float
) -> OperatingPoint | None:
    """The cheapest way to do it in `left_s`, if that is not below theta of its time."""
    if left_s <= max(theta * run.time_s, task.model.fastest_s):
        return None
    return cheapest(task.model, left_s)


def _turn_on(gpus: _Gpus, pool: EdlPool) -> int:
    """The first GPU of the next node."""
    first, gpus.used = gpus.used, gpus.used + pool.gpus_per_node
    if gpus.used > pool.gpus:
        raise UserError(
            f"{pool.gpus} GPUs are too few for these deadlines", hint="more GPUs, or later ones"
        )
    return first


def _outcome(
    gpus: _Gpus, pool: EdlPool, done: Sequence[tuple[OperatingPoint, bool]], missed: int
) -> ScheduleCost:
    busy = gpus.busy_s[: gpus.used].reshape(-1, pool.gpus_per_node)
    idle_s = float((busy.max(axis=1, initial=0.0)[:, None] - busy).sum())
    return ScheduleCost(
        run_j=math.fsum(run.energy_j for run, _ in done),
        idle_j=idle_s * pool.idle_w,
        turn_on_j=len(busy) * pool.turn_on_j,
        nodes=len(busy),
        missed=missed,
    )
