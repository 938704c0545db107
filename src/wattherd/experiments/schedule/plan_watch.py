"""Says where somebody else's scheduler or power policy is while it does not return.

Nobody can take the processor from such a call: stopped between two lines of it, the books that it
writes in would be left half done. So it is only told of, with the line at which it is, and users
know what to mend. Knows nothing of plans.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import FrameType, TracebackType

LONG_S = 10.0
"""A call that takes longer is told of. Plans take milliseconds; searches belong elsewhere."""
_CALLER = "wattherd.experiments.schedule.plugin_policies"
"""The module whose calls these are."""
_log = logging.getLogger(__name__)


class PlanWatch:
    """Around calls, one at a time: `with watch: ...`.

    A thread looks on from the first call on; it ends where none is made for a while.
    """

    def __init__(self, name: str, long_s: float = LONG_S) -> None:
        """`name` says whose calls these are, such as "scheduler 'x'"."""
        self._name, self._long_s = name, long_s
        self._call: tuple[float, int] | None = None
        """When the call at hand was made, and by which thread."""
        self._told: tuple[float, int] | None = None
        self._watched = False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[PlanWatch], tuple[str, float]]:
        """A copy of a scheduler has a watch of its own."""
        return PlanWatch, (self._name, self._long_s)

    def __enter__(self) -> None:
        """A call begins."""
        with self._lock:
            self._call = (time.monotonic(), threading.get_ident())
            if not self._watched:
                self._watched = True
                name = f"watch of {self._name}"
                threading.Thread(target=self._look_on, name=name, daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """It is over."""
        call, self._call = self._call, None
        if call is not None and call == self._told:
            took_s = time.monotonic() - call[0]
            _log.warning("%s has returned after %.0f s", self._name, took_s)

    @property
    def trouble(self) -> str:
        """Since when the call at hand has not returned, and where it is; empty if it is short."""
        call = self._call
        if call is None or time.monotonic() - call[0] < self._long_s:
            return ""
        took_s = time.monotonic() - call[0]
        return f"{self._name} has not returned for {took_s:.0f} s: {_place(call[1])}"

    def _look_on(self) -> None:
        while True:
            time.sleep(self._long_s / 2)
            with self._lock:
                if self._call is None:
                    self._watched = False
                    return
            call, trouble = self._call, self.trouble
            if trouble and call != self._told:
                self._told = call
                _log.error("%s", trouble)


def _place(thread: int) -> str:
    """The line at which a thread is: the innermost of the package that was called."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - no other way is there
    called: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") != _CALLER:
        called.append(frame)
        frame = frame.f_back
    if frame is None or not called:
        return "it has just returned"
    theirs = _package(called[-1])
    found = next(one for one in called if _package(one) == theirs)
    return f"it is at {found.f_code.co_filename}:{found.f_lineno}, in {found.f_code.co_name}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
