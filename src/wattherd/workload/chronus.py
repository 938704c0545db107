"""Chronus' trace (SoCC'21): Philly's jobs with deadlines, times in seconds.

`expect_time_list` says within how long of its submission a job should be through (several times,
between dashes, are worth less and less; the first one counts here). Best-effort jobs have no
deadline. A virtual cluster stands in `user`; it is queue and user here. A job of no GPU is a
single task that needs none.
"""

from __future__ import annotations

from pathlib import Path

from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.table import Layout

LAYOUT = Layout(
    kind="Chronus trace",
    required=("submit_time", "job_id", "num_gpu", "duration", "expect_time_list"),
    optional=("user", "model_name", "iterations", "best_effort"),
)


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a trace, by time of submission.

    Raises:
        UserError: with file, line and column.
    """
    return read_table(path, LAYOUT, _job, in_order=False)


def _job(row: TableRow) -> JobSpec:
    gpus, submit_s = row.whole("num_gpu"), row.seconds("submit_time")
    steps, tenant = row.text("iterations"), row.text("user")
    return JobSpec(
        id=row.place.name("job_id", row.text("job_id")),
        submit_s=submit_s,
        roles=(TaskRole(count=gpus) if gpus else TaskRole(gpu_count=0),),
        duration_s=row.seconds("duration"),
        deadline_s=_deadline_s(row, submit_s),
        steps=row.whole("iterations", least=1, most=1 << 53) if steps else None,
        profile=row.text("model_name"),
        queue=tenant or "default",
        user=tenant,
    )


def _deadline_s(row: TableRow, submit_s: float) -> float | None:
    within = row.text("expect_time_list").partition("-")[0]
    if not within or row.text("best_effort") == "1":
        return None
    return submit_s + (row.place.seconds("expect_time_list", within) or 0.0)
