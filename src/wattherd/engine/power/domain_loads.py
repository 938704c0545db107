"""What jobs add to every domain of a power tree, in exact integers: nanowatts at its input.

Two of these books are kept: what the plan needs at the least, and what devices may draw now. Only
what a job adds *above idling* is in them; what everything draws while nothing runs is a constant of
the cluster, and the account adds it. Integers, so that sums do not depend on the order in which
jobs came and went, and a comparison with a budget is exact: floats that are added and taken away
again drift, and a budget that is met to the watt would be refused on one run and kept on the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wattherd.engine.power.domain_headroom import Branches
from wattherd.engine.power.feeds import Feeds
from wattherd.engine.power.sharing import Device, SharedDevices, shared_devices
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI

Spread = dict[int, int]
"""Nanowatts by domain."""


# A job's rise in a domain is mw * ppm - idle_nw, summed over its devices there: linear in the cap.
# So all that depends on the place is summed once, and a cap that changes is one product a domain.
# Caps are re-shared at every plan; places change when a job moves.
class ModelPart(NamedTuple):
    """The whole devices of one GPU model, of a job across several."""

    devices: int
    top_mw: int
    """What one of them draws at most, whatever the cap."""
    branches: Branches
    """What stands above them."""


class Footprint(NamedTuple):
    """Where the devices of some allocations stand: what their watts count in, whatever the cap.

    A cap changes ten times as often as a place, and what it adds is then one product a domain.
    """

    allocations: tuple[Allocation, ...]
    devices: int
    """Whole ones: no other job has a part of them."""
    idle_mw: int
    """What they would draw idle, at the devices."""
    branches: Branches
    """What stands above them."""
    shared: tuple[Device, ...]
    """Devices of which there is a part only."""
    models: tuple[str, ...]
    """GPU models of all of them, each once, as they come."""
    tops_mw: tuple[int, ...] = ()
    """What a device of each of `models` draws at most; empty where there is one model only."""
    parts: tuple[ModelPart, ...] = ()
    """The whole devices by model; empty where there is one model only."""
    shared_tops_mw: tuple[int, ...] = ()
    """What each of `shared` draws at most; empty where there is one model only."""

    def rise_nw(self, mw: int) -> Spread:
        """What whole devices at a cap of `mw` add above idling, by domain."""
        if not self.parts:
            return {domain: mw * ppm - idle_nw for domain, ppm, idle_nw in self.branches}
        # The idle watts of all models are taken off once: `branches` has them summed over all
        # devices.
        nw = {domain: -idle_nw for domain, _, idle_nw in self.branches}
        for part in self.parts:
            each_mw = min(mw, part.top_mw)
            for domain, ppm, _ in part.branches:
                nw[domain] += each_mw * ppm
        return nw

    def drawn_mw(self, mw: int) -> int:
        """What whole devices draw at a cap of `mw`, all together."""
        if not self.parts:
            return self.devices * mw
        return sum(part.devices * min(mw, part.top_mw) for part in self.parts)

    def shared_mw(self, mw: int) -> Sequence[int]:
        """What each of `shared` draws at a cap of `mw`."""
        if not self.shared_tops_mw:
            return [mw] * len(self.shared)
        return [min(mw, top_mw) for top_mw in self.shared_tops_mw]


_NOWHERE = Footprint((), 0, 0, (), (), ())


def footprint_of(
    allocations: tuple[Allocation, ...],
    feeds: Feeds,
    idle_mw: Sequence[int],
    models: Sequence[str],
) -> Footprint:
    """Where `allocations` stand; `idle_mw` and `models` are by node."""
    devices = all_idle_mw = 0
    ppm_above: dict[int, int] = {}
    idle_above: dict[int, int] = {}
    parts: list[Allocation] = []
    # A dict for its order: the first model's curve is the job's, unless there are several.
    found: dict[str, None] = {}
    for one in allocations:
        count, node = len(one.gpus), one.node
        if not count:
            continue
        found[models[node]] = None
        if one.request.gpu_milli != WHOLE_GPU_MILLI:
            parts.append(one)
            continue
        each_mw = idle_mw[node]
        devices += count
        all_idle_mw += count * each_mw
        for domain, ppm in feeds.paths[node]:
            ppm_above[domain] = ppm_above.get(domain, 0) + count * ppm
            idle_above[domain] = idle_above.get(domain, 0) + count * ppm * each_mw
    if not found:
        return _NOWHERE
    branches = tuple((domain, ppm, idle_above[domain]) for domain, ppm in ppm_above.items())
    shared = tuple(shared_devices(parts)) if parts else ()
    return Footprint(allocations, devices, all_idle_mw, branches, shared, tuple(found))


# All devices of a job have one cap, but a model that cannot draw so much does not: a T4 at a cap of
# 300 W draws 70 W. Counted at the cap, watts would be held back that nobody can draw.
def told_apart(
    footprint: Footprint,
    tops_mw: tuple[int, ...],
    feeds: Feeds,
    idle_mw: Sequence[int],
    models: Sequence[str],
) -> Footprint:
    """`footprint` of several GPU models with each at no more than it can draw.

    `tops_mw` are in the order of its models.
    """
    tops = dict(zip(footprint.models, tops_mw, strict=True))
    parts = []
    for model, top_mw in tops.items():
        mine = tuple(one for one in footprint.allocations if models[one.node] == model)
        part = footprint_of(mine, feeds, idle_mw, models)
        if part.devices:
            parts.append(ModelPart(part.devices, top_mw, part.branches))
    # Parts of devices are no part of `branches`: what they add depends on their partners, and is
    # asked for one by one.
    shared_tops_mw = tuple(tops[models[node]] for node, _ in footprint.shared)
    return footprint._replace(tops_mw=tops_mw, parts=tuple(parts), shared_tops_mw=shared_tops_mw)


# Invariant, for every domain d: nw[d] is the sum over jobs of what job_nw says for it, shared
# devices counted once (`engine.power.sharing`). `put` and `drop` keep it by adding and taking away
# the same integers; nothing is ever summed anew. `tests/property/test_draft_books.py` compares with
# a sum from scratch.
class DomainLoads:
    """Nanowatts above idling by domain (`nw`), and each job's part of them.

    `idle_mw` is what one device of each node idles at.
    """

    def __init__(self, feeds: Feeds, idle_mw: Sequence[int]) -> None:
        """Nothing is carried."""
        self.nw = [0] * len(feeds.names)
        # At the devices and not at the domain's input: energy of a job is what its devices take,
        # losses of the feed are nobody's (`energy_budget`).
        self.run_mw = 0
        """What unshared devices draw, at the devices."""
        self.idle_mw = 0
        """What unshared devices would draw if they idled, at the devices."""
        self.shared = SharedDevices(idle_mw)
        self._paths, self._idle_mw = feeds.paths, idle_mw
        self._jobs: dict[str, tuple[Footprint, int]] = {}
        """Where each job's devices stand, and at a cap of how many milliwatts."""

    # Kept with the booking, so that it lives exactly as long: a cache beside it would have to be
    # told of each end.
    def footprint(self, job_id: str) -> Footprint:
        """Where a job is booked."""
        known = self._jobs.get(job_id)
        return _NOWHERE if known is None else known[0]

    def put(self, job_id: str, footprint: Footprint, mw: int) -> None:
        """Book a job with its devices at a cap of `mw`, instead of what it had."""
        # Identity is enough: whoever books anew in the same place hands the footprint back that it
        # got.
        before = self._jobs.get(job_id)
        plain = not footprint.shared and not footprint.parts
        if before is not None and before[0] is footprint and plain:
            # Another cap in the same place. The order of bookings says who owns a shared device,
            # so that jobs with parts are always booked anew.
            more_mw = mw - before[1]
            self.run_mw += footprint.devices * more_mw
            for domain, ppm, _ in footprint.branches:
                self.nw[domain] += more_mw * ppm
        else:
            self.drop(job_id)
            self.run_mw += footprint.drawn_mw(mw)
            self.idle_mw += footprint.idle_mw
            for domain, nw in footprint.rise_nw(mw).items():
                self.nw[domain] += nw
            # One device after the other, each rise taken before it is booked: two tasks of a job on
            # one device must not both count.
            shared_mw = footprint.shared_mw(mw)
            for device, each_mw in zip(footprint.shared, shared_mw, strict=True):
                rise_mw = self.shared.rise_mw(job_id, (device,), each_mw)
                for domain, ppm in self._paths[device[0]]:
                    self.nw[domain] += rise_mw * ppm
            if footprint.shared:
                self.shared.put(job_id, list(footprint.shared), mw, footprint.shared_tops_mw)
        self._jobs[job_id] = footprint, mw

    def drop(self, job_id: str) -> None:
        """Forget a job."""
        if job_id not in self._jobs:
            return
        # Asked before the job is forgotten: what a shared device falls to depends on who stays.
        for domain, nw in self.job_nw(job_id).items():
            self.nw[domain] -= nw
        footprint, mw = self._jobs.pop(job_id)
        self.run_mw -= footprint.drawn_mw(mw)
        self.idle_mw -= footprint.idle_mw
        self.shared.drop(job_id)

    def rise_nw(self, job_id: str, footprint: Footprint, mw: int) -> Spread:
        """What a job with a cap of `mw` there would add, beside the others, by domain.

        All domains above the allocations that have devices are named, also where that is nothing.
        What the job has booked does not count: it would be given back.
        """
        rise_nw = footprint.rise_nw(mw)
        for device, each_mw in zip(footprint.shared, footprint.shared_mw(mw), strict=True):
            more_mw = self.shared.rise_mw(job_id, (device,), each_mw)
            for domain, ppm in self._paths[device[0]]:
                rise_nw[domain] = rise_nw.get(domain, 0) + more_mw * ppm
        return rise_nw

    def without_nw(self, job_id: str, domains: Iterable[int]) -> Spread:
        """What all other jobs add to `domains`."""
        # By what would go with the job and not by what it was booked at: beside a dearer partner on
        # a shared device nothing goes with it.
        own, nw = self.job_nw(job_id), self.nw
        if not own:
            return {domain: nw[domain] for domain in domains}
        return {domain: nw[domain] - own.get(domain, 0) for domain in domains}

    def job_nw(self, job_id: str) -> Spread:
        """By how much each domain would carry less without a job.

        A shared device falls to the dearest of those who stay, not to idle.
        """
        known = self._jobs.get(job_id)
        if known is None:
            return {}
        footprint, mw = known
        own = footprint.rise_nw(mw)
        for device in footprint.shared:
            fall_mw = self.shared.fall_mw(job_id, device)
            for domain, ppm in self._paths[device[0]]:
                own[domain] = own.get(domain, 0) + fall_mw * ppm
        return own

    def added_mw(self, job_id: str, footprint: Footprint, mw: int) -> int:
        """As `rise_nw`, all together and at the devices: without losses."""
        shared_mw = sum(
            self.shared.rise_mw(job_id, (device,), each_mw)
            for device, each_mw in zip(footprint.shared, footprint.shared_mw(mw), strict=True)
        )
        return footprint.drawn_mw(mw) - footprint.idle_mw + shared_mw

    def job_mw(self, job_id: str) -> float:
        """What a job's devices draw; of shared ones its equal part."""
        known = self._jobs.get(job_id)
        if known is None:
            return 0
        footprint, mw = known
        return footprint.drawn_mw(mw) + self.shared.part_mw(job_id)
