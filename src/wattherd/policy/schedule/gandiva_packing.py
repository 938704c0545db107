"""Two jobs on one GPU, tried where residents take turns and kept while it pays.

Only what jobs report counts: their progress rates when each had a GPU for itself, and when packed.
A pair stays while the sum of packed over solo rates is above what taking turns gives, which is 1;
otherwise it is taken apart and not tried again (Gandiva, OSDI'18, section 4.2). What was measured
of two profiles holds for all jobs of these profiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wattherd.policy.schedule.gandiva_nodes import Homes, Resident
from wattherd.policy.schedule.gandiva_turns import GandivaTurns, memory_part_milli

Pair = tuple[str, str]


@dataclass(slots=True)
class PairPacking:
    """What is known of pairs: `gains` are sums of packed over solo rates, by profiles."""

    least_gain: float
    gains: dict[Pair, float] = field(default_factory=dict)

    def look(
        self, residents: Iterable[Resident], homes: Homes, turns: GandivaTurns, since_s: float
    ) -> None:
        """Read the rates of the slice that began at `since_s`; take pairs apart that do not pay."""
        residents = list(residents)
        for one in residents:
            other = one.partner
            if other is None:
                if _measured(one, since_s):
                    one.solo_rate = one.job.rate_per_s
            elif one.job.number < other.job.number:
                self._judge(one, other, homes, turns, since_s)
        for one in residents:
            one.seen = one.job.progress

    def _judge(
        self, one: Resident, other: Resident, homes: Homes, turns: GandivaTurns, since_s: float
    ) -> None:
        (node,) = one.needs
        if _measured(one, since_s) and _measured(other, since_s):
            self.gains[_pair(one, other)] = _relative_rate(one) + _relative_rate(other)
        pays = self.gains.get(_pair(one, other), self.least_gain) >= self.least_gain
        if not pays or homes.free_gpus(node) > 0:
            homes.part(one)
            if one.running and other.running:
                turns.suspend(other)

    def form(self, homes: Homes, turns: GandivaTurns) -> None:
        """Pair residents wherever some wait for their turn, while that leaves fewer waiting."""
        for node in range(len(homes.nodes)):
            if homes.free_gpus(node) >= 0:
                continue
            able = {
                one: part
                for one in homes.on[node].values()
                if one.partner is None and (part := _part(homes, one, node)) is not None
            }
            while homes.free_gpus(node) < 0:
                best = self._best(able)
                if best is None:
                    break
                self._join(*best, homes, turns)
                del able[best[0]], able[best[1]]

    def _join(self, one: Resident, other: Resident, homes: Homes, turns: GandivaTurns) -> None:
        homes.pair(one, other)
        if one.running and other.running:
            turns.suspend(other)

    def _best(self, able: dict[Resident, int]) -> tuple[Resident, Resident] | None:
        """The pair with the best known gain, then the first that nobody tried."""
        ones = sorted(able, key=lambda one: one.job.number)
        found = [
            (-self.gains.get(_pair(one, other), self.least_gain), a, b)
            for a, one in enumerate(ones)
            for b, other in enumerate(ones[a + 1 :], start=a + 1)
            if able[one] + able[other] <= 1000
            and self.gains.get(_pair(one, other), self.least_gain) >= self.least_gain
        ]
        if not found:
            return None
        _, a, b = min(found)
        return ones[a], ones[b]


def _measured(resident: Resident, since_s: float) -> bool:
    """Whether it ran through the whole slice, and reported within it."""
    job = resident.job
    ran = resident.running and resident.since_s <= since_s
    return ran and job.rate_per_s is not None and job.progress != resident.seen


def _relative_rate(resident: Resident) -> float:
    return (resident.job.rate_per_s or 0.0) / (resident.solo_rate or float("inf"))


def _part(homes: Homes, resident: Resident, node: int) -> int | None:
    """Its part of a GPU, None if it cannot share one or its solo rate is not known yet."""
    if not resident.solo_rate:
        return None
    return memory_part_milli(resident.job.spec, homes.nodes[node].gpu_model)


def _pair(one: Resident, other: Resident) -> Pair:
    names = sorted((_name(one), _name(other)))
    return names[0], names[1]


def _name(resident: Resident) -> str:
    """Profile of the job, its id where it has none."""
    return resident.job.spec.profile or f"job {resident.job.id}"
