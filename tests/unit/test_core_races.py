"""Races that a random walk over the core has found, told as small stories.

Each one lost a job, revived one, or gave a device away twice before it was put right.
"""

from __future__ import annotations

from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.lifecycle import State
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import FinishJob, RejectJob, StartJob, StopJob, WakeAt
from wattherd.model.event import (
    Event,
    JobCancelled,
    JobExited,
    JobHeld,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import ReasonCode, StopReason
from wattherd.policy.schedule.tiresias import Tiresias


class Told:
    """A core of two nodes with two GPUs each, and what it says."""

    def __init__(self) -> None:
        nodes = [
            NodeSpec(name=f"n{i}", cpu_milli=9_000, memory_mib=9_000, gpu_count=2, gpu_model="T4")
            for i in range(2)
        ]
        self.core = Core(CoreConfig(cluster=ClusterSpec(tuple(nodes)), planner=Tiresias()))

    def tell(self, event: Event) -> list[Any]:
        commands = self.core.handle(event)
        validate(self.core)
        return commands

    def submit(self, name: str, gpus: int = 1, **more: Any) -> list[Any]:
        job = JobSpec(id=name, submit_s=0.0, roles=(TaskRole(count=gpus),), **more)
        return self.tell(JobSubmitted(at_s=0.0, job=job))

    def run(self, name: str, gpus: int = 1, **more: Any) -> None:
        assert [type(c) for c in self.submit(name, gpus, **more)] == [StartJob]
        self.tell(JobStarted(at_s=0.0, job_id=name, attempt=1))

    def operate(self, what: type[JobHeld | JobReleased | JobCancelled], name: str) -> list[Any]:
        return self.tell(what(at_s=1.0, job_id=name))

    def stopped(self, name: str, attempt: int = 1) -> list[Any]:
        return self.tell(JobStopped(at_s=2.0, job_id=name, attempt=attempt))

    def exited(self, name: str, code: int, attempt: int = 1) -> list[Any]:
        return self.tell(JobExited(at_s=2.0, job_id=name, attempt=attempt, exit_code=code))

    def state(self, name: str) -> State:
        return self.core.jobs[name].state


def test_a_hold_does_not_save_a_job_from_being_cancelled() -> None:
    told = Told()
    told.run("a")
    told.operate(JobCancelled, "a")
    told.operate(JobHeld, "a")
    assert told.stopped("a") == [FinishJob(job_id="a", state="Cancelled")]


def test_a_hold_that_ends_before_the_job_has_stopped_is_over() -> None:
    told = Told()
    told.run("a")
    told.operate(JobHeld, "a")
    told.operate(JobReleased, "a")
    assert [type(c) for c in told.stopped("a")] == [StartJob]


def test_a_job_that_stops_to_be_held_is_given_no_new_plan() -> None:
    told = Told()
    told.run("a")
    told.operate(JobHeld, "a")
    assert [c.job_id for c in told.submit("b", 4)] == []
    assert told.core.jobs["a"].wanted == ()
    assert [(type(c), c.job_id) for c in told.stopped("a")] == [(StartJob, "b")]
    assert told.state("a") is State.HELD


def test_a_cancelled_job_that_has_to_be_killed_is_not_tried_again() -> None:
    told = Told()
    told.run("a", restarts=3)
    told.operate(JobCancelled, "a")
    assert told.exited("a", 137) == [FinishJob(job_id="a", state="Cancelled")]


def test_a_held_job_that_has_to_be_killed_stays_held() -> None:
    told = Told()
    told.run("a", restarts=3)
    told.operate(JobHeld, "a")
    assert not any(isinstance(c, WakeAt) for c in told.exited("a", 137))
    assert (told.state("a"), told.core.jobs["a"].failures) == (State.HELD, 0)


def test_success_counts_even_if_the_job_was_asked_to_stop() -> None:
    told = Told()
    told.run("a")
    told.operate(JobCancelled, "a")
    assert told.exited("a", 0) == [FinishJob(job_id="a", state="Succeeded")]


def test_a_held_job_learns_at_its_release_that_it_waits_in_vain() -> None:
    told = Told()
    told.run("a")
    told.submit("b", after=("a",))
    told.operate(JobHeld, "b")
    told.exited("a", 1)
    assert told.operate(JobReleased, "b") == [FinishJob(job_id="b", state="Failed")]


def test_who_waits_for_a_job_that_is_rejected_fails_with_all_that_wait_for_it() -> None:
    told = Told()
    told.submit("c", after=("b",))
    told.submit("b", after=("a",))
    commands = told.submit("a", 99)
    assert [type(c) for c in commands] == [RejectJob, FinishJob, FinishJob]
    assert told.core.finished == dict.fromkeys("abc", State.FAILED)


def test_the_job_that_closes_a_circle_of_dependencies_is_rejected() -> None:
    told = Told()
    told.submit("a", after=("c",))
    told.submit("b", after=("a",))
    reject, *others = told.submit("c", after=("x", "b"))
    assert isinstance(reject, RejectJob)
    assert reject.reason.code is ReasonCode.INVALID_SPEC
    assert reject.detail == "InvalidSpec (job a waits for it in turn)"
    assert [c.job_id for c in others] == ["a", "b"]


def test_ranks_that_outlive_a_lost_node_are_stopped_before_others_get_their_devices() -> None:
    told = Told()
    told.run("gang", 4)
    told.submit("next", 2)
    (stop,) = told.tell(NodeLost(at_s=5.0, node="n0"))
    assert stop == StopJob(job_id="gang", attempt=1, reason=StopReason.NODE_LOST, grace_s=0.0)
    assert [one.node for one in told.core.jobs["gang"].allocations] == [1]
    assert told.core.jobs["next"].state is State.QUEUED
    assert [(type(c), c.job_id) for c in told.stopped("gang")] == [(StartJob, "next")]


def test_a_gang_that_loses_its_last_node_too_needs_no_more_confirmation() -> None:
    told = Told()
    told.run("gang", 4)
    told.tell(NodeLost(at_s=5.0, node="n0"))
    told.tell(NodeReturned(at_s=6.0, node="n0"))
    told.tell(NodeLost(at_s=7.0, node="n1"))
    assert told.state("gang") is State.QUEUED
    (start,) = told.tell(NodeReturned(at_s=8.0, node="n1"))
    assert (start.job_id, start.attempt) == ("gang", 2)
    # 5 s on four GPUs, then 2 s on the two that were left
    assert told.core.jobs["gang"].attained_gpu_s == 24.0
