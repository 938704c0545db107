"""What every job will hold once all orders are carried out, and what of that is still to be done.

Devices are booked on `planned`, least watts with the power account; planners change both through
a draft (`engine.core.draft`). Here is what happens to a plan without any planner: a job that is
cancelled, held or ended loses its part at once, so that the next plan can give it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wattherd.engine.cluster.capacity import Book
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord, may_run
from wattherd.engine.jobs.roster import Roster
from wattherd.engine.power.account import PowerAccount
from wattherd.model.reason import StopReason


# What stands between a planner's wish and the world. The books say what the plan gives; this says
# what is still to be done about it: runs to be stopped, jobs to be started once devices are free,
# stops that a ramp holds up. Nothing here asks whether a plan is good.
class Plan:
    """The plan in force: bookings, the jobs that planners may use, and jobs with orders to come."""

    def __init__(self, planned: Book, watts: PowerAccount) -> None:
        """Nothing is planned."""
        self.planned, self._watts = planned, watts
        self.roster = Roster()
        self._touched: dict[str, None] = {}
        """Jobs that changed since the last plan was carried out."""
        # Kept apart from the draft's stops, which live for one plan: a ramp may hold a stop up for
        # many.
        self._late_stops: dict[str, StopReason] = {}
        """Jobs that a plan stops, and that wait for a ramp: why."""
        # A dict for its order, and because a job that is planned anew keeps its place in the line:
        # else a job whose plan changes with every event would never be first for devices that come
        # free.
        self.starting: dict[str, None] = {}
        """Jobs with a plan that wait for their devices to be given back, oldest plan first."""

    def changed(self, job: JobRecord) -> None:
        """Remember that a job's orders, and whether planners may use it, are to be seen to."""
        self._touched[job.id] = None
        eligible = may_run(job)
        if eligible is not job.listed:
            self.roster.put(job, eligible=eligible)

    # Who takes a plan away outside of a planner's turn says so here: `roster.unplanned` is what
    # planners hear of it.
    def forget(self, job: JobRecord) -> None:
        """Take a job out of the plan."""
        if not job.wanted:
            return
        for allocation in job.wanted:
            self.planned.release(allocation)
        job.wanted = ()
        self._watts.plan(job)
        self.starting.pop(job.id, None)
        self._touched[job.id] = None
        self.roster.unplanned(job)

    def hide(self, job: JobRecord) -> None:
        """Take a waiting job from the plan and from planners, until `changed` shows it again."""
        self.forget(job)
        self.roster.put(job, eligible=False)

    def carry_out(
        self, draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """Note what a plan says of the jobs that it touched; runs that are to stop, and why.

        In order of submission, so that orders do not depend on how the planner came to them. Each
        is stopped, or put off, before the next is asked for: a ramp counts those before it.
        """
        # Only jobs that something happened to are looked at. Those that wait on, often nearly all,
        # ask for no orders.
        touched, self._touched = self._touched, {}
        # Sorted after the planner is done: two planners that make the same plan in different orders
        # give the same commands.
        beyond = sorted(self._beyond_waiting(touched | draft.touched, draft, jobs), key=_number)
        for job in beyond:
            yield from self._carry_out(job, draft)

    def carry_out_late(
        self, draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """The same for the runs whose stops were put off."""
        late, self._late_stops = self._late_stops, {}
        for job_id, why in late.items():
            job = jobs.get(job_id)
            if job is not None and job.state in (State.STARTING, State.RUNNING):
                self._late_stops[job_id] = why
                yield from self._carry_out(job, draft)

    def put_off(self, job: JobRecord, why: StopReason) -> None:
        """A run is not stopped now: it is to be seen to again."""
        self._late_stops[job.id] = why
        self._touched[job.id] = None

    def _beyond_waiting(
        self, touched: Iterable[str], draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> list[JobRecord]:
        """Live jobs for which there may be orders; the others, often all, only wait on."""
        beyond = []
        for job_id in touched:
            job = jobs.get(job_id)
            if job is None:
                continue
            if job.wanted or job.active:
                beyond.append(job)
                continue
            job.reason = job.aside or draft.reasons.get(job_id, job.reason)
            self.starting.pop(job_id, None)
        return beyond

    def _carry_out(
        self, job: JobRecord, draft: GuardedDraft
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """What the difference between a job's plan and what it holds asks for."""
        wanted, state = job.wanted, job.state
        job.reason = None if wanted else job.aside or draft.reasons.get(job.id, job.reason)
        runs = state is State.RUNNING or state is State.STARTING
        # Compared by value: the same devices given again are the same plan, though a new proposal.
        stays = runs and wanted == job.allocations
        if wanted and not stays:
            self.starting.setdefault(job.id, None)
        else:
            self.starting.pop(job.id, None)
        if runs and not stays:
            # A run cannot change its devices: to move or to resize it is to stop and start it.
            late = self._late_stops.pop(job.id, StopReason.PREEMPTED_FOR_PRIORITY)
            yield job, draft.stops.get(job.id, late)
        else:
            self._late_stops.pop(job.id, None)


def _number(job: JobRecord) -> int:
    return job.number
