"""All jobs' choices in flat arrays: what water-filling, rounding and searches compute on.

Python objects are read once, when the menu is made; whatever is decided afterwards, for this budget
or the next, is NumPy. Concave hulls are found here, for all jobs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.measured_curve import CurveChoice

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PowerChoices:
    """C choices of J jobs, by job and watts; job j's are the rows `first[j]` to `first[j + 1]`.

    `job`, `watts` and `value` are (C,), `first` (J + 1,). Watts and values ascend within a job.
    """

    first: Ints
    job: Ints
    watts: Floats
    value: Floats

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.first) - 1

    @property
    def least(self) -> Ints:
        """The row of each job's least choice (J,)."""
        return self.first[:-1]

    @property
    def most(self) -> Ints:
        """The row of each job's highest choice (J,)."""
        return np.asarray(self.first[1:] - 1)

    def highest(self, allowed: Bools) -> Ints:
        """Each job's highest row that is allowed (C,); its least where none is."""
        rows = np.where(allowed, np.arange(len(self.job)), self.first[self.job])
        return np.asarray(np.maximum.reduceat(rows, self.least), dtype=np.int64)

    def only(self, keep: Bools) -> tuple[PowerChoices, Ints]:
        """Some of the choices (C,), and the rows they have here; jobs without any are left out."""
        rows = np.flatnonzero(keep)
        jobs, sizes = np.unique(self.job[rows], return_counts=True)
        first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        owner = np.repeat(np.arange(len(jobs)), sizes)
        return PowerChoices(first, owner, self.watts[rows], self.value[rows]), rows

    def valued(self, value: Floats) -> PowerChoices:
        """The same choices with other values (C,)."""
        return replace(self, value=value)


def menu_of(jobs: Sequence[Sequence[CurveChoice]]) -> PowerChoices:
    """The choices of J jobs, each at least one, ascending in watts and value."""
    sizes = np.fromiter(map(len, jobs), dtype=np.int64, count=len(jobs))
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    every = list(chain.from_iterable(jobs))
    return PowerChoices(
        first=first,
        job=np.repeat(np.arange(len(jobs)), sizes),
        watts=np.array([one.watts for one in every], dtype=np.float64),
        value=np.array([one.value for one in every], dtype=np.float64),
    )


def hull_rows(menu: PowerChoices) -> Ints:
    """Rows on the jobs' upper concave hulls; the least and the most of every job are on it.

    A choice on or below the line between two others is on no hull, whoever these others are; so
    all that lie below their neighbours go at once, until none does.
    """
    rows = np.arange(len(menu.job))
    while len(rows) > 2:
        watts, value, job = menu.watts[rows], menu.value[rows], menu.job[rows]
        rise_w, rise = np.diff(watts), np.diff(value)
        # Two sides of one job's corner are compared by cross product: no division, no order.
        flat = rise[:-1] * rise_w[1:] <= rise[1:] * rise_w[:-1]
        below = flat & (job[:-2] == job[2:])
        if not below.any():
            break
        rows = rows[np.concatenate([[True], ~below, [True]])]
    return rows
