"""What every domain of a power tree carries in a simulated run, integrated exactly between events.

Counted as the guard counts, losses included, but for sleeping nodes, which draw nothing. The
budget is the one in force at each moment; time above it within `reaction_s` of a change that was
not announced is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.core import Core
from wattherd.engine.power.feeds import NW
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.sim.meter import UNMOVED

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
ENDLESS_NW = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUse:
    """All domains of one depth together; `over_budget_s` is the sum of theirs.

    `exempt_s` is time above budgets that is not
    counted, within the reaction time of changes that nobody announced. `worst_w` is the most that
    one of them, `worst_domain`, was above its budget. Uses are of
    budgets, over the time in which there was one; None where no domain of the level has any.
    """

    level: str
    domains: int
    budgets: int
    over_budget_s: float
    over_budget_j: float
    exempt_s: float
    worst_w: float
    worst_domain: str
    mean_use_pct: float | None
    peak_use_pct: float | None


class BranchMeter:
    """Watches a core with a power tree from event to event."""

    def __init__(self, core: Core, *, reaction_s: float = 0.0, begin_s: float = 0.0) -> None:
        """Nothing was seen yet; nothing is counted before `begin_s`."""
        self._core, self._account, self._reaction_s = core, core.watts, reaction_s
        count = len(core.watts.feeds.names)
        self.over_s, self.over_j = np.zeros(count), np.zeros(count)
        self.exempt_s = np.zeros(count)
        self.worst_w, self.peak = np.zeros(count), np.zeros(count)
        self._use_s, self._limited_s = np.zeros(count), np.zeros(count)
        self._carried: Ints = np.zeros(count, dtype=np.int64)
        self._limits: Ints = np.full(count, ENDLESS_NW)
        self._stated_nw: list[int | None] | None = None
        self._changed_s = np.full(count, -np.inf)
        self._at_s = begin_s
        self._stale = True

    def until(self, now_s: float) -> None:
        """Integrate what is carried up to then."""
        if self._stale:
            self._look()
        if now_s > self._at_s:
            self._integrate(now_s)
            self._at_s = now_s

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """What is carried may have changed; it is looked at once time passes."""
        self._stale |= bool(commands) or type(event) not in UNMOVED

    def _look(self) -> None:
        self._stale = False
        self._carried = np.array(self._account.carried_nw(self._core.rest.asleep), dtype=np.int64)
        stated_nw = self._account.stated_nw
        if stated_nw is not self._stated_nw:  # it is the same list until a budget changes
            self._stated_nw = stated_nw
            limits = [ENDLESS_NW if one is None else one for one in stated_nw]
            self._limits = np.array(limits, dtype=np.int64)
        surprised_s = self._core.budgets.surprised_s
        if not surprised_s:
            return
        site_s = surprised_s.get("", -np.inf)
        names = self._account.feeds.names
        self._changed_s = np.array([surprised_s.get(name, -np.inf) for name in names])
        root = self._account.feeds.root
        self._changed_s[root] = max(self._changed_s[root], site_s)

    def _integrate(self, now_s: float) -> None:
        seconds = now_s - self._at_s
        excess = np.maximum(self._carried - self._limits, 0)
        if excess.any():
            late_s = np.clip(now_s - self._changed_s - self._reaction_s, 0.0, seconds)
            over = (excess > 0) & (late_s > 0)
            excess_w = excess / NW
            self.over_s += np.where(over, late_s, 0.0)
            self.exempt_s += np.where(excess > 0, seconds - np.where(over, late_s, 0.0), 0.0)
            self.over_j += np.where(over, excess_w * late_s, 0.0)
            self.worst_w = np.where(over, np.maximum(self.worst_w, excess_w), self.worst_w)
        limited = (self._limits < ENDLESS_NW) & (self._limits > 0)
        use = np.where(limited, self._carried / np.maximum(self._limits, 1), 0.0)
        self._use_s += use * seconds
        self._limited_s += np.where(limited, seconds, 0.0)
        self.peak = np.maximum(self.peak, use)

    def mark(self) -> list[Floats]:
        """What was counted so far (`sim.interval`)."""
        return [one.copy() for one in self._counts()]

    def rewind(self, mark: list[Floats]) -> None:
        """Forget what was counted since."""
        for count, one in zip(self._counts(), mark, strict=True):
            count[:] = one

    def _counts(self) -> list[Floats]:
        over = [self.over_s, self.over_j, self.exempt_s, self.worst_w]
        return [*over, self.peak, self._use_s, self._limited_s]

    def levels(self) -> list[LevelUse]:
        """The levels from the site down."""
        return [self._level(name, at) for name, at in self._by_level()]

    def _by_level(self) -> Iterator[tuple[str, list[int]]]:
        tree = self._account.feeds.tree
        depths = [tree.depth(domain.name) for domain in tree.domains]
        for depth in range(max(depths) + 1):
            at = [number for number, one in enumerate(depths) if one == depth]
            named = [tree.domains[number].level for number in at if tree.domains[number].level]
            yield (named[0] if named else "site" if not depth else f"level {depth}"), at

    def _level(self, name: str, at: list[int]) -> LevelUse:
        worst = max(at, key=lambda one: (self.worst_w[one], -one))
        limited = [one for one in at if self._limited_s[one] > 0]
        limited_s = float(self._limited_s[at].sum())
        return LevelUse(
            level=name,
            domains=len(at),
            budgets=len(limited),
            over_budget_s=float(self.over_s[at].sum()),
            over_budget_j=float(self.over_j[at].sum()),
            exempt_s=float(self.exempt_s[at].sum()),
            worst_w=float(self.worst_w[worst]),
            worst_domain=self._account.feeds.names[worst] if self.worst_w[worst] else "",
            mean_use_pct=100 * float(self._use_s[at].sum()) / limited_s if limited_s else None,
            peak_use_pct=100 * float(self.peak[limited].max()) if limited else None,
        )
