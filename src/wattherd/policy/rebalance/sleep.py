"""When an idle node is worth switching off.

Putting a node to sleep saves its idle draw and costs whoever needs it next the time to wake it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from wattherd.errors import UserError


class SleepPolicy(Protocol):
    """Chooses among nodes that are awake, hold nothing and are planned for nothing."""

    def tired(self, idle_since_s: Mapping[int, float], now_s: float) -> list[int]:
        """Nodes (indices) to put to sleep now."""
        ...

    def next_s(self, idle_since_s: Mapping[int, float]) -> float | None:
        """When to ask again if nothing happens before; None: only when something happens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterIdle:
    """Nodes sleep once they were idle for `after_s`; the `spare` newest idle ones stay awake.

    The HKBU scheduler (TPDS'21) switches a node off after five idle ticks and keeps none.

    Raises:
        UserError: a negative time or count.
    """

    after_s: float
    spare: int = 0

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if not self.after_s >= 0 or self.spare < 0:
            raise UserError(
                f"sleep after {self.after_s} s with {self.spare} spare nodes makes no sense",
                field="sleep",
                hint="both are zero or more",
            )

    def tired(self, idle_since_s: Mapping[int, float], now_s: float) -> list[int]:
        """Those idle long enough, longest first, but for the spare ones."""
        due = list(self._candidates(idle_since_s))
        return [node for node in due if idle_since_s[node] + self.after_s <= now_s]

    def next_s(self, idle_since_s: Mapping[int, float]) -> float | None:
        """When the first of them has been idle long enough."""
        due = self._candidates(idle_since_s)
        return idle_since_s[due[0]] + self.after_s if due else None

    def _candidates(self, idle_since_s: Mapping[int, float]) -> list[int]:
        order = sorted(idle_since_s, key=lambda node: (idle_since_s[node], node))
        return order[: len(order) - self.spare] if self.spare else order
