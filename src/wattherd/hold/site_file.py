"""The site that `wattherd power hold` holds: feeds, devices, limits, as one YAML file describes it.

```yaml
limit: 0:20kW,2h:15kW        # of the site; one level, or steps from `since`, or else the start
signals: ["schedule:limits.csv"]
period: 1s
lease: 15s                   # without news of the loop for this long, devices go to their floor
meter: "modbus://meter-0/1/70?unit=kW"
base: 500W                   # other load that hangs on the site itself
ramp_up: 500W/s              # draw rises, falls and swings so much at most
ramp_down: 1kW/s
swing: 6kW
feeds:                       # feeds may hang on feeds, to any depth
  row-a: {limit: 12kW, meter: "modbus://meter-a/1/70?unit=kW"}
  rack-1: {feed: row-a, limit: 6kW, base: 300W}
devices:
  node-0: {feed: rack-1, meter: "redfish+https://bmc-0", knob: "redfish+https://bmc-0", floor: 2kW}
```

Batteries and other storage stand under `storages`, see `site_storage`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattherd.devices.knobs.contract import KnobUnit
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import open_knob, open_switch
from wattherd.devices.knobs.switch import Switch
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.engine.safety.contract import Floats, SafetyConfig
from wattherd.engine.safety.ramp import RampLimits
from wattherd.errors import UserError
from wattherd.hold.site_storage import HeldStorage, StorageSpec, storage_of
from wattherd.spelling import hint_for
from wattherd.units import seconds, watts, watts_per_second
from wattherd.validation import misfit
from wattherd.workload.budget_text import Steps, parse_steps
from wattherd.workload.scenario import load

UNLIMITED_W = 1e12
"""Stands for a feed without limit, or without a breaker that is known: more than any site draws."""
HINT = "see docs/guides/hold.md"
KNOB_STEPS = 2.0
"""Drivers say how far a read-back may be off: half of the step that they round to."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MovesSpec(_Strict):
    """How fast and far the draw of a level may move; nothing is limited where nothing is stated."""

    ramp_up: str | float | None = Field(default=None, description="watts a second: 500W/s")
    ramp_down: str | float | None = Field(default=None, description="watts a second: 500W/s")
    swing: str | float | None = Field(default=None, description="highest less lowest draw in 10 s")


class FeedSpec(MovesSpec):
    """A feed: its limit in steps, its breaker's rating, and its meter, as far as there are any.

    `feed` is the one that it hangs on, the site if none is named.
    """

    feed: str | None = Field(
        default=None, description="the level that it hangs on; the site if none"
    )
    limit: str | float | None = Field(
        default=None, description="watts that it may carry: 9kW, or steps 0:9kW,2h:6kW"
    )
    rated: str | float | None = Field(
        default=None,
        description="watts that its breaker is rated for; its thermal state is followed",
    )
    meter: str | None = Field(
        default=None, description="address of its meter, as `wattherd meter read` takes it"
    )
    base: str | float | None = Field(default=None, description="other load on this feed itself")


class InstrumentSpec(_Strict):
    """What meters and limits a device. `floor` and `max` are the knob's own limits if not given.

    `step` is what the knob rounds to where that is coarser than its protocol tells.
    """

    meter: str | None = Field(
        default=None, description="address of the device's meter; without one it counts at its cap"
    )
    knob: str = Field(description="address of what sets its limit, as `wattherd knob set` takes it")
    step: str | float | None = Field(
        default=None, description="watts that the knob rounds to, if its protocol does not tell"
    )
    floor: str | float | None = Field(
        default=None, description="lowest watts; the knob's own limit if none"
    )
    max: str | float | None = Field(
        default=None, description="highest watts; the knob's own limit if none"
    )
    outlet: str | None = Field(default=None, description="switch of last resort")


class DeviceSpec(InstrumentSpec):
    """A device, and the feed that it hangs on."""

    feed: str


