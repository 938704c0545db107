"""Schedulers that serve jobs in an order, by the names users know, for any way of running jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wattherd.errors import UserError
from wattherd.estimate.gittins import gittins_index
from wattherd.estimate.job_work import FREE, RestartCost, Work, as_submitted
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    SchedulerContext,
    SchedulerOf,
)
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.node_choice import CountTrial, Place, anywhere, consolidated
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.priorities import (
    Deadline,
    Fifo,
    Gittins,
    GittinsOfPast,
    LearnedOrder,
    LeastAttained,
    Order,
    Priority,
    Shortest,
    ShortestRemaining,
    SmallestRemainingService,
)
from wattherd.policy.schedule.repack import RepackTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedTerms:
    """What planners know of jobs in a setting, and how they place them there.

    With `anew` a preemptive planner packs the whole cluster anew in every cycle, with `counted`
    instead of it where the order is by service received. Who has waited `starve_s` comes before
    all others; as published (None) such orders may starve jobs. With `whole_seconds` a planner
    wakes at whole seconds of service; without `wakes` it plans in the rounds of the core only.
    """

    work: Work = as_submitted
    cost: RestartCost = FREE
    place: Place = consolidated
    anew: Callable[[Sequence[int]], RepackTrial] | None = None
    counted: bool = False
    starve_s: float | None = None
    whole_seconds: bool = False
    wakes: bool = True


TermsOf = Callable[[SchedulerContext], OrderedTerms]


def ordered(terms_of: TermsOf) -> dict[str, SchedulerOf]:
    """All of them, on the terms of one setting."""
    return {name: partial(_build, make, terms_of) for name, make in MAKERS.items()}


def by_speed(terms_of: TermsOf) -> dict[str, SchedulerOf]:
    """Those that let who runs go on, each job on the GPU model on which it is fastest.

    No orders that reckon with what is left of running jobs: they take it as time at one speed.
    """
    return {
        f"{name}@fastest": partial(_build_by_speed, MAKERS[name], terms_of) for name in BY_SPEED
    }


def _build_by_speed(
    make: Callable[[OrderedTerms, SchedulerContext], Ordered],
    terms_of: TermsOf,
    given: SchedulerContext,
) -> BuiltScheduler:
    planner = replace(make(terms_of(given), given), fastest=True)
    return BuiltScheduler(planner=planner, rigid=True)


def _build(
    make: Callable[[OrderedTerms, SchedulerContext], Ordered],
    terms_of: TermsOf,
    given: SchedulerContext,
) -> BuiltScheduler:
    return BuiltScheduler(planner=make(terms_of(given), given), rigid=True)


def in_turn(terms: OrderedTerms, order: Order, discipline: Discipline) -> Ordered:
    """Who has started runs to its end."""
    return Ordered(
        rules=RankingRules(order=order, work=terms.work, cost=terms.cost, starve_s=terms.starve_s),
        place=terms.place,
        discipline=discipline,
        preemptive=False,
        wakes=terms.wakes,
    )


def preemptive(terms: OrderedTerms, order: Order, learned: LearnedOrder | None = None) -> Ordered:
    """Who comes earlier in the order takes from those who come later."""
    by_service = bool(order.thresholds_gpu_s)
    rules = RankingRules(
        order=order,
        work=terms.work,
        cost=terms.cost,
        starve_s=terms.starve_s,
        whole_seconds=terms.whole_seconds and by_service,
        learned=learned,
    )
    counted = terms.counted and by_service
    return Ordered(
        rules=rules,
        place=anywhere if counted else terms.place,
        anew=CountTrial if counted else terms.anew,
        wakes=terms.wakes,
    )


def _gittins(terms: OrderedTerms, given: SchedulerContext) -> Ordered:
    """The services from which chances are told are those of the workload itself."""
    jobs = [(terms.work(spec), spec.gpus) for spec in given.jobs.specs]
    services = [work_s * gpus for work_s, gpus in jobs if work_s is not None and gpus]
    if not services:
        hint = "use tiresias, which needs no durations"
        raise UserError("needs jobs of known duration", field="--policy", hint=hint)
    return preemptive(terms, Gittins(index=gittins_index(services)))


def gittins_of_past(given: SchedulerContext) -> BuiltScheduler:
    """Chances are told by jobs that have ended; `tiresias` while too few have."""
    del given
    planner = preemptive(OrderedTerms(), LeastAttained(), GittinsOfPast())
    return BuiltScheduler(planner=planner, rigid=True)


def _preemptive(order: Order) -> Callable[[OrderedTerms, SchedulerContext], Ordered]:
    return lambda terms, _: preemptive(terms, order)


def _in_turn(
    order: Order, discipline: Discipline
) -> Callable[[OrderedTerms, SchedulerContext], Ordered]:
    return lambda terms, _: in_turn(terms, order, discipline)


MAKERS: Mapping[str, Callable[[OrderedTerms, SchedulerContext], Ordered]] = {
    "fifo": _in_turn(Fifo(), Discipline.STRICT),
    "fifo-first-fit": _in_turn(Fifo(), Discipline.FIRST_FIT),
    "fifo-backfill": _in_turn(Fifo(), Discipline.BACKFILL),
    "priority-backfill": _in_turn(Priority(), Discipline.BACKFILL),
    "sjf": _in_turn(Shortest(), Discipline.FIRST_FIT),
    "priority": _preemptive(Priority()),
    "deadline": _preemptive(Deadline()),
    "srtf": _preemptive(ShortestRemaining()),
    "srsf": _preemptive(SmallestRemainingService()),
    "tiresias": _preemptive(LeastAttained()),
    "tiresias-gittins": _gittins,
}
"""`fifo` lets nobody pass, `fifo-first-fit` whoever fits, `fifo-backfill` whoever delays nobody."""
BY_SPEED = ("fifo", "fifo-first-fit", "sjf")
"""Those of which there is one that sends each job to the GPU model on which it is fastest."""
IN_TURN = frozenset({
    "fifo", "fifo-first-fit", "fifo-backfill", "priority-backfill", "sjf",
    *(f"{name}@fastest" for name in BY_SPEED),
})  # fmt: skip
"""Who has started runs to its end: one of these can take over from another at work."""
