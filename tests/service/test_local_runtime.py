"""Real processes under a real supervisor, ordered by a real core."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattherd.engine.core import Core, CoreConfig
from wattherd.estimate.power_curve import prior_curve
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import SetCap
from wattherd.model.event import JobCancelled, JobHeld
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.runtime.local import cgroups, processes, run_dir
from wattherd.runtime.local.devices import Machine, slots
from wattherd.runtime.local.executor import LocalExecutor, end_stray
from wattherd.service.live.keeper import Keeper
from wattherd.testing.live import MemoryJournal, SetClock

MOST_S = 30.0


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + MOST_S
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


class Site:
    """One server's life on a folder that may have seen others."""

    def __init__(self, root: Path, journal: MemoryJournal) -> None:
        self.root, self.journal = root, journal
        self.machine = slots("here", 2)
        core = Core(_config(self.machine))
        self.keeper = Keeper(core, journal, _Since())
        self.executor = LocalExecutor(root, self.machine, self.keeper.tell)
        self.keeper.recover(self.executor)
        self.keeper.begin()

    def submit(
        self, run: str | list[str], *, slots: int = 1, paper: Any = None, **more: Any
    ) -> str:
        role = TaskRole(command=_command(run), memory_mib=more.pop("memory_mib", 0))
        spec = JobSpec(id="new", submit_s=0.0, roles=(role,), **more)
        return self.keeper.submit(spec, paper or {}, by="ann").result(MOST_S)

    def state(self, job_id: str) -> str:
        def look(core: Core) -> str:
            job = core.jobs.get(job_id)
            return str(job.state if job else core.finished[job_id])

        return self.keeper.ask(look).result(MOST_S)

    def wait(self, job_id: str, state: str) -> None:
        until(lambda: self.state(job_id) == state)

    def log(self, job_id: str, attempt: int = 1) -> str:
        return (self.root / job_id / f"run-{attempt}" / "logs" / "0.log").read_text()

    def die(self) -> None:
        """As by kill -9: nobody is told anything."""
        self.keeper._over.set()
        self.executor._over.set()
        self.keeper._inbox.put(None)
        self.keeper._thread.join()


class _Since(SetClock):
    def now_s(self) -> float:
        return time.monotonic()


