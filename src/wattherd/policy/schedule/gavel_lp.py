"""Gavel's allocation problems (OSDI'20, sections 4.1 to 4.3), each one solved whole.

x[i, j] is the share of time that job i spends on worker type j; scale[i] is its number of GPUs:

    0 <= x,   sum_j x[i, j] <= 1,   sum_i scale[i] x[i, j] <= gpus[j].

- `max-min` maximises the least of weight-normalised throughputs, each relative to what the job
  would get if it spent its time on all types in proportion to their number.
- `makespan` maximises the least of throughput / remaining steps.
- `ftf` minimises the largest of expected time / expected time in an isolated nth of the cluster.

The first two are the *level* problem, max min_i levels[i] . x[i]. The third is convex; it is
solved as a second-order cone program, or by a sequence of level problems. The optima are far from
unique and the solver decides which one it finds: interior-point solvers end near the middle of
the optimal face, vertex solvers in a corner of it, and runs differ accordingly.

These functions take and return plain data, so that a shell may run them in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import Bug
from wattherd.policy.schedule.gavel_solvers import CONIC, Cones, Triplets, highs

Floats = NDArray[np.float64]
Payload = Mapping[str, Any]
Result = dict[str, Any]

KIND = "gavel"
"""The kind of computation under which these problems are asked for."""
GOALS = ("max-min", "max-min-agnostic", "makespan", "ftf")
_CLOSE, _ROUNDS = 1e-10, 60


@dataclass(frozen=True, slots=True)
class GavelProblem:
    """A payload as arrays: rates (M, N) in steps/s, scale and weights (M,), gpus (N,).

    For `makespan` and `ftf` also steps left (M,); for `ftf` seconds since submission (M,) and the
    seconds the job would take in all if isolated (M,).
    """

    goal: str
    rates: Floats
    scale: Floats
    weights: Floats
    gpus: Floats
    steps: Floats
    elapsed_s: Floats
    isolated_s: Floats


def solver(name: str) -> Callable[[Payload], Result]:
    """What answers questions of kind `KIND`, by the solver called `name` (see `SOLVERS`)."""
    return lambda payload: solve(payload, name)


def solve(payload: Payload, name: str) -> Result:
    """Shares (M, N) as lists, the objective they reach, and the solver's name."""
    asked = _arrays(payload)
    if asked.goal == "ftf":
        shares = _conic_ftf(asked, name) if name in CONIC else _level_ftf(asked)
    else:
        shares = _level(_levels(asked), asked, name)
    shares = shares.clip(0.0, 1.0)
    whole = np.zeros(np.shape(payload["rates"]))
    whole[:, _present(payload)] = shares
    return {"shares": whole.tolist(), "objective": objective(asked, shares), "solver": name}


def _present(payload: Payload) -> NDArray[np.bool_]:
    """Which types have GPUs; the others have no part in a program (all of them may be lost)."""
    return np.array(payload["gpus"], dtype=np.float64) > 0


def _arrays(payload: Payload) -> GavelProblem:
    goal = payload["goal"]
    if goal not in GOALS:
        raise Bug(f"no Gavel goal {goal!r}")
    present = _present(payload)
    rates = np.array(payload["rates"], dtype=np.float64)[:, present]
    gpus = np.array(payload["gpus"], dtype=np.float64)[present]
    empty = [0.0] * len(rates)
    columns = {
        name: np.array(payload.get(name, empty), dtype=np.float64)
        for name in ("scale", "weights", "steps", "elapsed_s", "isolated_s")
    }
    return GavelProblem(goal=goal, rates=rates, gpus=gpus, **columns)


def objective(asked: GavelProblem, shares: Floats) -> float:
    """The goal's own figure: a relative level, seconds, or a finish-time ratio."""
    if asked.goal == "ftf":
        return float(_ratios(asked, shares).max())
    level = float((_levels(asked) * shares).sum(axis=1).min())
    return 1.0 / level if asked.goal == "makespan" else level


def _levels(asked: GavelProblem) -> Floats:
    """The coefficients of the level problem (M, N)."""
    if asked.goal == "makespan":
        return asked.rates / asked.steps[:, None]
    rates = np.ones_like(asked.rates) if asked.goal == "max-min-agnostic" else asked.rates
    everywhere = asked.gpus / len(rates)
    everywhere = everywhere / everywhere.sum()
    norm = 1.0 / asked.weights * (1.0 / (rates * everywhere).sum(axis=1))
    levels: Floats = rates * norm[:, None] * asked.scale[:, None]
    return levels


