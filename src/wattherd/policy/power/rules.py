"""Ways to choose a measured point per job, by name: the optimum, fair ones, and baselines.

All of them keep every budget of a tree, and every job between its floor and its highest point.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import CurveChoice, JobCurve
from wattherd.policy.power.allocation import best_rows
from wattherd.policy.power.choices import Bools, Floats, Ints, PowerChoices, menu_of
from wattherd.policy.power.limits import SLACK_W, DomainRoom
from wattherd.policy.power.market import log_welfare_menu

Chosen = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceProblem:
    """Jobs with their choices (ascending), and the budgets above them; `menu` holds them flat."""

    curves: Sequence[JobCurve]
    choices: Sequence[Sequence[CurveChoice]]
    limits: DomainRoom
    menu: PowerChoices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the choices once."""
        object.__setattr__(self, "menu", menu_of(self.choices))

    @property
    def weight(self) -> Floats:
        """Weights of the jobs (J,)."""
        return np.array([curve.weight for curve in self.curves], dtype=np.float64)

    @property
    def priority(self) -> Ints:
        """Priorities of the jobs (J,), higher ones first."""
        return np.array([curve.priority for curve in self.curves], dtype=np.int64)

    def chosen(self, rows: Ints) -> Chosen:
        """Rows of the menu as indices of choices."""
        chosen: Chosen = np.subtract(rows, self.menu.least).tolist()
        return chosen


def fits(question: ChoiceProblem, chosen: Sequence[int]) -> bool:
    """Whether every domain holds what is below it."""
    return _fits(question, question.menu.least + np.asarray(chosen, dtype=np.int64))


def _fits(question: ChoiceProblem, rows: Ints) -> bool:
    limits = question.limits
    return bool((limits.load_w(question.menu.watts[rows]) <= limits.room_w + SLACK_W).all())


def water_filling(question: ChoiceProblem) -> Chosen:
    """The most of weight x relative rate."""
    return question.chosen(best_rows(question.menu, question.limits))


def uniform(question: ChoiceProblem) -> Chosen:
    """The highest cap that all jobs can have alike."""
    menu = question.menu
    # A pause has no cap and is always allowed: any cap is above it.
    caps = np.array(
        [one.point.cap_w if one.point else 0.0 for some in question.choices for one in some]
    )
    return _last_that_fits(
        question, np.unique(caps).tolist(), lambda cap: menu.highest(caps <= cap)
    )


def proportional(question: ChoiceProblem) -> Chosen:
    """To every job the same part of its range of watts."""
    menu = question.menu
    low_w = menu.watts[menu.least][menu.job]
    range_w = menu.watts[menu.most][menu.job] - low_w

    def at_part(part: float) -> Ints:
        return menu.highest(menu.watts <= low_w + part * range_w + SLACK_W)

    return _last_that_fits(question, [step / 1000 for step in range(1001)], at_part)


def _last_that_fits(
    question: ChoiceProblem, levels: Sequence[float], at: Callable[[float], Ints]
) -> Chosen:
    """Choices at the highest level that fits (levels ascend); the least ones where none does."""
    low, high = 0, len(levels)
    rows = question.menu.least
    while low < high:
        middle = (low + high) // 2
        tried = at(levels[middle])
        if _fits(question, tried):
            low, rows = middle + 1, tried
        else:
            high = middle
    return question.chosen(rows)


def priority(question: ChoiceProblem) -> Chosen:
    """Full power in order of priority and weight while it lasts, the least to the rest."""
    menu, limits, rows = question.menu, question.limits, question.menu.least.copy()
    room_w = limits.room_w - limits.load_w(menu.watts[rows])
    for job in np.lexsort((-question.weight, -question.priority)).tolist():
        below = limits.path[job] >= 0
        above, scale = limits.path[job][below], limits.scale[job][below]
        headroom_w = min((room_w[above] / scale).tolist(), default=np.inf)
        more_w = menu.watts[menu.first[job] : menu.first[job + 1]] - menu.watts[menu.first[job]]
        step = max(int(np.searchsorted(more_w, headroom_w, side="right")) - 1, 0)
        rows[job] += step
        room_w[above] -= more_w[step] * scale
    return question.chosen(rows)


