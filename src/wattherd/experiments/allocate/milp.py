"""Allocations by HiGHS, through SciPy: the judges of all others."""

from __future__ import annotations

import numpy as np

from wattherd.errors import ClusterError
from wattherd.experiments.allocate.lp import by_highs, program
from wattherd.policy.power.choices import Ints
from wattherd.policy.power.rounding import stepped
from wattherd.policy.power.rules import Chosen, Question

GAP = 1e-6
MOST_NODES = 200_000


def exact(question: Question) -> Chosen:
    """By integer program: one binary per choice, one of them per job, every domain in its budget.

    Raises:
        UserError: SciPy is not installed.
        ClusterError: the search ended without a solution, or nothing fits.
    """
    menu, limits = question.menu, question.limits
    limits.left_w(menu.watts[menu.least])
    each, load = program(menu, limits)
    from scipy.optimize import Bounds, LinearConstraint, milp

    found = milp(
        -menu.value,
        constraints=[LinearConstraint(each, 1, 1), LinearConstraint(load, -np.inf, limits.room_w)],
        integrality=np.ones(len(menu.job)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    if found.x is None:
        raise ClusterError(f"no allocation found: {found.message}")
    return question.chosen(menu.highest(found.x > 0.5))


def relaxed(question: Question) -> Chosen:
    """By linear program, rounded down to measured points; then the single steps that still fit.

    Raises:
        UserError: SciPy is not installed, or the least choices do not fit.
        ClusterError: no solution.
    """
    menu, limits = question.menu, question.limits
    limits.left_w(menu.watts[menu.least])
    part = by_highs(menu, limits).part
    watts = np.bincount(menu.job, part * menu.watts, menu.jobs)
    rows: Ints = menu.highest(menu.watts <= watts[menu.job] + 1e-6)
    return question.chosen(stepped(menu, limits, rows))
