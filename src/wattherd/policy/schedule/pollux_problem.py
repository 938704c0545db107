"""What Pollux optimises: who gets how many GPUs on which nodes (OSDI'21, section 4.2).

A state says how many tasks of every job run on every node: an array (J, N) of whole numbers. Its
fitness is the power mean with exponent -1 (the harmonic mean) over jobs of

    SPEEDUP = goodput with what the state gives it / goodput with a fair share of the GPUs,

times a factor below one for each job that the state would restart: (age - restarts * delay) /
(age + delay). The second objective is utilisation, speedup per GPU in use.

A problem travels as plain data, because the search runs outside of the core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.goodput import best
from wattherd.jit import kernel
from wattherd.model.training import BatchRange, StepTime, TrainingReport

Floats = NDArray[np.float64]
States = NDArray[np.int16]
"""Tasks by (state, job, node)."""

RESTART_S = 30.0
"""What a restart costs, by the published scheduler's reckoning."""
NOT_ZERO = 1e-3
"""Added to speedups, so that jobs without GPUs are very bad, not infinitely so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxApplicant:
    """A job that may run: GPUs per task, numbers of tasks, what it has now, what it reported.

    `factor` is what remains of its speedup if it is restarted; `held` are (node, tasks); it cannot
    run on the nodes `barred`. Where there is no report, `speedup` says by number of tasks, from
    none on, how much better it is than in a fair share; empty: it is taken to scale perfectly.
    """

    unit: int
    least: int
    most: int
    factor: float
    held: tuple[tuple[int, int], ...] = ()
    barred: tuple[int, ...] = ()
    report: TrainingReport | None = None
    speedup: tuple[float, ...] = ()


def restart_factor(age_s: float, restarts: int, restart_s: float = RESTART_S) -> float:
    """How much of a job's speedup counts if it is restarted once more."""
    return max(age_s - restarts * restart_s, 0.0) / (age_s + restart_s)


def question(gpus: Sequence[int], applicants: Sequence[PolluxApplicant]) -> dict[str, Any]:
    """A problem as plain data: GPUs by node, and the jobs, the most important first."""
    return {"gpus": list(gpus), "jobs": [_plain(one) for one in applicants]}


def _plain(one: PolluxApplicant) -> dict[str, Any]:
    return {
        "unit": one.unit,
        "least": one.least,
        "most": one.most,
        "factor": one.factor,
        "held": [list(pair) for pair in one.held],
        "barred": list(one.barred),
        "report": None if one.report is None else asdict(one.report),
        "speedup": list(one.speedup),
    }


