"""What was installed."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution


@cache
def commit() -> str:
    """The revision that was installed, where the installer noted it."""
    try:
        noted = distribution("wattherd").read_text("direct_url.json")
    except PackageNotFoundError:
        return "unknown"
    source = json.loads(noted) if noted else {}
    return str(source.get("vcs_info", {}).get("commit_id", "unknown"))
