"""The headline table as text: which columns there are, how figures are written, who is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wattherd.report.compare import SAVING_POINTS, CompareRow, SeedSpread
from wattherd.report.svg import tick_label

NONE = "\N{EN DASH}"
Better = Literal["high", "low", "neither"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column: its heading, its figure, how to print it, and which direction is better."""

    head: str
    unit: str
    value: Callable[[CompareRow], SeedSpread | None]
    digits: int
    better: Better
    factor: float = 1.0
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A printed figure; `sort` is what a table sorts by."""

    mean: str
    sd: str
    sort: float | None
    best: bool


def fields(rows: Sequence[CompareRow]) -> list[Field]:
    """The columns; those that no row can fill are left out.

    Power at the end is not judged: by then each policy holds another number of GPUs.
    """
    watts = max((row.power_w.mean for row in rows if row.power_w), default=0.0)
    unit, factor, digits = ("kW", 1e-3, 1) if watts >= 1e4 else ("W", 1.0, 0)
    found = [
        Field(head="GPUs allocated", unit="%", value=lambda r: r.allocated_pct, digits=2,
              better="high"),
        Field(head="GRAR", unit="", value=lambda r: r.grar, digits=4, better="high"),
        Field(head="frag. ratio", unit="%", value=lambda r: r.frag_ratio_pct, digits=2,
              better="low"),
        Field(head="power", unit=unit, value=lambda r: r.power_w, digits=digits,
              better="neither", factor=factor),
        Field(head="per GPU held", unit="W", value=lambda r: r.watts_per_gpu, digits=1,
              better="low"),
        *(_saving(at) for at in SAVING_POINTS),
        Field(head="CPU time", unit="s", value=lambda r: r.cpu_s, digits=2, better="low"),
    ]  # fmt: skip
    return [field for field in found if any(field.value(row) for row in rows)]


def _saving(at: int) -> Field:
    return Field(
        head=f"at {at} %",
        unit="%",
        value=lambda row: row.savings_pct[at],
        digits=1,
        better="high",
        group="saved",
    )


def cells(rows: Sequence[CompareRow], columns: Sequence[Field]) -> list[list[TableCell]]:
    """A cell per row and column; all that print like the best are marked, unless all do."""
    by_column = [_column(rows, field) for field in columns]
    return [list(line) for line in zip(*by_column, strict=True)] if by_column else []


def _column(rows: Sequence[CompareRow], field: Field) -> list[TableCell]:
    values = [field.value(row) for row in rows]
    printed = [_print(value.mean, field) if value else NONE for value in values]
    told = {text for text in printed if text != NONE}
    best = _best(values, field) if len(told) > 1 or len(rows) == 2 else None
    return [
        TableCell(
            mean=text,
            sd=_print(value.sd, field) if value and value.sd is not None else "",
            sort=value.mean if value else None,
            best=best is not None and text == _print(best, field),
        )
        for value, text in zip(values, printed, strict=True)
    ]


def _best(values: Sequence[SeedSpread | None], field: Field) -> float | None:
    known = [value.mean for value in values if value]
    if field.better == "neither" or not known:
        return None
    return max(known) if field.better == "high" else min(known)


def _print(value: float, field: Field) -> str:
    return tick_label(value * field.factor, field.digits)
