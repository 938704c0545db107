"""From the linear optimum to one measured point per job: whole pieces, then whatever still fits.

At most one piece per saturated domain is cut by the linear optimum; what its rounding leaves over
goes to single steps, the most valuable first.
"""

from __future__ import annotations

import numpy as np

from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices
from wattherd.policy.power.limits import DomainRoom
from wattherd.policy.power.tree_filling import WHOLE_W, TreeFilling

_AT_ONCE = 128
"""Candidates that are tried one by one before the rest is sifted again."""


def whole(filling: TreeFilling, given: Floats) -> Ints:
    """The row of each job (J,) up to which its pieces were served whole."""
    pieces = filling.pieces
    row = filling.menu.least.copy()
    served = pieces.watts - given <= WHOLE_W
    # Pieces of a job are served in their order, so that the last one whole is the highest.
    np.maximum.at(row, pieces.job[served], pieces.target[served])
    return row


def stepped(menu: PowerChoices, limits: DomainRoom, row: Ints) -> Ints:
    """Rows (J,) after all single steps of jobs that still fit, the most valuable first.

    A job steps at most once: to the highest choice that fits, above which none will fit later.
    """
    row, done = row.copy(), np.zeros(menu.jobs, dtype=np.bool_)
    room_w = limits.room_w - limits.load_w(menu.watts[row])
    still = np.flatnonzero(np.arange(len(menu.job)) > row[menu.job])
    still = still[_fits(menu, limits, still, (row, room_w, done))]
    gain = menu.value[still] - menu.value[row[menu.job[still]]]
    still = still[np.lexsort((menu.job[still], -gain))]
    while len(still):
        _try_in_turn(menu, limits, still[:_AT_ONCE], (row, room_w, done))
        still = still[_AT_ONCE:]
        still = still[_fits(menu, limits, still, (row, room_w, done))]
    return row


def _fits(
    menu: PowerChoices, limits: DomainRoom, rows: Ints, state: tuple[Ints, Floats, Bools]
) -> Bools:
    """Which of `rows` can still be stepped to."""
    row, room_w, done = state
    owner = menu.job[rows]
    more_w = menu.watts[rows] - menu.watts[row[owner]]
    return np.asarray((more_w <= limits.headroom_w(room_w)[owner]) & ~done[owner])


def _try_in_turn(
    menu: PowerChoices, limits: DomainRoom, rows: Ints, state: tuple[Ints, Floats, Bools]
) -> None:
    """Take what fits of `rows`, which are sorted by gain; `state`: rows, rooms, who has stepped."""
    row, room_w, done = state
    owner = menu.job[rows]
    more_w = menu.watts[rows] - menu.watts[row[owner]]
    load_w = (limits.scale[owner] * more_w[:, None]).tolist()
    # Plain lists: single entries of arrays are slow. The last room is that of no domain.
    rooms = [*room_w.tolist(), float("inf")]
    stepped: dict[int, int] = {}
    for at, job, domains, loads in zip(
        rows.tolist(), owner.tolist(), limits.path[owner].tolist(), load_w, strict=True
    ):
        pairs = list(zip(domains, loads, strict=True))
        if job in stepped or any(load > rooms[domain] for domain, load in pairs):
            continue
        stepped[job] = at
        for domain, load in pairs:
            rooms[domain] -= load
    jobs = list(stepped)
    row[jobs], done[jobs], room_w[:] = list(stepped.values()), True, rooms[:-1]
