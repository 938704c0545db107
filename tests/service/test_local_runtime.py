"""Real processes under a real supervisor, ordered by a real core."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_site import MOST_S, Site, until

from wattherd.local import cgroups, processes, run_dir
from wattherd.local.observation import certain
from wattherd.local.orphans import end_stray
from wattherd.model.command import SetCap
from wattherd.model.event import JobCancelled, JobHeld
from wattherd.testing.live import MemoryJournal


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
    assert "no such file" in end["why"]


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


@pytest.mark.long
def test_who_ignores_the_stop_is_killed_with_all_that_hides(site: Site) -> None:
    job = site.submit("trap '' TERM; setsid sleep 987 & sleep 987", grace_s=0.5)
    site.wait(job, "Running")
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
    assert not [pid for pid in certain(processes.all_pids()) or () if "987" in _line(pid)]


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.long
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


@pytest.mark.long
def test_a_killed_supervisor_takes_its_tasks_along(site: Site) -> None:
    job = site.submit("sleep 986")
    site.wait(job, "Running")
    who = run_dir.read(site.root / job / "run-1" / run_dir.BEGUN)
    assert who is not None
    os.kill(who["pid"], signal.SIGKILL)
    site.wait(job, "Failed")
    until(lambda: not [pid for pid in certain(processes.all_pids()) or () if "986" in _line(pid)])


def test_reports_reach_the_core_whatever_else_is_written(site: Site) -> None:
    lines = ["no json", '{"step": 7, "loss": 0.5}', '{"step": "x"}']
    job = site.submit(
        f"printf '%s\\n' '{lines[0]}' '{lines[1]}' >> $WATTHERD_PROGRESS; sleep 1;"
        f" echo '{lines[2]}' >> $WATTHERD_PROGRESS; sleep 987"
    )
    site.wait(job, "Running")
    until(lambda: site.keeper.ask(lambda core: core.jobs[job].progress).result(MOST_S) == 7.0)
    assert site.keeper.ask(lambda core: core.jobs[job].loss).result(MOST_S) == 0.5


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
@needs_cgroups
def test_a_fork_bomb_stays_in_its_group(site: Site) -> None:
    job = site.submit(["python3", "-c", BOMB], paper={"processes": 40}, grace_s=0.0)
    site.wait(job, "Running")
    time.sleep(0.5)
    inside = cgroups.find().pids
    assert inside is not None
    order = run_dir.read(site.root / job / "run-1" / run_dir.ORDER)
    assert order is not None
    assert int((inside / order["group"] / "pids.current").read_text()) <= 40
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")


@pytest.mark.long
@needs_cgroups
def test_a_cap_is_a_duty_of_the_processor(site: Site) -> None:
    job = site.submit("while :; do :; done")
    site.wait(job, "Running")
    half_w = (site.machine.gpu.idle_w + site.machine.gpu.max_w) / 2
    site.executor.cap(SetCap(job_id=job, attempt=1, cap_w=half_w))
    heeded = site.root / job / "run-1" / run_dir.HEEDED
    until(lambda: heeded.exists() and json.loads(heeded.read_text())["duty"] == 0.475)
    time.sleep(1.2)
    before = run_dir.read(site.root / job / "run-1" / run_dir.USAGE)
    time.sleep(3)
    after = run_dir.read(site.root / job / "run-1" / run_dir.USAGE)
    assert before is not None
    assert after is not None
    cores = (after["cpu_s"] - before["cpu_s"]) / (after["at"] - before["at"])
    assert 0.2 < cores < 0.6


@pytest.mark.long
def test_two_services_do_not_meet_in_a_control_group(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other", MemoryJournal())
    job, same = site.submit("sleep 985"), other.submit("sleep 0.1")
    assert job == same
    site.wait(job, "Running")
    other.wait(same, "Succeeded")  # whose end kills all that is left in its group
    time.sleep(0.3)
    assert site.state(job) == "Running"
    other.keeper.end()
