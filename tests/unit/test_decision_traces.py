"""Spans of decisions, also where runs answer late, never, or to an order of before."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk", reason="no OpenTelemetry here")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wattherd.model.allocation import Allocation
from wattherd.model.command import Command, SetCap, StartJob, StopJob
from wattherd.model.event import (
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStarted,
    JobStopped,
    JobSubmitted,
)
from wattherd.model.job import Request
from wattherd.model.reason import StopReason
from wattherd.server.site.open_telemetry import DecisionTraces
from wattherd.store.entry import JournalEntry
from wattherd.testing.timed_world import timed

PLACE = (
    Allocation(
        request=Request(cpu_milli=0, memory_mib=0, gpu_count=2, gpu_milli=1000),
        node=1,
        gpus=(0, 1),
        role=0,
        tasks=2,
    ),
)
START = StartJob(job_id="j1", attempt=1, allocations=PLACE, cap_w=60.0)
STOP = StopJob(job_id="j1", attempt=1, reason=StopReason.PREEMPTED_FOR_PRIORITY, grace_s=5.0)


class Told:
    """What was exported of entries that are told one by one."""

    def __init__(self) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces, self._seq = DecisionTraces(provider, 1000.0, ["n0", "n1"]), 0

    def tell(self, event: Event, *commands: Command, by: str = "") -> None:
        self._seq += 1
        self.traces.told([(JournalEntry(seq=self._seq, event=event, by=by), commands)])

    def ended(self) -> list[tuple[str, str]]:
        """Names of spans in the order of their ends, and why they failed."""
        spans = self._exporter.get_finished_spans()
        return [(span.name, span.status.description or "") for span in spans]

    def attributes(self, name: str) -> dict[str, object]:
        spans = self._exporter.get_finished_spans()
        return next(dict(span.attributes or {}) for span in spans if span.name == name)


def test_an_order_ends_as_its_run_answers_it() -> None:
    told = Told()
    told.tell(JobSubmitted(at_s=1.0, job=timed("j1", queue="day")), START, by="ann")
    assert told.ended() == [("JobSubmitted", "")]
    told.tell(JobProgressed(at_s=2.0, job_id="j1", attempt=1, progress=1.0))
    told.tell(JobStarted(at_s=3.0, job_id="j1", attempt=1))
    assert told.ended() == [("JobSubmitted", ""), ("StartJob", "")]
    submitted = {"wattherd.entry": 1, "wattherd.job.id": "j1", "wattherd.queue": "day",
                 "wattherd.by": "ann"}  # fmt: skip
    assert told.attributes("JobSubmitted") == submitted
    assert told.attributes("StartJob") == {
        "wattherd.job.id": "j1", "wattherd.attempt": 1, "wattherd.cap_w": 60.0,
        "wattherd.gpus": 2, "wattherd.nodes": ("n1",),
    }  # fmt: skip


def test_a_run_that_ends_before_it_started_fails_its_order() -> None:
    told = Told()
    told.tell(JobSubmitted(at_s=1.0, job=timed("j1")), START)
    told.tell(JobExited(at_s=2.0, job_id="j1", attempt=1, exit_code=1))
    assert told.ended()[1:] == [("StartJob", "it ended before it had started")]


def test_an_answer_to_an_order_of_before_ends_none_of_now() -> None:
    told = Told()
    again = StartJob(job_id="j1", attempt=2, allocations=PLACE)
    told.tell(JobSubmitted(at_s=1.0, job=timed("j1")), again)
    told.tell(JobStarted(at_s=2.0, job_id="j1", attempt=1))
    assert told.ended() == [("JobSubmitted", "")]
    told.tell(JobStarted(at_s=3.0, job_id="j1", attempt=2))
    assert told.ended()[1:] == [("StartJob", "")]


def test_what_is_stopped_owes_no_answer_and_caps_are_overtaken() -> None:
    told = Told()
    cap = SetCap(job_id="j1", attempt=1, cap_w=50.0)
    told.tell(JobSubmitted(at_s=1.0, job=timed("j1")), START)
    told.tell(JobStarted(at_s=2.0, job_id="j1", attempt=1), cap)
    told.tell(JobProgressed(at_s=3.0, job_id="j1", attempt=1, progress=1.0), cap)
    assert ("SetCap", "overtaken by another order") in told.ended()
    told.tell(CapApplied(at_s=4.0, job_id="j1", attempt=1, cap_w=50.0), cap, STOP)
    told.tell(JobStopped(at_s=5.0, job_id="j1", attempt=1))
    assert sorted(told.ended()[-3:]) == [("CapApplied", ""), ("SetCap", ""), ("StopJob", "")]
    assert told.attributes("StopJob")["wattherd.reason"] == "PreemptedForPriority"
    told.traces.end()
    assert not [why for _, why in told.ended() if "service ended" in why]


def test_what_was_not_answered_says_so_at_the_end() -> None:
    told = Told()
    told.tell(JobSubmitted(at_s=1.0, job=timed("j1")), START)
    told.traces.end()
    assert told.ended()[1:] == [("StartJob", "not answered when the service ended")]
