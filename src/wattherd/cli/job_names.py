"""Jobs as people call them: by id, or by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from wattherd.cli.client import Client
from wattherd.errors import UserError

FINAL = ("Succeeded", "Failed", "Cancelled", "TimedOut")
STATES = ("Queued", "Starting", "Running", "Stopping", "Paused", *FINAL)
"""As users see them."""
_ID = re.compile(r"j-\d+")
_MOST = 1000


def job_called(client: Client, word: str, *, begins: bool = True) -> str:
    """The id of the job that is called `word`: its id, its name or (`begins`) how that begins.

    Of several the one that is not over is meant, or else the newest.

    Raises:
        UserError: several that are not over, or the service cannot be asked.
    """
    if _ID.fullmatch(word):
        return word
    rows = client.get("jobs", over=True, text=word, limit=_MOST)["jobs"]
    kinds: list[Callable[[str], bool]] = [word.__eq__]
    if begins:
        kinds.append(lambda name: name.startswith(word))
    for fits in kinds:
        named = [row for row in rows if fits(row["name"])]
        if named:
            return _one_of(named, word)
    return word


def _one_of(rows: list[Mapping[str, Any]], word: str) -> str:
    live = [row["id"] for row in rows if row["state"] not in FINAL]
    if len(live) > 1:
        hint = f"one of {', '.join(live)}"
        raise UserError(f"{len(live)} jobs are called {word!r}", field="JOB", hint=hint)
    return str(live[0] if live else rows[-1]["id"])
