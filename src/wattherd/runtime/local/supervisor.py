"""The supervisor of one run: starts its tasks, watches, stops and counts them.

    python -m wattherd.runtime.local.supervisor RUN_DIR

It is a process of its own, so that runs outlive the service, and its word is the files of the run
directory (`run_dir`). A run is a gang: it succeeds when all tasks of the first role have, whereupon
the others are ended; as soon as any task fails, the rest is killed. In a stop, tasks that have
checkpointed wait for those that are still at it.

A stop has three phases within its grace: the job is told by `control.json` and may write its
checkpoint at a step of its own choosing; a job that does not read it, or is not ready in time, gets
SIGTERM; whatever is left when the grace is over is killed. torchrun kills its workers 30 s after a
SIGTERM, whatever the grace, which is why the signal is not the first word.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from wattherd.runtime.local import cgroups, run_dir
from wattherd.runtime.local.logs import RotatingLog
from wattherd.runtime.local.staging import BRING, CHECKPOINT, SUCCESS
from wattherd.runtime.local.throttle import Throttle

POLL_S = 0.05
USAGE_S = 1.0
COOPERATIVE_PART = 0.6
"""Of the grace, for jobs that read `control.json`."""
REQUEUE = 128 + signal.SIGTERM
"""Exit code of a job that checkpointed on request."""
CANNOT_STAGE, CANNOT_RUN = 125, 127
PUMP_S = 5.0
"""For what is left of a log when everything that prints is gone."""
OUT_OF_MEMORY = 128 + signal.SIGKILL
SET_CHILD_SUBREAPER, SET_DEATH_SIGNAL = 36, 1
"""prctl(2): orphaned descendants become our children; tasks die with us."""


class Supervisor:
    """Carries one order out."""

    def __init__(self, folder: Path) -> None:
        """Read the order; nothing happens yet."""
        self._folder = folder
        order = run_dir.read(folder / run_dir.ORDER)
        if order is None:
            raise SystemExit(f"{folder / run_dir.ORDER} cannot be read")
        self._order = order
        limits = cgroups.Limits(**order["limits"])
        self._group = cgroups.Group(cgroups.find(), order["group"], limits, os.getpid())
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._pumps: list[threading.Thread] = []
        self._courier: subprocess.Popen[bytes] | None = None
        self._throttle = Throttle(self._group)
        self._control: dict[str, Any] = {}
        self._seen: tuple[int, int] | None = None
        self._stop: _Stop | None = None
        self._counted_s = 0.0

    def run(self) -> None:
        """From the first task to `exit.json`."""
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        code, problem = self._carry_out()
        self._group.kill()
        run_dir.tidy_up(self._order)
        for pump in self._pumps:
            pump.join(timeout=PUMP_S)
        self._count()
        stopped = (code == REQUEUE and self._asked_to_stop()) or (
            code == OUT_OF_MEMORY and self._stop is not None
        )
        memory = code == OUT_OF_MEMORY and self._group.out_of_memory()
        why = problem or ("out of memory" if memory else "")
        ended = {"exit_code": code, "stopped": stopped and not memory, "why": why}
        run_dir.write(self._folder / run_dir.EXIT, {**ended, "at": time.time()}, durable=True)
        self._group.remove()

    def _carry_out(self) -> tuple[int, str]:
        """Bring, run, take: the exit code, and what was wrong if it does not say so itself.

        A run that has saved its state has stopped well, also where a copy could not be taken.
        """
        code = self._stage(BRING)
        if code != 0:
            return code, "could not be brought its data" if code == CANNOT_STAGE else ""
        problem = self._begin()
        if problem:
            return CANNOT_RUN, problem
        code = self._watch()
        if code == 0:
            code = self._stage(SUCCESS)
            return code, "its results could not be taken" if code == CANNOT_STAGE else ""
        if code == REQUEUE and self._stage(CHECKPOINT):
            return code, "its results were not taken at this stop"
        return code, ""

    def _stage(self, phase: str) -> int:
        """Have data brought or results taken; the exit code of who does so."""
        staging = self._order.get("staging")
        if staging is None:
            return 0
        argv = [*staging["argv"], phase]
        env = {**staging["env"], **self._secrets(staging["secrets"])}
        self._courier = self._spawn(argv, str(self._folder), env, staging["user"])
        pump = self._pump(self._courier, 0)
        while (code := _exit_code(self._courier.poll())) is None:
            self._look()
        pump.join(timeout=PUMP_S)
        return code

    def _asked_to_stop(self) -> bool:
        """Whether it is to stop, be it that the job read so before we did."""
        control = run_dir.read(self._folder / run_dir.CONTROL) or {}
        return self._stop is not None or bool(control.get("stop"))

    def _begin(self) -> str:
        """Start all tasks; what was wrong, if anything was.

        Threads begin only when all tasks have been forked: a fork copies locks, not their holders.
        """
        for task in self._order["tasks"]:
            try:
                env = {**self._order["env"], **task["env"], **self._secrets(self._order["secrets"])}
                user = self._order["user"]
                self._tasks.append(self._spawn(task["argv"], task["cwd"], env, user))
            except (OSError, subprocess.SubprocessError) as error:
                return f"cannot run {task['argv'][0]!r}: {error}"
        for task, process in zip(self._order["tasks"], self._tasks, strict=True):
            self._pumps.append(self._pump(process, task["rank"]))
        run_dir.write(self._folder / run_dir.STARTED, {"at": time.time()})
        return ""

    def _secrets(self, names: list[str]) -> dict[str, str]:
        return {name: os.environ[name] for name in names if name in os.environ}

    def _pump(self, process: subprocess.Popen[bytes], rank: int) -> threading.Thread:
        """A thread that writes down what a process prints."""
        secrets = [os.environb.get(name.encode(), b"") for name in self._order["secrets"]]
        path = self._folder / run_dir.LOGS / f"{rank}.log"
        log = RotatingLog(path, self._order["log_bytes"], secrets)
        pump = threading.Thread(target=log.pump, args=(process.stdout,), daemon=True)
        pump.start()
        return pump

    def _spawn(
        self, argv: list[str], cwd: str, env: dict[str, str], user: list[int] | None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - what users submit is what is run
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # No thread of ours runs while tasks are forked: those of couriers have been joined.
            preexec_fn=lambda: self._settle(user),  # noqa: PLW1509
            umask=int(self._order["umask"], 8),
        )

    def _settle(self, user: list[int] | None) -> None:
        """In the child, before it becomes the task: into the group, limited, and as its user."""
        self._group.enter()
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for name, most in self._order["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (most, most))
        if user is not None:
            uid, gid = user
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)

    def _watch(self) -> int:
        """Until the gang is done: its exit code."""
        while True:
            code = self._verdict()
            if code is not None:
                return code
            self._look()

    def _look(self) -> None:
        """What is done all the time while something runs."""
        self._heed()
        self._reap()
        self._count()
        self._throttle.sleep(POLL_S)

    def _verdict(self) -> int | None:
        """The exit code of the run, once it is certain."""
        codes = [_exit_code(task.poll()) for task in self._tasks]
        bad = [code for code in codes if code not in (None, 0)]
        failed = next((code for code in bad if code != REQUEUE), None)
        if failed is not None:
            return failed
        if bad:
            self._heed()  # what a task obeyed was written before it ended
            return REQUEUE if self._stop is None or None not in codes else None
        leaders = [
            code
            for code, task in zip(codes, self._order["tasks"], strict=True)
            if task["role"] == self._order["tasks"][0]["role"]
        ]
        if any(code is None for code in leaders):
            return None
        # torchrun takes any code but 0 for a failure, so under it jobs say by a file that they
        # have not finished but checkpointed.
        return REQUEUE if (self._folder / run_dir.CHECKPOINTED).exists() else 0

    def _reap(self) -> None:
        """Orphans that fell to us and have ended."""
        known = {one.pid for one in (self._courier, *self._tasks) if one is not None}
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in known:
                    return  # the tasks are their Popen's to wait for
                os.waitpid(found.si_pid, os.WNOHANG)

    def _heed(self) -> None:
        """What is wanted of the run by now."""
        path = self._folder / run_dir.CONTROL
        with contextlib.suppress(OSError):
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._seen = seen
                self._control = run_dir.read(path) or {}
                self._throttle.set(float(self._control.get("duty", 1.0)))
                run_dir.write(self._folder / run_dir.HEEDED, {"duty": self._throttle.duty})
        if self._control.get("stop") and self._stop is None:
            grace_s = float(self._control["stop"]["grace_s"])
            self._stop = _Stop(grace_s, cooperates=self._reports())
        if self._stop is not None:
            self._stop.go_on(self._group, self._throttle)

    def _reports(self) -> bool:
        """Whether the job has said anything of itself, and so reads what is wanted of it."""
        with contextlib.suppress(OSError):
            return (self._folder / run_dir.PROGRESS).stat().st_size > 0
        return False

    def _count(self) -> None:
        """Write down what it has used, every second."""
        now_s = time.monotonic()
        if now_s - self._counted_s < USAGE_S and self._counted_s:
            return
        self._counted_s = now_s
        cpu_s, memory = self._group.usage()
        used = {"cpu_s": cpu_s, "memory_bytes": memory, "at": time.time()}
        run_dir.write(self._folder / run_dir.USAGE, used)


def _exit_code(code: int | None) -> int | None:
    """As a shell counts it: 128 and the signal's number."""
    return code if code is None or code >= 0 else 128 - code


class _Stop:
    """The phases of a stop that began when this was made."""

    def __init__(self, grace_s: float, *, cooperates: bool) -> None:
        began_s = time.monotonic()
        self._term_s = began_s + (COOPERATIVE_PART * grace_s if cooperates else 0.0)
        self._kill_s = began_s + grace_s
        self._asked = False

    def go_on(self, group: cgroups.Group, throttle: Throttle) -> None:
        """Do what the time calls for; a run that may not compute could not write its checkpoint."""
        now_s = time.monotonic()
        if not self._asked and now_s >= self._term_s:
            self._asked = True
            throttle.set(1.0)
            group.signal(signal.SIGTERM)
        if now_s >= self._kill_s:
            group.kill()


def main(folder: Path) -> None:
    """Carry the order of `folder` out, unless somebody else has begun it."""
    if run_dir.claim(folder):
        Supervisor(folder).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
