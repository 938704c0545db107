"""Which nodes a gang gets, by how many of its tasks each of them could take.

A rule (`Place`) places tasks of one role; `shares_of` gives a whole job its shares, the first role
by the rule and further roles around it.

`room` counts tasks that a node could take now, `whole` those it takes when empty; both are (N,).
Shares come in rank order; None means that the gang does not fit under this rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.model.job import TaskRole
from wattherd.model.reason import Reason
from wattherd.policy.contract import Draft, JobView, Share, View
from wattherd.policy.eligibility import NodeMask, able_nodes, inside

Ints = NDArray[np.int64]
_NO_ROOM = np.iinfo(np.int64).max
Place = Callable[[Ints, Ints, int], list[Share] | None]


def yarn(room: Ints, whole: Ints, tasks: int) -> list[Share] | None:
    """As YARN in Microsoft's clusters: one node if it fits on one, else empty nodes and a rest.

    The first node that fits wins. A gang that is no larger than a node never spreads; a larger one
    takes wholly empty nodes and its rest on one more (Tiresias, NSDI'19, artifact).
    """
    fits = room >= tasks
    node = int(fits.argmax())
    if fits[node]:
        return [Share(node, tasks)]
    largest = int(whole[whole.argmax()])
    if largest == 0 or tasks <= largest:
        return None
    empty = np.flatnonzero((room >= largest) & (whole == largest)).tolist()
    full, rest = divmod(tasks, largest)
    if len(empty) < full:
        return None
    shares = [Share(node, largest) for node in empty[:full]]
    if not rest:
        return shares
    others = room.copy()
    others[empty[:full]] = 0
    node = int(np.argmax(others >= rest))
    return [*shares, Share(node, rest)] if others[node] >= rest else None


def consolidated(room: Ints, whole: Ints, tasks: int) -> list[Share] | None:
    """As few nodes as possible: the tightest one that fits, else the roomiest and the tightest."""
    del whole
    shares: list[Share] = []
    if not tasks:
        return shares
    left = room
    while (node := _tightest(left, tasks)) is None:
        node = int(np.argmax(left))
        taken = int(left[node])
        if taken <= 0:
            return None
        shares.append(Share(node, taken))
        left = left.copy()
        left[node] = 0
        tasks -= taken
    shares.append(Share(node, tasks))
    return shares


def _tightest(room: Ints, tasks: int) -> int | None:
    """The node with least room of those that hold all tasks, if there is one."""
    spare = room - tasks
    spare[spare < 0] = _NO_ROOM
    node = int(spare.argmin())
    return node if spare[node] < _NO_ROOM else None


def anywhere(room: Ints, whole: Ints, tasks: int) -> list[Share] | None:
    """Wherever there is room, node after node."""
    del whole
    shares: list[Share] = []
    for node in room.nonzero()[0].tolist():
        taken = min(int(room[node]), tasks)
        shares.append(Share(node, taken))
        tasks -= taken
        if tasks == 0:
            return shares
    return None


def spread(room: Ints, whole: Ints, tasks: int) -> list[Share] | None:
    """From the node with most room, again and again (Pollux artifact, OSDI'21)."""
    del whole
    return most_free(room, tasks)


def confined(place: Place, mask: NodeMask) -> Place:
    """The same rule on the nodes of `mask` (N,) alone."""

    def placed(room: Ints, whole: Ints, tasks: int) -> list[Share] | None:
        return place(inside(room, mask), whole, tasks)

    return placed


PLACEMENTS: dict[str, Place] = {
    "yarn": yarn,
    "consolidated": consolidated,
    "most-free": spread,
    "any": anywhere,
}


class CountTrial:
    """Admission by the number of GPUs alone: whatever fits in sum can be placed."""

    def __init__(self, gpus: Sequence[int]) -> None:
        """`gpus` of each node, all of them free."""
        self._free = sum(gpus)

    @property
    def full(self) -> bool:
        """Whether nothing is left to give."""
        return self._free == 0

    def take(self, gpus: int) -> bool:
        """Take that many, if they are there."""
        if gpus > self._free:
            return False
        self._free -= gpus
        return True

    def take_each(self, gangs: Sequence[int]) -> list[int]:
        """Take what each asks for, if it is there."""
        if self.take(sum(gangs)):
            return []
        return [at for at, gpus in enumerate(gangs) if not self.take(gpus)]

    def layout(self, gangs: Sequence[int]) -> list[list[tuple[int, int]]] | None:
        """No node is chosen."""
        del gangs
        return None


class YarnTrial:
    """Packing of a whole cluster anew, gang after gang, by the rule of `yarn`.

    What is free only shrinks, so that the first node for a width is never before the last one
    found for it.
    """

    def __init__(self, gpus: Sequence[int], free: Sequence[int] | None = None) -> None:
        """`gpus` of each node, and how many of them are `free` (None: all)."""
        self._gpus = gpus
        self._count = len(gpus)
        self._largest = max(gpus, default=0)
        self._left = sum(gpus if free is None else free)
        # A node beyond the last one has room for everything: a search always ends.
        self._free = [*(gpus if free is None else free), max(self._left, self._largest)]
        self._first = [0] * (self._largest + 1)

    @property
    def free(self) -> tuple[int, ...]:
        """Free GPUs of each node."""
        return tuple(self._free[:-1])

    @property
    def full(self) -> bool:
        """Whether nothing is left to give."""
        return self._left == 0

    def take(self, gpus: int) -> bool:
        """Place a gang, if it fits; what a node can hold on the first node with room."""
        if gpus > self._left:
            return False
        if gpus > self._largest:
            taken = self._take_several(gpus)
            self._left -= gpus if taken else 0
            return taken
        free, node = self._free, self._first[gpus]
        while free[node] < gpus:
            node += 1
        self._first[gpus] = node
        if node == self._count:
            return False
        free[node] -= gpus
        self._left -= gpus
        return True

    def take_each(self, gangs: Sequence[int]) -> list[int]:
        """Place gangs one after the other; which of them, counted from 0, do not fit.

        The same as `take` for each of them, without a call: most of the time goes by here.
        """
        free, first, left, largest = self._free, self._first, self._left, self._largest
        misfits = []
        for at, gpus in enumerate(gangs):
            if gpus > left:
                misfits.append(at)
            elif gpus <= largest:
                node = first[gpus]
                if free[node] < gpus:
                    node += 1
                    while free[node] < gpus:
                        node += 1
                    first[gpus] = node
                if node < self._count:
                    free[node] -= gpus
                    left -= gpus
                else:
                    misfits.append(at)
            elif self._take_several(gpus):
                left -= gpus
            else:
                misfits.append(at)
        self._left = left
        return misfits

    def _take_several(self, gpus: int) -> bool:
        """Place a gang that is larger than any node, if it fits; `_left` stays."""
        parts, free = self._several(gpus), self._free
        for node, taken in parts:
            free[node] -= taken
        return bool(parts)

    def layout(self, gangs: Sequence[int]) -> list[list[tuple[int, int]]] | None:
        """Nodes and GPUs of each of `gangs`, all of which were taken in this order."""
        again = YarnTrial(self._gpus)
        return [again._nodes_for(gpus) for gpus in gangs]

    def _nodes_for(self, gpus: int) -> list[tuple[int, int]]:
        """Place a gang that fits; on which nodes."""
        if gpus > self._largest:
            parts = self._several(gpus)
        else:
            node = next(node for node, free in enumerate(self._free) if free >= gpus)
            parts = [(node, gpus)]
        for node, taken in parts:
            self._free[node] -= taken
        return parts

    def _several(self, gpus: int) -> list[tuple[int, int]]:
        """Nodes for a gang that is larger than any of them; none if it does not fit."""
        free, largest = self._free, self._largest
        full, rest = divmod(gpus, largest)
        if free.count(largest) < full:  # most often, and quickly told
            return []
        nodes = range(self._count)
        empty = [node for node in nodes if free[node] == largest][:full]
        if len(empty) < full:
            return []
        parts = [(node, largest) for node in empty]
        if not rest:
            return parts
        for node in nodes:
            if free[node] >= rest and node not in empty:
                return [*parts, (node, rest)]
        return []


def most_free(free: NDArray[np.int64], gpus: int) -> list[Share] | None:
    """Shares of `gpus` GPUs in rank order, or None if fewer are free.

    As the artifact of Pollux (OSDI'21) places: again and again from the node with most free GPUs,
    the first among equals.
    """
    left = free.copy()
    shares: list[Share] = []
    while gpus > 0:
        node = int(np.argmax(left))
        taken = min(int(left[node]), gpus)
        if taken == 0:
            return None
        shares.append(Share(node, taken))
        left[node] -= taken
        gpus -= taken
    return shares


def whole_tasks(role: TaskRole, gpus: Ints, room: Ints) -> Ints:
    """Tasks of `role` that each node takes when empty, by its GPUs alone."""
    if role.gpu_count == 1:
        return gpus
    return gpus // role.gpu_count if role.gpu_count else room


def shares_of(
    job: JobView,
    draft: Draft,
    place: Place,
    gpus: Ints,
    within: Ints | None = None,
    mask: NodeMask | None = None,
) -> list[Share] | None:
    """Shares for a job at its full width where it fits now, or None; `gpus` of each usable node.

    Its first role stays `within` so many GPUs of each node, if given, and on the nodes of `mask`
    (N,): what it takes when empty counts on these alone.
    """
    spec = job.spec
    room = draft.room(job)
    if within is not None and spec.roles[0].gpu_count:
        room = np.minimum(room, within // spec.roles[0].gpu_count)
    whole = inside(whole_tasks(spec.roles[0], gpus, room), mask)
    shares = place(room, whole, spec.roles[0].count)
    if shares is None or len(spec.roles) == 1:
        return shares
    free = [draft.free_gpus(), draft.free_cpu_milli(), draft.free_memory_mib()]
    taken = list(shares)
    for number, role in enumerate(spec.roles[1:], start=1):
        _subtract(free, spec.roles[taken[-1].role], [s for s in taken if s.role == number - 1])
        limits = [have // need for have, need in zip(free, _needs(role), strict=True) if need]
        room = np.minimum.reduce(limits) if limits else np.full_like(gpus, role.count)
        room = np.minimum(room, draft.room(job, number))
        others = consolidated(room, room, role.count)
        if others is None:
            return None
        taken.extend(Share(share.node, share.tasks, number) for share in others)
    return taken


def start_where_it_fits(view: View, draft: Draft, jobs: Sequence[JobView]) -> dict[str, Reason]:
    """Start those that wait where there is room for them; why the guard refused whom."""
    refused: dict[str, Reason] = {}
    for job in jobs:
        if job.wanted:
            continue
        mask = able_nodes(view, job.spec)
        shares = shares_of(job, draft, consolidated, view.gpus_per_node(), None, mask)
        why = draft.start(job, shares) if shares is not None else None
        if why is not None:
            refused[job.id] = why
    return refused


def _needs(role: TaskRole) -> tuple[int, int, int]:
    return role.gpu_count, role.cpu_milli, role.memory_mib


def _subtract(free: list[Ints], role: TaskRole, shares: list[Share]) -> None:
    for have, need in zip(free, _needs(role), strict=True):
        for share in shares:
            have[share.node] -= need * share.tasks
