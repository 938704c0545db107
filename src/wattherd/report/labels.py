"""Where labels go so that they do not cover each other.

`spread_out` is for a column of labels (line ends), `place_around` for labels near points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.report.svg import Point

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, as near to `wanted` as possible, in the same order.

    Least squares by pooling neighbours that would collide; the column is then moved into
    `low..high` where it fits.
    """
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    blocks: list[tuple[float, int]] = []  # (sum of gap-free positions, members)
    for rank, index in enumerate(order):
        total, members = wanted[index] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            above, more = blocks.pop()
            total, members = total + above, members + more
        blocks.append((total, members))
    free = [total / members for total, members in blocks for _ in range(members)]
    room = max(low, high - (len(wanted) - 1) * gap)
    placed = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        placed[index] = min(max(free[rank], low), room) + rank * gap
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLabel:
    """A label's text origin (its middle line), its anchor, and whether it needs a leader line."""

    x: float
    y: float
    anchor: str
    leader: bool


def place_around(
    points: Sequence[Point],
    widths: Sequence[float],
    height: float,
    bounds: Box,
    obstacles: Sequence[Box] = (),
) -> list[PlacedLabel]:
    """A place near each point for a label `widths[i]` wide, avoiding all other marks.

    Greedy, most crowded point first, over a fixed list of candidate places; the cheapest by
    overlap, then by distance, wins.
    """
    taken: list[Box] = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    placed: list[PlacedLabel | None] = [None] * len(points)
    for index in sorted(range(len(points)), key=lambda i: (-_crowd(points, i), i)):
        others = [box for other, box in enumerate(taken) if other != index] + list(obstacles)
        best = min(
            _candidates(points[index]),
            key=lambda place: _cost(place, points[index], widths[index], height, others, bounds),
        )
        placed[index] = best
        taken.append(_box(best, widths[index], height))
    return [place for place in placed if place is not None]


def _crowd(points: Sequence[Point], index: int) -> float:
    x, y = points[index]
    return sum(1 / (1 + abs(x - u) / 60 + abs(y - v) / 20) for u, v in points)


def _candidates(point: Point) -> list[PlacedLabel]:
    x, y = point
    found = []
    for far in (0, 14, 28, 42, 60, 80, 104):
        leader = far > 0
        found += [
            PlacedLabel(x=x + 9 + far * 0.6, y=y + shift, anchor="start", leader=leader)
            for shift in (0, -far, far)
        ]
        found += [
            PlacedLabel(x=x - 9 - far * 0.6, y=y + shift, anchor="end", leader=leader)
            for shift in (0, -far, far)
        ]
        found += [
            PlacedLabel(x=x, y=y + shift, anchor="middle", leader=leader)
            for shift in (-14 - far, 14 + far)
        ]
    return found


def _box(place: PlacedLabel, width: float, height: float) -> Box:
    left = {"start": place.x, "middle": place.x - width / 2, "end": place.x - width}[place.anchor]
    return left - 2, place.y - height / 2, left + width + 2, place.y + height / 2


def _cost(
    place: PlacedLabel, point: Point, width: float, height: float, others: list[Box], bounds: Box
) -> float:
    box = _box(place, width, height)
    outside = width * height - _overlap(box, bounds) + 4 * height
    covered = sum(_overlap(box, other) for other in others)
    away = abs(place.y - point[1]) + 0.5 * abs(place.x - point[0])
    return 50 * covered + 50 * max(0.0, outside) + away


def _overlap(one: Box, two: Box) -> float:
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    return max(0.0, width) * max(0.0, height)
