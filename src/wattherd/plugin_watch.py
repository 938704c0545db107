"""Says where a call of another package is while it does not return.

Nobody can take the processor from such a call: stopped between two lines of it, the books that it
writes in would be left half done. So it is only told of, with the line at which it is, and users
know what to mend. Knows nothing of what is called.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType, TracebackType
from weakref import WeakSet

LONG_S = 10.0
"""A call that takes longer is told of. Plans and scores take milliseconds, instruments seconds."""
_log = logging.getLogger(__name__)
_watches: WeakSet[PluginWatch] = WeakSet()
_adding = threading.Lock()


@dataclass(eq=False, slots=True)
class _Call:
    """One that is under way: since when, in which thread, and the frame that made it."""

    since_s: float
    thread: int
    caller: FrameType
    told: bool = False


class PluginWatch:
    """Around calls: `with watch: ...`.

    A thread looks on from the first call on; it ends where none is made for a while.
    """

    def __init__(self, name: str, long_s: float = LONG_S, *, aside: bool = False) -> None:
        """`name` says whose calls these are, such as "scheduler 'x'".

        While calls that are made `aside` do not return, all else goes on.
        """
        self._name, self._long_s, self.aside = name, long_s, aside
        self._calls: list[_Call] = []
        self._watched = False
        self._lock = threading.Lock()
        with _adding:
            _watches.add(self)

    def __reduce__(self) -> tuple[Callable[[], PluginWatch], tuple[()]]:
        """A copy of what is watched has a watch of its own."""
        return partial(PluginWatch, self._name, self._long_s, aside=self.aside), ()

    def __enter__(self) -> None:
        """A call begins."""
        caller = sys._getframe(1)  # noqa: SLF001 - no other way is there
        call = _Call(time.monotonic(), threading.get_ident(), caller)
        with self._lock:
            self._calls.append(call)
            if not self._watched:
                self._watched = self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """It is over."""
        ours = threading.get_ident()
        with self._lock:
            at = max(n for n, call in enumerate(self._calls) if call.thread == ours)
            call = self._calls.pop(at)
        if call.told:
            _log.warning("%s has returned after %.0f s", self._name, _age_s(call))

    @property
    def trouble(self) -> str:
        """Since when a call has not returned, and where it is; empty if none takes long."""
        calls = tuple(self._calls)
        return next((self._words(one) for one in calls if _age_s(one) >= self._long_s), "")

    def _words(self, call: _Call) -> str:
        return f"{self._name} has not returned for {_age_s(call):.0f} s: {_place(call)}"

    def _begin(self) -> bool:
        name = f"watch of {self._name}"
        try:
            threading.Thread(target=self._look_on, name=name, daemon=True).start()
        except RuntimeError:  # the machine has no thread to give: the call matters more
            return False
        return True

    def _look_on(self) -> None:
        while True:
            time.sleep(self._long_s / 2)
            with self._lock:
                if not self._calls:
                    self._watched = False
                    return
                late = [one for one in self._calls if _age_s(one) >= self._long_s and not one.told]
                for one in late:
                    one.told = True
            for one in late:
                _log.error("%s", self._words(one))


def not_returning(*, aside: bool = False) -> str:
    """What is told of calls in this process that do not return, in a line; empty if there are none.

    Of those that hold everything up, or of those that are made `aside`.
    """
    with _adding:
        watches = [one for one in _watches if one.aside == aside]
    return "; ".join(sorted(trouble for one in watches if (trouble := one.trouble)))


def _age_s(call: _Call) -> float:
    return time.monotonic() - call.since_s


def _place(call: _Call) -> str:
    """The line at which a thread is: the innermost of the package that was called."""
    frame = sys._current_frames().get(call.thread)  # noqa: SLF001 - no other way is there
    called: list[FrameType] = []
    while frame is not None and frame is not call.caller:
        called.append(frame)
        frame = frame.f_back
    # Between the call and the package there may be more of ours, such as a lambda.
    while called and _package(called[-1]) == _package(call.caller):
        called.pop()
    if frame is None or not called:
        return "it has just returned"
    theirs = _package(called[-1])
    found = next(one for one in called if _package(one) == theirs)
    return f"it is at {found.f_code.co_filename}:{found.f_lineno}, in {found.f_code.co_name}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
