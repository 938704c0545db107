"""Finds ranks that hold up the others of their run; the core decides what follows.

Each rank says about once a second how long it needs for its own part of a step. One that needs
`SLOW` times the median of the others for `LAG_S`, through new steps all the while, is told of: once
until it has caught up.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.local.rank_reports import RankPace
from wattherd.model.event import Event, RankLagged

SLOW = 1.5
"""Times the median of the others: beyond what unequal parts of a batch or a noisy node make."""
LEAST_S = 1e-3
"""Of a step: shorter ones are not told apart by clocks and systems."""
LAG_S = 10.0
"""For how long it must: a checkpoint of one rank is no lag."""
FRESH_S = 10.0
"""Older words do not count: the rank may hang, or have ended."""
LEAST_STEPS = 3
Key = tuple[str, int]
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """Ranks that lag: since when, and at which step that was; and those that were told of."""

    since: dict[int, tuple[float, float]] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)


class RankWatch:
    """`look` at what ranks say, once a second; `tell` hears of those that lag."""

    def __init__(
        self,
        paces: Callable[[], Mapping[Key, Sequence[RankPace]]],
        tell: Callable[[Event], None],
        unix_s: Callable[[], float],
    ) -> None:
        """Nothing is known yet; `unix_s` is the clock of the jobs."""
        self._paces, self._tell, self._unix_s = paces, tell, unix_s
        self._runs: dict[Key, _Run] = {}

    def look(self) -> None:
        """Judge all runs by what was said last."""
        now_s, said = self._unix_s(), self._paces()
        self._runs = {key: self._runs.get(key, _Run()) for key in said}
        for key, run in self._runs.items():
            fresh = [one for one in said[key] if abs(now_s - one.at) <= FRESH_S]
            self._judge(key, run, {one.rank: one for one in fresh}, now_s)

    def _judge(self, key: Key, run: _Run, said: Mapping[int, RankPace], now_s: float) -> None:
        slow = slow_ranks({rank: one.own_s for rank, one in said.items()})
        run.since = {rank: run.since.get(rank, (now_s, said[rank].step)) for rank in sorted(slow)}
        run.told &= slow.keys()
        for rank, (since_s, since_step) in run.since.items():
            pace = said[rank]
            lasts = now_s - since_s >= LAG_S and pace.step - since_step >= LEAST_STEPS
            if lasts and rank not in run.told:
                run.told.add(rank)
                self._report(key, pace, slow[rank])

    def _report(self, key: Key, pace: RankPace, slowdown: float) -> None:
        _LOG.warning("rank %d of job %s is %.1f times slower", pace.rank, key[0], slowdown)
        self._tell(
            RankLagged(
                at_s=0.0,
                job_id=key[0],
                attempt=key[1],
                rank=pace.rank,
                ranks=pace.ranks,
                slowdown=round(slowdown, 3),
            )
        )


def slow_ranks(own_s: Mapping[int, float], factor: float = SLOW) -> dict[int, float]:
    """Ranks that need at least `factor` times the median of the others, and how many times.

    `own_s` are mean seconds a step by rank, without waiting. A rank that is slow does not count
    for the median it is held against; fewer than half of the ranks can be slow.
    """
    found = {}
    for rank, seconds in own_s.items():
        others = [other_s for other, other_s in own_s.items() if other != rank]
        usual_s = max(statistics.median(others), LEAST_S) if others else seconds
        if seconds >= LEAST_S and seconds >= factor * usual_s and others:
            found[rank] = seconds / usual_s
    return found
