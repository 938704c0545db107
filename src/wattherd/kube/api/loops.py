"""An event loop in a thread of its own: reading the API is never held up by deciding."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:  # there is none for Windows; asyncio's own does the same, and takes longer
    from asyncio import new_event_loop  # type: ignore[assignment]

T = TypeVar("T")


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

    async def _ended(self) -> None:
        others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _wind_up(self) -> None:
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
