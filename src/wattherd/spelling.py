"""Suggest the name somebody meant: every lookup by name ends its error with the same hint.

This module knows no other part of wattherd.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 20
_MANY = 4


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, capitals aside; None when nothing is near."""
    by_fold = {candidate.casefold(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[near[0]] if near else None


def hint_for(name: str, known: Iterable[str]) -> str:
    """`did you mean 'X'?` where `name` begins or resembles a known name, else the first known."""
    names = sorted(known)
    begun = [candidate for candidate in names if candidate.casefold().startswith(name.casefold())]
    if name and 0 < len(begun) <= _MANY:
        return f"did you mean {' or '.join(map(repr, begun))}?"
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"known: {', '.join(names[:_SHOWN])}{more}"
