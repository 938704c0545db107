"""Pages and lists of a large site: 10,000 jobs wait for 1,000 devices."""

from __future__ import annotations

import os
import pty
import resource
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest
from dashboard_site import MOST_S, Dashboard, a_dashboard, until
from serving import WATTHERD

from wattherd.workload.job_file import JobFile

pytestmark = pytest.mark.long

JOBS, DEVICES = 10_000, 1000
MOST_PAGE_S = 1.0
"""Of the processor, which others' work spares; docs/guides/dashboard.md tells what a clock said."""
MOST_QUEUE_S = 1.0
"""From the shell to the last line, Python's start and the service's part included."""
TRIES = 4
NAME = "one-of-many-" + "x" * 68
"""As long as a name may be: a narrow terminal has no room for it."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    state = tmp_path_factory.mktemp("large") / "state"
    with a_dashboard(state, slots=DEVICES, budget="1MW") as dashboard:
        first = dashboard.submit("sleep 600", gpus=DEVICES)
        until(lambda: dashboard.state(first) == "Running")
        file = JobFile.model_validate({"run": "true", "gpus": 2, "name": NAME})
        spec = file.spec(user="ann")
        keeper = dashboard.site.keeper
        done = [keeper.submit(spec, file.paper(), by="ann") for _ in range(JOBS)]
        done[-1].result(MOST_S)
        yield dashboard


def worked_s() -> float:
    """Seconds of the processor up to now: of this process, the service in it, and its children."""
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + theirs.ru_utime + theirs.ru_stime


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/", "10,000"),
        ("/cluster", "1 of 2"),
        ("/timeline", "1 of 25"),
        ("/queue", "1 of 200"),
        ("/queue?page=200", "j-10001"),
        ("/queue?q=j-9999", "j-9999"),
        ("/jobs/j-777", "number 776 in the queue"),
        ("/decisions?q=j-777", "j-777"),
    ],
)
def test_pages_stay_small_and_quick(large: Dashboard, path: str, part: str) -> None:
    took_s = []
    for _ in range(5):
        begun_s = worked_s()
        with urllib.request.urlopen(large.url + path) as answer:
            text = answer.read().decode()
        took_s.append(worked_s() - begun_s)
    print(f"{path}: {1000 * statistics.median(took_s):.0f} ms, {len(text)} B")
    assert part in text
    assert len(text) < 250_000
    assert statistics.median(took_s) < MOST_PAGE_S


def asked(dashboard: Dashboard, *words: str) -> subprocess.CompletedProcess[str]:
    """What a pipe gets, although whoever made it sits at a narrow terminal."""
    return subprocess.run(
        [*WATTHERD, *words], capture_output=True, text=True, timeout=MOST_S, check=True,
        env={**os.environ, "WATTHERD_SERVER": dashboard.url, "COLUMNS": "30"},
    )  # fmt: skip


def at_terminal(dashboard: Dashboard, *words: str) -> str:
    """What somebody sees at a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "WATTHERD_SERVER": dashboard.url, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen([*WATTHERD, *words], env=env, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        try:
            while some := os.read(ours, 65_536):
                shown += some
        except OSError:  # how Linux says that nobody writes there any more
            pass
        finally:
            os.close(ours)
    assert running.returncode == 0, shown
    return shown.decode()


def test_the_queue_is_seen_page_by_page_within_a_second(large: Dashboard) -> None:
    took_s = []
    for _ in range(TRIES):
        begun_s = worked_s()
        shown = at_terminal(large, "queue")
        took_s.append(worked_s() - begun_s)
    print(f"queue at a terminal: {min(took_s):.2f} s, median {statistics.median(took_s):.2f} s")
    assert "of 10,001 jobs; the next: --after j-" in shown
    assert len(shown) < 100_000
    assert min(took_s) < MOST_QUEUE_S
    after = shown.partition("--after ")[2].split(";")[0].split()[0]
    following = asked(large, "queue", "--after", after, "-n", "2", "-o", "name").stdout
    assert following.split() == [f"j-{int(after[2:]) + number}" for number in (1, 2)]


def test_a_pipe_gets_every_job_and_every_letter(large: Dashboard) -> None:
    """Neither a terminal that is narrow nor the number of jobs shortens what another program reads.

    Who asks and the service are told in one sum.
    """
    before_s = worked_s()
    said = asked(large, "queue")
    took_s = worked_s() - before_s
    print(f"queue into a pipe: {took_s:.2f} s of the processor")
    assert took_s < 3 * MOST_QUEUE_S
    assert said.stderr == ""
    rows = [line.split() for line in said.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == [f"j-{number + 1}" for number in range(JOBS + 1)]
    assert {row[1] for row in rows[1:]} == {NAME}
    assert all(row[-2:] == ["by", "Priority)"] or "WaitingForGpus:" in row for row in rows[1:])
    assert "…" not in said.stdout
    names = asked(large, "queue", "-o", "name").stdout.split()
    assert names == [row[0] for row in rows]
