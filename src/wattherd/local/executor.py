"""Carries the core's orders out on this machine: one supervisor per run, spoken to by files.

The executor keeps nothing that is not on disk: after its end, supervisors go on alone, and the next
executor finds them by their directories.

What cannot be read or written now is neither there nor gone: such a run stays as it is, `troubles`
says why, and the next look tries again. An order that cannot be written waits, and fails nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattherd.devices.wire.threads import begun_pool
from wattherd.engine.core.executor import RunOrder
from wattherd.errors import UserError, words
from wattherd.local import cgroups, enforcement, run_dir, run_lock, sessions
from wattherd.local.accounts import FAIR_MEMORY, Accounts
from wattherd.local.apps import App
from wattherd.local.descriptors import Reserve
from wattherd.local.devices import CapSetter, Machine
from wattherd.local.job_folders import Folders
from wattherd.local.observation import (
    Absent,
    Present,
    Unknown,
    certain,
    document,
    present,
)
from wattherd.local.orphans import (
    drop_old_runs,
    end_group,
    end_holders,
    end_stray,
    folders_in,
    key_of,
    note_end,
    run_folders,
)
from wattherd.local.ownership import hand_over, make_passage
from wattherd.local.rank_reports import RankPace, paces
from wattherd.local.run_observer import CANNOT_RUN, LEFT_BEHIND, RunObserver
from wattherd.local.run_plan import StatusServer, order_of, user_of
from wattherd.local.secrets import secrets_of
from wattherd.local.staging import staging_plan
from wattherd.local.transfer import archive
from wattherd.model.command import GiveNotice, SetBatch, SetCap, StartJob, StopJob
from wattherd.model.event import Event, JobExited, JobStopped
from wattherd.model.job import JobSpec
from wattherd.model.reason import StopReason

POLL_S = 0.1
OTHERS_S, MOST_PAUSE_S = 1.0, 30.0
"""How often what should not run is looked for, and the longest pause before a start is retried."""
REFUSED = frozenset({errno.E2BIG, errno.ENAMETOOLONG})
"""Failures to start that are the job's own: they would come again."""
ABANDON_S = 10.0
"""For a checkpoint, on a node that is taken out of use."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
LOG = "supervisor.log"
_LOG = logging.getLogger(__name__)
Key = tuple[str, int]


@dataclass(slots=True)
class _Launch:
    """A run that was ordered and that no supervisor has taken yet."""

    order: RunOrder
    child: int | None = None
    """Process number of a supervisor that was started for it."""
    tries: int = 0
    next_s: float = 0.0
    """When to try again; and when to look next for what keeps it from beginning."""
    why: str = ""
    stop: bool = False

    def put_off(self, why: str) -> None:
        """Try again later, and more seldom each time."""
        self.why = why
        self.next_s = time.monotonic() + min(MOST_PAUSE_S, 0.25 * 2 ** min(self.tries, 10))
        self.tries += 1


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run computes: its duty, samples at once, steps per second; on how many devices."""

    duty: float | None
    micro_batch: int | None
    rate_per_s: float | None
    devices: int


