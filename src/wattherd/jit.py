"""Compile the kernels with Numba where it is installed (extra `fast`), else leave them plain.

A kernel is a function over arrays and integers in the subset that Numba compiles. Without Numba
the engine takes the NumPy path instead of running kernels as slow Python; see `engine.placer`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

HAVE_JIT = importlib.util.find_spec("numba") is not None


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first call and cache the machine code on disk.

    `fastmath` stays off: every floating-point sum must be taken in the written order, or
    decisions would no longer equal the reference's (see docs/concepts/exactness.md).
    """
    if not HAVE_JIT:
        return function
    import numba

    compiled: Callable[P, R] = numba.njit(cache=True, error_model="numpy")(function)
    return compiled
