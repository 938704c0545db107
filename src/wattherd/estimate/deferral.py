"""When deferrable jobs run, so that their energy is cheap or clean: published rules and a bound.

Every rule sees the rates to come and one job's length and deadline, never other jobs; `optimum`
sees all jobs and a limit of GPUs, and is a bound that no plan within that limit can beat. Rules:

* `now`: at once.
* `lowest-slot`, `lowest-window`, `carbon-time` (GAIA, ASPLOS 2024): one start, no pause. At the
  beginning of the lowest rate; where the whole run is the cheapest; where most is saved for each
  second until the end.
* `threshold`: runs while the rate is at or below a quantile of its time, and when it has to.
* `wait-awhile` (Wiesner et al., Middleware 2021): the cheapest seconds, with pauses.
* `carbon-scaler` (POMACS 2023): the same for jobs that run on more or fewer GPUs: seconds and GPUs
  that bring the most work for their emissions first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.rates import Bill, EnergyRates

THRESHOLD = 0.3
"""Quantile of the rates between submission and deadline up to which `threshold` runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferrable:
    """A job: `work_s` seconds on `gpus` GPUs, which draw `watts` together, done by `deadline_s`.

    `speeds` are its speeds on 1, 2, ... times `gpus`, the first one 1; more than one: elastic.

    Raises:
        UserError: a deadline that cannot be kept, or speeds that do not rise ever less.
    """

    name: str
    submit_s: float
    work_s: float
    gpus: float
    watts: float
    deadline_s: float
    speeds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Check what every rule relies on."""
        if not self.work_s > 0 or not self.deadline_s >= self.submit_s + self.work_s - 1e-6:
            raise UserError("cannot be done by its deadline", where=self.name, field="deadline_s")
        gains = [later - sooner for sooner, later in pairwise((0.0, *self.speeds))]
        if self.speeds[:1] != (1.0,) or any(one <= 0 for one in gains):
            raise UserError("speeds begin with 1 and rise", where=self.name, field="scaling")
        if any(later > sooner + 1e-9 for sooner, later in pairwise(gains)):
            raise UserError("each GPU more must bring no more than the one before it",
                            where=self.name, field="scaling")  # fmt: skip

    @property
    def latest_s(self) -> float:
        """The last moment to start without a pause."""
        return max(self.submit_s, self.deadline_s - self.work_s)


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """A job runs from `start_s` to `end_s` on `width` times its GPUs."""

    start_s: float
    end_s: float
    width: int = 1


Rule = Callable[[Deferrable, "RateSignal"], list[DeferredRun]]


class RateSignal:
    """One figure of rates, by which rules choose: the first steps of it that have no gap."""

    def __init__(self, rates: EnergyRates, what: str, from_s: float = -math.inf) -> None:
        """`what` is `cost` or `carbon`; rows that end by `from_s` are left out.

        Raises:
            UserError: it is not known at the beginning.
        """
        self.edges_s: list[float] = []
        self.values: list[float] = []
        for row in rates.rows:
            if row.end_s <= from_s:
                continue
            value = row.price if what == "cost" else row.carbon_g
            if value is None or (self.edges_s and row.start_s > self.edges_s[-1]):
                break
            if not self.edges_s:
                self.edges_s.append(row.start_s)
            self.edges_s.append(row.end_s)
            self.values.append(value)
        if not self.values:
            raise UserError(f"no {what} is given for the start", field="--rates")
        lengths_s = np.diff(np.array(self.edges_s))
        self._sums = np.concatenate([[0.0], np.cumsum(np.array(self.values) * lengths_s)])

    @property
    def ends_s(self) -> float:
        """Up to when it is known."""
        return self.edges_s[-1]

    def integral(self, from_s: float, until_s: float) -> float:
        """The figure times seconds."""
        return float(np.interp(until_s, self.edges_s, self._sums)
                     - np.interp(from_s, self.edges_s, self._sums))  # fmt: skip

    def slots(self, from_s: float, until_s: float) -> list[tuple[float, float, float]]:
        """Beginning, end and value of each step between two moments."""
        first = max(0, int(np.searchsorted(self.edges_s, from_s, side="right")) - 1)
        found = []
        for at in range(first, len(self.values)):
            start_s = max(self.edges_s[at], from_s)
            end_s = min(self.edges_s[at + 1], until_s)
            if self.edges_s[at] >= until_s:
                break
            if start_s < end_s:
                found.append((start_s, end_s, self.values[at]))
        return found


# --- one start, no pause -------------------------------------------------------------------------


def now(job: Deferrable, _: RateSignal) -> list[DeferredRun]:
    """At once."""
    return [DeferredRun(job.submit_s, job.submit_s + job.work_s)]


def lowest_slot(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """At the beginning of the lowest rate, of equal ones the first; its length is not asked."""
    slots = signal.slots(job.submit_s, math.nextafter(job.latest_s, math.inf))
    start_s = min(slots, key=lambda one: (one[2], one[0]))[0] if slots else job.submit_s
    return [DeferredRun(start_s, start_s + job.work_s)]


def lowest_window(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """Where the whole run is the cheapest, of equal starts the first."""
    start_s = min(_starts(job, signal), key=lambda one: (_run(job, signal, one), one))
    return [DeferredRun(start_s, start_s + job.work_s)]


def cheapest_known_start(job: Deferrable, signal: RateSignal) -> float:
    """The same among runs that end while the rate is known; at once where none does.

    Nothing is gained by guessing what comes after the last rate: it is asked again when more is
    known, and until then a run that is known to be cheap is not given up.
    """
    starts = [one for one in _starts(job, signal) if one + job.work_s <= signal.ends_s]
    if job.submit_s < signal.ends_s - job.work_s < job.latest_s:
        starts.append(signal.ends_s - job.work_s)
    return min(starts, key=lambda one: (_run(job, signal, one), one), default=job.submit_s)


def carbon_time(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """Where most is saved for each second from submission to the end; at once if nothing is."""
    at_once = _run(job, signal, job.submit_s)

    def worth(start_s: float) -> float:
        return (at_once - _run(job, signal, start_s)) / (start_s - job.submit_s + job.work_s)

    start_s = max(_starts(job, signal), key=lambda one: (worth(one), -one))
    return [DeferredRun(start_s, start_s + job.work_s)]


def _starts(job: Deferrable, signal: RateSignal) -> list[float]:
    """The cost of a run is linear between these starts, so that one of them is the cheapest."""
    edges = np.array(signal.edges_s)
    found = {job.submit_s, job.latest_s}
    for moments in (edges, edges - job.work_s):
        inside = moments[(moments > job.submit_s) & (moments < job.latest_s)]
        found.update(inside.tolist())
    return sorted(found)


def _run(job: Deferrable, signal: RateSignal, start_s: float) -> float:
    return signal.integral(start_s, start_s + job.work_s)


# --- with pauses ---------------------------------------------------------------------------------


def threshold(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """While the rate is low, and from when every second is needed until the deadline on."""
    slots = signal.slots(job.submit_s, job.deadline_s)
    lengths = np.array([end_s - start_s for start_s, end_s, _ in slots])
    values = np.array([value for _, _, value in slots])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(lengths[order]) >= THRESHOLD * lengths.sum() - 1e-9
    limit = values[order][int(np.argmax(reached))]
    found: list[DeferredRun] = []
    left_s = job.work_s
    for start_s, end_s, value in slots:
        if left_s <= 1e-9:
            break
        must_s = max(start_s, job.deadline_s - left_s)
        begin_s = start_s if value <= limit else must_s
        if begin_s < end_s:
            lasts_s = min(end_s - begin_s, left_s)
            found.append(DeferredRun(begin_s, begin_s + lasts_s))
            left_s -= lasts_s
    return joined(found)


def wait_awhile(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """The cheapest seconds between submission and deadline."""
    return _scaled(job, signal, (1.0,))


def carbon_scaler(job: Deferrable, signal: RateSignal) -> list[DeferredRun]:
    """The seconds and GPUs that bring the most work for what they cost."""
    return _scaled(job, signal, job.speeds)


def _scaled(job: Deferrable, signal: RateSignal, speeds: Sequence[float]) -> list[DeferredRun]:
    """Greedy by work for cost: the optimum of one job, as each GPU more brings no more.

    Where rates are below zero, wasting energy would pay; that is not done.
    """
    gains = [later - sooner for sooner, later in pairwise((0.0, *speeds))]
    slots = signal.slots(job.submit_s, job.deadline_s)
    heap = [
        (value / gain, start_s, step, number)
        for number, (start_s, _, value) in enumerate(slots)
        for step, gain in enumerate(gains)
    ]
    if min((value for _, _, value in slots), default=0.0) < 0:
        heap = [(value, start_s, step, number) for number, (start_s, _, value) in enumerate(slots)
                for step in range(len(gains))]  # fmt: skip
    heapq.heapify(heap)
    widths: dict[int, list[tuple[int, float]]] = {}
    left_s = job.work_s
    while heap and left_s > 1e-9:
        _, start_s, step, number = heapq.heappop(heap)
        whole_s = slots[number][1] - start_s
        lasts_s = min(whole_s, left_s / gains[step])
        widths.setdefault(number, []).append((step, lasts_s))
        left_s -= lasts_s * gains[step]
    found: list[DeferredRun] = []
    for number, taken in sorted(widths.items()):
        found += _stacked(slots[number][0], taken)
    return joined(found)


def _stacked(start_s: float, taken: Iterable[tuple[int, float]]) -> list[DeferredRun]:
    """Steps of width in one slot, the widest part first."""
    lasting = sorted(taken)
    cuts = sorted({0.0, *(lasts_s for _, lasts_s in lasting)})
    return [
        DeferredRun(
            start_s + from_s, start_s + until_s, sum(lasts_s >= until_s for _, lasts_s in lasting)
        )
        for from_s, until_s in pairwise(cuts)
    ]


def joined(pieces: Iterable[DeferredRun]) -> list[DeferredRun]:
    """Pieces of the same width that follow one another as one."""
    found: list[DeferredRun] = []
    for one in pieces:
        if found and found[-1].width == one.width and abs(found[-1].end_s - one.start_s) < 1e-6:
            found[-1] = DeferredRun(found[-1].start_s, one.end_s, one.width)
        else:
            found.append(one)
    return found


RULES: dict[str, Rule] = {
    "now": now,
    "lowest-slot": lowest_slot,
    "lowest-window": lowest_window,
    "carbon-time": carbon_time,
    "threshold": threshold,
    "wait-awhile": wait_awhile,
    "carbon-scaler": carbon_scaler,
}
ONE_START = ("now", "lowest-slot", "lowest-window", "carbon-time")
"""Rules that a begin time of each job carries out."""


# --- what comes of it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralOutcome:
    """What a rule made of all jobs; `peak_gpus` is the most in use at once, `stops` all pauses."""

    rule: str
    bill: Bill
    mean_completion_s: float
    mean_wait_s: float
    stops: int
    missed: int
    peak_gpus: float


def outcome(
    rule: str,
    jobs: Sequence[Deferrable],
    plans: Sequence[Sequence[DeferredRun]],
    rates: EnergyRates,
) -> DeferralOutcome:
    """The figures of a rule's plans, one for each job."""
    bill = Bill()
    changes: list[tuple[float, float]] = []
    for job, plan in zip(jobs, plans, strict=True):
        for one in plan:
            bill = bill.plus(rates.bill(job.watts * one.width, one.start_s, one.end_s))
            changes += [(one.start_s, job.gpus * one.width), (one.end_s, -job.gpus * one.width)]
    ends_s = [max(one.end_s for one in plan) for plan in plans]
    in_use = np.cumsum([change for _, change in sorted(changes)])
    pairs = list(zip(jobs, plans, ends_s, strict=True))
    return DeferralOutcome(
        rule=rule,
        bill=bill,
        mean_completion_s=math.fsum(end_s - job.submit_s for job, _, end_s in pairs) / len(jobs),
        mean_wait_s=math.fsum(plan[0].start_s - job.submit_s for job, plan, _ in pairs) / len(jobs),
        stops=sum(later.start_s > sooner.end_s + 1e-6
                  for _, plan, _ in pairs for sooner, later in pairwise(plan)),
        missed=sum(end_s > job.deadline_s + 1e-3 for job, _, end_s in pairs),
        peak_gpus=float(in_use.max(initial=0.0)),
    )  # fmt: skip


