"""Measured points for jobs within the budgets of a power tree: one point per job.

`allocate` rounds the water-filling optimum: whole pieces of the hulls first, then whatever single
step still fits and adds most, and for up to two thousand jobs an exact search among what could
still be better (`knapsack`). `Allocator` keeps what does not depend on the budgets, for those who
ask again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattherd.estimate.measured_curve import CurveChoice
from wattherd.policy.power.choices import Floats, Ints, PowerChoices, menu_of
from wattherd.policy.power.knapsack import refined
from wattherd.policy.power.limits import DomainRoom, one_budget, tree_limits
from wattherd.policy.power.rounding import stepped, whole
from wattherd.policy.power.tree_filling import TreeFilling, filling_of

__all__ = ["Allocator", "DomainRoom", "allocate", "best_rows", "bound", "one_budget", "tree_limits"]

MOST_REFINED_JOBS = 2_000
"""Beyond that steps are so small, beside the sum, that hardly anything is left to gain."""


class Allocator:
    """Jobs below one tree, to be served again and again under budgets that change."""

    def __init__(self, menu: PowerChoices, limits: DomainRoom) -> None:
        """Hulls, their order, and the order by domain are found once."""
        self.menu, self.limits = menu, limits
        self.filling: TreeFilling = filling_of(menu, limits)

    def watts(self, room_w: Floats) -> Floats:
        """Watts of each job (J,) at the linear optimum under budgets `room_w` (D,).

        Raises:
            UserError: the least choices do not fit.
        """
        return self.filling.watts(self.filling.served(self.filling.room(room_w)))

    def rows(self, room_w: Floats) -> Ints:
        """The row of the menu chosen for each job (J,): whole pieces, then single steps.

        Raises:
            UserError: the least choices do not fit.
        """
        given = self.filling.served(self.filling.room(room_w))
        return stepped(self.menu, self.limits.with_room(room_w), whole(self.filling, given))

    def prices(self, room_w: Floats) -> Floats:
        """Worth of one more watt of each budget (D,) at the linear optimum."""
        return self.filling.prices(self.filling.room(room_w))


def bound(jobs: Sequence[Sequence[CurveChoice]], limits: DomainRoom) -> float:
    """The most that fractions of choices could be worth, exactly.

    Raises:
        UserError: the least choices do not fit.
    """
    filling = filling_of(menu_of(jobs), limits)
    return filling.value(filling.served(filling.room(limits.room_w)))


def best_rows(menu: PowerChoices, limits: DomainRoom) -> Ints:
    """The row for every job (J,): the most of the values, proven so unless states run out.

    Raises:
        UserError: the least choices do not fit.
    """
    allocator = Allocator(menu, limits)
    rows = allocator.rows(limits.room_w)
    if menu.jobs > MOST_REFINED_JOBS:
        return rows
    best = refined(menu, limits, allocator.prices(limits.room_w), rows)
    # A search that ran out of states may leave watts over.
    return stepped(menu, limits, best)


def allocate(jobs: Sequence[Sequence[CurveChoice]], limits: DomainRoom) -> list[int]:
    """A choice for every job, by index.

    Raises:
        UserError: the least choices do not fit.
    """
    if not jobs:
        return []
    menu = menu_of(jobs)
    chosen: list[int] = np.subtract(best_rows(menu, limits), menu.least).tolist()
    return chosen
