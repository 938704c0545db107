"""A start on a full disk, or with a call that fails: it works, or says why and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from failing_calls import Site as Call
from failing_calls import sites_of, watching
from serving import WATTHERD, Serving

from wattherd.errors import ClusterError, UserError, WattherdError
from wattherd.model.event import BudgetChanged
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import LiveSite, open_site

pytestmark = pytest.mark.long

MOST_S = 30.0


def start(state: Path, **config: Any) -> LiveSite:
    given = {"state": state, "slots": 2, "budget": "9W", **config}
    return open_site(ServeConfig.model_validate(given))


def lived(state: Path) -> None:
    """A service has been there, and a job waits."""
    site = start(state)
    try:
        spec = JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=1, command=("true",)),),
                       begin_s=3600.0)  # fmt: skip
        site.keeper.submit(spec, {}, by="ann").result(MOST_S)
        site.catch_up()
    finally:
        site.close()


def in_use() -> Counter[str]:
    """Threads of this process, and its files."""
    found = Counter(thread.name for thread in threading.enumerate())
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            file = str(one.readlink())
            found[file] += not file.startswith("/proc")
    return found


def left(before: Counter[str]) -> Counter[str]:
    """What is still there of what came since; a thread that was told to end takes a moment."""
    deadline = time.monotonic() + MOST_S
    while in_use() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    return in_use() - before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "wattherd-test", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.call(mount, stderr=-3):
        pytest.skip("only root can mount a small disk, where that is allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("ab", 0) as filler:
        while True:
            filler.write(b"x" * 4096)


READER = """import sqlite3, sys
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT count(*) FROM entries").fetchall()
print("reads", flush=True)
sys.stdin.read()"""


@contextlib.contextmanager
def reading(state: Path) -> Iterator[None]:
    """Somebody looks at the store meanwhile, so that SQLite's files beside it are there."""
    argv = [sys.executable, "-c", READER, str(state / "journal.sqlite")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"reads\n"
        try:
            yield
        finally:
            other.communicate(timeout=MOST_S)


def test_a_service_starts_on_a_full_disk_where_nothing_is_new(small_disk: Path) -> None:
    state = small_disk / "state"
    lived(state)
    with reading(state):
        fill(small_disk)
        before = in_use()
        site = start(state)
        try:
            assert site.look(lambda look: sorted(look.core.jobs)) == ["j-1"]
            asked = site.keeper.post(BudgetChanged(at_s=0.0, budget_w=8.0), by="ann")
            with pytest.raises(ClusterError, match="full"):
                asked.result(MOST_S)
        finally:
            site.close()
        assert left(before) == {}


@pytest.mark.parametrize("edited", [{"budget": "8W"}, {"policy": "fifo"}])
def test_a_start_that_has_to_write_on_a_full_disk_fails_and_leaves_nothing(
    small_disk: Path, edited: dict[str, Any]
) -> None:
    state = small_disk / "state"
    lived(state)
    with reading(state):
        fill(small_disk)
        before = in_use()
        with pytest.raises(ClusterError, match="full"):
            start(state, **edited)
        assert left(before) == {}
        (small_disk / "filler").unlink()
        start(state, **edited).close()


def test_a_disk_without_room_for_the_store_is_said(small_disk: Path) -> None:
    state = small_disk / "state"
    lived(state)
    fill(small_disk)
    before = in_use()
    with pytest.raises(UserError) as said:
        start(state)
    assert "full" in (said.value.hint or "")
    assert left(before) == {}


def fails_at(call: Call, first: Path, folder: Path) -> str:
    """What goes wrong where one call of a start fails; empty if nothing does."""
    state = folder / "state"
    shutil.copytree(first, state)
    before = in_use()
    try:
        with watching(folder, call) as watch:
            site = start(state)
    except WattherdError:
        site = None
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        return f"{call}: {type(error).__name__}: {error}"
    if site is not None:
        site.close()
    if found := left(before):
        return f"{call}: left {found}"
    try:
        start(state).close()
    except WattherdError as error:
        return f"{call}: no later start: {error}" if watch.fired else ""
    return ""


def calls_of_a_start(first: Path, folder: Path) -> list[Call]:
    state = folder / "state"
    shutil.copytree(first, state)
    with watching(folder) as watch:
        site = start(state)
    site.close()
    return [one for one in sites_of(watch.seen) if one.path.startswith("ROOT")]


def tried(tmp_path: Path, most: int | None) -> None:
    first = tmp_path / "first"
    lived(first)
    calls = calls_of_a_start(first, tmp_path / "recorded")
    assert len(calls) > 20
    if most is not None:
        calls = random.Random(1).sample(calls, most)
    wrong = [fails_at(one, first, tmp_path / f"at-{at}") for at, one in enumerate(calls)]
    told = [one for one in wrong if one]
    assert not told, "\n".join(told)


def test_a_start_outlives_calls_that_fail_or_says_why(tmp_path: Path) -> None:
    tried(tmp_path, 12)


@pytest.mark.slow
def test_a_start_outlives_each_call_that_fails_or_says_why(tmp_path: Path) -> None:
    tried(tmp_path, None)


def test_a_service_starts_and_works_where_nothing_can_be_said(tmp_path: Path) -> None:
    """Its log lies on a full disk, or whoever read it has gone."""
    serving = Serving(tmp_path / "state")
    with Path("/dev/full").open("ab") as full:
        serving.process = subprocess.Popen(
            [*WATTHERD, "serve", "--state", str(serving.state), "--port", str(serving.port),
             "--slots", "1", "--log", "text"],
            stderr=full,
        )  # fmt: skip
    try:
        serving.errors.write_text("")
        serving.ready()
        job = serving.ask("jobs", {"run": "true"})["id"]
        serving.wait_for(job, "Succeeded")
    finally:
        serving.end()
