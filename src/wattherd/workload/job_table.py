"""Jobs from the rows of a CSV table: what all traces of jobs with durations have in common.

A reader says which columns its format has and makes a job of a row; here the rows are read, cells
become numbers, ids are unique and submissions in order of time. Every complaint names file, line
and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError
from wattherd.model.job import JobSpec
from wattherd.workload.cells import CellPlace
from wattherd.workload.source import shown
from wattherd.workload.table import Layout, rows

MAX_TASKS = 1_000_000
_MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of one line by column name; `number` counts rows from 0."""

    cells: Mapping[str, str]
    place: CellPlace
    number: int

    def text(self, column: str) -> str:
        """A cell without surrounding blanks."""
        return self.cells[column].strip()

    def whole(self, column: str, *, least: int = 0, most: int = MAX_TASKS) -> int:
        """A whole number from `least` to `most`."""
        value = self.place.integer(column, self.cells[column], at_most=most)
        if value < least:
            raise self.place.error(column, f"{value} is too small", f"at least {least}")
        return value

    def seconds(self, column: str) -> float:
        """Seconds of zero or more."""
        value = self.place.seconds(column, self.cells[column])
        if value is None:
            raise self.place.error(column, "is empty", "seconds, zero or more")
        return value

    def ms(self, column: str) -> float:
        """Seconds, of a cell in milliseconds."""
        return self.seconds(column) / _MS_PER_S


JobOf = Callable[[TableRow], JobSpec]


def read_table(path: Path, layout: Layout, job_of: JobOf, *, in_order: bool) -> tuple[JobSpec, ...]:
    """The jobs of a file, by time of submission (equal times in the order of their rows).

    With `in_order` they must stand in it like that already. The first required column of `layout`
    is the time of submission.

    Raises:
        UserError: with file, line and column.
    """
    jobs = list(_jobs(path, layout, job_of, in_order=in_order))
    return tuple(jobs if in_order else sorted(jobs, key=lambda job: job.submit_s))


def _jobs(path: Path, layout: Layout, job_of: JobOf, *, in_order: bool) -> Iterator[JobSpec]:
    lines: dict[str, int] = {}
    before_s = 0.0
    for number, (line, cells) in enumerate(rows(path, layout)):
        row = TableRow(
            dict(zip(layout.columns, cells, strict=True)), CellPlace(f"{path}:{line}"), number
        )
        job = placed(job_of, row)
        check_new(job.id, line, lines, row.place, "job_id")
        if in_order:
            check_order(job.submit_s, before_s, row.place, layout.required[0])
        before_s = job.submit_s
        yield job


def placed(job_of: JobOf, row: TableRow) -> JobSpec:
    """The job of a row; what the job itself refuses is said with its place in the file."""
    try:
        return job_of(row)
    except UserError as error:
        if error.where.startswith(row.place.where):
            raise
        raise row.place.error(error.field, error.problem, error.hint) from None


def check_new(job_id: str, line: int, lines: dict[str, int], place: CellPlace, column: str) -> None:
    """Refuse an id that stands on an earlier line."""
    if job_id in lines:
        problem = f"{shown(job_id)} stands on line {lines[job_id]} already"
        raise place.error(column, problem, "ids are unique")
    lines[job_id] = line


def check_order(submit_s: float, before_s: float, place: CellPlace, column: str) -> None:
    """Refuse a job that was submitted before the one on the line above."""
    if submit_s < before_s:
        problem = f"{submit_s:g} s is before the line above ({before_s:g} s)"
        raise place.error(column, problem, "sort the rows by time of submission")
