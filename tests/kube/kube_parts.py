"""The parts under test, put together for tests: a loop, a transport, a reflector that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from kube_server import wait_until

from wattherd.kube.api.access import find_access
from wattherd.kube.api.changes import Changes, Key
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.reflector import Reflector, Selection
from wattherd.kube.api.transport import RequestLimits, Transport

T = TypeVar("T")


@contextmanager
def a_transport(kubeconfig: Path, **limits: Any) -> Iterator[tuple[LoopThread, Transport]]:
    """A transport and the loop it lives in."""
    loop = LoopThread("test")
    transport = Transport(find_access(kubeconfig), RequestLimits(**limits))
    opened = threading.Event()

    async def open_until_cancelled() -> None:
        async with transport:
            opened.set()
            await asyncio.Event().wait()

    loop.begin(open_until_cancelled())
    try:
        assert opened.wait(60)
        yield loop, transport
    finally:
        loop.close()


class Picture(Generic[T]):
    """A reflector at work, and what its changes add up to."""

    def __init__(self, loop: LoopThread, transport: Transport, of: Selection[Any], **more: Any):
        self.changes: Changes[Any] = Changes()
        draws = np.random.default_rng(1)
        self.reflector = Reflector(transport, of, self.changes, draws, **more)
        self.items: dict[Key, Any] = {}
        self.history: list[tuple[str, bool]] = []
        """Names, and whether there was something of that name then."""
        self._work = loop.begin(self.reflector.run())
        assert self.changes.wait_complete(180)

    def names(self) -> set[str]:
        """Of all objects, as far as they have been told."""
        assert not self._work.done(), self._work.exception()
        for change in self.changes.take(0):
            self.history.append((change.key.name, change.item is not None))
            if change.item is None:
                self.items.pop(change.key, None)
            else:
                self.items[change.key] = change.item
        return {key.name for key in self.items}

    def named(self, name: str) -> Any:
        self.names()
        return next((item for key, item in self.items.items() if key.name == name), None)

    def wait_for(self, *names: str) -> None:
        wanted, seen = set(names), self.reflector
        wait_until(
            lambda: self.names() == wanted,
            lambda: f"{sorted(self.names())} is {sorted(wanted)}; {seen.tally}; {seen.trouble}",
        )

    def stop(self) -> None:
        self._work.cancel()
