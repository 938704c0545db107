"""Results of a power bench as files: a page, a plot of every scenario, and tables as CSV.

Knows the document `wattherd.bench/1` and what the site drew second by second, no simulation.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.report.charts import Chart
from wattherd.report.export import write_plots
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.report.rendering import figure, rendered

LIMIT = "limit"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "over_limit_s": ("above a limit", "s"),
    "worst_excess_pct": ("worst second", "%"),
    "worst_moment_pct": ("worst moment", "%"),
    "breaker_trips": ("avoidable trips", ""),
    "usable_pct": ("used", "% of usable"),
    "back_s": ("back after a cut", "s"),
    "safe_mode_s": ("safe mode", "s"),
    "alarms": ("alarms", ""),
    "settling_s": ("settled after", "s"),
    "over_shed_pct": ("over-shed", "points"),
    "cap_changes_per_min": ("cap changes", "/min"),
    "progress_pct": ("work", "% of oracle"),
    "jain": ("fairness", "Jain"),
    "recovered_s": ("recovered after", "s"),
    "caps_restored": ("caps restored", ""),
}


@dataclass(frozen=True, slots=True)
class BenchHistory:
    """What a site drew in one scenario under one fault: kilowatts a second, by controller."""

    scenario: str
    fault: str
    limit_kw: Sequence[float]
    drawn_kw: Mapping[str, Sequence[float]]


def write_bench(document: Mapping[str, Any], found: Sequence[BenchHistory], out: Path) -> Path:
    """Write `report.html`, `results.json`, `results.csv` and `plots/*.svg`; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    charts = {chart.key: chart for chart in map(_chart, found)}
    series = 1 + max((len(one.drawn_kw) for one in found), default=0)
    write_plots(charts, series, out / "plots", ["svg"])
    text = json.dumps(document, indent=1) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    _write_csv(document["runs"], out / "results.csv")
    page = out / "report.html"
    page.write_text(_page(document, list(charts.values()), series), encoding="utf-8")
    return page


def _chart(one: BenchHistory) -> Chart:
    seconds = [float(at) for at in range(len(one.limit_kw))]
    lines = {LIMIT: one.limit_kw, **one.drawn_kw}
    words = "" if one.fault == "none" else f", {one.fault}"
    plot = LinePlot(
        title=f"{one.scenario}{words}",
        about="Draw of the site second by second, and its limit",
        x_title="time (s)",
        y_title="kW",
        series=tuple(
            Series(name=name, number=number, x=seconds, y=list(values))
            for number, (name, values) in enumerate(lines.items())
        ),
        x_low=0.0,
        x_high=seconds[-1],
    )
    return Chart(
        key=f"{one.scenario}-{one.fault}",
        title=plot.title,
        caption=f"{plot.about}.",
        draw=lambda frame, key: draw_lines(plot, frame, key),
    )


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run with one figure a column."""
    worst = {f"worst_{width}": value for width, value in run["worst_overshoot_pct"].items()}
    plain = {
        key: value for key, value in run.items() if key not in ("levels", "worst_overshoot_pct")
    }
    return {
        **plain,
        **worst,
        "progress_pct": 100 * run["progress_of_oracle"],
        "alarms": ", ".join(f"{kind} {lasted}" for kind, lasted in run["alarms"].items()),
        "trip_reasons": " | ".join(run["trip_reasons"]),
    }


def _write_csv(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    rows = [_flat(run) for run in runs]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["scenario"])
        writer.writeheader()
        writer.writerows(rows)


def _page(document: Mapping[str, Any], charts: Sequence[Chart], series: int) -> str:
    return rendered(
        "bench.html.j2",
        series,
        seed=document["seed"],
        scenarios=document["scenarios"],
        skipped=document["skipped"],
        summary=document["summary"],
        heads=list(COLUMNS.values()),
        rows=[_cells(run) for run in document["runs"]],
        trips=[(run, reason) for run in document["runs"] for reason in run["trip_reasons"]],
        figures=[figure(chart, f"b{at}") for at, chart in enumerate(charts)],
    )


def _cells(run: Mapping[str, Any]) -> list[str]:
    flat = _flat(run)
    return [
        run["scenario"], run["fault"], run["controller"], *(_text(flat[key]) for key in COLUMNS)
    ]  # fmt: skip


def _text(value: Any) -> str:
    if value is None or value == "":
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
