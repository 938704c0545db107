"""What jobs take from each other: on one GPU, and on one node's link to the network.

Two jobs on a GPU: measured pairs (Gavel, OSDI'20; Lucid, ASPLOS'23). Two distributed jobs on a
node: a flat slowdown, as the Pollux artifact (OSDI'21) injects 0, 25 or 50 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PairSpeeds:
    """`speeds[first, second]` are the speeds of both when packed, relative to each alone.

    A pair that was not measured takes turns: half of its speed for each. So does anything beyond
    a pair, of which nobody publishes measurements.
    """

    speeds: Mapping[Pair, tuple[float, float]]

    def known(self, first: str, second: str) -> bool:
        """Whether the pair was measured."""
        return (first, second) in self.speeds or (second, first) in self.speeds

    def speed(self, profile: str, others: tuple[str, ...]) -> float:
        """Speed of a job beside `others` on its GPU, relative to alone."""
        if not others:
            return 1.0
        if len(others) == 1:
            other = others[0]
            if (profile, other) in self.speeds:
                return self.speeds[profile, other][0]
            if (other, profile) in self.speeds:
                return self.speeds[other, profile][1]
        return 1 / (1 + len(others))


TURNS = PairSpeeds({})
"""Packing as good as taking turns."""


def on_one_link(distributed: int, slowdown: float) -> float:
    """Speed of a job that spans nodes where `distributed` such jobs (itself included) share one."""
    return 1.0 - slowdown if distributed > 1 else 1.0
