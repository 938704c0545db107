"""Tests against real servers, started on loopback by the tests and stopped by them.

Where a server is absent its tests are skipped with the reason; with WATTHERD_NEED_SERVERS set (as
`.ci/run` does, after `make test-servers`) such a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import Postgres

_NEEDED = bool(os.environ.get("WATTHERD_NEED_SERVERS"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """A test that was skipped for want of a server."""
    del item, call
    report: Any = yield
    if _NEEDED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where servers are required: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A module that was skipped for want of a library."""
    del collector
    report: Any = yield
    if _NEEDED and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped where servers are required: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for all tests; whoever kills it starts it again."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
