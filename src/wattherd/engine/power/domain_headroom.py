"""What a power tree has for the devices that a plan runs: as policies read it, and to the watt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattherd.engine.power.feeds import NW, PPM, Feeds
from wattherd.policy.power.choices import Floats, Ints
from wattherd.policy.power.contract import Asks, PowerAsk
from wattherd.policy.power.limits import DomainRoom

# 2**62 leaves room for one addition of two such numbers in 64 bits.
_ENDLESS_NW = 2**62
"""4.6 GW: more than any tree carries, and still an integer of 64 bits."""
_EXACT_NW = 2**52
"""4.5 MW: twice that, and every integer below it, is a float of its own."""


Branches = tuple[tuple[int, int, int], ...]
"""The domains above one job's devices, the nearest first, and what it takes from each.

(Domain, millionths of a watt there for a watt of the job's cap on all its devices together,
nanowatts there when these devices idle.)
"""
_NONE = (-1, 0, 0)
Parts = Sequence[tuple[int, int, Branches]]
"""By GPU model of one job: whole devices, milliwatts that one draws at most, what is above them."""


# Below a shared device only its dearest job asks (`PowerAccount._share_by_device`), and it asks for
# its own whole devices and the shared ones together: one cap, one row.
def branches_beside(
    branches: Branches, devices: Mapping[int, int], feeds: Feeds, idle_mw: Sequence[int]
) -> Branches:
    """`branches` and what stands above more `devices`, by node; `idle_mw` is one idle device's."""
    above = {domain: (ppm, idle_nw) for domain, ppm, idle_nw in branches}
    for node, count in devices.items():
        for domain, each in feeds.paths[node]:
            ppm, idle_nw = above.get(domain, (0, 0))
            above[domain] = ppm + count * each, idle_nw + count * each * idle_mw[node]
    return tuple((domain, ppm, idle_nw) for domain, (ppm, idle_nw) in above.items())


# A rectangle, because policies work on all jobs at once in NumPy: rows of unequal depth are filled
# up with domain -1, which indexes a column that nobody reads.
def branch_table(rows: Sequence[Branches], depth: int = 0) -> Ints:
    """(J, L, 3) of rows that may differ in length; L is the longest one's, at least `depth`."""
    depth = max(depth, *(len(one) for one in rows)) if rows else depth
    filled = [one + (_NONE,) * (depth - len(one)) for one in rows]
    return np.array(filled, dtype=np.int64).reshape(len(rows), depth, 3)


# A domain without a budget limits nobody and is left out here, so that policies see fewer and never
# meet a limit that is none.
class BudgetColumns:
    """The domains that have a budget, and what each leaves above idling; of one set of budgets.

    `limits_nw` are of all domains of the tree (None: no budget), `idle_nw` is what each carries
    when everything idles. Budgets change rarely and watts are shared at every plan, so that this
    is made once for all plans between two budgets.
    """

    def __init__(
        self, feeds: Feeds, limits_nw: Sequence[int | None], idle_nw: Sequence[int]
    ) -> None:
        """Number the domains that have one, in the order of the tree."""
        limited = [domain for domain, nw in enumerate(limits_nw) if nw is not None]
        self.names = tuple(feeds.names[one] for one in limited)
        self.everywhere = len(limited) == len(limits_nw)
        # One entry more than there are domains: an absent one (-1) looks up the last and stays
        # absent.
        self.number: Ints = np.full(len(limits_nw) + 1, -1, dtype=np.int64)
        """(D + 1,) the number among these of each domain of the tree; -1 for none, and of -1."""
        self.number[limited] = np.arange(len(limited))
        self.above_idle_nw = [(limits_nw[one] or 0) - idle_nw[one] for one in limited]
        self.in_64_bits = all(abs(nw) < _EXACT_NW for nw in self.above_idle_nw)
        """Whether arrays can count them, and watts of them are rounded once only."""
        if self.in_64_bits:
            self.room_nw: Ints = np.array(self.above_idle_nw, dtype=np.int64)


