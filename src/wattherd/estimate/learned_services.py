"""How much service jobs had received when they ended: what a Gittins index is reckoned from.

Service is GPUs x seconds for which a job held them (2D attained service, Tiresias, NSDI'19), by the
core's own books. No job says how long it is, so that none can lie about it; what it can do is end
at once, again and again. So each tenant has a voice of at most `MOST_JOBS` jobs, the last ones, and
nobody's jobs push out another's. Jobs that failed, were cancelled or were called off tell nothing:
how long they would have taken is not known. All follows from events, so that the same journal
teaches the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from wattherd.estimate.gittins import GittinsIndex, gittins_index

LEAST_JOBS = 20
"""Fewer ends than these make no index: the chances of few are noise."""
MOST_JOBS = 500
"""Of one tenant, the last ones."""
MOST_TENANTS = 100
"""Those of which a job ended last."""
RENEW = 16
"""The index is made anew when a sixteenth of the jobs have ended since: a new index may change
who runs, and each change costs restarts."""


@dataclass(frozen=True, slots=True)
class PastServices:
    """Of how many jobs it is known what they needed, and the index made of them.

    `index` is None while they are fewer than `LEAST_JOBS`; it is made of those there were when it
    was last renewed, `of_jobs`.
    """

    jobs: int = 0
    index: GittinsIndex | None = None
    of_jobs: int = 0


NONE_ENDED = PastServices()


class LearnedServices:
    """What was learned of all jobs; changed by `ended` alone."""

    def __init__(self) -> None:
        """No job has ended."""
        self._services: dict[str, deque[float]] = {}
        """GPU seconds by tenant; the tenant heard last comes last."""
        self._since = 0
        """Jobs that ended since the index was made."""
        self._known = NONE_ENDED

    def ended(self, tenant: str, service_gpu_s: float) -> None:
        """A job has succeeded after so much service; one that held no GPU teaches nothing."""
        if not 0.0 < service_gpu_s < math.inf:
            return
        services = self._services.pop(tenant, None)
        services = deque(maxlen=MOST_JOBS) if services is None else services
        services.append(service_gpu_s)
        self._services[tenant] = services
        if len(self._services) > MOST_TENANTS:
            del self._services[next(iter(self._services))]
        self._since += 1
        self._renew()

    # By the number of ends and not when somebody asks: the same journal must give the same index
    # whether or not a plan came in between.
    def _renew(self) -> None:
        jobs = sum(map(len, self._services.values()))
        self._known = replace(self._known, jobs=jobs)
        if jobs < LEAST_JOBS or self._since * RENEW < self._known.of_jobs:
            return
        self._since = 0
        samples = [one for services in self._services.values() for one in services]
        self._known = PastServices(jobs, gittins_index(samples), jobs)

    def of_tenants(self) -> dict[str, tuple[float, ...]]:
        """GPU seconds of jobs that succeeded, by tenant; the one heard last comes last."""
        return {tenant: tuple(services) for tenant, services in self._services.items()}

    def recall(self, tenants: Mapping[str, Iterable[float]]) -> None:
        """These are the tenants that are known, as `of_tenants` told them, and no others."""
        self._services = {
            tenant: deque(services, maxlen=MOST_JOBS)
            for tenant, services in list(tenants.items())[-MOST_TENANTS:]
        }
        self._since, self._known = 0, NONE_ENDED
        self._renew()

    def known(self) -> PastServices:
        """What is known now; the same index until it is renewed."""
        return self._known
