"""Compile the kernels with Numba where it is installed (extra `fast`), else leave them plain.

A kernel is a function over arrays and integers in the subset that Numba compiles. Without Numba
the engine takes the NumPy path instead of running kernels as slow Python; see
`engine.placement.placer`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

HAVE_JIT = importlib.util.find_spec("numba") is not None
_KERNEL_ROOMS = ("estimate", "policy", "engine")


@functools.cache
def _numba() -> Any:
    """Numba, told to keep machine code in a folder of its own per state of the sources.

    Numba renews a cached function when that function's file changes, not when a kernel it calls
    from another file does; a folder per state of all kernel files leaves no stale code.
    """
    import numba

    if not os.environ.get("NUMBA_CACHE_DIR"):
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder = root / "wattherd" / f"kernels-{_sources_digest():08x}"
        vars(numba.config)["CACHE_DIR"] = str(folder)
    return numba


def _sources_digest() -> int:
    """A checksum of every file that holds a kernel."""
    package, digest = Path(__file__).parent, 0
    for room in _KERNEL_ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            content = path.read_bytes()
            if b"@kernel" in content:
                digest = zlib.crc32(content, digest)
    return digest


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first call and cache the machine code on disk.

    `fastmath` stays off: every floating-point sum must be taken in the written order, or
    decisions would no longer equal the published ones (docs/concepts/exactness.md).
    """
    if not HAVE_JIT:
        return function
    compiled: Callable[P, R] = _numba().njit(cache=True, error_model="numpy")(function)
    return compiled
