"""`wattherd power swings`: how unsteady recorded draws are, and what spreading jobs out would save.

Several jobs that repeat one recording are added up twice: begun together, and spread over the
period of the strongest oscillation, so that the crests of some meet the troughs of others. What a
scheduler can reach that way is bounded: ranks of *one* job wait for each other at every step and
cannot be spread, and jobs whose steps differ in length drift apart, or together, by themselves.
Where limits are stated, the jobs that begin together are also held to them by the safety loop, as
`wattherd power hold` would do it, and what that costs them in time is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.safety.loop import Breaker, Fleet, Readings, SafetyConfig, SafetyLoop
from wattherd.engine.safety.ramp import RampLimits
from wattherd.engine.safety.storage import Smoothing, Storage, StorageSize
from wattherd.errors import UserError
from wattherd.estimate.swing import Samples, Swing, evenly, swing
from wattherd.units import joules, watts
from wattherd.workload.power_samples import DrawRecording

Floats = NDArray[np.float64]
SCHEMA = "wattherd.swings/1"
MOST_JOBS = 10_000
ROUNDING = 1e-9
PERIOD_S = 1.0
ANSWER_S = 1.0
"""Simulated: the loop's period, and how long a cap takes to be in force."""
LOWEST = 200 / 700
"""Simulated: the lowest cap as a share of the highest draw, as of an H100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwingLimits:
    """What an operator of a grid or a generator allows: ramps in W/s, swing in W; None: anything.

    Rises and falls are judged over `ramp_s`, the swing within windows of 10 s.
    """

    ramp_up_w_s: float | None = None
    ramp_down_w_s: float | None = None
    swing_w: float | None = None
    ramp_s: float = 1.0

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return any(one is not None for one in (self.ramp_up_w_s, self.ramp_down_w_s, self.swing_w))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadJobs:
    """Equal jobs added up, begun together or spread out; `wait_s` is the mean wait for a start.

    `slowed` is by which share their work takes longer, on average. Where storage smooths the sum,
    `lost_w` is what it loses on average, and `missed_s` how long it could not do what it should.
    """

    name: str
    wait_s: float
    samples: Samples
    slowed: float = 0.0
    lost_w: float = 0.0
    missed_s: float = 0.0


def report(
    recordings: Sequence[DrawRecording], limits: SwingLimits, *, jobs: int = 1, drift: float = 0.0,
    seed: int = 0, storage: StorageSize | None = None,
) -> tuple[dict[str, Any], list[tuple[str, Samples]]]:  # fmt: skip
    """Judge every recording; with `jobs` above 1 also that many of each, together and spread.

    With `storage` also that many together beside it, its ramps on the grid's side.

    `drift` is by how much the pace of jobs differs (standard deviation, a share). The document, and
    what was judged, in its order.

    Raises:
        UserError: recordings too short to judge, or numbers out of range.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UserError(
            f"{jobs} jobs are too few or too many", field="--jobs", hint=f"1 to {MOST_JOBS:,}"
        )
    if not 0.0 <= drift < 0.5:
        raise UserError(f"{drift:g} is no small share", field="--drift", hint="write 0.01")
    rows: list[dict[str, Any]] = []
    drawn: list[tuple[str, Samples]] = []
    for one in recordings:
        found = _judged(one, limits)
        rows.append(_row(one.name, one.parts, found, limits))
        drawn.append((one.name, one.samples))
        if jobs > 1:
            ways = list(spreads(one.samples, found, jobs, drift, seed))
            if limits.any:
                ways.append(held(one.samples, limits, jobs, drift, seed))
            if storage is not None:
                ways.append(stored(ways[0].samples, limits, storage))
            for way in ways:
                name = f"{jobs} {way.name}"
                name = name if len(recordings) == 1 else f"{name}: {one.name}"
                row = _row(name, jobs, swing(way.samples, ramp_s=limits.ramp_s), limits)
                more = {"slowed": way.slowed, "lost_w": way.lost_w, "missed_s": way.missed_s}
                rows.append({**row, "mean_wait_s": way.wait_s, **more})
                drawn.append((name, way.samples))
    return {"schema": SCHEMA, "limits": asdict(limits), "recordings": rows}, drawn


def spreads(
    samples: Samples, found: Swing, jobs: int, drift: float, seed: int
) -> tuple[SpreadJobs, SpreadJobs]:
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
        SpreadJobs(name="together", wait_s=0.0, samples=added_up(np.zeros(jobs))),
        SpreadJobs(name="spread", wait_s=float(waits_s.mean()), samples=added_up(waits_s)),
    )


