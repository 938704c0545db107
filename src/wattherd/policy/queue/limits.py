"""What no queue and no user of one may exceed, whoever asks; pure.

Of queues that may hold everything, what is free on the nodes tells more than their limits do. A
share of a GPU counts as a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason
from wattherd.policy.queue.capacity import Usage
from wattherd.policy.queue.tree import ROUNDING, QueuePlace, QueueTree, quota_exceeded
from wattherd.units import counted


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Of `tree` on a cluster of `total` GPUs, of which `usage` is held."""

    tree: QueueTree
    total: int
    usage: Usage
    user_word: str = "user"
    """What users are called where reasons are read."""

    def refused(self, spec: JobSpec, gpus: int, now_s: float) -> Reason | None:
        """Why quota keeps a work of `gpus` GPUs from starting now, or None."""
        place = self.tree.leaf(spec.queue)
        never = self.tree.never(spec, gpus, self.total, now_s)
        if never is not None or not gpus or place is None:
            return never
        for name in place.ancestors:
            used = self.usage.queues[name]
            share = self.tree[name].maximum
            most = share * self.total
            if share < 1 and used + gpus > most + ROUNDING:
                why = f"queue {name!r} may hold {counted(most, 'GPU')} at most; raise its maximum"
                return quota_exceeded(gpus, used, most, why, now_s)
        return self._beyond_user(spec.user, gpus, place, now_s)

    def _beyond_user(self, user: str, gpus: int, place: QueuePlace, now_s: float) -> Reason | None:
        most, key = place.user_most(self.total), (place.queue.name, user)
        used = self.usage.users[key]
        if used + gpus <= most + ROUNDING:
            return None
        why = (
            f"{self.user_word} {user!r} may hold {counted(most, 'GPU')} of queue "
            f"{place.queue.name!r}; "
            "raise its userLimitFactor, or use another queue"
        )
        return quota_exceeded(gpus, used, most, why, now_s)
