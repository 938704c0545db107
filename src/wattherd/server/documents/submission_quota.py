"""How many bytes the jobs of one user may take that are not over.

All of a job is in memory and in the journal until it is over: its command, its environment, its
labels. Most are small; small ones are counted by their number alone (`arrays.check_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from wattherd.errors import UserError
from wattherd.model.job import JobSpec

MOST_LIVE_BYTES = 512 << 20
SMALL_BYTES = 16 << 10
"""A request whose jobs take no more is not counted."""
Owner = tuple[str, str]
"""User and tenant."""


@dataclass(slots=True)
class ReservedBytes:
    """What one request takes, until the last of its jobs is over."""

    size_bytes: int
    last: str = ""
    """That job; empty as long as it has no id."""

    def settle(self, done: Future[str], count: int) -> None:
        """The request has been answered: `count` jobs from the id that `done` tells, or none."""
        if done.cancelled() or done.exception() is not None:
            self.size_bytes = 0
        else:
            self.last = f"j-{int(done.result().partition('-')[2]) + count - 1}"


@dataclass(slots=True)
class SubmissionQuota:
    """What users have taken, as long as they have."""

    by_owner: dict[Owner, list[ReservedBytes]] = field(default_factory=dict)

    def take(self, owner: Owner, size_bytes: int, over: Callable[[str], bool]) -> ReservedBytes:
        """Take so much for jobs that are about to be handed in; `over` tells which have ended.

        Raises:
            UserError: the user's jobs take too much already.
        """
        mine = [
            one
            for one in self.by_owner.get(owner, ())
            if one.size_bytes and not (one.last and over(one.last))
        ]
        self.by_owner[owner] = mine
        held = sum(one.size_bytes for one in mine)
        if held + size_bytes > MOST_LIVE_BYTES:
            raise UserError(
                f"jobs of yours that are not over take {held / 2**20:,.0f} MiB,"
                f" {MOST_LIVE_BYTES >> 20} at most with {size_bytes / 2**20:,.1f} more",
                hint="keep long texts in files, and hand it in when some of them are over",
            )
        mine.append(taken := ReservedBytes(size_bytes))
        return taken


def bytes_of(jobs: Iterable[tuple[JobSpec, Mapping[str, Any]]]) -> int:
    """What jobs take, about: the characters of all that their users wrote."""
    return sum(_characters(paper) + _written(spec) for spec, paper in jobs)


def _written(spec: JobSpec) -> int:
    commands = sum(len(word) for role in spec.roles for word in role.command)
    labels = sum(len(name) + len(value) for name, value in spec.labels)
    return commands + labels + sum(map(len, spec.gpu_models)) + sum(map(len, spec.after))


def _characters(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case dict():
            return sum(len(str(name)) + _characters(one) for name, one in value.items())
        case list() | tuple():
            return sum(map(_characters, value))
        case _:
            return 8
