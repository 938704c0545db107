"""A site that changes while it is held: its file is read again, devices come, go and are replaced.

What takes long (asking new devices for their ranges, all for their identity) is prepared beside the
loop, which goes on meanwhile; then the new site takes the place of the old one between two cycles.
A device that is new, or is another one at the same address, counts at its maximum until it is read.
A device that leaves stays in the fleet until there is room for the limit that it was found with;
then it is put back, and dropped (`handover`).
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.devices.knobs.journal import KnobJournal, owned
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.safety.loop import Fleet
from wattherd.errors import UserError
from wattherd.hold.fleet import START_S, fleet_of
from wattherd.hold.lines import ask_all
from wattherd.hold.saved_state import SavedDevice, SavedSite, owner_of
from wattherd.hold.site_file import HeldDevice, HeldSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A site that is ready to be held.

    `identities` are in the order of its devices, `replaced` the knobs behind which another device
    was found, `leaving` the limits (W) that devices that leave were found with, by knob.
    """

    site: HeldSite
    fleet: Fleet
    identities: tuple[str, ...]
    replaced: frozenset[str] = frozenset()
    leaving: Mapping[str, float] = field(default_factory=dict)


def prepare(
    site: HeldSite,
    journal: KnobJournal,
    memory: SavedSite | None,
    before: HeldSite | None = None,
    still_leaving: Mapping[str, float] | None = None,
) -> Prepared:
    """Make a site ready: what it needs to know of its devices is asked, and noted on disk.

    `still_leaving` are devices of `site` that were leaving before, and their limits.

    Raises:
        UserError: a device's range is not known, or the journal cannot be written.
    """
    if before is not None:
        site = _with_known(site, before)
    gone = _gone(site, journal, memory, before)
    leaving = {device.knob.source: limit_w for device, limit_w in gone}
    leaving |= still_leaving or {}
    site = replace(site, devices=(*site.devices, *(device for device, _ in gone)))
    for device in site.devices:
        device.knob.journal = journal
    fleet = fleet_of(site, memory)
    identities = _identities(site, memory)
    known = {} if memory is None else {one.knob: one.identity for one in memory.devices}
    replaced = frozenset(
        device.knob.source
        for device, identity in zip(site.devices, identities, strict=True)
        if identity and known.get(device.knob.source, "") not in ("", identity)
    )
    for device in site.devices:
        if device.knob.source in replaced:
            device.knob.forget()
    _note_found(site, journal)
    return Prepared(
        site=site, fleet=fleet, identities=identities, replaced=replaced, leaving=leaving
    )


def ask_to_reload(site: HeldSite) -> int:
    """Have the process that holds a site read its file again; its number.

    Raises:
        UserError: nobody holds the site.
    """
    with owned(site.journal) as mine:
        owner = None if mine else owner_of(site.journal)
    if owner is None:
        raise UserError("nobody holds this site", where=str(site.path),
                        hint="start `wattherd power hold`: it reads the file")  # fmt: skip
    try:
        os.kill(owner.pid, signal.SIGHUP)
    except OSError as error:
        raise UserError(f"process {owner.pid} holds this site: {error.strerror}",
                        where=str(site.path)) from None  # fmt: skip
    return owner.pid


def without(site: HeldSite, gone: Collection[str]) -> HeldSite:
    """The site without the devices of these knobs."""
    return replace(site, devices=tuple(one for one in site.devices if one.knob.source not in gone))


