"""What gives up its devices when the budget no longer carries the least watts of what is planned.

Caps go down first, at no cost to who runs where (`engine.power.caps`); this is for what is left.
Classes of priority give way from the lowest up. Within a class elastic jobs first become narrower,
where that is allowed, and only then are jobs stopped: those that can go on later before those that
a stop ends for good, then the newest, which has the least work to lose. The order does not depend
on what a planner thinks of them.

As few are stopped as will do: whoever was in turn, but is not needed once a larger one has gone,
stays, and so the most important one that is stopped matters as little as can be. Journals of the
time before that rule are replayed without it (`RULES` in `core.config`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.jobs.narrowing import narrower
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.model.allocation import Allocation
from wattherd.model.reason import Reason, StopReason


# Before the planner and not by it: a planner may be slow, may be asked only once a round, or may
# think well of a job that must go. What a budget demands is no matter of taste.
def shed(
    draft: GuardedDraft,
    jobs: Iterable[JobRecord],
    watts: PowerAccount,
    now_s: float,
    config: CoreConfig,
) -> list[JobRecord]:
    """Narrow, then stop the least important of `jobs`, until the plan is within every budget.

    `config` says who may become narrower, who can go on after a stop, and whether those stay that
    need not go. Returns the jobs that were stopped.
    """
    # The plan at everybody's least watts is judged, not the draw: what lower caps can mend must not
    # cost anybody its devices. Caps follow in the same event (`JobCaps.share_out`).
    if not draft.over_budget():
        return []
    planned = [job for job in jobs if job.wanted]
    order = watts.plan_order(one for job in planned for one in job.wanted)
    # By submission number at last, which never ties.
    planned.sort(key=lambda job: (job.spec.priority, _is_final(job, config), -job.number))
    stopped: list[tuple[JobRecord, tuple[Allocation, ...], Reason]] = []
    for _, alike in groupby(planned, key=lambda job: job.spec.priority):
        group = list(alike)
        for job in group if config.narrow else ():
            _narrow(job, draft)
        for job in group:
            wanted = job.wanted
            why = _stopped(job, draft, watts, now_s)
            if why is not None:
                stopped.append((job, wanted, why))
    if config.spares:
        # The most important first: what is left of the watts is theirs before it is anybody's.
        stopped = [one for one in reversed(stopped) if not draft.keep(one[0], one[1])][::-1]
        watts.restore_plan_order(order)  # who stays was never gone
    for job, _, why in stopped:
        draft.wait(job, why)
    return [job for job, _, _ in stopped]


def _is_final(job: JobRecord, config: CoreConfig) -> bool:
    return config.returns is not None and not config.returns(job.id)


# Until the plan fits or nothing narrower is left: each width is asked of the guard, as a planner's
# would be.
def _narrow(job: JobRecord, draft: GuardedDraft) -> None:
    """Take as many tasks from an elastic job as it takes for the plan to fit, if that does."""
    for shares in narrower(job):
        if not draft.over_budget() or draft.start(job, shares) is None:
            return


def _stopped(
    job: JobRecord, draft: GuardedDraft, watts: PowerAccount, now_s: float
) -> Reason | None:
    """Stop a job if the plan still needs too much; why, if it was stopped."""
    # Asked of the domains above this job: to stop a job in another branch would help nobody. So a
    # branch that is over stops its own jobs, one after the other, until it fits.
    if not watts.overloaded(job):
        return None
    wanted = job.wanted
    draft.stop(job, StopReason.BUDGET_CUT)
    return watts.cut(job, wanted, now_s)
