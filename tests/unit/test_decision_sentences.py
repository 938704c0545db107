"""Decisions and changes of budgets in sentences."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from wattherd.engine.jobs.lifecycle import TABLE, State, Trigger, step
from wattherd.engine.jobs.record import JobRecord, StoryLine
from wattherd.model import command, event
from wattherd.model.allocation import Allocation
from wattherd.model.command import (
    FinishJob,
    SetCap,
    StartJob,
    StopJob,
    WakeAt,
)
from wattherd.model.event import (
    BudgetAnnounced,
    BudgetChanged,
    Event,
    JobCancelled,
    JobExited,
    JobProgressed,
    Woke,
)
from wattherd.model.job import JobSpec, Request
from wattherd.model.reason import StopReason
from wattherd.server.documents import sentences
from wattherd.server.documents.sentences import ToldDecision, chapter_of, story_of, told
from wattherd.server.journal.timeline import SYSTEM, SiteTimeline
from wattherd.server.web.now import signal_name
from wattherd.server.web.timeline import _tip
from wattherd.store.entry import JournalEntry


def _told(happened: Event, *orders: command.Command, by: str = "ann") -> ToldDecision:
    chronicle = SiteTimeline()
    chronicle.note(JournalEntry(seq=1, event=happened, by=by), orders)
    return told(chronicle.decisions[-1], ["north", "south"])


def _start(job_id: str = "j-2", cap_w: float | None = 250.0) -> StartJob:
    where = (Allocation(request=Request(cpu_milli=0, memory_mib=0), node=1, gpus=(0, 3)),)
    return StartJob(job_id=job_id, attempt=1, allocations=where, cap_w=cap_w)


def test_a_cut_says_who_what_why_and_what_next() -> None:
    stop = StopJob(job_id="j-4", attempt=2, reason=StopReason.BUDGET_CUT, grace_s=30)
    found = _told(BudgetChanged(at_s=9, budget_w=8000), stop, WakeAt(at_s=10, key="plan"))
    assert found.happened == "ann set the budget of the site to 8,000 W."
    assert found.orders == (
        "j-4 is to save its state and stop within 30.0 s: the budget does not carry it any more.",
    )
    assert found.next == "Its devices and watts are given to others when it has stopped."


def test_a_start_says_where_and_at_how_many_watts() -> None:
    found = _told(JobExited(at_s=1, job_id="j-1", attempt=3, exit_code=0), _start(), by=SYSTEM)
    assert found.happened == "Run 3 of j-1 ended and succeeded."
    assert found.orders == ("Run 1 of j-2 starts on south [0,3], capped at 250 W per GPU.",)


def test_many_caps_are_one_sentence_and_few_are_told_one_by_one() -> None:
    few = [SetCap(job_id=f"j-{n}", attempt=1, cap_w=100.0 + n) for n in range(2)]
    many = [SetCap(job_id=f"j-{n}", attempt=1, cap_w=100.0 + n) for n in range(50)]
    event = BudgetChanged(at_s=1, budget_w=None)
    assert _told(event, *few).orders[1] == "j-1 may draw 101 W per GPU at most."
    assert _told(event, *many).orders == ("50 jobs get other caps, 100 W to 149 W per GPU.",)
    assert _told(event, *many).happened == "ann lifted the budget of the site."


def _story(job_id: str, happened: Event, *orders: command.Command, by: str = "ann") -> list[Any]:
    chronicle = SiteTimeline()
    chronicle.note(JournalEntry(seq=1, event=happened, by=by), orders)
    return list(story_of(chronicle.decisions[-1], ["north", "south"], job_id))


def test_the_story_of_a_job_is_sentences_of_it_alone() -> None:
    ended = JobExited(at_s=1, job_id="j-1", attempt=3, exit_code=1, cause="cannot run 'secret.sh'")
    orders = (FinishJob(job_id="j-1", state="Failed"), _start("j-2"))
    assert _story("j-1", ended, *orders, by=SYSTEM) == [
        ("j-1 is over: Failed.",
         "Run 3 of j-1 ended with exit code 1 (cannot run 'secret.sh').")
    ]  # fmt: skip
    # Whose job has made room, and how that one failed, is none of the user's business.
    assert _story("j-2", ended, *orders, by=SYSTEM) == [
        ("Run 1 of j-2 starts on south [0,3], capped at 250 W per GPU.", "Something else changed.")
    ]
    assert _story("j-3", ended, *orders, by=SYSTEM) == []
    cancelled = JobCancelled(at_s=1, job_id="j-1")
    assert _story("j-1", cancelled) == [("ann cancelled j-1.", "")]
    assert _story("j-2", cancelled, _start("j-2"))[0][1] == "Something else changed."


def test_the_story_of_a_job_says_which_budget_it_stopped_for() -> None:
    stop = StopJob(job_id="j-4", attempt=2, reason=StopReason.BUDGET_CUT, grace_s=30)
    ((what, cause),) = _story("j-4", BudgetChanged(at_s=9, budget_w=8000), stop)
    assert what.startswith("j-4 is to save its state and stop within 30.0 s")
    assert cause == "ann set the budget of the site to 8,000 W."
    ((_, cause),) = _story("j-2", Woke(at_s=1, key="plan"), _start("j-2"), by=SYSTEM)
    assert cause == "A new plan was due."


def test_the_words_of_a_sentence_are_found() -> None:
    found = _told(BudgetChanged(at_s=9, budget_w=8000), _start())
    assert found.mentions("budget STARTS j-2")
    assert not found.mentions("budget stops")


def test_what_leads_to_nothing_says_so() -> None:
    found = _told(JobCancelled(at_s=1, job_id="j-9"))
    assert (found.happened, found.orders, found.next) == (
        "ann cancelled j-9.", (), "Nothing had to be ordered.",
    )  # fmt: skip


def test_a_report_is_told_with_its_numbers() -> None:
    report = JobProgressed(
        at_s=1, job_id="j-1", attempt=1, progress=120, total=2000, rate_per_s=9.5
    )
    over = FinishJob(job_id="j-1", state="Succeeded")
    assert _told(report, over).happened == "j-1 reported step 120 of 2,000 at 9.5 a second."


def test_every_event_and_order_has_a_sentence() -> None:
    kinds = [one for one in vars(event).values() if inspect.isclass(one)]
    events = {
        one.__name__ for one in kinds
        if issubclass(one, Event) and one.__name__ not in ("Event", "RunEvent", "Woke")
    }  # fmt: skip
    assert events <= sentences._EVENTS.keys()
    orders = {one.__name__ for one in command.Command.__args__} - {"WakeAt"}
    assert orders == sentences._ORDERS.keys()
    assert set(StopReason) == set(sentences.REASONS)


def _changes(*entries: JournalEntry) -> list[tuple[float | None, float | None, str, float | None]]:
    chronicle = SiteTimeline()
    for entry in entries:
        chronicle.note(entry, ())
    return [(c.before_w, c.budget_w, c.by, c.announced_s) for c in chronicle.budgets]


def test_budget_changes_are_kept_with_who_made_them() -> None:
    assert _changes(
        JournalEntry(seq=1, event=BudgetChanged(at_s=0, budget_w=300), by="configuration"),
        JournalEntry(seq=2, event=BudgetChanged(at_s=5, budget_w=250), by="ann"),
        JournalEntry(seq=3, event=BudgetChanged(at_s=6, budget_w=250), by="ann"),
    ) == [(None, 300, "configuration", None), (300, 250, "ann", None)]


def test_an_announced_change_is_of_who_announced_it() -> None:
    assert _changes(
        JournalEntry(seq=1, event=BudgetAnnounced(at_s=2, begins_s=60, budget_w=80), by="ben"),
        JournalEntry(seq=2, event=BudgetChanged(at_s=60.2, budget_w=80), by=SYSTEM),
    ) == [(None, 80, "ben", 2)]


@pytest.mark.parametrize(
    ("cause", "name"),
    [
        ("schedule:/var/lib/secret/schedule-1.csv?start=2026", "schedule schedule-1.csv"),
        ("https://user:pass@grid.example/limits?key=hidden", "https grid.example"),
        ("", ""),
    ],
)
def test_names_of_signals_hold_neither_folders_nor_secrets(cause: str, name: str) -> None:
    assert signal_name(cause) == name


# Stories of live jobs -----------------------------------------------------------------------------

INTERNAL = re.compile(r"->|[a-z][A-Z]|\b(?:Queued|Starting|Stopping|requeue|Woke)\b|\d\.\d* s\b")
"""Steps, names of classes and states, and the core's own clock."""


