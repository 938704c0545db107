"""Allocations by HiGHS, through SciPy: the judges of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wattherd.errors import ClusterError, UserError
from wattherd.policy.power.choices import Floats, Ints, PowerChoices
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.rules import ChoiceProblem, Chosen
from wattherd.policy.power.tree_filling import stepped

# --- The linear program of a power allocation in solvers: what water-filling is judged by.
#
# One variable per choice between 0 and 1, those of a job add up to 1, every domain holds its load.

HINT = "pip install 'wattherd[lp]'"


@dataclass(frozen=True, slots=True)
class MilpSolution:
    """The optimum, the parts of all choices (C,), and a watt's worth in each domain (D,)."""

    value: float
    part: Floats
    price: Floats


def program(menu: PowerChoices, limits: DomainRoom) -> tuple[Any, Any]:
    """Sparse matrices: choices of each job (J, C), and loads of domains (D, C).

    Raises:
        UserError: SciPy is not installed.
    """
    try:
        from scipy.sparse import csr_array
    except ImportError:
        raise UserError("linear programs need SciPy", field="--policy", hint=HINT) from None
    columns = np.arange(len(menu.job))
    each = csr_array((np.ones(len(columns)), (menu.job, columns)), shape=(menu.jobs, len(columns)))
    path, scale = limits.path[menu.job], limits.scale[menu.job]
    rows, at = np.nonzero(path >= 0)
    loads = (menu.watts[:, None] * scale)[rows, at]
    shape = (len(limits.room_w), len(columns))
    return each, csr_array((loads, (path[rows, at], rows)), shape=shape)


def by_highs(menu: PowerChoices, limits: DomainRoom, method: str = "highs") -> MilpSolution:
    """HiGHS through SciPy; `method` is one of `scipy.optimize.linprog`.

    Raises:
        UserError: SciPy is not installed.
        ClusterError: no solution.
    """
    each, load = program(menu, limits)
    from scipy.optimize import linprog

    found = linprog(
        -menu.value, A_ub=load, b_ub=limits.room_w, A_eq=each, b_eq=np.ones(menu.jobs),
        bounds=(0, None), method=method,
    )  # fmt: skip
    if found.x is None:
        raise ClusterError(f"no allocation found: {found.message}")
    return MilpSolution(-float(found.fun), found.x, -np.asarray(found.ineqlin.marginals))


def by_clarabel(menu: PowerChoices, limits: DomainRoom) -> float:
    """The optimum by Clarabel's interior points.

    Raises:
        UserError: SciPy or Clarabel is not installed.
        ClusterError: no solution.
    """
    each, load = program(menu, limits)
    try:
        import clarabel
    except ImportError:
        raise UserError("this judge is Clarabel", field="solver", hint=HINT) from None
    from scipy.sparse import csc_matrix, eye_array, vstack

    count = len(menu.job)
    rows = csc_matrix(vstack([each, load, -eye_array(count)]))
    sides = np.concatenate([np.ones(menu.jobs), limits.room_w, np.zeros(count)])
    cones = [clarabel.ZeroConeT(menu.jobs), clarabel.NonnegativeConeT(len(limits.room_w) + count)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    nothing = csc_matrix((count, count))
    solver = clarabel.DefaultSolver(nothing, -menu.value, rows, sides, cones, settings)
    found = solver.solve()
    if str(found.status) != "Solved":
        raise ClusterError(f"no allocation found: {found.status}")
    return -float(found.obj_val)


GAP = 1e-6
MOST_NODES = 200_000


def exact(question: ChoiceProblem) -> Chosen:
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


def relaxed(question: ChoiceProblem) -> Chosen:
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
