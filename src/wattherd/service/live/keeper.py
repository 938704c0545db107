"""The keeper of a live cluster: the only one who speaks with the core.

Everything that happens is an event: written to the journal first, then handed to the core, whose
orders are carried out at once. All of it is done by one thread, turn by turn; others put things
into its inbox. A turn writes all that came in meanwhile with one commit, so that a thousand
submissions cost hardly more than one.

What users want fails if the journal cannot take it: nothing is acknowledged that a crash could
lose. Facts of the world cannot be refused; they are kept until the journal takes them. Where a
connection is lost in the middle of a commit, the journal is read again before anything else is
written, and what it kept after all has happened.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from wattherd.engine.core import Core
from wattherd.errors import ClusterError, UserError
from wattherd.model.command import (
    Command,
    Compute,
    GiveNotice,
    SetCap,
    StartJob,
    StopJob,
)
from wattherd.model.event import Computed, Event, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.runtime.contract import Executor, RunOrder
from wattherd.runtime.sim.world import Computer
from wattherd.service.live.contract import Clock, Journal
from wattherd.service.live.standing import KEY, Standing, request_of
from wattherd.store.entry import Entry, StoreDoubt, StoreFailure

RETRY_S = 1.0
"""How long to wait before the journal is tried again."""
MOST_PATIENCE_S = 3600.0
"""Longer waits are taken in parts: no clock waits for a job's limit of a million years."""
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Wish:
    """An event that somebody asks for; `done` gets the id of the job it is about, or an error."""

    event: Event
    by: str
    paper: Mapping[str, Any] | None
    done: Future[str]


@dataclass(slots=True)
class _Question:
    """Something to look up between two turns."""

    of: Callable[[Core], Any]
    done: Future[Any]


@dataclass(slots=True)
class _Turn:
    """What one turn has to do."""

    wishes: list[_Wish] = field(default_factory=list)
    questions: list[_Question] = field(default_factory=list)


