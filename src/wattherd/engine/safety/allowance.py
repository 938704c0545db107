"""How much of each limit may be handed out to devices now.

The limit less a margin, less other load and what is kept for its rise, and less still while a
breaker is hot. It does not know whose watts they are.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety.contract import Fleet, Floats, SafetyConfig
from wattherd.engine.safety.medians import median
from wattherd.engine.safety.other_load import BaseLoad

STEADY = 0.004
"""Budgets rise only by more than that share of the limit: noise must not move caps."""

HOTTEST = 0.75
"""Thermal state from which on a breaker is given the most time to cool."""


class Allowance:
    """Budgets for devices (F + 1,): the feeds and, last, the site."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Breakers may be warm from before."""
        self._fleet, self._config = fleet, config
        levels = fleet.feeds + 1
        self.heat: Floats = np.full(levels, config.start_heat)
        self.kept_w: Floats = np.zeros(levels)
        """What is kept of each limit, without the noise of meters."""
        self._drawn_w = np.full((3, levels), np.nan)

    def budget(
        self, limit_w: Floats, base: BaseLoad, *, step_s: float,
        given_w: Floats | float = 0.0, lasting_w: Floats | float = 0.0,
    ) -> Floats:  # fmt: skip
        """Watts (F + 1,) that devices may be counted at.

        Of what is drawn, storage gives `given_w` (F + 1,): breakers do not carry that. `lasting_w`
        of it lasts, and is in the limits already.
        """
        self._note_heat(base.drawn_w - given_w, step_s)
        room_w = limit_w * (1.0 - self._config.margin)
        now_w = room_w - base.budget_w(room_w)
        # What is kept for other load rises at once and falls by steps: the sum of a site's noise
        # would otherwise move everybody's cap each cycle.
        falls = now_w < self.kept_w - STEADY * limit_w
        self.kept_w = np.where((now_w > self.kept_w) | falls, now_w, self.kept_w)
        budget_w = room_w - self.kept_w
        rated_w = self._cooling_share() * self._fleet.breaker.rated_w + lasting_w
        # A breaker that is warm counts by its rating and not by the limit: a limit above the rating
        # is carried for minutes only, and those have been used.
        hot_w = np.where(rated_w < room_w, base.budget_w(rated_w), budget_w)
        return np.asarray(np.minimum(budget_w, hot_w))

    def _cooling_share(self) -> Floats:
        """The share of its rating that a breaker may carry: the warmer, the less.

        All of it up to `cool`, `hot_share` from a heat of 0.75 on. In between by the square: a
        breaker whose past is not known (`start_heat`) must not cost a tenth of the limit for
        minutes, and at its rating no breaker gets warmer.
        """
        config = self._config
        warm = np.clip((self.heat - config.cool) / (HOTTEST - config.cool), 0.0, 1.0)
        return 1.0 - (1.0 - config.hot_share) * np.square(warm)

    def _note_heat(self, drawn_w: Floats, step_s: float) -> None:
        """Medians of three: a garbage reading heats no breaker."""
        # A first reading stands for the two before it.
        if np.isnan(self._drawn_w).all():
            self._drawn_w[:] = drawn_w
        # What is drawn and not what is counted heats a breaker: counts are bounds, and would trip
        # it on paper.
        self._drawn_w = np.vstack((self._drawn_w[1:], drawn_w))
        draw_w = median(self._drawn_w)
        self.heat = self._fleet.breaker.heated(self.heat, draw_w, step_s)
