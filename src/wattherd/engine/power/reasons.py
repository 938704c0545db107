"""Why a job must wait for watts: there are too few of them now, or there soon will be."""

from __future__ import annotations

from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.budgets import BudgetFall
from wattherd.engine.power.feeds import NW
from wattherd.engine.power.ramp import Refusal
from wattherd.model.reason import Reason, ReasonCode


def too_little(asked_nw: int, used_nw: int, limit_nw: int, at: str, now_s: float) -> Reason:
    """The least that a job needs is more than the plan's other jobs leave of a budget.

    Of a single budget people are told what is above idling, since all of it is for jobs; of a
    domain `at` they are told what it carries, since that is what its meter reads.
    """
    room_nw = max(limit_nw - used_nw, 0)
    budget_w = limit_nw / NW
    return Reason(
        code=ReasonCode.WAITING_FOR_POWER,
        since_s=now_s,
        asked=asked_nw / NW,
        in_use=used_nw / NW if at else None,
        available=room_nw / NW,
        unit=f"W at {at}" if at else "W above idle",
        unblocks=f"the budget of {at} is {budget_w:g} W" if at else f"the budget is {budget_w:g} W",
    )


# A fall that comes soon turns away newcomers only. Who has a plan may keep and change it: the fall
# itself will say who has to go, once, when it is due.
def new_to_plan(job: JobRecord) -> bool:
    """Whether a job neither runs nor was planned before."""
    return not job.allocations and not job.wanted


def too_late(need_nw: int, room_nw: int, fall: BudgetFall, now_s: float, at: str = "") -> Reason:
    """Why a job must not be started before a fall; nanowatts beside the rest of the plan."""
    name = f"the budget of {at}" if at else "the budget"
    return Reason(
        # A code of its own beside WAITING_FOR_POWER: there are watts for it now, but it would be
        # stopped again before long.
        code=ReasonCode.WAITING_FOR_BUDGET_RISE,
        since_s=now_s,
        asked=need_nw / NW,
        available=max(room_nw, 0) / NW,
        unit=f"W above idle at {at}" if at else "W above idle",
        unblocks=f"{name} falls to {fall.budget_w:g} W",
        due_s=fall.begins_s,
    )


def too_steep(refusal: Refusal, since_s: float) -> Reason:
    """Why a start waits for a ramp: what it adds at once is more than may be added now."""
    where = refusal.domain or "the site"
    return Reason(
        code=ReasonCode.WAITING_FOR_RAMP,
        since_s=since_s,
        asked=round(refusal.asked_w, 3),
        available=round(refusal.credit_w, 3),
        unit="W at once",
        unblocks=f"starts are spread to {refusal.rate_w_s:g} W/s on {where},",
        due_s=refusal.due_s,
    )
