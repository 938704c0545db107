"""What becomes of watts that somebody proposes: the guard's projection onto what the budgets allow.

Proposals may come from anywhere, a learned policy for one, and may be anything, even no numbers.
What is above a job's least is cut by the same part in every domain that would be exceeded,
innermost first; then every job gets its highest measured point within its watts, and what that
leaves over goes to those whose proposals were cut most.
"""

from __future__ import annotations

import numpy as np

from wattherd.policy.power.choices import Floats, Ints, PowerChoices
from wattherd.policy.power.limits import SLACK_W, DomainRoom


def guarded(menu: PowerChoices, limits: DomainRoom, proposed_w: Floats) -> Ints:
    """The row of each job (J,) for proposals (J,) in watts; NaN stands for the least.

    Raises:
        UserError: the least choices do not fit.
    """
    least_w, most_w = menu.watts[menu.least], menu.watts[menu.most]
    wanted_w = np.clip(np.where(np.isnan(proposed_w), least_w, proposed_w), least_w, most_w)
    room_w = limits.left_w(least_w)
    allowed_w = least_w + cut(wanted_w - least_w, room_w, limits)
    rows = menu.highest(menu.watts <= allowed_w[menu.job] + SLACK_W)
    return _raised(menu, limits, rows, wanted_w)


def cut(above_w: Floats, room_w: Floats, limits: DomainRoom) -> Floats:
    """Watts above the least (J,), cut to the rooms (D,) above it by one part per domain."""
    above_w = above_w.copy()
    ranks = limits.ranks
    for rank in range(int(ranks.max(initial=-1)) + 1):
        load_w = limits.load_w(above_w)
        part = np.where(ranks == rank, kept_part(load_w, room_w), 1.0)
        above_w *= np.append(part, 1.0)[limits.path].min(axis=1)
    return above_w


def kept_part(load_w: Floats, room_w: Floats) -> Floats:
    """The part of loads that their rooms hold, at most 1."""
    return np.minimum(room_w / np.maximum(load_w, SLACK_W), 1.0)


def _raised(menu: PowerChoices, limits: DomainRoom, rows: Ints, wanted_w: Floats) -> Ints:
    """One more choice for each job where it fits, those first that lack most of their wish."""
    rows = rows.copy()
    room_w = limits.room_w - limits.load_w(menu.watts[rows])
    lack_w = wanted_w - menu.watts[rows]
    for job in np.argsort(-lack_w, kind="stable").tolist():
        if rows[job] == menu.most[job]:
            continue
        more_w = menu.watts[rows[job] + 1] - menu.watts[rows[job]]
        above = limits.path[job] >= 0
        domains, load_w = limits.path[job][above], more_w * limits.scale[job][above]
        if lack_w[job] > SLACK_W and bool((load_w <= room_w[domains]).all()):
            rows[job] += 1
            room_w[domains] -= load_w
    return rows
