"""How much one measurement of a job is worth: fitted, and judged on GPU types left out.

Every pair of caps under which a job was measured is one test: from the one, predict the other.
Pairs down to a lower cap and up to a higher one are told apart, as a job that was cut by its cap
does not show what it would draw without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.power_model import Floats, PowerRow
from wattherd.estimate.saturation import MeasuredOnce
from wattherd.experiments.power_models.judge import group_half_width, mape

CORNERS = (3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)
"""From soft to sharp; the one with the least mean absolute error is taken."""
DOWN, UP = "down", "up"


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Logs of shares of TDP (N,): a measurement, its cap, another cap, what was drawn there."""

    gpu: NDArray[np.str_]
    measured: Floats
    measured_cap: Floats
    cap: Floats
    drawn: Floats

    def of(self, chosen: Any) -> _Pairs:
        columns = (self.gpu, self.measured, self.measured_cap, self.cap, self.drawn)
        return _Pairs(*(column[chosen] for column in columns))

    def errors(self, once: MeasuredOnce) -> Floats:
        return once.log_share(self.measured, self.measured_cap, self.cap) - self.drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOnceErrors:
    """The fitted rule, and for each direction errors in percent and half-widths in logs.

    `error_pct` and `covered` (a share of 1, of intervals as wide as asked) are by GPU type, each
    judged by a rule fitted without it; stored models leave `covered` out.
    """

    once: MeasuredOnce
    error_pct: Mapping[str, Mapping[str, float]]
    half_width: Mapping[str, float]
    covered: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def mean_pct(self, direction: str) -> float | None:
        """Mean over GPU types left out; None where no type could be judged."""
        found = list(self.error_pct.get(direction, {}).values())
        return math.fsum(found) / len(found) if found else None

    def plain(self) -> dict[str, Any]:
        """As JSON; an infinite width is null."""
        widths = {k: v if math.isfinite(v) else None for k, v in self.half_width.items()}
        errors = {direction: dict(found) for direction, found in self.error_pct.items()}
        return {"corner": self.once.corner, "error_pct": errors, "half_width": widths}


def read_once(plain: Mapping[str, Any]) -> MeasuredOnceErrors:
    """What `plain` describes."""
    widths = {k: math.inf if v is None else float(v) for k, v in plain["half_width"].items()}
    return MeasuredOnceErrors(
        once=MeasuredOnce(float(plain["corner"])), error_pct=plain["error_pct"], half_width=widths
    )


def judged_once(rows: Sequence[PowerRow], coverage: float) -> MeasuredOnceErrors | None:
    """The rule of all jobs measured under two caps or more; None if there is none."""
    pairs = _pairs(rows)
    if not len(pairs.gpu):
        return None
    errors = _left_out(pairs)
    down = pairs.cap < pairs.measured_cap
    found: dict[str, dict[str, float]] = {}
    held: dict[str, dict[str, float]] = {}
    widths: dict[str, float] = {}
    for direction, chosen in ((DOWN, down), (UP, ~down)):
        some = _by_gpu(pairs.of(chosen), errors[chosen])
        told = {gpu: mape(one) for gpu, one in some.items()}
        found[direction] = {gpu: pct for gpu, pct in told.items() if pct is not None}
        widths[direction] = group_half_width(some, coverage)
        held[direction] = _covered(pairs, chosen, errors, coverage)
    return MeasuredOnceErrors(once=_fitted(pairs), error_pct=found, half_width=widths, covered=held)


def _left_out(pairs: _Pairs) -> Floats:
    """Log errors (N,) by rules fitted without the GPU type; NaN where there is no other type."""
    errors = np.full(len(pairs.gpu), np.nan)
    for gpu in sorted(set(pairs.gpu.tolist())):
        held = pairs.gpu == gpu
        if not held.all():
            errors[held] = pairs.of(held).errors(_fitted(pairs.of(~held)))
    return errors


def _by_gpu(pairs: _Pairs, errors: Floats) -> dict[str, Floats]:
    return {gpu: errors[pairs.gpu == gpu] for gpu in sorted(set(pairs.gpu.tolist()))}


def _covered(
    pairs: _Pairs, chosen: NDArray[np.bool_], errors: Floats, coverage: float
) -> dict[str, float]:
    """By GPU type the share of its pairs inside intervals that were made without it."""
    found = {}
    for gpu in sorted(set(pairs.gpu.tolist())):
        held = pairs.gpu == gpu
        rest = pairs.of(~held)
        width = group_half_width(
            _by_gpu(rest.of(chosen[~held]), _left_out(rest)[chosen[~held]]), coverage
        )
        if math.isfinite(width):
            found[gpu] = float(np.mean(np.abs(errors[held & chosen]) <= width))
    return found


def _pairs(rows: Sequence[PowerRow]) -> _Pairs:
    """All ordered pairs of different caps of one job on one GPU type."""
    jobs: dict[tuple[str, str], list[PowerRow]] = {}
    for row in rows:
        if "cap_share" in row.values:
            jobs.setdefault((row.gpu, row.job), []).append(row)
    found = [
        (one, other)
        for job in jobs.values()
        for one in job
        for other in job
        if one.values["cap_share"] != other.values["cap_share"]
    ]

    def logs(shares: Sequence[float]) -> Floats:
        return np.log(np.array(shares, dtype=np.float64))

    return _Pairs(
        np.array([one.gpu for one, _ in found], dtype=np.str_),
        logs([one.power_w / one.tdp_w for one, _ in found]),
        logs([one.values["cap_share"] for one, _ in found]),
        logs([other.values["cap_share"] for _, other in found]),
        logs([other.power_w / other.tdp_w for _, other in found]),
    )


def _fitted(pairs: _Pairs) -> MeasuredOnce:
    """The corner whose error, a mean over GPU types of mean absolute logs, is least."""
    types = [pairs.of(pairs.gpu == gpu) for gpu in sorted(set(pairs.gpu.tolist()))]

    def wrong(corner: float) -> float:
        once = MeasuredOnce(corner)
        return math.fsum(float(np.abs(some.errors(once)).mean()) for some in types)

    return MeasuredOnce(min(CORNERS, key=wrong))
