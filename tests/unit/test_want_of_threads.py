"""A machine that has no thread to give ends no loop: who needs one waits, fails alone, goes on.

Python raises `RuntimeError` there, which no handler of `OSError` sees.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wattherd.devices.wire import cooperative_io, http_client
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.devices.wire.threads import begun_pool
from wattherd.devices.wire.timeouts import TimedCalls
from wattherd.local.devices import slots
from wattherd.local.executor import LocalExecutor
from wattherd.model.command import SetCap
from wattherd.model.event import Event
from wattherd.server.api.connections import ConnectionLimits, server_of
from wattherd.server.periodic import PeriodicThread


class _Want:
    """While it is on, no thread begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        begin = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.on:
                raise RuntimeError("can't start new thread")
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def want(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Want]:
    found = _Want(monkeypatch)
    yield found
    found.on = False


def test_a_pool_has_all_its_threads_before_they_are_needed(want: _Want) -> None:
    pool = begun_pool(3, "early")
    want.on = True
    meet = threading.Barrier(3)
    assert sorted(one.result(10) for one in [pool.submit(meet.wait, 10) for _ in range(3)]) == [
        0, 1, 2,
    ]  # fmt: skip
    pool.shutdown()
    with pytest.raises(OSError, match="1 threads cannot be had"):
        begun_pool(1, "late")


def test_a_pool_that_cannot_be_begun_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="3 threads cannot be had"):
        begun_pool(3, "half")
    for one in begun:
        one.join(10)
        assert not one.is_alive()


class _Caps:
    """Devices that take any cap."""

    def __init__(self) -> None:
        self.set_to: list[float | None] = []

    def set(self, _: Any, cap_w: float | None) -> bool:
        self.set_to.append(cap_w)
        return True


def test_an_order_for_a_cap_needs_no_new_thread(tmp_path: Path, want: _Want) -> None:
    """The core's thread gives it: an error there would stop the core."""
    told: list[Event] = []
    executor = LocalExecutor(tmp_path, slots("here", 1), told.append, caps=cast("Any", _Caps()))
    want.on = True
    executor.cap(SetCap(job_id="j-1", attempt=1, cap_w=100.0))
    executor.close()


def test_a_look_at_runs_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = LocalExecutor(tmp_path, slots("here", 1), lambda _: None)
    real, failing = executor.look, threading.Event()
    failing.set()

    def look() -> list[Event]:
        if failing.is_set():
            raise RuntimeError("can't start new thread")
        return real()

    monkeypatch.setattr(executor, "look", look)
    executor.adopt([])
    assert _soon(lambda: executor.failure == "can't start new thread")
    failing.clear()
    assert _soon(lambda: executor.failure == "")
    executor.close()


class _Looks(PeriodicThread):
    def __init__(self) -> None:
        super().__init__("looks", 0.005)
        self.wrong, self.seen = True, 0

    def look(self) -> None:
        self.seen += 1
        if self.wrong:
            raise RuntimeError("can't start new thread")


def test_rounds_go_on_after_a_look_that_failed_and_say_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = _Looks()
    with caplog.at_level(logging.ERROR):
        looks.begin()
        assert _soon(lambda: looks.seen > 3)
    assert looks.failure == "looks: can't start new thread"
    assert len(caplog.records) == 1
    looks.wrong = False
    assert _soon(lambda: looks.failure == "")
    looks.end()


def test_calls_that_block_wait_for_a_thread_and_are_made(want: _Want) -> None:
    crew = cooperative_io._Crew("crew", usual=2)
    done = threading.Event()
    want.on = True
    crew.submit(done.set)  # in the asking thread an error would end the round of all devices
    crew.tend()
    assert not done.is_set()
    want.on = False
    crew.tend()
    assert done.wait(10)
    meet = threading.Barrier(2)
    for _ in range(2):  # none of those that could not begin counts as one that did
        crew.submit(lambda: cast("None", meet.wait(10)))
    assert _soon(lambda: meet.n_waiting == 0 and crew._calls.empty())
    assert not meet.broken


def test_a_name_that_no_thread_can_look_up_is_an_error_of_the_network(want: _Want) -> None:
    want.on = True
    with pytest.raises(OSError, match="no thread"):
        http_client._addresses("name.invalid", 80, time.monotonic() + 5)


def test_a_device_that_no_thread_can_ask_gives_no_answer(want: _Want) -> None:
    calls = TimedCalls(1.0)
    want.on = True
    with pytest.raises(DeviceError, match="no thread"):
        calls.ask(lambda: 1)
    want.on = False
    assert calls.ask(lambda: 1) == 1


def test_requests_are_answered_by_threads_that_are_there(want: _Want) -> None:
    async def app(scope: Any, _: Any, send: Any) -> None:
        assert scope["type"] == "http"
        said = await asyncio.to_thread(lambda: b"from a thread")
        head = [(b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": said})

    listener = socket.create_server(("127.0.0.1", 0))
    server = server_of(app, ConnectionLimits(), lifespan="off")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert _soon(lambda: server.started)
    want.on = True
    asked = http.client.HTTPConnection(*listener.getsockname(), timeout=10)
    asked.request("GET", "/")
    answer = asked.getresponse()
    assert (answer.status, answer.read()) == (200, b"from a thread")
    want.on = False
    asked.close()
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def test_health_tells_what_a_thread_fails_at() -> None:
    from wattherd.server.site.site import LiveSite

    looks = _Looks()
    looks.try_look()
    still = SimpleNamespace(failure="")
    site = SimpleNamespace(meter=still, notices=still, signals=still, faults=still, idle=still,
                           notifier=looks, rates=None, limits=None, executor=still)  # fmt: skip
    assert LiveSite.failing(cast("Any", site)) == "looks: can't start new thread"
    site.executor = SimpleNamespace(failure="no")
    assert LiveSite.failing(cast("Any", site)) == "no"


def _soon(true: Any) -> bool:
    end_s = time.monotonic() + 10
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True
