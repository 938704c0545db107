"""Devices that are out of use, and those on which a rank was found to lag.

A rank that needs much longer than the others for its part of a step may do so for its own sake or
for that of its device. A device is believed to be slow when ranks lag on it in two runs; a job that
lags wherever it runs is believed to be slow itself, and what it said of devices is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

# Two, since one slow run may be a cold cache or a neighbour; a device that is slow for two
# different runs has no such excuse. The rule is that of stragglers in training: all ranks of a
# synchronous job wait for the slowest, so that one bad device costs as much as all of them.
STRIKES = 2
"""Runs in which a rank lags on a device before it is taken out of use."""
Place = tuple[int, int]
"""Node and GPU."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Since when a device is out of use, and why."""

    since_s: float
    cause: str


class DrainedDevices:
    """What the core knows of single devices."""

    def __init__(self) -> None:
        """All are in use, none is suspected."""
        self.out: dict[Place, Drained] = {}
        # By run and not a number: the same run tells again and again that it lags, and counts once.
        self._lagged: dict[Place, dict[tuple[str, int], None]] = {}
        """Runs (job, attempt) in which a rank lagged there."""

    def on(self, node: int) -> list[int]:
        """GPUs of a node that are out of use."""
        return sorted(gpu for at, gpu in self.out if at == node)

    def lagged(self, place: Place, job_id: str, attempt: int) -> bool:
        """Note a rank that lags there; whether the device is to be taken out of use."""
        # The job is the common cause where it lags on different devices: its data are skewed, or
        # one of its ranks has more to do. Nothing it says counts then, what it said before
        # included.
        elsewhere = [
            other
            for other, runs in self._lagged.items()
            if other != place and any(job == job_id for job, _ in runs)
        ]
        if elsewhere:
            for other in elsewhere:
                self._forget(other, job_id)
            self._forget(place, job_id)
            return False
        runs = self._lagged.setdefault(place, {})
        runs[job_id, attempt] = None
        return len(runs) >= STRIKES and place not in self.out

    def _forget(self, place: Place, job_id: str) -> None:
        runs = {run: None for run in self._lagged.get(place, ()) if run[0] != job_id}
        self._lagged.pop(place, None)
        if runs:
            self._lagged[place] = runs

    def returned(self, place: Place) -> bool:
        """It is in use again, its past forgotten; whether it was out of use."""
        # A device that an operator returns was mended or replaced: it begins without strikes, or
        # the first slow run would take it out again.
        self._lagged.pop(place, None)
        return self.out.pop(place, None) is not None
