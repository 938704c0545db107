"""The most GPUs that jobs of one tenant may hold together, whatever queues they are in.

A limit of the site beside the planner's quota: the guard asks here before it books. Jobs that hold
more when a limit is lowered keep what they have; nothing is added until they are below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode
from wattherd.units import counted


# Counted for the plan at hand and thrown away with it: limits are few and change seldom, and a
# counter that lives as long as the core would have to be kept right by everything that ends a job.
@dataclass(slots=True)
class TenantUse:
    """`limits` in GPUs by tenant; what the plan at hand gives to each of those is counted."""

    limits: Mapping[str, int]
    _held: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, limits: Mapping[str, int], held: Iterable[tuple[JobSpec, int]]) -> TenantUse:
        """Begin with what jobs hold in the plan."""
        use = cls(limits)
        for spec, gpus in held:
            use.spend(spec, gpus)
        return use

    def spend(self, spec: JobSpec, gpus: int) -> None:
        """A job is given so many more, or fewer if negative."""
        if spec.tenant in self.limits:
            self._held[spec.tenant] += gpus

    # A limit that was lowered below what a tenant holds stops nobody; it gets nothing more until it
    # is below.
    def refuses(self, spec: JobSpec, gpus: int, now_s: float) -> Reason | None:
        """Why the job may not hold `gpus` beside what its tenant's others hold, or None."""
        most = self.limits.get(spec.tenant)
        held = self._held[spec.tenant]
        if most is None or held + gpus <= most:
            return None
        return Reason(
            code=ReasonCode.QUOTA_EXCEEDED,
            since_s=now_s,
            asked=gpus,
            in_use=held,
            available=max(most - held, 0),
            unit="GPUs",
            unblocks=f"tenant {spec.tenant!r} may hold {counted(most, 'GPU')} at most; "
            "raise its limit",
        )


# One for everybody: without limits it counts nothing, and so never changes.
UNLIMITED = TenantUse({})
"""No tenant is limited."""
