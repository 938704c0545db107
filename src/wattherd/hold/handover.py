"""Devices that leave a site: room is made for what each was found with, then it is put back.

A limit that was lifted before the others are lowered would lift the sum. So the loop is told lower
limits, by what the next device that leaves may draw more; once all that is counted fits below them,
the device is put back. What it may draw is kept free for a while longer: until meters have shown
it as other load.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from wattherd.engine.safety.contract import Floats
from wattherd.engine.safety.loop import Readings, SafetyLoop
from wattherd.hold.changes import Prepared
from wattherd.hold.site_file import HeldDevice

PATIENCE_S = 60.0
"""How long room is made for; then the device's limit stays as it is."""
AFTER_S = 15.0
"""How long its watts are kept free after it has been put back."""
FITS = 1.001
"""Sums this close to a limit are within it: caps are rounded."""


@dataclass(slots=True)
class HandOver:
    """All of them; outlives changes of the site. Limits are by knob, in watts."""

    limits: Mapping[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Knobs of those that are to be dropped now."""
    _since_s: dict[str, float] = field(default_factory=dict)
    _free: list[tuple[str, float, float]] = field(default_factory=list)
    """Feed, watts and until when: what has just been put back."""

    def begin(self, limits: Mapping[str, float]) -> None:
        """These leave from now on."""
        now_s = time.monotonic()
        self.limits, self.gone = limits, set()
        self._since_s = {knob: self._since_s.get(knob, now_s) for knob in limits}

    def limits_beside(self, ready: Prepared, loop: SafetyLoop, limit_w: Floats) -> Floats:
        """Limits (F + 1,) less what the next to leave may draw more, and the last ones drew."""
        numbers = {feed.name: number for number, feed in enumerate(ready.site.feeds)}
        own_w = np.zeros(ready.fleet.feeds + 1)
        self._free = [one for one in self._free if one[2] > time.monotonic()]
        for name, watts, _ in self._free:
            own_w[numbers.get(name, -1)] += watts
        number = self._next(ready)
        if number is not None:
            device = ready.site.devices[number]
            more_w = self.limits[device.knob.source] - float(loop.caps.counted_w[number])
            own_w[device.feed] += max(more_w, 0.0)
        return np.asarray(limit_w - ready.fleet.tree.sums(own_w))

    def fitting(
        self, ready: Prepared, loop: SafetyLoop, left_w: Floats, readings: Readings
    ) -> HeldDevice | None:
        """The next to leave, if all that is counted and read is within what is left (F + 1,)."""
        number = self._next(ready)
        if number is None:
            return None
        fleet = ready.fleet
        base_w = np.nan_to_num(loop.state().base_w)
        counted_w = fleet.levels(loop.caps.counted_w) + fleet.tree.sums(base_w)
        read_w = np.append(readings.feed_w, readings.site_w)
        over = (counted_w > FITS * left_w) | (read_w > FITS * left_w)
        return None if over.any() else ready.site.devices[number]

    def overdue(self, ready: Prepared) -> list[HeldDevice]:
        """Those for which there was no room in all the time."""
        now_s = time.monotonic()
        late = {knob for knob, since_s in self._since_s.items() if now_s - since_s > PATIENCE_S}
        late -= self.gone
        return [one for one in ready.site.devices if one.knob.source in late]

    def let_go(self, ready: Prepared, device: HeldDevice, *, put_back: bool = True) -> None:
        """It is to be dropped; what it may draw now stays free for a while."""
        self.gone.add(device.knob.source)
        if put_back:
            feed = ready.site.feeds[device.feed].name
            until_s = time.monotonic() + AFTER_S
            self._free.append((feed, self.limits[device.knob.source], until_s))

    def _next(self, ready: Prepared) -> int | None:
        for number, device in enumerate(ready.site.devices):
            if device.knob.source in self.limits and device.knob.source not in self.gone:
                return number
        return None
