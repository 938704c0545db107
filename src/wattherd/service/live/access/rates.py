"""Token buckets: how often a caller may ask."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_KEYS = 10_000


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float


class Rates:
    """A bucket per key: `rate_per_s` requests in the long run, up to `burst` of them at once."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        """All buckets are full."""
        self.rate_per_s, self.burst = rate_per_s, burst
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, key: str, now_s: float, *, take: bool = True) -> float:
        """0 if `key` may ask now, and with `take` has done so; else after how many seconds."""
        bucket = self._buckets.pop(key, None) or _Bucket(self.burst, now_s)
        passed_s = max(0.0, now_s - bucket.at_s)
        bucket.level = min(self.burst, bucket.level + passed_s * self.rate_per_s)
        bucket.at_s = now_s
        self._buckets[key] = bucket  # the last one asked is the last to be forgotten
        if len(self._buckets) > MOST_KEYS:
            del self._buckets[next(iter(self._buckets))]
        if bucket.level < 1:
            return (1 - bucket.level) / self.rate_per_s
        bucket.level -= take
        return 0.0


def retry_after(wait_s: float) -> str:
    """The header's value: whole seconds, at least one."""
    return str(max(1, math.ceil(wait_s)))
