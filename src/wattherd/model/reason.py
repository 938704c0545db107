"""Why something was not done: a code, the numbers behind it, and what would change it.

Codes stand in order of precedence: what is wrong with a job comes before what it merely waits for
(a misconfigured job never shows "waiting for GPUs").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wattherd.model.quick import maker, quick
from wattherd.units import show_ahead, singular


class ReasonCode(StrEnum):
    """Why a job is not running, most fundamental first."""

    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_QUEUE = "UnknownQueue"
    NEVER_FITS = "NeverFits"
    HELD = "Held"
    QUEUE_STOPPED = "QueueStopped"
    NOT_BEFORE = "NotBefore"
    DEPENDENCY = "Dependency"
    ARRAY_LIMIT = "ArrayLimit"
    BACKING_OFF = "BackingOff"
    ENERGY_BUDGET = "EnergyBudget"
    QUOTA_EXCEEDED = "QuotaExceeded"
    WAITING_FOR_GPUS = "WaitingForGpus"
    WAITING_FOR_POWER = "WaitingForPower"
    WAITING_FOR_GANG = "WaitingForGang"
    FRAGMENTED = "Fragmented"
    LOWER_PRIORITY = "LowerPriority"
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    WAITING_FOR_BUDGET_RISE = "WaitingForBudgetRise"
    WAITING_FOR_RAMP = "WaitingForRamp"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_TRIALS = "WaitingForTrials"

    @property
    def precedence(self) -> int:
        """Position in this list; lower comes first."""
        return _PRECEDENCE[self]


_PRECEDENCE = {code: rank for rank, code in enumerate(ReasonCode)}


class StopReason(StrEnum):
    """Why a running job was asked to stop."""

    PREEMPTED_FOR_PRIORITY = "PreemptedForPriority"
    PREEMPTED_FOR_POWER = "PreemptedForPower"
    RECLAIMED = "Reclaimed"
    RESIZED = "Resized"
    MIGRATED = "Migrated"
    NODE_LOST = "NodeLost"
    DEVICE_DRAINED = "DeviceDrained"
    USER_REQUEST = "UserRequest"
    TIME_LIMIT = "TimeLimit"
    BUDGET_CUT = "BudgetCut"
    ENERGY_BUDGET = "EnergyBudget"
    TIME_SLICE = "TimeSlice"
    TRIAL_PAUSED = "TrialPaused"
    TRIAL_ENDED = "TrialEnded"


_MOST = 1e300
"""What is larger is told as this: an integer may have more digits than a float can show."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """`asked`, `in_use` and `available` share one unit, named in `unit`."""

    code: ReasonCode
    since_s: float
    asked: float | None = None
    in_use: float | None = None
    available: float | None = None
    unit: str = ""
    unblocks: str = ""
    due_s: float | None = None
    """When what is waited for comes, where that is known."""

    def text(self, now_s: float | None = None) -> str:
        """One line for people at `now_s`, or at the time the reason was given."""
        parts = [
            f"{name} {min(value, _MOST):g} {self._unit(value)}".rstrip()
            for name, value in (
                ("asked", self.asked),
                ("in use", self.in_use),
                ("available", self.available),
            )
            if value is not None
        ]
        facts = f": {', '.join(parts)}" if parts else ""
        helps = self.unblocks
        if self.due_s is not None:
            left_s = self.due_s - (self.since_s if now_s is None else now_s)
            helps = f"{helps} {show_ahead(left_s)}".lstrip()
        return f"{self.code}{facts}{f' ({helps})' if helps else ''}"

    def _unit(self, value: float) -> str:
        return singular(self.unit) if value == 1 else self.unit


make_reason = maker(Reason)
