"""Our own planner: order, width and GPU model in one loop, by progress gained for each watt.

Each job may run in several ways: on so many GPUs of one model. In each it makes so many units of
progress a second, and draws at most so many watts. Jobs begin with nothing. Again and again the way
is taken that gains most, for its watts, of

    weight x (progress a second there, restart included, over that on one GPU of the fastest model).

Weights make short jobs first. With n jobs, the one that has the k-th most left weighs
(k^c - (k-1)^c)^(1/c): the optimum of heSRPT (Berg et al., 2020) where speed grows as
width^(1 - 1/c). How much is left is told or guessed, and a guess comes before no told time. A job
that changes pays its restart: the progress that is left is divided by the time to go with it.

Jobs of higher priority begin first, the highest first of all. How much wider anybody gets is
decided by what is gained alone; so is who begins, among equals and among those of least priority.

Jobs that waited too long begin before others of their priority (`overdue`): long and wide ones
would wait for as long as short ones come.

Watts are the price of GPUs, by model: the most that one draws. They decide who gets which model and
how wide. How many watts each gets then, under a budget, is the power policy's part, as is the
micro-batch. What the guard refuses is left out, and the plan is made again, so nobody is stopped
for a job that may not start.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import numpy as np

from wattherd.estimate.speed import JobShape, shape_of
from wattherd.model.allocation import Allocation
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import eligibility_key
from wattherd.policy.schedule.bid_table import BidTable, Flags, Ints, Waited, filled
from wattherd.policy.schedule.gang_placement import GangRoom
from wattherd.policy.schedule.job_bids import Bid, BidSite, Options, Way, bid_of
from wattherd.policy.schedule.job_progress import JobProgress, young_s
from wattherd.policy.schedule.overdue import IN_VAIN, OWED_PART, PATIENCE, make_room
from wattherd.policy.schedule.shape_changes import (
    OF_WATTS,
    Alike,
    InVain,
    change_shapes,
    widest_start,
)

SCALING = 1.5
"""c above. Measured speeds grow as width^0.6 or so (`SERIAL_SHARE`): heSRPT has 2.5 for that. Where
restarts cost and lengths are guessed, less of a tilt is a little better: on ten workloads (seeds 0
to 9 of `generated` in `tests/unit/test_progress_per_watt.py`) mean completion under `fifo` over
this one's was 1.78 with 1.5, 1.75 with 2.5, 1.73 with 5, and 1.71 with weights of 1 / left."""
LOOK_S = 10.0
"""Between two plans while jobs are live: what is learned changes them."""
MOST_TRIES = 6
_SITE = "progress-per-watt site"
"""In a view's memory: the last plan's `BidSite`, where things are learned."""


class _Told(IntEnum):
    """What a job was told last of why it waits."""

    NOTHING = 0
    OTHERS = 1
    """Others gain more."""
    GUARD = 2
    """What the guard said."""


