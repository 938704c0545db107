"""Pods that were told to go for want of watts and are not being deleted yet: who, and since when.

What they draw is on its way back, for as long as that can be believed: `WAIT_S` after the order, or
until it is refused. A refused one is the first to be told again, while its watts are still wanted;
one that nothing came of for `WAIT_S` is the last, so that others go instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum

WAIT_S = 30.0
"""For an order to be seen carried out; what was not by then is not counted on any more."""


class Turn(IntEnum):
    """When a pod is told to go, before all that its rank says; the lowest is stopped last."""

    PASSED_OVER = 0
    BY_RANK = 1
    TOLD_BEFORE = 2


@dataclass(slots=True)
class Stopping:
    """By uid; times are steady seconds."""

    _since_s: dict[str, float] = field(default_factory=dict)
    """Of those on their way: when they were told last."""
    _first_s: dict[str, float] = field(default_factory=dict)
    """When they were told first, also of those who were refused."""
    _suspended: set[str] = field(default_factory=set)
    """Told by the suspension of their job."""
    _found: set[str] = field(default_factory=set)
    """Of these, the ones whose job was found suspended."""
    _forced: set[str] = field(default_factory=set)
    """Their job was suspended, and they did not go."""

    @property
    def on_the_way(self) -> AbstractSet[str]:
        """Those whose watts are counted on."""
        return self._since_s.keys()

    @property
    def refused(self) -> list[str]:
        """Those who were told, and do not go."""
        return [uid for uid in self._first_s if uid not in self._since_s]

    def __bool__(self) -> bool:
        """Whether anybody was told and is there."""
        return bool(self._first_s)

    def turn(self, uid: str, at_s: float) -> Turn:
        """When this one is told, of those who may be."""
        first_s = self._first_s.get(uid)
        if first_s is None:
            return Turn.BY_RANK
        return Turn.TOLD_BEFORE if at_s - first_s < WAIT_S else Turn.PASSED_OVER

    def is_forced(self, uid: str) -> bool:
        """Whether to suspend its job was in vain, so that it is to be evicted."""
        return uid in self._forced

    def tell(self, uids: Iterable[str], at_s: float, *, suspended: bool) -> None:
        """They are told now, by suspending their job or else by eviction."""
        for uid in uids:
            self._since_s[uid] = at_s
            self._first_s.setdefault(uid, at_s)
            (self._suspended.add if suspended else self._suspended.discard)(uid)

    def find(self, uids: Collection[str], at_s: float) -> None:
        """Just these are of jobs that are suspended, whoever told them."""
        for uid in self._found.difference(uids):
            self.forget(uid)  # its job runs again
        self._found &= set(uids)
        for uid in uids:
            if uid not in self._first_s:
                self.tell([uid], at_s, suspended=True)
                self._found.add(uid)

    def evict(self, uids: Iterable[str]) -> None:
        """Nothing can be suspended for them: it is an eviction that they are told by."""
        self._suspended.difference_update(uids)

    def refuse(self, uids: Iterable[str]) -> None:
        """It was not done; whether it is still wanted is to be decided anew."""
        for uid in uids:
            self._since_s.pop(uid, None)

    def forget(self, uid: str) -> None:
        """It is gone, or may stay."""
        self._since_s.pop(uid, None)
        self._first_s.pop(uid, None)
        for known in (self._suspended, self._found, self._forced):
            known.discard(uid)

    def look(self, there: Collection[str], at_s: float) -> None:
        """Of those who are still there (`there`), who does not go is not counted on."""
        for uid in [uid for uid in self._first_s if uid not in there]:
            self.forget(uid)
        for uid in [uid for uid, told_s in self._since_s.items() if at_s - told_s >= WAIT_S]:
            del self._since_s[uid]
            if uid in self._suspended:
                self._forced.add(uid)
                self._first_s[uid] = at_s
