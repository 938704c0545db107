"""How high a cap each device has a use for, by what it draws: who gives back, and who wants more.

A device close to its cap wants all it can get, at once; one that stays well below gives back what
is above its draw, but only after a while. How long a while is learned of each: who wants its cap
again as soon as it is given back (a checkpoint, an evaluation) is waited for twice as long the next
time, who stays away half as long. Meters that are not trusted take nothing away and give nothing.
The bands are Dynamo's (ISCA'16), see `SafetyConfig`.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Bools, Fleet, Floats, SafetyConfig, no_streak
from wattherd.engine.safety.meters import TrustedReadings

TRIPS = 3.0
"""There and back, and where half of all knobs are slow the mean of all knows only half of it."""


# Wanting more is believed at once, wanting less after a while: to hold a device down that begins to
# work costs work at once, to leave it a cap that it does not use costs somebody else's wish.
class Wants:
    """Remembers for how long every device has drawn less than its cap."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Nobody was seen yet."""
        self._fleet, self._config = fleet, config
        self._below = no_streak(fleet.size)
        self._patience_s: Floats = np.full(fleet.size, config.idle_s)
        """For how long each may draw less than its cap before it gives back (N,)."""

    def caps(
        self, seen: TrustedReadings, held_w: Floats, now_s: float, *, doubted: Bools | None = None,
        answer_s: float = 0.0,
    ) -> Floats:  # fmt: skip
        """Caps (N,) with a use, beside those in force `held_w` (N,); that where nothing is read.

        Below `doubted` levels (F + 1,) devices' meters may read low. `answer_s` is how long knobs
        take: nobody gives back for a dip that is over before its cap has moved there and back.
        """
        config, fleet = self._config, self._fleet
        with np.errstate(invalid="ignore"):
            capped = seen.draw_w > config.capped_at * held_w
            below = seen.draw_w < config.idle_below * held_w
        below &= ~seen.still
        idle = self._given_back(below, now_s, TRIPS * answer_s)
        # Close to its cap a device shows only that it is held back, not by how much: it is offered
        # all, and its next reading says what it takes.
        wanted_w = np.where(capped, fleet.max_w, held_w)
        wanted_w = np.where(idle, seen.draw_w / config.idle_to, wanted_w)
        # Where meters contradict each other none of them may take a cap away: they may read low.
        levels = np.append(~seen.agreed, np.False_)
        levels = levels if doubted is None else levels | doubted
        doubt = fleet.any_above(levels) & np.isfinite(seen.draw_w)
        wanted_w = np.where(doubt, fleet.max_w, wanted_w)
        return np.asarray(np.clip(wanted_w, fleet.floor_w, fleet.max_w))

    def _given_back(self, below: Bools, now_s: float, least_s: float) -> Bools:
        """Who (N,) has drawn less than its cap for as long as it is waited for."""
        config, lasted_s = self._config, np.maximum(self._below.seconds, 0.0)
        gave_s = lasted_s - self._patience_s
        ended = (lasted_s > 0) & ~below
        regretted = ended & (gave_s >= 0) & (gave_s < config.regret_s)
        spared = ended & (gave_s >= config.regret_s)
        longer_s = np.minimum(2.0 * self._patience_s, config.idle_most_s)
        shorter_s = np.maximum(0.5 * self._patience_s, config.idle_s)
        self._patience_s = np.where(regretted, longer_s, self._patience_s)
        self._patience_s = np.where(spared, shorter_s, self._patience_s)
        return np.asarray(self._below.note(below, now_s) >= np.maximum(self._patience_s, least_s))
