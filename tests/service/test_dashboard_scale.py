"""Pages of a large site: 10,000 jobs wait for 1,000 devices."""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Iterator

import pytest
from dashboard_site import MOST_S, Dashboard, a_dashboard, until

from wattherd.workload.job_file import JobFile

pytestmark = pytest.mark.long

JOBS, DEVICES = 10_000, 1000
MOST_PAGE_S = 1.0
"""Also on a busy machine; docs/guides/dashboard.md tells what was measured on a quiet one."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    state = tmp_path_factory.mktemp("large") / "state"
    with a_dashboard(state, slots=DEVICES, budget="1MW") as dashboard:
        first = dashboard.submit("sleep 600", gpus=DEVICES)
        until(lambda: dashboard.state(first) == "Running")
        file = JobFile.model_validate({"run": "true", "gpus": 2, "name": "one-of-many"})
        spec = file.spec(user="ann")
        keeper = dashboard.site.keeper
        done = [keeper.submit(spec, file.paper(), by="ann") for _ in range(JOBS)]
        done[-1].result(MOST_S)
        yield dashboard


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
        begun_s = time.monotonic()
        with urllib.request.urlopen(large.url + path) as answer:
            text = answer.read().decode()
        took_s.append(time.monotonic() - begun_s)
    print(f"{path}: {1000 * statistics.median(took_s):.0f} ms, {len(text)} B")
    assert part in text
    assert len(text) < 250_000
    assert statistics.median(took_s) < MOST_PAGE_S
