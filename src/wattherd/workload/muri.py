"""Muri's traces (SIGCOMM'22): Philly's arrivals with models and measured times of iterations.

Times are in milliseconds. A job's work is its iterations times the time of one; the column
`duration` is what it was derived from, up to rounding. `priority` 1 marks opportunistic jobs,
which stand below the others.
"""

from __future__ import annotations

from pathlib import Path

from wattherd.model.job import JobSpec, workers
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.table import Layout

LAYOUT = Layout(
    kind="Muri trace",
    required=(
        "submit_time",
        "job_id",
        "num_gpu",
        "iterations",
        "model_name",
        "iteration_time",
    ),
    optional=("batch_size", "priority"),
)


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a trace, in order of time.

    Raises:
        UserError: with file, line and column.
    """
    return read_table(path, LAYOUT, _job, in_order=True)


def _job(row: TableRow) -> JobSpec:
    iterations = row.whole("iterations", least=1, most=1 << 53)
    return JobSpec(
        id=row.place.name("job_id", row.text("job_id")),
        submit_s=row.ms("submit_time"),
        roles=workers(row.whole("num_gpu", least=1)),
        duration_s=iterations * row.ms("iteration_time"),
        steps=iterations,
        profile=row.text("model_name"),
        batch_size=row.whole("batch_size", least=1) if row.text("batch_size") else None,
        priority=-row.whole("priority") if row.text("priority") else 0,
    )
