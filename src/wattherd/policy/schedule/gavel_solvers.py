"""Solvers of linear and second-order cone programs, each an optional library behind one call.

- `clarabel` (extra `[lp]`): interior point.
- `ecos`: interior point, the solver of the published Gavel numbers; GPL, so never installed by us.
- `highs` (SciPy, extra `[science]`): simplex, hence vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import ClusterError, UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Triplets:
    """A sparse matrix in the making: blocks of rows, added from the top."""

    rows: list[Ints] = field(default_factory=list)
    columns: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    height: int = 0

    def add(self, rows: Ints, columns: Ints, values: Floats) -> None:
        """Entries of the block in work; `rows` count from its first row."""
        self.rows.append(rows + self.height)
        self.columns.append(columns)
        self.values.append(values)

    def grow(self, rows: int) -> None:
        """Close a block of that many rows."""
        self.height += rows

    def matrix(self, width: int) -> Any:
        """The matrix in SciPy's compressed columns."""
        from scipy.sparse import csc_matrix

        entries = np.concatenate(self.values)
        where = (np.concatenate(self.rows), np.concatenate(self.columns))
        whole = csc_matrix((entries, where), shape=(self.height, width))
        whole.eliminate_zeros()
        return whole


@dataclass(frozen=True, slots=True)
class Cones:
    """`linear` rows with slack >= 0, then `triples` of rows whose slack lies in a 3-cone."""

    linear: int
    triples: int


Conic = Callable[[Floats, Triplets, Floats, Cones], Floats]
"""(cost, rows, limits, cones) -> variables that minimise cost subject to limits - rows @ z."""


def _clarabel(cost: Floats, rows: Triplets, limits: Floats, cones: Cones) -> Floats:
    import clarabel
    from scipy.sparse import csc_matrix

    width = len(cost)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    kinds = [clarabel.NonnegativeConeT(cones.linear)]
    kinds += [clarabel.SecondOrderConeT(3)] * cones.triples
    none = csc_matrix((width, width))
    problem = clarabel.DefaultSolver(none, cost, rows.matrix(width), limits, kinds, settings)
    found = problem.solve()
    return _checked(np.array(found.x), str(found.status), ("Solved", "AlmostSolved"))


def _ecos(cost: Floats, rows: Triplets, limits: Floats, cones: Cones) -> Floats:
    import ecos

    shape = {"l": cones.linear, "q": [3] * cones.triples}
    found = ecos.solve(cost, rows.matrix(len(cost)), limits, shape, verbose=False)
    optimal, nearly = "0", "10"
    return _checked(np.array(found["x"]), str(found["info"]["exitFlag"]), (optimal, nearly))


def _checked(found: Floats, status: str, good: tuple[str, ...]) -> Floats:
    if status not in good or not np.isfinite(found).all():
        raise ClusterError(f"the solver gave up: {status}")
    return found


CONIC: Mapping[str, Conic] = {"clarabel": _clarabel, "ecos": _ecos}
SOLVERS = ("clarabel", "ecos", "highs")


def highs(levels: Floats, scale: Floats, gpus: Floats) -> tuple[Floats, Floats]:
    """Shares x (M, N) that maximise min_i levels[i] . x[i], and how much each job binds (M,).

    The shares are a vertex of the optimal face; the second are the dual prices, which sum to one.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    jobs, types = levels.shape
    each = np.arange(jobs)
    rows = Triplets()
    rows.add(each, np.zeros(jobs, dtype=np.int64), np.ones(jobs))
    for j in range(types):
        rows.add(each, 1 + j * jobs + each, -levels[:, j])
    rows.grow(jobs)
    for j in range(types):
        rows.add(np.full(jobs, j), 1 + j * jobs + each, scale)
        rows.add(types + each, 1 + j * jobs + each, np.ones(jobs))
    rows.grow(types + jobs)
    limits = np.concatenate([np.zeros(jobs), gpus, np.ones(jobs)])
    cost = np.zeros(1 + jobs * types)
    cost[0] = -1.0
    matrix = csr_matrix(rows.matrix(len(cost)))
    found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs")
    if found.status != 0:
        raise ClusterError(f"the solver gave up: {found.message}")
    return found.x[1:].reshape(types, jobs).T, -found.ineqlin.marginals[:jobs]


def best_solver(asked: str = "auto") -> str:
    """`asked`, or the best of the solvers that are installed.

    Raises:
        UserError: there is no such solver, or it is not installed.
    """
    if asked != "auto" and asked not in SOLVERS:
        raise UserError(f"no solver {asked!r}", hint=f"one of auto, {', '.join(SOLVERS)}")
    if find_spec("scipy") is None:
        raise UserError("Gavel's programs need a solver", hint="pip install 'wattherd[lp]'")
    if asked == "auto":
        return "highs" if find_spec("clarabel") is None else "clarabel"
    if asked in CONIC and find_spec(asked) is None:
        extra = "'wattherd[lp]'" if asked == "clarabel" else asked
        raise UserError(f"solver {asked} is not installed", hint=f"pip install {extra}")
    return asked
