"""Named random streams: one seed, and a stream of its own for every purpose.

A purpose that draws more or less, or comes new, leaves the numbers of all others as they were.
"""

from __future__ import annotations

import zlib

import numpy as np

from wattherd.errors import UserError


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The generator of `purpose` under `seed`: the same in every process and on every machine.

    Raises:
        UserError: the seed is negative.
    """
    if seed < 0:
        raise UserError(f"seed {seed} is negative", field="seed", hint="seeds count from 0")
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
