"""Thousands of devices asked by few threads, though drivers are written as if they waited.

Drivers of networks ask one question after the other. Run by `start`, such a call becomes a greenlet
in one thread with an event loop: where it comes to a wait (`wait`, `sleep`), other calls go on, so
that a device that hangs costs some memory and no thread. The same driver outside waits as it always
did. Calls of libraries that know no such waits (NVML, files) run in a few threads of their own, in
which those that were slow cannot keep the quick ones waiting.

Calls of one `RoundQuestions` ask every question once: a board's meter and its limit are one
document, and the outlets of a PDU one message.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

from wattherd.devices.wire.threads import begun_pool

T = TypeVar("T")

SLOTS = 128
"""Calls that may begin together: a flood of connections is slower than a stream of them."""
SLOT_S = 0.1
"""A call that takes longer goes on without its slot: devices that hang keep nobody waiting."""
LAG_S = 0.02
"""Unless this thread itself is behind its time: then more calls would only make it later."""
JOIN_S = 0.005
"""How long a message waits for others of its round to join it."""
QUICK, SLOW, SPARE = 8, 4, 8
"""Threads for calls that block: usual ones, those for calls that were slow, and how many more there
may be in place of quick ones that hang."""
SLOW_S = 0.5
"""A call that blocks longer than that is slow from then on, until it is quick again."""


_calls: dict[greenlet, RoundQuestions | None] = {}
"""The calls of the asking thread, and what they share; changed by that thread alone."""


def aside() -> bool:
    """Whether the code that runs now is one of many calls in the asking thread."""
    return getcurrent() in _calls


def sharing() -> RoundQuestions | None:
    """What the call that runs now shares with others of its round."""
    return _calls.get(getcurrent())


def unshare() -> None:
    """From now on this call asks for itself: it changes something, and looks at what came of it."""
    now = getcurrent()
    if now in _calls:
        _calls[now] = None


def wait(awaitable: Awaitable[T]) -> T:
    """What it comes to; other calls go on meanwhile. Only in a call that is `aside`."""
    now = getcurrent()
    if now not in _calls:
        raise RuntimeError("only a call in the asking thread can let others go on")
    return cast("T", now.parent.switch(awaitable))


def sleep(pause_s: float) -> None:
    """Let time pass, for this call alone."""
    if aside():
        wait(asyncio.sleep(pause_s))
    else:
        time.sleep(pause_s)


class RoundQuestions:
    """Questions of one round, each asked once; used in the asking thread alone."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._asked: dict[Hashable, asyncio.Future[Any]] = {}
        self._joined: dict[Hashable, tuple[list[Any], asyncio.Future[Any]]] = {}
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, ask: Callable[[], T]) -> T:
        """What the first call with this key is answered, or the error that it ends in."""
        known = self._asked.get(key)
        if known is not None:
            return cast("T", wait(asyncio.shield(known)))
        answer = self._asked[key] = asyncio.get_running_loop().create_future()
        return cast("T", _answered(answer, ask))

    def together(self, key: Hashable, item: T, ask: Callable[[Sequence[T]], Any], most: int) -> Any:
        """What `ask` is answered to this item and those of other calls, `most` at a time.

        `ask` gets the items without doubles and returns what all of them may use.
        """
        items, answer = self._joined.get(key, ([], None))
        if answer is not None and (item in items or len(items) < most):
            if item not in items:
                items.append(item)
            return wait(asyncio.shield(answer))
        items, answer = [item], asyncio.get_running_loop().create_future()
        self._joined[key] = items, answer
        sleep(JOIN_S)
        if self._joined.get(key) == (items, answer):
            del self._joined[key]  # what comes later is too late for this message
        return _answered(answer, lambda: ask(items))

    def made(self, key: Hashable, make: Callable[[], T]) -> T:
        """Something made of answers of this round, once for all that use it."""
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])


def _answered(answer: asyncio.Future[Any], ask: Callable[[], Any]) -> Any:
    try:
        said = ask()
    except BaseException as error:
        answer.set_exception(error)
        answer.exception()  # nobody else may be waiting for it, which is no fault
        raise
    answer.set_result(said)
    return said


async def _run(call: Callable[[], Any], shared: RoundQuestions | None) -> Any:
    """A call beside others: whatever it waits for is awaited here."""
    child = greenlet(call)
    _calls[child] = shared
    try:
        turn = child.switch()
        while not child.dead:
            try:
                said = await turn
            except BaseException as error:  # noqa: BLE001 - the call's to handle
                turn = child.throw(error)
            else:
                turn = child.switch(said)
        return turn
    finally:
        del _calls[child]


