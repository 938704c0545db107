"""ElasticFlow's traces (ASPLOS'23): jobs with deadlines, times in seconds.

`ddl` is the time of the run at which a job must be through; a job without one is best effort.
`duration` is how long it takes on `num_gpu` GPUs.
"""

from __future__ import annotations

from pathlib import Path

from wattherd.model.job import JobSpec, workers
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.table import Layout

LAYOUT = Layout(
    kind="ElasticFlow trace",
    required=("submit_time", "job_id", "num_gpu", "duration", "ddl"),
    optional=("model_name", "batch_size", "iteration", "best_effort"),
)


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a trace, by time of submission.

    Raises:
        UserError: with file, line and column.
    """
    return read_table(path, LAYOUT, _job, in_order=False)


def _job(row: TableRow) -> JobSpec:
    free = not row.text("ddl") or row.text("best_effort") == "1"
    steps, batch = row.text("iteration"), row.text("batch_size")
    return JobSpec(
        id=row.place.name("job_id", row.text("job_id")),
        submit_s=row.seconds("submit_time"),
        roles=workers(row.whole("num_gpu", least=1)),
        duration_s=row.seconds("duration"),
        deadline_s=None if free else row.seconds("ddl"),
        steps=row.whole("iteration", least=1, most=1 << 53) if steps else None,
        profile=row.text("model_name"),
        batch_size=row.whole("batch_size", least=1) if batch else None,
    )
