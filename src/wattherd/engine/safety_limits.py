"""How much of each limit may be handed out as caps now.

The limit less a margin, less what was drawn beyond all that was counted, and less still while a
breaker is hot. It does not know whose watts they are.
"""

from __future__ import annotations

import numpy as np

from wattherd.engine.safety_meters import Seen
from wattherd.engine.safety_terms import Fleet, Floats, SafetyConfig, no_streak

UNEXPLAINED_S = 3.0
"""Draw lags behind caps by the devices' response; only a longer excess is unexplained."""
FORGET_PER_S = 0.005
"""The share of the limit by which an old excess is forgotten each second."""


class Allowance:
    """Budgets for caps (F + 1,): the feeds and, last, the site."""

    def __init__(self, fleet: Fleet, config: SafetyConfig) -> None:
        """Breakers may be warm from before."""
        self._fleet, self._config = fleet, config
        levels = fleet.feeds + 1
        self.heat: Floats = np.full(levels, config.start_heat)
        self._cooling = np.ones(levels, dtype=np.bool_)
        self._excess_w = np.zeros(levels)
        self._above = no_streak(levels)

    def budget(
        self, limit_w: Floats, counted_w: Floats, seen: Seen, *, now_s: float, step_s: float
    ) -> Floats:
        """Watts (F + 1,) that caps may sum up to; `counted_w` (N,) is every device's worst case."""
        worst_w = self._fleet.levels(counted_w)
        draw_w = self._drawn(seen, counted_w)
        self._note_excess(draw_w - worst_w, limit_w, now_s, step_s)
        self._note_heat(draw_w, step_s)
        budget_w = limit_w * (1.0 - self._config.margin) - self._excess_w
        hot_w = self._config.hot_share * self._fleet.breaker.rated_w
        return np.asarray(np.where(self._cooling, np.minimum(budget_w, hot_w), budget_w))

    def _note_excess(self, beyond_w: Floats, limit_w: Floats, now_s: float, step_s: float) -> None:
        """Keep the largest excess that lasted; let it go slowly."""
        lasts = self._above.note(beyond_w > 0.005 * limit_w, now_s) >= UNEXPLAINED_S
        kept_w = np.maximum(self._excess_w - FORGET_PER_S * limit_w * step_s, 0.0)
        self._excess_w = np.where(lasts, np.maximum(kept_w, beyond_w), kept_w)

    def _note_heat(self, draw_w: Floats, step_s: float) -> None:
        self.heat = self._fleet.breaker.heated(self.heat, draw_w, step_s)
        still_hot = self.heat > self._config.cool
        self._cooling = (self.heat > self._config.hot) | (self._cooling & still_hot)

    def _drawn(self, seen: Seen, counted_w: Floats) -> Floats:
        """What levels draw by their meters, the worst of what is below where none is trusted."""
        fleet = self._fleet
        return fleet.tree.filled_in(np.append(seen.feed_w, np.nan), fleet.own(counted_w))
