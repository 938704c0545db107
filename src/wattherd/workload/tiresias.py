"""Traces of Tiresias' simulator (NSDI'19): jobs of known duration, times in seconds."""

from __future__ import annotations

from pathlib import Path

from wattherd.model.job import JobSpec, workers
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.table import Layout

LAYOUT = Layout(
    kind="Tiresias trace",
    required=("submit_time", "job_id", "num_gpu", "duration"),
    optional=("model_name", "iterations"),
)


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a trace, in order of time.

    Raises:
        UserError: with file, line and column.
    """
    return read_table(path, LAYOUT, _job, in_order=True)


def _job(row: TableRow) -> JobSpec:
    steps = row.text("iterations")
    return JobSpec(
        id=row.place.name("job_id", row.text("job_id")),
        submit_s=row.seconds("submit_time"),
        roles=workers(row.whole("num_gpu", least=1)),
        duration_s=row.seconds("duration"),
        steps=row.whole("iterations", least=1, most=1 << 53) if steps else None,
        profile=row.text("model_name"),
    )