@dataclass(slots=True)
class _Memory:
    """What stays from plan to plan where nothing is learned; else only `site` and `waits` do."""

    site: BidSite
    table: BidTable = field(default_factory=BidTable)
    at_s: float = 0.0
    changed: list[JobView] = field(default_factory=list)
    """Fixed jobs to which the last plan gave something else."""
    alike: dict[object, int] = field(default_factory=dict)
    waits: Mapping[str, Waited] = field(default_factory=dict)
    """Where things are learned: how the last plan left its jobs."""
    owed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows of jobs that begin before others, in order."""


@dataclass(slots=True)
class _Chosen:
    """What the loop gives: rows of fixed jobs; all others have it in their bids.

    `touched` are the fixed jobs that are to be started or stopped for that.
    """

    rows: Ints
    bids: Mapping[str, Bid]
    touched: Sequence[JobView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPerWatt:
    """`scaling` is c above; `look_s` None plans at events only.

    `patience` and `owed_part` are those of `overdue`; an infinite patience waits for ever.
    """

    progress: JobProgress
    scaling: float = SCALING
    look_s: float | None = LOOK_S
    patience: float = PATIENCE
    owed_part: float = OWED_PART

    def plan(self, view: View, draft: Draft) -> None:
        """One loop over all jobs; what the guard refuses is planned around."""
        memory = self._up_to_date(view)
        self._decide(view, draft, memory)
        if self.progress.learns:
            view.memory["progress-per-watt"] = memory.table.waits(view.now_s)
            view.memory[_SITE] = memory.site

    def _decide(self, view: View, draft: Draft, memory: _Memory) -> None:
        table, most = memory.table, view.gpu_total()
        if self.look_s is not None and table.row_of:
            draft.wake_at(view.now_s + self.look_s)
        table.weigh(self.scaling)
        if _all_run(table, most):
            return
        memory.owed = self._owed(view, table)
        idle = ~table.runs
        before = {name: one.job.wanted for name, one in table.bids.items()}
        held = int(table.all_gpus[table.runs & table.fixed].sum())
        barred: frozenset[str] = frozenset()
        refused: dict[str, Reason] = {}
        for last in range(1, MOST_TRIES + 1):
            mark = draft.mark()
            if last == MOST_TRIES:  # then nobody is moved
                chosen = _stay(table, barred)
            else:
                chosen = self._choose(memory, barred, most)
            ran = {job.id: job.wanted for job in chosen.touched}
            vain = InVain()
            said = self._carry_out(view, draft, memory, chosen, vain)
            refused |= said
            stopped = any(
                one and job.wanted != one
                for job, one in (
                    *((bid.job, before[name]) for name, bid in table.bids.items()),
                    *((job, ran[job.id]) for job in chosen.touched),
                )
            )
            if not said or not stopped or last == MOST_TRIES:
                break
            powered = held + sum(_gpus(bid.job.wanted) for bid in table.bids.values())
            powered += sum(_gpus(job.wanted) - _gpus(ran[job.id]) for job in chosen.touched)
            draft.undo(mark)
            if any(why.code in OF_WATTS for why in said.values()) and 0 < powered < most:
                most = powered  # no more can be had, whoever they go to
            else:
                barred |= frozenset(said)
        self._settle(memory, chosen.touched)
        self._serve_owed(view, draft, memory, vain)
        self._serve_important(view, draft, memory, vain)
        self._rest(view, draft, memory, vain)
        _tell(view, draft, table, refused)
        for row in memory.owed[idle[memory.owed] & table.runs[memory.owed]].tolist():
            draft.tell(table.job(row), _overdue(table, row, self.patience))

    # What may be had ----------------------------------------------------------------------------

    def _up_to_date(self, view: View) -> _Memory:
        """Rows and bids of all live jobs, as they are now."""
        memory = self._memory(view)
        table, passed_s = memory.table, view.now_s - memory.at_s
        memory.at_s = view.now_s
        anew: Iterable[JobView] = view.live() if self.progress.learns else view.entered()
        came = {job.id: job for job in anew}
        table.drop(job.id for job in view.left() if job.id not in came)
        # Work done since the last plan, and time spent waiting.
        table.done += passed_s * table.rate
        table.waited_s += np.where(table.live & ~table.runs, passed_s, 0.0)
        if not memory.site.holds(view):
            memory.site = BidSite.of(view)
            came = {job.id: job for job in view.live()}
        pauses_s = self.progress.pauses_s(view, view.live() if self.progress.learns else ())
        usual_s = self.progress.usual_pause_s
        young = young_s(pauses_s if self.progress.learns else {"": usual_s})
        for job in came.values():
            self._enter(view, memory, job, pauses_s.get(job.id, usual_s))
        for job in (*came.values(), *memory.changed):
            row = table.row_of.get(job.id)
            if row is not None and table.fixed[row]:
                table.rate[row] = self._rate(view, job)
        memory.changed = []
        for row in (table.live & ~table.fixed).nonzero()[0].tolist():
            self._bid(view, table, row, young)
        return memory

    def _memory(self, view: View) -> _Memory:
        if self.progress.learns:
            waits = view.memory.get("progress-per-watt", {})
            site: BidSite = view.memory.get(_SITE) or BidSite.of(view)
            return _Memory(site, at_s=view.now_s, waits=waits)
        found: _Memory | None = view.memory.get("progress-per-watt")
        if found is None:
            found = view.memory["progress-per-watt"] = _Memory(BidSite.of(view))
        return found

    def _rate(self, view: View, job: JobView) -> float:
        """Units a second that a job does with what it has."""
        held = [one for one in job.wanted if one.gpus]
        if not held or self.progress.learns:
            return 0.0
        model = view.nodes()[held[0].node].gpu_model
        return self.progress.units_per_s(view, job, model, sum(len(one.gpus) for one in held))

    def _enter(self, view: View, memory: _Memory, job: JobView, pause_s: float) -> None:
        """A job that came, or whose options may be others now."""
        table, site, spec = memory.table, memory.site, job.spec
        row = table.put(job)
        if job.id in memory.waits:
            past = memory.waits[job.id]
            table.waited_s[row], table.in_vain_s[row] = past.until(view.now_s), past.in_vain_s
        options = site.options(view, self.progress, job)
        table.options[row], table.shaped[row] = options, options.shaped
        table.runs[row], table.told[row] = bool(job.wanted), _Told.NOTHING
        table.pause_s[row], table.stated[row] = pause_s, spec.duration_s or 0.0
        only = options.ways[0]
        table.fixed[row] = not self.progress.learns and _is_fixed(job, options, len(site.masks))
        table.gpus[row], table.per_s[row] = only.shape.gpus, only.per_s
        table.all_gpus[row] = only.shape.gpus if options.shaped else spec.gpus
        table.price[row] = only.price
        table.one_per_s[row], table.asked_per_s[row] = options.one_per_s, options.asked_per_s
        needs = (
            spec.roles, spec.min_width, spec.max_width, spec.gpu_models, spec.profile,
            spec.power_profile, spec.batch_size, spec.micro_batches, eligibility_key(view, spec),
            None if spec.energy_budget_j is None else spec.id,
        )  # fmt: skip
        table.alike[row] = memory.alike.setdefault(needs, len(memory.alike))
        account = spec.queue, spec.tenant, spec.user
        table.account[row] = memory.alike.setdefault(account, len(memory.alike))
        if table.fixed[row]:
            table.bids.pop(job.id, None)

    def _bid(self, view: View, table: BidTable, row: int, young: float) -> None:
        """What a job that is not fixed bids now."""
        job, options = table.job(row), table.options[row]
        if options is None:
            return
        done = float(table.done[row])
        left = self.progress.left(view, job, done, options.asked_per_s, young)
        bid = bid_of(view, job, options, left, float(table.pause_s[row]))
        table.bids[job.id], table.left_s[row] = bid, bid.left_s
        table.own_s[row] = left.units / options.asked_per_s
        table.gpus[row] = min(way.shape.gpus for way in bid.ways)
        table.runs[row], table.rate[row] = bool(job.wanted), self._rate(view, job)

    def _choose(self, memory: _Memory, barred: Collection[str], most: int) -> _Chosen:
        """The loop."""
        table = memory.table
        bids = {name: one for name, one in table.bids.items() if name not in barred}
        order, gain = table.by_gain(barred)
        free: dict[str | None, int] = dict(memory.site.room)
        free[None] = most
        for_nothing = (table.fixed & (table.gpus == 0)).nonzero()[0]
        if bids:
            rows = _merged(table, bids, order.tolist(), gain.tolist(), free)
        else:
            # All are of the one model that there is.
            rows = order[filled(table.gpus[order], min(free.values()))]
        return _chosen(table, np.concatenate([for_nothing, rows]), bids, barred)

    # Carrying it out ----------------------------------------------------------------------------

    def _carry_out(
        self, view: View, draft: Draft, memory: _Memory, chosen: _Chosen, vain: InVain
    ) -> Mapping[str, Reason]:
        """Propose it; those who were chosen and refused, and why."""
        table, bids, touched = memory.table, chosen.bids, chosen.touched
        jobs = [*(one.job for one in bids.values()), *touched]
        given = set(chosen.rows.tolist())
        ways: dict[str, tuple[str | None, JobShape]] = {
            name: (one.way.model, one.way.shape)
            for name, one in bids.items()
            if one.way is not None
        }
        for job in touched:
            row = table.row_of[job.id]
            options = table.options[row]
            if row in given and options is not None:
                ways[job.id] = options.ways[0].model, options.ways[0].shape
        refused: dict[str, Reason] = {}

        def place(job: JobView) -> tuple[bool, bool, float, int]:
            row = table.row_of[job.id]
            return not job.wanted, not table.owed[row], -float(table.weight[row]), job.number

        def waits(job: JobView) -> Reason:
            return _waits(job, draft, view.now_s)

        def alike(job: JobView) -> Alike:
            return _like(table, table.row_of[job.id])

        change_shapes(
            view, draft, sorted(jobs, key=place), {name: way[1] for name, way in ways.items()},
            partial(self._why, view, table), waits,
            models={name: way[0] for name, way in ways.items() if way[0] is not None},
            refused=refused, alike=alike, vain=vain, masks=memory.site.masks,
        )  # fmt: skip
        return {
            job.id: refused.get(job.id) or waits(job)
            for job in jobs
            if job.id in ways and not job.wanted
        }

    def _why(
        self, view: View, table: BidTable, job: JobView, before: JobShape, after: JobShape
    ) -> str:
        """For its story: what is left, how sure, and what the change brings."""
        one = table.bids[job.id]
        model = "" if one.way is None or one.way.model is None else one.way.model
        per_s = [
            self.progress.units_per_s(view, job, model, shape.gpus) for shape in (before, after)
        ]
        pause_s = one.pause_s
        now_s, then_s = (one.left.units / max(rate, 1e-12) for rate in per_s)
        place = int((table.left_s[table.live] < one.left_s).sum()) + 1
        return (
            f"resized from {before.gpus} to {after.gpus} GPUs: {now_s:,.0f} s to go before, "
            f"{then_s + pause_s:,.0f} s after, of which {pause_s:,.1f} s for the restart; "
            f"{place} of {len(table.row_of)} by what is left ({one.left.source}, speed at this "
            f"width: {self.progress.speed_source(view, job, model, after.gpus)})"
        )

    def _settle(self, memory: _Memory, jobs: Sequence[JobView]) -> None:
        """Jobs that were given something, or from which it was taken."""
        table = memory.table
        for job in jobs:
            row = table.row_of[job.id]
            table.runs[row] = bool(job.wanted)
            table.told[row] = _Told.NOTHING
            memory.changed.append(job)
        for name, one in table.bids.items():
            row = table.row_of[name]
            if bool(one.job.wanted) != table.runs[row]:
                table.runs[row], table.told[row] = bool(one.job.wanted), _Told.NOTHING

    def _serve_owed(self, view: View, draft: Draft, memory: _Memory, vain: InVain) -> None:
        """Stop others for those that are owed GPUs and did not find room.

        Whoever cannot be served even so gives its place to the next.
        """
        table, again = memory.table, True
        while again:
            again = False
            for row in memory.owed.tolist():
                job = table.job(row)
                if job.wanted:
                    continue
                stopped = make_room(view, draft, job, _least_of(table, row), memory.site.masks)
                if job.wanted:
                    # What was tried in vain before may find room now.
                    vain.needs.clear()
                    self._settle(memory, [job, *stopped])
                else:
                    table.in_vain_s[row] = IN_VAIN * table.waited_s[row]
                    again = True
            if again:
                memory.owed = self._owed(view, table)

    def _serve_important(self, view: View, draft: Draft, memory: _Memory, vain: InVain) -> None:
        """Stop less important jobs for those that wait: the loop counts GPUs, and these lie apart.

        Who is stopped has its turn after that: it may be more important than others.
        """
        table = memory.table
        looked_at = np.zeros(len(table.live), dtype=np.bool_)
        in_vain: set[Alike] = set()
        while len(rows := _more_important_than_some(table, looked_at)):
            for row in rows.tolist():
                job, like = table.job(row), _like(table, row)
                looked_at[row] = True
                if like in in_vain:
                    continue
                stopped = make_room(view, draft, job, _below(table, row), memory.site.masks)
                if job.wanted:
                    vain.needs.clear()
                    in_vain.clear()
                    self._settle(memory, [job, *stopped])
                    break
                in_vain.add(like)

    def _owed(self, view: View, table: BidTable) -> Ints:
        return table.owe(self.patience, self.owed_part * view.gpu_total())

    def _rest(self, view: View, draft: Draft, memory: _Memory, vain: InVain) -> None:
        """What is left over goes to those that wait, by priority, then the shortest first.

        Nobody is stopped. Who was in `vain` tried before is not tried again: since then room and
        watts were only given away.
        """
        table, free = memory.table, draft.free_gpu_total()
        wait = table.live & table.shaped & ~table.runs & (table.least_gpus <= free)
        if vain.needs:
            wait &= ~np.isin(table.alike, list(vain.needs))
        (rows,) = wait.nonzero()
        rows = rows[np.lexsort((table.number[rows], table.left_s[rows], -table.priority[rows]))]
        room: GangRoom | None = None
        while len(rows):
            row, rows = int(rows[0]), rows[1:]
            job, like = table.job(row), _like(table, row)
            if like in vain:
                rows = rows[~_same(table, rows, like, vain)]
                continue
            room = room or GangRoom.of(draft)
            found = widest_start(room, view, draft, job, memory.site.masks)
            if found is True:
                room = None
                self._settle(memory, [job])
                rows = rows[table.least_gpus[rows] <= draft.free_gpu_total()]
            else:
                vain.note(like, found or None)
                rows = rows[~_same(table, rows, like, vain)]


def _least_of(table: BidTable, row: int) -> Sequence[JobView]:
    """Who runs and may be stopped for a job that is owed GPUs, the least important first."""
    others = table.runs & ~table.owed & (table.priority <= table.priority[row])
    (rows,) = others.nonzero()
    keys = -table.number[rows], table.weight[rows], table.priority[rows]
    return [job for job in table.named(rows[np.lexsort(keys)]) if _gpus(job.wanted)]


def _more_important_than_some(table: BidTable, looked_at: Flags) -> Ints:
    """Rows of jobs that wait and were not `looked_at`, while less important ones run, in order."""
    runs = table.runs & (table.gpus > 0)
    least = int(table.priority[runs].min(initial=np.iinfo(np.int64).max))
    (rows,) = (table.live & ~table.runs & ~looked_at & (table.priority > least)).nonzero()
    order = np.lexsort((table.number[rows], table.left_s[rows], -table.priority[rows]))
    found: Ints = rows[order]
    return found


def _below(table: BidTable, row: int) -> Sequence[JobView]:
    """Who runs and is less important than a job, the least important first."""
    (rows,) = (table.runs & (table.priority < table.priority[row])).nonzero()
    keys = -table.number[rows], table.weight[rows], table.owed[rows], table.priority[rows]
    return [job for job in table.named(rows[np.lexsort(keys)]) if _gpus(job.wanted)]


def _like(table: BidTable, row: int) -> Alike:
    return Alike(int(table.alike[row]), int(table.account[row]))


def _same(table: BidTable, rows: Ints, like: Alike, vain: InVain) -> Flags:
    """Rows of jobs that would be tried in vain as well, after one like them was."""
    same: Flags = table.alike[rows] == like.needs
    if like.needs not in vain.needs:
        same &= table.account[rows] == like.account
    return same


def _is_fixed(job: JobView, options: Options, models: int) -> bool:
    """Whether nothing but its rank moves a job's gain."""
    way = options.ways[0]
    if len(options.ways) > 1 or models > 1:
        return False
    if way.shape.gpus and (way.model is None or job.spec.duration_s is None):
        return False
    # Another planner may have given it other cores.
    return not (job.wanted and options.shaped) or shape_of(job.spec, job.wanted) == way.shape


