"""News of a cluster, carried to who decides.

Threads: one reads the API and binds (`loop`), and one for each kind of object carries news to who
decides, a batch at a time: while one batch is heard, what comes next merges into the next one. They
and who decides take `turns`. `sees` tells whether everything that was listed has been heard, and
lately; kinds that are not served, and optional ones that are refused to us, count from when they
were listed and heard for the first time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from wattherd.kube.api.access import Access
from wattherd.kube.api.changes import Changes, ObjectChange
from wattherd.kube.api.reflector import ABSENT_S, NOT_LISTED, Reflector, Selection
from wattherd.kube.api.serial import SerialExecutor
from wattherd.kube.api.transport import Transport

# --- An event loop in a thread of its own: reading the API is never held up by deciding.

try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows; asyncio's own does the same, and takes longer
    from asyncio import new_event_loop  # type: ignore[assignment]

T = TypeVar("T")
_ASKED_TO_END, _HEARD_WITHIN_S = 6, 5.0


class LoopThread:
    """Runs coroutines until it is closed; those still at work are cancelled then."""

    def __init__(self, name: str) -> None:
        """Start the thread; `name` is what debuggers show."""
        self._loop = new_event_loop()
        self._works: set[Future[Any] | asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it; cancelling the future cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        # asyncio lets a task that nobody refers to be collected in the middle of its work.
        self._works.add(future)
        future.add_done_callback(self._works.discard)
        return future

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have it called in the loop, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def begin_all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Start many at once, for which nobody waits: the loop is woken once, not for each."""
        waiting = list(works)
        if waiting:
            self._loop.call_soon_threadsafe(self._start_all, waiting)

    def _start_all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        for work in works:
            task = self._loop.create_task(work)
            self._works.add(task)
            task.add_done_callback(self._works.discard)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Start it and wait for what it returns or raises."""
        return self.begin(work).result(timeout_s)

    def close(self) -> None:
        """Cancel what is at work, wait until it has ended, stop the thread."""
        if self._loop.is_closed():
            return
        self.quieten()
        self.run(self._wind_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def quieten(self) -> None:
        """Cancel what is at work and wait until it has ended, each in its own way."""
        self.run(self._ended())

    # A time limit that runs out in the same moment may swallow a cancellation, and the work goes on
    # as after any other limit: it is asked again. The process may end above one that never listens.
    async def _ended(self) -> None:
        for _ in range(_ASKED_TO_END):
            others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            if not others:
                return
            for each in others:
                each.cancel()
            await asyncio.wait(others, timeout=_HEARD_WITHIN_S)

    async def _wind_up(self) -> None:
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


REFUSED_S = 5.0
REFUSED = 3
"""So often in a row, and for so long, and it is no single pod that is refused."""


@dataclass(slots=True)
class RefusedInARow:
    """Whether all that is decided is refused, for want of a right or by a policy of others."""

    _count: int = 0
    _since_s: float = 0.0
    _why: str = ""

    def heard(self, why: str, at_s: float) -> None:
        """A decision was refused; or it was carried out (empty)."""
        if not why:
            self._count = 0
        elif not self._count:
            self._since_s = at_s
        if why:
            self._count += 1
        self._why = why

    def trouble(self, at_s: float) -> str:
        """What refuses everything now; empty while something comes about, or is not tried."""
        lasts = self._count >= REFUSED and at_s - self._since_s >= REFUSED_S
        return self._why if lasts else ""


STALE_S = 180.0
"""Bookmarks come about once a minute; after three that failed to, our picture may be wrong."""
LOOK_S = 0.25
GATHER_S = 0.005
"""From one batch of news to the next: each costs two changes of threads, however small it is."""


class ApiFeed:
    """Follows what it is told to; `begin` it once all is said, `close` it in the end."""

    def __init__(
        self,
        access: Access,
        draws: np.random.Generator,
        *,
        gather_s: float = GATHER_S,
        absent_s: tuple[float, float] = ABSENT_S,
    ) -> None:
        """`draws` spreads requests in time; news come at most once in `gather_s`, by kind.

        Kinds that are not served are looked for again after a time between those in `absent_s`.
        """
        self.turns = SerialExecutor("wattherd-decide")
        self.loop = LoopThread("wattherd-kube")
        self.transport = Transport(access)
        self.over = threading.Event()
        self.unwanted = threading.Event()
        """Somebody wants it to end, who then closes it; also while it waits to begin."""
        self._draws = draws
        self._gather_s, self._absent_s = gather_s, absent_s
        self._reflectors: list[Reflector[Any]] = []
        self._changes: list[Changes[Any]] = []
        self._absent: set[int] = set()
        """By number of a reflector: kinds not served, or not ours to read, or not heard since."""
        self._carriers: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self._work: list[Future[Any]] = []
        self._heard: dict[int, int] = {}
        """By number of a reflector: the look whose list was heard last."""
        self._look = 0
        self._noted: dict[str, str] = {}
        self.refusals = RefusedInARow()

    def follow(
        self,
        selection: Selection[Any],
        hear: Callable[[list[ObjectChange[Any]]], None],
        served: Callable[[bool], object] = lambda _: None,
        refused: Callable[[bool], object] = lambda _: None,
    ) -> None:
        """Have `hear` called, in its turn, with what changed of these objects.

        And `served` with whether the API server knows the kind, at first and when that changed;
        and `refused` when an optional kind may not be read, and again (False) when it may.
        """
        number, changes = len(self._reflectors), Changes[Any]()
        draws = self._draws.spawn(1)[0]
        made = Reflector(self.transport, selection, changes, draws, absent_s=self._absent_s)
        self._reflectors.append(made)
        self._changes.append(changes)
        self._carriers.append(lambda: self._carry(number, changes, hear, served, refused))

    def also(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread of its own; it ends when `over` is set."""
        self._carriers.append(work)

    def open(self) -> None:
        """Requests may be made from now on."""
        self.loop.run(self.transport.__aenter__())

    def begin(self, *beside: Coroutine[Any, Any, Any]) -> None:
        """Start reading; `beside` are run in the same loop until the end."""
        self._work = [self.loop.begin(one.run()) for one in self._reflectors]
        self._work += [self.loop.begin(one) for one in beside]
        for number, work in enumerate(self._carriers):
            thread = threading.Thread(target=work, name=f"wattherd-feed-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop everything, in the order that lets each end in peace."""
        self.over.set()
        for one in self._changes:
            one.wake()
        for thread in self._threads:
            thread.join()
        self.loop.quieten()  # who gives a lease back needs the transport for that
        self.turns.close(cancel=True)
        self.loop.run(self.transport.__aexit__(None, None, None))
        self.loop.close()

    def look_again(self, look: int) -> None:
        """List everything anew; once for each number, of which each is higher than the last."""
        if look > self._look:
            self._look = look
            for one in self._reflectors:
                self.loop.call(one.list_again, look)

    def sees(self, look: int = 0) -> bool:
        """Whether all that was listed, since this look, has been heard, and the API lately."""
        absent = self._absent.copy()
        there = [one for one in enumerate(self._reflectors) if one[0] not in absent]
        fresh = all(one.silent_s() < STALE_S for _, one in there)
        return fresh and all(self._heard.get(number, look - 1) >= look for number, _ in there)

    def alive(self) -> bool:
        """Whether all that was begun still works: it goes on until `close`, whatever happens."""
        ended = any(work.done() for work in self._work)
        return not ended and all(thread.is_alive() for thread in self._threads)

    @property
    def events(self) -> int:
        """How many changes were told of since the beginning."""
        return sum(one.tally.events for one in self._reflectors)

    @property
    def troubles(self) -> Sequence[str]:
        """What keeps it from seeing the cluster, in words."""
        return [one.trouble for one in self._reflectors if one.trouble]

    def note(self, what: str, problem: str = "") -> None:
        """What of our work does not come about, and why; no problem ends it."""
        if problem:
            self._noted[what] = problem
        else:
            self._noted.pop(what, None)

    @property
    def complaints(self) -> Sequence[str]:
        """All that is wrong now: what is not seen, and what of our work does not come about."""
        seen = [one for one in self.troubles if one != NOT_LISTED]
        return [*seen, *(f"{what}: {why}" for what, why in [*self._noted.items()])]

    def turn(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something when nobody else is at what decisions are made of."""
        return self.turns.run(work, *arguments)

    def _carry(
        self,
        number: int,
        changes: Changes[Any],
        hear: Callable[[list[ObjectChange[Any]]], None],
        served: Callable[[bool], object],
        barred: Callable[[bool], object],
    ) -> None:
        told: bool | None = None
        told_barred = False
        while not self.over.is_set():
            look, absent, refused = changes.look, changes.absent, changes.refused
            batch = changes.take(None if absent and told is False else LOOK_S)
            if batch:
                self.turn(hear, batch)
            if refused is not told_barred:
                told_barred = refused
                self.turn(barred, refused)
            if refused:
                self._absent.add(number)
            elif absent or look >= 0:  # before the batch was taken: all of the list has been heard
                if told is absent or told is None:
                    told = not absent
                    self.turn(served, told)
                self._note_heard(number, look, absent=absent)
            if batch:
                self.over.wait(self._gather_s)

    def _note_heard(self, number: int, look: int, *, absent: bool) -> None:
        if absent:
            self._absent.add(number)
        else:
            self._heard[number] = look
            self._absent.discard(number)
