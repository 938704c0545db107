"""Which readings may be believed: missing, stale, skewed, frozen, spiking and lying meters.

An untrusted reading becomes NaN here, and nothing behind this module sees the raw value. It knows
no caps: what an unread device is counted at is decided in `safety_caps`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from wattherd.engine.safety_terms import Bools, Fleet, Floats, Readings, SafetyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Readings as far as they are trusted.

    `draw_w` (N,) and `feed_w` (F,) are medians of three, NaN where untrusted; `agreed` (F,) says on
    which feeds the devices' meters and the feed's tell the same story.
    """

    draw_w: Floats
    feed_w: Floats
    agreed: Bools
    missing_share: float


class Meters:
    """Judges every meter by its own last readings, and devices against their feed."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Nothing has been read yet."""
        self._fleet, self._config = fleet, config
        meters = fleet.size + fleet.feeds
        self._last = np.full((3, meters), np.nan)
        self._same = np.zeros(meters, dtype=np.int64)
        self._looked_s = -np.inf
        most_w = fleet.levels(fleet.max_w)[:-1]
        self._most_w = config.plausible * np.concatenate((fleet.max_w, most_w))

    def judge(self, readings: Readings) -> Seen:
        """Take in one cycle's readings."""
        value = np.concatenate((readings.draw_w, readings.feed_w))
        at_s = np.concatenate((readings.draw_at_s, readings.feed_at_s))
        # A clock that runs ahead is as useless as one behind: either age is only known by it.
        fresh = np.isfinite(value) & (np.abs(readings.now_s - at_s) <= self._config.max_age_s)
        with np.errstate(invalid="ignore"):
            # More than everything below can draw: a spike, and no use even to a median.
            value = np.where(value <= self._most_w, value, np.nan)
        # Real meters flicker; the same digits over and over come from a buffer, spikes or not.
        again = (value == self._last).any(axis=0)
        if readings.now_s - self._looked_s >= self._config.refresh_s:
            self._looked_s = readings.now_s
            self._same = np.where(again, self._same + 1, np.maximum(self._same - 1, 0))
            self._same = np.minimum(self._same, 2 * self._config.frozen_after)
            self._last = np.vstack((self._last[1:], value))
        else:
            self._last[-1] = value
        trusted = fresh & (self._same < self._config.frozen_after)
        size = self._fleet.size
        seen_w = np.where(trusted, self._median(), np.nan)
        draw_w, feed_w = seen_w[:size], seen_w[size:]
        unread = np.isnan(draw_w) & ~readings.off
        return Seen(
            draw_w=draw_w,
            feed_w=feed_w,
            agreed=self._agreement(draw_w, feed_w),
            missing_share=float(unread.mean()) if size else 0.0,
        )

    def _median(self) -> Floats:
        """Medians over what was read of the last three: one spike moves nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # never read: stays NaN
            return np.asarray(np.nanmedian(self._last, axis=0))

    def _agreement(self, draw_w: Floats, feed_w: Floats) -> Bools:
        """Whether each feed's meter is near the sum of its devices'; unknown devices excuse it.

        A feed that has no meter contradicts nobody.
        """
        known = np.isfinite(draw_w)
        read_w = self._fleet.levels(np.where(known, draw_w, 0.0))[:-1]
        most_w = self._fleet.levels(np.where(known, draw_w, self._fleet.max_w))[:-1]
        slack_w = self._config.disagree * np.maximum(feed_w, read_w)
        near = (feed_w >= read_w - slack_w) & (feed_w <= most_w + slack_w)
        return np.asarray(near | ~self._fleet.read)
