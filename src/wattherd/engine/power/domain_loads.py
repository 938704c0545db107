"""What jobs add to every domain of a power tree, in exact integers: nanowatts at its input.

Two of these books are kept: what the plan needs at the least, and what devices may draw now. Only
what a job adds *above idling* is in them; what everything draws while nothing runs is a constant of
the cluster, and the account adds it. Integers, so that sums do not depend on the order in which
jobs came and went, and a comparison with a budget is exact: floats that are added and taken away
again drift, and a budget that is met to the watt would be refused on one run and kept on the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wattherd.engine.power.feeds import Feeds
from wattherd.engine.power.sharing import Device, SharedDevices, shared_devices
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI

Spread = dict[int, int]
"""Nanowatts by domain."""


_WholeDevices = tuple[int, int, Spread]
"""What a job's unshared devices draw, what they would draw idle (mW), and the rise by domain.

The first two are read at the devices, the rise at the inputs of domains.
"""
_NOTHING: _WholeDevices = (0, 0, {})


class DomainLoads:
    """Nanowatts above idling by domain (`nw`), and each job's part of them.

    `idle_mw` is what one device of each node idles at.
    """

    def __init__(self, feeds: Feeds, idle_mw: Sequence[int]) -> None:
        """Nothing is carried."""
        self.nw = [0] * len(feeds.names)
        self.run_mw = 0
        """What unshared devices draw, at the devices."""
        self.idle_mw = 0
        """What unshared devices would draw if they idled, at the devices."""
        self.shared = SharedDevices(idle_mw)
        self._paths, self._idle_mw = feeds.paths, idle_mw
        self._jobs: dict[str, _WholeDevices] = {}

    def put(self, job_id: str, allocations: Iterable[Allocation], mw: int) -> None:
        """Book a job with each of its devices at `mw`, instead of what it had."""
        self.drop(job_id)
        whole, parts = self._counted(allocations, mw)
        run_mw, idle_mw, rise_nw = whole
        if rise_nw:
            self._jobs[job_id] = whole
            self.run_mw += run_mw
            self.idle_mw += idle_mw
            for domain, nw in rise_nw.items():
                self.nw[domain] += nw
        for device in parts:
            rise_mw = self.shared.rise_mw(job_id, (device,), mw)
            for domain, ppm in self._paths[device[0]]:
                self.nw[domain] += rise_mw * ppm
        if parts:
            self.shared.put(job_id, parts, mw)

    def drop(self, job_id: str) -> None:
        """Forget a job."""
        whole = self._jobs.pop(job_id, _NOTHING)
        self.run_mw -= whole[0]
        self.idle_mw -= whole[1]
        for domain, nw in self._own(job_id, whole).items():
            self.nw[domain] -= nw
        self.shared.drop(job_id)

    def rise_nw(self, job_id: str, allocations: Iterable[Allocation], mw: int) -> Spread:
        """What a job with `mw` on each device there would add, beside the others, by domain.

        All domains above the allocations that have devices are named, also where that is nothing.
        What the job has booked does not count: it would be given back.
        """
        (_, _, rise_nw), parts = self._counted(allocations, mw)
        for device in parts:
            more_mw = self.shared.rise_mw(job_id, (device,), mw)
            for domain, ppm in self._paths[device[0]]:
                rise_nw[domain] = rise_nw.get(domain, 0) + more_mw * ppm
        return rise_nw

    def without_nw(self, job_id: str, domains: Iterable[int]) -> Spread:
        """What all other jobs add to `domains`."""
        own, nw = self.job_nw(job_id), self.nw
        if not own:
            return {domain: nw[domain] for domain in domains}
        return {domain: nw[domain] - own.get(domain, 0) for domain in domains}

    def job_nw(self, job_id: str) -> Spread:
        """By how much each domain would carry less without a job."""
        return self._own(job_id, self._jobs.get(job_id, _NOTHING))

    def added_mw(self, job_id: str, allocations: tuple[Allocation, ...], mw: int) -> int:
        """As `rise_nw`, all together and at the devices: without losses."""
        (run_mw, idle_mw, _), parts = self._counted(allocations, mw)
        return run_mw - idle_mw + self.shared.rise_mw(job_id, parts, mw)

    def job_mw(self, job_id: str) -> float:
        """What a job's devices draw; of shared ones its equal part."""
        return self._jobs.get(job_id, _NOTHING)[0] + self.shared.part_mw(job_id)

    def _counted(
        self, allocations: Iterable[Allocation], mw: int
    ) -> tuple[_WholeDevices, list[Device]]:
        """Whole devices at `mw` each, and the devices of which a job has a part only.

        The innermost loop of the account: a plan of a thousand jobs passes here for every order.
        """
        devices = idle_mw = 0
        rise_nw: Spread = {}
        parts: list[Allocation] = []
        for one in allocations:
            count = len(one.gpus)
            if not count:
                continue
            if one.request.gpu_milli != WHOLE_GPU_MILLI:
                parts.append(one)
                continue
            each_mw = self._idle_mw[one.node]
            devices += count
            idle_mw += count * each_mw
            more_mw = count * (mw - each_mw)
            for domain, ppm in self._paths[one.node]:
                rise_nw[domain] = rise_nw.get(domain, 0) + more_mw * ppm
        shared = shared_devices(parts) if parts else []
        return (devices * mw, idle_mw, rise_nw), shared

    def _own(self, job_id: str, whole: _WholeDevices) -> Spread:
        """By how much each domain would carry less without a job whose `whole` devices these are.

        A shared device falls to the dearest of those who stay, not to idle.
        """
        rise_nw = whole[2]
        shared = self.shared.devices(job_id) if self.shared.any else ()
        if not shared:
            return rise_nw
        own = dict(rise_nw)
        for device in shared:
            fall_mw = self.shared.fall_mw(job_id, device)
            for domain, ppm in self._paths[device[0]]:
                own[domain] = own.get(domain, 0) + fall_mw * ppm
        return own
