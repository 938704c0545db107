"""The supervisor of one run: starts its tasks, watches, stops and counts them.

    python -m wattherd.local.supervisor RUN_DIR

It is a process of its own, so that runs outlive the service, and its word is the files of the run
directory (`run_dir`). A run is a gang: it succeeds when all tasks of the first role have, whereupon
the others are ended; as soon as any task fails, the rest is killed. In a stop, tasks that have
checkpointed wait for those that are still at it.

A stop has three phases within its grace: the job is told by `control.json` and may write its
checkpoint at a step of its own choosing; a job that does not read it, or is not ready in time, gets
SIGTERM; whatever is left when the grace is over is killed. torchrun kills its workers 30 s after a
SIGTERM, whatever the grace, which is why the signal is not the first word.

Nothing that a supervisor does for itself may end a training: what it cannot read or write, as the
disk is full or files cannot be opened, is said in `supervisor.log` and tried again. Room for
`exit.json` is kept from the beginning. The job's lock (`run_lock`) is held until the last task has
ended, so that no other attempt of the job begins before.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from wattherd.errors import words
from wattherd.local import cgroups, run_dir
from wattherd.local.enforcement import refused
from wattherd.local.logs import RotatingLog
from wattherd.local.observation import (
    Absent,
    Present,
    Unknown,
    certain,
    passes,
    present,
)
from wattherd.local.run_lock import RunLock
from wattherd.local.sessions import RunSessions
from wattherd.local.staging import BRING, CHECKPOINT, SUCCESS
from wattherd.local.throttle import Throttle

POLL_S = 0.05
USAGE_S = 1.0
RETRY_S = 0.5
"""Before what failed for want of something is tried again."""
ORDER_S, GROUP_S, SETTLE_S, LAST_LOOK_S, MOST_TRIES = 300.0, 60.0, 5.0, 10.0, 60
"""How long an order, the last preparations of a task, and answers that only tell why are tried."""
COOPERATIVE_PART = 0.6
"""Of the grace, for jobs that read `control.json`."""
REQUEUE = 128 + signal.SIGTERM
"""Exit code of a job that checkpointed on request."""
CANNOT_STAGE, CANNOT_RUN = 125, 127
PUMP_S = 5.0
"""For what is left of a log when everything that prints is gone."""
Made = TypeVar("Made")
OUT_OF_MEMORY = 128 + signal.SIGKILL
SET_CHILD_SUBREAPER, SET_DEATH_SIGNAL = 36, 1
"""prctl(2): orphaned descendants become our children; tasks die with us."""


def settle(
    enter: Callable[[], None], rlimits: Mapping[str, int], user: list[int] | None, cwd: str
) -> None:
    """In the child, before it becomes the task: into the group, limited, and as its user.

    Only then into its folder: root would get into folders that are closed to the user.
    """
    enter()
    for name, most in rlimits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    if user is not None:
        uid, gid = user
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.chdir(cwd)
    # After the change of user, at which the kernel forgets it (prctl(2)).
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


class Supervisor:
    """Carries one order out."""

    def __init__(self, folder: Path, lock: RunLock) -> None:
        """Nothing happens yet; `lock` is held."""
        self._folder, self._lock = folder, lock
        self._sessions = RunSessions(folder)
        self._order: dict[str, Any] = {}
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._unpumped: list[tuple[subprocess.Popen[bytes], int]] = []
        self._pumps: list[threading.Thread] = []
        self._courier: subprocess.Popen[bytes] | None = None
        self._unstaged = ""
        """Why data could not be brought or taken, where that could not even be begun."""
        self._control: dict[str, Any] = {}
        self._seen: tuple[int, int] | None = None
        self._stop: _Stop | None = None
        self._counted_s = 0.0
        self._unwritten: dict[str, dict[str, Any]] = {}
        """Documents by name that are to be in the folder; not so yet."""
        self._room_kept = False
        self._troubles = _Troubles()

    def run(self) -> None:
        """From the first task to `exit.json`."""
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._step("room for its end", self._keep_room)
        try:
            self._order = self._patiently("order", self._read_order, most_s=ORDER_S)
        except (OSError, ValueError) as error:
            self._end({"exit_code": CANNOT_RUN, "why": f"its order cannot be read: {words(error)}"})
            return
        try:
            self._group = self._patiently("control group", self._make_group, any_s=GROUP_S)
        except OSError as error:
            self._end({"exit_code": CANNOT_RUN, "why": f"no control group: {words(error)}"})
            return
        self._throttle = Throttle(self._group, on_gpus=_on_gpus(self._order))
        code, problem = self._refusal() or self._carry_out()
        self._kill_all()
        while not run_dir.tidy_up(self._order) and self._may_try("tidying up"):
            time.sleep(RETRY_S)
        self._drain()
        self._step("usage", self._count, last=True)
        self._end(self._ending(code, problem))
        self._step("control group", self._group.remove)

    def _read_order(self) -> dict[str, Any]:
        found = run_dir.read(self._folder / run_dir.ORDER)
        if found is None:
            raise ValueError("there is none")
        return found

    def _make_group(self) -> cgroups.Group:
        limits = cgroups.CgroupLimits(**self._order["limits"])
        support = cgroups.Support.of(self._order)
        return cgroups.Group(support, self._order["group"], limits, os.getpid())

    def _refusal(self) -> tuple[int, str] | None:
        """The end of a run that is not begun, as its limits are not kept and have to be."""
        told = refused(self._group.refused, cgroups.CgroupLimits(**self._order["limits"]))
        if not told or not self._order.get("require_limits"):
            return None
        return CANNOT_RUN, "; ".join(told)

    def _unkept(self) -> list[str]:
        """Limits that the kernel does not keep although its groups are there, in sentences."""
        known = None in (task.poll() for task in self._tasks)
        outside = [self._group.outside(task.pid) for task in self._tasks] if known else []
        limits = cgroups.CgroupLimits(**self._order["limits"])
        return refused(self._group.refused.union(*outside), limits)

    def _ending(self, code: int, problem: str) -> dict[str, Any]:
        """What `exit.json` will say."""
        stopped = (code == REQUEUE and self._asked_to_stop()) or (
            code == OUT_OF_MEMORY and self._stop is not None
        )
        memory = code == OUT_OF_MEMORY and self._ran_out_of_memory()
        why = problem or ("out of memory" if memory else "")
        return {"exit_code": code, "stopped": stopped and not memory, "why": why}

    def _ran_out_of_memory(self) -> bool:
        try:
            return self._patiently("memory events", self._group.out_of_memory, most_s=LAST_LOOK_S)
        except OSError:
            return False

    def _end(self, ended: dict[str, Any]) -> None:
        """Write the last word; without it the run would count as killed, so never give that up."""
        path, spare = self._folder / run_dir.EXIT, self._folder / run_dir.EXIT_SPARE
        while True:
            self._step("files", self._write_down)
            try:
                run_dir.write(path, {**ended, "at": time.time()}, durable=True, spare=spare)
            except (OSError, MemoryError) as error:
                if isinstance(present(self._folder), Absent):
                    return  # and nobody to read it
                self._troubles.tell("its end cannot be written", error)
                time.sleep(RETRY_S)
            else:
                self._step("spare room", lambda: spare.unlink(missing_ok=True))
                return

    # Trouble ------------------------------------------------------------------------------------

    def _step(self, what: str, step: Callable[..., object], **more: object) -> None:
        """Do something that is tried again later if it fails: the training goes on."""
        try:
            step(**more)
        except Exception as error:  # noqa: BLE001 - no failure of ours may end a training
            self._troubles.tell(what, error)
        else:
            self._troubles.over(what)

    def _patiently(
        self,
        what: str,
        action: Callable[[], Made],
        *,
        most_s: float = math.inf,
        any_s: float = 0.0,
    ) -> Made:
        """The outcome of what cannot be left out: tried while it fails for want of something.

        Raises:
            OSError: it has failed for another reason for `any_s`, or for any for `most_s`.
        """
        began_s = time.monotonic()
        while True:
            try:
                found = action()
            except (OSError, MemoryError) as error:
                if time.monotonic() - began_s >= (most_s if passes(error) else any_s):
                    raise
                self._troubles.tell(what, error)
                time.sleep(RETRY_S)
            else:
                self._troubles.over(what)
                return found

    def _may_try(self, what: str) -> bool:
        """Whether something may be tried once more: a number of times."""
        return self._troubles.tell(what, OSError("was not done")) < MOST_TRIES

    def _keep_room(self) -> None:
        """For `exit.json`, whatever else fills the disk by then."""
        if not self._room_kept:
            run_dir.set_aside(self._folder / run_dir.EXIT_SPARE)
            self._room_kept = True

    def _note(self, name: str, document: dict[str, Any]) -> None:
        """Have a document written, now or as soon as that can be done."""
        self._unwritten[name] = document
        self._step("files", self._write_down)

    def _write_down(self) -> None:
        failure: OSError | None = None
        for name, document in list(self._unwritten.items()):
            try:
                run_dir.write(self._folder / name, document)
                del self._unwritten[name]
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    # The run ------------------------------------------------------------------------------------

    def _carry_out(self) -> tuple[int, str]:
        """Bring, run, take: the exit code, and what was wrong if it does not say so itself.

        A run that has saved its state has stopped well, also where a copy could not be taken.
        """
        code = self._stage(BRING)
        if code != 0:
            told = f"could not be brought its data{self._unstaged}"
            return code, told if code == CANNOT_STAGE else ""
        if self._asked_to_end():
            return REQUEUE, ""  # before anything of it ran
        problem = self._begin()
        if problem:
            return (REQUEUE, "") if self._asked_to_end() else (CANNOT_RUN, problem)
        code = self._watch()
        self._step("sessions", self._sessions.end)
        if code == 0:
            code = self._stage(SUCCESS)
            told = f"its results could not be taken{self._unstaged}"
            return code, told if code == CANNOT_STAGE else ""
        if code == REQUEUE and self._stage(CHECKPOINT):
            return code, f"its results were not taken at this stop{self._unstaged}"
        return code, ""

    def _stage(self, phase: str) -> int:
        """Have data brought or results taken; the exit code of who does so."""
        staging = self._order.get("staging")
        if staging is None:
            return 0
        argv = [*staging["argv"], phase]
        env = {**staging["env"], **self._secrets(staging["secrets"])}
        started = self._started(argv, str(self._folder), env, staging["user"], ours=True)
        if isinstance(started, str):
            self._troubles.tell("staging", OSError(started))
            self._unstaged = f": {started}"
            return CANNOT_STAGE
        self._courier = started
        self._unpumped.append((self._courier, 0))
        while (code := _exit_code(self._courier.poll())) is None:
            self._look()
        self._drain()
        return code

    def _drain(self) -> None:
        """Have written what is left of the logs of tasks that have ended."""
        self._step("logs", self._start_pumps)
        for pump in self._pumps:
            pump.join(timeout=PUMP_S)
        self._pumps = [pump for pump in self._pumps if pump.is_alive()]

    def _asked_to_end(self) -> bool:
        """Whether a stop has come as far as signals, before the tasks began."""
        self._step("orders", self._heed)
        return self._stop is not None and self._stop.asked

    def _asked_to_stop(self) -> bool:
        """Whether it is to stop, be it that the job read so before we did."""
        if self._stop is not None:
            return True
        path = self._folder / run_dir.CONTROL
        try:
            found = self._patiently("orders", lambda: run_dir.read(path), most_s=LAST_LOOK_S)
        except OSError:
            return False
        return bool((found or {}).get("stop"))

    def _begin(self) -> str:
        """Start all tasks; what was wrong, if anything was.

        Threads begin only when all tasks have been forked: a fork copies locks, not their holders.
        """
        stdin = subprocess.DEVNULL
        if self._order.get("stdin"):
            stdin = self._patiently("its input", self._sessions.open_input)
        for task in self._order["tasks"]:
            env = {**self._order["env"], **task["env"], **self._secrets(self._order["secrets"])}
            started = self._started(task["argv"], task["cwd"], env, self._order["user"], stdin)
            if stdin != subprocess.DEVNULL:  # of the first task alone
                os.close(stdin)
                stdin = subprocess.DEVNULL
            if isinstance(started, str):
                return started
            self._tasks.append(started)
        for task, process in zip(self._order["tasks"], self._tasks, strict=True):
            self._unpumped.append((process, task["rank"]))
        self._step("logs", self._start_pumps)
        self._note(run_dir.STARTED, {"at": time.time()})
        return ""

    def _started(
        self,
        argv: list[str],
        cwd: str,
        env: dict[str, str],
        user: list[int] | None,
        stdin: int = subprocess.DEVNULL,
        *,
        ours: bool = False,
    ) -> subprocess.Popen[bytes] | str:
        """The process, or why it cannot be run; what only lacks for a moment is waited for.

        A program of `ours` can be run, so that whatever keeps it from that may pass: a result must
        not be lost to it.
        """
        end_s = math.inf
        while True:
            try:
                return self._spawn(argv, cwd, env, user, stdin)
            except ValueError as error:  # an environment that no process can have
                return f"cannot run {argv[0]!r}: {error}"
            except (OSError, MemoryError, subprocess.SubprocessError) as error:
                now_s = time.monotonic()
                unprepared = isinstance(error, subprocess.SubprocessError)
                may_pass = unprepared or (ours and not passes(error))
                if may_pass:  # of the job's last preparations, too, nobody says that they will
                    end_s = min(end_s, now_s + SETTLE_S)
                if now_s >= end_s or not (passes(error) or may_pass):
                    where = f"cannot begin in {cwd} as the job's account: "
                    told = where if unprepared else ""
                    return f"{told}cannot run {argv[0]!r}: {_named(error, argv[0])}"
                self._troubles.tell("a task cannot be started", error)
            self._look()
            if self._asked_to_end():
                return "was stopped before all of it had begun"

    def _secrets(self, names: list[str]) -> dict[str, str]:
        """Values by their names; here they go by other names, which change nothing of ours."""
        held = {name: run_dir.HELD + name for name in names}
        return {name: os.environ[here] for name, here in held.items() if here in os.environ}

    def _start_pumps(self) -> None:
        """Threads that write down what processes print."""
        secrets = [os.fsencode(one) for one in self._secrets(self._order["secrets"]).values()]
        while self._unpumped:
            process, rank = self._unpumped[0]
            path = self._folder / run_dir.LOGS / f"{rank}.log"
            log = RotatingLog(path, self._order["log_bytes"], secrets)
            pump = threading.Thread(target=log.pump, args=(process.stdout,), daemon=True)
            pump.start()  # a process that nobody reads waits, until a thread can be had
            self._unpumped.pop(0)
            self._pumps.append(pump)

    def _spawn(
        self, argv: list[str], cwd: str, env: dict[str, str], user: list[int] | None, stdin: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - what users submit is what is run
            argv,
            cwd=cwd if user is None else None,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=self._lock.inherited,
            # No thread of ours runs while tasks are forked: those of couriers have been joined.
            preexec_fn=lambda: settle(self._group.enter, self._order["rlimits"], user, cwd),  # noqa: PLW1509
            umask=int(self._order["umask"], 8),
        )

    def _watch(self) -> int:
        """Until the gang is done: its exit code."""
        while True:
            try:
                code = self._verdict()
            except OSError as error:
                self._troubles.tell("how it ended", error)
                code = None
            if code is not None:
                return code
            self._step("sessions", self._sessions.heed)
            self._look()

    def _look(self) -> None:
        """What is done all the time while something runs."""
        self._step("room for its end", self._keep_room)
        self._step("logs", self._start_pumps)
        self._step("orders", self._heed)
        self._step("orphans", self._reap)
        self._step("usage", self._count)
        self._step("files", self._write_down)
        try:
            self._throttle.sleep(POLL_S)
        except OSError as error:
            self._troubles.tell("throttle", error)
            time.sleep(POLL_S)

    def _kill_all(self) -> None:
        """End what is left of the run; who that is must be known."""
        while isinstance(left := self._group.kill(), Unknown):
            self._troubles.tell("what is left of it", OSError(left.why))
            time.sleep(RETRY_S)

    def _verdict(self) -> int | None:
        """The exit code of the run, once it is certain.

        Raises:
            OSError: that cannot be told now.
        """
        codes = [_exit_code(task.poll()) for task in self._tasks]
        bad = [code for code in codes if code not in (None, 0)]
        failed = next((code for code in bad if code != REQUEUE), None)
        if failed is not None:
            return failed
        if bad:
            self._step("orders", self._heed)  # what a task obeyed was written before it ended
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
        checkpointed = certain(present(self._folder / run_dir.CHECKPOINTED))
        return 0 if checkpointed is None else REQUEUE

    def _reap(self) -> None:
        """Orphans that fell to us and have ended."""
        known = {one.pid for one in (self._courier, *self._tasks) if one is not None}
        known |= self._sessions.pids
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in known:
                    return  # the tasks are their Popen's to wait for
                os.waitpid(found.si_pid, os.WNOHANG)

    def _heed(self) -> None:
        """What is wanted of the run by now.

        Raises:
            OSError: that cannot be read, or not be done, now; what was wanted before still holds.
        """
        path = self._folder / run_dir.CONTROL
        try:
            self._obey(path)
        finally:
            if self._stop is not None:
                self._stop.go_on(self._group, self._throttle)

    def _obey(self, path: Path) -> None:
        status = certain(present(path))
        seen = None if status is None else (status.st_mtime_ns, status.st_ino)
        if seen is None or seen == self._seen:
            return
        self._control = run_dir.read(path) or self._control
        if self._control.get("stop") and self._stop is None:
            grace_s = float(self._control["stop"]["grace_s"])
            self._stop = _Stop(grace_s, cooperates=self._reports())
        if self._stop is None or not self._stop.asked:
            self._throttle.set(float(self._control.get("duty", 1.0)))
        self._seen = seen  # only now: what failed on the way is read again
        self._note(run_dir.HEEDED, {"duty": self._throttle.duty})

    def _reports(self) -> bool:
        """Whether the job has said anything of itself, and so reads what is wanted of it."""
        match present(self._folder / run_dir.PROGRESS):
            case Present(status):
                return status.st_size > 0
            case _:
                return False

    def _count(self, *, last: bool = False) -> None:
        """Write down what it has used, every second."""
        now_s = time.monotonic()
        if now_s - self._counted_s < USAGE_S and self._counted_s and not last:
            return
        self._counted_s = now_s
        cpu_s, memory = self._group.usage()
        used: dict[str, Any] = {"cpu_s": cpu_s, "memory_bytes": memory, "at": time.time()}
        if self._troubles.worst:
            used["trouble"] = self._troubles.worst
        if unkept := self._unkept():
            used["unkept"] = unkept
        self._note(run_dir.USAGE, used)


def _named(error: BaseException, program: str) -> str:
    """Why a program cannot be run; which file is meant where it is not the program itself."""
    file = error.filename if isinstance(error, OSError) else None
    return words(error) if file in (None, program) else f"{file}: {words(error)}"


def _exit_code(code: int | None) -> int | None:
    """As a shell counts it: 128 and the signal's number."""
    return code if code is None or code >= 0 else 128 - code


