"""Fits the step time model of Pollux (OSDI'21, section 4.1) to measured steps.

Minimises the root mean squared logarithmic errors of pass and step times, with two mild
preferences: 1e-3 (gamma - 1)^2, since little overlap is easier to fit, and 1e-2 (ring / sync)^2,
since growth should look promising until it is known better. What no measurement can tell yet is
pinned to its most optimistic value, so that jobs are tried on more replicas than they have seen.

The published agent calls SciPy's L-BFGS-B. Seven parameters need neither limited memory nor a
library: `_minimised` is BFGS within bounds, by two-metric projection (Bertsekas, 1982).

The agent beside a training job: measures its steps, picks its batch size, reports (Pollux).

Every configuration (nodes, replicas, samples per replica) that the job runs in is kept with its
step time; a new one has the step time model fitted again. The batch size is the one of most
goodput under that model and the latest gradient statistics (OSDI'21, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.application import Application, BatchPlan
from wattherd.estimate.goodput import NO_SYNC_S, best
from wattherd.jit import kernel
from wattherd.model.training import BatchRange, StepTime, TrainingReport

# --- The step time model fitted ---------------------------------------------------------------
Floats = NDArray[np.float64]

Configuration = tuple[int, int, int]
"""Nodes, replicas, samples per replica."""
FIRST = np.array([1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-2, 1.0 + 1e-3])
"""Where the search begins, in the order of `StepTime`."""
LEAST, MOST_OVERLAP = 1e-8, 10.0
_PASS, _SAMPLE, _NETWORK, _NETWORK_RING, _NODE, _NODE_RING, _OVERLAP = range(7)
_MOST_STEPS, _MOST_TRIALS = 300, 40
_ENOUGH = 2.2e-9
"""Relative improvement below which a search is over (L-BFGS-B's default)."""
_NETWORK_IS_SLOWER = 1.1


def fit(steps: Mapping[Configuration, tuple[float, float]]) -> StepTime:
    """Parameters from (step, synchronisation) seconds by configuration.

    Raises:
        UserError: nothing was measured, or a step that took no time.
    """
    times = np.array(list(steps.values()), dtype=np.float64).reshape(-1, 2)
    if not len(times) or (times[:, 0] <= times[:, 1]).any():
        raise UserError("a step time model needs steps that take longer than their synchronisation")
    nodes, replicas, local = np.array(list(steps), dtype=np.float64).T
    measured = np.stack(
        [
            local,
            np.maximum(replicas - 2.0, NO_SYNC_S),
            np.where(nodes > 1, _NETWORK, np.where(replicas > 1, _NODE, -1)),
            np.log(times[:, 0] - times[:, 1]),
            np.log(times[:, 0]),
        ],
        axis=1,
    )
    found = _times(_minimised(*_bounds(nodes, replicas, measured), measured))
    if not (nodes > 1).any():
        for far, near in ((_NETWORK, _NODE), (_NETWORK_RING, _NODE_RING)):
            found[far] = max(found[far], found[near] * _NETWORK_IS_SLOWER)
    return _model(found.tolist())


def _model(values: list[float]) -> StepTime:
    return StepTime(
        pass_s=values[_PASS],
        sample_s=values[_SAMPLE],
        network_sync_s=values[_NETWORK],
        network_ring_s=values[_NETWORK_RING],
        node_sync_s=values[_NODE],
        node_ring_s=values[_NODE_RING],
        overlap=values[_OVERLAP],
    )


def _bounds(nodes: Floats, replicas: Floats, measured: Floats) -> tuple[Floats, Floats, Floats]:
    """The first guess, least and most; equal where the measurements cannot tell."""
    start, least = FIRST.copy(), np.full(7, LEAST)
    most = np.full(7, np.inf)
    least[_OVERLAP], most[_OVERLAP] = 1.0, MOST_OVERLAP
    unseen = []
    if not (nodes > 1).any():
        unseen += [_NETWORK, _NETWORK_RING]
    if not ((nodes <= 1) & (replicas > 1)).any():
        unseen += [_NODE, _NODE_RING]
    if not (replicas > 2).any():
        unseen += [_NETWORK_RING, _NODE_RING]
    start[unseen] = most[unseen] = LEAST
    if len(np.unique(measured[:, 0])) == 1:
        # One batch size cannot tell constant from growing time: half each.
        half_s = float(np.exp(measured[:, 3]).mean()) / 2
        start[_PASS] = least[_PASS] = most[_PASS] = half_s
    return _sought(start), _sought(least), _sought(most)


def _sought(values: Floats) -> Floats:
    """Logarithms of all but the overlap: seconds here differ by six orders of magnitude."""
    found = np.log(values)
    found[_OVERLAP] = values[_OVERLAP]
    return found


@kernel
def _times(sought: Floats) -> Any:
    """The parameters themselves."""
    found = np.exp(sought)
    found[_OVERLAP] = sought[_OVERLAP]
    return found


@kernel
def _error_at(sought: Floats, measured: Floats, slope: Floats) -> Any:
    """The objective in the variables of the search, and its gradient."""
    values = _times(sought)
    error = _error(values, measured, slope)
    slope[:_OVERLAP] *= values[:_OVERLAP]
    return error


@kernel
def _error(values: Floats, measured: Floats, slope: Floats) -> Any:
    """The objective; its gradient (7,) goes to `slope`.

    `measured` rows: samples per replica, ring steps, which of the parameters is the constant of
    the slowest link (-1: none), logarithms of pass and step seconds.
    """
    count, gamma = len(measured), values[_OVERLAP]
    first = second = 0.0
    for row in range(count):
        missed_pass, missed_step, _, _, _, _ = _missed(values, measured[row])
        first += missed_pass * missed_pass
        second += missed_step * missed_step
    first, second = math.sqrt(first / count), math.sqrt(second / count)
    slope[:] = 0.0
    for row in range(count):
        one = measured[row]
        missed_pass, missed_step, compute_s, link_s, part, mixed = _missed(values, one)
        by_pass = missed_pass / (max(first, 1e-300) * count)
        by_step = missed_step / (max(second, 1e-300) * count)
        by_compute = (by_pass + by_step * part) / compute_s
        by_link = by_step * (1.0 - part) / link_s
        slope[_PASS] += by_compute
        slope[_SAMPLE] += by_compute * one[0]
        link = int(one[2])
        if link >= 0:
            slope[link] += by_link
            slope[link + 1] += by_link * one[1]
        slope[_OVERLAP] += by_step * mixed
    total = first + second + 1e-3 * (gamma - 1.0) ** 2
    slope[_OVERLAP] += 2e-3 * (gamma - 1.0)
    for link in (_NETWORK, _NODE):
        steep = values[link + 1] / values[link]
        total += 1e-2 * steep * steep
        slope[link + 1] += 2e-2 * steep / values[link]
        slope[link] -= 2e-2 * steep * steep / values[link]
    return total


@kernel
def _missed(values: Floats, one: Floats) -> Any:
    """Errors of log pass and log step time, both parts' seconds, and derivatives of log step.

    The last two are by the logarithm of the pass, and by gamma.
    """
    gamma = values[_OVERLAP]
    compute_s = values[_PASS] + values[_SAMPLE] * one[0]
    link = int(one[2])
    link_s = NO_SYNC_S
    if link >= 0:
        link_s = values[link] + values[link + 1] * one[1]
    log_compute, log_link = math.log(compute_s), math.log(link_s)
    longer = max(log_compute, log_link)
    weight_compute = math.exp(gamma * (log_compute - longer))
    weight_link = math.exp(gamma * (log_link - longer))
    both = weight_compute + weight_link
    log_step = longer + math.log(both) / gamma
    part = weight_compute / both
    mixed = (part * log_compute + (1.0 - part) * log_link - log_step) / gamma
    return log_compute - one[3], log_step - one[4], compute_s, link_s, part, mixed


@kernel
def _minimised(start: Floats, least: Floats, most: Floats, measured: Floats) -> Any:
    """Parameters of a local minimum within bounds, downhill from `start`."""
    size = len(start)
    values, slope, beyond = start.copy(), np.zeros(size), np.zeros(size)
    error = _error_at(values, measured, slope)
    inverse, fresh = _unlearned(slope), True
    for _ in range(_MOST_STEPS):
        way = _downhill(values, slope, inverse, least, most)
        trial, new = _stepped(values, error, slope, way, least, most, measured, beyond)
        if not new < error - _ENOUGH * max(abs(error), 1e-3):
            if fresh:
                break
            inverse, fresh = _unlearned(slope), True
            continue
        moved, turned = trial - values, beyond - slope
        if fresh:
            inverse = _scaled(inverse, moved, turned)
        _learn(inverse, moved, turned)
        values, error, fresh = trial, new, False
        slope[:] = beyond
    return values


@kernel
def _unlearned(slope: Floats) -> Any:
    """An inverse Hessian by which the first step has length one at most."""
    return np.eye(len(slope)) / max(math.sqrt((slope * slope).sum()), 1e-12)


@kernel
def _stepped(
    values: Floats,
    error: float,
    slope: Floats,
    way: Floats,
    least: Floats,
    most: Floats,
    measured: Floats,
    beyond: Floats,
) -> Any:
    """A point along `way` within bounds that meets the weak Wolfe conditions, and its error.

    Bisection with growth, which also copes with the kinks where an error is zero (Lewis and
    Overton, 2013). The gradient there goes to `beyond`.
    """
    short, long, length = 0.0, math.inf, 1.0
    best, best_error = values, error
    for _ in range(_MOST_TRIALS):
        trial = np.minimum(np.maximum(values + length * way, least), most)
        new = _error_at(trial, measured, beyond)
        fall = (slope * (trial - values)).sum()
        if not new <= error + 1e-4 * fall:
            long = length
        elif (beyond * (trial - values)).sum() < 0.9 * fall:
            short, best, best_error = length, trial, new
        else:
            return trial, new
        length = 2.0 * short if math.isinf(long) else 0.5 * (short + long)
    _error_at(best, measured, beyond)
    return best, best_error


@kernel
def _downhill(values: Floats, slope: Floats, inverse: Floats, least: Floats, most: Floats) -> Any:
    """The quasi-Newton direction among the parameters that do not press against a bound."""
    size = len(values)
    free = np.ones(size)
    for at in range(size):
        low = values[at] <= least[at] and slope[at] > 0
        high = values[at] >= most[at] and slope[at] < 0
        if low or high or least[at] == most[at]:
            free[at] = 0.0
    way = np.zeros(size)
    for at in range(size):
        for other in range(size):
            way[at] -= free[at] * free[other] * inverse[at, other] * slope[other]
    if (way * slope).sum() >= 0:
        way = -free * slope
    return way


@kernel
def _scaled(inverse: Floats, moved: Floats, turned: Floats) -> Any:
    """The inverse Hessian with the scale that the first step shows (Nocedal, 6.20)."""
    curve, square = (moved * turned).sum(), (turned * turned).sum()
    return np.eye(len(moved)) * (curve / square) if curve > 1e-12 * square else inverse


@kernel
def _learn(inverse: Floats, moved: Floats, turned: Floats) -> None:
    """The BFGS update of the inverse Hessian, in place."""
    curve = (moved * turned).sum()
    if curve <= 1e-12 * (turned * turned).sum():
        return
    size = len(moved)
    ahead = np.zeros(size)
    for at in range(size):
        for other in range(size):
            ahead[at] += inverse[at, other] * turned[other]
    bend = (turned * ahead).sum()
    for at in range(size):
        for other in range(size):
            inverse[at, other] += (
                (1.0 + bend / curve) * moved[at] * moved[other]
                - ahead[at] * moved[other]
                - moved[at] * ahead[other]
            ) / curve


# --- The agent --------------------------------------------------------------------------------


@dataclass(slots=True)
class GoodputAgent:
    """One job's agent, on an application with these batch sizes; knows nothing at first."""

    application: Application
    steps: dict[Configuration, tuple[float, float]] = field(default_factory=dict)
    gradient: tuple[float, float] = (0.0, 0.0)
    _model: StepTime | None = None

    def observe(
        self,
        placement: Sequence[int],
        local: int,
        times_s: tuple[float, float],
        gradient: tuple[float, float],
    ) -> None:
        """Take note of (step, synchronisation) seconds and (squared norm, variance)."""
        self.gradient = gradient
        configuration = len(placement), sum(placement), local
        if configuration not in self.steps:
            self.steps[configuration] = times_s
            self._model = None

    def report(self) -> TrainingReport | None:
        """What is known, or None before the first step."""
        if not self.steps:
            return None
        if self._model is None:
            self._model = fit(self.steps)
        application = self.application
        return TrainingReport(
            step_time=self._model,
            grad_sqr=self.gradient[0],
            grad_var=self.gradient[1],
            most_replicas=max(replicas for _, replicas, _ in self.steps),
            batches=BatchRange(
                initial=application.initial_batch,
                most=application.largest_batch,
                least_local=application.least_local,
                most_local=application.most_local,
            ),
        )

    def batch(self, placement: Sequence[int]) -> BatchPlan:
        """The batch size to train with on this placement (GPUs per node)."""
        application, replicas = self.application, sum(placement)
        if application.pinned_batch is not None:
            return application.batch_plan(application.pinned_batch, replicas)
        report = self.report()
        if report is None:
            first = max(application.initial_batch, application.least_local * replicas)
            return application.batch_plan(first, replicas)
        plan = best(report, len(placement), replicas).plan()
        most = math.floor(application.largest_batch / (replicas * (plan.accumulation + 1)))
        return BatchPlan(local=min(plan.local, most), accumulation=plan.accumulation)
