"""What jobs wait for before they are planned: ends of other jobs, their name, their time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.core.job_table import array_never_text, never_text
from wattherd.engine.jobs.lifecycle import State
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import FinishJob, RejectJob, StartJob, WakeAt
from wattherd.model.event import (
    Event,
    JobCancelled,
    JobExited,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.store.event_log import event_of, plain

NODE = NodeSpec(name="n", cpu_milli=64_000, memory_mib=65_536, gpu_count=4, gpu_model="T4")


class Told:
    """A core on four GPUs, and everything it has said."""

    def __init__(self) -> None:
        self.core = Core(CoreConfig(cluster=ClusterSpec((NODE,)), planner=Drf()))
        self.said: list[Any] = []
        self.events: list[Event] = []

    def tell(self, event: Event) -> list[Any]:
        self.events.append(event)
        commands = self.core.handle(event)
        validate(self.core)
        self.said += commands
        return commands

    def submit(self, job_id: str, *, at_s: float = 0.0, gpus: int = 1, **more: Any) -> list[Any]:
        name = more.pop("name", "")
        spec = JobSpec(
            id=job_id,
            submit_s=at_s,
            roles=(TaskRole(count=gpus),),
            labels=(("name", name),) if name else (),
            **more,
        )
        return self.tell(JobSubmitted(at_s=at_s, job=spec))

    def ends(self, job_id: str, code: int = 0, at_s: float = 1.0) -> list[Any]:
        return self.tell(JobExited(at_s=at_s, job_id=job_id, attempt=1, exit_code=code))

    def state(self, job_id: str) -> str:
        job = self.core.jobs.get(job_id)
        return str(job.state if job else self.core.finished[job_id])

    def why(self, job_id: str) -> str:
        return self.core.waits.reason(self.core.jobs[job_id]).text(self.core.now_s)


END = {"success": 0, "failure": 1}
OUTCOMES = [
    ("after", "success", "Starting"),
    ("after", "failure", "Failed"),
    ("after_any", "success", "Starting"),
    ("after_any", "failure", "Starting"),
    ("after_any", "cancelled", "Starting"),
    ("after_notok", "success", "Cancelled"),
    ("after_notok", "failure", "Starting"),
    ("after_notok", "cancelled", "Starting"),
]


def over(told: Told, how: str) -> None:
    if how == "cancelled":
        told.tell(JobCancelled(at_s=1.0, job_id="a"))
        told.ends("a", 137)
    else:
        told.ends("a", END[how])


@pytest.mark.parametrize(("kind", "how", "then"), OUTCOMES)
def test_each_kind_of_dependency_needs_its_own_end_of_the_other_job(
    kind: str, how: str, then: str
) -> None:
    told = Told()
    told.submit("a")
    told.submit("b", **{kind: ("a",)})
    assert told.state("b") == "Blocked"
    over(told, how)
    assert told.state("b") == then


@pytest.mark.parametrize(("kind", "how", "then"), OUTCOMES)
def test_the_same_holds_where_the_other_job_was_over_before(kind: str, how: str, then: str) -> None:
    told = Told()
    told.submit("a")
    over(told, how)
    told.submit("b", **{kind: ("a",)})
    assert told.state("b") == then


@pytest.mark.parametrize(("kind", "how", "then"), OUTCOMES)
def test_a_held_job_is_told_when_its_hold_is_over(kind: str, how: str, then: str) -> None:
    told = Told()
    told.submit("a")
    told.submit("b", **{kind: ("a",)})
    told.tell(JobHeld(at_s=0.5, job_id="b"))
    over(told, how)
    assert told.state("b") == "Held"
    told.tell(JobReleased(at_s=2.0, job_id="b"))
    assert told.state("b") == then


def test_a_job_that_needs_both_ends_of_another_never_starts() -> None:
    told = Told()
    told.submit("a")
    told.submit("b", after=("a",), after_notok=("a",))
    told.ends("a")
    assert told.state("b") == "Cancelled"


def test_what_follows_a_job_that_could_never_start_hears_of_it() -> None:
    told = Told()
    told.submit("a")
    told.submit("b", after=("a",))
    told.submit("c", after_any=("b",))
    told.submit("d", after=("c",))
    assert FinishJob(job_id="b", state="Failed") in told.ends("a", 1)
    assert told.state("c") == "Starting"
    assert told.why("d") == "Dependency (waits for c to succeed)"


def test_a_refused_job_counts_as_one_that_failed() -> None:
    told = Told()
    told.submit("b", after_any=("a",))
    told.submit("c", after_notok=("a",))
    assert isinstance(told.submit("a", gpus=99)[0], RejectJob)
    assert [told.state(one) for one in "bc"] == ["Starting", "Starting"]


def test_singletons_of_a_name_run_one_at_a_time_in_order() -> None:
    told = Told()
    for job_id in "abc":
        told.submit(job_id, name="nightly", user="ann", singleton=True)
    told.submit("other", name="nightly", user="bob", singleton=True)
    assert [told.state(one) for one in "abc"] == ["Starting", "Blocked", "Blocked"]
    assert told.state("other") == "Starting"
    assert told.why("c") == "Dependency (waits for a to end, which has its name)"
    told.ends("a", 1)
    assert [told.state(one) for one in "bc"] == ["Starting", "Blocked"]


def test_a_singleton_waits_for_jobs_of_its_name_that_are_none() -> None:
    told = Told()
    told.submit("a", name="x")
    told.submit("b", name="x", singleton=True)
    told.submit("c", name="x")
    assert [told.state(one) for one in "abc"] == ["Starting", "Blocked", "Starting"]
    told.ends("c")
    assert told.state("b") == "Blocked"
    told.ends("a")
    assert told.state("b") == "Starting"


def test_a_waiting_singleton_that_is_cancelled_lets_nobody_pass() -> None:
    told = Told()
    for job_id in "abc":
        told.submit(job_id, name="x", singleton=True)
    told.tell(JobCancelled(at_s=0.5, job_id="b"))
    assert told.state("c") == "Blocked"
    told.ends("a")
    assert told.state("c") == "Starting"


def test_a_line_stays_in_order_when_a_job_ends_and_takes_those_that_follow_it_along() -> None:
    told = Told()
    told.submit("a", name="x")
    told.submit("b", name="x", after=("a",), singleton=True)
    told.submit("c", name="x", singleton=True)
    told.ends("a", 1)
    assert [told.state(one) for one in "abc"] == ["Failed", "Failed", "Starting"]


def test_jobs_that_would_wait_for_each_other_by_their_name_are_refused() -> None:
    told = Told()
    told.submit("a", name="x", after=("b",))
    refused = told.submit("b", name="x", singleton=True)
    assert isinstance(refused[0], RejectJob)
    assert told.state("a") == "Failed"


def test_a_job_starts_at_its_begin_time_and_not_before() -> None:
    told = Told()
    assert told.submit("a", at_s=10.0, begin_s=100.0) == [WakeAt(at_s=110.0, key="begin:a")]
    assert told.why("a") == "NotBefore (begins in about 100 s)"
    told.tell(Woke(at_s=60.0, key="begin:a"))
    assert told.state("a") == "Blocked"
    commands = told.tell(Woke(at_s=110.0, key="begin:a"))
    assert isinstance(commands[0], StartJob)


def test_nobody_waits_for_a_job_whose_time_has_not_come() -> None:
    told = Told()
    told.submit("a", gpus=4, begin_s=100.0)
    told.submit("b", gpus=4)
    assert told.state("b") == "Starting"


def test_a_job_whose_time_came_while_it_was_held_starts_when_it_is_released() -> None:
    told = Told()
    told.submit("a", begin_s=100.0)
    told.tell(JobHeld(at_s=1.0, job_id="a"))
    told.tell(Woke(at_s=100.0, key="begin:a"))
    assert told.state("a") == "Held"
    told.tell(JobReleased(at_s=101.0, job_id="a"))
    assert told.state("a") == "Starting"


def test_its_time_and_the_jobs_it_waits_for_must_both_have_come() -> None:
    told = Told()
    told.submit("a")
    told.submit("b", begin_s=100.0, after=("a",))
    told.ends("a")
    assert told.state("b") == "Blocked"
    told.tell(Woke(at_s=100.0, key="begin:b"))
    assert told.state("b") == "Starting"


def test_a_begin_time_in_the_past_is_no_wait() -> None:
    told = Told()
    told.submit("a", begin_s=0.0)
    assert told.state("a") == "Starting"


def test_jobs_that_use_nothing_new_are_written_as_before() -> None:
    told = Told()
    told.submit("a", after=("x",))
    (event,) = told.events
    written = json.loads(json.dumps(plain(event)))
    assert not {"after_any", "after_notok", "singleton", "begin_s"} & written["job"].keys()
    assert event_of(written, "here") == event


def test_what_jobs_wait_for_is_kept_when_it_is_written_down() -> None:
    told = Told()
    told.submit("a", after_any=("x",), after_notok=("y",), name="n", singleton=True, begin_s=5.0)
    (event,) = told.events
    assert event_of(json.loads(json.dumps(plain(event))), "here") == event


def test_a_job_that_waited_in_vain_is_told_what_helps() -> None:
    needs = JobSpec(id="b", submit_s=0.0, after=("a",))
    else_not = JobSpec(id="b", submit_s=0.0, after_notok=("a",))
    assert never_text(needs, "a", "Succeeded") == never_text(else_not, "a", "Failed") == ""
    assert "see to a, run it again" in never_text(needs, "a", "Cancelled")
    assert "nothing needs to be done" in never_text(else_not, "a", "Succeeded")
    assert "rerun a --failed" in array_never_text("a", State.FAILED)
    assert "nothing needs to be done" in array_never_text("a", State.SUCCEEDED)


def test_ahead_of_a_singleton_are_those_that_came_before_whatever_they_are_called() -> None:
    told = Told()
    for one in ("z", "m"):
        told.submit(one, name="red")
    told.submit("a", name="red", singleton=True)
    assert list(told.core.waits.ahead(told.core.jobs["a"])) == ["z", "m"]
    assert list(told.core.waits.ahead(told.core.jobs["m"])) == []
