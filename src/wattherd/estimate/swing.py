"""How unsteady a draw is: swing, ramps, and at which frequencies, as grid operators ask for them.

Large synchronous training jobs make a site's draw rise and fall together with their steps and
checkpoints. Microsoft, OpenAI and NVIDIA state what a utility asks of such a load (arXiv
2508.14318, section 3): the range that the draw moves in, how fast it rises and falls, and how much
of its energy lies in the bands between 0.1 and 20 Hz in which turbines, generators and inter-area
modes resonate.

Theory. Samples are put on an even grid. The spectrum is Welch's: linear trends are taken off
segments that overlap by half, each is weighed by Hann's window, and their periodograms are
averaged. Densities are one-sided, so that the variance is their integral. Nothing above half the
sampling rate can be known; and a meter that says means over T seconds weakens a component of
frequency f by sin(pi f T) / (pi f T). Where that is less than a half in amplitude we say nothing
rather than too little. (The 1 s means of an H100's `power.draw` understate a swing of 0.5 Hz by
36 %.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

Floats = NDArray[np.float64]

BANDS_HZ: tuple[tuple[float, float], ...] = ((0.01, 0.1), (0.1, 0.5), (0.5, 2.0), (2.0, 20.0))
"""Below 0.1 Hz secondary control follows; inter-area modes lie in 0.1 to 0.5 Hz, local ones up to
2 Hz, shafts of turbines above."""
SEGMENT_S = 204.8
"""Length of a segment of the spectrum: it tells 0.01 Hz apart."""
LEAST_SAMPLES = 32
RANGE_S = 10.0
"""Swing is the range of the draw within a window of this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Watts (P,) at seconds (P,) that rise; `averaged_s` is the span each sample is a mean over."""

    at_s: Floats
    watts: Floats
    averaged_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpectrumBand:
    """One band of the spectrum, seen up to `seen_to_hz`.

    `rms_w` is the root of the variance in what is seen of it, None where sampling or averaging
    hides all of it; `share` is that variance as a part of the whole.
    """

    low_hz: float
    high_hz: float
    seen_to_hz: float | None
    rms_w: float | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwingComponent:
    """The strongest oscillation: its frequency, its height from trough to crest, its part of all.

    `swing_w` is put right for the meter's averaging.
    """

    frequency_hz: float
    swing_w: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """How unsteady a draw is.

    `low_w` and `high_w` are its first and 99th percentile. `swing_w` is the range within windows of
    `RANGE_S`: the median window's, `worst_swing_w` the widest one's. Ramps are means over
    `ramp_s`, the steepest one each way, both positive. `seen_up_to_hz` is the highest frequency
    that these samples tell anything of; `longest_gap_s` the longest time without a sample.
    """

    length_s: float
    samples: int
    rate_hz: float
    seen_up_to_hz: float
    longest_gap_s: float
    mean_w: float
    low_w: float
    high_w: float
    swing_w: float
    worst_swing_w: float
    ramp_s: float
    ramp_up_w_s: float
    ramp_down_w_s: float
    strongest: SwingComponent | None
    bands: tuple[SpectrumBand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """Power density (K,) in W^2/Hz at frequencies (K,) in Hz, those above 0."""

    frequency_hz: Floats
    density: Floats


def swing(
    samples: Samples,
    *,
    ramp_s: float = 1.0,
    bands_hz: Sequence[tuple[float, float]] = BANDS_HZ,
) -> Swing:
    """Judge how unsteady a draw is.

    Raises:
        UserError: fewer than `LEAST_SAMPLES` samples, times that do not rise, or watts that are no
            numbers.
    """
    _check(samples)
    step_s, even_w = evenly(samples)
    spectrum = welch(even_w, step_s)
    ranges_w = _ranges(even_w, max(round(RANGE_S / step_s), 1))
    up_w_s, down_w_s = ramps(even_w, step_s, ramp_s)
    seen_hz = _seen_up_to(step_s, samples.averaged_s)
    return Swing(
        length_s=float(samples.at_s[-1] - samples.at_s[0]),
        samples=len(samples.at_s),
        rate_hz=1.0 / step_s,
        seen_up_to_hz=seen_hz,
        longest_gap_s=float(np.diff(samples.at_s).max()),
        mean_w=float(even_w.mean()),
        low_w=float(np.percentile(even_w, 1)),
        high_w=float(np.percentile(even_w, 99)),
        swing_w=float(np.median(ranges_w)),
        worst_swing_w=float(ranges_w.max()),
        ramp_s=max(ramp_s, step_s),
        ramp_up_w_s=up_w_s,
        ramp_down_w_s=down_w_s,
        strongest=_strongest(spectrum, seen_hz, samples.averaged_s),
        bands=tuple(
            _band(spectrum, low_hz, high_hz, seen_hz, samples.averaged_s)
            for low_hz, high_hz in bands_hz
        ),
    )


def evenly(samples: Samples) -> tuple[float, Floats]:
    """The median step in seconds, and watts on a grid of it, interpolated between samples."""
    step_s = float(np.median(np.diff(samples.at_s)))
    count = int((samples.at_s[-1] - samples.at_s[0]) / step_s + 1e-9) + 1
    grid_s = samples.at_s[0] + step_s * np.arange(count)
    return step_s, np.interp(grid_s, samples.at_s, samples.watts)


def welch(watts: Floats, step_s: float) -> Spectrum:
    """Welch's estimate for watts (P,) on an even grid (IEEE Trans. Audio 15(2), 1967)."""
    size = min(len(watts), max(round(SEGMENT_S / step_s), LEAST_SAMPLES))
    hop = max(size // 2, 1)
    starts = np.arange(0, len(watts) - size + 1, hop)
    rows = np.lib.stride_tricks.sliding_window_view(watts, size)[starts]
    window = np.hanning(size + 1)[:-1]
    density = np.zeros(size // 2 + 1)
    for row in rows:  # one at a time: long recordings would need gigabytes
        density += np.square(np.abs(np.fft.rfft(_without_trend(row) * window)))
    density *= 2.0 * step_s / (len(rows) * float(np.square(window).sum()))
    return Spectrum(
        frequency_hz=np.asarray(np.fft.rfftfreq(size, step_s)[1:], dtype=np.float64),
        density=density[1:],
    )


def ramps(watts: Floats, step_s: float, ramp_s: float) -> tuple[float, float]:
    """The steepest rise and fall in W/s, each over `ramp_s` (at least a step), both positive."""
    apart = min(max(round(ramp_s / step_s), 1), len(watts) - 1)
    slopes = (watts[apart:] - watts[:-apart]) / (apart * step_s)
    return max(float(slopes.max()), 0.0), max(float(-slopes.min()), 0.0)


def response(frequency_hz: Floats | float, averaged_s: float) -> Floats:
    """What means over `averaged_s` leave of the amplitude at a frequency."""
    return np.abs(np.sinc(np.asarray(frequency_hz) * averaged_s))


def _check(samples: Samples) -> None:
    if len(samples.at_s) < LEAST_SAMPLES:
        raise UserError(
            f"{len(samples.at_s)} samples tell nothing of swings",
            hint=f"at least {LEAST_SAMPLES}, better some minutes at 10 Hz",
        )
    if not np.isfinite(samples.watts).all():
        raise UserError("watts that are no numbers", field="watts")
    if (np.diff(samples.at_s) <= 0).any():
        raise UserError("times do not rise", field="at_s")


def _seen_up_to(step_s: float, averaged_s: float) -> float:
    """Half the sampling rate, or where averaging leaves half of an amplitude."""
    sampled_hz = 0.5 / step_s
    # sin(x) / x = 1/2 at x = 1.8955, where x = pi f T.
    return sampled_hz if averaged_s <= 0 else min(sampled_hz, 1.8955 / np.pi / averaged_s)


def _without_trend(row: Floats) -> Floats:
    at = np.arange(len(row)) - (len(row) - 1) / 2
    slope = float(at @ row) / float(at @ at)
    return np.asarray(row - row.mean() - slope * at)


def _ranges(watts: Floats, size: int) -> Floats:
    """Highest less lowest in every window of `size` samples."""
    size = min(size, len(watts))
    windows = np.lib.stride_tricks.sliding_window_view(watts, size)
    return np.asarray(windows.max(axis=1) - windows.min(axis=1))


def _strongest(spectrum: Spectrum, seen_hz: float, averaged_s: float) -> SwingComponent | None:
    """The highest peak among what can be seen; Hann's window spreads it over three bins."""
    seen = spectrum.frequency_hz <= seen_hz
    total = float(spectrum.density.sum())
    if not seen.any() or total <= 0.0:
        return None
    at = int(np.argmax(np.where(seen, spectrum.density, 0.0)))
    near = slice(max(at - 2, 0), at + 3)
    weight = spectrum.density[near]
    frequency_hz = float((spectrum.frequency_hz[near] @ weight) / weight.sum())
    step_hz = float(spectrum.frequency_hz[0])
    variance = float(weight.sum()) * step_hz
    kept = float(response(frequency_hz, averaged_s))
    return SwingComponent(
        frequency_hz=frequency_hz,
        swing_w=2.0 * float(np.sqrt(2.0 * variance)) / kept,
        share=float(weight.sum()) / total,
    )


def _band(
    spectrum: Spectrum, low_hz: float, high_hz: float, seen_hz: float, averaged_s: float
) -> SpectrumBand:
    """A band as far as it is seen."""
    inside = (spectrum.frequency_hz >= low_hz) & (spectrum.frequency_hz < high_hz)
    inside &= spectrum.frequency_hz <= seen_hz
    total = float(spectrum.density.sum())
    if not inside.any():
        return SpectrumBand(low_hz=low_hz, high_hz=high_hz, seen_to_hz=None, rms_w=None, share=None)
    step_hz = float(spectrum.frequency_hz[0])
    kept = np.square(response(spectrum.frequency_hz[inside], averaged_s))
    variance = float((spectrum.density[inside] / kept).sum()) * step_hz
    share = float(spectrum.density[inside].sum()) / total if total > 0.0 else 0.0
    return SpectrumBand(
        low_hz=low_hz,
        high_hz=high_hz,
        seen_to_hz=min(high_hz, seen_hz),
        rms_w=variance**0.5,
        share=share,
    )
