"""What a power tree has for the devices that a plan runs: as policies read it, and to the watt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wattherd.engine.feeds import NW, PPM, Feeds
from wattherd.policy.power.contract import Ask
from wattherd.policy.power.limits import Limits

DevicesAt = Mapping[int, int]
"""Devices that one cap holds for, by node."""


class Rooms:
    """`nw` are nanowatts for whole devices at their caps, by domain with a budget."""

    def __init__(self, feeds: Feeds, nw: Mapping[int, int]) -> None:
        """The rooms of one plan."""
        self._feeds, self._nw = feeds, nw

    def limits(self, asks: Sequence[Ask], devices: Sequence[DevicesAt]) -> Limits:
        """As arrays: the domains above each job, and what a watt of the job is there."""
        number = {domain: at for at, domain in enumerate(self._nw)}
        rows = [self._row(ask, at, number) for ask, at in zip(asks, devices, strict=True)]
        depth = max(1, *(len(row) for row in rows))
        path = np.full((len(rows), depth), -1, dtype=np.int64)
        scale = np.ones((len(rows), depth))
        for job, row in enumerate(rows):
            for level, (domain, watts) in enumerate(row):
                path[job, level], scale[job, level] = domain, watts
        room_w = np.array([nw / NW for nw in self._nw.values()])
        return Limits(room_w, path, scale, tuple(self._feeds.names[one] for one in self._nw))

    def _row(
        self, ask: Ask, devices: DevicesAt, number: Mapping[int, int]
    ) -> list[tuple[int, float]]:
        weight: dict[int, int] = {}
        for node, count in devices.items():
            for domain, ppm in self._feeds.paths[node]:
                if domain in number:
                    weight[domain] = weight.get(domain, 0) + count * ppm
        return [(number[one], ppm / (PPM * ask.devices)) for one, ppm in weight.items()]

    def hold(self, devices: Sequence[DevicesAt], caps_w: Sequence[float]) -> bool:
        """Whether every domain has enough for these caps."""
        used = self._used(devices, caps_w)
        return all(used[domain] <= nw for domain, nw in self._nw.items())

    def _used(self, devices: Sequence[DevicesAt], caps_w: Sequence[float]) -> list[int]:
        used = [0] * len(self._feeds.names)
        for at, cap_w in zip(devices, caps_w, strict=True):
            self._carry(used, at, round(cap_w * 1000))
        return used

    def trimmed(
        self, asks: Sequence[Ask], devices: Sequence[DevicesAt], caps_w: Sequence[float]
    ) -> list[float]:
        """The caps less single watts where roundings add up to more than a domain has."""
        found, used = list(caps_w), self._used(devices, caps_w)
        for domain, room_nw in self._nw.items():
            while used[domain] > room_nw:
                if not self._lower(domain, asks, devices, found, used):
                    break
        return found

    def _lower(
        self,
        domain: int,
        asks: Sequence[Ask],
        devices: Sequence[DevicesAt],
        caps_w: list[float],
        used: list[int],
    ) -> bool:
        """Take a watt from the last job below a domain that has one to give."""
        for at in range(len(asks) - 1, -1, -1):
            lower_w = max(caps_w[at] - 1.0, asks[at].curve.floor_w)
            if lower_w < caps_w[at] and self._feeds_any(domain, devices[at]):
                self._carry(used, devices[at], round((lower_w - caps_w[at]) * 1000))
                caps_w[at] = lower_w
                return True
        return False

    def _carry(self, used: list[int], devices: DevicesAt, mw: int) -> None:
        for node, count in devices.items():
            for domain, ppm in self._feeds.paths[node]:
                used[domain] += count * mw * ppm

    def _feeds_any(self, domain: int, devices: DevicesAt) -> bool:
        return any(one == domain for node in devices for one, _ in self._feeds.paths[node])