def _all_run(table: BidTable, most: int) -> bool:
    """Whether everybody runs who is there, as they did before: then there is nothing to decide."""
    runs = table.runs & table.fixed
    fits = int(table.gpus[runs].sum()) <= most
    return fits and not table.bids and len(table.row_of) == int(runs.sum())


def _stay(table: BidTable, barred: Collection[str]) -> _Chosen:
    """Everybody as they are."""
    bids = {name: one for name, one in table.bids.items() if name not in barred and one.job.wanted}
    for one in bids.values():
        one.stay()
    return _Chosen((table.runs & table.fixed).nonzero()[0], bids, ())


def _chosen(
    table: BidTable, rows: Ints, bids: Mapping[str, Bid], barred: Collection[str]
) -> _Chosen:
    given = np.zeros(len(table.live), dtype=np.bool_)
    given[rows] = True
    jobs = table.named((table.fixed & (given != table.runs)).nonzero()[0])
    return _Chosen(rows, bids, [job for job in jobs if job.id not in barred])


def _merged(
    table: BidTable,
    bids: Mapping[str, Bid],
    order: Sequence[int],
    gains: Sequence[float],
    free: dict[str | None, int],
) -> Ints:
    """The loop over bids, and over fixed jobs in their `order`; rows that get something."""
    heap: list[tuple[int, float, int, str, Way]] = []
    lowest = int(table.priority[table.live].min())

    def put(one: Bid) -> None:
        found = one.best(free)
        if found is not None:
            # Of those who begin the most important come first; width is by gain alone.
            above = one.job.spec.priority - lowest if one.way is None else 0
            heapq.heappush(heap, (-above, -found[0], one.job.number, one.job.id, found[1]))

    for one in bids.values():
        one.way = None
    for one in bids.values():
        put(one)
    taken: list[int] = []
    line = iter(order)
    row = next(line, None)
    while heap or row is not None:
        if row is not None:
            key = lowest - int(table.priority[row]), -gains[row], int(table.number[row])
            if not heap or key < heap[0][:3]:
                if _take(free, None, int(table.gpus[row]), _model(table, row)):
                    taken.append(row)
                row = next(line, None) if free[None] > 0 else None
                continue
        _, gain, _, name, way = heapq.heappop(heap)
        one = bids[name]
        now = one.best(free)
        if now is not None and now[1] is way and -gain == now[0]:
            _take(free, one.way, way.shape.gpus, way.model)
            one.way = way
        if now is not None:
            put(one)
    return np.array(taken, dtype=np.int64)


