"""Each call of the operating system fails once: never a second run, a lost result, a wrong state.

Which calls there are is recorded in a first pass (`failing_calls`), for each of supervisor,
executor with its watcher, and transfer. A few of them fail in the quick tests, all in the slow one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import failing_calls
import pytest
from failing_calls import Site, sites_of, unseen, watching

from promises import PromiseBroken
from wattherd.engine.core.executor import RunOrder
from wattherd.errors import UserError, WattherdError
from wattherd.local import run_dir, run_lock
from wattherd.local.devices import slots
from wattherd.local.executor import LocalExecutor
from wattherd.local.observation import Present
from wattherd.local.orphans import end_stray
from wattherd.local.transfer import archive, program
from wattherd.model.allocation import Allocation, Request
from wattherd.model.command import SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobStarted, JobStopped
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import StopReason

pytestmark = pytest.mark.long

MOST_S = 180.0
"""Of one pass, which takes seconds: beside other work, starting Python alone takes ten."""
SAMPLE = 6
"""Sites of each kind that fail in the quick tests."""
EVERY = pytest.mark.timeout(6 * 3600)
"""There are 650 to 1,640 passes in a test: a quarter of an hour on two idle processors for the
longest, which is more than the limit of all other tests, and hours beside other work."""


def sampled(sites: Sequence[Site], seed: int) -> list[Site]:
    return random.Random(seed).sample(list(sites), min(SAMPLE, len(sites)))


def each(check: Callable[[Site], str], sites: Sequence[Site], at_once: int = 4) -> None:
    """Have each fail in a pass of its own; what went wrong is told at once, and all of it again."""
    wrong: list[str] = []
    with ThreadPoolExecutor(at_once) as pool:
        for site, told in zip(sites, pool.map(check, sites), strict=True):
            if told:
                wrong.append(f"{site}: {told}")
                print(wrong[-1], file=sys.stderr, flush=True)
    if wrong:
        raise PromiseBroken(f"{len(wrong)} of {len(sites)}:\n" + "\n".join(wrong))


def until(true: Callable[[], object]) -> bool:
    end_s = time.monotonic() + MOST_S
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


# The supervisor ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What a job does, and how its run is to end."""

    run: str
    code: int
    stopped: bool = False
    stop: bool = False
    staged: bool = False


ENDS = Story("echo began >> effects; echo hello; sleep 0.2; echo ended >> effects", 0)
STOPS = Story(
    # Ready to be stopped before anybody can know that it has begun.
    "trap 'echo ended >> effects; exit 143' TERM; echo hello; echo began >> effects;"
    " while :; do sleep 0.02; done",
    143, stopped=True, stop=True,
)  # fmt: skip
TAKES = Story(
    "echo began >> effects; echo hello; cat inputs/data; cp inputs/data outputs/result;"
    " echo ended >> effects", 0, staged=True,
)  # fmt: skip


def prepared(root: Path, story: Story, group: str) -> Path:
    """The directory of a run that waits for its supervisor."""
    folder, work = root / "j-1" / "run-1", root / "j-1" / "work"
    (folder / run_dir.LOGS).mkdir(parents=True)
    work.mkdir()
    order: dict[str, Any] = {
        "group": group, "env": {"PATH": os.environ["PATH"]}, "secrets": [],
        "tasks": [{"rank": 0, "role": "main", "argv": ["/bin/sh", "-c", story.run],
                   "cwd": str(work), "env": {"WATTHERD_RUN_DIR": str(folder)}}],
        "limits": {"cpus": None, "memory_bytes": None, "processes": 100}, "rlimits": {},
        "umask": "077", "user": None, "log_bytes": 1 << 20, "afterwards": [],
    }  # fmt: skip
    if story.staged:
        (root / "data").write_text("brought\n")
        plan = {"folder": str(work), "outputs": str(work / "outputs"), "s3": {},
                "bring": {str(work / "inputs" / "data"): str(root / "data")},
                "take": {"result": {"to": str(root / "result"), "when": "success"}}}  # fmt: skip
        run_dir.write(folder / run_dir.STAGING, plan)
        archive.write(folder / run_dir.TRANSFER)
        argv = [sys.executable, "-I", str(folder / run_dir.TRANSFER), str(folder / run_dir.STAGING)]
        order["staging"] = {"argv": argv, "env": {}, "secrets": [], "user": None}
    for spare in (run_dir.EXIT_SPARE, run_dir.STOP_SPARE):
        run_dir.set_aside(folder / spare)
    run_dir.write(folder / run_dir.CONTROL, {"duty": 1.0, "cap_w": None})
    run_dir.write(folder / run_dir.ORDER, order)
    return folder