def _report(plain: Mapping[str, Any] | None) -> TrainingReport | None:
    if plain is None:
        return None
    inner = {
        "step_time": StepTime(**plain["step_time"]),
        "batches": BatchRange(**plain["batches"]),
    }
    return TrainingReport(**{**plain, **inner})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxProblem:
    """The question in arrays: columns by job (J,) and by node (N,).

    `speedup` (J, 2, K + 1) is by number of tasks, on one node and on several; `room` (J, N) is how
    many tasks a node can hold of a job that has it for itself.
    """

    gpus: NDArray[np.int64]
    unit: NDArray[np.int64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]
    factor: Floats
    held: States
    room: States
    speedup: Floats

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> PolluxProblem:
        """From plain data (`question`)."""
        gpus, jobs = np.array(asked["gpus"], dtype=np.int64), asked["jobs"]
        held = np.zeros((len(jobs), len(gpus)), dtype=np.int16)
        unit = np.array([job["unit"] for job in jobs], dtype=np.int64)
        room = (gpus // unit[:, None]).astype(np.int16)
        for row, job in enumerate(jobs):
            for node, tasks in job["held"]:
                held[row, node] = tasks
            room[row, job["barred"]] = 0
        most = np.minimum([job["most"] for job in jobs], room.sum(axis=1))
        reports = [_report(job["report"]) for job in jobs]
        told = [job.get("speedup") or () for job in jobs]
        return cls(
            gpus=gpus,
            unit=unit,
            least=np.array([job["least"] for job in jobs], dtype=np.int64),
            most=most,
            factor=np.array([job["factor"] for job in jobs]),
            held=held,
            room=room,
            speedup=_speedups(reports, told, most, fair_tasks(gpus.tolist(), unit.tolist())),
        )

    def gangs(self) -> States:
        """As many jobs as fit with their least tasks each, in order, on the freest nodes.

        Chance rarely finds room for a wide gang; the published scheduler has none.
        """
        state, free = np.zeros_like(self.held), self.gpus.copy()
        for job, (unit, least) in enumerate(zip(self.unit, self.least, strict=True)):
            row, left = np.zeros(len(free), dtype=np.int64), int(least)
            for node in np.argsort(-free, kind="stable"):
                row[node] = min(left, free[node] // unit, self.room[job, node])
                left -= int(row[node])
            if left == 0:
                state[job] = row
                free -= row * unit
        return state

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What kernels read: GPUs, unit, least, most, held, room, factor, speedup, scale."""
        # One node's worth of GPUs counts as a speedup of 1, as in the published implementation.
        scale = self.unit * len(self.gpus) / max(int(self.gpus.sum()), 1)
        given = self.gpus, self.unit, self.least, self.most, self.held, self.room
        return (*given, self.factor, self.speedup, scale)

    def evaluate(self, states: States) -> Floats:
        """(fitness, utilisation), both negative, as they are minimised, of every state (S, 2)."""
        arrays = self.arrays
        return np.array([judge(arrays, state) for state in states]).reshape(-1, 2)


@kernel
def judge(problem: Any, state: States) -> Any:
    """(fitness, utilisation) of one state (J, N), both negative, as they are minimised."""
    gpus, unit, held = problem[0], problem[1], problem[4]
    factor, speedup, scale = problem[6], problem[7], problem[8]
    jobs, nodes = state.shape
    below = faster = 0.0
    in_use = np.zeros(nodes, dtype=np.bool_)
    for job in range(jobs):
        tasks = across = 0
        moved = False
        for node in range(nodes):
            here = state[job, node]
            moved |= here != held[job, node]
            if here > 0:
                tasks += here
                across += 1
                in_use[node] = True
        plain = speedup[job, 1 if across > 1 else 0, tasks]
        counted = plain * scale[job] * (factor[job] if moved else 1.0)
        below += 1.0 / (counted + NOT_ZERO)
        faster += plain * unit[job]
    used = 0
    for node in range(nodes):
        used += gpus[node] if in_use[node] else 0
    return -jobs / below, -faster / max(used, 1)


ACROSS = 0.99
"""Of a told speedup, what is left on several nodes: enough to prefer one where there is a choice.
Speeds are not learned by number of nodes."""


def fair_tasks(gpus: Sequence[int], unit: Sequence[int]) -> list[int]:
    """Tasks of every job (of `unit` GPUs each) in an equal split of the GPUs."""
    total = max(float(sum(gpus)), 1.0)
    return [math.ceil(total / one / len(unit)) for one in unit]


def _speedups(
    reports: Sequence[TrainingReport | None],
    told: Sequence[Sequence[float]],
    most: NDArray[np.int64],
    fair: Sequence[int],
) -> Floats:
    """The table (J, 2, K + 1); a job that has reported nothing is taken to scale perfectly.

    A fair share may be a number of tasks over which no batch size can be split; then the best
    number counts as a speedup of 1, for a job without speedup would never run.
    """
    width = int(most.max(initial=1)) + 1
    table = np.zeros((len(reports), 2, width))
    for row, (report, share) in enumerate(zip(reports, fair, strict=True)):
        counts = np.arange(1, int(most[row]) + 1)
        if report is None and told[row]:
            known = np.asarray(told[row][1 : len(counts) + 1])
            table[row, 0, 1 : len(known) + 1] = known
            table[row, 1, 1 : len(known) + 1] = ACROSS * known
            continue
        if report is None:
            table[row, :, 1 : len(counts) + 1] = counts / share
            continue
        nodes = np.concatenate([np.ones_like(counts), np.full_like(counts, 2), [1]])
        found = best(report, nodes, np.concatenate([counts, counts, [share]])).goodput
        base = found[-1] if found[-1] > 0 else found.max()
        if base > 0:
            table[row, :, 1 : len(counts) + 1] = found[:-1].reshape(2, -1) / base
    return table
