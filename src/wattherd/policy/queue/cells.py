"""Buddy cells (HiveD, OSDI'20): what is free at every level, and what was promised of it.

Physical cells are free, or taken by the virtual cells bound to them. A free cell is kept whole, at
the highest level at which it is free: taking part of it splits it, and what is given back merges
with its buddies. Promised cells of virtual clusters that are not bound yet must always be
obtainable: at every level, what is free and not promised, from the top downwards,

    splittable_l = |free_l| - promised_l + splittable_(l+1) x fanout_l

is never negative (the safety invariant). Cells are (level, index); index i of level l covers GPUs
i x size_l to (i + 1) x size_l - 1 of the chain. Every change can be undone exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from wattherd.errors import Bug
from wattherd.model.topology import Chain

_ABSENT = object()


class CellJournal:
    """Changes of lists and dicts, each with its inverse, as long as somebody may want to undo."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self._log: list[tuple[Any, Any, Any]] = []
        self._depth = 0

    def put(self, container: Any, key: Any, value: Any) -> None:
        """container[key] = value."""
        if self._depth:
            old = container.get(key, _ABSENT) if isinstance(container, dict) else container[key]
            self._log.append((container, key, old))
        container[key] = value

    def remove(self, container: dict[Any, Any], key: Any) -> None:
        """Delete container[key]."""
        if self._depth:
            self._log.append((container, key, container[key]))
        del container[key]

    def begin(self) -> int:
        """Record from here on; the mark is for `end` or `undo`. Begins may be nested."""
        self._depth += 1
        return len(self._log)

    def undo(self, mark: int) -> None:
        """Take back everything since `mark`, newest first, and stop recording."""
        while len(self._log) > mark:
            container, key, old = self._log.pop()
            if old is _ABSENT:
                del container[key]
            else:
                container[key] = old
        self.end()

    def end(self) -> None:
        """Keep what was done."""
        self._depth -= 1
        if not self._depth:
            self._log.clear()


