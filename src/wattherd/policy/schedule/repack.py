"""Admission by packing the whole cluster anew, without moving more than it takes.

The published simulators empty the cluster at every event and place all jobs again in order. Which
jobs are admitted is taken from such a packing; where they run is not: running jobs stay, admitted
ones are placed around them, and only if one does not fit are all of them laid out as packed, node
by node as close as possible to where they are. Where jobs may use some nodes only, all are laid out
in order on nodes that they may use instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Protocol

from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.eligibility import able_nodes, inside
from wattherd.policy.schedule.job_order import Heads, JobOrder
from wattherd.policy.schedule.node_choice import Place, shares_of, whole_tasks
from wattherd.policy.schedule.priorities import JobStanding

_key = attrgetter("key")

Parts = list[tuple[int, int]]
"""Nodes and GPUs on them."""


class RepackTrial(Protocol):
    """A packing in the making."""

    @property
    def full(self) -> bool:
        """Whether nothing is left to give."""
        ...

    def take(self, gpus: int) -> bool:
        """Place a gang of that many GPUs, if it fits."""
        ...

    def take_each(self, gangs: Sequence[int]) -> list[int]:
        """Place gangs one after the other; which of them, counted from 0, do not fit."""
        ...

    def layout(self, gangs: Sequence[int]) -> list[Parts] | None:
        """Where the gangs were placed, all that were taken, in order; None if only counted."""
        ...


def admit_anew(
    view: View,
    draft: Draft,
    lineup: JobOrder,
    trial_of: Callable[[Sequence[int]], RepackTrial],
    place: Place,
    *,
    strict: bool,
) -> None:
    """Pack in order; run what fits, stop what does not."""
    gpus, now_s = view.gpus_per_node(), view.now_s
    trial = trial_of(gpus.tolist())
    pack = partial(_pack_inside, place, view) if lineup.bound else partial(_pack, trial, now_s)
    packed = pack(lineup, strict=strict)
    fallen, lineup.fallen = lineup.fallen, []
    packed.changed += fallen
    if not packed.changed and not packed.stopped:
        return
    for standing in reversed(packed.stopped):
        draft.stop(standing.job, StopReason.PREEMPTED_FOR_PRIORITY)
        lineup.stopped(standing, now_s)
    out: dict[str, JobStanding] = {}
    unplaced = False
    for standing in packed.changed:
        if not standing.running:
            mask = able_nodes(view, standing.job.spec)
            shares = shares_of(standing.job, draft, place, gpus, mask=mask)
            if shares is None:
                unplaced = True
            elif draft.start(standing.job, shares) is not None:
                out[standing.job.id] = standing
    if unplaced:
        able = [one for one in packed.admitted if one.job.id not in out]
        wanted = _layout(trial, packed, able, place, view, bound=lineup.bound)
        out |= _lay_out(wanted, able, draft, lineup, view)
    for standing in out.values():
        _put_back(standing, lineup, now_s)
    for standing in sorted(packed.changed, key=_key):
        if standing.requeued:
            lineup.stays(standing, now_s)
        elif not standing.running and standing.job.wanted:
            lineup.started(standing, now_s)


def _put_back(standing: JobStanding, lineup: JobOrder, now_s: float) -> None:
    """The guard refused it; its reason stands."""
    if standing.running:
        lineup.stopped(standing, now_s)
    lineup.fresh.pop(standing.job.id, None)


@dataclass(slots=True)
class _Packed:
    """Who is admitted, in order; those of them who did not run before; who ran and is not."""

    admitted: list[JobStanding]
    changed: list[JobStanding]
    stopped: list[JobStanding]

    def sort_in(self, running: list[JobStanding], misfits: Collection[int]) -> None:
        """Note which of those who ran stay."""
        if not misfits:
            self.admitted += running
            return
        out = set(misfits)
        for at, standing in enumerate(running):
            (self.stopped if at in out else self.admitted).append(standing)


def _pack(trial: RepackTrial, now_s: float, lineup: JobOrder, *, strict: bool) -> _Packed:
    """Those who run and those who wait take their turns in one order."""
    heads, packed = Heads(lineup.lines), _Packed([], [], [])
    running = lineup.in_order(now_s)
    gangs, at = [standing.gpus for standing in running], 0
    while (key := heads.key) is not None:
        before, at = at, bisect_left(running, key, at, key=_key)
        if at > before:
            packed.sort_in(running[before:at], trial.take_each(gangs[before:at]))
        standing = heads.first
        if trial.take(standing.gpus):
            packed.admitted.append(standing)
            packed.changed.append(standing)
            heads.skip()
        elif strict or trial.full:
            heads.close()
        else:
            heads.block()
    packed.sort_in(running[at:], trial.take_each(gangs[at:]))
    return packed


def _layout(
    trial: RepackTrial,
    packed: _Packed,
    able: list[JobStanding],
    place: Place,
    view: View,
    *,
    bound: bool,
) -> list[Parts] | None:
    """Nodes for those of `packed` who are `able`, as packed if possible; None: none were chosen."""
    if bound:
        return _inside(able, place, view)
    layout = trial.layout([one.gpus for one in packed.admitted])
    if layout is None:
        return None
    names = {one.job.id for one in able}
    pairs = zip(packed.admitted, layout, strict=True)
    layout = [parts for one, parts in pairs if one.job.id in names]
    nodes = _closest(layout, [_held(one) for one in able], view.gpus_per_node().tolist())
    return [[(nodes[node], gpus) for node, gpus in parts] for parts in layout]


def _pack_inside(place: Place, view: View, lineup: JobOrder, *, strict: bool) -> _Packed:
    """`_pack` where some jobs may use some nodes only: who finds room there, in order.

    Counting alone would have those who cannot be placed keep out those who can.
    """
    waiting = [standing for line in lineup.lines.values() for _, standing in line]
    order, packed, closed = (
        sorted([*lineup.in_order(view.now_s), *waiting], key=_key),
        _Packed([], [], []),
        False,
    )
    room = _EmptiedRoom(view, place)
    for standing in order:
        if closed and not standing.running:
            continue
        if room.take(standing):
            packed.admitted.append(standing)
            if not standing.running:
                packed.changed.append(standing)
        elif standing.running:
            packed.stopped.append(standing)
        else:
            closed = strict
    return packed


def _inside(admitted: list[JobStanding], place: Place, view: View) -> list[Parts]:
    """Where all are placed in order, on nodes that they may use; nowhere (empty) if it fits not."""
    room = _EmptiedRoom(view, place)
    return [room.take(standing) for standing in admitted]


class _EmptiedRoom:
    """A cluster that is filled anew, in which jobs stay where they are unless others were first."""

    def __init__(self, view: View, place: Place) -> None:
        self.view, self.place = view, place
        self.gpus = view.gpus_per_node()
        self.free = self.gpus.copy()

    def take(self, standing: JobStanding) -> Parts:
        """Nodes for a gang; empty if it does not fit on those that it may use."""
        spec, parts = standing.job.spec, _held(standing)
        if not parts or any(self.free[node] < held for node, held in parts):
            role, mask = spec.roles[0], able_nodes(self.view, spec)
            each = max(role.gpu_count, 1)
            room = inside(self.free // each, mask)
            shares = self.place(room, inside(whole_tasks(role, self.gpus, room), mask), role.count)
            parts = [(share.node, share.tasks * each) for share in shares or ()]
        for node, taken in parts:
            self.free[node] -= taken
        return parts


def _lay_out(
    wanted: list[Parts] | None,
    admitted: list[JobStanding],
    draft: Draft,
    lineup: JobOrder,
    view: View,
) -> dict[str, JobStanding]:
    """Place everybody as wanted; returns those who get nothing, or whom the guard refuses now."""
    if wanted is None:
        return {one.job.id: one for one in admitted if not one.job.wanted}
    held = [_held(standing) for standing in admitted]
    others = [at for at, parts in enumerate(wanted) if sorted(parts) != sorted(held[at])]
    for at in others:
        draft.stop(admitted[at].job, StopReason.MIGRATED)
    refused: dict[str, JobStanding] = {}
    for at in others:
        standing = admitted[at]
        parts = wanted[at]
        if not parts or draft.start(standing.job, _shares(standing, parts)) is not None:
            refused[standing.job.id] = standing
        elif standing.running:
            lineup.moved(standing, view.now_s)
    return refused


def _held(standing: JobStanding) -> Parts:
    return [(one.node, len(one.gpus)) for one in standing.job.wanted]


def _shares(standing: JobStanding, parts: Parts) -> list[Share]:
    each = max(standing.job.spec.roles[0].gpu_count, 1)
    return [Share(node, gpus // each) for node, gpus in parts]


def _closest(layout: list[Parts], held: list[Parts], gpus: list[int]) -> dict[int, int]:
    """A real node for each node of the layout, so that many GPUs stay where they are.

    Greedy by overlap, ties to lower numbers, among nodes with equally many GPUs.
    """
    overlap: Counter[tuple[int, int]] = Counter()
    for parts, before in zip(layout, held, strict=True):
        for node, want in parts:
            for other, had in before:
                if gpus[node] == gpus[other]:
                    overlap[node, other] += min(want, had)
    nodes: dict[int, int] = {}
    used: set[int] = set()
    for (node, other), _ in sorted(overlap.items(), key=lambda item: (-item[1], item[0])):
        if node not in nodes and other not in used:
            nodes[node] = other
            used.add(other)
    for node in sorted({node for parts in layout for node, _ in parts} - nodes.keys()):
        alike = (other for other, count in enumerate(gpus) if count == gpus[node])
        nodes[node] = next(other for other in alike if other not in used)
        used.add(nodes[node])
    return nodes
