"""Watts that a claim lacks, on the account by which kube-scheduler allocates it; pure.

What claims hold does not shrink with caps, so that what is left to claim may be less than what the
nodes have left to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wattherd.kube.account.watt_devices import WattDevice
from wattherd.kube.facts.finding import PodFinding, watts_down, watts_up
from wattherd.model.reason import ReasonCode


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a claim lacks of one device (mW): `more_mw`, where `left_mw` of `device` are left."""

    device: WattDevice
    left_mw: int
    more_mw: int


@dataclass(frozen=True, slots=True)
class Claimable:
    """Devices with limits, and what claims hold of each (mW, by the device's domain)."""

    devices: Sequence[WattDevice]
    held_mw: Mapping[str, int]
    path: Callable[[str], Sequence[str]]

    def shortfalls(self, leaf: str, need_mw: int) -> list[Shortfall]:
        """What a claim of `need_mw` lacks where `leaf` feeds the nodes, the lowest device first."""
        found = []
        for name in self.path(leaf):
            device = next((one for one in self.devices if one.limited and one.domain == name), None)
            if device is None:
                continue
            left = device.capacity_mw - self.held_mw.get(name, 0)
            if left < need_mw:
                found.append(Shortfall(device, max(0, left), need_mw - left))
        return found

    def finding(self, leaves: Iterable[str], need_mw: int) -> PodFinding | None:
        """Of the nodes below `leaves` those that lack least; None where nothing is lacking."""
        lacking = [self.shortfalls(leaf, need_mw) for leaf in sorted(set(leaves))]
        if not lacking or not all(lacking):
            return None
        least = min(lacking, key=lambda found: max(one.more_mw for one in found))
        facts = ", ".join(_left(one) for one in least)
        helps = " and ".join(_help(one) for one in least)
        asks = f"the pod's claim asks for {watts_up(need_mw)}"
        return PodFinding(str(ReasonCode.WAITING_FOR_POWER), f"{asks}, {facts}", helps)


def _who(device: WattDevice) -> str:
    return f"power domain {device.domain}" if device.domain else "the site"


def _left(one: Shortfall) -> str:
    left, of = watts_down(one.left_mw), watts_down(one.device.capacity_mw)
    return f"{_who(one.device)} has {left} left of {of} that can be claimed"


def _help(one: Shortfall) -> str:
    more = watts_up(one.more_mw)
    return f"raise the budget of {_who(one.device)} by {more}, or end pods that claim {more} there"
