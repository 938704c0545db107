"""Power caps as orders: lower ones at once, higher ones when there are watts for them.

What a device may draw counts at the cap in force until a lower one has been read back (`Watts`),
so that nothing is raised on the strength of a cap that was only ordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wattherd.engine.ledger import JobRecord
from wattherd.engine.lifecycle import State
from wattherd.engine.watts import Watts
from wattherd.model.command import SetCap


class Caps:
    """The caps of running jobs under a budget; without one there is nothing to do."""

    def __init__(self, watts: Watts) -> None:
        """Nothing is capped."""
        self._watts = watts
        self._active = watts.limited
        """Whether a budget holds, or caps of an earlier one may still be in force."""
        self._to_lower: dict[str, None] = {}
        """Jobs whose planned cap may be lower than the one in force."""
        self._held_back: dict[str, None] = {}
        """Jobs that are to get a higher cap when there are watts for it, in order."""

    def set_budget(
        self, budget_w: float | None, jobs: Iterable[JobRecord], domain: str = ""
    ) -> None:
        """A domain (the site) may draw this much from now on; None lifts the budget."""
        self._watts.set_budget(budget_w, jobs, domain)
        self._active = True

    def applied(self, job: JobRecord, cap_w: float | None, jobs: Mapping[str, JobRecord]) -> None:
        """A cap was read back on a job's devices."""
        job.cap_w = cap_w
        self._active = True
        self._watts.note(job)
        self._sort_in([job], jobs)

    def _sort_in(self, changed: Iterable[JobRecord], jobs: Mapping[str, JobRecord]) -> None:
        """Note where the planned cap and the one in force differ; one of the two has changed."""
        later = []
        for job in changed:
            if _to_lower(job):
                self._to_lower[job.id] = None
            elif _held_back(job) and job.id not in self._held_back:
                later.append(job)
        if later:
            known = [jobs[one] for one in self._held_back if one in jobs] + later
            self._held_back = {one.id: None for one in sorted(known, key=_number)}

    def share_out(self, live: Mapping[str, JobRecord]) -> list[SetCap]:
        """Share the watts out anew; without a budget once more, to lift the caps.

        Orders lower caps at once, and again in every plan until they are read back.
        """
        if not self._active:
            return []
        self._sort_in(self._watts.share(live.values()), live)
        if not self._watts.limited:
            self._active = any(job.cap_w is not None for job in live.values())
        return self._lower(live)

    def _lower(self, live: Mapping[str, JobRecord]) -> list[SetCap]:
        """Order the lower caps that were not read back yet, in order of submission."""
        known = [live[one] for one in self._to_lower if one in live]
        due = sorted((job for job in known if _to_lower(job)), key=_number)
        self._to_lower = {job.id: None for job in due}
        return [_order(job, job.wanted_cap_w) for job in due if _runs(job)]

    def raise_due(self, jobs: Mapping[str, JobRecord], *, replanned: bool) -> list[SetCap]:
        """Order higher caps as far as what others gave up has been read back."""
        orders: list[SetCap] = []
        if not self._held_back or (not self._watts.limited and not replanned):
            return orders
        for job_id in list(self._held_back):
            job = jobs.get(job_id)
            if job is None or not _held_back(job):
                del self._held_back[job_id]
            elif _runs(job) and self._watts.fits(job, job.allocations):
                # In force from the order on: the device may draw more before it is read back.
                job.cap_w = job.wanted_cap_w
                self._watts.note(job)
                orders.append(_order(job, job.cap_w))
        return orders


def _number(job: JobRecord) -> int:
    return job.number


def _order(job: JobRecord, cap_w: float | None) -> SetCap:
    return SetCap(job_id=job.id, attempt=job.attempt, cap_w=cap_w)


def _runs(job: JobRecord) -> bool:
    """Whether it runs as planned."""
    return job.state in (State.STARTING, State.RUNNING) and job.wanted == job.allocations


def _to_lower(job: JobRecord) -> bool:
    """Whether the planned cap is lower than the one in force."""
    cap_w = job.wanted_cap_w
    return cap_w is not None and (job.cap_w is None or cap_w < job.cap_w)


def _held_back(job: JobRecord) -> bool:
    """Whether the cap in force is lower than the planned one."""
    if job.cap_w is None:
        return False
    return job.wanted_cap_w is None or job.wanted_cap_w > job.cap_w
