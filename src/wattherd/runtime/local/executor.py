"""Carries the core's orders out on this machine: one supervisor per run, spoken to by files.

The executor keeps nothing that is not on disk: after its end, supervisors go on alone, and the next
executor finds them by their directories.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.model.command import GiveNotice, SetBatch, SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobExited
from wattherd.model.reason import StopReason
from wattherd.runtime.contract import RunOrder
from wattherd.runtime.local import cgroups, run_dir
from wattherd.runtime.local.apps import App
from wattherd.runtime.local.devices import Caps, Machine
from wattherd.runtime.local.folders import Folders
from wattherd.runtime.local.orders import StatusServer, order_of, user_of
from wattherd.runtime.local.ownership import hand_over, make_passage
from wattherd.runtime.local.ranks import RankPace, paces
from wattherd.runtime.local.secrets import secrets_of
from wattherd.runtime.local.staging import staging_plan
from wattherd.runtime.local.transfer import archive
from wattherd.runtime.local.watched import CANNOT_RUN, Watched

POLL_S = 0.1
ABANDON_S = 10.0
"""For a checkpoint, on a node that is taken out of use."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run computes: its duty, samples at once, steps per second; on how many devices."""

    duty: float | None
    micro_batch: int | None
    rate_per_s: float | None
    devices: int


