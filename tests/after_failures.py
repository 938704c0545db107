"""What a failed test left behind is its own affair: no later test fails of it.

A test that fails leaves its frames, and with them its sockets, files and processes, to whoever
collects garbage next; with warnings as errors, that test fails. Here the garbage of a failed test
is collected at its end, in silence, and its processes are held until the run is over, then killed.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

_LAST = ("last_exc", "last_value", "last_type", "last_traceback")
"""Where pytest leaves the latest failure for a debugger, frames and all."""


class AfterFailures:
    """One for each run, or for each worker of one."""

    def __init__(self) -> None:
        self._failed = False
        self._left: list[subprocess.Popen[Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        self._failed |= call.excinfo is not None and not call.excinfo.errisinstance(
            (pytest.skip.Exception, pytest.xfail.Exception)
        )
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if self._failed:
                self._failed = False
                self._tidy()

    def _tidy(self) -> None:
        """Processes are known before their last owner goes; fixtures may still end theirs."""
        self._left += [
            found
            for found in gc.get_objects()
            if issubclass(type(found), subprocess.Popen)  # a weak proxy's `isinstance` may raise
            and found.returncode is None
            and not any(found is known for known in self._left)
        ]
        for name in _LAST:
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        for process in self._left:
            if process.poll() is None:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10.0)
        self._left.clear()
