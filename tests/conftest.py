"""What every folder of tests may use."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# As the command line does, and before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# No test talks to a service that whoever runs it has logged in to.
os.environ["XDG_CONFIG_HOME"] = os.devnull
# No result is taken from a run before, but where a test says so.
os.environ["WATTHERD_CACHE"] = "off"

import pytest
from hypothesis import settings

from after_failures import AfterFailures
from promises import PromiseBroken

REPOSITORY = Path(__file__).resolve().parents[1]

# jsonschema builds forty grammars on import, four seconds, to check addresses that no test has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Kernels compile on their first call, which no deadline should mistake for a slow property.
settings.register_profile("dev", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_REAL = ("tests/contract/", "tests/kube/", "tests/servers/", "tests/service/")
"""Real processes, servers and clocks at work, which a busy machine can hold up."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These get one more try, few in a whole run, and what failed first is told in full."""
    for item in items:
        if item.nodeid.startswith(_REAL):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=PromiseBroken))


@pytest.fixture
def knows_localhost() -> None:
    """A root that holds packages and nothing else has no /etc/hosts."""
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        pytest.skip("this machine does not know the name localhost (/etc/hosts)")


def pytest_collection_finish() -> None:
    """What is collected stays until the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


_LEFT_OUT = {
    "kube": "on a Kubernetes control plane (make test-all, make test-kube)",
    "slow": "minutes each (make test-slow)",
    "long": "real processes and servers, whole searches, seconds each (make test-all)",
}
"""What a run may leave out, by marker, and how to run it; a test counts for the first it has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """A long run in two parts: the second leaves out what the first has passed."""
    group = parser.getgroup("two parts")
    group.addoption("--write-passed", type=Path, help="write the names of tests that passed")
    group.addoption("--skip-passed", type=Path, help="leave out the tests that such a file names")


class _LeftOut:
    """Counts what is deselected, in whichever process collects, and tells it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._passed: dict[str, bool] = {}
        self.counts: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        known: Path | None = config.getoption("--skip-passed")
        before = set(known.read_text(encoding="utf-8").splitlines()) if known else set()
        passed = [item for item in items if item.nodeid in before]
        if passed:
            items[:] = [item for item in items if item.nodeid not in before]
            config.hook.pytest_deselected(items=passed)
            self.counts["passed in the part before"] += len(passed)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            for marker, how in _LEFT_OUT.items():
                if item.get_closest_marker(marker):
                    self.counts[how] += 1
                    break

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        so_far = self._passed.get(report.nodeid, True)
        self._passed[report.nodeid] = so_far and report.outcome == "passed"

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:  # a worker of xdist: whoever started it tells
            output["left_out"] = dict(self.counts)
            return
        written: Path | None = self._config.getoption("--write-passed")
        if written:
            names = sorted(name for name, passed in self._passed.items() if passed)
            written.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts = Counter(getattr(node, "workeroutput", {}).get("left_out", {})) or self.counts

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for how, count in sorted(self.counts.items()):
            terminalreporter.write_line(f"left out: {count} tests, {how}")


def pytest_configure(config: pytest.Config) -> None:
    """A run says what it leaves out, and a failure stays with the test that failed."""
    config.pluginmanager.register(_LeftOut(config), "what is left out")
    config.pluginmanager.register(AfterFailures(), "after failures")


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Bytes name no test: a compressed file holds its hour, and workers must agree on names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def _handlers_of_signals_are_put_back() -> Iterator[None]:
    """A test that leaves a handler behind fails itself, and not whoever asks about signals next."""
    known = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in known]
    yield
    assert [signal.getsignal(number) for number in known] == before


@pytest.fixture(scope="session")
def openb() -> Path:
    """The openb traces, found by WATTHERD_DATA; the test is skipped where they are absent."""
    data = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
    folder = data / "openb"
    if not (folder / "openb_node_list_gpu_node.csv").is_file():
        pytest.skip(f"no openb traces in {folder}; set WATTHERD_DATA")
    return folder


@pytest.fixture(scope="session")
def traces() -> Path:
    """Published job traces, found by WATTHERD_DATA; the test is skipped where they are absent."""
    data = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
    if not (data / "traces").is_dir():
        pytest.skip(f"no traces in {data / 'traces'}; set WATTHERD_DATA")
    return data / "traces"
