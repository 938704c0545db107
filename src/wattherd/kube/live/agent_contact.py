"""Whether whoever decides about power is still heard of: by the lease that it renews.

A lease is heard of when its renewal time has changed since the last look; what that time is does
not matter, since clocks of two machines differ. Without a lease to look at, an answer of the API
server has to do. Reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.kube.api.api_objects import Lease


@dataclass(slots=True)
class LeaderContact:
    """Since when nothing was heard; `lease_s` after that caps are to sink."""

    lease_s: float
    heard_s: float
    _renewed: str | None = None

    def saw(self, lease: Lease | None, at_s: float) -> None:
        """The lease as it is; None where there is none to look at and the server has answered."""
        if lease is None:
            self.heard_s = at_s
            return
        renewed = lease.spec.renew_time
        held = bool(lease.spec.holder_identity)
        if held and renewed is not None and renewed != self._renewed:
            self._renewed = renewed
            self.heard_s = at_s

    def left_s(self, now_s: float) -> float:
        """How long caps may still be held as they were asked for."""
        return max(0.0, self.heard_s + self.lease_s - now_s)