class LocalExecutor:
    """Implements `engine.core.executor.Executor`; `tell` hears what came of the orders.

    Runs live in `root`/JOB/run-ATTEMPT.
    """

    def __init__(
        self,
        root: Path,
        machine: Machine,
        tell: Callable[[Event], None],
        status: StatusServer | None = None,
        caps: CapSetter | None = None,
        origin: Callable[[JobSpec], Mapping[str, Any]] | None = None,
        accounts: Accounts | None = None,
        *,
        require_limits: bool = False,
    ) -> None:
        """Nothing runs before `adopt`; jobs are told of `status`, where they may report.

        With `require_limits`, runs whose limits cannot be enforced fail.

        `accounts` says as whom they run; without it a job may name its own. Without `caps`, and
        where they do not take effect, caps become duties of the processor.
        What `origin` says of a job now is kept with each run of it.

        Raises:
            UserError: the folder cannot be made.
        """
        try:
            make_passage(root)
        except OSError as error:
            raise UserError(f"cannot be made: {error.strerror}", where=str(root)) from None
        self._root = root.absolute()  # jobs are told of files below it, and run elsewhere
        self._machine, self._tell, self._status = machine, tell, status
        self._caps, self._accounts = caps, accounts or Accounts()
        self._origin = origin
        self._require_limits = require_limits
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
        self._writing, self._launching = threading.RLock(), threading.Lock()
        self._unwritten: dict[Key, dict[str, Any]] = {}
        """Changes of `control.json` that could not be written yet."""
        self._launches: dict[Key, _Launch] = {}
        self._stopping: set[Key] = set()
        self._children: set[int] = set()
        """Supervisors that we started; each is waited for, so that none stays on as a zombie."""
        self._strays: set[Path] = set()
        """Run directories that nobody counts on, and that something may still run of."""
        self._listed = True
        """Whether all strays are known."""
        self._strays_s = 0.0
        self._failed: dict[Key, str] = {}
        """By run: what failed in the last look at it."""
        self._unwritable: dict[Key, str] = {}
        self.troubles: dict[Key, str] = {}
        """By run: what cannot be done for it at the moment, and is tried again."""
        self.failure = ""
        """Why no run can be looked after at the moment."""
        self.support: cgroups.Support | None = None
        """By which control groups limits are kept; None while that cannot be told."""
        with contextlib.suppress(OSError):  # a run's order is written with what holds by then
            self.support = cgroups.find()
        self.unkept: dict[Key, list[str]] = {}
        """By run: limits that the kernel was asked to keep, and does not."""
        self._reserve = Reserve()
        self._capper = begun_pool(1, "caps")
        self._runs: dict[Key, RunObserver] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="executor", daemon=True)

    # The core's orders --------------------------------------------------------------------------

    def adopt(self, runs: Sequence[RunOrder]) -> None:
        """Find what runs, begin what does not, end what nobody wants."""
        wanted = {_key(run.start) for run in runs}
        self._find_strays(lambda: wanted)
        if self._listed:  # else by the first look that can list them: then all of these are known
            self._end_strays()
        for run in runs:
            self.start(run)
            if run.batch is not None:
                self.set_batch(run.batch)
            if run.stop is not None:
                self.stop(run.stop)
        self._thread.start()

    def start(self, run: RunOrder) -> None:
        """Write the order down and have a supervisor carry it out; one that does is left alone.

        What cannot be done now is tried again until it can.
        """
        key = _key(run.start)
        self._devices[key] = self._machine.uuids(run.start.allocations)
        self._caps_w[key] = run.cap_w
        if run.spec.micro_batches:
            self._steerable[key] = sum(len(one.gpus) for one in run.start.allocations)
            if self._caps is None:
                self._by_duty.add(key)
        launch = _Launch(run)
        with self._lock:
            self._launches[key] = launch
            self._runs[key] = RunObserver(key, self._folders(key).run)
        with self._reserve.spared():
            self._try_launch(key, launch)

    def stop(self, order: StopJob) -> None:
        """Write the wish down; the supervisor sees to its phases.

        A run that has not begun never will.
        """
        key = _key(order)
        stop = {"grace_s": order.grace_s, "by": time.time() + order.grace_s}
        self._stopping.add(key)
        launch = self._launches.get(key)
        if launch is not None:
            launch.stop = True
        self._control(key, stop={**stop, "reason": str(order.reason)})

    def abandon(self, uuids: Collection[str] | None = None) -> None:
        """Have all runs write a checkpoint and end: the node is out of use, or these devices."""
        stop = {"grace_s": ABANDON_S, "by": time.time() + ABANDON_S}
        with self._lock:
            keys = list(self._runs)
        reason = StopReason.NODE_LOST
        if uuids is not None:
            keys = [key for key in keys if not set(uuids).isdisjoint(self._devices.get(key, ()))]
            reason = StopReason.DEVICE_DRAINED
        for key in keys:
            self._control(key, stop={**stop, "reason": str(reason)})

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

    def throttled(self) -> dict[Key, Pace]:
        """Runs on GPUs whose caps no GPU keeps, and whose micro-batch is their own affair."""
        with self._lock:
            runs = {
                key: one for key, one in self._runs.items()
                if self._devices.get(key) and key not in self._steerable
                and (self._caps is None or key in self._by_duty)
            }  # fmt: skip
        return {
            key: Pace(one.duty, one.micro_batch, one.rate_per_s, len(self._devices.get(key, ())))
            for key, one in runs.items()
        }

    def draws_in_full(self, key: Key, full_w: float) -> None:
        """What a run draws per device while it computes all of the time, as measured."""
        self._full_w[key] = full_w
        cap_w = self._caps_w.get(key)
        if cap_w is None:
            return
        if self._caps is None:
            self._limit(key, cap_w)
        else:
            self._capper.submit(self._limit, key, cap_w)

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
        self._reserve.close()

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
        folders.run.chmod(0o700)  # nobody puts anything in the way while it is laid out
        self._sign(run.spec, folders)
        drop_old_runs(folders.job, run.start.attempt)
        asked = run.paper.get("app")
        account = user_of(run.paper)
        uid = None if account is None else account[0]
        app = App.made(folders.run, run.spec.id, asked, uid) if asked else None
        order = order_of(run, self._machine, folders, self._status, app)
        self.support = support = cgroups.find()
        if self._require_limits:
            self._check_limits(run, order, support)
        order |= {"cgroup": support.document(), "require_limits": self._require_limits}
        own = [folders.work, folders.checkpoint]
        if self._status is not None:
            own.append(run_dir.write_token(folders.run))
        reports = folders.run / run_dir.PROGRESS
        for closed in (run_dir.LOGS, sessions.FOLDER):
            (folders.run / closed).mkdir(mode=0o700, exist_ok=True)
        for spare in (run_dir.EXIT_SPARE, run_dir.STOP_SPARE):
            run_dir.set_aside(folders.run / spare)  # a run that has no room is not begun
        run_dir.write(folders.run / run_dir.NEVER, run_dir.NOBODY)
        os.close(os.open(run_lock.lock_of(folders.run), os.O_RDONLY | os.O_CREAT, run_lock.MODE))
        key = _key(run.start)
        duty = 1.0 if run.cap_w is None else self._duty(key, run.cap_w)
        self._control(key, duty=duty, cap_w=run.cap_w)
        self._write_control(key)
        plan = staging_plan(run.paper, folders)
        if plan is not None:
            run_dir.write(folders.run / run_dir.STAGING, plan)
            archive.write(folders.run / run_dir.TRANSFER)
        run_dir.write(folders.run / run_dir.ORDER, order)
        with os.fdopen(os.open(folders.run / LOG, _APPEND, 0o600)):
            pass  # it is there, and ours, before the job's account gets in
        hand_over(folders.job, folders.run, own, reports, user_of(run.paper))

    def _check_limits(
        self, run: RunOrder, order: Mapping[str, Any], support: cgroups.Support
    ) -> None:
        limits = enforcement.asked(run.spec, run.paper)
        if run.paper.get(FAIR_MEMORY) and not run.paper.get("container"):
            limits = replace(limits, memory_bytes=order["limits"]["memory_bytes"])
        enforcement.check_enforced(enforcement.unenforced(support, limits))

    def _sign(self, spec: JobSpec, folders: Folders) -> None:
        """Write down which store ordered this run."""
        if self._origin is not None:
            run_dir.write(folders.run / run_dir.ORIGIN, self._origin(spec), durable=True)

    def _launch(self, run: RunOrder, folders: Folders) -> int:
        """A process of its own, in a session of its own: it does not end with us."""
        log = (os.POSIX_SPAWN_OPEN, 1, folders.run / LOG, _APPEND, 0o600)
        app = App.read(folders.run)
        places = self._accounts.secrets_for(run.spec.tenant)
        secrets = secrets_of(run.paper, user_of(run.paper), places)
        hidden = {**secrets, **(app.secrets() if app else {})}
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "wattherd.local.supervisor", str(folders.run)],
            {**os.environ, **{run_dir.HELD + name: hidden[name] for name in hidden}},
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )

    def _try_launch(self, key: Key, launch: _Launch) -> None:
        """Have a supervisor begin a run, unless one has, or is about to."""
        folders = self._folders(key)
        with self._launching:
            if self._launches.get(key) is not launch or launch.child is not None:
                return
            try:
                if certain(present(folders.run / run_dir.BEGUN)) is not None:
                    return
                order = self._accounts.applied(launch.order)
                self._prepare(order, folders)
                launch.child = self._launch(order, folders)
                self._children.add(launch.child)
                launch.why = ""
            except UserError as error:
                self._refuse(key, folders, str(error))
            except (OSError, MemoryError) as error:
                if isinstance(error, OSError) and error.errno in REFUSED:
                    self._refuse(key, folders, f"cannot be started: {words(error)}")
                else:
                    launch.put_off(f"cannot be started: {words(error)}")
            except ValueError as error:
                # An order that no process can be made of, such as a zero byte in a variable: it
                # would come again, and must neither stop the core nor the next start.
                self._refuse(key, folders, f"cannot be started: {error}")

    def _refuse(self, key: Key, folders: Folders, why: str) -> None:
        """What cannot even be prepared has failed."""
        with contextlib.suppress(OSError):  # the journal will have it
            folders.run.mkdir(parents=True, exist_ok=True)
            if key in self._launches:
                self._sign(self._launches[key].order.spec, folders)
            run_dir.write(folders.run / run_dir.EXIT, {"exit_code": CANNOT_RUN, "why": why})
        self._bury(key)
        self._tell(
            JobExited(at_s=0.0, job_id=key[0], attempt=key[1], exit_code=CANNOT_RUN, cause=why)
        )

    def _control(self, key: Key, **changes: Any) -> None:
        """Have the orders of a run changed, now or as soon as that can be done."""
        with self._writing:
            self._unwritten.setdefault(key, {}).update(changes)
            with self._reserve.spared():
                try:
                    self._write_control(key)
                except OSError as error:
                    self._unwritable[key] = f"its orders cannot be written: {words(error)}"

    def _write_control(self, key: Key) -> None:
        """Write changes down that are not written yet.

        Raises:
            OSError: that cannot be done now; they are kept.
        """
        with self._writing:
            changes = self._unwritten.get(key)
            if not changes:
                return
            folder = self._folders(key).run
            match document(folder / run_dir.CONTROL):
                case Present(found):
                    before = found
                case Unknown(why, damaged):
                    if not damaged:
                        raise OSError(errno.EIO, why)
                    cap_w = self._caps_w.get(key)
                    before = {"duty": self._machine.duty(cap_w, self._full_w.get(key)),
                              "cap_w": cap_w}  # fmt: skip
                case Absent():
                    before = {}
            spare = folder / run_dir.STOP_SPARE if "stop" in changes else None
            run_dir.write(folder / run_dir.CONTROL, {**before, **changes}, spare=spare)
            del self._unwritten[key]
            self._unwritable.pop(key, None)

    # Looking after them -------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                for event in self.look():
                    self._tell(event)
                self.failure = ""
            except Exception as error:  # noqa: BLE001 - nobody else hears how runs end
                if self.failure != (said := words(error)):
                    _LOG.exception("runs cannot be looked after; tried again")
                self.failure = said

    def look(self) -> list[Event]:
        """What happened to the runs since the last look."""
        told: list[Event] = []
        with self._reserve.spared():
            self._reap()
            self._end_strays()
            with self._lock:
                runs = list(self._runs.items())
            for key, watched in runs:
                try:
                    self._look_at(key, watched, told)
                    self._failed.pop(key, None)
                except Exception as error:  # noqa: BLE001
                    # One run that cannot be looked after must not cost all others.
                    if self._failed.get(key) != words(error):
                        _LOG.exception("cannot look after run %d of job %s", key[1], key[0])
                    self._failed[key] = words(error)
            with self._lock:
                self.troubles = {key: why for key in self._runs if (why := self._trouble(key))}
                self.unkept = {key: one.unkept for key, one in self._runs.items() if one.unkept}
        return told

    def _trouble(self, key: Key) -> str:
        """What cannot be done for a run at the moment, in words."""
        watched, launch = self._runs[key], self._launches.get(key)
        if launch is not None and launch.why:
            return launch.why
        unread = watched.unknown or self._failed.get(key, "")
        if unread:
            return unread if unread == LEFT_BEHIND else f"its run cannot be read: {unread}; retried"
        if key in self._unwritable:
            return f"{self._unwritable[key]}; retried"
        return f"its supervisor is in trouble: {watched.trouble}" if watched.trouble else ""

    def _reap(self) -> None:
        """Take note of the ends of supervisors, so that none stays on as a zombie."""
        for pid in list(self._children):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                ended = True
            except OSError:
                continue
            if ended:
                self._children.discard(pid)

    def _look_at(self, key: Key, watched: RunObserver, told: list[Event]) -> None:
        """One run: what is new of it goes to `told`, also where a later step fails."""
        launch = self._launches.get(key)
        # Looked at before the directory: a supervisor begins first, and ends then.
        ended = launch is not None and launch.child not in (None, *self._children)
        for event in watched.news():  # one by one: a failure must not lose what came before it
            told.append(event)  # noqa: PERF402
        if watched.over:
            self._bury(key)
            return
        if key in self._unwritten:
            self._control(key)
        if launch is not None and isinstance(watched.begun, Present):
            with self._lock:
                self._launches.pop(key, None)
        elif launch is not None and isinstance(watched.begun, Absent):
            self._see_to(key, launch, told, ended=ended)
        elif watched.abandoned or watched.unknown == LEFT_BEHIND or self._is_hopeless(key, watched):
            self._end_left(key, watched, told)

    def _is_hopeless(self, key: Key, watched: RunObserver) -> bool:
        """Whether a run that is to stop has ended, and nobody will ever know how."""
        return watched.damaged and key in self._stopping

    def _end_left(self, key: Key, watched: RunObserver, told: list[Event]) -> None:
        """A dead supervisor may have left processes behind: its end is told when none is left."""
        folder = self._folders(key).run
        if not end_group(folder) or watched.unknown == LEFT_BEHIND:
            end_holders(folder)
            return
        end = watched.abandon()
        told.append(end)
        note_end(folder, end.exit_code, end.cause)
        self._bury(key)

    def _see_to(self, key: Key, launch: _Launch, told: list[Event], *, ended: bool) -> None:
        """A run that has not begun: start it, call it off, or find out what it waits for."""
        if launch.stop:
            if self._call_off(key, launch):
                told.append(JobStopped(at_s=0.0, job_id=key[0], attempt=key[1]))
                self._bury(key)
            return
        if ended:
            launch.child = None
            launch.put_off("its supervisor ended before it began (see supervisor.log); retried")
        if time.monotonic() < launch.next_s:
            return
        if launch.child is None:
            self._try_launch(key, launch)
        else:
            launch.next_s = time.monotonic() + OTHERS_S
            launch.why = self._others(key)

    def _call_off(self, key: Key, launch: _Launch) -> bool:
        """Whether a run will never begin."""
        folder = self._folders(key).run
        with self._launching:
            if launch.child is None and isinstance(present(folder / run_dir.ORDER), Absent):
                return True  # no supervisor, of an earlier service either, has been told of it
            try:
                return run_dir.forestall(folder)
            except OSError as error:
                launch.why = f"cannot be called off: {words(error)}; retried"
                return False

    def _others(self, key: Key) -> str:
        """End what still runs of other attempts of the job; the words for it, if anything does."""
        own = self._folders(key).run
        match run_lock.held(own):
            case Present(True):
                pass
            case Unknown(why):
                return f"its lock cannot be read: {why}; retried"
            case _:
                return ""
        for folder in run_folders(own.parent):
            if folder != own:
                end_stray(folder)
        left = end_holders(own)
        named = f" (process {', '.join(map(str, left))})" if left else ""
        return f"waits until an earlier attempt of it has ended{named}"

    def _find_strays(self, wanted: Callable[[], Collection[Key]]) -> None:
        """Note the directories of all runs but those: nobody counts on them.

        Who is wanted is asked last: a run that begins meanwhile is wanted before it has a folder.
        """
        try:
            folders = [one for job in folders_in(self._root) for one in run_folders(job)]
        except OSError as error:
            _LOG.warning("cannot look for runs below %s: %s", self._root, words(error))
            self._listed = False
            return
        self._listed, keys = True, wanted()
        self._strays.update(one for one in folders if key_of(one) not in keys)

    def _wanted(self) -> Collection[Key]:
        with self._lock:
            return set(self._runs)

    def _end_strays(self) -> None:
        """End what nobody counts on, again and again until it is proven to be over."""
        if (self._listed and not self._strays) or time.monotonic() < self._strays_s:
            return
        self._strays_s = time.monotonic() + OTHERS_S
        if not self._listed:
            self._find_strays(self._wanted)
        for folder in sorted(self._strays):
            if end_stray(folder):
                self._strays.discard(folder)

    def _bury(self, key: Key) -> None:
        """A run that is over."""
        self._forget(key)
        for known in (self._caps_w, self._full_w, self._steerable):
            known.pop(key, None)
        self._by_duty.discard(key)
        if self._caps is not None:
            self._capper.submit(self._uncap, key)
        else:
            self._devices.pop(key, None)
        with contextlib.suppress(OSError):  # room that nobody needs any more
            (self._folders(key).run / run_dir.STOP_SPARE).unlink(missing_ok=True)

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._runs.pop(key, None)
            self._launches.pop(key, None)
        with self._writing:
            for kept in (self._unwritten, self._unwritable, self._failed):
                kept.pop(key, None)
        self._stopping.discard(key)


def _key(order: StartJob | StopJob | SetCap | SetBatch | GiveNotice) -> Key:
    return order.job_id, order.attempt
