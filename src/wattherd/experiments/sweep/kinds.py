"""What a cell of a sweep is, whatever it simulates, and how it travels to another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from wattherd.experiments.sweep.cell import FileDigests, Place, ScheduleCell
from wattherd.experiments.sweep.placement_cell import PlacementCell


class SweepCell(Protocol):
    """Something to compute, with a name for its result."""

    @property
    def kind(self) -> str:
        """A name of `KINDS`."""
        ...

    def place(self) -> dict[str, Place]:
        """Where in the grid it is, by column."""
        ...

    def key(self, files: FileDigests) -> str | None:
        """The name of its result; None if it is not to be kept."""
        ...

    def compute(self) -> dict[str, Any]:
        """Its result as plain JSON: `row` has the figures."""
        ...

    def document(self) -> dict[str, Any]:
        """The cell as JSON."""
        ...


KINDS: Mapping[str, Any] = {one.kind: one for one in (ScheduleCell, PlacementCell)}
"""By name, classes with `of_document`."""


def as_task(cell: SweepCell, key: str | None) -> dict[str, Any]:
    """A cell as a worker takes it, with the name that its result is to have."""
    return {"kind": cell.kind, "cell": cell.document(), "key": key}


def of_task(task: Mapping[str, Any]) -> SweepCell:
    """The cell again."""
    cell: SweepCell = KINDS[task["kind"]].of_document(task["cell"])
    return cell