def _take(free: dict[str | None, int], before: Way | None, gpus: int, model: str | None) -> bool:
    """Take GPUs of a model in place of what was taken `before`; whether there are enough."""
    if before is None and gpus > min(free[model], free[None]):
        return False
    for one in {None, None if before is None else before.model}:
        free[one] += 0 if before is None else before.shape.gpus
    for one in {None, model}:
        free[one] -= gpus
    return True


def _model(table: BidTable, row: int) -> str | None:
    options = table.options[row]
    return None if options is None else options.ways[0].model


def _tell(view: View, draft: Draft, table: BidTable, refused: Mapping[str, Reason]) -> None:
    """Say why they wait to those who hear it for the first time, or to whom it is new."""
    waits = table.live & ~table.runs
    guarded = {
        table.row_of[name]: why
        for name, why in refused.items()
        if why.code is not ReasonCode.WAITING_FOR_GPUS
    }
    by_guard = np.zeros(len(waits), dtype=np.bool_)
    by_guard[list(guarded)] = True
    # Who was told of watts is not told of others in between, as long as watts are short.
    if any(why.code in OF_WATTS for why in refused.values()):
        by_guard |= table.told == _Told.GUARD
    now = np.where(by_guard, int(_Told.GUARD), int(_Told.OTHERS))
    for row in (waits & (table.told != now)).nonzero()[0].tolist():
        job = table.job(row)
        draft.wait(job, guarded.get(row) or _waits(job, draft, view.now_s))
        table.told[row] = now[row]


def _overdue(table: BidTable, row: int, patience: float) -> str:
    needs_s = float(table.own_s[row] + table.pause_s[row])
    return (
        f"begins before others: it has waited {table.waited_s[row]:,.0f} s, more than {patience:g} "
        f"times the {needs_s:,.0f} s that it still needs"
    )


def _gpus(wanted: Sequence[Allocation]) -> int:
    return sum(len(one.gpus) for one in wanted)


def _waits(job: JobView, draft: Draft, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=job.spec.least_gpus,
        available=draft.free_gpu_total(),
        unit="GPUs",
        unblocks="others gain more for the same watts",
    )
