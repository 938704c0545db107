"""Results of `wattherd power swings` as files: a page, plots over time, and a table as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.estimate.swing import Samples, evenly, welch
from wattherd.report.charts import Chart
from wattherd.report.export import write_plots
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.report.rendering import figure, rendered

POINTS = 600
"""Points of a line, at most: each is the mean of its stretch."""
MOST_LINES = 8


def write_swings(
    document: Mapping[str, Any], drawn: Sequence[tuple[str, Samples]], out: Path
) -> Path:
    """Write `report.html`, `results.json`, `results.csv` and `plots/*.svg`; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = drawn[:MOST_LINES]
    found = [_over_time(drawn), _by_frequency(drawn)]
    if any("mean_wait_s" in row for row in document["recordings"]):
        found.insert(0, _swing_and_ramp(document["recordings"][:MOST_LINES]))
    charts = {chart.key: chart for chart in found}
    write_plots(charts, len(drawn), out / "plots", ["svg"])
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _write_csv(document["recordings"], out / "results.csv")
    page = out / "report.html"
    page.write_text(_page(document, list(charts.values()), len(drawn)), encoding="utf-8")
    return page


def job_time_cost(row: Mapping[str, Any]) -> str:
    """What a way to run jobs costs in their time, in words; empty of a recording itself."""
    if "mean_wait_s" not in row:
        return ""
    if row["slowed"] > 0:
        return f"work takes {row['slowed']:.0%} longer"
    if row["mean_wait_s"] > 0:
        return f"starts wait {row['mean_wait_s']:.0f} s, once"
    return "costs no job time"


def _swing_and_ramp(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """A box for each way to run the jobs: as high as the worst swing, as wide as the worst ramp."""
    series = []
    for number, row in enumerate(rows):
        if "mean_wait_s" not in row:
            continue
        ramp_kw_s = max(row["ramp_up_w_s"], row["ramp_down_w_s"]) / 1e3
        swing_kw = row["worst_swing_w"] / 1e3
        series.append(
            Series(
                name=row["name"], number=number,
                x=[0.0, ramp_kw_s, ramp_kw_s], y=[swing_kw, swing_kw, 0.0],
            )
        )  # fmt: skip
    costs = [f"{row['name']}: {job_time_cost(row)}" for row in rows if "mean_wait_s" in row]
    caption = (
        "A box is as high as the worst swing within 10 s and as wide as the steepest ramp, up or"
        f" down: the smaller, the calmer for the grid. In job time: {'; '.join(costs)}."
    )
    return _chart("swing-and-ramp", "Swing and ramp", "steepest ramp (kW/s)", "worst swing (kW)",
                  series, caption)  # fmt: skip


def _over_time(drawn: Sequence[tuple[str, Samples]]) -> Chart:
    series = []
    for number, (name, samples) in enumerate(drawn):
        step_s, even_w = evenly(samples)
        each = -(-len(even_w) // POINTS)
        count = len(even_w) // each
        means_w = even_w[: count * each].reshape(count, each).mean(axis=1)
        seconds = step_s * each * (np.arange(count) + 0.5)
        series.append(
            Series(name=name, number=number, x=seconds.tolist(), y=(means_w / 1e3).tolist())
        )
    return _chart("draw", "Draw over time", "time (s)", "kW", series)


def _by_frequency(drawn: Sequence[tuple[str, Samples]]) -> Chart:
    series = []
    for number, (name, samples) in enumerate(drawn):
        step_s, even_w = evenly(samples)
        spectrum = welch(even_w, step_s)
        root = np.sqrt(spectrum.density) / 1e3
        series.append(
            Series(
                name=name, number=number,
                x=np.log10(spectrum.frequency_hz).tolist(), y=root.tolist(),
            )
        )  # fmt: skip
    caption = "Root of the density: what swings at which frequency. -1 is 0.1 Hz, 0 is 1 Hz."
    return _chart(
        "spectrum", "By frequency", "log10 of the frequency in Hz", "kW per root of Hz", series,
        caption,
    )  # fmt: skip


def _chart(
    key: str, title: str, x_title: str, y_title: str, series: list[Series], caption: str = ""
) -> Chart:
    plot = LinePlot(
        title=title, about=title, x_title=x_title, y_title=y_title, series=tuple(series),
        x_low=min(one.x[0] for one in series), x_high=max(one.x[-1] for one in series),
    )  # fmt: skip
    return Chart(
        key=key,
        title=title,
        caption=caption,
        draw=lambda frame, key: draw_lines(plot, frame, key),
    )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A recording with one figure a column."""
    flat = {key: value for key, value in row.items() if not isinstance(value, list | tuple | dict)}
    strongest = row["strongest"] or {"frequency_hz": None, "swing_w": None}
    flat["strongest"] = strongest["frequency_hz"]
    flat["strongest_swing_w"] = strongest["swing_w"]
    for band in row["bands"]:
        flat[f"rms_w_{band['low_hz']:g}_{band['high_hz']:g}_hz"] = band["rms_w"]
    return flat


def _write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    flat = [_flat(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in flat for key in row)))
        writer.writeheader()
        writer.writerows(flat)


def _page(document: Mapping[str, Any], charts: Sequence[Chart], series: int) -> str:
    return rendered(
        "swings.html.j2",
        series,
        rows=[{**row, "cost": job_time_cost(row)} for row in document["recordings"]],
        figures=[figure(chart, f"s{at}") for at, chart in enumerate(charts)],
    )
