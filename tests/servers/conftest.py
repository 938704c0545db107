"""Tests against real servers, started on loopback by the tests and stopped by them.

Where a server is absent its tests are skipped with the reason; with WATTHERD_NEED_SERVERS set (as
`.ci/run` does, after `make test-servers`) such a skip is a failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import Postgres

from wattherd.devices.meters.meter import Meter
from wattherd.devices.wire import cooperative_io
from wattherd.devices.wire.ipmitool import Ipmitool
from wattherd.hold.lines import InstrumentLine

_NEEDED = bool(os.environ.get("WATTHERD_NEED_SERVERS"))
_BUILT_BY_HAND = ("WATTHERD_OPENLEADR_VTN",)
"""Servers that no package brings; who has built one names it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """A test that was skipped for want of a server."""
    del item, call
    report: Any = yield
    if _is_lack(report) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where servers are required: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A module that was skipped for want of a library."""
    del collector
    report: Any = yield
    if _is_lack(report):
        report.outcome = "failed"
        report.longrepr = f"skipped where servers are required: {report.longrepr}"
    return report


def _is_lack(report: Any) -> bool:
    by_hand = any(name in str(report.longrepr) for name in _BUILT_BY_HAND)
    return _NEEDED and bool(report.skipped) and not by_hand


@pytest.fixture(params=["alone", "beside others"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meters are read as ever, and in the thread that asks thousands of them."""
    if request.param == "beside others":
        for owner, name in ((Meter, "read"), (Ipmitool, "run")):
            monkeypatch.setattr(owner, name, in_the_asking_thread(getattr(owner, name)))


def in_the_asking_thread(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, its answer or its error."""

    def asked(*arguments: Any) -> Any:
        if cooperative_io.aside():
            return call(*arguments)
        line = InstrumentLine(lambda: call(*arguments), concurrent=True)
        line.poll()
        assert line.wait(time.monotonic() + 60.0)
        if line.failure is not None:
            raise line.failure
        assert line.answer is not None
        return line.answer.value

    return asked


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for all tests; whoever kills it starts it again."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
