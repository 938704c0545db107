"""Questions of the core are worked out by a thread of their own, the last of each kind."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from wattherd.errors import ClusterError
from wattherd.kube.decide.core_driver import CoreDriver, Question
from wattherd.kube.live.answers import Answers
from wattherd.model.command import Compute

PATIENCE_S = 20.0
Told = tuple[str, Any]


def asked(key: str, payload: Any = 1, kind: str = "program") -> Question:
    return Question(Compute(kind=kind, key=key, payload=payload, version=0), epoch=1)


class Solver:
    """Waits to be let go on; a payload that is an exception is raised."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)

    def __call__(self, payload: Any) -> Any:
        self.begun.release()
        assert self.may.acquire(timeout=PATIENCE_S)
        if isinstance(payload, Exception):
            raise payload
        return payload * 10


@pytest.fixture
def told() -> queue.Queue[Told]:
    return queue.Queue()


def telling(told: queue.Queue[Told], solver: Solver) -> Answers:
    return Answers({"program": solver}, lambda one, found: told.put((one.order.key, found)))


def test_who_asks_does_not_wait_and_of_several_the_last_is_worked_out(
    told: queue.Queue[Told],
) -> None:
    solver = Solver()
    answers = telling(told, solver)
    answers.ask([asked("p#1", 1)])
    assert solver.begun.acquire(timeout=PATIENCE_S)
    answers.ask([asked("p#2", 2)])
    answers.ask([asked("p#3", 3)])
    assert told.empty()
    for _ in range(2):
        solver.may.release()
    assert [told.get(timeout=PATIENCE_S) for _ in range(2)] == [("p#1", 10), ("p#3", 30)]
    answers.close()


def test_what_cannot_be_worked_out_is_answered_with_nothing(told: queue.Queue[Told]) -> None:
    solver = Solver()
    answers = telling(told, solver)
    solver.may.release()
    answers.ask([asked("p#1", ClusterError("no solution")), asked("q#1", kind="unheard of")])
    found = {told.get(timeout=PATIENCE_S) for _ in range(2)}
    assert found == {("p#1", None), ("q#1", None)}
    answers.close()


def test_after_the_end_nothing_is_told(told: queue.Queue[Told]) -> None:
    solver = Solver()
    answers = telling(told, solver)
    answers.ask([asked("p#1")])
    assert solver.begun.acquire(timeout=PATIENCE_S)
    answers.close()
    solver.may.release()
    answers._thread.join(PATIENCE_S)
    assert not answers._thread.is_alive()
    assert told.empty()


def test_an_answer_is_heard_once_with_the_next_plan() -> None:
    driver = CoreDriver()
    driver._epoch = 1
    driver.answer(asked("p#1"), {"shares": [1.0]})
    assert driver.is_answered
    (event,) = driver.answers(5.0)
    assert (event.at_s, event.key, event.result) == (5.0, "p#1", {"shares": [1.0]})
    assert not driver.is_answered
