"""Slow work that planners have done outside of the core: what was asked, and what came back.

A plan must not wait for a solver, so it asks, and is made anew when the answer arrives as an
event. Since answers are events, a replay has them without working anything out again.
"""

from __future__ import annotations

from typing import Any

from wattherd.model.command import Compute
from wattherd.model.event import Computed


# The latest question of a kind is the only open one: an answer to an older one was worked out for a
# cluster that is no more. Keys are numbered, not drawn, so that a replay asks under the same names.
class Questions:
    """The latest question of every kind, and its answer."""

    def __init__(self) -> None:
        """Start with nothing asked."""
        self.plans = 0
        """Plans made so far."""
        self._asked = 0
        self._open: dict[str, str] = {}
        self._answers: dict[str, Computed] = {}

    def ask(self, kind: str, payload: Any) -> Compute:
        """Replace whatever was asked of this kind before."""
        self._asked += 1
        key = f"{kind}#{self._asked}"
        self._open[kind] = key
        self._answers.pop(kind, None)
        return Compute(kind=kind, key=key, payload=payload, version=self.plans)

    # For `GuardedDraft.undo`: asking is part of a plan, and is taken back with it, the number
    # included, or a trial would leave a gap in the keys.
    def saved(self) -> tuple[int, dict[str, str], dict[str, Computed]]:
        """What is asked and answered now, for `restore`."""
        return self._asked, dict(self._open), dict(self._answers)

    def restore(self, saved: tuple[int, dict[str, str], dict[str, Computed]]) -> None:
        """Nothing was asked since then."""
        self._asked, self._open, self._answers = saved

    # An answer that is late or told twice is dropped by its key; the plan that asked anew waits for
    # its own.
    def note(self, answer: Computed) -> bool:
        """Keep an answer; False for one that nobody waits for (late, or repeated)."""
        if self._open.get(answer.kind) != answer.key:
            return False
        del self._open[answer.kind]
        self._answers[answer.kind] = answer
        return True

    def answer(self, kind: str) -> Computed | None:
        """The answer to the latest question of a kind, if it is there."""
        return self._answers.get(kind)