class SiteSpec(MovesSpec):
    """The whole file."""

    limit: str | float
    rated: str | float | None = None
    meter: str | None = None
    base: str | float | None = Field(default=None, description="other load on the site itself")
    since: datetime | None = Field(default=None, description="when the steps of limits begin")
    period: str | float = "1s"
    lease: str | float = "15s"
    handover: str | float | None = Field(
        default=None, description="how long caps stay after a deliberate end; default: the lease"
    )
    ramp_over: str | float = Field(default="10s", description="ramps are means over this")
    signals: list[str] = Field(default=[], description="limits from outside, as of `power signal`")
    lead: str | float = Field(default="10s", description="how early announced cuts are met")
    journal: str | None = Field(default=None, description="default: NAME.journal.json beside it")
    feeds: dict[str, FeedSpec] = Field(min_length=1)
    devices: dict[str, DeviceSpec] = Field(min_length=1)
    storages: dict[str, StorageSpec] = Field(
        default={}, description="batteries that the loop may use"
    )
    safety: dict[str, float] = Field(default={}, description="constants of the safety loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Limits of how a level's draw moves; infinite where there are none."""

    up_w_s: float = math.inf
    down_w_s: float = math.inf
    swing_w: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFeed:
    """A feed that hangs on feed number `above`, or on the site (which counts last).

    `base_w` is other load that is known to hang on it, beside its devices and the feeds below.
    """

    name: str
    above: int
    limit: Steps
    rated_w: float
    base_w: float
    meter: Meter | None
    moves: Moves = Moves()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A device on the feed of that number; None where the knob's own limits are to be asked."""

    name: str
    feed: int
    meter: Meter | None
    knob: Knob
    floor_w: float | None
    max_w: float | None
    step_w: float
    outlet: Switch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSite:
    """What is to be held, from where to where; times in seconds, `since_s` in Unix time.

    Every feed stands before the one that it hangs on; otherwise feeds keep the file's order.
    """

    path: Path
    journal: Path
    limit: Steps
    rated_w: float
    base_w: float
    meter: Meter | None
    since_s: float | None
    period_s: float
    feeds: tuple[SiteFeed, ...]
    devices: tuple[HeldDevice, ...]
    config: SafetyConfig
    signals: tuple[str, ...] = ()
    lead_s: float = 0.0
    handover_s: float = 0.0
    moves: Moves = Moves()
    ramp_over_s: float = 10.0
    storages: tuple[HeldStorage, ...] = ()

    @property
    def ramps(self) -> RampLimits:
        """How all levels' draw may move."""
        return ramps_of((*(feed.moves for feed in self.feeds), self.moves), self.ramp_over_s)

    def limit_w(self, passed_s: float) -> Floats:
        """Limits (F + 1,) of the feeds and, last, the site, `passed_s` after the steps began.

        Steps are known beforehand: one that falls counts `lead_s` early, so that it is met in time,
        and where draw may fall only so fast, it is approached at that rate.
        """
        steps = [*((feed.limit, feed.moves) for feed in self.feeds), (self.limit, self.moves)]
        ahead_s = passed_s + self.lead_s
        return np.array([
            min(_level(one, passed_s), _level(one, ahead_s),
                *(approached(w, at_s - ahead_s, moves.down_w_s) for at_s, w in one))
            for one, moves in steps
        ])  # fmt: skip


def read_site(path: Path) -> HeldSite:
    """The site of a file; nothing is connected to yet.

    Raises:
        UserError: unreadable, an unknown or wrong field, or an address that cannot be used.
    """
    document: dict[str, Any] = load(path, hint=HINT)
    try:
        spec = SiteSpec.model_validate(document)
    except ValidationError as problem:
        raise misfit(problem, str(path), SiteSpec, hint=HINT) from None
    try:
        return _site(path, spec)
    except UserError as error:
        place = ": ".join(part for part in (str(path), error.where) if part)
        hint = error.hint or HINT
        raise UserError(error.problem, where=place, field=error.field, hint=hint) from None


def _site(path: Path, spec: SiteSpec) -> HeldSite:
    named = path.parent / (spec.journal or f"{path.stem}.journal.json")
    names = {name: number for number, name in enumerate(lower_first(spec.feeds))}
    if _seconds(spec.lease, "lease") < 2 * _seconds(spec.period, "period"):
        hint = "lengthen the lease, or shorten the period"
        raise UserError("is shorter than two periods", field="lease", hint=hint)
    over_s = _seconds(spec.ramp_over, "ramp_over")
    if over_s < _seconds(spec.period, "period"):
        raise UserError("is shorter than a period: nothing could be held within it",
                        field="ramp_over", hint="10s, or a shorter period")  # fmt: skip
    return HeldSite(
        path=path.resolve(),
        journal=named.resolve(),
        limit=parse_steps(spec.limit, field="limit"),
        rated_w=watts_of(spec.rated, "rated", UNLIMITED_W),
        base_w=watts_of(spec.base, "base"),
        meter=None if spec.meter is None else open_meter(spec.meter),
        since_s=spec.since.timestamp() if spec.since else None,
        period_s=_seconds(spec.period, "period"),
        feeds=tuple(feed_of(name, spec.feeds[name], names) for name in names),
        devices=tuple(_device(name, one, names) for name, one in spec.devices.items()),
        config=constants_of(_seconds(spec.lease, "lease"), spec.safety),
        signals=tuple(spec.signals),
        lead_s=_seconds(spec.lead, "lead", least_s=0.0),
        handover_s=_seconds(spec.lease if spec.handover is None else spec.handover, "handover"),
        moves=moves_of(spec),
        ramp_over_s=over_s,
        storages=tuple(
            storage_of(name, one, names, f"storages.{name}") for name, one in spec.storages.items()
        ),
    )


def moves_of(spec: MovesSpec, field: str = "") -> Moves:
    """Limits of how draw moves, as stated; `field` is the level's own.

    Raises:
        UserError: they are no watts, or none at all: nothing could ever change.
    """
    found = {
        to: _rate(getattr(spec, name), f"{field}{name}")
        for name, to in (("ramp_up", "up_w_s"), ("ramp_down", "down_w_s"), ("swing", "swing_w"))
    }
    return Moves(**found)


def ramps_of(moves: Sequence[Moves], over_s: float) -> RampLimits:
    """Those of all levels, the site's last."""
    return RampLimits(
        up_w_s=np.array([one.up_w_s for one in moves]),
        down_w_s=np.array([one.down_w_s for one in moves]),
        swing_w=np.array([one.swing_w for one in moves]),
        over_s=over_s,
    )


def approached(limit_w: float, left_s: float, down_w_s: float) -> float:
    """What counts now of a limit that begins in `left_s`, where draw may fall only so fast."""
    return limit_w + down_w_s * left_s if left_s > 0 else math.inf


def _rate(value: str | float | None, field: str) -> float:
    """Watts, also where they are written by the second."""
    if value is None:
        return math.inf
    found_w = watts_per_second(value, field)
    if not found_w:
        raise UserError("must be above zero, or the draw could never change", field=field,
                        hint="leave it out for no limit")  # fmt: skip
    return found_w


def lower_first(feeds: Mapping[str, FeedSpec]) -> list[str]:
    """The feeds' names, the farthest from the site first.

    Raises:
        UserError: one hangs on a feed that is not there, or on itself.
    """
    depth: dict[str, int] = {}
    for name in feeds:
        way, at = [name], feeds[name].feed
        while at is not None and at not in depth:
            if at not in feeds:
                raise UserError(f"no feed {at!r}", field=f"feeds.{way[-1]}.feed",
                                hint=hint_for(at, feeds))  # fmt: skip
            if at in way:
                circle = " -> ".join([*way[way.index(at) :], at])
                raise UserError(f"hangs on itself: {circle}", field=f"feeds.{at}.feed",
                                hint="one of them must hang on the site: no feed")  # fmt: skip
            way.append(at)
            at = feeds[at].feed
        far = 0 if at is None else depth[at]
        for one in reversed(way):
            depth[one] = far = far + 1
    return sorted(feeds, key=lambda name: -depth[name])


def feed_of(name: str, spec: FeedSpec, names: Mapping[str, int]) -> SiteFeed:
    """A feed of a file; `names` are all feeds with their numbers, lower ones first.

    Raises:
        UserError: a limit, rating or address that cannot be used.
    """
    field = f"feeds.{name}"
    unlimited = ((0.0, UNLIMITED_W),)
    return SiteFeed(
        name=name,
        above=len(names) if spec.feed is None else names[spec.feed],
        limit=unlimited if spec.limit is None else parse_steps(spec.limit, field=f"{field}.limit"),
        rated_w=watts_of(spec.rated, f"{field}.rated", UNLIMITED_W),
        base_w=watts_of(spec.base, f"{field}.base"),
        meter=None if spec.meter is None else open_meter(spec.meter),
        moves=moves_of(spec, f"{field}."),
    )


def _device(name: str, spec: DeviceSpec, feeds: Mapping[str, int]) -> HeldDevice:
    field = f"devices.{name}"
    if spec.feed not in feeds:
        raise UserError(f"no feed {spec.feed!r}", field=f"{field}.feed",
                        hint=hint_for(spec.feed, feeds))  # fmt: skip
    return device_of(name, spec, feeds[spec.feed], field)


def device_of(name: str, spec: InstrumentSpec, feed: int, field: str) -> HeldDevice:
    """A device of a file on the feed of that number; nothing is connected to yet.

    Raises:
        UserError: an address or watts that cannot be used.
    """
    knob = open_knob(spec.knob)
    if knob.unit is not KnobUnit.WATT:
        raise UserError("limits no watts", where=spec.knob, field=f"{field}.knob")
    # The loop reads back itself, every cycle: it must not wait for slow boards here.
    knob.settle_s = 0.0
    return HeldDevice(
        name=name,
        feed=feed,
        meter=None if spec.meter is None else open_meter(spec.meter),
        knob=knob,
        floor_w=None if spec.floor is None else watts_of(spec.floor, f"{field}.floor"),
        max_w=None if spec.max is None else watts_of(spec.max, f"{field}.max"),
        step_w=watts_of(spec.step, f"{field}.step", KNOB_STEPS * knob.driver.step),
        outlet=None if spec.outlet is None else open_switch(spec.outlet),
    )


def constants_of(lease_s: float, stated: Mapping[str, float], **more: Any) -> SafetyConfig:
    """The loop's constants: a device that was found off stays off, somebody meant it.

    Raises:
        UserError: there is no such constant.
    """
    known = {one.name for one in fields(SafetyConfig)}
    given: dict[str, Any] = {"lease_s": lease_s, "wake_found": False, **more}
    for name, value in stated.items():
        if name not in known or name in given:
            raise UserError("no such constant", field=f"safety.{name}",
                            hint=", ".join(sorted(known - set(given))))  # fmt: skip
        given[name] = int(value) if name == "frozen_after" else value
    return SafetyConfig(**given)


def _level(steps: Steps, passed_s: float) -> float:
    """The last step that has begun; before the first, that one."""
    begun = [watts for at_s, watts in steps if at_s <= passed_s]
    return begun[-1] if begun else steps[0][1]


def watts_of(value: str | float | None, field: str, default_w: float = 0.0) -> float:
    """Watts of a field, or a default where nothing is stated.

    Raises:
        UserError: they are no watts.
    """
    return default_w if value is None else watts(value, field=field)


def _seconds(value: str | float, field: str, least_s: float = 1e-3) -> float:
    value_s = seconds(value, field=field)
    if value_s < least_s:
        raise UserError("must be above zero", field=field)
    return value_s
