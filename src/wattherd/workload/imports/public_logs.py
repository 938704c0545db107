"""Public logs as published: Microsoft's Philly (JSON), SenseTime's Helios, Shanghai AI Lab's ACME.

Philly: msr-fiddle/philly-traces, `cluster_job_log`. Helios: S-Lab-System-Group/HeliosData,
`cluster_log.csv`. ACME: InternLM/AcmeTrace, `trace_seren.csv`, `trace_kalos.csv`. Columns are
those of their READMEs.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from io import StringIO
from typing import Any

from wattherd.errors import UserError
from wattherd.workload.imports.site import ImportLog, LoggedJob
from wattherd.workload.imports.slurm import time_of

_NEEDED = frozenset({"job_id", "gpu_num", "submit_time"})


def read_philly(text: str, log: ImportLog, default_s: float) -> list[LoggedJob]:
    """The jobs of `cluster_job_log`; all attempts of a job together are its run time.

    Raises:
        UserError: no JSON list.
    """
    del default_s
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"no JSON: {error}", where=log.where) from None
    if not isinstance(found, list):
        raise UserError("is no list of jobs", where=log.where, hint="cluster_job_log")
    jobs = []
    for number, one in enumerate(found):
        log.records += 1
        try:
            job = _philly(one, log)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            log.refuse(f"[{number}]", f"cannot be read: {error!r}")
            continue
        if job is not None:
            jobs.append(job)
    return jobs


def _philly(one: Mapping[str, Any], log: ImportLog) -> LoggedJob | None:
    submit_s = time_of(one["submitted_time"] or "")
    if submit_s is None:
        raise ValueError("no submitted_time")
    spans = []
    for attempt in one["attempts"]:
        start_s, end_s = (time_of(attempt.get(key) or "") for key in ("start_time", "end_time"))
        if start_s is not None and end_s is not None and attempt.get("detail"):
            spans.append((start_s, end_s, attempt["detail"]))
    if not spans:
        log.leave_out("no attempt with a beginning, an end and machines", str(one["jobid"]))
        return None
    if len(spans) > 1:
        log.assume("attempts of a job are one run, as long as all of them", str(one["jobid"]))
    start_s, end_s, detail = spans[-1]
    gpus = sum(len(machine["gpus"]) for machine in detail)
    return LoggedJob(
        id=str(one["jobid"]),
        submit_s=submit_s,
        duration_s=sum(end - start for start, end, _ in spans),
        start_s=start_s,
        end_s=end_s,
        gpus=gpus,
        nodes=len(detail),
        node_names=tuple(str(machine["ip"]) for machine in detail),
        queue=str(one.get("vc") or ""),
        user=str(one.get("user") or ""),
        labels=(("state", str(one.get("status") or "")),),
    )


def read_columns(text: str, log: ImportLog, default_s: float) -> list[LoggedJob]:
    """The jobs of Helios and ACME, whose columns have the same names.

    Raises:
        UserError: a header without the columns that every job needs.
    """
    del default_s
    reader = csv.reader(StringIO(text))
    head = [name.strip() for name in next(reader, [])]
    if missing := sorted(_NEEDED - set(head)):
        problem = f"no column {', '.join(missing)}"
        raise UserError(problem, where=f"{log.where}:1", hint="job_id, gpu_num, submit_time, …")
    jobs = []
    for cells in reader:
        if not cells:
            continue
        log.records += 1
        if len(cells) != len(head):
            problem = f"{len(cells)} fields, where the header has {len(head)}"
            log.refuse(reader.line_num, problem)
            continue
        try:
            job = _row(dict(zip(head, cells, strict=True)), log)
        except ValueError as error:
            log.refuse(reader.line_num, str(error))
            continue
        if job is not None:
            jobs.append(job)
    return jobs


def _row(row: Mapping[str, str], log: ImportLog) -> LoggedJob | None:
    submit_s = time_of(row["submit_time"])
    if submit_s is None:
        raise ValueError("no submit_time")
    start_s = time_of(row.get("start_time", ""))
    end_s = time_of(row.get("end_time", ""))
    if row.get("duration"):
        duration_s = float(row["duration"])
    elif start_s is not None and end_s is not None:
        duration_s = end_s - start_s
    else:
        log.leave_out("no duration and no times", row["job_id"])
        return None
    if duration_s < 0:
        raise ValueError("ends before it begins")
    return LoggedJob(
        id=row["job_id"],
        submit_s=submit_s,
        duration_s=duration_s,
        start_s=start_s,
        end_s=end_s,
        gpus=int(float(row["gpu_num"] or 0)),
        nodes=int(float(row.get("node_num") or 0)),
        cpus=float(row.get("cpu_num") or 0),
        queue=row.get("vc") or row.get("queue") or "",
        user=row.get("user", ""),
        labels=(("state", row.get("state", "")), ("name", row.get("type", ""))),
    )
