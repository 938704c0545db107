"""The bids of all live jobs as columns, so that a plan costs little where many jobs wait.

A job has a row for as long as it lives. It is *fixed* where nothing but its rank moves its gain: it
can run in one way only, says how long it lasts, and nothing is learned of it. Nearly all jobs of
traces are. Fixed jobs are never looked at one by one: what is left of those that run, weights,
gains and who comes first are sums and sorts of columns. All others have a `Bid`.

The numbers are those of `Bid.best`, operation by operation: a job is ranked the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattherd.policy.contract import JobView
from wattherd.policy.schedule.job_bids import LEAST_PRICE, Bid, Options
from wattherd.policy.schedule.job_progress import LEAST_LEFT
from wattherd.policy.schedule.overdue import owed_first

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def _floats() -> Floats:
    return np.zeros(0)


def _ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _flags() -> Flags:
    return np.zeros(0, dtype=np.bool_)


COLUMNS = (
    "live", "fixed", "runs", "owed", "shaped", "number", "priority", "gpus", "all_gpus",
    "least_gpus", "alike", "account", "told", "stated", "done", "per_s", "rate",
    "one_per_s", "price", "pause_s", "left_s", "weight", "asked_per_s", "own_s", "waited_s",
    "in_vain_s",
)  # fmt: skip


class Waited(NamedTuple):
    """For how long a job had waited at a time, and whether it waits from then on."""

    at_s: float
    waited_s: float
    in_vain_s: float
    waits: bool

    def until(self, now_s: float) -> float:
        """For how long it has waited now."""
        return self.waited_s + (now_s - self.at_s if self.waits else 0.0)


@dataclass(slots=True)
class BidTable:
    """Rows of jobs; row numbers stay, and are used again when a job has gone."""

    row_of: dict[str, int] = field(default_factory=dict)
    jobs: list[JobView | None] = field(default_factory=list)
    options: list[Options | None] = field(default_factory=list)
    bids: dict[str, Bid] = field(default_factory=dict)
    """Of the jobs that are not fixed."""
    live: Flags = field(default_factory=_flags)
    fixed: Flags = field(default_factory=_flags)
    runs: Flags = field(default_factory=_flags)
    """Whether the plan so far gives it something."""
    owed: Flags = field(default_factory=_flags)
    """Whether it begins before others, since it waited too long."""
    shaped: Flags = field(default_factory=_flags)
    number: Ints = field(default_factory=_ints)
    priority: Ints = field(default_factory=_ints)
    gpus: Ints = field(default_factory=_ints)
    """What the loop counts: GPUs of the first role."""
    all_gpus: Ints = field(default_factory=_ints)
    """What a fixed job holds while it runs."""
    least_gpus: Ints = field(default_factory=_ints)
    alike: Ints = field(default_factory=_ints)
    """Equal for jobs that find the same room and the same watts."""
    account: Ints = field(default_factory=_ints)
    """Equal for jobs of one queue, tenant and user."""
    told: Ints = field(default_factory=_ints)
    """What the job was told last of why it waits: a `Told`."""
    stated: Floats = field(default_factory=_floats)
    done: Floats = field(default_factory=_floats)
    rate: Floats = field(default_factory=_floats)
    """Units a second that it does at present."""
    per_s: Floats = field(default_factory=_floats)
    one_per_s: Floats = field(default_factory=_floats)
    price: Floats = field(default_factory=_floats)
    pause_s: Floats = field(default_factory=_floats)
    left_s: Floats = field(default_factory=_floats)
    weight: Floats = field(default_factory=_floats)
    asked_per_s: Floats = field(default_factory=_floats)
    own_s: Floats = field(default_factory=_floats)
    """What is left, at the width that it asks for on its fastest model."""
    waited_s: Floats = field(default_factory=_floats)
    """For how long plans have given it nothing."""
    in_vain_s: Floats = field(default_factory=_floats)
    """It is not owed anything before it has waited for so long."""
    _spare: list[int] = field(default_factory=list)
    _by_left: Ints = field(default_factory=_ints)
    _by_gain: Ints = field(default_factory=_ints)
    _weights: Floats = field(default_factory=_floats)

    def put(self, job: JobView) -> int:
        """The row of a job, a new one for a job that has none."""
        row = self.row_of.get(job.id)
        if row is not None:
            return row
        row = self._spare.pop() if self._spare else len(self.jobs)
        if row == len(self.jobs):
            self.jobs.append(None)
            self.options.append(None)
            if row == len(self.live):
                self._grow()
        else:
            for name in COLUMNS:
                getattr(self, name)[row] = 0
        self.row_of[job.id], self.jobs[row] = row, job
        self.live[row] = True
        self.number[row], self.priority[row] = job.number, job.spec.priority
        self.least_gpus[row] = job.spec.least_gpus
        self._by_left = np.append(self._by_left, row)
        return row

    def _grow(self) -> None:
        more = max(len(self.live), 64)
        for name in COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))

    def drop(self, names: Iterable[str]) -> None:
        """Jobs that have gone."""
        for name in names:
            row = self.row_of.pop(name, None)
            if row is not None:
                self.live[row] = self.fixed[row] = self.runs[row] = self.owed[row] = False
                self.jobs[row] = self.options[row] = None
                self.rate[row] = 0.0
                self.bids.pop(name, None)
                self._spare.append(row)
                # At once: the row may be another job's in a moment.
                self._by_left = self._by_left[self._by_left != row]
                self._by_gain = self._by_gain[self._by_gain != row]

    def job(self, row: int) -> JobView:
        """The job of a row.

        Raises:
            KeyError: the row is nobody's.
        """
        job = self.jobs[row]
        if job is None:
            raise KeyError(row)
        return job

    def named(self, rows: Ints) -> list[JobView]:
        """The jobs of some rows."""
        return [self.job(row) for row in rows.tolist()]

    def weigh(self, scaling: float) -> None:
        """Weights by rank, the job with most left first; equal times by order of submission."""
        rows = self.fixed
        left = np.maximum(self.stated - self.done, LEAST_LEFT)
        wide = rows & (self.gpus > 0)
        np.divide(left, self.one_per_s, out=self.left_s, where=wide)
        np.divide(left, self.asked_per_s, out=self.own_s, where=wide)
        self._by_left = order = sorted_again(self._by_left, self.left_s, self.number)
        known = len(self._weights)
        if known < len(order):
            ranks = range(known + 1, 2 * len(order) + 1)
            # Not by numpy: its powers may differ in the last place from one machine to another.
            more = [(rank**scaling - (rank - 1) ** scaling) ** (1 / scaling) for rank in ranks]
            self._weights = np.concatenate([self._weights, np.array(more)])
        self.weight[order] = self._weights[: len(order)][::-1]
        for name, bid in self.bids.items():
            bid.weight = float(self.weight[self.row_of[name]])

    def owe(self, patience: float, room: float) -> Ints:
        """Note who is owed GPUs, as `overdue` has it; these rows, in order."""
        self.owed[:] = False
        (rows,) = (self.live & (self.gpus > 0) & (self.waited_s > self.in_vain_s)).nonzero()
        wait_s = patience * (self.own_s[rows] + self.pause_s[rows])
        rows = rows[self.waited_s[rows] > wait_s]
        if len(rows):
            first = owed_first(self.priority[rows], self.number[rows], self.gpus[rows], room)
            rows = rows[first]
            self.owed[rows] = True
        for name, bid in self.bids.items():
            bid.owed = bool(self.owed[self.row_of[name]])
        return rows

    def waits(self, now_s: float) -> dict[str, Waited]:
        """How long each job has waited, as the plan of this time leaves it."""
        return {
            name: Waited(
                now_s,
                float(self.waited_s[row]),
                float(self.in_vain_s[row]),
                not self.runs[row],
            )
            for name, row in self.row_of.items()
        }

    def by_gain(self, barred: Iterable[str]) -> tuple[Ints, Floats]:
        """Fixed jobs that need GPUs, the most important first, then most gain; gains by row."""
        rows = self.fixed & (self.gpus > 0)
        for name in barred:
            rows[self.row_of[name]] = False
        left = np.maximum(self.stated - self.done, LEAST_LEFT)
        ones = np.ones(len(left))
        time_s = np.divide(left, self.per_s, out=ones, where=rows)
        time_s += np.where(self.runs, 0.0, self.pause_s)
        gain = np.divide(left / time_s, self.one_per_s, out=np.zeros(len(left)), where=rows)
        gain = self.weight * gain / np.maximum(self.price, LEAST_PRICE)
        gain[self.owed] = np.inf
        known = np.zeros(len(rows), dtype=np.bool_)
        known[self._by_gain] = True
        (new,) = (rows & ~known).nonzero()
        hint = np.concatenate([self._by_gain[rows[self._by_gain]], new])
        order = sorted_again(hint, -gain, self.number)
        self._by_gain = order
        order = order[gain[order] > 0]
        priority = self.priority[order]
        if len(order) and (priority != priority[0]).any():
            order = order[np.argsort(-priority, kind="stable")]
        return order, gain


def sorted_again(order: Ints, keys: Floats, ties: Ints) -> Ints:
    """`order` by `keys`, equal ones by `ties`; quick where few have moved since."""
    moved = np.argsort(keys[order], kind="stable")
    order = order[moved]
    here, tie = keys[order], ties[order]
    if ((here[1:] == here[:-1]) & (tie[1:] < tie[:-1])).any():
        order = order[np.lexsort((tie, here))]
    return order


def filled(widths: Ints, free: int) -> Flags:
    """Who gets GPUs if each in turn takes its width, or nothing where too few are left."""
    taken = np.zeros(len(widths), dtype=np.bool_)
    (rest,) = (widths <= free).nonzero()
    while len(rest):
        sums = widths[rest].cumsum()
        count = int(np.searchsorted(sums, free, side="right"))
        taken[rest[:count]] = True
        free -= int(sums[count - 1])
        rest = rest[count:]
        rest = rest[widths[rest] <= free]
    return taken