def supervised(root: Path, story: Story, group: str, **environ: str) -> Path:
    """A run under a supervisor that is watched, to its end."""
    folder = prepared(root, story, group)
    log = (root / "supervisor.log").open("wb")
    with log, subprocess.Popen(
        [sys.executable, failing_calls.__file__, str(folder)], env={**os.environ, **environ},
        stdout=log, stderr=log,
    ) as supervisor:  # fmt: skip
        try:
            if story.stop and until((root / "j-1" / "work" / "effects").exists):
                stop = {"grace_s": 30.0, "by": time.time() + 30, "reason": "cancelled"}
                run_dir.write(folder / run_dir.CONTROL, {"duty": 1.0, "stop": stop})
            supervisor.wait(MOST_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
    return folder


def problem_of(folder: Path, story: Story, error: str) -> str:
    """What is wrong with the end of a run; empty if nothing is."""
    root = folder.parents[1]
    effects = root / "j-1" / "work" / "effects"
    lines = effects.read_text().split() if effects.exists() else []
    end = run_dir.read(folder / run_dir.EXIT)
    said = (root / "supervisor.log").read_text()[-600:]
    if end is None:
        return f"its end is lost: {lines} {said}"
    if error == "EACCES" and end["exit_code"] == 127 and not lines:
        return "" if "ermission" in end["why"] else f"no reason: {end}"  # it may not be run
    if (end["exit_code"], end["stopped"]) != (story.code, story.stopped):
        return f"a wrong end: {end} {said}"
    if lines != ["began", "ended"]:
        return f"ran as {lines}"
    log = folder / run_dir.LOGS / "0.log"
    printed = log.read_text() if log.exists() else ""
    if "hello" not in printed and "output are lost" not in printed:
        return f"lost what it printed: {printed!r} {said}"
    if story.staged and (root / "result").read_text() != "brought\n":
        return "its result was not taken"
    if run_lock.held(folder) != Present(value=False):
        return "something of it still runs"
    return ""


def recorded(tmp_path: Path, story: Story) -> list[Site]:
    rows = tmp_path / "sites.json"
    group = f"t-{os.getpid()}-{tmp_path.name}"  # others run these tests beside us
    folder = supervised(tmp_path / "first", story, group, RECORD_SITES=str(rows))
    assert problem_of(folder, story, "") == ""
    seen = {(call, path): times for call, path, times in json.loads(rows.read_text())}
    assert len(seen) > 30, seen
    return sites_of(Counter(seen))


def supervisor_fails(story: Story, site: Site) -> str:
    root = Path(tempfile.mkdtemp(prefix="wattherd-fault-"))
    folder = supervised(root, story, root.name, FAIL_SITE=json.dumps(site))
    try:
        return problem_of(folder, story, site.error)
    finally:
        end_stray(folder)
        shutil.rmtree(root, ignore_errors=True)


STORIES = pytest.mark.parametrize("story", [ENDS, STOPS, TAKES], ids=["ends", "stops", "takes"])


@STORIES
def test_a_supervisor_outlives_calls_that_fail(tmp_path: Path, story: Story) -> None:
    sites = sampled(recorded(tmp_path, story), seed=1)
    each(lambda site: supervisor_fails(story, site), sites)


@pytest.mark.slow
@EVERY
@STORIES
def test_a_supervisor_outlives_each_call_that_fails(tmp_path: Path, story: Story) -> None:
    each(lambda site: supervisor_fails(story, site), recorded(tmp_path, story))


# The executor, and how it watches ---------------------------------------------------------------

MACHINE = slots("here", 4)


class Driven:
    """An executor whose looks are taken by hand, in the thread that is watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told: list[Event] = []
        try:
            self.executor = LocalExecutor(root, MACHINE, self.told.append)
        except UserError:  # said at the start of a service, which is then started again
            self.executor = LocalExecutor(root, MACHINE, self.told.append)
        self.executor._thread = _NoThread()  # type: ignore[assignment]

    def looks_until(self, true: Callable[[], object]) -> bool:
        end_s = time.monotonic() + MOST_S
        while True:
            self.told.extend(self.executor.look())
            with unseen():
                if true():
                    return True
                if time.monotonic() > end_s:
                    return False
                time.sleep(0.02)

    def heard(self, kind: type[Event], job_id: str) -> bool:
        return any(isinstance(one, kind) and one.job_id == job_id for one in self.told)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.executor.close()


class _NoThread:
    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def ordered(job_id: str, run: str, attempt: int = 1) -> RunOrder:
    role = TaskRole(count=1, command=("/bin/sh", "-c", run))
    spec = JobSpec(id=job_id, submit_s=0.0, roles=(role,))
    place = Allocation(
        node=0, role=0, tasks=1, gpus=(0,), request=Request(cpu_milli=0, gpu_count=1)
    )
    start = StartJob(job_id=job_id, attempt=attempt, allocations=(place,))
    return RunOrder(spec=spec, paper={}, start=start)


def stop_of(job_id: str) -> StopJob:
    return StopJob(job_id=job_id, attempt=1, grace_s=30.0, reason=StopReason.USER_REQUEST)


LASTS = "echo began {0} >> {1}; sleep 0.3; echo ended {0} >> {1}"
HOLDS = (
    "trap 'echo ended {0} >> {1}; exit 143' TERM; echo began {0} >> {1};"
    " while :; do sleep 0.02; done"
)


class Watched(Driven):
    """An executor with its watcher: the thread that looks, whose calls alone are seen and fail."""

    def __init__(self, root: Path, watch: failing_calls.Watch) -> None:
        super().__init__(root)
        executor = self.executor

        def seen() -> None:
            failing_calls.begin(watch)
            executor._watch()

        executor._thread = threading.Thread(target=seen, name="executor", daemon=True)

    def looks_until(self, true: Callable[[], object]) -> bool:
        return until(true)


def two_lives(root: Path, effects: Path, begin: Callable[[Path], Driven] = Driven) -> Driven:
    """One job ends by itself, one is stopped, one is nobody's: under one executor and the next."""
    first = begin(root)
    first.executor.adopt([])
    orders = {job: ordered(job, run.format(job, effects))
              for job, run in (("j-1", LASTS), ("j-2", HOLDS), ("j-3", HOLDS))}  # fmt: skip
    for order in orders.values():
        first.executor.start(order)
    began = first.looks_until(
        lambda: all(first.heard(JobStarted, job) for job in orders)
        and effects.exists() and "began j-2" in effects.read_text()
    )  # fmt: skip
    first.executor.cap(SetCap(job_id="j-2", attempt=1, cap_w=None))
    first.close()
    assert began, first.told
    second = begin(root)
    second.told.extend(one for one in first.told if not isinstance(one, JobStarted))
    live = [orders[job] for job in ("j-1", "j-2") if not second.heard(JobExited, job)]
    second.executor.adopt(live)  # j-3 was forgotten, and is ended
    second.executor.stop(stop_of("j-2"))
    over = second.looks_until(
        lambda: second.heard(JobExited, "j-1") and second.heard(JobStopped, "j-2")
        and not second.executor._strays and second.executor._listed
    )  # fmt: skip
    with unseen():
        assert over, (second.told, second.executor.troubles)
        until(lambda: second.executor._reap() or first.executor._reap()
              or not first.executor._children | second.executor._children)  # fmt: skip
        assert not first.executor._children | second.executor._children, "a zombie stays"
    return second


def executor_problem(root: Path, site: Site | None) -> tuple[str, Counter[tuple[str, str]]]:
    with watching(root, site) as watch:
        return lives_problem(root, Driven), watch.seen


def watcher_problem(root: Path, site: Site | None) -> tuple[str, Counter[tuple[str, str]]]:
    failing_calls.install()
    watch = failing_calls.Watch(str(root), site)
    return lives_problem(root, lambda jobs: Watched(jobs, watch)), watch.seen


def lives_problem(root: Path, begin: Callable[[Path], Driven]) -> str:
    """What is wrong with the lives of three jobs; empty if nothing is."""
    effects = root / "effects"
    jobs = root / "jobs"
    try:
        second = two_lives(jobs, effects, begin)
    except AssertionError as error:
        return str(error)
    second.close()
    if second.executor.failure or second.executor.troubles:
        return f"in trouble to the end: {second.executor.failure} {second.executor.troubles}"
    ends = [one for one in second.told if isinstance(one, JobExited | JobStopped)]
    if len(ends) != 2:
        return f"ends told: {ends}"
    codes = {one.job_id: getattr(one, "exit_code", None) for one in ends}
    if codes != {"j-1": 0, "j-2": None}:
        return f"wrong ends: {codes}"
    lines = Counter(effects.read_text().splitlines())
    once = [f"{what} {job}" for job in ("j-1", "j-2") for what in ("began", "ended")]
    if {line: times for line, times in lines.items() if "j-3" not in line} != dict.fromkeys(
        once, 1
    ):
        return f"ran as {lines}"
    if lines["began j-3"] > 1 or run_lock.held(jobs / "j-3" / "run-1") == Present(value=True):
        return f"the stray was not ended, or ran twice: {lines}"
    return ""


def executor_fails(
    site: Site,
    problem: Callable[[Path, Site], tuple[str, Counter[tuple[str, str]]]] = executor_problem,
) -> str:
    root = Path(tempfile.mkdtemp(prefix="wattherd-fault-"))
    try:
        return problem(root, site)[0]
    finally:
        for folder in root.glob("jobs/*/run-*"):
            end_stray(folder)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def executor_sites(tmp_path: Path) -> list[Site]:
    problem, seen = executor_problem(tmp_path, None)
    assert problem == ""
    assert len(seen) > 60, seen
    return sites_of(seen)


def test_an_executor_is_right_though_calls_fail(executor_sites: list[Site]) -> None:
    each(executor_fails, sampled(executor_sites, seed=2))


@pytest.mark.slow
@EVERY
def test_an_executor_is_right_though_each_call_fails(executor_sites: list[Site]) -> None:
    each(executor_fails, executor_sites)


def watcher_fails(site: Site) -> str:
    return executor_fails(site, watcher_problem)


@pytest.fixture
def watcher_sites(tmp_path: Path) -> list[Site]:
    problem, seen = watcher_problem(tmp_path, None)
    assert problem == ""
    calls = {call for call, _ in seen}
    assert {"open", "os.fstat", "os.waitpid", "fcntl.flock", "os.remove"} <= calls, calls
    assert len(seen) > 15, seen
    return sites_of(seen)


def test_a_watcher_is_right_though_its_calls_fail(watcher_sites: list[Site]) -> None:
    """Its own thread, as in a service: nobody else looks after runs if an error ends it."""
    each(watcher_fails, sampled(watcher_sites, seed=4))


@pytest.mark.slow
@EVERY
def test_a_watcher_is_right_though_each_of_its_calls_fails(watcher_sites: list[Site]) -> None:
    each(watcher_fails, watcher_sites)


# Transfer ---------------------------------------------------------------------------------------


def transfer_problem(root: Path, site: Site | None) -> tuple[str, Counter[tuple[str, str]]]:
    """Files and folders are brought and taken, whole or not at all; what passes is waited for."""
    source, work = root / "source", root / "work"
    (source / "folder" / "deep").mkdir(parents=True)
    (source / "folder" / "deep" / "one").write_bytes(b"x" * 300_000)
    (source / "folder" / "link").symlink_to("deep/one")
    (source / "file").write_text("text")
    work.mkdir()
    taken = root / "taken"
    plan = {"folder": str(work), "outputs": str(work / "outputs"), "s3": {},
            "bring": {str(work / "a"): str(source / "folder"),
                      str(work / "b"): str(source / "file")},
            "take": {"c": {"to": str(taken), "when": "success"}}}  # fmt: skip
    (root / "plan.json").write_text(json.dumps(plan))
    told: list[str] = []
    with watching(root, site) as watch:
        for phase in ("bring", "success"):
            try:
                program.patiently(
                    lambda phase=phase: program.stage(root / "plan.json", phase), 30.0
                )
            except (WattherdError, OSError, shutil.Error) as error:
                told.append(str(error))
                with unseen():
                    half = [one for one in (work / "a", taken) if one.exists() and not same(one)]
                    if half:
                        return f"half of {half} lies in its place", watch.seen
                program.stage(root / "plan.json", phase)  # as the next run of the job does
            with unseen():
                if phase == "bring":
                    shutil.copytree(work / "a", work / "outputs" / "c", symlinks=True)
    if told and (site is None or site.error != "EACCES"):
        return f"gave up: {told}", watch.seen
    if not (same(work / "a") and same(taken) and (work / "b").read_text() == "text"):
        return "something is missing", watch.seen
    return "", watch.seen


def same(folder: Path) -> bool:
    return (folder / "deep" / "one").read_bytes() == b"x" * 300_000 and (
        folder / "link"
    ).is_symlink()


def transfer_fails(site: Site) -> str:
    root = Path(tempfile.mkdtemp(prefix="wattherd-fault-"))
    try:
        return transfer_problem(root, site)[0]
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def transfer_sites(tmp_path: Path) -> list[Site]:
    problem, seen = transfer_problem(tmp_path, None)
    assert problem == ""
    assert len(seen) > 20, seen
    return sites_of(seen)


def test_a_transfer_is_whole_though_calls_fail(transfer_sites: list[Site]) -> None:
    each(transfer_fails, sampled(transfer_sites, seed=3))


@pytest.mark.slow
@EVERY
def test_a_transfer_is_whole_though_each_call_fails(transfer_sites: list[Site]) -> None:
    each(transfer_fails, transfer_sites)