def _command(run: str | list[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", run) if isinstance(run, str) else tuple(run)


def _config(machine: Machine) -> CoreConfig:
    return CoreConfig(
        cluster=ClusterSpec((machine.node,)),
        planner=Drf(),
        round_s=0.0,
        gpus={machine.gpu.name: machine.gpu},
        curve_of=lambda spec, model: prior_curve(machine.gpu),
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, MemoryJournal())
    yield site
    site.keeper.end()
    for folder in tmp_path.glob("*/run-*"):
        end_stray(folder)


def test_a_job_runs_and_ends(site: Site) -> None:
    job = site.submit("echo hello from $WATTHERD_JOB_ID; pwd")
    site.wait(job, "Succeeded")
    assert site.log(job) == f"hello from {job}\n{site.root / job / 'work'}\n"


def test_a_failing_job_is_tried_again_and_fails(site: Site) -> None:
    job = site.submit("exit 3", restarts=1)
    site.wait(job, "Failed")
    ends = [run_dir.read(site.root / job / f"run-{n}" / "exit.json") for n in (1, 2)]
    assert [end["exit_code"] for end in ends if end] == [3, 3]


def test_what_cannot_be_run_says_why(site: Site) -> None:
    job = site.submit(["/no/such/program"])
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / "exit.json")
    assert end is not None
    assert "No such file" in end["why"]


def test_a_held_job_gets_sigterm_and_goes_on_later(site: Site) -> None:
    job = site.submit(
        'trap "echo saved; exit 143" TERM; echo attempt $WATTHERD_ATTEMPT;'
        " while [ $WATTHERD_ATTEMPT = 1 ]; do sleep 0.05; done",
        grace_s=10.0,
    )
    until(lambda: (site.root / job / "run-1" / "logs" / "0.log").exists())
    until(lambda: "attempt 1" in site.log(job))
    site.keeper.post(JobHeld(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Held")
    assert site.log(job).endswith("saved\n")


def test_who_ignores_the_stop_is_killed_with_all_that_hides(site: Site) -> None:
    job = site.submit("trap '' TERM; setsid sleep 987 & sleep 987", grace_s=0.5)
    site.wait(job, "Running")
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
    assert not [pid for pid in processes.parents() if "987" in _line(pid)]


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_successor_finds_what_runs_and_what_ended_meanwhile(site: Site, tmp_path: Path) -> None:
    short, long = site.submit("sleep 0.5; echo one"), site.submit("sleep 1.5; echo two")
    waiting = site.submit("echo three")
    site.wait(short, "Running")
    site.wait(long, "Running")
    site.die()
    until(lambda: (tmp_path / short / "run-1" / "exit.json").exists())
    successor = Site(tmp_path, MemoryJournal(site.journal.kept))
    for job in (short, long, waiting):
        successor.wait(job, "Succeeded")
        assert [one.name for one in sorted((tmp_path / job).glob("run-*"))] == ["run-1"]
    assert (successor.log(short), successor.log(long)) == ("one\n", "two\n")
    successor.keeper.end()


def test_a_killed_supervisor_takes_its_tasks_along(site: Site) -> None:
    job = site.submit("sleep 986")
    site.wait(job, "Running")
    who = run_dir.read(site.root / job / "run-1" / run_dir.BEGUN)
    assert who is not None
    os.kill(who["pid"], signal.SIGKILL)
    site.wait(job, "Failed")
    until(lambda: not [pid for pid in processes.parents() if "986" in _line(pid)])


def test_reports_reach_the_core_whatever_else_is_written(site: Site) -> None:
    lines = ["no json", '{"step": 7, "loss": 0.5}', '{"step": "x"}']
    job = site.submit(
        f"printf '%s\\n' '{lines[0]}' '{lines[1]}' >> $WATTHERD_PROGRESS; sleep 1;"
        f" echo '{lines[2]}' >> $WATTHERD_PROGRESS; sleep 987"
    )
    site.wait(job, "Running")
    until(lambda: site.keeper.ask(lambda core: core.jobs[job].progress).result(MOST_S) == 7.0)
    assert site.keeper.ask(lambda core: core.jobs[job].loss).result(MOST_S) == 0.5


def test_secrets_reach_the_job_and_no_file(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOURCE", "open-sesame")
    job = site.submit(
        "echo ${KEY%sesame} ${#KEY}; printf open-; sleep 0.3; printf 'ses'; sleep 0.1; printf ame",
        paper={"secrets": {"KEY": "env:SOURCE"}},
    )
    site.wait(job, "Succeeded")
    assert site.log(job) == "open- 11\n***"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"open-sesame" not in path.read_bytes()


needs_cgroups = pytest.mark.skipif(
    not cgroups.find().complete, reason=f"cgroups: {cgroups.find().why_not}"
)


@needs_cgroups
def test_a_job_cannot_have_more_memory_than_it_asked_for(site: Site) -> None:
    job = site.submit(["python3", "-c", "x = bytearray(200 << 20); print(len(x))"], memory_mib=64)
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / "exit.json")
    assert end is not None
    assert (end["exit_code"], end["why"]) == (137, "out of memory")


BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@needs_cgroups
def test_a_fork_bomb_stays_in_its_group(site: Site) -> None:
    job = site.submit(["python3", "-c", BOMB], paper={"processes": 40}, grace_s=0.0)
    site.wait(job, "Running")
    time.sleep(0.5)
    inside = cgroups.find().pids
    assert inside is not None
    assert int((inside / f"{job}-1" / "pids.current").read_text()) <= 40
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")


@needs_cgroups
def test_a_cap_is_a_duty_of_the_processor(site: Site) -> None:
    job = site.submit("while :; do :; done")
    site.wait(job, "Running")
    half_w = (site.machine.gpu.idle_w + site.machine.gpu.max_w) / 2
    site.executor.cap(SetCap(job_id=job, attempt=1, cap_w=half_w))
    heeded = site.root / job / "run-1" / run_dir.HEEDED
    until(lambda: heeded.exists() and json.loads(heeded.read_text())["duty"] == 0.5)
    time.sleep(1.2)
    before = run_dir.read(site.root / job / "run-1" / run_dir.USAGE)
    time.sleep(3)
    after = run_dir.read(site.root / job / "run-1" / run_dir.USAGE)
    assert before is not None
    assert after is not None
    cores = (after["cpu_s"] - before["cpu_s"]) / (after["at"] - before["at"])
    assert 0.2 < cores < 0.6