class PhysicalCells:
    """The cells of one chain: free lists, health, guests, and promises not yet bound."""

    def __init__(self, chain: Chain, journal: CellJournal) -> None:
        """Everything is free and healthy, nothing promised."""
        self.chain, self.journal = chain, journal
        levels = range(chain.top + 1)
        self.free: list[dict[int, None]] = [{} for _ in levels]
        self.free[chain.top] = dict.fromkeys(range(chain.count(chain.top)))
        self.promised = [0] * (chain.top + 1)
        self.healthy = [[chain.sizes[level]] * chain.count(level) for level in levels]
        """Healthy GPUs in every cell, by level."""
        self.guests = [[0] * chain.count(level) for level in levels]
        """GPUs of opportunistic jobs in every cell, by level."""
        self.bad: dict[int, None] = {}
        """Bad nodes, by their position in the chain."""
        self.open = [[chain.sizes[level]] * chain.count(level) for level in levels]
        """GPUs in every cell, by level, that nobody has who is not known here."""
        self.foreign: dict[int, None] = {}
        """GPUs that somebody has who is not known here, or that are out of use."""

    def splittable(self) -> list[int]:
        """Cells of each level that may be split, or given away, without breaking a promise."""
        result = [0] * (self.chain.top + 1)
        above = 0
        for level in range(self.chain.top, -1, -1):
            result[level] = len(self.free[level]) - self.promised[level] + above
            above = result[level] * (self.chain.fanout[level - 1] if level else 0)
        return result

    def promise(self, level: int, count: int) -> None:
        """Promise `count` more (or, negative, fewer) cells of a level."""
        self.journal.put(self.promised, level, self.promised[level] + count)

    def count(self, counts: list[list[int]], gpu: int, change: int) -> None:
        """Add `change` to a count of GPUs in every cell around `gpu`."""
        for level, size in enumerate(self.chain.sizes):
            index = gpu // size
            self.journal.put(counts[level], index, counts[level][index] + change)

    def set_health(self, node: int, *, healthy: bool) -> None:
        """A node, by its position in the chain, goes bad or is repaired."""
        if healthy == (node not in self.bad):
            return
        if healthy:
            self.journal.remove(self.bad, node)
        else:
            self.journal.put(self.bad, node, None)
        size = self.chain.sizes[self.chain.node_level]
        for gpu in range(node * size, (node + 1) * size):
            self.count(self.healthy, gpu, 1 if healthy else -1)

    def set_foreign(self, gpu: int, *, foreign: bool) -> None:
        """A GPU is somebody's who is not known here, or is given back."""
        if foreign == (gpu in self.foreign):
            return
        if foreign:
            self.journal.put(self.foreign, gpu, None)
        else:
            self.journal.remove(self.foreign, gpu)
        self.count(self.open, gpu, -1 if foreign else 1)

    # Buddy allocation -----------------------------------------------------------------------------

    def find(self, level: int, usable: Callable[[int], bool], least: int) -> int | None:
        """A free or splittable cell of `level` for a promised one, or None if all are bad.

        Lower cells are split before higher ones; a higher one only if no promise needs it. Then
        the one with fewest guests, of these the one with most GPUs of others, then the first. A
        cell around it needs at least `least` healthy GPUs to be worth a look.
        """
        spare = self.splittable()
        for high in range(level, self.chain.top + 1):
            if high > level and spare[high] < 1:
                return None
            for index in self._by_guests(high, self.free[high]):
                found = self._descend(high, index, level, usable, least)
                if found is not None:
                    return found
        return None

    def _by_guests(self, level: int, indices: Any) -> list[int]:
        guests, opened = self.guests[level], self.open[level]
        return sorted(indices, key=lambda index: (guests[index], opened[index], index))

    def _descend(
        self, high: int, index: int, level: int, usable: Callable[[int], bool], least: int
    ) -> int | None:
        if self.healthy[high][index] < least:
            return None
        if high == level:
            return index if usable(index) else None
        for child in self._by_guests(high - 1, self.children(high, index)):
            found = self._descend(high - 1, child, level, usable, least)
            if found is not None:
                return found
        return None

    def children(self, level: int, index: int) -> range:
        """Indices, one level below, of the parts of a cell."""
        width = self.chain.fanout[level - 1]
        return range(index * width, (index + 1) * width)

    def take(self, level: int, index: int) -> None:
        """Bind a promised cell: it is free no longer; free cells around it are split.

        Raises:
            Bug: it is not free, or no cell of its level is promised.
        """
        high, around = level, index
        while around not in self.free[high]:
            if high == self.chain.top:
                raise Bug(f"cell {index} of level {level} is not free")
            around //= self.chain.fanout[high]
            high += 1
        self.journal.remove(self.free[high], around)
        while high > level:
            inside = index // (self.chain.sizes[high - 1] // self.chain.sizes[level])
            for child in self.children(high, around):
                if child != inside:
                    self.journal.put(self.free[high - 1], child, None)
            high, around = high - 1, inside
        self.promise(level, -1)

    def give(self, level: int, index: int) -> None:
        """Unbind a cell: it is promised again, and merges with its free buddies.

        Raises:
            Bug: it was free already.
        """
        self.promise(level, 1)
        if any(index // (size // self.chain.sizes[level]) in self.free[high]
               for high, size in enumerate(self.chain.sizes) if high >= level):  # fmt: skip
            raise Bug(f"cell {index} of level {level} is given back twice")
        self.journal.put(self.free[level], index, None)
        while level < self.chain.top:
            parent = index // self.chain.fanout[level]
            buddies = self.children(level + 1, parent)
            if not all(buddy in self.free[level] for buddy in buddies):
                return
            for buddy in buddies:
                self.journal.remove(self.free[level], buddy)
            level, index = level + 1, parent
            self.journal.put(self.free[level], index, None)

    def free_cells(self) -> Iterator[tuple[int, int]]:
        """All free cells, as (level, index), in order."""
        for level, cells in enumerate(self.free):
            for index in sorted(cells):
                yield level, index
