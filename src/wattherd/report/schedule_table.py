"""The table at the head of the report of a simulated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattherd.report.schedule_runs import PolicyFigures
from wattherd.report.svg import tick_label
from wattherd.report.table import NONE, TableCell
from wattherd.units import show_seconds, show_watts


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """Its heading, unit, figure and how that is printed; `lower` None is not judged."""

    head: str
    unit: str
    value: Callable[[PolicyFigures], float | None]
    show: Callable[[float], str]
    lower: bool | None = True


def _count(value: float) -> str:
    return tick_label(value)


def _tenth(value: float) -> str:
    return tick_label(value, 1)


def _thousandth(value: float) -> str:
    return tick_label(value, 3)


COLUMNS = (
    FigureColumn("mean", "completion", lambda one: one.avg_jct_s, show_seconds),
    FigureColumn("median", "completion", lambda one: one.median_jct_s, show_seconds),
    FigureColumn("99 %", "completion", lambda one: one.p99_jct_s, show_seconds),
    FigureColumn("makespan", "", lambda one: one.makespan_s, show_seconds),
    FigureColumn("mean wait", "", lambda one: one.avg_queue_s, show_seconds),
    FigureColumn("GPUs held", "%", lambda one: one.gpu_utilisation_pct, _tenth, lower=False),
    FigureColumn("energy", "MJ", lambda one: one.all_energy_j / 1e6, _tenth),
    FigureColumn("energy", "kWh", lambda one: one.all_energy_j / 3.6e6, _thousandth),
    FigureColumn("over budget", "s", lambda one: one.over_budget_s, _tenth),
    FigureColumn("exempt", "s", lambda one: one.exempt_s, _tenth),
    FigureColumn("restarts", "", lambda one: float(one.restarts), _count, lower=None),
    FigureColumn("preempted", "", lambda one: float(one.preemptions), _count, lower=None),
    FigureColumn("CPU time", "s", lambda one: one.cpu_s, _tenth, lower=None),
)


def columns_of(shown: Sequence[PolicyFigures]) -> tuple[FigureColumn, ...]:
    """`COLUMNS`, and what energy has cost and emitted where that is known."""
    exempt = any(one.exempt_s > 0 for one in shown)
    found = [one for one in COLUMNS if exempt or one.head != "exempt"]
    if any(one.cost is not None for one in shown):
        currency = next((one.currency for one in shown if one.currency), "")
        found += [
            FigureColumn("cost", currency, _cost, _thousandth),
            FigureColumn("CO2e", "kg", _co2e_kg, _thousandth),
        ]
    return tuple(found)


def _cost(one: PolicyFigures) -> float | None:
    """None where no price was known at any time."""
    return one.cost if one.unpriced_j < (1 - 1e-9) * one.all_energy_j else None


def _co2e_kg(one: PolicyFigures) -> float | None:
    """None where no intensity was known at any time."""
    return one.co2e_kg if one.unrated_j < (1 - 1e-9) * one.all_energy_j else None


def table_rows(shown: Sequence[PolicyFigures]) -> list[list[TableCell]]:
    """A cell per policy and column; the best of those that finished all is marked."""
    columns = columns_of(shown)
    best = [_best(shown, column) for column in columns]
    return [
        [_cell(one, column, mark) for column, mark in zip(columns, best, strict=True)]
        for one in shown
    ]


LEVEL_HEADS = ("policy", "level", "domains", "with a budget", "above it", "exempt", "worst",
               "mean use", "peak use")  # fmt: skip


def level_rows(shown: Sequence[PolicyFigures]) -> list[tuple[str, ...]]:
    """By `LEVEL_HEADS`, a row per policy and level of the power tree."""
    return [
        (
            one.policy,
            level.level,
            _count(level.domains),
            _count(level.budgets),
            show_seconds(level.over_budget_s),
            show_seconds(level.exempt_s),
            f"{show_watts(level.worst_w)} at {level.worst_domain}" if level.worst_w else NONE,
            NONE if level.mean_use_pct is None else f"{level.mean_use_pct:.1f} %",
            NONE if level.peak_use_pct is None else f"{level.peak_use_pct:.1f} %",
        )
        for one in shown
        for level in one.levels
    ]


def _best(shown: Sequence[PolicyFigures], column: FigureColumn) -> str | None:
    known = [
        value
        for one in shown
        if one.finished == one.jobs and (value := column.value(one)) is not None
    ]
    if column.lower is None or not known:
        return None
    best = column.show(min(known) if column.lower else max(known))
    alike = {NONE if (value := column.value(one)) is None else column.show(value) for one in shown}
    return best if len(alike) > 1 else None


def _cell(one: PolicyFigures, column: FigureColumn, best: str | None) -> TableCell:
    value = column.value(one)
    if value is None:
        return TableCell(mean=NONE, sd="", sort=None, best=False)
    text = column.show(value)
    marked = text == best and one.finished == one.jobs
    return TableCell(mean=text, sd="", sort=value, best=marked)
