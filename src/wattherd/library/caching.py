"""Whether and where results are kept, as callers say it."""

from __future__ import annotations

from pathlib import Path

from wattherd.experiments.sweep import fingerprint
from wattherd.store.result_cache import ResultCache, cache_folder

Caching = bool | str | Path
"""True for the user's folder, False for none, or a folder."""


def results_kept(cache: Caching) -> ResultCache:
    """The cache that is asked for; one that keeps nothing where none is."""
    if cache is False:
        return ResultCache(None)
    folder = cache_folder() if cache is True else Path(cache)
    return ResultCache(folder, fingerprint.made_by() if folder is not None else "")