# --- The thread and its helpers ------------------------------------------------------------------


class _Asker:
    """The thread with the event loop, and what drivers keep for as long as it lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(begun_pool(2, "resolver"))
        self.kept: dict[Hashable, Any] = {}
        self._slots = asyncio.Semaphore(SLOTS)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="asking", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def begin(self, all_of: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run these, each beside the others; one message to the thread for all of them."""
        many = list(all_of)

        def create() -> None:
            for one in many:
                task = self.loop.create_task(one())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self.loop.call_soon_threadsafe(create)

    async def run(self, call: Callable[[], T], shared: RoundQuestions | None) -> T:
        """A call once it is its turn."""
        await self._slots.acquire()
        slot = _Slot(self._slots, self.loop)
        slot.wait()
        try:
            return cast("T", await _run(call, shared))
        finally:
            slot.free()


@dataclass(slots=True)
class _Slot:
    """One of the calls that may begin together, for a while."""

    slots: asyncio.Semaphore
    loop: asyncio.AbstractEventLoop
    taken: bool = True
    timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        self.timer = self.loop.call_later(SLOT_S, self.look)

    def look(self) -> None:
        late_s = 0.0 if self.timer is None else self.loop.time() - self.timer.when()
        if late_s > LAG_S:
            self.wait()
        else:
            self.free()

    def free(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.taken:
            self.taken = False
            self.slots.release()


class _Crew:
    """Threads for calls that block.

    As many more may be begun, up to `spare`, as there are calls that take long at the moment.
    """

    def __init__(self, name: str, usual: int, spare: int = 0) -> None:
        self._name, self._usual, self._spare = name, usual, spare
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # A call counts as waiting until its thread no longer counts as idle: both are told at once,
        # or a call that comes in between would get no thread of its own.
        self._threads = self._idle = self._waiting = 0
        self._began_s: dict[int, float] = {}

    def submit(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._waiting += 1
        self._calls.put(call)
        self.tend()

    def tend(self) -> None:
        """Begin one more thread for each call that waits, as far as there may be more."""
        with self._lock:
            wanted = self._waiting - self._idle
            more = max(min(wanted, self._most() - self._threads), 0)
            self._threads += more
        for left in range(more, 0, -1):
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except RuntimeError:  # there are none to be had: calls wait, and the next round tries
                with self._lock:
                    self._threads -= left
                return

    def _most(self) -> int:
        now_s = time.monotonic()
        hanging = sum(now_s - began_s > SLOW_S for began_s in self._began_s.values())
        return self._usual + min(hanging, self._spare)

    def _serve(self) -> None:
        me = threading.get_ident()
        while True:
            with self._lock:
                self._began_s.pop(me, None)
                if self._threads > self._most():
                    self._threads -= 1
                    return
                self._idle += 1
            call = self._calls.get()
            with self._lock:
                self._idle -= 1
                self._waiting -= 1
                self._began_s[me] = time.monotonic()
            call()


class _Blocking:
    """Those that were slow the last time are served apart from the quick ones."""

    def __init__(self) -> None:
        self._quick = _Crew("asking-quick", QUICK, SPARE)
        self._slow = _Crew("asking-slow", SLOW)

    def submit(self, call: Callable[[], None], *, slow: bool) -> None:
        (self._slow if slow else self._quick).submit(call)

    def tend(self) -> None:
        self._quick.tend()


_making = threading.Lock()
_made: dict[str, Any] = {}


def _asker() -> _Asker:
    with _making:
        if "asker" not in _made:
            _made["asker"] = _Asker()
        return cast("_Asker", _made["asker"])


def _blocking() -> _Blocking:
    with _making:
        if "blocking" not in _made:
            _made["blocking"] = _Blocking()
        return cast("_Blocking", _made["blocking"])


def begin(calls: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run these in the asking thread, each beside the others."""
    _asker().begin(calls)


async def run(call: Callable[[], T], shared: RoundQuestions | None = None) -> T:
    """What a call returns that waits by `wait` alone; in the asking thread."""
    return await _asker().run(call, shared)


def block(call: Callable[[], None], *, slow: bool = False) -> None:
    """Run a call that may block in a thread; `slow` ones have a few to themselves."""
    _blocking().submit(call, slow=slow)


def tend() -> None:
    """Have spare threads stand in for those whose calls hang; to be called once in a while."""
    _blocking().tend()


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """Something that lives as long as the asking thread, as connections; used in it alone."""
    store = _asker().kept
    if key not in store:
        store[key] = make()
    return cast("T", store[key])
