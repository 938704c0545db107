"""Seams: what packages of others add by entry points (docs/guides/plugins.md).

A package announces a name in one of the groups below. Names are listed without loading anything; an
object is loaded when its name is asked for. Nothing of ours can be replaced: our names go first.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any, Protocol

from wattherd.errors import UserError

SEAMS = {
    "place": "a `Scorer`: which node is better",
    "schedule": "a function of the workload that makes a `Planner`: who runs where, how large",
    "power": "a class that makes a `PowerPolicy`: how many watts for whom",
    "meters": "a module with `driver` and `OPTIONS`: watts are read",
    "knobs": "a module with `driver` and `OPTIONS`: caps are set",
    "signals": "a module with `signal` and `OPTIONS`: limits from outside are heard",
    "workloads": "a function of a path that gives jobs: a file format",
    "reports": "a function of a run that gives a section of its page, or a file beside it",
}
"""Groups `wattherd.NAME`, and what an entry of each is."""
GUIDE = "see docs/guides/plugins.md"


class AnnouncedPart(Protocol):
    """An entry point, of which only this is asked."""

    @property
    def value(self) -> str:
        """Module and object, as the package says."""
        ...

    def load(self) -> Any:
        """Import the object."""
        ...


@cache
def announced(seam: str) -> dict[str, AnnouncedPart]:
    """Names that installed packages add to a seam; of two of one name the first found."""
    found: dict[str, AnnouncedPart] = {}
    for entry in metadata.entry_points(group=f"wattherd.{seam}"):
        found.setdefault(entry.name, entry)
    return found


def loaded(seam: str, name: str) -> Any:
    """What an announced name stands for.

    Raises:
        UserError: nobody announces it, or it cannot be imported.
    """
    entry = announced(seam).get(name)
    if entry is None:
        raise UserError(f"no package offers {name!r}", field=f"wattherd.{seam}", hint=GUIDE)
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # a package that ends the program does not end ours
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        raise UserError(problem, where=entry.value, field=name, hint=GUIDE) from error


def told_of(seam: str, name: str) -> str:
    """The first line of what a package says of its own; of what cannot be loaded, why."""
    try:
        return about(loaded(seam, name)) or "says nothing of itself"
    except UserError as error:
        return error.line()


def about(found: object) -> str:
    """The first line of what is said of an object."""
    told = (getattr(found, "__doc__", None) or "").strip()
    return told.partition("\n")[0].rstrip(".")
