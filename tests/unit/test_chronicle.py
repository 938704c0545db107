"""What pages remember: runs on devices, decisions, waits."""

from __future__ import annotations

import pytest

from wattherd.model.allocation import Allocation
from wattherd.model.command import FinishJob, SetCap, StartJob, StopJob, WakeAt
from wattherd.model.event import (
    CapApplied,
    Event,
    JobExited,
    JobProgressed,
    JobStopped,
    JobSubmitted,
    NodeLost,
    Woke,
)
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.model.reason import StopReason
from wattherd.server.journal.timeline import SiteTimeline
from wattherd.store.entry import JournalEntry

ON = (Allocation(request=Request(cpu_milli=1000, memory_mib=1), node=0, gpus=(0, 1)),)


def submitted(job_id: str, at_s: float, command: str = "train") -> JobSubmitted:
    roles = (TaskRole(command=(command,)),)
    return JobSubmitted(at_s=at_s, job=JobSpec(id=job_id, submit_s=at_s, roles=roles))


def started(attempt: int, cap_w: float | None = 100.0) -> StartJob:
    return StartJob(job_id="j-1", attempt=attempt, allocations=ON, cap_w=cap_w)


class Told:
    """A chronicle that is told one thing after another."""

    def __init__(self) -> None:
        self.chronicle = SiteTimeline(nodes={"here": 0})
        self.seq = 0

    def __call__(self, event: Event, *commands: object, by: str = "system") -> None:
        self.seq += 1
        self.chronicle.note(JournalEntry(seq=self.seq, event=event, by=by), commands)  # type: ignore[arg-type]

    def spans(self) -> list[tuple[int, float, float | None]]:
        return [(one.attempt, one.start_s, one.stop_s) for one in self.chronicle.spans]


@pytest.fixture
def told() -> Told:
    told = Told()
    told(submitted("j-1", 0.0), by="ann")
    told(Woke(at_s=5.0, key="plan"), started(1))
    return told


@pytest.mark.parametrize(
    "end",
    [
        JobStopped(at_s=9.0, job_id="j-1", attempt=1),
        JobExited(at_s=9.0, job_id="j-1", attempt=1, exit_code=3),
        NodeLost(at_s=9.0, node="here"),
    ],
)
def test_a_run_is_from_its_start_to_its_end(told: Told, end: Event) -> None:
    assert told.spans() == [(1, 5.0, None)]
    told(end)
    told(Woke(at_s=12.0, key="plan"), started(2))
    assert told.spans() == [(1, 5.0, 9.0), (2, 12.0, None)]


def test_late_news_of_an_earlier_run_ends_nothing(told: Told) -> None:
    told(JobStopped(at_s=9.0, job_id="j-1", attempt=1))
    told(Woke(at_s=12.0, key="plan"), started(2))
    told(JobExited(at_s=13.0, job_id="j-1", attempt=1))
    assert told.spans()[-1] == (2, 12.0, None)


def test_caps_count_once_they_are_read_back(told: Told) -> None:
    told(Woke(at_s=6.0, key="plan"), SetCap(job_id="j-1", attempt=1, cap_w=60.0))
    assert told.chronicle.spans[0].caps == [(5.0, 100.0)]
    told(CapApplied(at_s=7.0, job_id="j-1", attempt=1, cap_w=60.0))
    assert told.chronicle.spans[0].caps == [(5.0, 100.0), (7.0, 60.0)]


def test_only_the_first_start_ends_the_wait(told: Told) -> None:
    told(JobStopped(at_s=9.0, job_id="j-1", attempt=1))
    told(Woke(at_s=12.0, key="plan"), started(2))
    assert [(one.queue, one.wait_s) for one in told.chronicle.waits] == [("default", 5.0)]


def test_decisions_are_orders_and_what_users_want(told: Told) -> None:
    told(JobProgressed(at_s=6.0, job_id="j-1", attempt=1, progress=1.0, rate_per_s=2.0))
    told(Woke(at_s=7.0, key="plan"), WakeAt(at_s=9.0, key="plan"))
    stop = StopJob(job_id="j-1", attempt=1, reason=StopReason.PREEMPTED_FOR_POWER, grace_s=1.0)
    told(Woke(at_s=8.0, key="plan"), stop)
    assert [one.seq for one in told.chronicle.decisions] == [1, 2, 5]
    last = told.chronicle.decisions[-1]
    assert last.orders == ("StopJob j-1: PreemptedForPower",)
    assert last.mentions("stopjob POWER")
    assert not last.mentions("stopjob priority")


def test_the_command_of_a_job_is_in_no_decision() -> None:
    told = Told()
    told(submitted("j-1", 0.0, command="curl -H private"), by="ann")
    assert "private" not in str(told.chronicle.decisions[0].detail)


def test_rates_are_forgotten_with_their_job(told: Told) -> None:
    told(JobProgressed(at_s=6.0, job_id="j-1", attempt=1, progress=1.0, rate_per_s=2.0))
    assert list(told.chronicle.rates["j-1"]) == [(6.0, 2.0)]
    told(JobExited(at_s=9.0, job_id="j-1", attempt=1), FinishJob(job_id="j-1", state="Succeeded"))
    assert told.chronicle.rates == {}
