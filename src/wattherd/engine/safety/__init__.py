"""The safety loop: every feed and the site within its limit, whatever meters and knobs do.

`loop` has the theory of operation, `contract` what goes in and comes out.
"""

from __future__ import annotations

from wattherd.engine.safety.aims import Aims
from wattherd.engine.safety.contract import (
    Breaker,
    Fleet,
    Orders,
    Readings,
    SafetyConfig,
    SafetyNote,
)
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.engine.safety.state import SafetyState

__all__ = [
    "Aims",
    "Breaker",
    "Fleet",
    "Orders",
    "Readings",
    "SafetyConfig",
    "SafetyLoop",
    "SafetyNote",
    "SafetyState",
]
