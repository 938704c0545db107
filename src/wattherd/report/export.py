"""Plots as files: SVG from our own writer, PNG and PDF by way of CairoSVG (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.report import theme
from wattherd.report.charts import WIDE, Chart
from wattherd.report.svg import Element, Frame, headline

PNG_SCALE = 2.0


def write_plots(
    charts: Mapping[str, Chart], series: int, folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Write each chart in each format as `folder/NAME.FORMAT` and return the files."""
    if not formats:
        return []
    convert = _cairosvg() if set(formats) - {"svg"} else None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in charts.items():
        text = standalone(chart, series, name)
        for kind in formats:
            file = folder / f"{name}.{kind}"
            _write(text, file, kind, convert)
            written.append(file)
    return written


def standalone(
    chart: Chart, series: int, key: str, frame: Frame = WIDE, *, more_rules: str = ""
) -> str:
    """A chart as an SVG document of its own: with headline, style sheet and white ground.

    `more_rules` stand behind the style sheet: `theme.dark_rules`, for a picture of a web page.
    """
    frame = frame.titled()
    picture = chart.draw(frame, key)
    style = Element("style", theme.standalone_rules(series) + more_rules)
    ground = Element("rect", width="100%", height="100%", fill="#ffffff")
    picture.children[2:2] = [style, ground, headline(chart.title, note=chart.note)]
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{picture.render()}\n'


def _write(text: str, file: Path, kind: str, convert: Any) -> None:
    if kind == "svg":
        file.write_text(text, encoding="utf-8", errors="replace")
    elif kind == "png":
        convert.svg2png(bytestring=text.encode(), write_to=str(file), scale=PNG_SCALE)
    else:
        convert.svg2pdf(bytestring=text.encode(), write_to=str(file))


def _cairosvg() -> Any:
    try:
        import cairosvg
    except (ImportError, OSError):  # OSError: the Python part is there, the library cairo is not
        raise UserError(
            "PNG and PDF need CairoSVG and the library cairo",
            hint="pip install 'wattherd[plot]', on Debian also apt install libcairo2; "
            "or ask for svg",
        ) from None
    return cairosvg
