"""Wait for a call only so long: for libraries whose calls may hang and cannot be interrupted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind

T = TypeVar("T")


@dataclass(slots=True)
class TimedCalls:
    """Runs calls one at a time in a thread of their own.

    While one hangs no other is begun, so that a dead device costs one thread, not one a reading.
    """

    timeout_s: float
    _hanging: threading.Thread | None = None

    @property
    def hangs(self) -> bool:
        """Whether an earlier call has not come back yet."""
        return self._hanging is not None and self._hanging.is_alive()

    def ask(self, call: Callable[[], T]) -> T:
        """What the call returns or raises.

        Raises:
            DeviceError: it takes longer than `timeout_s`, an earlier one still hangs, or the
                machine has no thread to give.
        """
        if self.hangs:
            raise DeviceError(DeviceErrorKind.TIMEOUT, "an earlier call still hangs")
        answers: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
        self._hanging = threading.Thread(target=_answer, args=[call, answers], daemon=True)
        try:
            self._hanging.start()
        except RuntimeError:
            raise DeviceError(DeviceErrorKind.TIMEOUT, "no thread can be had to ask it") from None
        try:
            answer = answers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise DeviceError(
                DeviceErrorKind.TIMEOUT, f"no answer within {self.timeout_s:g} s"
            ) from None
        self._hanging.join()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _answer(call: Callable[[], T], answers: queue.SimpleQueue[T | Exception]) -> None:
    try:
        answers.put(call())
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        answers.put(error)
