"""Planners that have work done outside, and that ask to be woken: the core's side of both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.view import Questions
from wattherd.errors import Bug, ClusterError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, Compute, StartJob, WakeAt
from wattherd.model.event import Computed, Event, JobExited, JobSubmitted, Woke
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Draft, Share, View
from wattherd.sim.gavel_plant import GavelPlant
from wattherd.sim.world import SimWorld
from wattherd.workload.gavel import ThroughputTable

KIND = "order"
CLUSTER = ClusterSpec((NodeSpec(name="n", cpu_milli=0, memory_mib=0, gpu_count=1, gpu_model="T4"),))
TABLE = ThroughputTable({"t4": {("m", 1): 2.0}}, {})


@dataclass(frozen=True)
class Asking:
    """Asks which job to run next, and runs it when the answer is there."""

    def plan(self, view: View, draft: Draft) -> None:
        waiting = [job for job in view.live() if not job.wanted]
        answer = view.computed(KIND)
        if answer is not None and answer.key == view.memory.get("asked"):
            view.memory["asked"] = ""
            for job in waiting:
                if answer.result and job.id == answer.result["first"]:
                    draft.start(job, [Share(0, 1)])
        elif waiting and not view.memory.get("asked") and draft.free_gpus()[0]:
            names = [job.id for job in waiting]
            view.memory["asked"] = draft.compute(KIND, {"names": names})


@dataclass(frozen=True)
class Punctual:
    """Notes when it is woken, and wants to be woken once, 10 seconds after the first job came."""

    def plan(self, view: View, draft: Draft) -> None:
        seen = view.memory.setdefault("seen", [])
        seen.append((view.now_s, view.woke, [job.id for job in view.live()]))
        if len(seen) == 1:
            draft.wake_at(view.now_s + 10.0)


def a_job(name: str, at_s: float = 0.0, steps: int = 10) -> JobSpec:
    return JobSpec(id=name, submit_s=at_s, profile="m", steps=steps)


def submitted(name: str, at_s: float = 0.0, steps: int = 10) -> JobSubmitted:
    return JobSubmitted(at_s=at_s, job=a_job(name, at_s, steps))


def a_core(planner: Any, round_s: float | None = None) -> Core:
    return Core(CoreConfig(cluster=CLUSTER, planner=planner, round_s=round_s))


def last(payload: Any) -> Any:
    return {"first": max(payload["names"])}


def a_world(core: Core, computer: Any = last) -> SimWorld:
    given = [submitted("a"), submitted("b"), submitted("c", 3.0)]
    return SimWorld(core, GavelPlant(TABLE, CLUSTER), given, computers={KIND: computer})


def test_a_question_is_a_command_and_its_answer_brings_a_plan() -> None:
    core = a_core(Asking())
    (asked,) = core.handle(submitted("a"))
    assert asked == Compute(kind=KIND, key="order#1", payload={"names": ["a"]}, version=0)
    commands = core.handle(Computed(at_s=5.0, kind=KIND, key="order#1", result={"first": "a"}))
    assert [type(command) for command in commands] == [StartJob]


def test_answers_that_nobody_waits_for_change_nothing() -> None:
    core = a_core(Asking())
    core.handle(submitted("a"))
    assert core.handle(Computed(at_s=1.0, kind=KIND, key="order#7", result={"first": "a"})) == []
    assert core.handle(Computed(at_s=1.0, kind="other", key="order#1", result=None)) == []
    right = Computed(at_s=2.0, kind=KIND, key="order#1", result={"first": "a"})
    assert len(core.handle(right)) == 1
    assert core.handle(right) == []


def test_a_later_question_of_a_kind_replaces_the_earlier_one() -> None:
    questions = Questions()
    first, second = questions.ask("k", 1), questions.ask("k", 2)
    assert not questions.note(Computed(at_s=0.0, kind="k", key=first.key, result=10))
    assert questions.answer("k") is None
    answer = Computed(at_s=0.0, kind="k", key=second.key, result=20)
    assert questions.note(answer)
    assert questions.answer("k") is answer
    questions.ask("k", 3)
    assert questions.answer("k") is None


def test_a_simulated_world_answers_at_once_and_every_job_gets_its_turn() -> None:
    recording = a_world(a_core(Asking())).run()
    ends = [(one.job_id, one.at_s) for one in recording.events if isinstance(one, JobExited)]
    assert ends == [("a", 5.0), ("c", 10.0), ("b", 15.0)]


def test_a_replay_has_the_answers_without_working_anything_out() -> None:
    recording = a_world(a_core(Asking())).run()
    again, commands = a_core(Asking()), list[Command]()
    for event in recording.events:
        commands += again.handle(plain(event))
    assert commands == recording.commands
    assert sum(isinstance(command, Compute) for command in commands) == 3


def plain(event: Event) -> Event:
    """The event after its answer went through JSON, as a stored one has."""
    if not isinstance(event, Computed):
        return event
    result = json.loads(json.dumps(event.result))
    return Computed(at_s=event.at_s, kind=event.kind, key=event.key, result=result)


def test_work_that_fails_comes_back_as_no_answer() -> None:
    def broken(payload: Any) -> Any:
        del payload
        raise ClusterError("the solver gave up")

    world = a_world(a_core(Asking()), broken)
    recording = world.run()
    answers = [one for one in recording.events if isinstance(one, Computed)]
    assert answers
    assert {answer.result for answer in answers} == {None}


def test_a_world_that_cannot_compute_says_so() -> None:
    world = SimWorld(a_core(Asking()), GavelPlant(TABLE, CLUSTER), [submitted("a")])
    with pytest.raises(Bug, match="nobody in this world computes 'order'"):
        world.run()


def test_a_wake_up_comes_after_everything_else_of_its_time() -> None:
    core = a_core(Punctual())
    SimWorld(core, GavelPlant(TABLE, CLUSTER), [submitted("a"), submitted("b", 10.0)]).run()
    seen = core._memory["seen"]
    assert seen == [
        (0.0, False, ["a"]),
        (10.0, False, ["a", "b"]),
        (10.0, True, ["a", "b"]),
    ]


def test_a_wake_up_brings_a_plan_between_rounds_too() -> None:
    core = a_core(Punctual(), round_s=60.0)
    core.handle(submitted("a"))
    (wake,) = core.handle(Woke(at_s=60.0, key="round"))[:1]
    assert wake == WakeAt(at_s=70.0, key="plan")
    core.handle(Woke(at_s=70.0, key="plan"))
    assert [(at_s, woke) for at_s, woke, _ in core._memory["seen"]] == [(60.0, False), (70.0, True)]


def test_nobody_is_woken_in_the_past() -> None:
    class Late:
        def plan(self, view: View, draft: Draft) -> None:
            draft.wake_at(view.now_s - 5.0)

    core = a_core(Late())
    assert core.handle(submitted("a", 7.0)) == [WakeAt(at_s=7.0, key="plan")]
