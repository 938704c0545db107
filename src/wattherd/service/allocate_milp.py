"""The exact allocation by integer program (HiGHS through SciPy): the judge of all others."""

from __future__ import annotations

import numpy as np

from wattherd.errors import ClusterError, UserError
from wattherd.policy.power.rules import Chosen, Question

GAP = 1e-6
MOST_NODES = 200_000


def exact(question: Question) -> Chosen:
    """One binary per choice, one of them per job, every domain within its budget.

    Raises:
        UserError: SciPy is not installed, or nothing fits.
        ClusterError: the search ended without a solution.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError:
        hint = "pip install 'wattherd[lp]'"
        raise UserError("the integer program needs SciPy", field="--policy", hint=hint) from None
    sizes = [len(one) for one in question.choices]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    values = np.array([one.value for choices in question.choices for one in choices])
    watts = np.array([one.watts for choices in question.choices for one in choices])
    limits, columns = question.limits, np.arange(len(owner))
    each = csr_array((np.ones(len(owner)), (owner, columns)), shape=(len(sizes), len(owner)))
    path, scale = limits.path[owner], limits.scale[owner]
    rows, at = np.nonzero(path >= 0)
    load = csr_array(
        ((watts[:, None] * scale)[rows, at], (path[rows, at], rows)),
        shape=(len(limits.room_w), len(owner)),
    )
    found = milp(
        -values,
        constraints=[LinearConstraint(each, 1, 1), LinearConstraint(load, -np.inf, limits.room_w)],
        integrality=np.ones(len(owner)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    if found.x is None:
        raise ClusterError(f"no allocation found: {found.message}")
    taken = np.flatnonzero(found.x > 0.5)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return [int(one - first[owner[one]]) for one in taken]