def tiers(question: ChoiceProblem) -> Chosen:
    """Water-filling for the highest priority first, with the least to all others; then the next.

    Lexicographic: no gain of lower tiers makes up for any loss of a higher one. Weights count
    within a tier.
    """
    menu, limits, rows = question.menu, question.limits, question.menu.least.copy()
    for tier in _tiers(question.priority):
        others_w = np.where(tier, 0.0, menu.watts[rows])
        left = limits.of_jobs(tier, limits.room_w - limits.load_w(others_w))
        mine, own_rows = menu.only(tier[menu.job])
        rows[tier] = own_rows[best_rows(mine, left)]
    return question.chosen(rows)


def _tiers(priorities: Ints) -> Iterator[Bools]:
    """Who belongs to each tier (J,), the highest first."""
    for level in np.unique(priorities)[::-1]:
        yield priorities == level


def max_min(question: ChoiceProblem) -> Chosen:
    """The highest least relative rate, then the second least, and so on; weights do not count."""
    menu = question.menu
    rate = menu.value / question.weight[menu.job]
    return question.chosen(leximin_rows(menu.valued(rate), question.limits))


def nash(question: ChoiceProblem) -> Chosen:
    """The greatest product of relative rates, weights as exponents (Nash welfare).

    A paused job would make the product zero, so that none is.

    Raises:
        UserError: the least caps of all jobs do not fit.
    """
    logs, rows = log_welfare_menu(question.menu, question.weight)
    must_run(question.limits, logs, "nash")
    return question.chosen(rows[best_rows(logs, question.limits)])


def must_run(limits: DomainRoom, menu: PowerChoices, policy: str) -> None:
    """Refuse where not all jobs can run, for policies that pause nobody.

    Raises:
        UserError: the least choices do not fit.
    """
    try:
        limits.left_w(menu.watts[menu.least])
    except UserError as problem:
        hint = f"{policy} pauses nobody: raise it, run fewer jobs, or take another policy"
        short = problem.problem
        raise UserError(short, where=problem.where, field=problem.field, hint=hint) from None


RULES: Mapping[str, Callable[[ChoiceProblem], Chosen]] = {
    "water-filling": water_filling,
    "tiers": tiers,
    "nash": nash,
    "max-min": max_min,
    "proportional": proportional,
    "uniform": uniform,
    "priority": priority,
    "priority-greedy": priority,
}
"""`priority-greedy` is `priority` where the least is nothing: those that come last are paused."""

PAUSING = frozenset({"priority-greedy"})
"""Rules that pause jobs whether or not pausing was asked for."""


def leximin_rows(menu: PowerChoices, limits: DomainRoom) -> Ints:
    """The row of each job (J,), the least rate as high as can be, then the next least.

    `menu.value` are relative rates. Progressive filling: whoever has the least rate is raised by
    one choice, until nothing above it fits; then it stays, and the next least is raised. Whoever is
    served stands at its cheapest choice that is no worse than the job served now; so a job that
    cannot be raised now cannot be raised in any allocation that serves all others as well, and the
    result is the leximin optimum (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2, for
    choices instead of flows). Only where several jobs' points have exactly the same rate is that
    not proven; then the cheaper step goes first.

    Raises:
        UserError: the least choices do not fit.
    """
    row = menu.least.tolist()
    last, watts, rate = menu.most.tolist(), menu.watts.tolist(), menu.value.tolist()
    rooms = [*limits.left_w(menu.watts[menu.least]).tolist(), float("inf")]
    above = [
        list(zip(domains, scales, strict=True))
        for domains, scales in zip(limits.path.tolist(), limits.scale.tolist(), strict=True)
    ]

    def waiting(job: int) -> tuple[float, float, int]:
        return rate[row[job]], watts[row[job] + 1] - watts[row[job]], job

    queue = [waiting(job) for job in range(menu.jobs) if row[job] < last[job]]
    heapq.heapify(queue)
    while queue:
        _, more_w, job = heapq.heappop(queue)
        if any(more_w * scale > rooms[domain] for domain, scale in above[job]):
            continue
        for domain, scale in above[job]:
            rooms[domain] -= more_w * scale
        row[job] += 1
        if row[job] < last[job]:
            heapq.heappush(queue, waiting(job))
    return np.array(row, dtype=np.int64)
