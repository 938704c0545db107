"""The picture of a mix sweep: average completion time against the share of unpredictable jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattherd.report.charts import Chart, DataTable
from wattherd.report.export import standalone
from wattherd.report.lines import LinePlot, Series, draw_lines

Line = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Mean, lowest and highest average completion time (h) at each share."""
TITLE = "Completion time against predictability"
ABOUT = "Average completion time by the share of jobs whose loss never tells how long they will run"


def mix_svg(shares: Sequence[float], lines: Mapping[str, Line]) -> str:
    """An SVG document; `lines` by policy, its band from the lowest to the highest seed.

    `shares` are 0 to 1, at least two.
    """
    percent = [100 * share for share in shares]
    plot = LinePlot(
        title=TITLE,
        about=ABOUT,
        x_title="unpredictable jobs (%)",
        y_title="average completion time (h)",
        series=tuple(
            Series(name=policy, number=number, x=percent, y=mean, low=low, high=high)
            for number, (policy, (mean, low, high)) in enumerate(lines.items())
        ),
        x_low=percent[0],
        x_high=percent[-1],
        y_low=0.0,
    )
    chart = Chart(
        key="mix",
        title=TITLE,
        caption=ABOUT,
        draw=lambda frame, name: draw_lines(plot, frame, name),
        table=_table(percent, lines),
    )
    return standalone(chart, len(lines), "mix")


def _table(percent: Sequence[float], lines: Mapping[str, Line]) -> DataTable:
    return DataTable(
        heads=("policy", *(f"{share:g} %" for share in percent)),
        rows=tuple(
            (policy, *(f"{value:.2f}" for value in mean)) for policy, (mean, _, _) in lines.items()
        ),
    )
