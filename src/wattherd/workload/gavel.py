"""Gavel's files (OSDI'20): traces of jobs and measured throughputs.

A trace has tab-separated lines without a header, in order of arrival. The number of columns tells
the layout:

- 10: job type, command, working directory, argument for steps, needs data, steps, scale factor,
  priority weight, SLO (multiple of the duration, negative: none), arrival (s).
- 9: the same without the working directory.
- 12: Shockwave's (NSDI'23), with the batch-size mode after the scale factor and the duration (s)
  after the SLO. The mode is kept as a label; batch sizes stay as submitted.
- 7: the older Philly-derived ones: job type, command, argument for steps, needs data, steps,
  arrival, scale factor.

`*_throughputs.json`: worker type -> "('job type', scale)" -> {"null": steps/s alone, ...}. What
is measured of pairs that share a GPU is not read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.estimate.throughput_table import Key, ThroughputTable
from wattherd.model.job import JobSpec, workers
from wattherd.workload.source import opened, shown

_HEAD = ("job_type", "command", "working_dir", "num_steps_arg", "needs_data_dir", "total_steps")
_TAIL = ("scale_factor", "priority_weight", "SLO", "arrival_time")
_PHILLY = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps")
LAYOUTS: Mapping[int, tuple[str, ...]] = {
    7: (*_PHILLY, "arrival_time", "scale_factor"),
    9: (*_PHILLY, *_TAIL),
    10: (*_HEAD, *_TAIL),
    12: (*_HEAD, "scale_factor", "mode", "priority_weight", "SLO", "duration", "arrival_time"),
}
"""Columns by their number."""
SPREAD = "_unconsolidated"
"""Ending of a worker type's name where a job's GPUs sit on several servers."""
REFERENCE = "v100"
"""The worker type on which durations, and with them SLOs, are counted."""
_ALONE = "null"
_MAX_LINE = 1 << 16
_MAX_BYTES = 1 << 28

LeftOut = Callable[[UserError], None]


def read_jobs(
    path: Path,
    table: ThroughputTable,
    *,
    gpu_models: Sequence[str] = (),
    left_out: LeftOut | None = None,
) -> tuple[JobSpec, ...]:
    """The jobs of a trace in its order; a job's id is its place there, from 0, as in Gavel's logs.

    Jobs of which no throughput was measured are handed to `left_out` and not returned; without it
    they are errors like all else. `duration_s` is the time on the reference type. `gpu_models` are
    those of the cluster: a job that does not run on all of them is confined to the others.

    Raises:
        UserError: with file, line and column.
    """
    jobs: list[JobSpec] = []
    before_s = 0.0
    for place, (where, cells) in enumerate(_lines(path)):
        row = _Row(cells, where)
        arrival_s = row.number("arrival_time", least=0.0)
        if arrival_s < before_s:
            problem = f"{arrival_s:g} is before the line above ({before_s:g})"
            raise UserError(problem, where=where, field="arrival_time", hint="sort by arrival")
        before_s = arrival_s
        job = _job(row, table, str(place))
        try:
            table.check(job.profile, job.gpus, where=where)
        except UserError as error:
            if left_out is None:
                raise
            left_out(error)
            continue
        jobs.append(_confined(job, table, gpu_models))
    if not jobs:
        raise UserError("holds no job", where=str(path), hint="is this the right file?")
    return tuple(jobs)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and named cells of every line that is not blank."""
    width, number = 0, 0
    with opened(path) as stream:
        while raw := stream.readline(_MAX_LINE):
            number += 1
            where = f"{path}:{number}"
            try:
                cells = raw.decode("utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError:
                hint = "is this a Gavel trace?"
                raise UserError("not UTF-8 text", where=where, hint=hint) from None
            if cells != [""]:
                width = width or len(cells)
                yield where, _named(cells, width, where)


def _named(cells: list[str], width: int, where: str) -> dict[str, str]:
    if width not in LAYOUTS:
        known = ", ".join(map(str, sorted(LAYOUTS)))
        hint = f"a Gavel trace has {known} columns between tabs and no header"
        raise UserError(f"{len(cells)} columns", where=where, hint=hint)
    if len(cells) != width:
        raise UserError(f"{len(cells)} columns, the lines above have {width}", where=where)
    return dict(zip(LAYOUTS[width], cells, strict=True))


@dataclass(frozen=True, slots=True)
class _Row:
    """Named cells of one line, and where it stands."""

    cells: Mapping[str, str]
    where: str

    def number(self, name: str, *, default: str = "", least: float | None = None) -> float:
        """A finite number; `default` where the layout lacks the column."""
        cell = self.cells.get(name, default)
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.bad(name, "is no number", "a plain decimal number")
        if least is not None and value < least:
            raise self.bad(name, "is too small", f"at least {least:g}")
        return value

    def whole(self, name: str) -> int:
        """A whole number of one or more."""
        cell = self.cells[name]
        if not re.fullmatch(r"\d{1,15}", cell) or not int(cell):
            raise self.bad(name, "is no whole number of one or more", "a plain number")
        return int(cell)

    def bad(self, name: str, problem: str, hint: str) -> UserError:
        """What is wrong with a cell."""
        cell = shown(self.cells.get(name, ""))
        return UserError(f"{cell} {problem}", where=self.where, field=name, hint=hint)


def _job(row: _Row, table: ThroughputTable, job_id: str) -> JobSpec:
    kind, scale, steps = row.cells["job_type"], row.whole("scale_factor"), row.whole("total_steps")
    weight = row.number("priority_weight", default="1")
    if weight <= 0:
        raise row.bad("priority_weight", "is no weight", "a number above zero")
    submit_s, slo = row.number("arrival_time"), row.number("SLO", default="-1")
    duration_s = _duration_s(row, table, (kind, scale), steps)
    sized = re.search(r"\(batch size (\d+)\)", kind)
    return JobSpec(
        id=job_id,
        submit_s=submit_s,
        roles=workers(scale),
        profile=kind,
        steps=steps,
        weight=weight,
        batch_size=int(sized[1]) if sized else None,
        duration_s=duration_s,
        deadline_s=submit_s + slo * duration_s if slo > 0 and duration_s is not None else None,
        labels=(("mode", row.cells["mode"]),) if "mode" in row.cells else (),
    )


def _confined(job: JobSpec, table: ThroughputTable, gpu_models: Sequence[str]) -> JobSpec:
    kind, scale = job.profile, job.gpus
    good = tuple(name for name in gpu_models if table.rate(table.type_of(name), kind, scale) > 0)
    return replace(job, gpu_models=good) if good and len(good) < len(gpu_models) else job


def _duration_s(row: _Row, table: ThroughputTable, key: Key, steps: int) -> float | None:
    """As the trace says, else the steps at the reference type's rate, or at the fastest one's."""
    if "duration" in row.cells:
        return row.number("duration", least=0.0)
    fastest = max(table.rate(name, *key) for name in table.rates)
    rate = table.rate(REFERENCE, *key) if REFERENCE in table.rates else 0.0
    rate = rate or fastest
    return steps / rate if rate > 0 else None


# Throughputs ------------------------------------------------------------------------------------


def read_throughputs(path: Path) -> ThroughputTable:
    """The throughputs of a file, plain or gzip.

    Raises:
        UserError: no JSON, or not of this form; names worker type and job type.
    """
    with opened(path) as stream:
        text = stream.read(_MAX_BYTES)
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise UserError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(whole, dict) or not whole:
        raise UserError("no worker type in it", where=str(path), hint='{"v100": {...}, ...}')
    rates = {name: _rates(name, jobs, path) for name, jobs in whole.items()}
    together = {name: found for name, found in rates.items() if not name.endswith(SPREAD)}
    apart = {name.removesuffix(SPREAD): rates[name] for name in rates if name.endswith(SPREAD)}
    if not together:
        raise UserError(f"only worker types that end in {SPREAD}", where=str(path))
    return ThroughputTable(together, apart)


def _rates(worker_type: str, jobs: Any, path: Path) -> dict[Key, float]:
    where = f"{path}: {worker_type}"
    if not isinstance(jobs, dict) or not jobs:
        raise UserError("no job type in it", where=where)
    return {_key(name, where): _alone(name, found, where) for name, found in jobs.items()}


def _key(name: str, where: str) -> Key:
    match = re.fullmatch(r"\('(.+)', (\d{1,6})\)", name)
    if match is None or not int(match[2]):
        hint = "('ResNet-50 (batch size 64)', 1)"
        raise UserError(f"{shown(name)} is no job type with its scale", where=where, hint=hint)
    return match[1], int(match[2])


def _alone(name: str, found: Any, where: str) -> float:
    rate: Any = found.get(_ALONE) if isinstance(found, dict) else None
    numeric = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not numeric or not math.isfinite(rate) or rate < 0:
        problem = f"throughput {shown(repr(rate))} of {shown(name)} is no number of zero or more"
        raise UserError(problem, where=where, field=_ALONE, hint="steps per second")
    return float(rate)
