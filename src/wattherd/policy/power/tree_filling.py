"""Water-filling on a power tree: the linear optimum in a few passes over arrays, and its rounding.

Serving the steepest piece first is optimal for a sum of concave functions under one budget. Under
nested budgets it is optimal as well, because what fits below them is a polymatroid (Edmonds, 1970);
losses change nothing in that: counted in watts at the root, every domain's constraint is a plain
sum again, since above a domain all of its watts take the same way.

Merged from the racks up, each domain keeps of its pieces, steepest first, what fits into it: that
is the same optimum, and each generation of domains is one cumulative sum.

From there to one measured point per job: whole pieces (`whole`), then what still fits (`stepped`).
At most one piece per saturated domain is cut by the linear optimum; what its rounding leaves over
goes to single steps, the most valuable first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices, hull_rows
from wattherd.policy.power.limits import SLACK_W, DomainRoom

# --- The linear optimum -----------------------------------------------------------------------
# --- Pieces of concave hulls: the common ground of water-filling, its bound and its rounding. -----


@dataclass(frozen=True, slots=True)
class Hulls:
    """The pieces of all jobs' hulls, by job and watts (P,): whose, the rows they lead from and to.

    They depend on the choices alone: made once, they serve every budget.
    """

    menu: PowerChoices
    job: Ints
    low: Ints
    high: Ints
    watts: Floats
    worth: Floats


def hulls_of(menu: PowerChoices) -> Hulls:
    """The hull pieces of a menu."""
    rows = hull_rows(menu)
    inside = menu.job[rows[1:]] == menu.job[rows[:-1]]
    low, high = rows[:-1][inside], rows[1:][inside]
    return Hulls(
        menu=menu,
        job=menu.job[low],
        low=low,
        high=high,
        watts=menu.watts[high] - menu.watts[low],
        worth=menu.value[high] - menu.value[low],
    )


@dataclass(frozen=True, slots=True)
class HullSegments:
    """All pieces of all jobs, steepest first (P,): whose, watts, worth, the row at the end.

    `slope` is worth per watt at the root; `start_w` and `start_value` (J,) are those of the least
    choices.
    """

    job: Ints
    target: Ints
    watts: Floats
    worth: Floats
    slope: Floats
    start_w: Floats
    start_value: Floats


def pieces_of(hulls: Hulls, price: Floats) -> HullSegments:
    """The pieces in the order in which watts are given; `price` (J,): a job's watt at the root.

    Among equally steep pieces those of earlier jobs come first, and within a job lower ones.
    """
    menu = hulls.menu
    slope = hulls.worth / (hulls.watts * price[hulls.job])
    order = np.argsort(-slope, kind="stable")
    return HullSegments(
        job=hulls.job[order],
        target=hulls.high[order],
        watts=hulls.watts[order],
        worth=hulls.worth[order],
        slope=slope[order],
        start_w=menu.watts[menu.least],
        start_value=menu.value[menu.least],
    )


WHOLE_W = SLACK_W / 10
"""A piece that lacks no more than this is served whole: cumulative sums round."""


@dataclass(frozen=True, slots=True)
class DomainGeneration:
    """Domains none of which feeds another; all their children belong to earlier generations.

    Of the pieces below them (Q,), by domain and then steepest first: which, in which domain, what a
    watt is there; `first` is where a domain's run begins, for every piece of it.
    """

    piece: Ints
    domain: Ints
    scale: Floats
    first: Ints


@dataclass(frozen=True, slots=True)
class TreeFilling:
    """Pieces arranged for the domains above them; serves any budgets of the same tree."""

    hulls: Hulls
    limits: DomainRoom
    pieces: HullSegments
    generations: tuple[DomainGeneration, ...]

    @property
    def menu(self) -> PowerChoices:
        """The choices."""
        return self.hulls.menu

    def served(self, room_w: Floats) -> Floats:
        """Watts of each piece (P,) where domains have `room_w` (D,) above the least choices."""
        given = self.pieces.watts.copy()
        for one in self.generations:
            given[one.piece] = self._cut(one, given, room_w)[0]
        return given

    def _cut(self, one: DomainGeneration, given: Floats, room_w: Floats) -> tuple[Floats, Bools]:
        """What a generation lets through of what the one below did, and which pieces it cut."""
        asked = given[one.piece]
        load = asked * one.scale
        total = np.cumsum(load)
        before = total - load
        before -= before[one.first]
        left = np.maximum(room_w[one.domain] - before, 0.0)
        cut = load - left > WHOLE_W
        return np.where(cut, left / one.scale, asked), cut

    def prices(self, room_w: Floats) -> Floats:
        """Worth of one more watt of each domain's budget (D,): the dual solution.

        0 where watts are left over or a budget further out is the tighter one.
        """
        given, slope = self.pieces.watts.copy(), self.pieces.slope
        level = np.zeros(len(room_w))
        for one in self.generations:
            given[one.piece], cut = self._cut(one, given, room_w)
            # The steepest piece that a domain could not serve in full says what a watt is worth:
            # written from behind, the first of every run stands.
            level[one.domain[cut][::-1]] = slope[one.piece[cut]][::-1]
        return price_steps(self.limits, level)

    def watts(self, given: Floats) -> Floats:
        """Watts of each job (J,)."""
        pieces = self.pieces
        return np.asarray(
            pieces.start_w + np.bincount(pieces.job, given, len(pieces.start_w)), dtype=np.float64
        )

    def value(self, given: Floats) -> float:
        """What all of it is worth."""
        pieces = self.pieces
        return float(pieces.start_value.sum() + (pieces.worth * given / pieces.watts).sum())

    def room(self, room_w: Floats) -> Floats:
        """What domains of `room_w` (D,) have left above the least choices.

        Raises:
            UserError: the least choices do not fit.
        """
        return self.limits.with_room(room_w).left_w(self.pieces.start_w)


def price_steps(limits: DomainRoom, level: Floats) -> Floats:
    """Prices of domains (D,): what each one's `level` (D,) exceeds all levels further out by.

    Levels are per watt at the outermost budget, prices per watt of the domain itself.
    """
    price, outer = np.zeros(len(level)), np.zeros(len(limits.path))
    for domain, scale in zip(limits.path.T[::-1], limits.scale.T[::-1], strict=True):
        here = domain >= 0
        own = level[domain[here]]
        more = np.maximum(own - outer[here], 0.0)
        price[domain[here]] = more * (limits.price / scale)[here]
        outer[here] = np.maximum(own, outer[here])
    return price


def filling(hulls: Hulls, limits: DomainRoom) -> TreeFilling:
    """Arrange the hulls of a menu for the domains of `limits`."""
    pieces = pieces_of(hulls, limits.price)
    return TreeFilling(hulls, limits, pieces, tuple(_generations(pieces, limits)))


def filling_of(menu: PowerChoices, limits: DomainRoom) -> TreeFilling:
    """The same from choices."""
    return filling(hulls_of(menu), limits)


def _generations(pieces: HullSegments, limits: DomainRoom) -> Iterator[DomainGeneration]:
    """From the innermost outwards."""
    rank, every = limits.ranks, np.arange(len(limits.path))
    for number in range(int(rank.max(initial=-1)) + 1):
        level = limits.above(rank == number)
        domain = np.where(level >= 0, limits.path[every, level], -1)[pieces.job]
        scale = limits.scale[every, level][pieces.job]
        yield _generation(np.flatnonzero(domain >= 0), domain, scale)


def _generation(piece: Ints, domain: Ints, scale: Floats) -> DomainGeneration:
    """Group pieces by domain; NumPy sorts integers of 16 bits in linear time."""
    few = domain.max(initial=0) < np.iinfo(np.int16).max
    keys = domain[piece].astype(np.int16) if few else domain[piece]
    piece = piece[np.argsort(keys, kind="stable")]
    domain = domain[piece]
    starts = np.flatnonzero(np.diff(domain, prepend=-1))
    first = np.repeat(starts, np.diff(starts, append=len(domain)))
    return DomainGeneration(piece, domain, scale[piece], first)


# --- One measured point per job ---------------------------------------------------------------
_AT_ONCE = 128
"""Candidates that are tried one by one before the rest is sifted again."""


def whole(filling: TreeFilling, given: Floats) -> Ints:
    """The row of each job (J,) up to which its pieces were served whole."""
    pieces = filling.pieces
    row = filling.menu.least.copy()
    served = pieces.watts - given <= WHOLE_W
    # Pieces of a job are served in their order, so that the last one whole is the highest.
    np.maximum.at(row, pieces.job[served], pieces.target[served])
    return row


def stepped(menu: PowerChoices, limits: DomainRoom, row: Ints) -> Ints:
    """Rows (J,) after all single steps of jobs that still fit, the most valuable first.

    A job steps at most once: to the highest choice that fits, above which none will fit later.
    """
    row, done = row.copy(), np.zeros(menu.jobs, dtype=np.bool_)
    room_w = limits.room_w - limits.load_w(menu.watts[row])
    still = np.flatnonzero(np.arange(len(menu.job)) > row[menu.job])
    still = still[_fits(menu, limits, still, (row, room_w, done))]
    gain = menu.value[still] - menu.value[row[menu.job[still]]]
    still = still[np.lexsort((menu.job[still], -gain))]
    while len(still):
        _try_in_turn(menu, limits, still[:_AT_ONCE], (row, room_w, done))
        still = still[_AT_ONCE:]
        still = still[_fits(menu, limits, still, (row, room_w, done))]
    return row


def _fits(
    menu: PowerChoices, limits: DomainRoom, rows: Ints, state: tuple[Ints, Floats, Bools]
) -> Bools:
    """Which of `rows` can still be stepped to."""
    row, room_w, done = state
    owner = menu.job[rows]
    more_w = menu.watts[rows] - menu.watts[row[owner]]
    return np.asarray((more_w <= limits.headroom_w(room_w)[owner]) & ~done[owner])


def _try_in_turn(
    menu: PowerChoices, limits: DomainRoom, rows: Ints, state: tuple[Ints, Floats, Bools]
) -> None:
    """Take what fits of `rows`, which are sorted by gain; `state`: rows, rooms, who has stepped."""
    row, room_w, done = state
    owner = menu.job[rows]
    more_w = menu.watts[rows] - menu.watts[row[owner]]
    load_w = (limits.scale[owner] * more_w[:, None]).tolist()
    # Plain lists: single entries of arrays are slow. The last room is that of no domain.
    rooms = [*room_w.tolist(), float("inf")]
    stepped: dict[int, int] = {}
    for at, job, domains, loads in zip(
        rows.tolist(), owner.tolist(), limits.path[owner].tolist(), load_w, strict=True
    ):
        pairs = list(zip(domains, loads, strict=True))
        if job in stepped or any(load > rooms[domain] for domain, load in pairs):
            continue
        stepped[job] = at
        for domain, load in pairs:
            rooms[domain] -= load
    jobs = list(stepped)
    row[jobs], done[jobs], room_w[:] = list(stepped.values()), True, rooms[:-1]
