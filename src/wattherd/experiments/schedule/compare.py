"""Compare runs of several policies under several budgets: the Pareto front and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattherd.report.labels import place_around
from wattherd.report.svg import (
    Element,
    Frame,
    PlotAxis,
    Scale,
    document,
    dot,
    label,
    polyline,
    round_domain,
    text_width,
    x_axis,
    y_axis,
)
from wattherd.report.theme import series_class, standalone_rules

FRAME = Frame(width=820, height=460, left=70, right=190, top=30)


def mark_front(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `on_front`: no eligible row is better in one figure and no worse in both."""
    points = {i: _point(row) for i, row in enumerate(rows) if _eligible(row)}
    return [
        {**row, "on_front": i in points and not _beaten(points[i], points.values())}
        for i, row in enumerate(rows)
    ]


def _eligible(row: Mapping[str, Any]) -> bool:
    return bool(row["finished"] == row["jobs"] and row["over_budget_s"] == 0)


def _point(row: Mapping[str, Any]) -> tuple[float, float]:
    return float(row["avg_jct_s"]), float(sum(row["energy_j"].values()))


def _beaten(one: tuple[float, float], others: Any) -> bool:
    return any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in others)


def sharing_sentences(rows: Sequence[Mapping[str, Any]], watts: Mapping[str, int]) -> list[str]:
    """What each way of sharing watts is worth against `uniform`, and whether watts are priors.

    `watts` is of `watts_source`: how many jobs there are, and of how many nobody measured a curve.
    """
    even = {_case(row): row for row in rows if row["power"] == "uniform" and _eligible(row)}
    told = [
        f"{row['policy']} within {row['budget']}: {row['power']} instead of uniform is "
        f"{_change(row, even[_case(row)])}."
        for row in rows
        if row["power"] not in (None, "uniform") and _case(row) in even and _eligible(row)
    ]
    jobs, prior = watts["jobs"], watts["prior"]
    if prior and any(row["power"] for row in rows):
        said = f"Watts of {prior} of {jobs} jobs are priors: nobody measured their power curves."
        told.append(said + ("" if told else " Add `uniform` to `power` to see what sharing gains."))
    return told


def _case(row: Mapping[str, Any]) -> tuple[str, str | None]:
    return row["policy"], row["budget"]


def _change(row: Mapping[str, Any], even: Mapping[str, Any]) -> str:
    """`7.9 % sooner on average, with 1.0 % more energy`, by tenths; `no better` where all tie."""
    (time, energy), (base_time, base_energy) = _point(row), _point(even)
    sooner = round(100 * (1 - time / base_time), 1) if base_time else 0.0
    less = round(100 * (1 - energy / base_energy), 1) if base_energy else 0.0
    if not sooner and not less:
        return "no better and no worse"
    when = f"{abs(sooner):.1f} % {'sooner' if sooner > 0 else 'later'} on average"
    watts = f"{abs(less):.1f} % {'less' if less > 0 else 'more'} energy"
    return f"{when if sooner else 'as fast'}, with {watts if less else 'the same energy'}"


def front_svg(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean completion time against energy, one dot per run, the front as a line."""
    shown = [row for row in rows if row["avg_jct_s"] is not None]
    points = [(_point(row)[1] / 1e6, _point(row)[0] / 3600) for row in shown]
    x_low, x_high = round_domain(min(x for x, _ in points), max(x for x, _ in points), 6)
    y_low, y_high = round_domain(min(y for _, y in points), max(y for _, y in points), 6)
    x = Scale(x_low, x_high, *FRAME.x_range)
    y = Scale(y_low, y_high, *FRAME.y_range)
    policies = list(dict.fromkeys(str(row["policy"]) for row in shown))
    front = sorted(point for point, row in zip(points, shown, strict=True) if row["on_front"])
    edge = [(x(a), y(b)) for a, b in front]
    places = [(x(a), y(b)) for a, b in points]
    numbers = [policies.index(str(row["policy"])) for row in shown]
    marks = [polyline(edge, "front")]
    for at, number, row in zip(places, numbers, shown, strict=True):
        marks.append(dot(at, 5, f"dot {series_class(number)}", _name(row)))
    best = [i for i, row in enumerate(shown) if row["on_front"]]
    marks.extend(_labels([places[i] for i in best], [_name(shown[i]) for i in best]))
    picture = document(
        FRAME,
        Element("style", standalone_rules(len(policies)) + ".front{fill:none;stroke:#888}"),
        Element("rect", width="100%", height="100%", fill="#ffffff"),
        x_axis(PlotAxis(low=x_low, high=x_high, title="energy of all GPUs (MJ)"), x, FRAME),
        y_axis(PlotAxis(low=y_low, high=y_high, title="mean completion time (h)"), y, FRAME),
        *marks,
        title="Completion time against energy",
        about="One dot per policy, budget and way of sharing power; lower left is better",
        key="pareto",
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{picture.render()}\n'


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['policy']}, {row['power'] or 'uncapped'}, {row['budget'] or 'no budget'}"


def _labels(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[Element]:
    """Names of the runs on the front, beside their dots without overlap."""
    (left, right), (bottom, top) = FRAME.x_range, FRAME.y_range
    bounds = (left + 2, top, right + FRAME.right - 2, bottom)
    widths = [text_width(name, FRAME.font) for name in names]
    places = place_around(list(points), widths, 15, bounds, [])
    return [
        label(name, place.x, place.y, anchor=place.anchor)
        for name, place in zip(names, places, strict=True)
    ]
