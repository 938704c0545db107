"""What jobs add to every domain of a power tree, in exact integers: nanowatts at its input.

Two of these books are kept: what the plan needs at the least, and what devices may draw now. Only
what a job adds *above idling* is in them; what everything draws while nothing runs is a constant of
the cluster, and the account adds it. Integers, so that sums do not depend on the order in which
jobs came and went, and a comparison with a budget is exact: floats that are added and taken away
again drift, and a budget that is met to the watt would be refused on one run and kept on the next.

GPUs that several jobs share (`SharedDevices`) are counted once, at the watts of the dearest of
their jobs. A device has one cap. Whatever its jobs are allowed one by one, it draws no more than
the highest of their caps, and idles once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wattherd.engine.power.domain_headroom import Branches
from wattherd.engine.power.feeds import Feeds
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI

# --- Devices that several jobs share ----------------------------------------------------------
Device = tuple[int, int]
"""Node index and number of the GPU there."""


def shared_devices(allocations: Iterable[Allocation]) -> list[Device]:
    """The GPUs of which an allocation has a part only, each once.

    Two tasks of a job may have parts of the same one.
    """
    found = {
        (one.node, gpu): None
        for one in allocations
        if one.request.gpu_milli != WHOLE_GPU_MILLI
        for gpu in one.gpus
    }
    return list(found)


# Why the dearest counts. A device has one limit of watts, whoever runs on it. If two jobs are
# allowed 200 and 300 W there, the device is set to 300 W and may draw that for either of them;
# counted 500 it would waste watts, counted in shares it could be exceeded when one job pauses.
class SharedDevices:
    """Milliwatts by shared device and job; `idle_mw` is what a device of each node idles at."""

    def __init__(self, idle_mw: Sequence[int]) -> None:
        """Nothing is shared."""
        self._idle_mw = idle_mw
        self._jobs_mw: dict[Device, dict[str, int]] = {}
        self._devices: dict[str, list[Device]] = {}
        self.above_idle_mw = 0
        """What all of them draw beyond idling."""
        self.idle_mw = 0
        """What they would draw if they idled."""

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._devices)

    # Not below zero: beside a dearer partner a job adds nothing at all.
    def rise_mw(self, job_id: str, devices: Iterable[Device], mw: int) -> int:
        """By how much the draw above idle is higher with a job's `mw` on `devices` than without.

        What the job has on them now does not count.
        """
        return sum(max(mw - self._others_mw(job_id, device), 0) for device in devices)

    # The idle device is everybody's partner: nothing falls below it.
    def _others_mw(self, job_id: str, device: Device) -> int:
        """The dearest of the other jobs there, the idle device if there is none."""
        others = self._jobs_mw.get(device, {})
        return max([self._idle_mw[device[0]], *(mw for one, mw in others.items() if one != job_id)])

    def held_rise_mw(self, job_id: str) -> int:
        """By how much the draw above idle would fall without a job."""
        return sum(self.fall_mw(job_id, device) for device in self._devices.get(job_id, ()))

    def fall_mw(self, job_id: str, device: Device) -> int:
        """By how much the draw of one of its devices would fall without a job."""
        return max(self._jobs_mw[device][job_id] - self._others_mw(job_id, device), 0)

    def devices(self, job_id: str) -> list[Device]:
        """The shared devices of a job."""
        return self._devices.get(job_id, [])

    def put(self, job_id: str, devices: list[Device], mw: int, tops_mw: Sequence[int] = ()) -> None:
        """Book a job's parts at a cap of `mw`, instead of what it had.

        `tops_mw` is what each of the devices draws at most, where they are of several models.
        """
        self.drop(job_id)
        if not devices:
            return
        drawn_mw = [min(mw, top_mw) for top_mw in tops_mw] or [mw] * len(devices)
        self._devices[job_id] = devices
        for device, each_mw in zip(devices, drawn_mw, strict=True):
            self.above_idle_mw += self.rise_mw(job_id, (device,), each_mw)
            # The idle watts of a shared device are nobody's either: counted once here, when the
            # first job comes, and not by node as those of free ones.
            if device not in self._jobs_mw:
                self._jobs_mw[device] = {}
                self.idle_mw += self._idle_mw[device[0]]
            self._jobs_mw[device][job_id] = each_mw

    def drop(self, job_id: str) -> None:
        """Forget a job."""
        if job_id not in self._devices:
            return
        self.above_idle_mw -= self.held_rise_mw(job_id)
        for device in self._devices.pop(job_id):
            jobs = self._jobs_mw[device]
            del jobs[job_id]
            if not jobs:
                del self._jobs_mw[device]
                self.idle_mw -= self._idle_mw[device[0]]

    def order(self, devices: Iterable[Device]) -> dict[Device, list[str]]:
        """The jobs on each of `devices` as they were booked: the first of equals owns it."""
        return {device: list(self._jobs_mw.get(device, ())) for device in devices}

    def restore_order(self, order: Mapping[Device, Sequence[str]]) -> None:
        """Who of these is there still stands on his devices in this order, others behind."""
        # The order of bookings is state: the first of equally dear jobs owns the device, and asks
        # for its watts. So an undone plan has to restore the order as well as the sums.
        for device, names in order.items():
            jobs = self._jobs_mw.get(device, {})
            if len(jobs) > 1:
                there = dict.fromkeys((*(name for name in names if name in jobs), *jobs))
                self._jobs_mw[device] = {name: jobs[name] for name in there}

    # Equal parts for reports and joules only; the guard never asks for them, since parts of a
    # maximum do not add up when a partner leaves.
    def part_mw(self, job_id: str) -> float:
        """A job's equal part of what its shared devices draw."""
        parts = 0.0
        for device in self._devices.get(job_id, ()):
            jobs = self._jobs_mw[device]
            # Of what the device draws, and not of the sum of caps: parts of all its jobs add up to
            # its draw.
            parts += max(self._idle_mw[device[0]], *jobs.values()) / len(jobs)
        return parts

    # `max` takes the first of equals, and a dict keeps the order in which jobs came: so the owner
    # is whoever was first at the highest cap, in any process.
    def owned(self, job_id: str) -> list[Device]:
        """The shared devices of which a job is the dearest, or the first of several such."""
        return [one for one in self._devices.get(job_id, ()) if self._owner(one) == job_id]

    def owners(self, job_id: str) -> list[str]:
        """The dearest job of each of its shared devices."""
        return [self._owner(device) for device in self._devices.get(job_id, ())]

    def _owner(self, device: Device) -> str:
        jobs = self._jobs_mw[device]
        return max(jobs, key=jobs.__getitem__)

    def partners(self, job_id: str) -> list[str]:
        """Other jobs on its devices."""
        found = {
            other: None
            for device in self._devices.get(job_id, ())
            for other in self._jobs_mw[device]
            if other != job_id
        }
        return list(found)


# --- What every domain carries ----------------------------------------------------------------
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
# devices counted once (`SharedDevices`). `put` and `drop` keep it by adding and taking away the
# same integers; nothing is ever summed anew. `tests/property/test_draft_books.py` compares with
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
