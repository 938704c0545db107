"""What Gavel's rounds keep of every job: the share it is owed and the time it received.

Worker types are numbered; lists below are by type. Time counts from the last reset, which comes
with new shares; what a job got more or less than its share until then is carried on as a deficit.
Every job starts with half a round on every type, so that no ratio is infinite (Gavel's released
scheduler).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEW_SHARE_PRIORITY = 1e9
"""Per unit of share, where no time was received by anybody yet."""


@dataclass(slots=True)
class GavelStanding:
    """One job; `shares` is None until it was part of an allocation."""

    job_id: str
    number: int
    received_s: list[float]
    deficit_s: list[float]
    shares: Sequence[float] | None = None

    def share(self, worker_type: int) -> float:
        """The part of time it is owed on a type."""
        return self.shares[worker_type] if self.shares is not None else 0.0


@dataclass(slots=True)
class GavelAccount:
    """All jobs that take part, in order of arrival."""

    types: int
    half_round_s: float
    standings: dict[str, GavelStanding] = field(default_factory=dict)
    received_s: list[float] = field(default_factory=list)
    reset_s: float = 0.0

    def __post_init__(self) -> None:
        """Nobody has received anything."""
        self.received_s = [0.0] * self.types

    def enter(self, job_id: str, number: int) -> None:
        """Take a job in; it is owed nothing before the next allocation."""
        self.standings[job_id] = GavelStanding(
            job_id, number, [self.half_round_s] * self.types, [0.0] * self.types
        )

    def leave(self, job_id: str) -> None:
        """Forget a job; the time it received stays in the totals until the next reset."""
        del self.standings[job_id]

    def book(self, job_id: str, worker_type: int, seconds: float) -> None:
        """Note time received on a type, by a job that may be gone by now."""
        standing = self.standings.get(job_id)
        if standing is not None:
            standing.received_s[worker_type] += seconds
        self.received_s[worker_type] += seconds

    def reset(self, now_s: float) -> None:
        """Carry over what was owed and not received; time counts from here."""
        elapsed_s = now_s - self.reset_s
        for worker_type in range(self.types):
            self.received_s[worker_type] = 0.0
            for standing in self.standings.values():
                got_s = standing.received_s[worker_type] - self.half_round_s
                standing.deficit_s[worker_type] += standing.share(worker_type) * elapsed_s - got_s
                standing.received_s[worker_type] = self.half_round_s
                self.received_s[worker_type] += self.half_round_s
        self.reset_s = now_s

    def grant(self, shares: Mapping[str, Sequence[float]]) -> None:
        """New shares, of these jobs and no others."""
        for standing in self.standings.values():
            standing.shares = shares.get(standing.job_id)

    def priority(self, standing: GavelStanding, worker_type: int) -> float:
        """The share owed over the fraction of the type's time received (OSDI'20, section 5)."""
        share, total_s = standing.share(worker_type), self.received_s[worker_type]
        fraction = standing.received_s[worker_type] / total_s if total_s else 0.0
        return share / fraction if fraction > 0 else share * NEW_SHARE_PRIORITY

    def ranked(self, worker_type: int) -> list[tuple[float, GavelStanding]]:
        """Everybody with their priority on a type, who is furthest behind first."""
        rated = [(self.priority(one, worker_type), one) for one in self.standings.values()]
        return sorted(
            rated,
            key=lambda pair: (
                -pair[0],
                -pair[1].deficit_s[worker_type],
                -pair[1].share(worker_type),
                pair[1].number,
            ),
        )
