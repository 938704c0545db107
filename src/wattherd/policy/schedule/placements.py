"""Which nodes a gang gets, by how many of its tasks each of them could take.

`room` counts tasks that a node could take now, `whole` those it takes when empty; both are (N,).
Shares come in rank order; None means that the gang does not fit under this rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wattherd.policy.contract import Share
from wattherd.policy.schedule.most_free import most_free

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
    largest = int(whole.max())
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

    def take_each(self, gangs: Sequence[int]) -> list[bool]:
        """Take what each asks for, if it is there."""
        if self.take(sum(gangs)):
            return [True] * len(gangs)
        return [self.take(gpus) for gpus in gangs]

    def layout(self) -> list[list[tuple[int, int]]] | None:
        """No node is chosen."""
        return None


class YarnTrial:
    """Packing of a whole cluster anew, gang after gang, by the rule of `yarn`.

    What is free only shrinks, so that the first node for a width is never before the last one
    found for it.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        """`gpus` of each node, all of them free."""
        self._count = len(gpus)
        self._largest = max(gpus, default=0)
        self._left = sum(gpus)
        # A node beyond the last one has room for everything: a search always ends.
        self._free = [*gpus, self._left]
        self._first = [0] * (self._largest + 1)
        self._layout: list[list[tuple[int, int]]] = []

    @property
    def full(self) -> bool:
        """Whether nothing is left to give."""
        return self._left == 0

    def take(self, gpus: int) -> bool:
        """Place a gang, if it fits."""
        return self.take_each((gpus,))[0]

    def take_each(self, gangs: Sequence[int]) -> list[bool]:
        """Place gangs one after the other; what a node can hold on the first node with room."""
        free, first, fits = self._free, self._first, []
        for gpus in gangs:
            if gpus > self._largest or gpus > self._left:
                fits.append(self._take_several(gpus))
                continue
            node = first[gpus]
            while free[node] < gpus:
                node += 1
            first[gpus] = node
            found = node < self._count
            if found:
                free[node] -= gpus
                self._left -= gpus
                self._layout.append([(node, gpus)])
            fits.append(found)
        return fits

    def _take_several(self, gpus: int) -> bool:
        """Place a gang that is larger than any node, or than all that is left."""
        parts = self._several(gpus) if gpus <= self._left else None
        if parts is None:
            return False
        for node, taken in parts:
            self._free[node] -= taken
        self._left -= gpus
        self._layout.append(parts)
        return True

    def layout(self) -> list[list[tuple[int, int]]] | None:
        """Nodes and GPUs of each gang taken, in the order of taking."""
        return self._layout

    def _several(self, gpus: int) -> list[tuple[int, int]] | None:
        largest = self._largest
        full, rest = divmod(gpus, largest)
        nodes = range(self._count)
        empty = [node for node in nodes if self._free[node] == largest][:full]
        if len(empty) < full:
            return None
        parts = [(node, largest) for node in empty]
        if not rest:
            return parts
        for node in nodes:
            if self._free[node] >= rest and node not in empty:
                return [*parts, (node, rest)]
        return None
