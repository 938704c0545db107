"""Reading back what `sim run --out` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wattherd.errors import UserError


def read_document(directory: Path) -> dict[str, Any]:
    """The `wattherd.sim/1` document of a run directory.

    Raises:
        UserError: there is none, or it is unreadable.
    """
    try:
        document: dict[str, Any] = json.loads((directory / "sim.json").read_text())
    except (OSError, ValueError):
        hint = "`wattherd sim run --out DIR` writes it"
        raise UserError("no readable sim.json", where=str(directory), hint=hint) from None
    return document