class DomainHeadroom:
    """Nanowatts for whole devices at their caps, by domain with a budget.

    That is each budget less what is drawn beside those devices.
    """

    def __init__(
        self, budgets: BudgetColumns, branches: Ints, mixed: Mapping[int, Parts] | None = None
    ) -> None:
        """The rooms of one plan; `branches` (J, L, 3) are those of each job, domain -1 for none.

        `mixed` are the jobs across several GPU models, by row.
        """
        self._names = budgets.names
        path, ppm, idle = budgets.number[branches[:, :, 0]], branches[:, :, 1], branches[:, :, 2]
        if not budgets.everywhere:
            path, ppm, idle = _packed(path, ppm, idle)
        self._path, self._ppm = path, ppm
        self._mixed = {
            row: _Mixed.of(parts, path[row], ppm[row], budgets.number)
            for row, parts in (mixed or {}).items()
        }
        freed_nw = self._sums(idle)
        self._room_w: Floats
        if budgets.in_64_bits:
            self._room_nw = budgets.room_nw + freed_nw
            self._room_w = self._room_nw / NW
        else:
            # A site above 4.5 MW. Python's integers are exact at any size, and their division
            # rounds once; an array would round a sum beyond 2**53 to a float before it divides.
            left = zip(budgets.above_idle_nw, freed_nw.tolist(), strict=True)
            nw = [above_idle + freed for above_idle, freed in left]
            self._room_nw = np.array([min(one, _ENDLESS_NW) for one in nw], dtype=np.int64)
            self._room_w = np.array([one / NW for one in nw])

    # `np.add.at` and not `bincount`: that one sums in floats, and nanowatts of a site above 9 MW
    # are beyond the integers a float holds.
    def _sums(self, nw: Ints) -> Ints:
        """What `nw` (J, L) add up to in each domain (D,)."""
        sums = np.zeros(len(self._names) + 1, dtype=np.int64)
        np.add.at(sums, self._path, nw)  # what has no domain, -1, goes to the last
        return sums[:-1]

    def limits(self, asks: Asks) -> DomainRoom:
        """As policies read it."""
        # `_ppm` is for a watt more on each device of a job. A policy's watt is one of the whole
        # job.
        scale = np.where(self._path >= 0, self._ppm / (PPM * asks.devices)[:, None], 1.0)
        bent = {row: one for row, one in self._mixed.items() if not one.even}
        if not bent:
            return DomainRoom(self._room_w, self._path, scale, self._names)
        room_w, path = self._room_w.copy(), self._path.copy()
        for row, one in bent.items():
            one.straighten(asks[row], room_w, path[row], scale[row])
        return DomainRoom(room_w, path, scale, self._names)

    def hold(self, caps_w: Floats) -> bool:
        """Whether every domain has enough for these caps (J,)."""
        return bool((self._used(caps_w) <= self._room_nw).all())

    def _used(self, caps_w: Floats) -> Ints:
        mw = np.rint(caps_w * 1000).astype(np.int64)
        # In integers and of rounded milliwatts, as the guard books them: what holds here holds
        # there.
        nw = self._ppm * mw[:, None]
        for row, one in self._mixed.items():
            nw[row] = one.nw(int(mw[row]))
        return self._sums(nw)

    def _nw(self, row: int, cap_w: float) -> Ints:
        """What a job takes from the domains above it (L,) at a cap."""
        mw = round(cap_w * 1000)
        found: Ints = self._mixed[row].nw(mw) if row in self._mixed else self._ppm[row] * mw
        return found

    # Policies share in floats, budgets are integers: what a policy fills to the brim may be over by
    # its rounding, and caps are rounded to whole watts besides. A guard that trusted the policy's
    # sum would be over a budget by a watt for hours. So single watts are taken back, from the last
    # job in order of submission first, never below a floor.
    def trimmed(self, asks: Asks, caps_w: Floats) -> list[float]:
        """The caps less single watts where roundings add up to more than a domain has."""
        used = self._used(caps_w)
        found: list[float] = caps_w.tolist()
        for domain in np.flatnonzero(used > self._room_nw).tolist():
            # It ends: each turn takes at least part of a watt from a job that is above its floor,
            # or stops. Where all are at their floors the plan was too large, and that is
            # `refused`'s to prevent.
            while used[domain] > self._room_nw[domain]:
                if not self._lower(domain, asks, found, used):
                    break
        return found

    def _lower(self, domain: int, asks: Asks, caps_w: list[float], used: Ints) -> bool:
        """Take a watt from the last job below a domain that has one to give."""
        below = np.flatnonzero((self._path == domain).any(axis=1))
        for at in below[::-1].tolist():
            lower_w = max(caps_w[at] - 1.0, asks[at].curve.cap_w(float(asks.floor_w[at])))
            if lower_w < caps_w[at]:
                here = self._path[at] >= 0
                less = self._nw(at, lower_w) - self._nw(at, caps_w[at])
                used[self._path[at][here]] += less[here]
                caps_w[at] = lower_w
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Mixed:
    """What a job across GPU models takes from the domains above it, at one cap."""

    tops_mw: Ints
    """(M,) what a device of each model draws at most."""
    ppm: Ints
    """(M, L) millionths of a watt there for a watt of the cap."""
    even: bool
    """Whether each domain feeds the models in the same proportion."""

    @classmethod
    def of(cls, parts: Parts, path: Ints, ppm: Ints, number: Ints) -> _Mixed:
        """From the `path` (L,) of a job and the whole `ppm` (L,) there."""
        at = {int(domain): level for level, domain in enumerate(path) if domain >= 0}
        table = np.zeros((len(parts), len(path)), dtype=np.int64)
        for row, (_, _, branches) in enumerate(parts):
            for domain, each, _ in branches:
                if int(number[domain]) in at:
                    table[row, at[int(number[domain])]] = each
        devices = np.array([part[0] for part in parts], dtype=np.int64)
        # Ratios compared by products of integers: as floats, equal ones might differ in the last
        # bit.
        even = (table * devices.sum() == devices[:, None] * np.where(path >= 0, ppm, 0)).all()
        tops_mw = np.array([part[1] for part in parts], dtype=np.int64)
        return cls(tops_mw, table, bool(even))

    def nw(self, mw: int) -> Ints:
        """(L,) nanowatts at a cap of `mw`."""
        return np.asarray(np.minimum(mw, self.tops_mw) @ self.ppm, dtype=np.int64)

    # Policies know domains that take a fixed part of what a job draws. Here the part changes with
    # the cap: the large model's rack takes more of it, the higher the cap. The straight line is
    # right at the lowest and the highest cap; between them `trimmed` takes back what is too much.
    def straighten(self, ask: PowerAsk, room_w: Floats, path: Ints, scale: Floats) -> None:
        """Write what policies read of such a job: its `path` and `scale` (L,), and the rooms."""
        curve, devices = ask.curve, ask.devices
        ends = [round(curve.cap_w(watts) * 1000) for watts in (curve.floor_w, curve.max_w)]
        least_w, most_w = (self.nw(mw) / NW for mw in ends)
        job_w, span_w = devices * curve.floor_w, devices * (curve.max_w - curve.floor_w)
        for level in np.flatnonzero(path >= 0).tolist():
            rise_w = float(most_w[level] - least_w[level])
            domain = int(path[level])
            if rise_w <= 0 or span_w <= 0:
                # What it takes there is the same at every cap.
                room_w[domain] -= least_w[level]
                path[level], scale[level] = -1, 1.0
            else:
                scale[level] = rise_w / span_w
                room_w[domain] += scale[level] * job_w - least_w[level]


def _packed(path: Ints, *values: Ints) -> tuple[Ints, ...]:
    """Domains without a budget (-1 in `path`) moved behind the others, with their `values` as 0."""
    # Rows as `tree_limits` makes them for allocations without a core: the domains that limit, the
    # nearest first, without holes.
    absent = path < 0
    order = np.argsort(absent, axis=1, kind="stable")
    depth = max(1, int((~absent).sum(axis=1).max(initial=0)))
    columns = (path, *(np.where(absent, 0, one) for one in values))
    return tuple(np.take_along_axis(one, order, axis=1)[:, :depth] for one in columns)
