"""The keeper of a live cluster: the only one who speaks with the core.

Everything that happens is an event: written to the journal first, then handed to the core, whose
orders are carried out at once. Two threads do that. The *clerk* takes what users want, writes all
of it that came in meanwhile with one commit, and acknowledges submissions as soon as they are on
disk, however long the core thinks. Where it does not think, the clerk tells it of them, too. The
*keeper* takes turns: it writes facts and wake-ups, lets everything happen that was written since
the last turn, with one plan for all of it (`rest` says how soon), and answers questions. A thousand
submissions cost hardly more than one.

How things are numbered and written, and what is done when they cannot be, is in `register`.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, TypeVar

from wattherd.engine.core.core import Core
from wattherd.engine.core.executor import Executor, RunOrder
from wattherd.errors import ClusterError
from wattherd.model.command import (
    WAKE,
    Command,
    Compute,
    GiveNotice,
    SetBatch,
    SetCap,
    StartJob,
    StopJob,
)
from wattherd.model.event import (
    BatchApplied,
    CapApplied,
    Computed,
    Event,
    JobDrew,
    JobMeasured,
    JobProgressed,
    JobStarted,
    JobSubmitted,
    Woke,
)
from wattherd.model.job import JobSpec
from wattherd.server.journal.contract import JournalLog, JournalTime
from wattherd.server.journal.journal_writer import EventWish, JournalWriter, LinedEntry, WishPart
from wattherd.server.journal.replay_state import KEY, ReplayState
from wattherd.sim.world import Computer
from wattherd.store.entry import JournalEntry

# --- When the next plan is worth making: what can wait for one is planned together.
#
# Where ten thousand jobs wait, a plan takes tens of milliseconds, and one more that waits seldom
# changes anything. So plans rest, the longer the more they took, as long as jobs are handed in and
# nothing else happens; who ends, is cancelled or changes a budget ends the rest.

GAP_S = 0.05
"""Between two turns with wake-ups: submissions that come one by one get one plan and one commit."""
PART = 0.05
"""Of the processor, at most, for plans that follow from submissions alone."""
LONGEST_S = 1.0
"""A job that finds free devices starts no later than that, however long plans take."""
_CAN_WAIT = (
    JobSubmitted, JobStarted, JobProgressed, JobMeasured, JobDrew, BatchApplied, CapApplied,
)  # fmt: skip
"""What frees nothing. All but submissions ask for no plan at all."""


class PlanPause:
    """How long plans rest; times in seconds of the journal."""

    def __init__(self) -> None:
        """Nothing was planned yet."""
        self._woken_s = -math.inf
        """When wake-ups were last seen to."""
        self._plan_gap_s = GAP_S
        self._urgent = False

    def heard(self, event: Event) -> None:
        """Something has happened."""
        if isinstance(event, Woke):
            self._urgent = event.key != WAKE
        elif not isinstance(event, _CAN_WAIT):
            self._urgent = True

    def woken(self, now_s: float) -> None:
        """Wake-ups are seen to."""
        self._woken_s = now_s

    def planned(self, processor_s: float) -> None:
        """A plan took so much of a processor's time."""
        self._plan_gap_s = min(LONGEST_S, max(GAP_S, processor_s / PART))

    def due_s(self, wakes: Mapping[str, float]) -> float:
        """When wake-ups, by key, are to be seen to next; infinite if there are none."""
        due_s = math.inf
        for key, at_s in list(wakes.items()):
            patient = key == WAKE and not self._urgent
            gap_s = self._plan_gap_s if patient else GAP_S
            due_s = min(due_s, max(at_s, self._woken_s + gap_s))
        return due_s


RETRY_S = 1.0
"""How long to wait before the journal is tried again."""
GATHER_S = 0.01
"""From one commit to the next: where wishes come faster, several are written with one."""
LEFT_S = 1.0
"""How long the threads of a core that decides nothing more are waited for."""
MOST_PATIENCE_S = 3600.0
"""Longer waits are taken in parts: no clock waits for a job's limit of a million years."""
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(slots=True)
class _Question:
    """Something to look up between two turns."""

    of: Callable[[Core], Any]
    done: Future[Any]

    def fail(self, error: BaseException) -> None:
        """Tell whoever still waits."""
        with contextlib.suppress(InvalidStateError):
            self.done.set_exception(error)