def _ratios(asked: GavelProblem, shares: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        left_s = asked.steps / (asked.rates * shares).sum(axis=1)
    ratios: Floats = (asked.elapsed_s + left_s) / asked.isolated_s
    return ratios


def isolated_rates(rates: Floats, scale: Floats, gpus: Floats) -> Floats:
    """Steps/s of each job in an nth of every type, its time filled at most once (M,)."""
    shares = gpus / len(rates) / scale[:, None]
    shares = shares / np.maximum(shares.sum(axis=1), 1.0)[:, None]
    rate: Floats = (rates * shares).sum(axis=1)
    return rate


# The level problem ------------------------------------------------------------------------------


def _level(levels: Floats, asked: GavelProblem, name: str) -> Floats:
    """Shares that maximise the least level; coefficients are brought near one first."""
    if asked.goal == "makespan":
        levels = levels / levels.max(axis=1).min()
    if name not in CONIC:
        return highs(levels, asked.scale, asked.gpus)[0]
    jobs, types = levels.shape
    rows = Triplets()
    _at_least(rows, levels)
    _base_rows(rows, asked, first=1)
    limits = np.concatenate([np.zeros(jobs), _base_limits(asked)])
    cost = np.zeros(1 + jobs * types)
    cost[0] = 1.0
    found = CONIC[name](cost, rows, limits, Cones(linear=rows.height, triples=0))
    return _matrix(found, jobs, types)


def _at_least(rows: Triplets, levels: Floats) -> None:
    """-t - levels[i] . x[i] <= 0: minus t is the least level."""
    jobs, types = levels.shape
    each = np.arange(jobs)
    rows.add(each, np.zeros(jobs, dtype=np.int64), np.full(jobs, -1.0))
    for j in range(types):
        rows.add(each, 1 + j * jobs + each, -levels[:, j])
    rows.grow(jobs)


def _base_rows(rows: Triplets, asked: GavelProblem, *, first: int) -> None:
    """Shares are not negative, no type is over-committed, no job runs twice at a time.

    Variable `first` + j M + i is x[i, j].
    """
    jobs, types = asked.rates.shape
    each = np.arange(jobs * types)
    rows.add(each, first + each, np.full(jobs * types, -1.0))
    rows.grow(jobs * types)
    rows.add(each // jobs, first + each, np.tile(asked.scale, types))
    rows.grow(types)
    rows.add(each % jobs, first + each, np.ones(jobs * types))
    rows.grow(jobs)


def _base_limits(asked: GavelProblem) -> Floats:
    jobs, types = asked.rates.shape
    return np.concatenate([np.zeros(jobs * types), asked.gpus, np.ones(jobs)])


def _matrix(found: Floats, jobs: int, types: int) -> Floats:
    """x[i, j] from the vector of variables, which begins with the bound."""
    return found[1 : 1 + jobs * types].reshape(types, jobs).T


# Finish-time fairness ---------------------------------------------------------------------------


def _conic_ftf(asked: GavelProblem, name: str) -> Floats:
    """One cone program: u[i] >= 1 / throughput[i], and every ratio below t.

    The variables are t, then x, then u; u y >= 1 is |(2, u - y)| <= u + y.
    """
    jobs, types = asked.rates.shape
    each, u = np.arange(jobs), 1 + jobs * types + np.arange(jobs)
    per_s = 1.0 / asked.isolated_s
    rows = Triplets()
    rows.add(each, np.zeros(jobs, dtype=np.int64), np.full(jobs, -1.0))
    rows.add(each, u, asked.steps * per_s)
    rows.grow(jobs)
    _base_rows(rows, asked, first=1)
    linear = rows.height
    for j in range(types):
        for row in (0, 1):
            rows.add(3 * each + row, 1 + j * jobs + each, -asked.rates[:, j])
    rows.add(3 * each, u, np.full(jobs, -1.0))
    rows.add(3 * each + 1, u, np.full(jobs, 1.0))
    rows.grow(3 * jobs)
    limits = np.concatenate(
        [-asked.elapsed_s * per_s, _base_limits(asked), np.tile([0.0, 0.0, 2.0], jobs)]
    )
    cost = np.zeros(1 + jobs * types + jobs)
    cost[0] = 1.0
    return _matrix(CONIC[name](cost, rows, limits, Cones(linear, jobs)), jobs, types)


def _level_ftf(asked: GavelProblem) -> Floats:
    """A sequence of level problems: can every job meet ratio r, and if not, how far is it?

    The least ratio is where throughput / needed throughput reaches one. Newton's steps along the
    dual prices, kept between what was shown impossible and the best ratio reached so far.
    """
    impossible = float((asked.elapsed_s / asked.isolated_s).max())
    alone = isolated_rates(asked.rates, asked.scale, asked.gpus)
    ratio = float(((asked.elapsed_s + asked.steps / alone) / asked.isolated_s).max())
    shares, best = np.zeros_like(asked.rates), np.inf
    for _ in range(_ROUNDS):
        slack = (ratio * asked.isolated_s - asked.elapsed_s) / asked.steps
        found, prices = highs(asked.rates * slack[:, None], asked.scale, asked.gpus)
        reached = objective(asked, found.clip(0.0, 1.0))
        if reached < best:
            shares, best = found, reached
        rates = (asked.rates * found).sum(axis=1)
        level = float((rates * slack).min())
        if abs(level - 1.0) <= _CLOSE or best - impossible <= _CLOSE * best:
            break
        if level < 1.0:
            impossible = max(impossible, ratio)
        ratio -= (level - 1.0) / float((prices * rates * asked.isolated_s / asked.steps).sum())
        if not impossible < ratio <= best:
            ratio = (impossible + best) / 2
    return shares
