"""Promises that no machine is too busy to keep: budgets, capacity, one binding for each pod."""

from __future__ import annotations


class PromiseBroken(AssertionError):
    """Once is enough: a test that fails with this is never tried a second time."""


def promise(kept: object, told: object = None) -> None:
    """Fail for good where it was not kept, and tell what was seen.

    Raises:
        PromiseBroken: `kept` is not true.
    """
    if not kept:
        raise PromiseBroken(f"saw {told}")
