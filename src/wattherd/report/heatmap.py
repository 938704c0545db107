"""The cluster heat map: a column per node, a cell per GPU, coloured by used share.

One picture per GPU model. Equal neighbours are merged into one rectangle and the mesh between
cells is drawn over them with dashed lines, so a thousand nodes take a few kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wattherd.report.cluster import MapColumn, ModelPanel, columns
from wattherd.report.svg import Element, Frame, boxes, document, label, number, text_width
from wattherd.report.theme import HEAT_STEPS
from wattherd.units import counted

MOST_COLUMNS = 1600
CPU_BAR = 3.0
TITLE, SIDE = 30.0, 22.0
"""Height of a panel's title, and space beside it."""
ROW_GAP = 7.0
PITCHES = (14.0, 12.0, 10.0, 8.0, 7.0, 6.0, 5.0)
MAP_WIDTH = 1096.0
TALL = 660.0
"""All panels together should not be taller, so that the map fits a screen."""

READING = (
    "A column per node, a cell per GPU, coloured by the share in use; "
    "the bar below is the node's CPU."
)

Cell = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One GPU model, ready to be drawn."""

    model: str
    nodes: int
    gpus: int
    used: float
    columns: tuple[MapColumn, ...]
    nodes_per_column: int


def panels(models: Sequence[ModelPanel], most: int = MOST_COLUMNS) -> list[Panel]:
    """Summarise so that all models together take about `most` columns."""
    total = sum(len(model.nodes) for model in models)
    return [_panel(model, -(-len(model.nodes) * most // max(total, most))) for model in models]


def _panel(model: ModelPanel, most: int) -> Panel:
    found = columns(model, most)
    return Panel(
        model=model.model,
        nodes=len(model.nodes),
        gpus=model.gpus,
        used=model.used,
        columns=tuple(found),
        nodes_per_column=max(column.count for column in found),
    )


def pitch_for(found: Sequence[Panel]) -> float:
    """The largest cell with which all panels fit one screen, else the smallest."""
    return next((pitch for pitch in PITCHES if _tall(found, pitch) <= TALL), PITCHES[-1])


def _tall(found: Sequence[Panel], pitch: float) -> float:
    """Height of all panels together."""
    return max((y + _size(panel, pitch)[1] for panel, _, y in _flow(found, pitch)), default=0.0)


def _flow(found: Sequence[Panel], pitch: float) -> Iterator[tuple[Panel, float, float]]:
    """Left and top of each panel's cells, small panels side by side, titles above them."""
    x, top, line = 0.0, 0.0, 0.0
    for panel in found:
        width, height = _size(panel, pitch)
        width = max(width, text_width(panel_title(panel), 12))
        if x and x + width > MAP_WIDTH:
            x, top, line = 0.0, top + line, 0.0
        yield panel, x, top + TITLE
        x, line = x + width + SIDE, max(line, TITLE + height)


