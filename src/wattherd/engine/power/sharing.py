"""GPUs that several jobs share: each is counted once, at the watts of the dearest of its jobs.

A device has one cap. Whatever its jobs are allowed one by one, it draws no more than the highest
of their caps, and idles once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI

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
