"""From a store to the report of its past; a service may be at work on it meanwhile."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.model.event import JobExited, JobStarted, JobStopped
from wattherd.report.plugin_reports import MakeReport
from wattherd.report.report_files import asked_sections, page_path, write_content
from wattherd.report.site_past import SiteJob, SitePast, StateSample
from wattherd.report.state_page import state_content
from wattherd.server.recovery.projector import OVER
from wattherd.store.database import in_folder
from wattherd.store.entry import JournalEntry
from wattherd.store.projection import JobFilter
from wattherd.store.store import ClusterStore

MOST_JOBS = 10_000
Runs = dict[str, list[tuple[float, float]]]


def write_state_report(
    state: Path,
    out: Path | None = None,
    *,
    formats: Sequence[str] = ("html",),
    sections: Sequence[str | MakeReport] = (),
) -> list[Path]:
    """Write the report of a state folder's store and return the files written.

    Args:
        state: what `wattherd serve --state` names; the service may be at work on it.
        out: the page to write, `STATE/report.html` by default.
        formats: as `report.page.write_report` has them.
        sections: as there.

    Raises:
        UserError: there is no store, a format or section is unknown, a package's format failed,
            or a file cannot be written.
    """
    added = asked_sections(formats, sections)
    url = in_folder(state)
    if not Path(url.removeprefix("sqlite:///")).is_file():
        raise UserError("holds no store", where=str(state), hint="name what `serve --state` names")
    content = state_content(site_past(url, str(state)))
    return write_content(content, page_path(state, out), formats=formats, sections=added)


def site_past(url: str, source: str) -> SitePast:
    """What a store tells of a site.

    Raises:
        UserError: it cannot be opened.
        StoreFailure: it cannot be read.
    """
    store = ClusterStore.open(url, sole=False)
    try:
        rows = store.projection.samples(0.0)
        runs = runs_of(store.journal.entries(), store.journal.last_s())
        jobs = store.projection.jobs(JobFilter(limit=MOST_JOBS))
        over_s, over_j = json.loads(store.journal.known_fact(OVER) or "[0, 0]")
        epoch = float(store.journal.known_fact("epoch") or 0.0)
    finally:
        store.close()
    return SitePast(
        jobs=[_job(row, runs) for row in reversed(jobs)],
        samples=[_sample(row) for row in rows],
        began=datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        estimated=any(row["stated"] == "model" for row in rows),
        over_s=over_s,
        over_j=over_j,
        source=source,
    )


def runs_of(entries: Iterable[JournalEntry], end_s: float) -> Runs:
    """Begin and end of every run by job; those that go on end at `end_s`."""
    found: Runs = {}
    begun: dict[tuple[str, int], float] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, JobStarted):
            begun[event.job_id, event.attempt] = event.at_s
        elif isinstance(event, JobStopped | JobExited):
            start_s = begun.pop((event.job_id, event.attempt), None)
            if start_s is not None:
                found.setdefault(event.job_id, []).append((start_s, event.at_s))
    for (job_id, _), start_s in begun.items():
        found.setdefault(job_id, []).append((start_s, end_s))
    return found


def _job(row: Mapping[str, Any], runs: Runs) -> SiteJob:
    same = ("id", "name", "state", "submit_s", "finish_s", "progress", "loss", "energy_j")
    return SiteJob(
        user=row["owner"],
        runs=tuple(runs.get(row["id"], ())),
        **{name: row[name] for name in same},
    )


def _sample(row: Mapping[str, Any]) -> StateSample:
    budget_w = math.inf if row["budget_w"] is None else row["budget_w"]
    return StateSample(
        at_s=row["at_s"],
        draw_w=row["draw_w"],
        budget_w=budget_w,
        by_job=json.loads(row["by_job"]),
    )
