"""`--since`: a moment, or so long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from wattherd.errors import UserError
from wattherd.units import seconds


def since(text: str | None) -> str | None:
    """`7d`, `2h` (ago) or `2026-11-21T08:00Z` as ISO 8601; without zone it is local time.

    Raises:
        UserError: neither.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.now(UTC) - _ago(text)
    return (found if found.tzinfo else found.astimezone()).isoformat()


def _ago(text: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(text, field="--since"))
    except (OverflowError, UserError):
        hint = "write 2h, 7d or 2026-11-21T08:00"
        raise UserError(f"{text!r} is no time", field="--since", hint=hint) from None
