"""What a site can promise of a reduction: watts, from when, for how long, and how sure.

Each load can be lowered to its floor by a cap, and, if it may be stopped, to what it draws when it
idles. Either takes a time that varies (lognormal: half of all are done after the median), and fails
now and then. What is promised with a probability of `sure` are the watts that so many of all
outcomes reach: outcomes of loads are taken to be independent, and what is said of their sum is a
lower bound (`quantile_w`). Loads on one knob or one power supply are one load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wattherd.errors import UserError
from wattherd.model.power_tree import PowerTree

GRID = 20_000
"""Steps of watts of which a sum of few loads has so many."""
FEW = 64
"""Loads that are counted one by one."""
SPREAD = 0.8
"""Of the natural logarithm of the time that caps take: nine of ten are done after 2.8 medians."""
Weight = Callable[[str], float]
"""Watts at the domain that asks, for a watt at a domain; 0 for what it does not feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerableLoad:
    """Something that draws `draw_w` at `domain` and can be lowered.

    `floor_w` is what a cap brings it to; `idle_w` what stays when it is stopped, which takes its
    grace of `stop_s` and is possible only if it is `preemptible`. `hold_s` is how long it can stay
    lowered (a deadline; endless: `inf`), `works` the share of orders that take effect.
    """

    name: str
    draw_w: float
    floor_w: float
    domain: str = ""
    idle_w: float = 0.0
    preemptible: bool = False
    cap_s: float = 3.0
    stop_s: float = 30.0
    hold_s: float = math.inf
    works: float = 0.99

    def __post_init__(self) -> None:
        """Check that the numbers make sense.

        Raises:
            UserError: they do not.
        """
        for field in ("draw_w", "floor_w", "idle_w", "cap_s", "stop_s", "hold_s"):
            value = getattr(self, field)
            if not value >= 0 or (math.isinf(value) and field != "hold_s"):
                raise UserError(f"{value} is no usable number", where=self.name, field=field)
        if not 0 <= self.works <= 1:
            raise UserError(f"{self.works} is no share of 0 to 1", where=self.name, field="works")

    @property
    def by_cap_w(self) -> float:
        """Watts that a cap takes off."""
        return max(0.0, self.draw_w - self.floor_w)

    @property
    def by_stop_w(self) -> float:
        """Watts that a stop takes off; none where it may not be stopped."""
        return max(0.0, self.draw_w - self.idle_w) if self.preemptible else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionOffer:
    """`reduction_w` less than now from `from_s` after the order, for `for_s`, `sure` (0 to 1).

    `stopped` are the loads that are stopped for it, `capped` those at their floors.
    """

    reduction_w: float
    from_s: float
    for_s: float
    sure: float
    capped: tuple[str, ...]
    stopped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The answer to a request for `asked_w` less: whether it is met, by which offer, and what is.

    `draw_w` is what the domain draws now; `steps` is the most that can be promised at each time.
    """

    asked_w: float
    met: bool
    draw_w: float
    offer: ReductionOffer
    steps: tuple[ReductionOffer, ...]


def weights_of(tree: PowerTree | None, domain: str = "") -> Weight:
    """What a watt at each domain is worth at `domain` (empty: the root), its losses included.

    Raises:
        UserError: no domain of that name, when it is asked for.
    """
    if tree is None:
        return lambda _: 1.0
    top = domain or tree.root.name
    names = {one.name for one in tree.domains}
    if top not in names:
        raise UserError(f"no domain {top!r}", hint=f"domains: {', '.join(sorted(names)[:8])}")
    feeders = {node: one.name for one in tree.domains for node in one.nodes}

    def weight(place: str) -> float:
        at = feeders.get(place, place) or tree.root.name
        if at not in names:
            raise UserError(f"no domain or node {at!r} in the tree", field="domain")
        factor = 1.0
        for one in tree.path_to_root(at):
            factor /= 1.0 - one.loss
            if one.name == top:
                return factor
        return 0.0

    return weight


def promise(
    loads: Sequence[LowerableLoad],
    *,
    asked_w: float,
    lead_s: float,
    for_s: float,
    sure: float = 0.95,
    other_w: float = 0.0,
    weight: Weight = lambda _: 1.0,
) -> Promise:
    """What can be promised `lead_s` after the order, kept for `for_s` with probability `sure`.

    As little as possible is done for it: caps first, then stops, those that free most first. If
    more is asked for than can be promised, the offer is the most there is. `other_w` is drawn
    beside the loads and cannot be lowered.

    Raises:
        UserError: a probability or time that makes no sense.
    """
    if not 0 < sure < 1:
        raise UserError(f"{sure} is no probability above 0 and below 1", field="sure")
    if not (lead_s >= 0 and for_s > 0 and asked_w >= 0):
        raise UserError("times and watts must not be negative", field="from")
    weighed = [(one, weight(one.domain)) for one in loads]
    here = [(one, factor) for one, factor in weighed if factor > 0]
    lasting = [(one, factor) for one, factor in here if one.hold_s >= for_s + lead_s]
    draw_w = other_w + math.fsum(one.draw_w * factor for one, factor in here)
    order = sorted(
        (one for one, _ in lasting if one.by_stop_w > one.by_cap_w),
        key=lambda one: (one.by_cap_w - one.by_stop_w, one.name),
    )
    offer = _smallest(lasting, order, asked_w, lead_s, for_s, sure)
    steps = tuple(
        _offer(lasting, {one.name for one in order}, at_s, for_s, sure)
        for at_s in _times(lasting, lead_s)
    )
    return Promise(
        asked_w=asked_w,
        met=offer.reduction_w >= asked_w,
        draw_w=draw_w,
        offer=offer,
        steps=tuple(_rising(steps)),
    )


def _smallest(
    lasting: Sequence[tuple[LowerableLoad, float]],
    order: Sequence[LowerableLoad],
    asked_w: float,
    lead_s: float,
    for_s: float,
    sure: float,
) -> ReductionOffer:
    """The offer with the fewest stops that meets what is asked for, or the largest one.

    More stops never promise less once stops have time to take effect, so halving finds it; where
    they have not, a stop promises less than a cap and none is worth while.
    """

    def with_stops(count: int) -> ReductionOffer:
        return _offer(lasting, {one.name for one in order[:count]}, lead_s, for_s, sure)

    none, every = with_stops(0), with_stops(len(order))
    if none.reduction_w >= asked_w or every.reduction_w <= none.reduction_w:
        return none
    low, high = 0, len(order)
    if every.reduction_w < asked_w:
        return every
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if with_stops(middle).reduction_w >= asked_w else (middle, high)
    return with_stops(high)


def _offer(
    lasting: Sequence[tuple[LowerableLoad, float]],
    stops: set[str],
    at_s: float,
    for_s: float,
    sure: float,
) -> ReductionOffer:
    """The most that is promised at a time, with these loads stopped and all others capped.

    A load that is being stopped is capped as well: until it has stopped it stands at its floor.
    """
    outcomes = [_outcomes(one, factor, stop=one.name in stops, at_s=at_s)
                for one, factor in lasting]  # fmt: skip
    return ReductionOffer(
        reduction_w=quantile_w(outcomes, sure),
        from_s=at_s,
        for_s=for_s,
        sure=sure,
        capped=tuple(one.name for one, _ in lasting if one.name not in stops and one.by_cap_w),
        stopped=tuple(one.name for one, _ in lasting if one.name in stops),
    )


def _outcomes(
    load: LowerableLoad, factor: float, *, stop: bool, at_s: float
) -> list[tuple[float, float]]:
    """(Watts, probability) pairs of what a load has given up at a time; the rest gives nothing."""
    capped = load.works * done_by(at_s, load.cap_s)
    by_cap_w, by_stop_w = load.by_cap_w * factor, load.by_stop_w * factor
    if not stop:
        return [(by_cap_w, capped)]
    stopped = load.works if at_s >= load.stop_s + load.cap_s else 0.0
    return [(by_stop_w, stopped), (by_cap_w, (1.0 - stopped) * capped)]


def done_by(at_s: float, median_s: float, spread: float = SPREAD) -> float:
    """The share of orders that have taken effect after a time: lognormal."""
    if median_s <= 0:
        return 1.0
    if at_s <= 0:
        return 0.0
    return 0.5 * (1.0 + math.erf(math.log(at_s / median_s) / (spread * math.sqrt(2.0))))


def quantile_w(outcomes: Iterable[Sequence[tuple[float, float]]], sure: float) -> float:
    """Watts that the sum of independent outcomes reaches with probability `sure`, never too many.

    Of two lower bounds the higher: Bernstein's inequality, close where there are many loads, and,
    where there are few, the exact sum on a grid to whose steps outcomes are rounded down.
    """
    given = [[(watts, share) for watts, share in one if watts > 0 and share > 0]
             for one in outcomes]  # fmt: skip
    given = [one for one in given if one]
    bound_w = _bernstein_w(given, sure)
    return bound_w if len(given) > FEW else max(bound_w, _counted_w(given, sure))


def _bernstein_w(given: Sequence[Sequence[tuple[float, float]]], sure: float) -> float:
    """The mean less what a sum falls short by with probability `1 - sure` at most.

    P(S <= mean - t) <= exp(-t^2 / (2 (variance + b t / 3))) for terms within b of their means.
    """
    means_w = [math.fsum(watts * share for watts, share in one) for one in given]
    variances = [
        max(0.0, math.fsum(watts * watts * share for watts, share in one) - mean_w * mean_w)
        for one, mean_w in zip(given, means_w, strict=True)
    ]
    most_w = max(
        (
            max(mean_w, *(abs(watts - mean_w) for watts, _ in one))
            for one, mean_w, variance in zip(given, means_w, variances, strict=True)
            if variance > 1e-12 * mean_w * mean_w
        ),
        default=0.0,
    )
    variance = math.fsum(variances) if most_w else 0.0
    log = math.log(1.0 / (1.0 - sure))
    linear_w = log * most_w / 3.0
    return max(0.0, math.fsum(means_w) - linear_w - math.sqrt(linear_w**2 + 2.0 * log * variance))


def _counted_w(given: Sequence[Sequence[tuple[float, float]]], sure: float) -> float:
    """The same on a grid, exactly but for rounding down, which costs a step a load at most."""
    total_w = math.fsum(max(watts for watts, _ in one) for one in given)
    if total_w <= 0:
        return 0.0
    step_w = total_w / GRID
    chances = np.ones(1)
    for one in given:
        moves = [(int(watts / step_w + 1e-9), share) for watts, share in one]
        after = np.zeros(len(chances) + max(move for move, _ in moves))
        after[: len(chances)] += (1.0 - math.fsum(share for _, share in moves)) * chances
        for move, share in moves:
            after[move : move + len(chances)] += share * chances
        chances = after
    at_least = np.cumsum(chances[::-1])[::-1]
    reached = np.flatnonzero(at_least >= sure - 1e-12)
    return float(reached[-1] * step_w) if len(reached) else 0.0


def _times(lasting: Sequence[tuple[LowerableLoad, float]], lead_s: float) -> list[float]:
    """When it is worth looking: a few multiples of what caps take, ends of graces, the lead."""
    medians = sorted({one.cap_s for one, _ in lasting})
    graces = sorted({one.stop_s + one.cap_s for one, _ in lasting if one.by_stop_w > one.by_cap_w})
    chosen = {medians[0], medians[-1]} if medians else set()
    times = {lead_s, *(2.0**power * one for one in chosen for power in range(5))}
    times |= {*graces[:3], *graces[-3:]}
    return sorted(times)


def _rising(steps: Sequence[ReductionOffer]) -> Iterable[ReductionOffer]:
    """Steps at which more can be promised than at the one before."""
    if steps:
        yield steps[0]
    for before, after in pairwise(steps):
        if after.reduction_w > before.reduction_w:
            yield after
