"""A grid of cells to a table: what was computed before is taken from the cache, the rest computed.

The cache is what a sweep is resumed from. Each result is kept as soon as it is there, so a sweep
that was killed goes on where it was; a cell that failed is tried again. Cells of the same name
(the same jobs in two files, a policy that is named twice) are computed once. The table has no trace
of when or by whom a cell was computed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd import __version__
from wattherd.engine.core.config import RULES
from wattherd.experiments.sweep.cell import FileDigests, Place
from wattherd.experiments.sweep.kinds import SweepCell, as_task
from wattherd.experiments.sweep.workers import compute_all
from wattherd.store.result_cache import ResultCache

SCHEMA = "wattherd.sweep/1"
UNTOLD = ("policy", "seed", "cpu_s", "levels")
"""Figures of a run that are no column: said by the cell's place, of the machine, or no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptCell:
    """What became of a cell: its result, or why there is none."""

    cell: SweepCell
    result: Mapping[str, Any] | None = None
    failure: str = ""
    kept: bool = field(default=False, compare=False)
    """Whether the result was taken from the cache, or from a cell of the same name."""

    def row(self) -> dict[str, Place]:
        """Its row of the table: place, failure, unfinished jobs with the first reason, figures."""
        told: dict[str, Place] = {**self.cell.place(), "failure": self.failure or None}
        found = self.result or {}
        left = found.get("unfinished", [])
        told["unfinished_why"] = f"{left[0]['first']}: {left[0]['why']}" if left else None
        return told | figures(found.get("row", {}))


def figures(row: Mapping[str, Any]) -> dict[str, Place]:
    """The numbers of a row; energy by kind of draw as a sum."""
    found: dict[str, Place] = {}
    for name, value in row.items():
        if name in UNTOLD:
            continue
        if isinstance(value, Mapping):
            found[name] = math.fsum(value.values())
        elif value is None or isinstance(value, str | int | float):
            found[name] = value
    return found


class CellSweep:
    """The cells of a grid, and what is known of them before anything is computed."""

    def __init__(self, cells: Sequence[SweepCell], cache: ResultCache) -> None:
        """Look up what was computed before; files are read."""
        files = FileDigests()
        self.cells = tuple(cells)
        self.cache = cache
        self._keys = [cell.key(files) for cell in self.cells]
        self._done: dict[int, SweptCell] = {}
        self._same: dict[str, list[int]] = {}
        self._tasks: list[int] = []
        for number, key in enumerate(self._keys):
            if key is None:
                self._tasks.append(number)
                continue
            twins = self._same.setdefault(key, [])
            twins.append(number)
            if len(twins) == 1:
                found = cache.get(key)
                if found is None or "row" not in found:
                    self._tasks.append(number)
                else:
                    self._done[number] = SweptCell(cell=cells[number], result=found, kept=True)
            elif twins[0] in self._done:
                self._tell(number, self._done[twins[0]])

    @property
    def known(self) -> int:
        """How many cells need not be computed."""
        return len(self.cells) - len(self._tasks)

    @property
    def to_compute(self) -> int:
        """How many are computed by `run`."""
        return len(self._tasks)

    @property
    def nameless(self) -> int:
        """How many cannot be kept, as something that they depend on has no name."""
        return sum(key is None for key in self._keys)

    def run(
        self, *, processes: int | None = None, limit_s: float | None = None
    ) -> Iterator[SweptCell]:
        """Compute what is not known, and pass cells on as they come.

        Args:
            processes: at a time; None is one for each processor that may be used.
            limit_s: a cell that takes longer is ended, and fails.
        """
        at_a_time = min(processes or _processors(), max(len(self._tasks), 1))
        tasks = [as_task(self.cells[number], self._keys[number]) for number in self._tasks]
        for place, answer in compute_all(tasks, processes=at_a_time, limit_s=limit_s):
            number = self._tasks[place]
            key, result = self._keys[number], answer.get("result")
            if key is not None and result is not None:
                self.cache.put(key, result)
            done = SweptCell(
                cell=self.cells[number], result=result, failure=answer.get("failure", "")
            )
            self._done[number] = done
            for twin in self._same.get(key or "", [number])[1:]:
                self._tell(twin, done)
            yield done

    def _tell(self, number: int, twin: SweptCell) -> None:
        self._done[number] = SweptCell(
            cell=self.cells[number], result=twin.result, failure=twin.failure, kept=True
        )

    def results(self) -> tuple[SweptCell, ...]:
        """All cells that are done, in the order of the grid."""
        return tuple(self._done[number] for number in sorted(self._done))


def document(results: Sequence[SweptCell], command: str) -> dict[str, Any]:
    """`wattherd.sweep/1`: a row for each cell, in the order of the grid."""
    return {
        "schema": SCHEMA,
        "rules": RULES,
        "version": __version__,
        "command": command,
        "cells": [one.row() for one in results],
    }


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
