"""Pieces of concave hulls: the common ground of water-filling, its bound and its rounding.

Serving the steepest piece first is optimal for a sum of concave functions under one budget, and
under the nested budgets of a tree as well: what fits into them is a polymatroid (Edmonds, 1970), on
which the greedy algorithm is optimal. Losses bend that a little: a watt costs more at the root the
more is lost on its way, and pieces are served by worth per watt at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.measured_curve import Choice
from wattherd.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SLACK_W = 1e-6
"""Rounding of sums of watts."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """All pieces of all jobs, steepest first (P,): whose, watts, worth, and the choice at the end.

    `start_w` and `start_value` (J,) are those of the least choices.
    """

    job: Ints
    target: Ints
    watts: Floats
    worth: Floats
    start_w: Floats
    start_value: Floats


def hull(choices: Sequence[Choice]) -> list[int]:
    """Indices of the choices on the upper concave hull, by watts."""
    kept: list[int] = []
    for index, choice in enumerate(choices):
        while len(kept) > 1 and _below(choices[kept[-2]], choices[kept[-1]], choice):
            kept.pop()
        kept.append(index)
    return kept


def _below(one: Choice, two: Choice, three: Choice) -> bool:
    """Whether `two` lies on or below the line from `one` to `three`."""
    left = (two.value - one.value) * (three.watts - one.watts)
    return left <= (three.value - one.value) * (two.watts - one.watts)


def pieces_of(jobs: Sequence[Sequence[Choice]], price: Floats | None = None) -> Pieces:
    """The pieces of J jobs; `price` (J,) is what a job's watt costs at the root (default 1).

    Among equally steep pieces those of earlier jobs come first, and within a job lower ones.
    """
    rows = [
        (
            job,
            after,
            choices[after].watts - choices[at].watts,
            choices[after].value - choices[at].value,
        )
        for job, choices in enumerate(jobs)
        for at, after in _steps(hull(choices))
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    owner = table[:, 0].astype(np.int64)
    cost = table[:, 2] if price is None else table[:, 2] * price[owner]
    order = np.argsort(-table[:, 3] / cost, kind="stable")
    return Pieces(
        job=owner[order],
        target=table[order, 1].astype(np.int64),
        watts=table[order, 2],
        worth=table[order, 3],
        start_w=np.array([choices[0].watts for choices in jobs]),
        start_value=np.array([choices[0].value for choices in jobs]),
    )


def _steps(kept: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(kept))


@kernel
def fill(job, watts, path, scale, room, whole, given):  # type: ignore[no-untyped-def]
    """Serve pieces in order within `room` (D,) watts of each domain; `given` (P,) gets the parts.

    `path` (J, L) are the domains above a job, -1 where there are fewer, `scale` (J, L) what a watt
    of the job is there. With `whole` a piece is served all or not at all, and a job whose piece was
    not served gets no later one.
    """
    stopped = np.zeros(path.shape[0], dtype=np.bool_)
    for piece in range(job.shape[0]):
        owner = job[piece]
        if stopped[owner]:
            continue
        part = watts[piece]
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                part = min(part, room[domain] / scale[owner, level])
        if part < watts[piece]:
            stopped[owner] = True
            if whole or part <= 0.0:
                continue
        given[piece] = part
        for level in range(path.shape[1]):
            domain = path[owner, level]
            if domain >= 0:
                room[domain] -= part * scale[owner, level]
