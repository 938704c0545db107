"""Jobs that run or may run, in order of submission, and what changed among them since a plan.

A planner that keeps its own order needs to hear only of the changes: a cycle then costs as much
as happened, not as much as there is.
"""

from __future__ import annotations

from bisect import bisect_left

from wattherd.engine.jobs.record import JobRecord


# Why changes and not only a list. A planner that keeps an order (`policy.schedule.job_order`) would
# have to compare ten thousand jobs with what it knew to find the three that are new. Told of
# changes, a cycle costs as much as happened. The price is the contract that nothing is forgotten,
# which `core.invariants._check_roster` and `introduce` are for.
class Roster:
    """The jobs a planner may plan for."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers: list[int] = []
        self._jobs: list[JobRecord] = []
        self._known: set[str] = set()
        """Jobs that the last plan saw."""
        self.entered: dict[str, JobRecord] = {}
        """Jobs that came, or lost their plan without the planner's doing, since the last plan."""
        self.left: dict[str, JobRecord] = {}
        """Jobs that the last plan saw and that may not run any more."""

    def jobs(self) -> list[JobRecord]:
        """All of them, in order of submission."""
        return self._jobs.copy()

    def put(self, job: JobRecord, *, eligible: bool) -> None:
        """Note whether `job` runs or may run now."""
        # The flag is on the record, so that the common answer, no change, costs no search.
        if eligible == job.listed:
            return
        job.listed = eligible
        at = bisect_left(self._numbers, job.number)
        if eligible:
            self._numbers.insert(at, job.number)
            self._jobs.insert(at, job)
            self.entered[job.id] = job
            return
        del self._numbers[at], self._jobs[at]
        self.entered.pop(job.id, None)
        # Whoever came and went between two plans was never seen, and need not be said to have left.
        if job.id in self._known:
            self._known.discard(job.id)
            self.left[job.id] = job

    # A planner that keeps its own order believes that the job runs; it must hear that it does not,
    # though the job never left.
    def unplanned(self, job: JobRecord) -> None:
        """Note that an eligible job's plan was taken away."""
        if job.id in self._known:
            self.entered[job.id] = job

    # A planner that takes over at work has seen nothing: all jobs come to it as newcomers, in the
    # order in which they were submitted.
    def introduce(self) -> None:
        """Another planner takes over: all jobs are new to it."""
        self._known = set()
        self.entered = {job.id: job for job in self._jobs}
        self.left = {}

    def planned(self) -> None:
        """A plan was made: it knows everything."""
        self._known.update(self.entered)
        self.entered = {}
        self.left = {}