def _size(panel: Panel, pitch: float) -> tuple[float, float]:
    rows = _rows(panel, pitch)
    return max(len(row.columns) for row in rows) * pitch, sum(row.height for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One wrapped line of columns; `deep` cells in its deepest column."""

    columns: tuple[MapColumn, ...]
    top: float
    deep: int
    height: float


def _per_row(panel: Panel, pitch: float) -> int:
    """Columns in a row, the same in all rows but for a remainder."""
    rows = math.ceil(len(panel.columns) / (MAP_WIDTH // pitch))
    return math.ceil(len(panel.columns) / rows)


def _rows(panel: Panel, pitch: float) -> list[_Row]:
    per_row = _per_row(panel, pitch)
    found: list[_Row] = []
    top = 0.0
    for at in range(0, len(panel.columns), per_row):
        line = panel.columns[at : at + per_row]
        deep = max(len(column.gpus) for column in line)
        height = deep * pitch + CPU_BAR + ROW_GAP
        found.append(_Row(columns=line, top=top, deep=deep, height=height))
        top += height
    return found


def panel_title(panel: Panel) -> str:
    """`G2: 549 nodes, 4,392 GPUs, 96.1 % used`."""
    return (
        f"{panel.model}: {counted(panel.nodes, 'node')}, {counted(panel.gpus, 'GPU')}, "
        f"{100 * panel.used:.1f} % used"
    )


def draw_panel(panel: Panel, pitch: float, key: str) -> Element:
    """The map of one GPU model as SVG."""
    rows = _rows(panel, pitch)
    width = max(len(row.columns) for row in rows) * pitch
    height = sum(row.height for row in rows) - ROW_GAP
    return document(
        Frame(width=width, height=height),
        *cells(panel, pitch),
        title=panel_title(panel),
        about=READING,
        key=key,
        data_heat=f"{number(pitch)} {_per_row(panel, pitch)}",
        data_tops=" ".join(number(row.top) for row in rows),
        data_nodes="|".join(_tip(column) for column in panel.columns),
    )


def _tip(column: MapColumn) -> str:
    used = " ".join(f"{100 * share:.0f}" for share in column.gpus)
    return f"{column.name.replace('|', ' ')}: GPUs {used} % used, CPU {100 * column.cpu:.0f} %"


def cells(panel: Panel, pitch: float) -> list[Element]:
    """Rectangles by colour, CPU bars, and the mesh above them."""
    shaded: dict[int, list[Cell]] = {}
    busy: list[Cell] = []
    rows = _rows(panel, pitch)
    for row in rows:
        for slot in range(row.deep):
            for step, start, length in _runs(row.columns, slot):
                box = (start * pitch, row.top + slot * pitch, length * pitch, pitch)
                shaded.setdefault(step, []).append(box)
        busy += _cpu_bars(row, pitch)
    return [
        *(boxes(shaded[step], f"cells h{step}") for step in sorted(shaded)),
        boxes((_strip(row, pitch) for row in rows), "cpu-free"),
        boxes(busy, "cpu-used"),
        *(line for row in rows for line in _mesh(row, pitch)),
    ]


def heat_step(share: float) -> int:
    """Colour step of a used share; only a free GPU is 0, only a full one is the last."""
    if share <= 0.0:
        return 0
    if share >= 1.0:
        return HEAT_STEPS
    return min(max(round(share * HEAT_STEPS), 1), HEAT_STEPS - 1)


def _runs(line: Sequence[MapColumn], slot: int) -> Iterator[tuple[int, int, int]]:
    """Colour step, start and length of each run of equal cells in one row of GPUs."""
    steps = [heat_step(column.gpus[slot]) if slot < len(column.gpus) else -1 for column in line]
    start = 0
    for at in range(1, len(steps) + 1):
        if at < len(steps) and steps[at] == steps[start]:
            continue
        if steps[start] >= 0:
            yield steps[start], start, at - start
        start = at


def _strip(row: _Row, pitch: float) -> Cell:
    return 0.0, row.top + row.deep * pitch + 1, len(row.columns) * pitch, CPU_BAR


def _cpu_bars(row: _Row, pitch: float) -> list[Cell]:
    _, top, _, _ = _strip(row, pitch)
    wide = pitch - 1
    return [
        (at * pitch, top, round(wide * column.cpu, 1), CPU_BAR)
        for at, column in enumerate(row.columns)
        if wide * column.cpu >= 0.1
    ]


def _mesh(row: _Row, pitch: float) -> list[Element]:
    """Lines between cells: one dashed stroke for all columns, one line per row of GPUs."""
    width, deep = len(row.columns) * pitch, row.deep * pitch
    thick = deep + CPU_BAR + 1
    middle = row.top + thick / 2
    upright = Element(
        "path",
        d=f"M{number(pitch - 1)} {number(middle)}H{number(width)}",
        class_="mesh",
        stroke_width=thick,
        stroke_dasharray=f"1 {number(pitch - 1)}",
    )
    flat = "".join(
        f"M0 {number(row.top + slot * pitch - 0.5)}H{number(width)}"
        for slot in range(1, row.deep + 1)
    )
    return [upright, Element("path", d=flat, class_="mesh", stroke_width=1)]


def draw_map(found: Sequence[Panel], title: str, frame: Frame, key: str) -> Element:
    """All panels in one picture with their titles, as large as they need below `frame.top`."""
    pitch = pitch_for(found)
    margin = 12.0
    marks = []
    for panel, x, y in _flow(found, pitch):
        place = f"translate({number(margin + x)} {number(frame.top + y)})"
        group = Element("g", *cells(panel, pitch), transform=place)
        marks += [label(panel_title(panel), margin + x, frame.top + y - 9), group]
    marks.append(_key(margin, frame.top + _tall(found, pitch) + 14))
    width, height = MAP_WIDTH + 2 * margin, frame.top + _tall(found, pitch) + 34
    whole = Frame(width=width, height=height)
    return document(whole, *marks, title=title, about=READING, key=key)


def _key(x: float, y: float) -> Element:
    """What the colours mean, as a row of all steps."""
    group = Element("g", label("free", x, y))
    for step in range(HEAT_STEPS + 1):
        group.add(boxes([(x + 34 + 18 * step, y - 6, 18, 12)], f"cells h{step}"))
    return group.add(label("fully used; amber: CPU in use", x + 242, y))
