"""`wattherd power swings`: how unsteady recorded draws are, and what spreading jobs out would save.

Several jobs that repeat one recording are added up twice: begun together, and spread over the
period of the strongest oscillation, so that the crests of some meet the troughs of others. What a
scheduler can reach that way is bounded: ranks of *one* job wait for each other at every step and
cannot be spread, and jobs whose steps differ in length drift apart, or together, by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.swing import Samples, Swing, evenly, swing
from wattherd.workload.power_samples import Recording

Floats = NDArray[np.float64]
SCHEMA = "wattherd.swings/1"
MOST_JOBS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operator of a grid or a generator allows: ramps in W/s, swing in W; None: anything.

    Rises and falls are judged over `ramp_s`, the swing within windows of 10 s.
    """

    ramp_up_w_s: float | None = None
    ramp_down_w_s: float | None = None
    swing_w: float | None = None
    ramp_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Equal jobs added up, begun together or spread out; `wait_s` is the mean wait for a start."""

    name: str
    wait_s: float
    samples: Samples


def report(
    recordings: Sequence[Recording], limits: Limits, *, jobs: int = 1, drift: float = 0.0,
    seed: int = 0,
) -> tuple[dict[str, Any], list[tuple[str, Samples]]]:  # fmt: skip
    """Judge every recording; with `jobs` above 1 also that many of each, together and spread.

    `drift` is by how much the pace of jobs differs (standard deviation, a share). The document, and
    what was judged, in its order.

    Raises:
        UserError: recordings too short to judge, or numbers out of range.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UserError(f"{jobs} jobs", field="--jobs", hint=f"1 to {MOST_JOBS:,}")
    if not 0.0 <= drift < 0.5:
        raise UserError(f"{drift:g} is no small share", field="--drift", hint="write 0.01")
    rows: list[dict[str, Any]] = []
    drawn: list[tuple[str, Samples]] = []
    for one in recordings:
        found = _judged(one, limits)
        rows.append(_row(one.name, one.parts, found, limits))
        drawn.append((one.name, one.samples))
        if jobs > 1:
            for way in spreads(one.samples, found, jobs, drift, seed):
                name = f"{jobs} {way.name}"
                name = name if len(recordings) == 1 else f"{name}: {one.name}"
                row = _row(name, jobs, swing(way.samples, ramp_s=limits.ramp_s), limits)
                rows.append({**row, "mean_wait_s": way.wait_s})
                drawn.append((name, way.samples))
    return {"schema": SCHEMA, "limits": asdict(limits), "recordings": rows}, drawn


def spreads(
    samples: Samples, found: Swing, jobs: int, drift: float, seed: int
) -> tuple[Spread, Spread]:
    """`jobs` repetitions of a recording: begun together, and over one period of its oscillation.

    Each job goes through the recording at a pace of its own, from the beginning again where it
    ends; sums are over one length of the recording, once all of them run.
    """
    step_s, even_w = evenly(samples)
    length_s = step_s * len(even_w)
    period_s = 1.0 / found.strongest.frequency_hz if found.strongest is not None else length_s
    pace = 1.0 + drift * np.random.default_rng(seed).standard_normal(jobs)
    at_s: Floats = step_s * np.arange(len(even_w), dtype=np.float64)
    waits_s = period_s * np.arange(jobs) / jobs

    def added_up(late_s: Floats) -> Samples:
        total = np.zeros(len(at_s))
        for late, faster in zip(late_s.tolist(), pace.tolist(), strict=True):
            own_s = (at_s - late) * faster
            total += np.interp(own_s, at_s, even_w, period=length_s)
        return Samples(at_s=at_s, watts=total, averaged_s=samples.averaged_s)

    return (
        Spread(name="together", wait_s=0.0, samples=added_up(np.zeros(jobs))),
        Spread(name="spread", wait_s=float(waits_s.mean()), samples=added_up(waits_s)),
    )


def _judged(one: Recording, limits: Limits) -> Swing:
    try:
        return swing(one.samples, ramp_s=limits.ramp_s)
    except UserError as error:
        raise UserError(error.problem, where=one.name, field=error.field, hint=error.hint) from None


def _row(name: str, parts: int, found: Swing, limits: Limits) -> dict[str, Any]:
    return {"name": name, "parts": parts, **asdict(found), "beyond": _beyond(found, limits)}


def _beyond(found: Swing, limits: Limits) -> list[Mapping[str, Any]]:
    """Limits that the worst moment exceeds."""
    judged = (
        ("ramp_up_w_s", found.ramp_up_w_s, limits.ramp_up_w_s),
        ("ramp_down_w_s", found.ramp_down_w_s, limits.ramp_down_w_s),
        ("swing_w", found.worst_swing_w, limits.swing_w),
    )
    return [
        {"limit": name, "allowed": allowed, "worst": worst}
        for name, worst, allowed in judged
        if allowed is not None and worst > allowed
    ]
