"""The three families of errors: whose fault it is stands in the type.

`UserError` is bad input and ends in one line and exit code 2; `ClusterError` is the world
misbehaving and may be retried by a shell; `Bug` is a broken invariant and is never caught.
This module knows no other part of wattherd.
"""

from __future__ import annotations

import re

MOST_WORDS = 2_000
"""Characters of what another machine says that a message takes over."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str, most: int | None = None) -> str:
    """A text of somebody else's as it may be printed, and at most so long.

    What would write elsewhere on a terminal (control characters, with which escape sequences
    begin) or turn the order of characters around is shown as `?`; tabs and ends of lines stay.
    """
    cut = text if most is None or len(text) <= most else f"{text[:most]}..."
    return _CONTROL.sub("?", cut)


def words(error: BaseException) -> str:
    """An error for people: `too many open files`, without the number that Python puts before."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
    return text[:1].lower() + text[1:]


class WattherdError(Exception):
    """Common ancestor, so that a shell can tell our errors from anybody else's."""


class UserError(WattherdError):
    """Input that cannot be used: names the place (file, line, field), the problem and a way out."""

    exit_code = 2
    """Of a program that ends with it."""

    def __init__(self, problem: str, *, where: str = "", field: str = "", hint: str = "") -> None:
        """Keep the parts, so that callers can add the place that only they know."""
        self.problem, self.where, self.field, self.hint = problem, where, field, hint
        super().__init__(self.line())

    def line(self) -> str:
        """One line: `WHERE: FIELD: PROBLEM (hint: HINT)`, leaving out what is not known."""
        head = ": ".join(part for part in (self.where, self.field, self.problem) if part)
        return f"{head} (hint: {self.hint})" if self.hint else head

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip back from a worker process (keyword-only arguments do not pickle)."""
        return _rebuild, (type(self), self.problem, self.where, self.field, self.hint)


def _rebuild(kind: type[UserError], problem: str, where: str, field: str, hint: str) -> UserError:
    return kind(problem, where=where, field=field, hint=hint)


class ClusterError(WattherdError):
    """The world did not do what was asked; shells may retry."""


class Bug(WattherdError):
    """An invariant of our own is broken; never caught, never retried."""


class PlannerBug(Bug):
    """A planner did what makes no sense; caught where the planner is of another package."""
