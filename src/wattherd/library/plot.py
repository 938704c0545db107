"""A plot of results: it shows itself in a notebook, and is saved as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wattherd.errors import UserError


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture of a report; `svg` is the whole of it as text."""

    name: str
    svg: str = field(repr=False)

    def save(self, path: Path | str) -> Path:
        """Write it as an SVG file; the path.

        Raises:
            UserError: it cannot be written, or the name ends otherwise.
        """
        out = Path(path)
        if out.suffix != ".svg":
            hint = "end the name by .svg; `wattherd report --format png` makes other pictures"
            raise UserError(f"{out.suffix or 'no ending'} is no SVG", where=str(out), hint=hint)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(self.svg, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(out)) from None
        return out

    def _repr_svg_(self) -> str:
        return self.svg[self.svg.index("<svg") :]


def plots(svgs: dict[str, str]) -> dict[str, Plot]:
    """Plots by their names, in the order of the report."""
    return {name: Plot(name, svg) for name, svg in svgs.items()}


def first_html(known: Mapping[str, Plot]) -> str:
    """The first plot as a part of a page; nothing where there is none."""
    return "".join(one._repr_svg_() for one in [*known.values()][:1])
