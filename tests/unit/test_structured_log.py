"""Lines of the log: what was decided, by job and decision, and nothing that is secret."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import BudgetChanged, JobProgressed, JobSubmitted, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import StopReason
from wattherd.server.structured_log import Form, log_turns, logging_to
from wattherd.store.entry import JournalEntry


def written(form: Form, *turns: tuple[JournalEntry, list[Any]]) -> list[str]:
    stream = io.StringIO()
    with logging_to(stream, form):
        log_turns(turns)
    return stream.getvalue().splitlines()


def submitted() -> tuple[JournalEntry, list[Any]]:
    roles = (TaskRole(count=1, command=("echo", "private")),)
    spec = JobSpec(id="j-1", submit_s=0.0, roles=roles, user="ann")
    entry = JournalEntry(
        seq=7,
        event=JobSubmitted(at_s=1.0, job=spec),
        by="ann",
        paper={"run": "private", "envs": {"T": "private"}},
    )
    return entry, [StartJob(job_id="j-1", attempt=1, allocations=(), cap_w=60.0)]


def test_an_event_and_its_orders_share_a_decision() -> None:
    event, order = (json.loads(line) for line in written(Form.JSON, submitted()))
    assert event.pop("at").startswith("20")
    assert event == {"level": "info", "message": "JobSubmitted", "decision": 7, "by": "ann",
                     "event": "JobSubmitted", "job": "j-1", "user": "ann"}  # fmt: skip
    del order["at"]
    assert order == {"level": "info", "message": "StartJob", "decision": 7, "order": "StartJob",
                     "job": "j-1", "attempt": 1, "cap_w": 60.0}  # fmt: skip


def test_what_jobs_are_made_of_is_not_logged() -> None:
    for form in (Form.JSON, Form.TEXT):
        assert "private" not in "\n".join(written(form, submitted()))


def test_reports_and_wake_ups_are_logged_only_if_orders_follow() -> None:
    progressed = JournalEntry(
        seq=1, event=JobProgressed(at_s=0.0, job_id="j-1", attempt=1, progress=1.0)
    )
    woke = JournalEntry(seq=2, event=Woke(at_s=0.0, key="plan"))
    assert written(Form.JSON, (progressed, []), (woke, [])) == []
    stop = StopJob(job_id="j-1", attempt=1, reason=StopReason.BUDGET_CUT, grace_s=60.0)
    lines = written(Form.TEXT, (woke, [stop, SetCap(job_id="j-2", attempt=1, cap_w=None)]))
    assert len(lines) == 3
    assert "info StopJob decision=2 order=StopJob job=j-1 attempt=1" in lines[1]
    assert "reason=BudgetCut" in lines[1]


def test_warnings_of_the_program_are_in_the_same_log() -> None:
    stream = io.StringIO()
    with logging_to(stream, Form.JSON):
        log = logging.getLogger("wattherd.server.site.stragglers")
        log.warning("job %s hangs", "j-1", extra={"status": 7})
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "job j-1 hangs"
    assert json.loads(line)["level"] == "warning"
    assert json.loads(line)["status"] == 7


def test_without_a_log_nothing_is_written() -> None:
    changed = JournalEntry(seq=1, event=BudgetChanged(at_s=0.0, budget_w=5.0), by="ann")
    assert written(Form.NONE, (changed, [])) == []
    assert "budget_w=5.0" in written(Form.TEXT, (changed, []))[0]
