"""What every domain of a power tree carries, in exact integers: nanowatts at its input.

A book of jobs: what each adds above idling, by node; a shared device counts once, whoever is on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wattherd.engine.feeds import Feeds
from wattherd.engine.sharing import Device, SharedDevices

Spread = dict[int, int]
"""Nanowatts by domain."""
AtNodes = Iterable[tuple[int, int]]
"""(Node, milliwatts) pairs; a node may come more than once."""


class Loads:
    """Nanowatts by domain (`nw`), and what each job adds to them."""

    def __init__(self, feeds: Feeds) -> None:
        """Nothing is carried."""
        self._feeds = feeds
        self.nw = [0] * len(feeds.names)
        self._jobs: dict[str, Spread] = {}
        self._shared_mw: dict[Device, int] = {}

    def spread(self, at_nodes: AtNodes) -> Spread:
        """What milliwatts at nodes are at the domains above them."""
        found: Spread = {}
        for node, mw in at_nodes:
            for domain, ppm in self._feeds.paths[node]:
                found[domain] = found.get(domain, 0) + mw * ppm
        return found

    def put(self, job_id: str, at_nodes: AtNodes) -> None:
        """Book what a job adds, instead of what it added."""
        self._add(self._jobs.pop(job_id, {}), -1)
        spread = self.spread(at_nodes)
        if spread:
            self._jobs[job_id] = spread
            self._add(spread, 1)

    def _add(self, spread: Mapping[int, int], sign: int) -> None:
        for domain, nw in spread.items():
            self.nw[domain] += sign * nw

    def share(self, sharing: SharedDevices, devices: Iterable[Device]) -> None:
        """Book shared devices as they are now."""
        for device in devices:
            mw = sharing.above_idle_of(device)
            rise_mw = mw - self._shared_mw.pop(device, 0)
            if mw:
                self._shared_mw[device] = mw
            if rise_mw:
                self._add(self.spread([(device[0], rise_mw)]), 1)

    def of(self, job_id: str) -> Mapping[int, int]:
        """What a job's unshared devices add, by domain."""
        return self._jobs.get(job_id, {})