class LocalExecutor:
    """Implements `runtime.contract.Executor`; `tell` hears what came of the orders.

    Runs live in `root`/JOB/run-ATTEMPT.
    """

    def __init__(
        self,
        root: Path,
        machine: Machine,
        tell: Callable[[Event], None],
        status: StatusServer | None = None,
        caps: Caps | None = None,
    ) -> None:
        """Nothing runs before `adopt`; jobs are told of `status`, where they may report.

        Without `caps`, and where they do not take effect, caps become duties of the processor.

        Raises:
            UserError: the folder cannot be made.
        """
        self._root = root.absolute()  # jobs are told of files below it, and run elsewhere
        self._machine, self._tell, self._status = machine, tell, status
        self._caps = caps
        self._devices: dict[Key, tuple[str, ...]] = {}
        """UUIDs of the GPUs of every run."""
        self._caps_w: dict[Key, float | None] = {}
        """Caps as they were last ordered."""
        self._full_w: dict[Key, float | None] = {}
        """What a device draws at a run's micro-batch while it computes, where that is known."""
        self._steerable: dict[Key, int] = {}
        """Runs whose micro-batch may be chosen, and how many devices each has."""
        self._by_duty: set[Key] = set()
        """Runs that no device limits by itself."""
        self._writing = threading.Lock()
        self._capper = ThreadPoolExecutor(1, thread_name_prefix="caps")
        self._runs: dict[Key, Watched] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="executor", daemon=True)
        try:
            make_passage(root)
        except OSError as error:
            raise UserError(f"cannot be made: {error.strerror}", where=str(root)) from None

    # The core's orders --------------------------------------------------------------------------

    def adopt(self, runs: Sequence[RunOrder]) -> None:
        """Find what runs, begin what does not, end what nobody wants."""
        wanted = {_key(run.start) for run in runs}
        for folder in sorted(self._root.glob("*/run-*")):
            if _key_of(folder) not in wanted:
                end_stray(folder)
        for run in runs:
            self.start(run)
            if run.batch is not None:
                self.set_batch(run.batch)
            if run.stop is not None:
                self.stop(run.stop)
        self._thread.start()

    def start(self, run: RunOrder) -> None:
        """Write the order down and have a supervisor carry it out; one that does is left alone."""
        key = _key(run.start)
        folders = self._folders(key)
        watched = Watched(key, folders.run)
        self._devices[key] = self._machine.uuids(run.start.allocations)
        self._caps_w[key] = run.cap_w
        if run.spec.micro_batches:
            self._steerable[key] = sum(len(one.gpus) for one in run.start.allocations)
            if self._caps is None:
                self._by_duty.add(key)
        if not watched.begun:
            try:
                self._prepare(run, folders)
                watched.launched = self._launch(run, folders)
            except (OSError, UserError) as error:
                self._refuse(key, folders, str(error))
                return
        with self._lock:
            self._runs[key] = watched

    def stop(self, order: StopJob) -> None:
        """Write the wish down; the supervisor sees to its phases."""
        stop = {"grace_s": order.grace_s, "by": time.time() + order.grace_s}
        self._control(_key(order), stop={**stop, "reason": str(order.reason)})

    def abandon(self) -> None:
        """Have all runs write a checkpoint and end: the node is out of use."""
        stop = {"grace_s": ABANDON_S, "by": time.time() + ABANDON_S}
        with self._lock:
            keys = list(self._runs)
        for key in keys:
            self._control(key, stop={**stop, "reason": str(StopReason.NODE_LOST)})

    def give_notice(self, order: GiveNotice) -> None:
        """Write the notice down for the job to read."""
        self._control(_key(order), notice={"at_s": order.at_s, "reason": str(order.reason)})

    def cap(self, order: SetCap) -> None:
        """A limit of the GPUs where there are any to set, else a duty of the processor.

        A GPU may take its time: orders to them are carried out one after another, elsewhere.
        """
        if self._caps is None:
            self._cap(order)
        else:
            self._capper.submit(self._cap, order)

    def _cap(self, order: SetCap) -> None:
        self._limit(_key(order), order.cap_w)

    def _limit(self, key: Key, cap_w: float | None, **more: Any) -> None:
        with self._lock:
            watched = self._runs.get(key)
        if watched is not None:
            self._caps_w[key] = cap_w
            duty = self._duty(key, cap_w)
            watched.await_duty(duty, cap_w)
            self._control(key, duty=duty, cap_w=cap_w, **more)

    def set_batch(self, order: SetBatch) -> None:
        """Write the wish down for the job to read, with the duty that then keeps its cap."""
        key = _key(order)
        self._full_w[key] = order.full_w

        def carry_out() -> None:
            self._limit(key, self._caps_w.get(key), micro_batch=order.micro_batch)

        if self._caps is None:
            carry_out()
        else:
            self._capper.submit(carry_out)

    def steered(self) -> dict[Key, Pace]:
        """Runs whose draw is limited by how they compute, and whose micro-batch may be chosen."""
        with self._lock:
            runs = {key: one for key, one in self._runs.items() if key in self._by_duty}
        return {
            key: Pace(one.duty, one.micro_batch, one.rate_per_s, self._steerable[key])
            for key, one in runs.items()
            if key in self._steerable
        }

    def _duty(self, key: Key, cap_w: float | None) -> float:
        """What is left to do for the processor, once the GPUs were told."""
        devices = self._devices.get(key, ())
        if self._caps is not None and devices and self._caps.set(devices, cap_w):
            self._by_duty.discard(key)
            return 1.0
        self._by_duty.add(key)
        return self._machine.duty(cap_w, self._full_w.get(key))

    def _uncap(self, key: Key) -> None:
        """A run is over: GPUs that nobody else is on go back to what they were."""
        with self._lock:
            used = {uuid for other in self._runs for uuid in self._devices.get(other, ())}
        free = [uuid for uuid in self._devices.pop(key, ()) if uuid not in used]
        if self._caps is not None and free:
            self._caps.set(free, None)

    def close(self) -> None:
        """Stop looking; nothing that runs is touched."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._capper.shutdown()

    def usage(self) -> dict[Key, tuple[float, int]]:
        """Of every run: vCPUs in use over the last seconds, and bytes of memory."""
        with self._lock:
            return {key: watched.usage for key, watched in self._runs.items()}

    def paces(self) -> dict[Key, list[RankPace]]:
        """What the ranks of runs that have several say of their pace."""
        with self._lock:
            keys = list(self._runs)
        found = {key: list(paces(self._folders(key).run)) for key in keys}
        return {key: ranks for key, ranks in found.items() if ranks}

    # Runs ---------------------------------------------------------------------------------------

    def _folders(self, key: Key) -> Folders:
        job = self._root / key[0]
        return Folders(job=job, run=job / f"run-{key[1]}")

    def _prepare(self, run: RunOrder, folders: Folders) -> None:
        for folder in (folders.run, folders.work, folders.checkpoint):
            folder.mkdir(parents=True, exist_ok=True)
        asked = run.paper.get("app")
        app = App.made(folders.run, run.spec.id, asked) if asked else None
        order = order_of(run, self._machine, folders, self._status, app)
        own = [folders.work, folders.checkpoint]
        if self._status is not None:
            own.append(run_dir.write_token(folders.run))
        reports = folders.run / run_dir.PROGRESS
        (folders.run / run_dir.LOGS).mkdir(mode=0o700, exist_ok=True)
        hand_over(folders.job, folders.run, own, reports, user_of(run.paper))
        duty = 1.0 if run.cap_w is None else self._duty(_key(run.start), run.cap_w)
        run_dir.write(folders.run / run_dir.CONTROL, {"duty": duty, "cap_w": run.cap_w})
        plan = staging_plan(run.paper, folders)
        if plan is not None:
            run_dir.write(folders.run / run_dir.STAGING, plan)
            archive.write(folders.run / run_dir.TRANSFER)
        run_dir.write(folders.run / run_dir.ORDER, order)

    def _launch(self, run: RunOrder, folders: Folders) -> int:
        """A process of its own, in a session of its own: it does not end with us."""
        log = (os.POSIX_SPAWN_OPEN, 1, folders.run / "supervisor.log", _APPEND, 0o600)
        app = App.read(folders.run)
        hidden = {**secrets_of(run.paper, user_of(run.paper)), **(app.secrets() if app else {})}
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "wattherd.runtime.local.supervisor", str(folders.run)],
            {**os.environ, **hidden},
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )

    def _refuse(self, key: Key, folders: Folders, why: str) -> None:
        """What cannot even be prepared has failed."""
        with contextlib.suppress(OSError):
            folders.run.mkdir(parents=True, exist_ok=True)
            run_dir.write(folders.run / run_dir.EXIT, {"exit_code": CANNOT_RUN, "why": why})
        self._tell(
            JobExited(at_s=0.0, job_id=key[0], attempt=key[1], exit_code=CANNOT_RUN, cause=why)
        )

    def _control(self, key: Key, **changes: Any) -> None:
        path = self._folders(key).run / run_dir.CONTROL
        # A full disk: the order stands, `_watch` says it again.
        with self._writing, contextlib.suppress(OSError):
            run_dir.write(path, {**(run_dir.read(path) or {}), **changes})

    # Looking after them -------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            for event in self.look():
                self._tell(event)

    def look(self) -> Iterator[Event]:
        """What happened to the runs since the last look."""
        with self._lock:
            runs = list(self._runs.items())
        for key, watched in runs:
            yield from watched.news()
            if watched.over:
                self._bury(key)

    def _bury(self, key: Key) -> None:
        """A run that is over; what a dead supervisor left behind is ended."""
        with self._lock:
            self._runs.pop(key, None)
        for known in (self._caps_w, self._full_w, self._steerable):
            known.pop(key, None)
        self._by_duty.discard(key)
        if self._caps is not None:
            self._capper.submit(self._uncap, key)
        folder = self._folders(key).run
        if not (folder / run_dir.EXIT).exists():
            end_group(folder)


def _key(order: StartJob | StopJob | SetCap | SetBatch | GiveNotice) -> Key:
    return order.job_id, order.attempt


def _key_of(folder: Path) -> Key:
    return folder.parent.name, int(folder.name.removeprefix("run-"))


def end_stray(folder: Path) -> None:
    """End a run that nobody counts on: its supervisor first, which takes its tasks along.

    One that is about to begin finds that it has been forestalled.
    """
    with contextlib.suppress(OSError):
        if (folder / run_dir.EXIT).exists() or run_dir.forestall(folder):
            return
    pid = Watched(_key_of(folder), folder).supervisor
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        end_group(folder)


def end_group(folder: Path) -> None:
    """Kill whatever is left in the control group of a run whose supervisor is gone."""
    order = run_dir.read(folder / run_dir.ORDER) or {}
    run_dir.tidy_up(order)
    if "group" in order:
        group = cgroups.Group(cgroups.find(), order["group"], cgroups.Limits(), None)
        group.kill()
        group.remove()