def _on_gpus(order: Mapping[str, Any]) -> bool:
    """Whether any task was given a GPU; on slots of the processor none is shown."""
    shown = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return any(task["env"].get(name) for task in order["tasks"] for name in shown)


class _Stop:
    """The phases of a stop that began when this was made."""

    def __init__(self, grace_s: float, *, cooperates: bool) -> None:
        began_s = time.monotonic()
        self._term_s = began_s + (COOPERATIVE_PART * grace_s if cooperates else 0.0)
        self._kill_s = began_s + grace_s
        self.asked = False
        """Whether SIGTERM has been sent."""

    def go_on(self, group: cgroups.Group, throttle: Throttle) -> None:
        """Do what the time calls for; a run that may not compute could not write its checkpoint.

        Raises:
            OSError: to be done once more.
        """
        now_s = time.monotonic()
        if now_s >= self._kill_s:
            self.asked = True
            group.kill()
        elif not self.asked and now_s >= self._term_s:
            throttle.set(1.0)
            group.signal(signal.SIGTERM)
            self.asked = True


class _Troubles:
    """What cannot be done at the moment: said once in `supervisor.log`, until it is over."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[str, int]] = {}

    def tell(self, what: str, error: Exception) -> int:
        """Note a failure; how often it has come in a row."""
        text = f"{what}: {words(error)}"
        before, times = self._now.get(what, ("", 0))
        self._now[what] = text, times + 1
        if text != before:
            with contextlib.suppress(OSError, ValueError):
                print(f"wattherd: {text}; tried again", file=sys.stderr, flush=True)  # noqa: T201
        return times + 1

    def over(self, what: str) -> None:
        """It can be done again."""
        self._now.pop(what, None)

    @property
    def worst(self) -> str:
        """One of them, for the job's page; empty if there is none."""
        return next((text for text, _ in self._now.values()), "")


def main(folder: Path) -> None:
    """Carry the order of `folder` out, unless somebody else has begun it.

    While another attempt of the job still runs, this one waits.
    """
    if _is_ours(folder, lock := RunLock(folder)):
        Supervisor(folder, lock).run()


def _is_ours(folder: Path, lock: RunLock) -> bool:
    """Wait until nothing else of the job runs; whether the order is then ours."""
    troubles = _Troubles()
    while True:
        try:
            if certain(present(folder / run_dir.BEGUN)) is not None:
                return False
            if lock.take():
                return run_dir.claim(folder)
            troubles.tell("waits", OSError("another attempt of the job still runs"))
        except OSError as error:
            if isinstance(present(folder), Absent):
                return False
            troubles.tell("cannot begin", error)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