def test_a_live_job_tells_its_steps_in_sentences() -> None:
    record = JobRecord(JobSpec(id="j-1", submit_s=0.0), 1)
    record.story.append(StoryLine(0.0, "submitted", "by ann"))
    for trigger, cause in (
        (Trigger.START, "attempt 1"), (Trigger.STARTED, ""), (Trigger.STOP, "BudgetCut"),
        (Trigger.REQUEUE, ""), (Trigger.START, "attempt 2"), (Trigger.REQUEUE, "node north lost"),
        (Trigger.HOLD, "by bob"), (Trigger.RELEASE, "by bob"), (Trigger.START, "attempt 3"),
        (Trigger.RETRY, "exit code 7"), (Trigger.BACKOFF_OVER, ""),
    ):  # fmt: skip
        record.apply(trigger, 1.0, cause)
    record.story.append(StoryLine(2.0, "edited: priority 0 -> 5", "by ann"))
    assert [chapter_of(line) for line in record.story] == [
        ("It was submitted.", "by ann"),
        ("Run 1 of it was started.", ""),
        ("It began to work.", ""),
        ("It is to save its state and stop.", "the budget does not carry it any more"),
        ("It has stopped and waits for its next run.", ""),
        ("Run 2 of it was started.", ""),
        ("Its run ended; it waits for the next one.", "node north lost"),
        ("It is paused.", "by bob"),
        ("It was resumed.", "by bob"),
        ("Run 3 of it was started.", ""),
        ("Its run failed; it is tried again after a pause.", "exit code 7"),
        ("The pause after a failed run is over.", ""),
        ("It was edited: priority 0 -> 5.", "by ann"),
    ]


@pytest.mark.parametrize(("before", "trigger"), TABLE)
def test_no_step_of_a_job_is_told_by_the_names_of_the_code(before: State, trigger: Trigger) -> None:
    _, what, _, _ = step(before, trigger)
    for cause in ("", *StopReason):
        told = chapter_of(StoryLine(31.11, what, cause))
        assert told[0].endswith(".")
        assert not any(map(INTERNAL.search, told)), told


def test_a_marker_of_the_timeline_is_told_in_sentences() -> None:
    stops = [
        StopJob(job_id=f"j-{n}", attempt=1, reason=StopReason.BUDGET_CUT, grace_s=30)
        for n in range(3)
    ]
    assert _tip(_told(BudgetChanged(at_s=9, budget_w=8000), *stops)) == (
        "ann set the budget of the site to 8,000 W. j-0 is to save its state and stop within"
        " 30.0 s: the budget does not carry it any more. 2 more orders."
    )
