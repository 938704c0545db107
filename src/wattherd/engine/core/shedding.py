"""What gives up its devices when the budget no longer carries the least watts of what is planned.

Caps go down first, at no cost to who runs where (`engine.power.caps`); this is for what is left.
Classes of priority give way from the lowest up. Within a class elastic jobs first become narrower,
where that is allowed, and only then are jobs stopped, the newest first: it has the least work to
lose, and the order does not depend on what a planner thinks of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.jobs.narrowing import narrower
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.model.reason import StopReason


# Before the planner and not by it: a planner may be slow, may be asked only once a round, or may
# think well of a job that must go. What a budget demands is no matter of taste.
def shed(
    draft: GuardedDraft,
    jobs: Iterable[JobRecord],
    watts: PowerAccount,
    now_s: float,
    *,
    narrow: bool,
) -> list[JobRecord]:
    """Narrow, then stop the least important of `jobs`, until the plan is within every budget.

    Returns the jobs that were stopped.
    """
    # The plan at everybody's least watts is judged, not the draw: what lower caps can mend must not
    # cost anybody its devices. Caps follow in the same event (`JobCaps.share_out`).
    if not draft.over_budget():
        return []
    planned = [job for job in jobs if job.wanted]
    # Lowest priority first, then the newest. By submission number, which never ties.
    planned.sort(key=lambda job: (job.spec.priority, -job.number))
    stopped: list[JobRecord] = []
    for _, alike in groupby(planned, key=lambda job: job.spec.priority):
        group = list(alike)
        for job in group if narrow else ():
            _narrow(job, draft)
        stopped += [job for job in group if _stopped(job, draft, watts, now_s)]
    return stopped


# Until the plan fits or nothing narrower is left: each width is asked of the guard, as a planner's
# would be.
def _narrow(job: JobRecord, draft: GuardedDraft) -> None:
    """Take as many tasks from an elastic job as it takes for the plan to fit, if that does."""
    for shares in narrower(job):
        if not draft.over_budget() or draft.start(job, shares) is None:
            return


def _stopped(job: JobRecord, draft: GuardedDraft, watts: PowerAccount, now_s: float) -> bool:
    """Stop a job if the plan still needs too much; where domains have budgets, if that helps."""
    # Asked of the domains above this job: to stop a job in another branch would help nobody. So a
    # branch that is over stops its own jobs, one after the other, until it fits.
    if not watts.overloaded(job):
        return False
    wanted = job.wanted
    draft.stop(job, StopReason.BUDGET_CUT)
    draft.wait(job, watts.cut(job, wanted, now_s))
    return True
