"""What planned jobs ask of a power tree, as rows of arrays in the order of submission.

A change of the plan adds or takes away a row; nothing is asked of the other jobs again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.ledger import JobRecord
from wattherd.engine.rooms import Branches, branch_table
from wattherd.policy.power.contract import Ask, Asks, ask_rows
from wattherd.policy.power.menu import Floats, Ints


class TreeAsking:
    """Jobs that share no device, their asks, and what stands above their devices."""

    def __init__(self) -> None:
        """Nobody asks."""
        self._numbers: list[int] = []
        self._jobs: list[JobRecord] = []
        self._asks: list[Ask] = []
        self._columns = ask_rows(())
        self._given_w: Floats = np.zeros(0)
        self.branches: Ints = branch_table(())
        """(J, L, 3) as in `rooms.Branches`."""

    @property
    def asks(self) -> Asks:
        """The asks of all jobs."""
        return Asks(self._asks, self._columns)

    def put(self, job: JobRecord, ask: Ask, branches: Branches) -> None:
        """A job asks for watts from now on."""
        at = bisect_left(self._numbers, job.number)
        self._numbers.insert(at, job.number)
        self._jobs.insert(at, job)
        self._asks.insert(at, ask)
        self._columns = _with_row(self._columns, at, ask_rows((ask,)))
        self._given_w = _with_row(self._given_w, at, np.array([np.nan]))
        depth = max(self.branches.shape[1], len(branches))
        row = branch_table((branches,), depth)
        if depth > self.branches.shape[1]:
            more = branch_table([()] * len(self.branches), depth - self.branches.shape[1])
            self.branches = np.concatenate((self.branches, more), axis=1)
        self.branches = _with_row(self.branches, at, row)

    def drop(self, job: JobRecord) -> None:
        """A job asks no more."""
        at = bisect_left(self._numbers, job.number)
        if at == len(self._numbers) or self._numbers[at] != job.number:
            return
        del self._numbers[at], self._jobs[at], self._asks[at]
        self._columns = _without_row(self._columns, at)
        self._given_w = _without_row(self._given_w, at)
        self.branches = _without_row(self.branches, at)

    def forget_caps(self) -> None:
        """Caps were given in another way since."""
        self._given_w = np.full(len(self._jobs), np.nan)

    def give(self, caps_w: Sequence[float]) -> list[JobRecord]:
        """Set the planned caps; returns jobs whose cap changed."""
        given_w = np.array(caps_w, dtype=np.float64)
        changed = []
        for at in np.flatnonzero(given_w != self._given_w).tolist():
            job, cap_w = self._jobs[at], caps_w[at]
            if job.wanted_cap_w != cap_w:
                job.wanted_cap_w = cap_w
                changed.append(job)
        self._given_w = given_w
        return changed


def _with_row(table: NDArray[Any], at: int, row: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate((table[:at], row, table[at:]))


def _without_row(table: NDArray[Any], at: int) -> NDArray[Any]:
    return np.concatenate((table[:at], table[at + 1 :]))
