"""How well watts are predicted for what a model has not seen: folds, errors, selection, coverage.

A fold holds out whole jobs, whole models (networks) or whole GPU types. Errors are mean absolute
percentage errors (MAPE) of watts, out of fold.

What is new comes as a whole: a new GPU type brings an error of its own that all its rows share.
Intervals are therefore calibrated on groups, not on rows (`group_half_width`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattherd.estimate.power_model import Floats, PowerRow
from wattherd.experiments.power_models.learners import fit, target
from wattherd.experiments.power_models.saturation import able

SPLITS = ("job", "model", "gpu")
BASELINES = ("mean", "tdp x utilisation", "cap x mean share")
MEASURED = "measured_share"
"""Watts per TDP of the same job at its highest cap, once it has run there."""
CUT = "cut_share"
"""The same, cut at the cap asked for."""
OF_TYPES = frozenset({"gpu_flops", "gddr"})
_JOB_FOLDS = 5


def folds(
    rows: Sequence[PowerRow], split: str, seed: int, most: int | None = None
) -> list[list[int]]:
    """Row numbers held out together; jobs in five random folds, models and GPU types one by one.

    `most` limits the number of folds, which then hold out several at a time.
    """
    names = sorted({_held(row, split) for row in rows})
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    count = min(most or (_JOB_FOLDS if split == "job" else len(names)), len(names))
    sets = [{names[at] for at in order[number::count]} for number in range(count)]
    return [[at for at, row in enumerate(rows) if _held(row, split) in one] for one in sets]


def _held(row: PowerRow, split: str) -> str:
    """The same job on another GPU type is no new job."""
    return {"job": row.job, "model": row.model, "gpu": row.gpu}[split]


def _parted(
    rows: Sequence[PowerRow], split: str, seed: int, most: int | None = None
) -> Iterator[tuple[list[PowerRow], list[int]]]:
    """Training rows and numbers of held-out rows, fold by fold; none if all would be held out."""
    for held in folds(rows, split, seed, most):
        out = set(held)
        training = [row for at, row in enumerate(rows) if at not in out]
        if training:
            yield training, held


def out_of_fold(
    rows: Sequence[PowerRow],
    names: Sequence[str],
    learner: str,
    split: str,
    seed: int = 0,
    most: int | None = None,
) -> Floats:
    """Log errors (N,) of watts predicted without the fold.

    NaN where nothing was left to learn from, or the row lacks what the learner needs.
    """
    errors = np.full(len(rows), np.nan)
    truth = target(rows)
    for training, every in _parted(rows, split, seed, most):
        held = [at for at in every if able(learner, rows[at])]
        if not held or not any(able(learner, row) for row in training):
            continue
        scale, regressor = fit(learner, training, names, seed)
        found = regressor.predict(scale.matrix([rows[at].values for at in held]))
        errors[held] = found - truth[held]
    return errors


def baseline(rows: Sequence[PowerRow], kind: str, split: str, seed: int = 0) -> Floats:
    """Log errors (N,) of what needs no learning, averages from the same training rows.

    Where no utilisation was measured, TDP is multiplied by the mean share of TDP drawn.
    """
    errors = np.full(len(rows), np.nan)
    for training, held in _parted(rows, split, seed):
        for at in held:
            errors[at] = np.log(_guess(rows[at], training, kind) / rows[at].power_w)
    return errors


def _guess(row: PowerRow, training: Sequence[PowerRow], kind: str) -> float:
    alike = [other for other in training if other.gpu == row.gpu] or training
    if kind == "mean":
        return float(np.mean([other.power_w for other in alike]))
    if kind == "tdp x utilisation":
        share = np.mean([other.power_w / other.tdp_w for other in alike])
        return row.tdp_w * (row.utilisation or float(share))
    share = np.mean([other.power_w / _cap_w(other) for other in alike])
    return _cap_w(row) * float(share)


def _cap_w(row: PowerRow) -> float:
    return row.tdp_w * row.values.get("cap_share", 1.0)


def as_measured(rows: Sequence[PowerRow]) -> Floats:
    """Log errors (N,) of the one measurement of each job, cut at the cap."""
    guesses = [row.values[CUT] * row.tdp_w for row in rows]
    truth = [row.power_w for row in rows]
    return np.asarray(np.log(np.array(guesses) / np.array(truth)), dtype=np.float64)


def mape(errors: Floats) -> float | None:
    """Mean absolute error in percent of the truth; None without any error."""
    known = errors[~np.isnan(errors)]
    return 100 * float(np.mean(np.abs(np.expm1(known)))) if len(known) else None


def by_gpu(rows: Sequence[PowerRow], errors: Floats) -> list[dict[str, Any]]:
    """MAPE of every GPU type."""
    gpus = np.array([row.gpu for row in rows])
    return [
        {"gpu": gpu, "mape_pct": mape(errors[gpus == gpu]), "rows": int((gpus == gpu).sum())}
        for gpu in sorted(set(gpus.tolist()))
    ]


@dataclass(frozen=True, slots=True)
class DroppedFeature:
    """A feature that selection gave up, with MAPE in percent before and after."""

    feature: str
    before_pct: float
    after_pct: float


def select(
    rows: Sequence[PowerRow], names: Sequence[str], learner: str, seed: int = 0
) -> tuple[tuple[str, ...], tuple[DroppedFeature, ...]]:
    """Backward elimination on held-out jobs: what is kept, and what was dropped in that order.

    The feature least missed goes as long as the error grows by no more than one standard error of
    the paired differences over jobs (Guyon and Elisseeff, JMLR 2003; one-standard-error rule of
    Breiman et al., 1984). What tells GPU types apart stays: jobs held out do not miss it, as the
    types are known by other features, but types never seen do.
    """
    kept, gone = list(names), list[DroppedFeature]()
    now = _job_errors(rows, kept, learner, seed)
    while len(kept) > 1 and (able_to_go := [name for name in kept if name not in OF_TYPES]):
        tries = [
            (_job_errors(rows, [n for n in kept if n != name], learner, seed), name)
            for name in able_to_go
        ]
        after, name = min(tries, key=lambda one: (float(one[0].mean()), one[1]))
        more = after - now
        if more.mean() > more.std(ddof=1) / np.sqrt(len(more)):
            break
        gone.append(DroppedFeature(name, 100 * float(now.mean()), 100 * float(after.mean())))
        kept.remove(name)
        now = after
    return tuple(kept), tuple(gone)


def _job_errors(rows: Sequence[PowerRow], names: Sequence[str], learner: str, seed: int) -> Floats:
    """Mean absolute relative error of every job (J,)."""
    errors = np.abs(np.expm1(out_of_fold(rows, names, learner, "job", seed)))
    jobs = np.array([row.job for row in rows])
    return np.array([errors[jobs == job].mean() for job in sorted(set(jobs.tolist()))])


LEAST_BOUND = 1.05
"""Shares of the TDP that no interval excludes: limiters and meters are a few percent off."""


def most_share(rows: Sequence[PowerRow]) -> float:
    """The greatest share of its TDP that a device is believed to draw on average."""
    return max(LEAST_BOUND, *(row.power_w / row.tdp_w for row in rows))


def half_width(rows: Sequence[PowerRow], errors: Floats, split: str, coverage: float) -> float:
    """Half-width in logs for a row of a new job, model or GPU type, by held-out log errors (N,)."""
    groups = np.array([_held(row, split) for row in rows])
    return group_half_width({name: errors[groups == name] for name in set(groups)}, coverage)


def group_half_width(errors: Mapping[str, Floats], coverage: float) -> float:
    """Half-width in logs that covers a row of a new group with the probability `coverage`.

    From nine groups on (for 0.9), hierarchical conformal: the quantile of absolute errors in which
    every group, and one that is infinitely far off, weighs the same. It holds for any distribution
    as long as groups are exchangeable (Lee, Barber and Willett, Distribution-free inference with
    hierarchical data, 2023). Fewer cannot promise that. Between three and eight, the error is
    taken for normal, shared by a group, with as many degrees of freedom as groups less one: the
    quantile of Student's t times the root of the mean over groups of mean squares. It counts
    differences within a group as if they were between groups, which errs on the wide side. As few
    groups do not show how heavy the tails are, it is no narrower than any group so far needed.
    Infinite for fewer than three groups: two that are alike (GTX 1080 Ti and Titan X) say nothing
    of a third (GTX 980).
    """
    known = [np.abs(some) for every in errors.values() if len(some := every[~np.isnan(every)])]
    count = len(known)
    if count < FEWEST_GROUPS:
        return math.inf
    if count / (count + 1) < coverage:
        from scipy.special import stdtrit

        squares = math.fsum(float(np.mean(some**2)) for some in known) / count
        needed = max(float(np.quantile(some, coverage, method="higher")) for some in known)
        student = float(stdtrit(count - 1, (1.0 + coverage) / 2.0))
        return max(student * math.sqrt(squares), needed)
    sizes = np.concatenate(known)
    weights = np.concatenate([np.full(len(some), 1.0 / len(some)) for some in known])
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / (count + 1)
    at = int(np.searchsorted(reached, coverage - _ROUNDING))
    return float(sizes[order[min(at, len(order) - 1)]])


def method_of(groups: int, coverage: float) -> str | None:
    """What an interval rests on; None where there is none."""
    if groups < FEWEST_GROUPS:
        return None
    exact = groups / (groups + 1) >= coverage
    return "hierarchical conformal" if exact else "Student's t"


FEWEST_GROUPS = 3
_MANY_GROUPS = 10
_ROUNDING = 1e-12


def covered(
    rows: Sequence[PowerRow], names: Sequence[str], learner: str, split: str, coverage: float
) -> dict[str, Any]:
    """How often intervals hold for groups that had no part in making them.

    Every group is held out, the same split is made again among the rest, and its errors give the
    half-width (many groups are then held out in five folds, which takes less time). A share is a
    mean over groups, each counting the same; None where no interval could be made.
    """
    errors, truth = out_of_fold(rows, names, learner, split), target(rows)
    inside: dict[str, list[bool]] = {}
    widths: dict[str, float] = {}
    for training, every in _parted(rows, split, 0):
        held = [at for at in every if not np.isnan(errors[at])]
        if not held:
            continue
        groups = len({_held(row, split) for row in training})
        few = _JOB_FOLDS if groups > _MANY_GROUPS else None
        inner = out_of_fold(training, names, learner, split, most=few)
        width = half_width(training, inner, split, coverage)
        if math.isinf(width):
            continue
        most = math.log(most_share(training))
        for at in held:
            group = _held(rows[at], split)
            high = min(truth[at] + errors[at] + width, most)
            low = truth[at] + errors[at] - width
            inside.setdefault(group, []).append(bool(low <= truth[at] <= high))
            widths[group] = width
    shares = {group: float(np.mean(some)) for group, some in sorted(inside.items())}
    found = {_held(row, split) for at, row in enumerate(rows) if not np.isnan(errors[at])}
    width = half_width(rows, errors, split, coverage)
    return {
        "split": split,
        "learner": learner,
        "asked": coverage,
        "covered": float(np.mean(list(shares.values()))) if shares else None,
        "half_width_pct": 100 * math.expm1(width) if math.isfinite(width) else None,
        "method": method_of(len(found), coverage),
        "groups": [
            {"name": group, "covered": share, "half_width_pct": 100 * math.expm1(widths[group])}
            for group, share in shares.items()
        ]
        if split != "job"
        else [],
    }
