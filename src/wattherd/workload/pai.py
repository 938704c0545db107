"""Arrivals derived from Alibaba's PAI (GAIA, ASPLOS'24): when, how long, and how many CPUs.

The source gives CPUs only: a job becomes so many tasks of one vCPU each and no GPU. Its id is the
number of its row, from 0. Times are in seconds.
"""

from __future__ import annotations

from pathlib import Path

from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.job_table import TableRow, read_table
from wattherd.workload.table import Layout

LAYOUT = Layout(kind="PAI trace", required=("arrival_time", "length", "cpus"))


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a trace, in order of time.

    Raises:
        UserError: with file, line and column.
    """
    return read_table(path, LAYOUT, _job, in_order=True)


def _job(row: TableRow) -> JobSpec:
    return JobSpec(
        id=str(row.number),
        submit_s=row.seconds("arrival_time"),
        roles=(TaskRole(count=row.whole("cpus", least=1), cpu_milli=1000, gpu_count=0),),
        duration_s=row.seconds("length"),
    )