class Keeper:
    """Runs one core. Call `recover` once, then `begin`; `post`, `tell` and `ask` from any thread.

    `on_turn` is called with every entry and its answer, recovered ones too, in the keeper's thread:
    for projections and live pages. It must be quick and must not fail; nor must `on_cycle`, which
    hears how many seconds the core and the handing out of its orders took.
    """

    def __init__(
        self,
        core: Core,
        journal: Journal,
        clock: Clock,
        *,
        computers: Mapping[str, Computer] | None = None,
        pool: Pool | None = None,
        on_turn: Callable[[Sequence[tuple[Entry, Sequence[Command]]]], None] | None = None,
        on_cycle: Callable[[float], None] = lambda _: None,
        standing: Standing | None = None,
    ) -> None:
        """Without a `pool` questions of the core are answered within the turn.

        A core that does not begin at the start of the journal comes with its `standing`.
        """
        self.core = core
        self.standing = standing or Standing()
        self.orders = self.standing.orders
        self.store_problem = ""
        """Why the journal takes nothing at the moment; empty if it does."""
        self.broken: BaseException | None = None
        """What stopped the core, if anything did."""
        self._journal, self._clock = journal, clock
        self._computers, self._pool = computers or {}, pool
        self._on_turn, self._on_cycle = on_turn, on_cycle
        self._executor: Executor | None = None
        self._inbox: queue.SimpleQueue[_Wish | _Question | Event | None] = queue.SimpleQueue()
        self._facts: list[Event] = []
        self._in_doubt = False
        """Whether the journal may hold more than is known here."""
        self._doubted = 0
        """How many of the facts are then in it already."""
        self._turn = _Turn()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    # From any thread ----------------------------------------------------------------------------

    def submit(
        self, spec: JobSpec, paper: Mapping[str, Any], by: str, key: str = ""
    ) -> Future[str]:
        """Hand a job in; its id and time of submission are set here.

        The result is the id, there once the job is on disk. Of several submissions by the same
        user with the same `key` the first counts, and all get its id.
        """
        if key:
            paper = {**paper, KEY: key}
        return self.post(JobSubmitted(at_s=0.0, job=spec), by=by, paper=paper)

    def post(self, event: Event, *, by: str, paper: Mapping[str, Any] | None = None) -> Future[str]:
        """Ask for an event of a user; the future fails with `StoreFailure` if it is not kept."""
        done: Future[str] = Future()
        self._put(_Wish(event, by, paper, done))
        return done

    def tell(self, event: Event) -> None:
        """Report a fact of the world; its time is set here."""
        self._inbox.put(event)

    def ask(self, question: Callable[[Core], Answer]) -> Future[Answer]:
        """Look something up in the core, between two turns."""
        done: Future[Answer] = Future()
        self._put(_Question(question, done))
        return done

    def _put(self, item: _Wish | _Question) -> None:
        self._inbox.put(item)
        if self.broken is not None:  # nobody takes it out any more
            self._give_up(self.broken)

    # The thread ---------------------------------------------------------------------------------

    def recover(self, executor: Executor) -> int:
        """Replay the journal and have `executor` adopt what is to run; the number of entries.

        Raises:
            Bug: the journal does not lead to a sound state.
            StoreFailure: it cannot be read.
        """
        tail = self._journal.entries(self.standing.seq)
        for told in self.standing.replay(self.core, tail):
            self._look_on([told])
        self._executor = executor
        executor.adopt(self._runs())
        for question in list(self.orders.questions.values()):
            self._compute(question)
        return self.standing.seq

    def _runs(self) -> list[RunOrder]:
        """The runs that the core counts on; lost nodes may have left others among the orders."""
        live = self.core.jobs
        return [
            run
            for job_id, run in self.orders.runs.items()
            if job_id in live and live[job_id].active and live[job_id].attempt == run.start.attempt
        ]

    def begin(self) -> None:
        """Let the turns begin."""
        self._thread.start()

    def end(self) -> None:
        """Finish the turn at hand and stop; runs go on by themselves."""
        self._over.set()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._executor is not None:
            self._executor.close()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.turn(self._patience_s())
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """A broken core decides nothing more: whoever still waits is told so."""
        self.broken = error
        waiting = (*self._turn.wishes, *self._turn.questions, *self._drained())
        for item in waiting:
            if isinstance(item, _Wish | _Question) and not item.done.done():
                item.done.set_exception(ClusterError(f"the core has stopped: {error}"))

    def _patience_s(self) -> float:
        """How long nothing needs to be done by itself."""
        if self._facts or self.store_problem:
            return RETRY_S
        wake_s = self.orders.next_wake_s()
        left_s = MOST_PATIENCE_S if wake_s is None else wake_s - self._clock.now_s()
        return min(MOST_PATIENCE_S, max(0.0, left_s))

    def turn(self, patience_s: float = 0.0) -> None:
        """Wait so long for something to happen, then deal with all that did."""
        turn = self._turn = self._collected(patience_s)
        now_s = self._clock.now_s()
        if turn.wishes or self._facts or self._in_doubt or self.orders.due(now_s):
            self._write(turn.wishes, now_s)
        for question in turn.questions:
            _answer(question, self.core)

    def _collected(self, patience_s: float) -> _Turn:
        turn = _Turn()
        for item in self._drained(patience_s):
            if isinstance(item, _Wish):
                turn.wishes.append(item)
            elif isinstance(item, _Question):
                turn.questions.append(item)
            elif item is not None:
                self._facts.append(item)
        return turn

    def _drained(self, patience_s: float = 0.0) -> Iterator[_Wish | _Question | Event | None]:
        """All that is in the inbox; the first of it is waited for."""
        try:
            yield self._inbox.get(timeout=patience_s) if patience_s else self._inbox.get_nowait()
            while True:
                yield self._inbox.get_nowait()
        except queue.Empty:
            return

    def _write(self, wishes: Sequence[_Wish], now_s: float) -> None:
        """Journal first; only what is kept happens."""
        try:
            self._settle()
            wishes = self._numbered(self._new(wishes), now_s)
            facts = [*self._facts, *self.orders.due(now_s)]
            entries = self._entries(facts, wishes, now_s)
            self._append(entries)
        except StoreFailure as failure:
            self.store_problem = str(failure)
            for wish in wishes:
                wish.done.set_exception(failure)
            return
        self.store_problem = ""
        self._facts.clear()
        self._happen(entries)
        for wish, entry in zip(wishes, entries[len(facts) :], strict=True):
            wish.done.set_result(_about(entry.event))

    def _append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        try:
            self._journal.append(entries)
        except StoreDoubt:
            self._doubted = len(self._facts)
            self._in_doubt = True
            raise

    def _settle(self) -> None:
        """What the journal kept although it could not say so has happened."""
        if not self._in_doubt:
            return
        kept = self._journal.settle()
        if kept:
            del self._facts[: self._doubted]
            self._happen(kept)
        self._doubted, self._in_doubt = 0, False

    def _new(self, wishes: Sequence[_Wish]) -> list[_Wish]:
        """Wishes that were not fulfilled before; the others get their answer again."""
        found: list[_Wish] = []
        asked: set[tuple[str, str] | None] = set()
        for wish in wishes:
            request = request_of(wish.by, wish.paper)
            known = None if request is None else self.standing.requests.get(request)
            if known is not None:
                wish.done.set_result(known)
            elif request is not None and request in asked:
                self._inbox.put(wish)  # its twin is about to be fulfilled
            else:
                found.append(wish)
                asked.add(request)
        return found

    def _numbered(self, wishes: Sequence[_Wish], now_s: float) -> list[_Wish]:
        """The same at their time, new jobs with their ids; what cannot have its own is refused."""
        found: list[_Wish] = []
        number = self.standing.submitted + 1
        for wish in wishes:
            event = replace(wish.event, at_s=now_s)
            if isinstance(event, JobSubmitted):
                try:
                    job = replace(event.job, id=f"j-{number}", submit_s=now_s)
                except UserError as error:  # it waits for itself, as nobody knew before
                    wish.done.set_exception(error)
                    continue
                event, number = replace(event, job=job), number + 1
            found.append(replace(wish, event=event))
        return found

    def _entries(
        self, facts: Sequence[Event], wishes: Sequence[_Wish], now_s: float
    ) -> list[Entry]:
        seq = self.standing.seq
        entries = [
            Entry(seq=seq + i, event=replace(event, at_s=now_s), by="system")
            for i, event in enumerate(facts, start=1)
        ]
        for i, wish in enumerate(wishes, start=len(facts) + 1):
            entries.append(Entry(seq=seq + i, event=wish.event, by=wish.by, paper=wish.paper))
        return entries

    def _happen(self, entries: Sequence[Entry]) -> None:
        begun_s = time.perf_counter()
        told: list[tuple[Entry, Sequence[Command]]] = []
        for entry, commands in self.standing.replay(self.core, entries):
            told.append((entry, commands))
            for command in commands:
                self._carry_out(command)
        self._on_cycle(time.perf_counter() - begun_s)
        self._look_on(told)

    def _look_on(self, told: Sequence[tuple[Entry, Sequence[Command]]]) -> None:
        if self._on_turn is not None:
            self._on_turn(told)

    def _carry_out(self, command: Command) -> None:
        executor = self._executor
        if executor is None:
            return
        match command:
            case StartJob():
                executor.start(self.orders.runs[command.job_id])
            case StopJob():
                executor.stop(command)
            case GiveNotice():
                executor.give_notice(command)
            case SetCap():
                executor.cap(command)
            case Compute():
                self._compute(command)

    def _compute(self, order: Compute) -> None:
        """Work the answer out elsewhere; none if nobody can."""

        def work() -> None:
            try:
                result = self._computers[order.kind](order.payload)
            except (KeyError, ClusterError):
                result = None
            self.tell(Computed(at_s=0.0, kind=order.kind, key=order.key, result=result))

        if self._pool is None:
            work()
        else:
            self._pool.submit(work)


def _about(event: Event) -> str:
    if isinstance(event, JobSubmitted):
        return event.job.id
    return str(getattr(event, "job_id", ""))


def _answer(question: _Question, core: Core) -> None:
    try:
        question.done.set_result(question.of(core))
    except Exception as error:  # noqa: BLE001 - it is the asker's, who gets it
        question.done.set_exception(error)
