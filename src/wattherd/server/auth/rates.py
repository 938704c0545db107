"""How often a caller may ask, and how many answers without an end it may have at once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

MOST_KEYS = 10_000


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float


class RequestRates:
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


class HeldRequests:
    """What callers hold at once: so many each, and so many in all.

    Callers of one tenant may hold together as many as are still free then. So however many of them
    there are, a tenant that comes later finds room (dynamic thresholds, Choudhury and Hahne 1998).
    Callers of no tenant are limited one by one only.
    """

    def __init__(self, each: int, total: int) -> None:
        """Nobody holds anything."""
        self.each, self.total = each, total
        self._by_key: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._count = 0

    def take(self, key: str, tenant: str = "") -> bool:
        """Whether `key` of `tenant` may hold one more, which it does from now on."""
        free = self.total - self._count
        if free <= 0 or self._by_key[key] >= self.each:
            return False
        if tenant and self._by_tenant[tenant] >= free:
            return False
        self._by_key[key] += 1
        self._by_tenant[tenant] += 1
        self._count += 1
        return True

    def give_back(self, key: str, tenant: str = "") -> None:
        """One of what `key` of `tenant` holds."""
        self._count -= 1
        for counts, name in ((self._by_key, key), (self._by_tenant, tenant)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def retry_after(wait_s: float) -> str:
    """The header's value: whole seconds, at least one."""
    return str(max(1, math.ceil(wait_s)))
