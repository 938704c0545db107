"""What the site may draw, from now on: a base and spans of lower limits merged into one timeline.

Where several spans hold at once the lowest counts, whoever asked for it: a limit that is kept keeps
all others as well. Times are seconds of one clock (since the Unix epoch for signals from outside);
the module reads none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wattherd.errors import UserError

FOREVER = math.inf


@dataclass(frozen=True, slots=True, order=True)
class LimitPeriod:
    """A limit in watts over [`start_s`, `end_s`); `source` says who asked for it.

    Raises:
        UserError: it ends before it begins, or the limit is no number of watts.
    """

    start_s: float
    end_s: float
    limit_w: float
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        if not self.start_s < self.end_s:
            raise UserError("ends before it begins", where=self.source, field="end")
        if not self.limit_w >= 0:
            raise UserError(f"{self.limit_w} W is no limit", where=self.source, field="limit")

    def holds(self, at_s: float) -> bool:
        """Whether it counts at that time."""
        return self.start_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True)
class LimitTimeline:
    """Spans without gaps from the time of the merge on, the last one without an end."""

    spans: tuple[LimitPeriod, ...]

    def at(self, at_s: float) -> LimitPeriod:
        """The span that holds then; the first one holds before the merge as well."""
        return next((span for span in self.spans if at_s < span.end_s), self.spans[-1])

    def lowest_w(self, from_s: float, until_s: float) -> float:
        """The lowest limit of a stretch of time, both ends included.

        With the time that knobs and jobs take as its length, draw is down when a fall begins.
        """
        return min(
            span.limit_w for span in self.spans if span.start_s <= until_s and from_s < span.end_s
        )


# Cut where anything begins or ends, then ask who is lowest in each piece: quadratic in the number
# of spans that hold at once, of which there are a few. Equal neighbours are joined, so that nobody
# is told of a change that is none.
def merged(base: LimitPeriod, spans: Iterable[LimitPeriod], now_s: float) -> LimitTimeline:
    """The lowest of all at any time from `now_s` on; `base` holds always.

    At equal limits the base is named; of spans the one that began first, then the one that ends
    first, then the one whose source sorts first.
    """
    # Infinite limits are no limits.
    live = sorted(span for span in spans if span.end_s > now_s and math.isfinite(span.limit_w))
    # Between two cuts nothing begins or ends, so that who holds at the first second holds
    # throughout.
    cuts = {now_s, *(span.start_s for span in live), *(span.end_s for span in live)}
    starts = sorted(cut for cut in cuts if now_s <= cut < FOREVER)
    found: list[LimitPeriod] = []
    for start_s, end_s in zip(starts, [*starts[1:], FOREVER], strict=True):
        held = [span for span in live if span.holds(start_s)]
        # `min` takes the first of equals: the base, then spans in the order in which they were
        # sorted.
        least = min([base, *held], key=lambda span: span.limit_w)
        same = found and (found[-1].limit_w, found[-1].source) == (least.limit_w, least.source)
        from_s = found.pop().start_s if same else start_s
        found.append(LimitPeriod(from_s, end_s, least.limit_w, least.source))
    return LimitTimeline(tuple(found))
