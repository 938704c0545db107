"""Work by turns: one at a time, whoever does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from wattherd.kube.api.serial import SerialExecutor, TurnTimeout

MANY = 200
Ask = Callable[[SerialExecutor, Callable[[], Any]], Any]


@pytest.fixture
def turns() -> Iterator[SerialExecutor]:
    with closing(SerialExecutor()) as made:
        yield made


def test_no_two_work_at_the_same_time(turns: SerialExecutor) -> None:
    """Three threads, and the one of its own, add to a number that is read, kept and written."""
    number, ready = [0], threading.Barrier(3)

    def add() -> None:
        seen = number[0]
        threading.Event().wait(1e-6)  # others get to run
        number[0] = seen + 1

    def some() -> None:
        ready.wait()
        for _ in range(MANY):
            turns.run(add)

    threads = [threading.Thread(target=some) for _ in range(3)]
    for each in threads:
        each.start()
    for given in [turns.submit(add) for _ in range(MANY)]:
        given.result()
    for each in threads:
        each.join()
    assert number == [4 * MANY]


def test_who_waits_works_in_its_own_thread(turns: SerialExecutor) -> None:
    here = threading.get_ident()
    assert turns.run(threading.get_ident) == here
    assert turns.run_soon(0.0, threading.get_ident) == here
    assert turns.submit(threading.get_ident).result() != here


def test_who_cannot_wait_is_told_and_nothing_is_done(turns: SerialExecutor) -> None:
    began, go_on = threading.Event(), threading.Event()

    def long() -> str:
        began.set()
        go_on.wait()
        return "done"

    given = turns.submit(long)
    began.wait()
    done: list[int] = []
    with pytest.raises(TurnTimeout):
        turns.run_soon(0.001, done.append, 1)
    go_on.set()
    assert given.result() == "done"
    assert turns.run_soon(60.0, lambda: "now") == "now"
    assert done == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda turns, work: turns.run(work),
        lambda turns, work: turns.run_soon(0.0, work),
        lambda turns, work: turns.submit(work).result(),
    ],
    ids=["waits", "soon", "given away"],
)
def test_an_error_ends_the_turn_and_comes_to_who_asked(turns: SerialExecutor, ask: Ask) -> None:
    with pytest.raises(ZeroDivisionError):
        ask(turns, lambda: 1 // 0)
    assert turns.run_soon(60.0, lambda: "free") == "free"


def test_our_thread_does_all_it_was_given_in_that_order(turns: SerialExecutor) -> None:
    done: list[int] = []
    for number in range(MANY):
        turns.submit(done.append, number)
    turns.close()
    assert done == list(range(MANY))
