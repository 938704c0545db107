"""Jobs as people call them: by id, or by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from wattherd.errors import UserError
from wattherd.library.client import Client
from wattherd.workload.job_array import shown, tasks_called

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
    if _ID.fullmatch(word) or tasks_called(word) is not None:
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


def array_called(client: Client, word: str) -> tuple[str, str] | None:
    """The array that is meant, and which of its tasks (empty: all); None if one job is meant.

    It is called by its id (`a-7`, `a-7[0-4]`) or by the name that all of its tasks have.

    Raises:
        UserError: several arrays of that name are not over, or the service cannot be asked.
    """
    if _ID.fullmatch(word):
        return None
    called = tasks_called(word)
    if called is not None:
        if called.chosen is not None and len(called.chosen) == 1:
            return None
        return called.array, "" if called.chosen is None else shown(called.chosen)
    rows = client.get("jobs", over=True, text=word, limit=_MOST)["jobs"]
    if any(row["name"] == word for row in rows):
        return None
    tasks = [row for row in rows if row.get("array") and row["name"].rpartition("[")[0] == word]
    live = sorted({row["array"]["id"] for row in tasks if row["state"] not in FINAL})
    if len(live) > 1:
        hint = f"one of {', '.join(live)}"
        raise UserError(f"{len(live)} arrays are called {word!r}", field="JOB", hint=hint)
    if not tasks:
        return None
    return (live or [tasks[-1]["array"]["id"]])[0], ""


def _one_of(rows: list[Mapping[str, Any]], word: str) -> str:
    live = [row["id"] for row in rows if row["state"] not in FINAL]
    if len(live) > 1:
        hint = f"one of {', '.join(live)}"
        raise UserError(f"{len(live)} jobs are called {word!r}", field="JOB", hint=hint)
    return str(live[0] if live else rows[-1]["id"])
