"""Runs that lag behind their own pace, or hang, are found in time; others are left alone."""

from __future__ import annotations

from wattherd.model.command import Command, StartJob, StopJob
from wattherd.model.event import CapApplied, Event, JobExited, JobProgressed
from wattherd.model.reason import StopReason
from wattherd.server.site.stragglers import PaceWatch
from wattherd.store.entry import JournalEntry


class Course:
    """One run that reports every second, and what is found."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []
        self.now_s = 0.0
        self.watch = PaceWatch(lambda job_id: self.found.append((self.now_s, job_id)))
        self.say(None, StartJob(job_id="j-1", attempt=1, allocations=()))

    def say(self, event: Event | None, *commands: Command) -> None:
        told = event or JobProgressed(at_s=self.now_s, job_id="none", attempt=1, progress=0.0)
        self.watch.told([(JournalEntry(seq=1, event=told), commands)])

    def run(self, seconds: int, rate: float | None, attempt: int = 1) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            who = {"at_s": self.now_s, "job_id": "j-1", "attempt": attempt}
            self.say(JobProgressed(**who, progress=1.0, rate_per_s=rate))
            self.watch.look(self.now_s)

    def silence(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.watch.look(self.now_s)


def test_a_run_at_a_third_of_its_pace_is_found_within_thirty_seconds_and_once() -> None:
    course = Course()
    course.run(20, 9.0)
    course.run(30, 3.0)
    ((at_s, job_id),) = course.found
    assert job_id == "j-1"
    assert 20 + 10 <= at_s <= 20 + 30


def test_a_run_that_hangs_is_found_within_thirty_seconds() -> None:
    course = Course()
    course.run(20, 9.0)
    course.silence(40)
    ((at_s, _),) = course.found
    assert 20 + 15 <= at_s <= 20 + 30


def test_one_that_caught_up_is_found_again() -> None:
    course = Course()
    for _ in range(2):
        course.run(20, 9.0)
        course.run(15, 3.0)
    assert len(course.found) == 2


def test_short_lags_slow_reports_and_small_losses_are_none() -> None:
    course = Course()
    course.run(20, 9.0)
    course.run(8, 1.0)  # an evaluation
    course.run(20, 9.0)
    course.run(40, 5.0)  # slower, but not by half
    assert course.found == []
    seldom = Course()
    for _ in range(5):
        seldom.silence(9)
        seldom.run(1, 9.0)
    seldom.silence(40)
    assert seldom.found == []


def test_another_cap_is_another_pace() -> None:
    course = Course()
    course.run(20, 9.0)
    course.say(CapApplied(at_s=course.now_s, job_id="j-1", attempt=1, cap_w=50.0))
    course.run(40, 3.0)
    assert course.found == []


def test_runs_that_end_stop_or_never_reported_are_not_judged() -> None:
    for last in (
        lambda c: c.say(JobExited(at_s=c.now_s, job_id="j-1", attempt=1)),
        lambda c: c.say(
            None, StopJob(job_id="j-1", attempt=1, reason=StopReason.USER_REQUEST, grace_s=60.0)
        ),
    ):
        course = Course()
        course.run(20, 9.0)
        last(course)
        course.silence(60)
        assert course.found == []
    mute = Course()
    mute.silence(100)
    assert mute.found == []


def test_a_run_that_began_before_the_service_is_judged_too() -> None:
    course = Course()
    course.watch = PaceWatch(lambda job_id: course.found.append((course.now_s, job_id)))
    course.run(20, 9.0)
    course.silence(30)
    assert len(course.found) == 1


def test_news_of_an_earlier_run_says_nothing_about_this_one() -> None:
    course = Course()
    course.say(None, StartJob(job_id="j-1", attempt=2, allocations=()))
    course.run(20, 9.0, attempt=2)
    course.run(5, 1.0, attempt=1)
    course.run(20, 9.0, attempt=2)
    assert course.found == []
