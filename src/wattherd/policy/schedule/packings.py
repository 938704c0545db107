"""Packing small clusters anew, each step worked out once.

Where a whole cluster is packed at every event, the same steps are taken again and again: what a
gang does to a cluster depends on what is free there alone. Two hundred thousand steps of a trace
lead through some hundreds of states, which are remembered with what each gang makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from wattherd.policy.schedule.node_choice import YarnTrial

MOST_NODES = 16
"""Larger clusters have too many states to see one of them twice."""
MOST_STATES = 10_000
"""Of one cluster (some MB); then remembering begins anew."""


class PackedCluster(dict[int, "PackedCluster | None"]):
    """A cluster half packed: by the size of a gang (GPUs) what it is then, None if it won't fit."""

    __slots__ = ("_gpus", "_known", "free", "left")

    def __init__(
        self,
        gpus: tuple[int, ...],
        free: tuple[int, ...],
        known: dict[tuple[int, ...], PackedCluster],
    ) -> None:
        """`free` of all the `gpus` of each node; `known` are the states seen so far."""
        super().__init__()
        self._gpus, self._known = gpus, known
        self.free, self.left = free, sum(free)

    def __missing__(self, gang: int) -> PackedCluster | None:
        """Place a gang by the rule of `yarn` where nobody did before."""
        trial = YarnTrial(self._gpus, self.free)
        self[gang] = then = self._of(trial.free) if trial.take(gang) else None
        return then

    def _of(self, free: tuple[int, ...]) -> PackedCluster:
        """The one state in which so much is free."""
        known = self._known
        if free not in known:
            if len(known) >= MOST_STATES:
                for packing in known.values():
                    packing.clear()
                known.clear()
            known[free] = PackedCluster(self._gpus, free, known)
        return known[free]


@lru_cache(maxsize=8)
def _empty(gpus: tuple[int, ...]) -> PackedCluster:
    """A cluster of which nothing is given away."""
    return PackedCluster(gpus, gpus, {})


class RememberedTrial:
    """Packing of a whole cluster anew as `YarnTrial` does, which remembers what came of it."""

    def __init__(self, gpus: Sequence[int]) -> None:
        """`gpus` of each node, all of them free."""
        self._gpus = gpus
        self._now = _empty(tuple(gpus))

    @property
    def full(self) -> bool:
        """Whether nothing is left to give."""
        return self._now.left == 0

    def take(self, gpus: int) -> bool:
        """Place a gang, if it fits."""
        then = self._now[gpus]
        if then is None:
            return False
        self._now = then
        return True

    def take_each(self, gangs: Sequence[int]) -> list[int]:
        """Place gangs one after the other; which of them, counted from 0, do not fit."""
        now, misfits = self._now, []
        for at, gpus in enumerate(gangs):
            then = now[gpus]
            if then is None:
                misfits.append(at)
            else:
                now = then
        self._now = now
        return misfits

    def layout(self, gangs: Sequence[int]) -> list[list[tuple[int, int]]] | None:
        """Nodes and GPUs of each of `gangs`, all of which were taken in this order."""
        return YarnTrial(self._gpus).layout(gangs)


def yarn_trial(gpus: Sequence[int]) -> YarnTrial | RememberedTrial:
    """Packing by the rule of `yarn`; small clusters remember what came of it."""
    return RememberedTrial(gpus) if len(gpus) <= MOST_NODES else YarnTrial(gpus)
