"""Caps of jobs as wishes to the safety loop: the one hand on devices' knobs is the loop's.

The scheduler's caps of running jobs come in by `set`, which returns once the loop says that they
are in force, or cannot be. What the loop holds may be lower than was wished, for a limit's sake;
it is never higher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from wattherd.devices.knobs.contract import OrderOutcome, OrderResult

PATIENCE_S = 4.0
"""How long a wish may take to be in force; boards take a second or two."""
LOOK_S = 0.25
SAME_W = 1.0
"""Limits this close are one: devices round."""


@dataclass(frozen=True, slots=True)
class HeldCap:
    """A device's cap as the loop counts it, in watts; `news` is the last wish that it knew of."""

    held_w: float
    floor_w: float
    step_w: float
    news: int


class WishedCaps:
    """Implements `local.devices.Caps` for knobs by UUID; the loop takes and tells."""

    def __init__(self, uris: Mapping[str, str]) -> None:
        """Nobody wishes anything, and no loop is there yet."""
        self._uris = uris
        self._changed = threading.Condition()
        self._wished: dict[str, float | None] = {}
        self._begun_s: dict[str, float] = {}
        """When a job was last given a cap there (steady seconds)."""
        self._news = 0
        self._held: dict[str, HeldCap] = {}
        self._failing: set[str] = set()
        """Devices whose knobs refuse what they are told."""
        self.problems: dict[str, str] = {}
        """Why the last order to an address did not take effect."""
        self.poke: Callable[[], object] = lambda: None
        """Has the loop look now."""

    # For who runs jobs --------------------------------------------------------------------------

    def set(self, uuids: Iterable[str], cap_w: float | None) -> bool:
        """Wish a cap for all of them, or none; whether no higher one is in force now."""
        mine = [uuid for uuid in uuids if uuid in self._uris]
        with self._changed:
            self._news += 1
            news = self._news
            for uuid in mine:
                self._wished[uuid] = cap_w
                if cap_w is not None:
                    self._begun_s[uuid] = time.monotonic()
        self.poke()
        if cap_w is None or not mine:
            return bool(mine)
        return self._awaited(mine, cap_w, news)

    def _awaited(self, uuids: list[str], cap_w: float, news: int) -> bool:
        until_s = time.monotonic() + PATIENCE_S
        with self._changed:
            while time.monotonic() < until_s:
                known = [self._state(uuid, cap_w, news) for uuid in uuids]
                if None not in known:
                    return all(known)
                if False in known:
                    return False
                self.poke()
                self._changed.wait(LOOK_S)
        return False

    def _state(self, uuid: str, cap_w: float, news: int) -> bool | None:
        """Whether a wish is in force; None while that is not decided."""
        held = self._held.get(uuid)
        if held is not None and held.news >= news:
            near_w = max(SAME_W, held.step_w)
            if held.held_w <= cap_w + near_w:
                return True
            if held.held_w <= held.floor_w + near_w:
                return False  # it goes no lower
            return False if uuid in self._failing else None
        return None

    # For the loop -------------------------------------------------------------------------------

    def begin(self, caps_w: Mapping[str, float | None]) -> None:
        """What running jobs were given before this process was there."""
        with self._changed:
            self._wished = {**caps_w, **self._wished}

    def wished(self) -> tuple[int, Mapping[str, float | None]]:
        """What is wished now, by UUID, and the number of the last wish."""
        with self._changed:
            return self._news, dict(self._wished)

    def began_since(self, uuid: str, at_s: float) -> bool:
        """Whether a job got a cap there after that time (steady seconds)."""
        with self._changed:
            return self._begun_s.get(uuid, -1.0) >= at_s

    def hold(self, held: Mapping[str, HeldCap]) -> None:
        """What is in force now, as the loop counts it."""
        with self._changed:
            self._held = dict(held)
            self._changed.notify_all()

    def follows(self, uuid: str) -> None:
        """Its knob does as it is told."""
        self.problems.pop(self._uris[uuid], None)
        self._failing.discard(uuid)

    def refused(self, uuid: str, outcome: OrderOutcome) -> None:
        """An order did not take effect; one that was not refused may do so later."""
        self.problems[self._uris[uuid]] = outcome.problem or str(outcome.result)
        if outcome.result in (OrderResult.REFUSED, OrderResult.UNREACHABLE):
            with self._changed:
                self._failing.add(uuid)
                self._changed.notify_all()
