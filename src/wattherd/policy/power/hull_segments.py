"""Pieces of concave hulls: the common ground of water-filling, its bound and its rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattherd.policy.power.choices import Floats, Ints, PowerChoices, hull_rows


@dataclass(frozen=True, slots=True)
class Hulls:
    """The pieces of all jobs' hulls, by job and watts (P,): whose, the rows they lead from and to.

    They depend on the choices alone: made once, they serve every budget.
    """

    menu: PowerChoices
    job: Ints
    low: Ints
    high: Ints
    watts: Floats
    worth: Floats


def hulls_of(menu: PowerChoices) -> Hulls:
    """The hull pieces of a menu."""
    rows = hull_rows(menu)
    inside = menu.job[rows[1:]] == menu.job[rows[:-1]]
    low, high = rows[:-1][inside], rows[1:][inside]
    return Hulls(
        menu=menu,
        job=menu.job[low],
        low=low,
        high=high,
        watts=menu.watts[high] - menu.watts[low],
        worth=menu.value[high] - menu.value[low],
    )


@dataclass(frozen=True, slots=True)
class Pieces:
    """All pieces of all jobs, steepest first (P,): whose, watts, worth, the row at the end.

    `slope` is worth per watt at the root; `start_w` and `start_value` (J,) are those of the least
    choices.
    """

    job: Ints
    target: Ints
    watts: Floats
    worth: Floats
    slope: Floats
    start_w: Floats
    start_value: Floats


def pieces_of(hulls: Hulls, price: Floats) -> Pieces:
    """The pieces in the order in which watts are given; `price` (J,): a job's watt at the root.

    Among equally steep pieces those of earlier jobs come first, and within a job lower ones.
    """
    menu = hulls.menu
    slope = hulls.worth / (hulls.watts * price[hulls.job])
    order = np.argsort(-slope, kind="stable")
    return Pieces(
        job=hulls.job[order],
        target=hulls.high[order],
        watts=hulls.watts[order],
        worth=hulls.worth[order],
        slope=slope[order],
        start_w=menu.watts[menu.least],
        start_value=menu.value[menu.least],
    )