def optimum(
    jobs: Sequence[Deferrable], signal: RateSignal, gpus: float | None = None
) -> float | None:
    """The least that all jobs can cost: watts times the signal times seconds; None: impossible.

    A linear program over (job, step of the signal, width): every job done by its deadline, no more
    than `gpus` in use on average of a step. What it finds need not be a schedule, so it is a
    bound.

    Raises:
        UserError: SciPy is not installed.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError:
        raise UserError("SciPy is not installed", hint="pip install 'wattherd[science]'") from None

    steps = list(zip(signal.edges_s, signal.edges_s[1:], strict=False))
    costs: list[float] = []
    most: list[tuple[int, int, float]] = []
    equal: list[tuple[int, int, float]] = []
    bounds: list[float] = []
    for row, job in enumerate(jobs):
        for start_s, end_s, value in signal.slots(job.submit_s, job.deadline_s):
            step = int(np.searchsorted(signal.edges_s, start_s, side="right")) - 1
            # Each variable is the seconds of one GPU step more: speeds that rise ever less fill
            # them in order by themselves.
            for sooner, later in pairwise((0.0, *job.speeds)):
                at = len(costs)
                costs.append(job.watts * value)
                equal.append((row, at, later - sooner))
                most.append((step, at, job.gpus))
                bounds.append(end_s - start_s)
    work = np.array([job.work_s for job in jobs])
    rows, columns, values = zip(*equal, strict=True)
    shape = (len(jobs), len(costs))
    limits = {}
    if gpus is not None:
        step_rows, step_columns, step_values = zip(*most, strict=True)
        limits["A_ub"] = coo_array(
            (step_values, (step_rows, step_columns)), shape=(len(steps), len(costs))
        ).tocsr()
        limits["b_ub"] = np.array([gpus * (end_s - start_s) for start_s, end_s in steps])
    found = linprog(
        np.array(costs),
        A_eq=coo_array((values, (rows, columns)), shape=shape).tocsr(),
        b_eq=work,
        bounds=np.column_stack([np.zeros(len(bounds)), bounds]),
        method="highs",
        **limits,
    )
    return float(found.fun) if found.status == 0 else None
