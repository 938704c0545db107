"""Budgets as people write them: one level for ever, or steps in time."""

from __future__ import annotations

from itertools import pairwise

from wattherd.errors import UserError
from wattherd.units import seconds, watts

Steps = tuple[tuple[float, float], ...]
"""(From this second on, watts), ascending."""


def parse_steps(given: str | float, *, field: str) -> Steps:
    """`40kW`, or `0:40kW,2h:30kW` in ascending time; a number is in watts.

    Raises:
        UserError: another form, or times that do not ascend.
    """
    if isinstance(given, int | float):
        return ((0.0, watts(given, field=field)),)
    steps = []
    for part in given.split(","):
        at, colon, power = part.rpartition(":")
        steps.append((seconds(at, field=field) if colon else 0.0, watts(power, field=field)))
    if any(later[0] <= sooner[0] for sooner, later in pairwise(steps)):
        raise UserError("times of the budget do not ascend", field=field, hint="0:40kW,2h:30kW")
    return tuple(steps)
