"""A cell for every GPU: the darker, the closer its draw to its cap; hatched where it is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattherd.report.heatmap import heat_step
from wattherd.report.svg import Element, Frame, Value, document, label

CELL, GAP, HEAD = 22.0, 4.0, 20.0
LEAST_STEP = 1
"""The lightest step of a GPU that works: idle ones are lighter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCell:
    """One GPU; `share` is draw by cap, None if it is idle. `tip` says it in words."""

    number: int
    share: float | None
    tip: str
    link: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GridNode:
    """The GPUs of a node."""

    name: str
    cells: Sequence[GpuCell]


def draw_grid(rows: Sequence[GridNode], frame: Frame, key: str) -> Element:
    """Nodes below each other, wrapped where they are wider than the picture."""
    columns = max(1, int((frame.width - 2) // (CELL + GAP)))
    shapes: list[Element] = []
    top = 0.0
    for row in rows:
        shapes.append(label(row.name, 1, top + HEAD / 2, class_="axis-title"))
        shapes.extend(_cells(row.cells, columns, top + HEAD, key))
        lines = -(-len(row.cells) // columns)
        top += HEAD + lines * (CELL + GAP) + 8
    picture = document(
        replace(frame, height=max(top, 1.0)),
        _hatch(key),
        *shapes,
        title="GPUs",
        about="A cell for every GPU; the darker, the closer its draw to its cap",
        key=key,
    )
    picture.attributes["role"] = "group"  # an image could hold no links
    return picture


def _hatch(key: str) -> Element:
    stroke = Element("path", d="M0 6L6 0M-1 1L1 -1M5 7L7 5", class_="hatch")
    tile: dict[str, Value] = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
    return Element("defs", Element("pattern", stroke, id=f"{key}-lost", **tile))


def _cells(cells: Sequence[GpuCell], columns: int, top: float, key: str) -> Iterator[Element]:
    for place, cell in enumerate(cells):
        x = 1 + (place % columns) * (CELL + GAP)
        y = top + (place // columns) * (CELL + GAP)
        shape = Element("rect", x=x, y=y, width=CELL, height=CELL, rx=3, class_=_class(cell))
        if cell.lost:
            shape.attributes["fill"] = f"url(#{key}-lost)"
        shape.add(Element("title", cell.tip))
        yield _linked(shape, cell) if cell.link else shape


def _linked(shape: Element, cell: GpuCell) -> Element:
    return Element("a", shape, href=cell.link, aria_label=cell.tip)


def _class(cell: GpuCell) -> str:
    if cell.lost:
        return "cell lost"
    if cell.share is None:
        return "cell idle"
    return f"cell h{max(LEAST_STEP, heat_step(min(cell.share, 1.0)))}"
