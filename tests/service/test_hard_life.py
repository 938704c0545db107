"""Kills of everything at random, while descriptors and the disk run out: no job is lost or doubled.

Each round is a kill of the service, of a supervisor or of a task, while descriptors are used up,
the disk is full, both, or neither; all of these come, as often as the test asks for at its end. The
state folder lies on a small disk of its own where root can mount one; elsewhere the size of files
that the service may write is limited. The budget is looked at from outside: by what stands in the
folders of runs, which can be read when the service answers nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import WATTHERD, Serving, until

from promises import promise
from wattherd.local import run_dir
from wattherd.local.devices import slots
from wattherd.local.observation import Present, document, present

pytestmark = pytest.mark.long

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

DESCRIPTORS, CONNECTIONS, DISK, SLOTS = 256, 300, "48m", 4
BUDGET_W = 3.5 * (os.cpu_count() or 1)
"""Less than the 5 W that each hardware thread draws when it is busy: caps are at work."""
OVER = ("Succeeded", "Failed", "Cancelled", "TimedOut")
HARDSHIPS = ("none", "descriptors", "disk", "both")
PATIENCE_S, LAST_S = 180.0, 900.0
KILLS = ("service", "supervisor", "task")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small disk, or any folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "wattherd-test", str(folder)]
    mounted = os.geteuid() == 0 and shutil.which("mount") and not subprocess.call(
        mount, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


class Poor(Serving):
    """A service with few descriptors."""

    def begin(self) -> None:
        limit = (DESCRIPTORS, DESCRIPTORS)
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*WATTHERD, "serve", "--state", str(self.state), "--port", str(self.port),
                 "--slots", str(SLOTS), *self.options],
                stderr=errors,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
            )  # fmt: skip

    def revive(self) -> None:
        """Begin again if it has ended by itself, as it may on a full disk."""
        if self.process is not None and self.process.poll() is not None:
            self.begin()


class Life:
    """One service and its hardships, drawn at random."""

    def __init__(self, disk: Path, effects: Path, seed: int, jobs: int) -> None:
        self.draw = random.Random(seed)
        self.disk, self.effects = disk, effects
        effects.mkdir()
        self.service = Poor(disk / "state", "--budget", f"{BUDGET_W}W")
        self.service.errors = effects.with_name("serve.err")  # not on the disk that is full
        self.jobs, self.ids = jobs, list[str]()
        self.touched: set[str] = set()
        """Jobs of which a supervisor or a task was killed."""
        self.flood: list[socket.socket] = []
        self.done: Counter[str] = Counter()
        self.most_w = self.most_caps_w = self.most_duty_w = 0.0
        self.samples: Counter[str] = Counter()
        self.slot_w = slots("here", SLOTS).gpu
        self.flooded = False
        """Whether descriptors are to stay used up, whoever closes connections meanwhile."""
        self.mounted, self.limited = os.path.ismount(disk), False

    # What users do ------------------------------------------------------------------------------

    def submit(self) -> None:
        number = len(self.ids)
        job = self.effects / f"job-{number}"
        # The lock is the test's own: two that run at once are seen whatever the service believes.
        run = (
            f"exec 9> {job}.lock; flock -n 9 || {{ echo doubled >> {job}; exit 9; }};"
            f" echo began $WATTHERD_ATTEMPT >> {job}; {self.work(number)};"
            f" echo ended $WATTHERD_ATTEMPT >> {job}"
        )
        body = {"run": run, "name": f"job-{number}", "restarts": 1000}
        answer = self.ask("jobs", body, **{"Idempotency-Key": f"job-{number}"})
        if answer is not None and "id" in answer:
            self.ids.append(answer["id"])

    def work(self, number: int) -> str:
        lasts_s = self.draw.uniform(0.5, 10.0)
        if number % 6:
            return f"sleep {lasts_s:.2f}"
        return f"timeout {min(lasts_s, 3.0):.2f} sh -c 'while :; do :; done'"

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        return None if self.flood else self.service.ask(path, body, **headers)

    def look(self) -> None:
        """Sample the draw; the budget holds at every one."""
        self.look_from_outside()
        told = self.ask("power")
        if told is not None and told.get("draw_w") is not None:
            self.most_w = max(self.most_w, told["draw_w"])
            promise(told["draw_w"] <= BUDGET_W + 1e-6, told)
        rows = (self.ask("jobs") or {}).get("jobs", ())
        caps_w = [row["cap_w"] * row["gpus"] for row in rows if row["cap_w"] is not None]
        self.most_caps_w = max(self.most_caps_w, sum(caps_w))
        promise(sum(caps_w) <= BUDGET_W + 1e-6, rows)

    def look_from_outside(self) -> None:
        """What all slots may draw at the duties that their supervisors keep, by their own word.

        A run that has not heeded anything yet keeps the duty that it was given; one whose
        supervisor was killed is not followed any more, and has nobody to throttle it: its slot
        counts until all of it has ended, which `doubled` and the end of jobs are about.
        """
        self.samples[self.hardship] += 1
        # Files of several runs are not read in one moment: one may have been lowered, and another
        # been raised by what that gave back, in between. What is so a moment later, too, is so.
        seen_w = [self.by_duty_w()]
        while seen_w[-1] > BUDGET_W + 1e-6 and len(seen_w) < 5:
            time.sleep(0.02)
            seen_w.append(self.by_duty_w())
        self.most_duty_w = max(self.most_duty_w, min(seen_w))
        promise(min(seen_w) <= BUDGET_W + 1e-6, seen_w)

    def by_duty_w(self) -> float:
        busy_w, span_w = [], self.slot_w.max_w - self.slot_w.idle_w
        for folder, _ in list(self.live()):
            found = [document(folder / name) for name in (run_dir.HEEDED, run_dir.CONTROL)]
            duties = [one.value["duty"] for one in found if isinstance(one, Present)]
            if duties:
                busy_w.append(self.slot_w.idle_w + duties[0] * span_w)
        return sum(busy_w) + max(0, SLOTS - len(busy_w)) * self.slot_w.idle_w

    # What happens to them -----------------------------------------------------------------------

    @property
    def hardship(self) -> str:
        full = (self.disk / "filler").exists() if self.mounted else self.limited
        return HARDSHIPS[self.flooded + 2 * full]

    def kill_service(self) -> None:
        self.service.revive()
        self.service.kill()
        self.service.begin()
        self.killed("service")
        self.forget_flood()

    def kill_supervisor(self) -> None:
        live = list(self.live())
        if live:
            folder, pid = self.draw.choice(live)
            self.touched.add(folder.parent.name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed("supervisor")

    def kill_task(self) -> None:
        """The shell only: what it has started lives on, and must not meet the next attempt."""
        live = list(self.live())
        if live:
            folder, pid = self.draw.choice(live)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with contextlib.suppress(OSError):
                for child in children.read_text().split()[:1]:
                    self.touched.add(folder.parent.name)
                    os.kill(int(child), signal.SIGKILL)
                    self.killed("task")

    def killed(self, what: str) -> None:
        self.done[f"{what}, {self.hardship}"] += 1

    def live(self) -> Iterator[tuple[Path, int]]:
        for folder in sorted(self.service.state.glob("jobs/*/run-*")):
            match document(folder / run_dir.BEGUN), present(folder / run_dir.EXIT):
                case Present({"pid": int() as pid, "ticks": ticks}), exited if not isinstance(
                    exited, Present
                ) and run_dir.started_ticks(pid) == Present(ticks):
                    yield folder, pid

    def begin_flood(self) -> None:
        """Half requests, again as soon as there is somebody to send them to."""
        self.flooded = True
        while len(self.flood) < CONNECTIONS:
            one = socket.socket()
            one.settimeout(0.05)
            try:
                one.connect(("127.0.0.1", self.service.port))
                one.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: a\r\nX-Slow: ")
            except ConnectionRefusedError:
                one.close()
                return  # it begins anew
            except OSError:
                pass
            self.flood.append(one)

    def forget_flood(self) -> None:
        while self.flood:
            self.flood.pop().close()

    def end_flood(self) -> None:
        self.flooded = False
        self.forget_flood()

    def fill(self) -> None:
        """Nothing more can be written."""
        if self.mounted:
            with contextlib.suppress(OSError), (self.disk / "filler").open("ab", 0) as filler:
                while filler.write(b"x" * (1 << 16)):
                    pass
        else:
            self.limited = True
            self.limit_files(4096)

    def empty(self) -> None:
        self.limited = False
        if self.mounted:
            (self.disk / "filler").unlink(missing_ok=True)
        else:
            self.limit_files(resource.RLIM_INFINITY)

    def limit_files(self, most: int) -> None:
        if self.service.process is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(
                    self.service.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY)
                )

    # All of it ----------------------------------------------------------------------------------

    def round(self, number: int, rounds: int) -> None:
        """A kill while something is lacking; now and then what lacks is given back."""
        kill = self.draw.choice(KILLS)
        wanted = min(self.jobs, SLOTS + number * self.jobs // max(1, rounds - rounds // 8))
        if kill != "service" and not any(self.live()):
            self.calm()  # there is somebody to kill when others are started
            self.go_on(PATIENCE_S, wanted, lambda: any(self.live()))
        self.worsen(self.draw.choice(HARDSHIPS))
        self.go_on(self.draw.uniform(0.1, 0.7), wanted)
        getattr(self, f"kill_{kill}")()
        self.go_on(self.draw.uniform(0.1, 1.5), wanted)

    def worsen(self, hardship: str) -> None:
        (self.begin_flood if hardship in ("descriptors", "both") else self.end_flood)()
        (self.fill if hardship in ("disk", "both") else self.empty)()

    def go_on(self, most_s: float, wanted: int, until_true: Any = lambda: False) -> None:
        """As users do, for a while or until something is so."""
        end_s = time.monotonic() + most_s
        while time.monotonic() < end_s and not until_true():
            self.service.revive()
            if self.flooded:
                self.begin_flood()
            if len(self.ids) < wanted:
                self.submit()
            self.look()
            time.sleep(0.05)

    def calm(self) -> None:
        self.end_flood()
        self.empty()
        self.service.revive()

    def state_of(self, job: str) -> str:
        self.service.revive()
        return self.service.state_of(job)

    def live_through(self, rounds: int) -> None:
        self.service.begin()
        self.service.ready(LAST_S)
        for number in range(1, rounds + 1):
            self.round(number, rounds)
        self.calm()

        def handed_in() -> bool:
            self.service.revive()
            self.submit()
            return len(self.ids) >= self.jobs

        until(lambda: len(self.ids) >= self.jobs or handed_in(), LAST_S)
        until(lambda: all(self.state_of(job) in OVER for job in self.ids), LAST_S)

    def judge(self) -> None:
        listed = {row["id"]: row for row in self.service.ask("jobs?over=true&limit=1000")["jobs"]}
        promise(sorted(listed) == sorted(self.ids), (len(listed), len(self.ids)))
        states = {job: row["state"] for job, row in listed.items()}
        promise(set(states.values()) == {"Succeeded"}, states)
        for number, job in enumerate(self.ids):
            lines = (self.effects / f"job-{number}").read_text().splitlines()
            promise("doubled" not in lines, (job, lines))
            told = Counter(lines)
            promise(max(told.values()) == 1, (job, lines))  # no attempt ran twice
            if job not in self.touched:
                promise(lines == ["began 1", "ended 1"], (job, lines))
        power = self.service.ask("power")
        promise((power["over_s"], power["over_j"]) == (0.0, 0.0), power)
        verdict = self.service.store("verify", "-o", "json")
        promise(verdict.returncode == 0, verdict.stdout)
        ended = [p for p in children_of(self.service.process.pid) if state_of(p) == "Z"]  # type: ignore[union-attr]
        promise(not ended, f"zombies: {ended}")


def children_of(pid: int) -> list[int]:
    found: dict[int, list[int]] = defaultdict(list)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[pid] += map(int, (task / "children").read_text().split())
    return found[pid]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lived(
    disk: Path, tmp_path: Path, *, seed: int, rounds: int, jobs: int, least: int, each: int = 0
) -> None:
    """`least` jobs lose a supervisor or a task, `each` kill is done so often in each hardship."""
    life = Life(disk, tmp_path / "effects", seed, jobs)
    began_s = time.monotonic()
    try:
        life.live_through(rounds)
        time.sleep(1.0)
        life.judge()
        assert len(life.touched) >= least
        kinds = [f"{kill}, {hardship}" for kill in KILLS for hardship in HARDSHIPS]
        assert min(life.done[one] for one in kinds) >= each, life.done
        assert not each or min(life.samples[one] for one in HARDSHIPS) >= rounds // 8, life.samples
    finally:
        life.calm()
        life.service.end()
        told = {"seed": seed, "rounds": rounds, "jobs": len(life.ids), "touched": len(life.touched),
                "small disk": life.mounted, "most W": life.most_w,
                "most W of caps": life.most_caps_w, "most W at duties": life.most_duty_w,
                "budget W": BUDGET_W, "samples": dict(life.samples),
                "seconds": round(time.monotonic() - began_s), **life.done}  # fmt: skip
        print(json.dumps(told), file=sys.stderr)


needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="no flock (util-linux) here")


@needs_flock
def test_a_short_hard_life_loses_and_doubles_nothing(disk: Path, tmp_path: Path) -> None:
    lived(disk, tmp_path, seed=5, rounds=12, jobs=8, least=1)


@needs_flock
@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_two_hundred_kills_amid_hardship_lose_and_double_nothing(
    disk: Path, tmp_path: Path
) -> None:
    lived(disk, tmp_path, seed=7, rounds=220, jobs=160, least=20, each=5)
