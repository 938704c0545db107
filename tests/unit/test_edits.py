"""Edits: of waiting jobs whatever they ask for, of running ones a lower time limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import AmendJob, StartJob, WakeAt
from wattherd.model.event import (
    ArrayLimited,
    Event,
    JobEdited,
    JobExited,
    JobHeld,
    JobReleased,
    JobStarted,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.topology import chains_of
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.hived import HiveD
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.priorities import Priority
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.server.journal.job_history import JobHistory
from wattherd.server.journal.replay_state import ReplayState
from wattherd.store.entry import JournalEntry
from wattherd.store.event_log import command_of, event_of, plain

NODE = NodeSpec(name="n", cpu_milli=64_000, memory_mib=65_536, gpu_count=4, gpu_model="T4")
TREE = QueueTree(CapacityQueue(name="root", children=(CapacityQueue(name="default"),)))
CHAINS = chains_of(ClusterSpec((NODE,)), within={4: (2, 2)})
HIVED = HiveD(chains=CHAINS, shares={"default": {"T4x4": {"node": 1}}})
HALVES = HiveD(chains=CHAINS, shares={one: {"T4x4": {"2-gpu": 1}} for one in "ab"})
PLANNER = Ordered(
    rules=RankingRules(order=Priority()),
    discipline=Discipline.STRICT,
    preemptive=False,
    wakes=False,
)


class Told:
    """A core on four GPUs by priority, and what a service keeps beside it."""

    def __init__(self, planner: Planner = PLANNER, quota: Quota | None = None) -> None:
        config = CoreConfig(cluster=ClusterSpec((NODE,)), planner=planner, quota=quota)
        self.core = Core(config)
        self.standing, self.history = ReplayState(), JobHistory()

    def tell(self, event: Event) -> list[Any]:
        entry = JournalEntry(seq=self.standing.seq + 1, event=event, by="ann", paper={})
        ((_, commands),) = self.standing.replay(self.core, [entry])
        self.history.note(entry, commands)
        validate(self.core)
        for job in self.core.jobs.values():
            known = self.standing.orders.specs[job.id], self.history[job.id].spec
            assert known == (job.spec, job.spec)
        return commands

    def submit(self, job_id: str, gpus: int = 4, **more: Any) -> list[Any]:
        job = JobSpec(id=job_id, submit_s=0.0, roles=(TaskRole(count=gpus),), **more)
        return self.tell(JobSubmitted(at_s=0.0, job=job))

    def run(self, job_id: str, **more: Any) -> None:
        self.submit(job_id, **more)
        self.tell(JobStarted(at_s=0.0, job_id=job_id, attempt=1))

    def edit(self, job_id: str, at_s: float = 1.0, **changes: Any) -> list[Any]:
        return self.tell(JobEdited(at_s=at_s, job_id=job_id, cause="by ann", **changes))

    def ends(self, job_id: str) -> list[str]:
        commands = self.tell(JobExited(at_s=2.0, job_id=job_id, attempt=1))
        return [one.job_id for one in commands if isinstance(one, StartJob)]

    def story(self, job_id: str) -> tuple[str, str]:
        entry = self.core.jobs[job_id].story[-1]
        return entry.what, entry.cause


def test_a_job_whose_priority_is_raised_goes_before_those_that_came_earlier() -> None:
    told = Told()
    for job_id in "abc":
        told.submit(job_id)
    told.edit("c", priority=5)
    assert told.story("c") == ("edited: priority 0 -> 5", "by ann")
    assert told.ends("a") == ["c"]


def test_a_job_that_asks_for_fewer_devices_starts_at_once_where_these_are_free() -> None:
    told = Told()
    told.submit("a", gpus=2)
    told.submit("b", gpus=4)
    commands = told.edit("b", gpus=(2, 2))
    assert [type(one) for one in commands] == [AmendJob, StartJob]
    assert told.core.jobs["b"].spec.gpus == 2


@pytest.mark.parametrize(
    ("planner", "quota"),
    [
        (Drf(), None),
        (CapacityScheduler(tree=TREE), TREE),
        (Gandiva(), None),
        (Tiresias(), None),
        (HIVED, HIVED),
    ],
    ids=["drf", "capacity", "gandiva", "tiresias", "hived"],
)
def test_planners_forget_what_they_knew_of_a_job_before_it_was_edited(
    planner: Planner, quota: Quota | None
) -> None:
    """Shapes and holds of the wider gang kept the narrower one from ever starting."""
    told = Told(planner, quota)
    told.submit("a", gpus=2)
    told.submit("b", gpus=4)
    told.edit("b", gpus=(2, 2))
    woken: list[Any] = []
    for _ in range(5):
        at_s = told.core.now_s + 60.0
        woken += told.tell(Woke(at_s=at_s, key="plan"))
    assert told.core.jobs["b"].active


@pytest.mark.parametrize(
    "changes",
    [{"queue": "b"}, {"gpus": (2, 2), "queue": "b"}, {"priority": -1}, {"gpus": (1, 1)}],
    ids=["queue", "narrower-in-queue", "opportunistic", "narrower"],
)
def test_hived_serves_an_edited_job_as_what_it_has_become(changes: dict[str, Any]) -> None:
    """Its cells, its hold and what was found out about it were those of another request."""
    told = Told(HALVES, HALVES)
    told.submit("first", gpus=1, queue="a")
    told.submit("waits", gpus=2, queue="a")
    assert not told.core.jobs["waits"].active
    told.edit("waits", **changes)
    assert told.core.jobs["waits"].active
    told.submit("later", gpus=1, queue="a")
    started = bool(told.core.jobs["later"].wanted)
    assert started == (changes.get("gpus") != (1, 1))


def test_hived_keeps_no_cells_for_a_job_that_moved_to_another_virtual_cluster() -> None:
    told = Told(HALVES, HALVES)
    told.submit("first", gpus=1, queue="a")
    told.submit("waits", gpus=2, queue="a")
    told.submit("narrow", gpus=1, queue="a")
    assert not told.core.jobs["narrow"].active  # cells are kept for the one that came before
    told.submit("full", gpus=2, queue="b")
    told.edit("waits", queue="b")
    assert told.core.jobs["narrow"].active
    assert told.ends("full") == ["waits"]


def test_an_edit_by_which_a_job_could_never_run_is_not_done() -> None:
    told = Told()
    told.submit("a")
    told.submit("b")
    assert told.edit("b", gpus=(99, 99), priority=3) == []
    assert told.core.jobs["b"].spec.priority == 0
    assert told.story("b")[0] == "edit refused"


def test_of_a_running_job_only_a_lower_time_limit_counts() -> None:
    told = Told()
    told.run("a", time_limit_s=100.0)
    assert told.edit("a", priority=9, gpus=(1, 1), queue="b", time_limit_s=200.0) == []
    amended, wake = told.edit("a", priority=9, time_limit_s=50.0)
    assert isinstance(amended, AmendJob)
    assert (amended.priority, amended.time_limit_s) == (0, 50.0)
    assert wake == WakeAt(at_s=50.0, key="limit:a#1")


def test_a_begin_time_is_moved_and_an_older_wake_up_for_it_means_nothing() -> None:
    told = Told()
    told.submit("a", begin_s=100.0)
    told.edit("a", begin_at_s=300.0)
    assert told.core.jobs["a"].not_before_s == 300.0
    commands = told.edit("a", begin_at_s=1.0)
    assert any(isinstance(one, StartJob) for one in commands)


def test_a_queued_job_can_be_put_off_and_a_held_one_edited() -> None:
    told = Told()
    told.submit("a")
    told.submit("b")
    told.edit("b", begin_at_s=500.0)
    assert str(told.core.jobs["b"].state) == "Blocked"
    assert told.ends("a") == []
    told.tell(JobHeld(at_s=3.0, job_id="b"))
    told.edit("b", at_s=4.0, priority=2)
    assert (str(told.core.jobs["b"].state), told.core.jobs["b"].spec.priority) == ("Held", 2)


def test_jobs_of_several_roles_keep_their_devices() -> None:
    told = Told()
    told.submit("a")
    roles = (TaskRole(name="worker"), TaskRole(name="ps", gpu_count=0))
    told.tell(JobSubmitted(at_s=0.0, job=JobSpec(id="b", submit_s=0.0, roles=roles)))
    told.edit("b", gpus=(2, 2))
    assert told.story("b")[0] == "edit refused"


def test_an_edit_of_a_job_that_waits_for_a_namesake_is_no_circle() -> None:
    told = Told()
    told.submit("a")
    for job_id, after in (("b", ("a",)), ("c", ("b",))):
        label = (("name", "x"),)
        told.submit(job_id, after=after, labels=label, singleton=True)
    told.edit("b", priority=4)
    assert told.story("b")[0] == "edited: priority 0 -> 4"


def test_edits_are_kept_when_they_are_written_down() -> None:
    event = JobEdited(at_s=1.0, job_id="a", gpus=(1, 4), begin_at_s=3.0, cause="by ann")
    assert event_of(json.loads(json.dumps(plain(event))), "here") == event
    told = Told()
    told.submit("a")
    told.submit("b")
    (order,) = told.edit("b", time_limit_s=9.0)
    assert command_of(json.loads(json.dumps(plain(order))), "here") == order


def test_a_job_without_devices_may_be_given_some() -> None:
    site = Told()
    site.run("first")
    role = TaskRole(gpu_count=0, gpu_milli=0, cpu_milli=500)
    site.tell(
        JobSubmitted(at_s=0.0, job=JobSpec(id="cpu", submit_s=0.0, after=("first",), roles=(role,)))
    )
    site.edit("cpu", gpus=(2, 2))
    assert site.core.jobs["cpu"].spec.gpus == 2
    assert site.ends("first") == ["cpu"]


def _backing_off(job_id: str = "a") -> tuple[Told, WakeAt]:
    """A job whose first run has failed, and the wake-up for its second."""
    told = Told()
    told.run(job_id, restarts=1, backoff_s=10.0)
    commands = told.tell(JobExited(at_s=5.0, job_id=job_id, attempt=1, exit_code=1))
    assert str(told.core.jobs[job_id].state) == "BackingOff"
    (wake,) = (one for one in commands if isinstance(one, WakeAt))
    return told, wake


def test_a_job_that_failed_and_waits_for_another_try_can_be_put_off() -> None:
    told, wake = _backing_off()
    commands = told.edit("a", at_s=6.0, begin_at_s=500.0)
    (begins,) = (one for one in commands if isinstance(one, WakeAt))
    assert begins.at_s == 500.0
    commands = told.tell(Woke(at_s=15.0, key=wake.key))
    assert not any(isinstance(one, StartJob) for one in commands)
    assert str(told.core.jobs["a"].state) == "Blocked"
    commands = told.tell(Woke(at_s=500.0, key=begins.key))
    assert any(isinstance(one, StartJob) for one in commands)


def test_a_begin_time_within_the_wait_for_another_try_makes_it_no_shorter_or_longer() -> None:
    told, wake = _backing_off()
    (begins,) = (one for one in told.edit("a", at_s=6.0, begin_at_s=8.0) if isinstance(one, WakeAt))
    assert not any(isinstance(one, StartJob) for one in told.tell(Woke(at_s=8.0, key=begins.key)))
    assert str(told.core.jobs["a"].state) == "BackingOff"
    assert any(isinstance(one, StartJob) for one in told.tell(Woke(at_s=15.0, key=wake.key)))


def test_a_job_that_was_put_off_while_it_backs_off_may_be_paused_and_resumed() -> None:
    told, _ = _backing_off()
    told.edit("a", at_s=6.0, begin_at_s=500.0)
    told.tell(JobHeld(at_s=7.0, job_id="a"))
    told.tell(JobReleased(at_s=8.0, job_id="a"))
    assert str(told.core.jobs["a"].state) == "Blocked"


def test_a_service_knows_how_many_tasks_of_an_array_may_run_as_the_core_does() -> None:
    told = Told()
    for index in range(3):
        task = {"array": "a", "array_index": index, "array_count": 3, "array_most": 1}
        told.submit(f"t{index}", gpus=1, **task)
    told.tell(ArrayLimited(at_s=1.0, array="a", most=2))  # `tell` compares
    assert [one.spec.array_most for one in told.core.jobs.values()] == [2, 2, 2]
    assert told.core.jobs["t1"].active
