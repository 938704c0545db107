"""Arrays in the core: so many tasks at a time, and jobs that wait for all of an array."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from test_waits import Told

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.model.command import FinishJob, StartJob
from wattherd.model.event import (
    ArrayLimited,
    JobCancelled,
    JobEdited,
    JobExited,
    JobHeld,
    JobReleased,
    JobStopped,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.store.event_log import event_of, plain


def submit_array(told: Told, count: int, most: int | None = None, **more: Any) -> None:
    for index in range(count):
        task = {"array": "a", "array_index": index, "array_count": count, "array_most": most}
        told.submit(f"t{index}", **task, **more)


def running(told: Told) -> list[str]:
    return [job.id for job in told.core.jobs.values() if job.active]


def test_only_so_many_tasks_run_at_a_time_in_order() -> None:
    told = Told()
    submit_array(told, 5, most=2)
    assert running(told) == ["t0", "t1"]
    assert told.why("t2") == "ArrayLimit (waits for a task of a to end: 2 may run at a time)"
    told.ends("t1")
    assert running(told) == ["t0", "t2"]
    told.ends("t0", 1)
    assert running(told) == ["t2", "t3"]


def test_without_a_limit_all_run() -> None:
    told = Told()
    submit_array(told, 4)
    assert len(running(told)) == 4


def test_a_task_that_is_tried_again_keeps_its_turn() -> None:
    told = Told()
    submit_array(told, 3, most=1, restarts=1, backoff_s=10.0)
    told.ends("t0", 1)
    assert (told.state("t0"), running(told)) == ("BackingOff", [])


def test_a_cancelled_task_that_waits_takes_nobodys_turn() -> None:
    told = Told()
    submit_array(told, 4, most=1)
    told.tell(JobCancelled(at_s=0.5, job_id="t1"))
    assert running(told) == ["t0"]
    told.ends("t0")
    assert running(told) == ["t2"]


def test_others_run_in_the_place_of_a_paused_task_which_then_waits_for_a_turn() -> None:
    told = Told()
    submit_array(told, 4, most=1)
    told.tell(JobHeld(at_s=0.5, job_id="t0"))
    assert running(told) == ["t0"]  # it still stops
    told.tell(JobStopped(at_s=0.6, job_id="t0", attempt=1))
    assert running(told) == ["t1"]
    told.tell(JobReleased(at_s=0.7, job_id="t0"))
    assert (told.state("t0"), running(told)) == ("Blocked", ["t1"])
    for task in ("t1", "t2", "t3"):
        told.ends(task)
    assert running(told) == ["t0"]


def test_a_waiting_task_that_is_paused_leaves_the_line() -> None:
    told = Told()
    submit_array(told, 3, most=1)
    told.tell(JobHeld(at_s=0.5, job_id="t1"))
    told.ends("t0")
    assert running(told) == ["t2"]
    told.ends("t2")
    told.tell(JobReleased(at_s=1.5, job_id="t1"))
    assert running(told) == ["t1"]


def task(told: Told, index: int, count: int, most: int, **more: Any) -> None:
    """One task of an array whose tasks differ."""
    told.submit(
        f"t{index}", array="a", array_index=index, array_count=count, array_most=most, **more
    )


def test_a_task_that_waits_for_another_job_takes_nobodys_turn() -> None:
    told = Told()
    told.submit("x")
    task(told, 0, 3, 1, after=("x",))
    task(told, 1, 3, 1)
    task(told, 2, 3, 1)
    assert running(told) == ["x", "t1"]
    told.ends("x")
    assert told.why("t0") == "ArrayLimit (waits for a task of a to end: 1 may run at a time)"
    told.ends("t1")
    assert running(told) == ["t0"]  # before t2: it was handed in first
    told.ends("t0")
    assert running(told) == ["t2"]


def test_a_released_task_does_not_wait_behind_one_that_waits_for_it() -> None:
    """t1 waits for x, x for t0, and t0 was paused: its turn must not come after that of t1."""
    told = Told()
    task(told, 0, 2, 1)
    told.tell(JobHeld(at_s=0.1, job_id="t0"))
    told.tell(JobStopped(at_s=0.2, job_id="t0", attempt=1))
    told.submit("x", after=("t0",))
    task(told, 1, 2, 1, after=("x",))
    told.tell(JobReleased(at_s=0.3, job_id="t0"))
    for one, attempt in (("t0", 2), ("x", 1), ("t1", 1)):
        assert running(told) == [one]
        told.tell(JobExited(at_s=1.0, job_id=one, attempt=attempt))


def test_tasks_that_wait_for_the_same_job_run_in_the_order_of_their_submission() -> None:
    told = Told()
    told.submit("x")
    submit_array(told, 12, most=1, after=("x",))
    told.ends("x")
    for index in range(12):
        assert running(told) == [f"t{index}"]
        told.ends(f"t{index}")


def test_a_task_that_is_put_off_lets_another_one_run() -> None:
    told = Told()
    submit_array(told, 3, most=1, gpus=4)
    told.tell(JobEdited(at_s=0.5, job_id="t1", begin_at_s=500.0))
    told.ends("t0")
    assert "t2" in running(told)
    assert told.state("t1") == "Blocked"
    told.ends("t2")
    assert "t1" not in running(told)


def test_a_queued_task_with_a_turn_that_is_put_off_gives_it_up() -> None:
    told = Told()
    told.submit("big", gpus=4)
    submit_array(told, 2, most=1, gpus=4)
    assert (told.state("t0"), told.state("t1")) == ("Queued", "Blocked")
    told.tell(JobEdited(at_s=0.5, job_id="t0", begin_at_s=500.0))
    assert (told.state("t0"), told.state("t1")) == ("Blocked", "Queued")
    told.ends("big")
    assert running(told) == ["t1"]


@pytest.mark.parametrize(
    ("kind", "codes", "then"),
    [
        ("after", (0, 0), "Starting"),
        ("after", (0, 1), "Failed"),
        ("after_any", (1, 1), "Starting"),
        ("after_notok", (0, 0), "Cancelled"),
        ("after_notok", (0, 1), "Starting"),
    ],
)
def test_a_job_waits_for_the_end_of_a_whole_array(
    kind: str, codes: tuple[int, int], then: str
) -> None:
    told = Told()
    submit_array(told, 2)
    told.submit("b", **{kind: ("a",)})
    told.ends("t1", codes[1])
    assert told.state("b") == "Blocked"
    told.ends("t0", codes[0])
    assert told.state("b") == then
    late = Told()
    submit_array(late, 2)
    late.ends("t0", codes[0])
    late.ends("t1", codes[1])
    late.submit("b", at_s=1.0, **{kind: ("a",)})
    assert late.state("b") == then


def test_an_array_whose_first_tasks_are_over_before_the_last_is_handed_in_is_not_over() -> None:
    told = Told()
    told.submit("t0", gpus=99, array="a", array_count=2)
    told.submit("b", after_any=("a",))
    assert told.state("b") == "Blocked"
    told.submit("t1", array="a", array_index=1, array_count=2)
    told.ends("t1")
    assert told.state("b") == "Starting"


def test_an_array_that_would_wait_for_itself_is_refused() -> None:
    told = Told()
    told.submit("b", after=("a",))
    told.submit("t0", after=("b",), array="a", array_count=1)
    assert told.state("t0") == "Failed"
    with pytest.raises(UserError, match="waits for itself"):
        JobSpec(id="t0", submit_s=0.0, after=("a",), array="a", array_count=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"array_count": 3},
        {"array": "a"},
        {"array": "x", "array_count": 1},
        {"array": "a", "array_count": 2, "array_index": -1},
        {"array": "a", "array_count": 2, "array_most": 0},
        {"array": "a", "array_count": 2, "singleton": True, "labels": (("name", "n"),)},
    ],
)
def test_tasks_of_no_array_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        JobSpec(id="x", submit_s=0.0, **wrong)


def test_a_log_says_nothing_of_arrays_where_there_is_none_and_replays_where_there_is() -> None:
    told = Told()
    told.submit("alone")
    assert "array" not in json.dumps(plain(told.events[0]))
    submit_array(told, 3, most=1)
    told.tell(JobEdited(at_s=0.5, job_id="t1", priority=3))
    told.ends("t0")
    again = Core(told.core.config)
    said = []
    for event in told.events:
        said += again.handle(event_of(json.loads(json.dumps(plain(event))), "here"))
    assert said == told.said
    assert [one.job_id for one in said if isinstance(one, StartJob)] == ["alone", "t0", "t1"]


def test_many_names_of_singletons_cost_no_more_than_as_many_jobs() -> None:
    """Lines of Python that a submission takes, however many names there are before it."""

    def lines_of_the_last(count: int) -> int:
        told = Told()
        specs = [
            JobSpec(
                id=f"s{number}",
                submit_s=0.0,
                begin_s=1e6,
                singleton=True,
                labels=(("name", f"n{number}"),),
            )
            for number in range(count)
        ]
        for spec in specs[:-1]:
            told.core.handle(JobSubmitted(at_s=0.0, job=spec))
        return lines_of(lambda: told.core.handle(JobSubmitted(at_s=0.0, job=specs[-1])))

    assert lines_of_the_last(2_000) < 1.2 * lines_of_the_last(200)


def lines_of(act: Callable[[], object]) -> int:
    """How many lines of Python it runs, those of loops each time: no clock is needed."""
    count = 0

    def each(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.long
def test_thousands_of_tasks_end_one_after_the_other() -> None:
    told = Told()
    for index in range(3_000):
        spec = JobSpec(
            id=f"t{index}",
            submit_s=0.0,
            array="a",
            array_index=index,
            array_count=3_000,
            array_most=1,
        )
        told.core.handle(JobSubmitted(at_s=0.0, job=spec))
    ended = 0
    for index in range(3_000):
        said = told.core.handle(JobExited(at_s=1.0, job_id=f"t{index}", attempt=1))
        ended += sum(isinstance(one, FinishJob) for one in said)
    assert ended == 3_000


def limit(told: Told, most: int | None) -> None:
    told.tell(ArrayLimited(at_s=0.5, array="a", most=most))


def test_more_tasks_run_at_once_where_the_limit_is_raised_or_lifted() -> None:
    told = Told()
    submit_array(told, 4, most=1)
    limit(told, 2)
    assert running(told) == ["t0", "t1"]
    assert "2 may run at a time" in told.why("t2")
    limit(told, None)
    assert running(told) == ["t0", "t1", "t2", "t3"]
    assert told.core.jobs["t3"].spec.array_most is None


def test_a_lower_limit_stops_nobody_and_holds_from_then_on() -> None:
    told = Told()
    submit_array(told, 6, most=3)
    limit(told, 1)
    assert running(told) == ["t0", "t1", "t2"]
    told.ends("t0")
    told.ends("t1")
    assert running(told) == ["t2"]
    told.ends("t2")
    assert running(told) == ["t3"]


def test_a_task_that_stops_above_a_lower_limit_waits_for_a_turn_again() -> None:
    told = Told()
    submit_array(told, 3, most=2)
    limit(told, 1)
    told.tell(JobStopped(at_s=0.6, job_id="t0", attempt=1))  # by itself: it would come again
    assert (told.state("t0"), running(told)) == ("Blocked", ["t1"])
    told.ends("t1")
    assert running(told) == ["t0"]  # before t2


def test_a_task_that_failed_above_a_lower_limit_is_tried_again_in_its_turn() -> None:
    told = Told()
    submit_array(told, 2, most=2, restarts=1, backoff_s=1.0)
    limit(told, 1)
    told.ends("t0", 1, at_s=0.6)
    told.tell(Woke(at_s=5.0, key="backoff:t0#1"))
    assert (told.state("t0"), running(told)) == ("Blocked", ["t1"])
    told.ends("t1", at_s=6.0)
    assert running(told) == ["t0"]


def test_turns_of_tasks_that_do_not_run_yet_are_taken_back_the_last_first() -> None:
    told = Told()
    told.submit("big", gpus=4)
    submit_array(told, 4, most=3)
    limit(told, 2)
    assert [told.state(f"t{index}") for index in range(4)] == [
        "Queued", "Queued", "Blocked", "Blocked"
    ]  # fmt: skip


def test_an_array_without_a_limit_gets_one() -> None:
    told = Told()
    submit_array(told, 8, gpus=2)
    assert running(told) == ["t0", "t1"]
    limit(told, 1)
    told.ends("t0")
    assert running(told) == ["t1"]
    told.ends("t1")
    assert running(told) == ["t2"]


def test_a_limit_is_the_same_after_a_replay() -> None:
    told = Told()
    submit_array(told, 4, most=1)
    limit(told, 2)
    limit(told, 1)
    told.ends("t0")
    told.ends("t1")
    again = Core(told.core.config)
    said = []
    for event in told.events:
        said += again.handle(event_of(json.loads(json.dumps(plain(event))), "here"))
    assert said == told.said


def test_a_limit_of_no_array_changes_nothing() -> None:
    told = Told()
    told.submit("a")
    limit(told, 1)
    assert running(told) == ["a"]
