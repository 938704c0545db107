"""When the next plan is worth making: what can wait for one is planned together.

Where ten thousand jobs wait, a plan takes tens of milliseconds, and one more that waits seldom
changes anything. So plans rest, the longer the more they took, as long as jobs are handed in and
nothing else happens; who ends, is cancelled or changes a budget ends the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from wattherd.engine.core.cycle import WAKE
from wattherd.model.event import (
    BatchApplied,
    CapApplied,
    Event,
    JobDrew,
    JobMeasured,
    JobProgressed,
    JobStarted,
    JobSubmitted,
    Woke,
)

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
