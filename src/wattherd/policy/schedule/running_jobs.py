"""The jobs that run, in order, kept from plan to plan.

Where keys stay (FIFO, priority, LAS) they stand in one list, and only who starts, stops or falls to
another queue is sorted in. Where keys move while jobs run (SRTF, SRSF, Gittins) what they are made
of stands in columns: the keys of all are worked out at once, and only jobs behind the one that asks
are sorted. Looked at one by one, ten thousand plans of some thousand running jobs took most of the
time of a run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wattherd.policy.schedule.priorities import JobStanding, Key

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
End = tuple[float, int, "JobStanding"]
"""When a job is through, its number, and who it is."""

_FIRST_ROWS = 64


class KeptKeys:
    """Jobs that run, by keys that change only when somebody says so."""

    def __init__(self) -> None:
        """Nobody runs."""
        self._line: list[tuple[Key, JobStanding]] = []
        self._keys: dict[str, Key] = {}
        """The key under which each of them stands."""

    def put(self, standing: JobStanding) -> None:
        """A job runs, under the key that it has now."""
        self.drop(standing.job.id)
        self._keys[standing.job.id] = standing.key
        insort(self._line, (standing.key, standing))

    def drop(self, job_id: str) -> None:
        """A job runs no more, if it did."""
        key = self._keys.pop(job_id, None)
        if key is not None:
            del self._line[bisect_left(self._line, (key,))]

    def in_order(self) -> list[JobStanding]:
        """First ones first."""
        return [standing for _, standing in self._line]

    def from_last(self) -> Iterator[JobStanding]:
        """Last ones first, as far as somebody asks; nobody is put or dropped meanwhile."""
        return (standing for _, standing in reversed(self._line))


class LastFirst:
    """Jobs that run, from the last one on, looked for as far as somebody asks for them."""

    def __init__(self, coming: Iterator[JobStanding]) -> None:
        """`coming` is in order, the last one first."""
        self._coming = coming
        self._found: list[JobStanding] = []

    def until(self, key: Key) -> Iterator[JobStanding]:
        """Those who do not come before `key`."""
        at = 0
        while True:
            if at == len(self._found):
                more = next(self._coming, None)
                if more is None:
                    return
                self._found.append(more)
            one = self._found[at]
            if one.key < key:
                return
            yield one
            at += 1


class RunningColumns:
    """What the keys of jobs that run are made of; each column has one row a job.

    Rows are in no order; numbers are exact as floats.
    """

    def __init__(self) -> None:
        """Nobody runs."""
        self._standings: list[JobStanding] = []
        self._rows: dict[str, int] = {}
        self._table: Floats = np.zeros((9, _FIRST_ROWS))

    def put(self, standing: JobStanding) -> None:
        """A job runs, or what its key is made of is another one."""
        row = self._rows.get(standing.job.id)
        if row is None:
            row = self._rows[standing.job.id] = len(self._standings)
            self._standings.append(standing)
            if row == self._table.shape[1]:
                self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        self._table[:, row] = (
            standing.left_s, standing.works_from_s, standing.since_s, standing.served_s,
            standing.holds_s, standing.gpus, standing.queue, standing.job.spec.submit_s,
            standing.job.number,
        )  # fmt: skip

    def drop(self, job_id: str) -> None:
        """A job runs no more, if it did."""
        row = self._rows.pop(job_id, None)
        if row is None:
            return
        last = self._standings.pop()
        if row < len(self._standings):  # the last one takes its place
            self._standings[row] = last
            self._rows[last.job.id] = row
            self._table[:, row] = self._table[:, len(self._standings)]

    def _column(self, number: int) -> Floats:
        return self._table[number, : len(self._standings)]

    @property
    def holds_s(self) -> Floats:
        """(R,) how long after its start each keeps the rank with which it started."""
        return self._column(4)

    @property
    def gpus(self) -> Floats:
        """(R,) GPUs of each."""
        return self._column(5)

    @property
    def queue(self) -> Floats:
        """(R,) the queue of each."""
        return self._column(6)

    @property
    def submit_s(self) -> Floats:
        """(R,) when each was submitted."""
        return self._column(7)

    @property
    def number(self) -> Floats:
        """(R,) number of each, in order of submission."""
        return self._column(8)

    @property
    def served_s(self) -> Floats:
        """(R,) time for which each had held devices when it started last."""
        return self._column(3)

    def held_s(self, now_s: float) -> Floats:
        """(R,) for how long each has held its devices."""
        return now_s - self._column(2)

    def remaining_s(self, now_s: float) -> Floats:
        """(R,) work left of each, as `JobStanding.remaining_s`."""
        left_s, done_s = self._column(0), now_s - self._column(1)
        return np.where(done_s > 0, left_s - done_s, left_s)

    def from_last(self, keys: Sequence[Floats], key: Key) -> Iterator[JobStanding]:
        """Those who do not come before `key`, last ones first, as far as somebody asks.

        They get the keys that they have now; `keys` are columns (R,). Nobody is put or dropped
        meanwhile. Mostly a few are asked for, of the thousands that there are.
        """
        later = np.zeros(len(self._standings), dtype=np.bool_)
        equal = np.ones(len(self._standings), dtype=np.bool_)
        for column, value in zip(keys, key, strict=True):
            later |= equal & (column > value)
            equal &= column == value
        rest, count = later | equal, _FIRST_ROWS
        while len(rows := np.flatnonzero(rest)):
            last = _last(rows, keys, count)
            rest[last] = False
            last = last[np.lexsort([column[last] for column in reversed(keys)])[::-1]]
            columns = (column[last].tolist() for column in keys)
            for row, *own in zip(last.tolist(), *columns, strict=True):
                standing = self._standings[row]
                standing.key = tuple(own)
                yield standing
            count *= 2

    def ends(self, now_s: float) -> Iterator[End]:
        """When each is through, the first ones first, as far as somebody asks."""
        left_s, works_s, number = self._column(0), self._column(1), self.number
        late = now_s + (left_s - (now_s - works_s))
        ends_s = np.where(works_s < now_s, late, works_s + left_s)
        rows = np.arange(len(ends_s))
        while len(rows):
            # Mostly a few ends are waited for, of the thousands that there are.
            first = rows
            if len(rows) > _FIRST_ROWS:
                limit_s = np.partition(ends_s[rows], _FIRST_ROWS)[_FIRST_ROWS]
                first = rows[ends_s[rows] <= limit_s]
            for row in first[np.lexsort((number[first], ends_s[first]))].tolist():
                standing = self._standings[row]
                yield float(ends_s[row]), standing.job.number, standing
            rows = rows[ends_s[rows] > limit_s] if first is not rows else rows[:0]


def _last(rows: Rows, keys: Sequence[Floats], count: int) -> Rows:
    """So many of `rows`, those that come last by `keys`, in any order; ties beyond those stay in.

    What is no number comes last.
    """
    if len(rows) <= count or not keys:
        return rows
    column = keys[0][rows]
    limit = np.partition(column, len(rows) - count)[len(rows) - count]
    if np.isnan(limit):
        return rows
    above, tied = rows[~(column <= limit)], rows[column == limit]
    return np.concatenate((above, _last(tied, keys[1:], count - len(above))))
