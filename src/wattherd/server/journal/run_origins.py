"""Whether a store and a state folder belong together: no run counts for a job that it is not of.

Run folders outlive a store. After a restored backup, a deleted journal or a new database, a folder
`j-5/run-1` may be of another job j-5 than the store's, or of a run that the store never ordered.
So every run folder names its *origin*: the store, the entry of its journal that led to the order,
and that entry's digest. Since each digest covers all entries before it, an entry with this digest
is in one history only; what was submitted or ordered in another is told apart, although restored
backups share the identity of their store.

What is of another origin is moved to `set-aside/` in the state folder and told; nothing is deleted.
Where runs of it are still alive, or the journal has lost its end, the service does not start unless
it is told to (`wattherd serve --accept-store`).
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.observation import Present, Unknown, certain, document
from wattherd.local.orphans import end_stray, folders_in, run_folders
from wattherd.local.ownership import make_passage
from wattherd.local.processes import with_variable
from wattherd.local.run_observer import RunObserver
from wattherd.model.job import JobSpec
from wattherd.server.journal.job_history import JobHistory
from wattherd.store.entry import StoreFailure
from wattherd.store.head import HEAD_FILE, HeadFile
from wattherd.store.store import ClusterStore

RUNS, SET_ASIDE = "jobs", "set-aside"
_SHOWN = 5
END_S = 10.0
"""For processes of other origins, once they are killed."""
ACCEPT = (
    "if the store is right as it is, start once with --accept-store: runs that it does not know"
    " are ended, their folders are set aside"
)
_RESTORE = f"restore the journal; {ACCEPT}"


@dataclass(frozen=True, slots=True)
class _Run:
    """A run folder, and what it says of its origin."""

    folder: Path
    job_id: str
    attempt: int
    origin: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job_id} (run {self.attempt})"


def check_journal_file(path: Path | None, state: Path) -> None:
    """Before a database is made where there is none: is one missing?

    Raises:
        UserError: the state folder remembers a journal, and this is not it.
    """
    if path is None or _content(path):
        return
    what = "is empty" if path.exists() else "is missing"
    remembered = _remembered(state)
    if remembered:
        raise UserError(f"{what}, but {remembered}", where=str(path), hint=_RESTORE)


def _content(path: Path) -> bool:
    """Whether there is more than zeros at the beginning of a file."""
    try:
        with path.open("rb") as stream:
            return any(stream.read(100))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _remembered(state: Path) -> str:
    """What in a state folder is of a journal that had entries; empty if nothing is.

    Raises:
        UserError: it cannot be read.
    """
    try:
        folders = _run_folders(state / RUNS)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(state / RUNS)) from None
    if folders:
        return f"there are {len(folders)} runs of jobs in {state / RUNS}"
    head = HeadFile(state / HEAD_FILE).read()
    return f"{state / HEAD_FILE} knows of {head}" if head is not None and head.seq else ""


class Origins:
    """Holds a store and a state folder together; made before anything is done with either."""

    def __init__(self, store: ClusterStore, state: Path, *, accept: bool = False) -> None:
        """Check the end of the journal; with `accept` take it as it is.

        Raises:
            UserError: the journal is empty or has lost its end, and nobody accepts that.
            StoreFailure: it cannot be read.
        """
        self.notes: list[str] = []
        """What was done, for the operator to read."""
        self._store, self._state, self._accept = store, state, accept
        self._aside_folder: Path | None = None
        problem = _end_problem(store, state)
        if problem and not accept:
            raise UserError(problem, where=store.database.url, hint=_RESTORE)
        if problem:
            self.notes.append(f"the store is accepted as it is: {problem}")
        self.identity = store.journal.identity()
        if problem or not (state / HEAD_FILE).exists():
            self._keep_head_file()
            store.journal.note_end()

    def of(self, spec: JobSpec, seq: int) -> dict[str, Any]:
        """What a run folder is to say: the order to run `spec` follows from entry `seq`.

        Raises:
            OSError: the store cannot be read now.
        """
        try:
            digest = self._store.journal.digest(seq)
        except StoreFailure as failure:
            raise OSError(errno.EIO, str(failure)) from None
        submitted_s = spec.submit_s
        return {"store": self.identity, "entry": seq, "digest": digest, "submitted_s": submitted_s}

    def sort_out(self, core: Core, history: JobHistory) -> None:
        """Set run folders aside that the store did not order.

        `core` and `history` have lived its journal through; what is projected may be behind it.

        Raises:
            UserError: some of those runs are alive, and nobody accepts that they end; or a folder
                can be neither read nor moved.
            StoreFailure: the store cannot be read.
        """
        try:
            runs = [_run(folder) for folder in _run_folders(self._state / RUNS)]
            others = self._others(runs, core, history)
            apart = {run.folder for run in others}
            self._end([run for run in others if not _over(run.folder)])
            self._move(runs, others, core)
            self._stamp(
                [run for run in runs if run.folder not in apart and run.origin is None], core
            )
        except OSError as error:
            hint = "a run that cannot be read is neither ended nor counted: see to it, start again"
            where = str(error.filename or self._state)
            raise UserError(f"cannot be used: {error.strerror}", where=where, hint=hint) from None

    def _others(self, runs: Sequence[_Run], core: Core, history: JobHistory) -> list[_Run]:
        """Runs of another origin."""
        entries = sorted({entry for run in runs if (entry := _entry(run)) > 0})
        digests = self._store.journal.digests(entries)
        base = self._store.journal.base().seq
        last = self._store.journal.last_seq

        def is_other(run: _Run) -> bool:
            if run.origin is None:
                return run.attempt > _attempts(run.job_id, core, history)
            if run.origin.get("store") != self.identity:
                return True
            entry = _entry(run)
            if 0 < entry < base <= last:
                return False  # a compaction dropped the entry
            return digests.get(entry) != run.origin.get("digest")

        return [run for run in runs if is_other(run)]

    def _end(self, unfinished: Sequence[_Run]) -> None:
        alive = {run.name: pids for run in unfinished if (pids := _processes(run))}
        if alive and not self._accept:
            named = "; ".join(f"{name}: {_named(pids)}" for name, pids in alive.items())
            raise UserError(
                f"{len(alive)} runs that this store did not order are alive ({named})",
                where=str(self._state / RUNS),
                hint=f"end them, or start the service with the store that ordered them; {ACCEPT}",
            )
        end_s = time.monotonic() + END_S
        for run in unfinished:
            while not end_stray(run.folder) or _processes(run):
                if time.monotonic() > end_s:
                    raise OSError(errno.EBUSY, "a run in it does not end", str(run.folder))
                time.sleep(0.05)
        if alive:
            self.notes.append(f"ended runs that this store did not order: {', '.join(alive)}")

    def _move(self, runs: Sequence[_Run], others: Sequence[_Run], core: Core) -> None:
        """Whole jobs where nothing of them is ours, else single runs."""
        if not others:
            return
        ours = {run.job_id for run in runs if run not in others}
        ours |= {run.job_id for run in others if self._is_known(run, core)}
        aside = self._aside()
        moved: dict[Path, Path] = {}
        for run in others:
            if run.job_id in ours:
                moved[run.folder] = aside / run.job_id / run.folder.name
            else:
                moved[run.folder.parent] = aside / run.job_id
        for folder, goal in moved.items():
            goal.parent.mkdir(mode=0o700, exist_ok=True)
            folder.rename(goal)
        names = [run.name for run in others]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        self.notes.append(
            f"{len(names)} runs that this store did not order are set aside in {aside}: {shown}"
        )

    def _is_known(self, run: _Run, core: Core) -> bool:
        """Whether its job was submitted in our history, although this run was not ordered there."""
        job = core.jobs.get(run.job_id)
        return (
            job is not None
            and run.origin is not None
            and run.origin.get("store") == self.identity
            and run.origin.get("submitted_s") == job.spec.submit_s
        )

    def _stamp(self, runs: Sequence[_Run], core: Core) -> None:
        """Folders of an earlier version say from now on whose they are."""
        seq = self._store.journal.last_seq
        for run in runs:
            job = core.jobs.get(run.job_id)
            origin = {
                "store": self.identity,
                "entry": seq,
                "digest": self._store.journal.digest(seq),
                "submitted_s": None if job is None else job.spec.submit_s,
            }
            run_dir.write(run.folder / run_dir.ORIGIN, origin)

    def _aside(self) -> Path:
        folder = self._state / SET_ASIDE
        make_passage(folder)
        if self._aside_folder is None:
            name = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
            free = (folder / f"{name}{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
            self._aside_folder = next(one for one in free if not one.exists())
            self._aside_folder.mkdir(mode=0o700)
        return self._aside_folder

    def _keep_head_file(self) -> None:
        """What it said is of use to whoever looks for the lost entries."""
        head = self._state / HEAD_FILE
        with contextlib.suppress(FileNotFoundError):
            if head.stat().st_size:
                head.rename(self._aside() / HEAD_FILE)


def _end_problem(store: ClusterStore, state: Path) -> str:
    """What speaks against going on with this journal."""
    problem = store.journal.end_problem()
    if problem or store.journal.last_seq:
        return problem
    remembered = _remembered(state)
    return f"the journal is empty, but {remembered}" if remembered else ""


def _run_folders(root: Path) -> list[Path]:
    """Directories of all runs.

    Raises:
        OSError: they cannot be listed, so that nobody can tell whether there are any.
    """
    jobs = folders_in(root.absolute())
    return [run for job in jobs for run in run_folders(job)]


def _run(folder: Path) -> _Run:
    match document(folder / run_dir.ORIGIN):
        case Present(found):
            origin: Mapping[str, Any] | None = found
        case Unknown(why, damaged) if not damaged:
            raise OSError(errno.EIO, why, str(folder))
        case _:
            origin = None
    return _Run(folder, folder.parent.name, int(folder.name.removeprefix("run-")), origin)


def _attempts(job_id: str, core: Core, history: JobHistory) -> int:
    """How many runs of a job were ordered: for folders of earlier versions, without origin."""
    known, past = core.jobs.get(job_id), history.get(job_id)
    return max(known.attempt if known else 0, past.attempts if past else 0)


def _entry(run: _Run) -> int:
    """The entry that ordered a run; -1 where its folder, in which jobs may write, names none."""
    found = (run.origin or {}).get("entry")
    return found if isinstance(found, int) and not isinstance(found, bool) else -1


def _over(folder: Path) -> bool:
    """Whether its supervisor has said so; a file that the job itself put there says nothing."""
    match document(folder / run_dir.EXIT):
        case Present(_):
            return True
        case Unknown(why, damaged) if not damaged:
            raise OSError(errno.EIO, why, str(folder))
        case _:
            return False


def _processes(run: _Run) -> list[int]:
    """Processes of a run.

    Raises:
        OSError: it cannot be told whether there are any.
    """
    found = certain(with_variable(f"WATTHERD_RUN_DIR={run.folder}")) or []
    match RunObserver((run.job_id, run.attempt), run.folder).supervisor:
        case Present(pid):
            return [pid, *(one for one in found if one != pid)]
        case Unknown(why) if not found:
            raise OSError(errno.EIO, why, str(run.folder))
        case _:
            return found


def _named(pids: Sequence[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