def _with_known(site: HeldSite, before: HeldSite) -> HeldSite:
    """The same site; instruments that were there before stay the very objects, and connected."""
    meters = {one.source: one for one in _meters(before)}
    knobs = {device.knob.source: device.knob for device in before.devices}
    knobs |= {one.setpoint.source: one.setpoint for one in before.storages}
    outlets = {one.outlet.source: one.outlet for one in before.devices if one.outlet is not None}

    def known(device: HeldDevice) -> HeldDevice:
        meter, outlet = device.meter, device.outlet
        return replace(
            device,
            meter=None if meter is None else meters.get(meter.source, meter),
            knob=knobs.get(device.knob.source, device.knob),
            outlet=None if outlet is None else outlets.get(outlet.source, outlet),
        )

    return replace(
        site,
        devices=tuple(known(device) for device in site.devices),
        feeds=tuple(
            one if one.meter is None
            else replace(one, meter=meters.get(one.meter.source, one.meter))
            for one in site.feeds
        ),
        meter=None if site.meter is None else meters.get(site.meter.source, site.meter),
        storages=tuple(
            replace(
                one,
                meter=meters.get(one.meter.source, one.meter),
                charge=meters.get(one.charge.source, one.charge),
                setpoint=knobs.get(one.setpoint.source, one.setpoint),
            )
            for one in site.storages
        ),
    )  # fmt: skip


def _meters(site: HeldSite) -> list[Any]:
    every = [
        *(one.meter for one in site.devices),
        *(one.meter for one in site.feeds),
        site.meter,
        *(one.meter for one in site.storages),
        *(one.charge for one in site.storages),
    ]
    return [one for one in every if one is not None]


def _gone(
    site: HeldSite, journal: KnobJournal, memory: SavedSite | None, before: HeldSite | None
) -> list[tuple[HeldDevice, float]]:
    """Devices that are no longer named and still limited, and the limits (W) to bring them to."""
    if memory is None:
        return []
    named = {device.knob.source for device in site.devices}
    names = {device.name for device in site.devices}
    known = {} if before is None else {device.knob.source: device for device in before.devices}
    gone = []
    for row, member in enumerate(memory.devices):
        if member.knob in named or journal.found(member.knob) is None:
            continue
        was_w = float(memory.state.found_w[row])
        limit_w = member.max_w if math.isnan(was_w) else min(was_w, member.max_w)
        device = known.get(member.knob) or _remembered(member)
        name = f"{member.name} (leaving)" if member.name in names else member.name
        feed = _place(site, before, member.feed)
        gone.append((replace(device, name=name, feed=feed), limit_w))
    return gone


def _remembered(member: SavedDevice) -> HeldDevice:
    knob = open_knob(member.knob)
    knob.settle_s = 0.0
    return HeldDevice(name=member.name, feed=0, meter=None, knob=knob, floor_w=member.floor_w,
                  max_w=member.max_w, step_w=member.step_w, outlet=None)  # fmt: skip


def _place(site: HeldSite, before: HeldSite | None, name: str) -> int:
    """The feed of that name, or else the nearest above it that is still there.

    Where none is, the first: too much is counted there for a while, and the site's sum is right.
    """
    numbers = {feed.name: number for number, feed in enumerate(site.feeds)}
    feeds = () if before is None else before.feeds
    above = {one.name: feeds[one.above].name for one in feeds if one.above < len(feeds)}
    while name not in numbers and name in above:
        name = above[name]
    return numbers.get(name, 0)


def _identities(site: HeldSite, memory: SavedSite | None) -> tuple[str, ...]:
    """Who is there now; of those that do not answer, who was there before."""
    known = {} if memory is None else {one.knob: one.identity for one in memory.devices}
    told = ask_all(((one.knob.driver, _asking_identity(one)) for one in site.devices), START_S)
    pairs = zip(site.devices, told, strict=True)
    return tuple(said or known.get(device.knob.source, "") for device, said in pairs)


def _asking_identity(device: HeldDevice) -> Any:
    def ask() -> str:
        try:
            return device.knob.identity()
        except DeviceError:
            return ""

    return ask


def _note_found(site: HeldSite, journal: KnobJournal) -> None:
    """Write down what devices are like of which nothing is known, before any order."""
    asked = [one for one in site.devices if journal.found(one.knob.source) is None]
    states = ask_all(((one.knob.driver, _asking_state(one)) for one in asked), START_S)
    fresh = [
        (device.knob.source, state)
        for device, state in zip(asked, states, strict=True)
        if state is not None
    ]
    if fresh:
        journal.note_all(fresh)


def _asking_state(device: HeldDevice) -> Any:
    def ask() -> Any:
        try:
            return device.knob.driver.read().state
        except DeviceError:
            return None

    return ask
