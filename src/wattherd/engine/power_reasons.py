"""Why a job must wait for watts: there are too few of them now, or there soon will be."""

from __future__ import annotations

from wattherd.engine.budgets import Fall
from wattherd.engine.ledger import JobRecord
from wattherd.engine.ramp import Refusal
from wattherd.model.reason import Reason, ReasonCode


def too_little(need_mw: int, room_mw: int, budget_w: float, now_s: float) -> Reason:
    """The least that a job needs is more than the plan leaves of the site's budget."""
    return Reason(
        code=ReasonCode.WAITING_FOR_POWER,
        since_s=now_s,
        asked=need_mw / 1000,
        available=max(room_mw, 0) / 1000,
        unit="W above idle",
        unblocks=f"the budget is {budget_w:g} W",
    )


def new_to_plan(job: JobRecord) -> bool:
    """Whether a job neither runs nor was planned before."""
    return not job.allocations and not job.wanted


def too_late(need_mw: float, room_mw: float, fall: Fall, now_s: float, at: str = "") -> Reason:
    """Why a job must not be started before a fall; milliwatts beside the rest of the plan."""
    name = f"the budget of {at}" if at else "the budget"
    return Reason(
        code=ReasonCode.WAITING_FOR_BUDGET_RISE,
        since_s=now_s,
        asked=need_mw / 1000,
        available=max(room_mw, 0) / 1000,
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
