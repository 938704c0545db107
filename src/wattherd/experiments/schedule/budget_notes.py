"""What a budget means for the jobs that wait: said when it is set, and when a simulation begins."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from wattherd.engine.core.core import Core
from wattherd.engine.core.feasibility import LeastPower, Limits, PowerShortage
from wattherd.engine.power.account import PowerAccount
from wattherd.model.event import BudgetChanged, Event, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.model.reason import ReasonCode
from wattherd.units import counted, show_exact_watts


def notes_at_work(core: Core, named: Container[str]) -> list[str]:
    """Of a core at work: budgets in force below what idle devices draw, jobs that never fit.

    Jobs whose ids are not in `named` stay without a name.
    """
    judged = [(job.id, why) for job, why in core.set_aside()]
    never = [(one, why) for one, why in judged if why.code is ReasonCode.NEVER_FITS]
    rises = len(judged) - len(never)
    waiting = sum(not job.wanted and not job.active for job in core.jobs.values())
    notes = [_dark(one) for one in core.below_idle()]
    lacks = [
        (one if one in named else "another's", why.asked or 0.0, why.available or 0.0, why.unit)
        for one, why in never
    ]
    notes += _never(lacks, waiting, "waiting", "no stated or announced budget is as high")
    if rises:
        notes.append(f"{counted(rises, 'job')} will wait until an announced higher budget begins")
    return notes


def notes_before(core: Core, given: Iterable[Event]) -> list[str]:
    """Of a simulation that has not begun, on `core`: jobs that no budget of `given` lets run."""
    events = list(given)
    changes = sorted((e for e in events if isinstance(e, BudgetChanged)), key=lambda e: e.at_s)
    if core.config.tree is None and not changes:
        return []
    least = LeastPower(core.watts, core.config.cluster)
    levels = list(dict.fromkeys(_levels(changes, core.watts)))
    specs = [event.job for event in events if isinstance(event, JobSubmitted)]
    lacks = [one for spec in specs if (one := _lacks(spec, levels, least)) is not None]
    always_dark = [
        one
        for one in least.below_idle(levels[0])
        if all(one.domain in {other.domain for other in least.below_idle(at)} for at in levels)
    ]
    notes = [_dark(one) for one in always_dark]
    return notes + _never(lacks, len(specs), "", "no budget of this run is as high")


def _levels(changes: Sequence[BudgetChanged], account: PowerAccount) -> Iterator[Limits]:
    """The budgets from each time on, in milliwatts."""
    said: dict[str, float | None] = {"": None}
    said |= {domain.name: domain.budget_w for domain in account.feeds.tree.domains}
    for at, change in enumerate(changes):
        if at == 0 and change.at_s > 0:
            yield tuple(account.limits_mw(said))
        said[change.domain] = change.budget_w
        if at + 1 == len(changes) or changes[at + 1].at_s > change.at_s:
            yield tuple(account.limits_mw(said))
    if not changes:
        yield tuple(account.limits_mw(said))


_Lack = tuple[str, float, float, str]
"""A job, the least watts it needs, the most there are, and of what."""


def _lacks(spec: JobSpec, levels: Sequence[Limits], least: LeastPower) -> _Lack | None:
    found = []
    for limits in levels:
        shortage = least.shortage(spec, limits)
        if shortage is None:
            return None
        found.append(shortage)
    best = min(found, key=lambda one: one.asked_w - one.limit_w)
    return spec.id, best.asked_w, best.limit_w, f"W at {best.domain}" if best.domain else "W"


def _dark(one: PowerShortage) -> str:
    of = f" of {one.domain}" if one.domain else ""
    return (
        f"the budget{of} of {show_exact_watts(one.limit_w)} is below the "
        f"{show_exact_watts(one.idle_w)} that its nodes draw idle: nothing can start there"
    )


def _never(lacks: Sequence[_Lack], total: int, what: str, why: str) -> list[str]:
    if not lacks:
        return []
    least, most = min(lacks, key=lambda one: one[1]), max(lacks, key=lambda one: one[1])
    of = f"{len(lacks)} of {counted(total, f'{what} job'.strip())} can never run"
    needs = f"{least[0]} needs at least {show_exact_watts(least[1])}{least[3].removeprefix('W')}"
    if len(lacks) > 1:
        needs = f"the least, {needs}; the most, {most[0]}, {show_exact_watts(most[1])}"
    return [
        f"{of}: {needs}; the budget is {show_exact_watts(max(one[2] for one in lacks))} ({why})"
    ]