def held(samples: Samples, limits: SwingLimits, jobs: int, drift: float, seed: int) -> SpreadJobs:
    """`jobs` repetitions of a recording, begun together, and held to limits by the safety loop.

    Each is a device of its own with a meter and a knob. A job under a cap is as much slower as it
    draws less: real ones lose less than that (see `docs/concepts/power-control.md`). The first
    repetition is not judged: in it the loop meets jobs that all start at once.
    """
    step_s, even_w = evenly(samples)
    every = max(round(PERIOD_S / step_s), 1)
    count, highest_w = len(even_w), float(even_w.max())
    pace = 1.0 + drift * np.random.default_rng(seed).standard_normal(jobs)
    loop = SafetyLoop(
        Fleet(
            feed=np.zeros(jobs, dtype=np.int64),
            floor_w=np.full(jobs, LOWEST * highest_w),
            max_w=np.full(jobs, highest_w),
            breaker=Breaker(rated_w=np.full(2, 10.0 * jobs * highest_w)),
        ),
        SafetyConfig(start_heat=0.0),
        ramps=_ramps(limits, every * step_s),
    )
    late = max(round(ANSWER_S / (every * step_s)), 0)
    cap_w: Floats = np.full(jobs, highest_w)
    orders = [cap_w] * (late + 1)
    done = np.zeros(jobs)
    half_done = done
    drawn = np.zeros(2 * count)
    for tick in range(2 * count):
        demand_w = even_w[np.floor(done).astype(np.int64) % count]
        draw_w = np.minimum(demand_w, cap_w)
        drawn[tick] = draw_w.sum()
        done = done + pace * draw_w / np.maximum(demand_w, 1e-9)
        if tick == count - 1:
            half_done = done
        if tick % every == every - 1:
            now_s = (tick + 1) * step_s
            found = loop.cycle(_read(now_s, draw_w, cap_w), np.full(2, 9.0 * jobs * highest_w))
            orders = [*orders[1:], found.cap_w]
            cap_w = orders[0]
    slowed = float(np.mean(pace * count / np.maximum(done - half_done, 1e-9) - 1.0))
    at_s: Floats = step_s * np.arange(count, dtype=np.float64)
    second = Samples(at_s=at_s, watts=drawn[count:], averaged_s=samples.averaged_s)
    return SpreadJobs(name="together, held", wait_s=0.0, samples=second, slowed=slowed)


def stored(samples: Samples, limits: SwingLimits, size: StorageSize) -> SpreadJobs:
    """What the grid sees of a draw with storage beside it that holds its ramps.

    The first repetition is not judged: in it storage comes to the charge that it keeps.
    """
    step_s, even_w = evenly(samples)
    smoothing = Smoothing(
        Storage(size),
        np.inf if limits.ramp_up_w_s is None else limits.ramp_up_w_s,
        np.inf if limits.ramp_down_w_s is None else limits.ramp_down_w_s,
    )
    for load_w in even_w.tolist():
        smoothing.grid_w(load_w, step_s)
    missed_s, lost_j = smoothing.missed_s, smoothing.storage.lost_j
    grid_w = np.array([smoothing.grid_w(load_w, step_s) for load_w in even_w.tolist()])
    at_s: Floats = step_s * np.arange(len(even_w), dtype=np.float64)
    return SpreadJobs(
        name="together, with storage",
        wait_s=0.0,
        samples=Samples(at_s=at_s, watts=grid_w, averaged_s=samples.averaged_s),
        lost_w=(smoothing.storage.lost_j - lost_j) / (step_s * len(even_w)),
        missed_s=smoothing.missed_s - missed_s,
    )


def storage_size(text: str, field: str) -> StorageSize:
    """`250kW,2kWh`, and the share that comes back, 0.9 where it is left out: `250kW,2kWh,0.85`.

    Raises:
        UserError: anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    hint = "write 250kW,2kWh or 250kW,2kWh,0.9"
    if len(parts) not in (2, 3):
        raise UserError(f"{text!r} is no storage", field=field, hint=hint)
    try:
        share = float(parts[2]) if len(parts) == 3 else 0.9
    except ValueError:
        raise UserError(f"{parts[2]!r} is no share", field=field, hint=hint) from None
    try:
        return StorageSize(power_w=watts(parts[0], field=field),
                           energy_j=joules(parts[1], field=field), efficiency=share)  # fmt: skip
    except UserError as error:
        raise UserError(error.problem, field=field, hint=hint) from None


def _ramps(limits: SwingLimits, period_s: float) -> RampLimits:
    """Those of the site; the loop holds none over less than its period."""
    for option, level in (
        ("--ramp-up", limits.ramp_up_w_s), ("--ramp-down", limits.ramp_down_w_s),
        ("--swing", limits.swing_w),
    ):  # fmt: skip
        if level is not None and level <= 0:
            raise UserError("must be above zero, or the draw could never change", field=option,
                            hint="leave it out for no limit")  # fmt: skip

    def of(level: float | None) -> Floats:
        return np.array([np.inf, np.inf if level is None else level])

    return RampLimits(
        up_w_s=of(limits.ramp_up_w_s),
        down_w_s=of(limits.ramp_down_w_s),
        swing_w=of(limits.swing_w),
        over_s=max(limits.ramp_s, period_s),
    )


def _read(now_s: float, draw_w: Floats, cap_w: Floats) -> Readings:
    at_s = np.full(len(draw_w), now_s)
    return Readings(
        now_s=now_s, draw_w=draw_w, draw_at_s=at_s, cap_w=cap_w.copy(),
        feed_w=draw_w.sum(keepdims=True), feed_at_s=at_s[:1],
        off=np.zeros(len(draw_w), dtype=np.bool_),
    )  # fmt: skip


def _judged(one: DrawRecording, limits: SwingLimits) -> Swing:
    try:
        return swing(one.samples, ramp_s=limits.ramp_s)
    except UserError as error:
        raise UserError(error.problem, where=one.name, field=error.field, hint=error.hint) from None


def _row(name: str, parts: int, found: Swing, limits: SwingLimits) -> dict[str, Any]:
    return {"name": name, "parts": parts, **asdict(found), "beyond": _beyond(found, limits)}


def _beyond(found: Swing, limits: SwingLimits) -> list[Mapping[str, Any]]:
    """Limits that the worst moment exceeds."""
    judged = (
        ("ramp_up_w_s", found.ramp_up_w_s, limits.ramp_up_w_s),
        ("ramp_down_w_s", found.ramp_down_w_s, limits.ramp_down_w_s),
        ("swing_w", found.worst_swing_w, limits.swing_w),
    )
    return [
        {"limit": name, "allowed": allowed, "worst": worst}
        for name, worst, allowed in judged
        if allowed is not None and worst > allowed * (1.0 + ROUNDING)
    ]
