"""What a reader of the API hands over: the latest state of each object, once, to another thread.

Changes wait by object: whoever is slow gets the newest state and misses those between, so that what
waits is bounded by the number of objects, and the reader never waits for the one who decides.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """Which object: a name may be used again, a uid never is."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """The newest state of an object; None when it is no more, or no longer selected."""

    key: Key
    item: T | None


class Changes(Generic[T]):
    """Changes of one kind of object, in the order in which each object's first one came.

    One thread puts, any takes.
    """

    def __init__(self) -> None:
        """Nothing has changed yet."""
        self._lock = threading.Condition()
        self._waiting: dict[Key, T | None] = {}
        self._complete = -1
        self._absent = False
        self._refused = False
        self._woken = False

    def put(self, key: Key, item: T | None) -> None:
        """An object has this state now."""
        with self._lock:
            self._waiting[key] = item
            self._lock.notify_all()

    def mark_complete(self, look: int = 0) -> None:
        """All that existed at some moment has been put: from now on there is a whole picture.

        `look` numbers the moments: the list was asked for after that look was.
        """
        with self._lock:
            self._woken |= self._absent or self._refused
            self._complete, self._absent, self._refused = look, False, False
            self._lock.notify_all()

    def mark_absent(self) -> None:
        """Such objects cannot be, until they are listed: all that were are gone."""
        with self._lock:
            self._woken |= not self._absent
            self._complete, self._absent, self._refused = -1, True, False
            self._lock.notify_all()

    def mark_refused(self) -> None:
        """We may not read such objects, until they are listed: what was known stays."""
        with self._lock:
            self._woken |= not self._refused
            self._absent, self._refused = False, True
            self._lock.notify_all()

    def wake(self) -> None:
        """Whoever takes is to look up, though nothing may wait."""
        with self._lock:
            self._woken = True
            self._lock.notify_all()

    def wait_complete(self, timeout_s: float | None = None) -> bool:
        """Whether a whole list has been put, within this time; what it says may still wait here."""
        with self._lock:
            return self._lock.wait_for(lambda: self._complete >= 0, timeout_s)

    @property
    def look(self) -> int:
        """The look of the last whole list that has been put; negative before there is one."""
        with self._lock:
            return self._complete

    @property
    def absent(self) -> bool:
        """Whether such objects cannot be."""
        with self._lock:
            return self._absent

    @property
    def refused(self) -> bool:
        """Whether there may be such objects that we may not read."""
        with self._lock:
            return self._refused

    def take(self, timeout_s: float | None = None) -> list[ObjectChange[T]]:
        """All that wait, in one batch; empty if none came within `timeout_s` (None: for ever).

        Or if it was woken meanwhile.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self._woken, timeout_s)
            taken, self._waiting, self._woken = self._waiting, {}, False
        return [ObjectChange(key, item) for key, item in taken.items()]

    def __len__(self) -> int:
        """How many objects wait."""
        with self._lock:
            return len(self._waiting)
