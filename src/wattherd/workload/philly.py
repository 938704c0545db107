"""Microsoft's Philly trace (ATC'19), flattened to one row a job as Sia's artifact (SOSP'23) has it.

Times of day are local; the run begins with the first submission. The column `cluster` is the
virtual cluster, which becomes the queue. A job's id is the number of its row, from 0.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from wattherd.model.job import JobSpec, workers
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.source import shown
from wattherd.workload.table import Layout

LAYOUT = Layout(
    kind="Philly trace", required=("timestamp", "duration", "num_gpus"), optional=("cluster",)
)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the trace's clock carries no zone


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of the trace by time of submission, the first one at 0 s.

    Raises:
        UserError: with file, line and column.
    """
    jobs = read_table(path, LAYOUT, _job, in_order=False)
    first_s = jobs[0].submit_s
    return tuple(replace(job, submit_s=job.submit_s - first_s) for job in jobs)


def _job(row: TableRow) -> JobSpec:
    return JobSpec(
        id=str(row.number),
        submit_s=_since_epoch_s(row),
        roles=workers(row.whole("num_gpus", least=1)),
        duration_s=row.seconds("duration"),
        queue=row.text("cluster") or "default",
    )


def _since_epoch_s(row: TableRow) -> float:
    text = row.text("timestamp")
    try:
        return (datetime.fromisoformat(text).replace(tzinfo=None) - _EPOCH).total_seconds()
    except ValueError:
        hint = "2017-10-09 07:01:55"
        raise row.place.error("timestamp", f"{shown(text)} is no time of day", hint) from None
