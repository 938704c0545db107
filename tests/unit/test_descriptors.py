"""Descriptors kept for supervision: there when all others are taken, gone with their holder."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattherd.local.descriptors import RESERVED, Reserve


def count() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def few() -> Iterator[None]:
    """A process that may open a hundred files more than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count() + 100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_is_reserved_is_there_when_everything_else_is_taken(few: None) -> None:
    reserve = Reserve()
    taken = []
    with contextlib.suppress(OSError):
        taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(200))
    with pytest.raises(OSError, match="Too many open files"):
        os.open(os.devnull, os.O_RDONLY)
    with reserve.spared():
        os.close(os.open(os.devnull, os.O_RDONLY))
    for one in taken:
        os.close(one)
    reserve.close()


@pytest.mark.long
def test_a_reserve_that_nobody_closes_goes_with_its_holder() -> None:
    before = count()
    reserve = Reserve()
    assert count() == before + RESERVED
    del reserve
    gc.collect()
    assert count() == before
