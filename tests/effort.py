"""How hard a search for counter-examples looks: an eighth in `make test`, all of it elsewhere."""

from __future__ import annotations

import os

QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
PART = 8
LEAST = 6


def times(examples: int) -> int:
    """Examples to try where `examples` are the whole search."""
    return max(min(LEAST, examples), examples // PART) if QUICK else examples