class CoreLoop:
    """Runs one core. Call `recover` once, then `begin`; `post`, `tell` and `ask` from any thread.

    `on_turn` is called with every entry and its answer, recovered ones too, one call at a time: for
    projections and live pages. It must be quick and must not fail; nor must `on_cycle`, which
    hears how many seconds the core and the handing out of its orders took.
    """

    def __init__(
        self,
        core: Core,
        journal: JournalLog,
        clock: JournalTime,
        *,
        computers: Mapping[str, Computer] | None = None,
        pool: Pool | None = None,
        on_turn: Callable[[Sequence[tuple[JournalEntry, Sequence[Command]]]], None] | None = None,
        on_cycle: Callable[[float], None] = lambda _: None,
        standing: ReplayState | None = None,
    ) -> None:
        """Without a `pool` questions of the core are answered within the turn.

        A core that does not begin at the start of the journal comes with its `standing`.
        """
        self.core = core
        self.standing = standing or ReplayState()
        self.orders = self.standing.orders
        self.broken: BaseException | None = None
        """What stopped the core, if anything did."""
        self._journal, self._clock = journal, clock
        self._computers, self._pool = computers or {}, pool
        self._on_turn, self._on_cycle = on_turn, on_cycle
        self._executor: Executor | None = None
        self._register = JournalWriter(journal, clock, self.standing)
        self._inbox: queue.SimpleQueue[_Question | Event | None] = queue.SimpleQueue()
        """None says that there is something to do."""
        self._wishes: queue.SimpleQueue[EventWish | None] = queue.SimpleQueue()
        self._lines: list[LinedEntry] = []
        self._questions: list[_Question] = []
        """What the turn at hand has to do."""
        self._rest = PlanPause()
        self._awaits_s = math.inf
        """Until when the keeper waits, if nobody asks for it."""
        self._core_at_work = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._clerk = threading.Thread(target=self._take_wishes, name="clerk", daemon=True)

    @property
    def store_problem(self) -> str:
        """Why the journal takes nothing at the moment; empty if it does."""
        return self._register.problem

    @property
    def at_work(self) -> bool:
        """Whether turns are taken: begun, and neither over nor broken."""
        return self._thread.is_alive() and self.broken is None

    # From any thread ----------------------------------------------------------------------------

    def submit(
        self, spec: JobSpec, paper: Mapping[str, Any], by: str, key: str = ""
    ) -> Future[str]:
        """Hand a job in; its id and time of submission are set here.

        The result is the id, there once the job is on disk. Of several submissions by the same
        user with the same `key` the first counts, and all get its id.
        """
        return self.hand_in(spec, paper, by, key).done

    def hand_in(
        self,
        spec: JobSpec,
        paper: Mapping[str, Any],
        by: str,
        key: str = "",
        then: Callable[[Core, str], Any] | None = None,
    ) -> EventWish:
        """The same, for who wants to know more than the id; `then` is asked after its turn."""
        return self.hand_in_all([(spec, paper)], by, key, then)

    def hand_in_all(
        self,
        jobs: Sequence[tuple[JobSpec, Mapping[str, Any]]],
        by: str,
        key: str = "",
        then: Callable[[Core, str], Any] | None = None,
    ) -> EventWish:
        """Hand jobs in, all of them or none, with consecutive ids; told is that of the first."""
        parts = [WishPart(JobSubmitted(at_s=0.0, job=spec), paper) for spec, paper in jobs]
        first, *more = parts
        paper = {**(first.paper or {}), KEY: key} if key else first.paper
        return self._wish(EventWish(first.event, by, paper, then=then, more=more))

    def post_all(self, events: Sequence[Event], *, by: str) -> Future[str]:
        """Ask for several events of a user, all of which are kept or none."""
        first, *more = [WishPart(event) for event in events]
        return self._wish(EventWish(first.event, by, more=more)).done

    def post(self, event: Event, *, by: str, paper: Mapping[str, Any] | None = None) -> Future[str]:
        """Ask for an event of a user; the future fails with `StoreFailure` if it is not kept."""
        return self._wish(EventWish(event, by, paper)).done

    def tell(self, event: Event) -> None:
        """Report a fact of the world; its time is set here."""
        self._inbox.put(event)

    def ask(self, question: Callable[[Core], Answer]) -> Future[Answer]:
        """Look something up in the core, between two turns."""
        done: Future[Answer] = Future()
        self._inbox.put(_Question(question, done))
        self._unless_broken()
        return done

    def _wish(self, wish: EventWish) -> EventWish:
        self._wishes.put(wish)
        self._unless_broken()
        return wish

    def _unless_broken(self) -> None:
        if self.broken is not None:  # nobody takes it out any more
            self._give_up(self.broken)

    # The threads --------------------------------------------------------------------------------

    def recover(self, executor: Executor) -> int:
        """Replay the journal and have `executor` adopt what is to run; the number of entries.

        Raises:
            Bug: the journal does not lead to a sound state.
            StoreFailure: it cannot be read.
        """
        tail = self._journal.entries(self.standing.seq)
        for told in self.standing.replay(self.core, tail):
            self._look_on([told])
        self._register.stand()
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
        self._clerk.start()

    def end(self) -> None:
        """Finish the turn at hand and stop; runs go on by themselves.

        A turn that was abandoned is left behind.
        """
        self._over.set()
        self._wishes.put(None)
        self._inbox.put(None)
        for thread in (self._clerk, self._thread):
            if thread.is_alive():
                thread.join(None if self.broken is None else LEFT_S)
        if self._executor is not None:
            self._executor.close()

    def abandon(self, why: Exception) -> None:
        """Wait no more for the turn at hand: nothing that it decides is carried out any more.

        As in a crash, the journal has what was acknowledged, and a successor decides again.
        """
        if self.broken is None:
            self._give_up(why)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.turn(self._patience_s())
        except BaseException as error:
            self._give_up(error)
            raise

    def _take_wishes(self) -> None:
        """Write what users want, again and again; it happens at once, or in the next turn.

        Plans are what takes long: they are made upon wake-ups, which are the other thread's.
        """
        try:
            while not self._over.is_set() and self.broken is None:
                wishes, begun_s = self._gathered(), time.monotonic()
                self._register.write(wishes)
                if not self._happens_now() or self._is_needed():
                    self._inbox.put(None)
                self._unless_broken()
                self._over.wait(max(0.0, begun_s + GATHER_S - time.monotonic()))
        except BaseException as error:
            self._give_up(error)
            raise

    def _gathered(self) -> list[EventWish]:
        """What users want; somebody is waited for."""
        return [wish for wish in _all_of(self._wishes, None) if wish]

    def _happens_now(self) -> bool:
        """Tell the core what is written, unless it is at work."""
        if not self._core_at_work.acquire(blocking=False):
            return False
        try:
            self._happen()
        finally:
            self._core_at_work.release()
        return True

    def _is_needed(self) -> bool:
        """Whether the keeper has something to do before it would look by itself."""
        troubled = self._register.in_doubt or self.store_problem
        return bool(troubled) or self._rest.due_s(self.orders.wakes) < self._awaits_s

    def _give_up(self, error: BaseException) -> None:
        """A broken core decides nothing more: whoever still waits is told so."""
        self.broken = error
        lines = [*self._lines, *self._register.taken()]
        left = [*self._questions, *_all_of(self._inbox), *_all_of(self._wishes)]
        for item in (*(line.wish for line in lines), *left):
            if item is not None and not isinstance(item, Event):
                item.fail(ClusterError(f"the core has stopped: {error}"))
        self._wishes.put(None)

    def _patience_s(self) -> float:
        """How long nothing needs to be done by itself."""
        self._awaits_s = math.inf
        if self._register.facts or self.store_problem:
            return RETRY_S
        self._awaits_s = self._rest.due_s(self.orders.wakes)
        # What the clerk has changed meanwhile is seen here; from now on it asks for the keeper.
        self._awaits_s = due_s = min(self._awaits_s, self._rest.due_s(self.orders.wakes))
        return min(MOST_PATIENCE_S, max(0.0, due_s - self._clock.now_s()))

    def turn(self, patience_s: float = 0.0) -> None:
        """Wait so long for something to happen, then deal with all that did.

        Wishes are the clerk's to write, unless turns are taken by hand.
        """
        self._questions = self._collected(patience_s)
        with self._core_at_work:
            self._take_turn()

    def _take_turn(self) -> None:
        by_hand = self._clerk.ident is None
        wishes = [wish for wish in _all_of(self._wishes) if wish] if by_hand else []
        facts, in_doubt = self._register.facts, self._register.in_doubt
        if wishes or facts or in_doubt or self._is_due(at_once=by_hand):
            self._rest.woken(self._clock.now_s())
            self._register.write(wishes, facts=True, due=self.orders.due)
        elif self.store_problem:
            self._register.try_again()
        self._happen()
        for question in self._questions:
            _answer(question, self.core)

    def _is_due(self, *, at_once: bool) -> bool:
        next_s = self.orders.next_wake_s() if at_once else self._rest.due_s(self.orders.wakes)
        return next_s is not None and next_s <= self._clock.now_s()

    def _collected(self, patience_s: float) -> list[_Question]:
        questions: list[_Question] = []
        for item in _all_of(self._inbox, patience_s):
            if isinstance(item, _Question):
                questions.append(item)
            elif item is not None:
                self._register.facts.append(item)
        return questions

    def _happen(self) -> None:
        """All that is written and has not happened yet."""
        lines = self._lines = self._register.taken()
        if not lines:
            return
        begun_s, used_s = time.perf_counter(), time.thread_time()
        told: list[tuple[JournalEntry, Sequence[Command]]] = []
        for entry, commands in self.standing.replay(self.core, [line.entry for line in lines]):
            if self.broken is not None:  # abandoned meanwhile
                return
            told.append((entry, commands))
            self._rest.heard(entry.event)
            for command in commands:
                self._carry_out(command)
        if any(isinstance(entry.event, Woke) for entry, _ in told):
            self._rest.planned(time.thread_time() - used_s)
        self._on_cycle(time.perf_counter() - begun_s)
        self._look_on(told)
        for line in lines:
            self._register.happened(line, self.core)

    def _look_on(self, told: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
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
            case SetBatch():
                executor.set_batch(command)
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


def _all_of(box: queue.SimpleQueue[Item], patience_s: float | None = 0.0) -> Iterator[Item]:
    """All that is in a box; the first of it is waited for so long (None is for ever)."""
    try:
        yield box.get_nowait() if patience_s == 0.0 else box.get(timeout=patience_s)
        while True:
            yield box.get_nowait()
    except queue.Empty:
        return


def _answer(question: _Question, core: Core) -> None:
    if not question.done.set_running_or_notify_cancel():
        return  # nobody waits for it any more
    try:
        question.done.set_result(question.of(core))
    except Exception as error:  # noqa: BLE001 - it is the asker's, who gets it
        question.done.set_exception(error)
