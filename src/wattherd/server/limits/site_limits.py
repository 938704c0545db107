"""Limits above this machine that others draw on, too: racks, rows and the site, by their meters.

The same safety loop as in `power hold` (`engine.safety.loop`) holds them, with this machine as its
one device: the machine's draw is known to the service, what else a meter shows is other load. What
the loop orders is a budget of the site for the core, beside those of operators and signals; the
lowest counts. So the core slows or stops jobs as for any budget, and says which limit it was for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.core.core import Core
from wattherd.engine.safety.contract import Floats
from wattherd.engine.safety.loop import Breaker, Fleet, Readings, SafetyConfig, SafetyLoop
from wattherd.errors import ClusterError, UserError
from wattherd.hold.lines import InstrumentLine, is_concurrent, poll_all, wait_for
from wattherd.hold.site_file import (
    UNLIMITED_W,
    FeedSpec,
    InstrumentSpec,
    MovesSpec,
    SiteFeed,
    feed_of,
    lower_first,
    moves_of,
    watts_of,
)
from wattherd.hold.site_storage import HeldStorage, StorageSpec, storage_of
from wattherd.local.devices import Machine
from wattherd.model.event import BudgetChanged
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.periodic import PeriodicThread
from wattherd.spelling import hint_for
from wattherd.units import seconds

SOURCE = "site"
"""Under this name the core knows what these limits leave."""
PERIOD_S = 1.0
GATHER_S = 0.5
PATIENCE_S = 2.0
START_S = 30.0
STEP = 0.01
"""Of what the machine draws at most: smaller changes of its budget are not worth an event."""
FINE = 1000.0
"""The loop counts whole watts; a small machine is counted in finer units, so many at least."""


class SiteLimits(MovesSpec):
    """The levels above a machine: fields as in the file of `wattherd power hold`.

    Ramps are held by the scheduler: it spreads starts, and stops that are its own choice.
    """

    limit: str | float | None = Field(
        default=None, description="watts that the site may draw: 20kW, or steps 0:20kW,2h:15kW"
    )
    rated: str | float | None = Field(
        default=None,
        description="watts that its breaker is rated for; its thermal state is followed",
    )
    meter: str | None = Field(
        default=None, description="address of its meter, as `wattherd meter read` takes it"
    )
    base: str | float | None = Field(default=None, description="other load on the site itself")
    ramp_over: str | float = Field(default="10s", description="ramps are means over this")
    feeds: dict[str, FeedSpec] = Field(
        default={}, description="racks, rows and other levels by name"
    )
    feed: str | None = Field(default=None, description="where this machine hangs; the site if none")
    devices: list[InstrumentSpec] = Field(
        default=[], description="what meters and limits this machine's GPUs or slots, in order"
    )
    storages: dict[str, StorageSpec] = Field(
        default={}, description="batteries on these levels that the loop may use"
    )
    period: str | float = Field(default="1s", description="time between two rounds of the loop")
    lease: str | float = Field(
        default="15s",
        description="devices go to their floor after so long without news of the loop",
    )
    handover: str | float = Field(
        default="1min", description="how long caps stay when the service has ended"
    )
    safety: dict[str, float] = Field(default={}, description="constants of the safety loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLevel:
    """A level as it was last seen, in watts: NaN for what is not known, infinite for no limit.

    `parent` is the level above, empty for the site itself. Of `draw_w`, `other_w` is not drawn by
    devices that are held here; `held_w` is what those count for at most, as their caps are now.
    `read_at_s` is when its meter was read, in Unix time.
    """

    name: str
    parent: str
    limit_w: float
    draw_w: float
    other_w: float
    held_w: float
    read_at_s: float = math.nan

    @property
    def headroom_w(self) -> float:
        """Watts of the limit that nobody draws; below zero where it is exceeded."""
        return self.limit_w - self.draw_w

    def words(self) -> str:
        """For people."""
        said = f"{self.name}: limit {_told(self.limit_w)}, draws {_told(self.draw_w)}"
        return f"{said}, of which {_told(self.other_w)} are not this machine's"


class SiteWatch(PeriodicThread):
    """Looks once a second; `drawn` gives watts of this machine and their age in seconds.

    Raises:
        UserError: a limit, a feed or a meter that cannot be used.
    """

    def __init__(
        self,
        keeper: CoreLoop,
        machine: Machine,
        limits: SiteLimits,
        drawn: Callable[[], tuple[float, float]],
    ) -> None:
        """Meters are opened; nothing is asked yet."""
        super().__init__("site limits", PERIOD_S)
        if limits.storages:
            raise UserError("is used beside devices with knobs only", field="site.storages",
                            hint="name the devices in site.devices")  # fmt: skip
        self._keeper, self._drawn = keeper, drawn
        self._levels: tuple[SiteLevel, ...] = ()
        self._feeds = levels_above(limits)
        node, gpu = machine.node, machine.gpu
        self._most_w = node.idle_w + node.gpu_count * gpu.max_w
        least_w = node.idle_w + node.gpu_count * gpu.idle_w
        self._unit = max(1.0, FINE / self._most_w)
        self._limit_w = np.array([feed.limit[0][1] for feed in self._feeds])
        meters = [feed.meter for feed in self._feeds]
        self._meters: list[InstrumentLine[tuple[float, float]] | None] = [
            None if meter is None else InstrumentLine(_reading(meter), is_concurrent(meter.driver))
            for meter in meters
        ]
        rated_w = np.array([feed.rated_w for feed in self._feeds])
        self._loop = SafetyLoop(
            Fleet(
                feed=np.zeros(1, dtype=np.int64) + place_of(limits, self._feeds),
                floor_w=np.array([least_w * self._unit]),
                max_w=np.array([self._most_w * self._unit]),
                breaker=Breaker(rated_w=rated_w * self._unit),
                above=np.array([feed.above for feed in self._feeds[:-1]], dtype=np.int64),
                metered=np.array([meter is not None for meter in meters[:-1]], dtype=np.bool_),
                site_metered=meters[-1] is not None,
                step_w=np.array([max(STEP * self._most_w * self._unit, 1.0)]),
                base_w=np.array([feed.base_w for feed in self._feeds]) * self._unit,
            ),
            SafetyConfig(wake_found=False),
        )

    def levels(self) -> tuple[SiteLevel, ...]:
        """All levels as the last cycle saw them, lower ones first, the site last."""
        return self._levels

    def look(self) -> None:
        """One cycle: what meters say, what the core holds, and what it is to hold."""
        lines = [line for line in self._meters if line is not None]
        poll_all(lines)
        wait_for(lines, time.monotonic() + GATHER_S)
        try:
            held_w = self._keeper.ask(_held).result(PATIENCE_S)
        except (TimeoutError, ClusterError):
            return
        event = self.news(held_w, *self._drawn(), time.time())
        if event is not None:
            self._keeper.tell(event)

    def news(
        self, held_w: float | None, drawn_w: float, age_s: float, now_s: float
    ) -> BudgetChanged | None:
        """The budget that is to be in force, if it is another than `held_w`."""
        now = [math.nan, math.nan]
        read = [(line and line.fresh(time.monotonic(), 60.0)) or now for line in self._meters]
        read_w, at_s = (np.array([one[part] for one in read]) for part in (0, 1))
        cap_w = min(self._most_w if held_w is None else held_w, self._most_w)
        orders = self._loop.cycle(
            Readings(
                now_s=now_s,
                draw_w=np.array([drawn_w]) * self._unit,
                draw_at_s=np.array([now_s - age_s]),
                cap_w=np.array([cap_w]) * self._unit,
                feed_w=read_w[:-1] * self._unit,
                feed_at_s=at_s[:-1],
                off=np.zeros(1, dtype=np.bool_),
                site_w=float(read_w[-1]) * self._unit,
                site_at_s=float(at_s[-1]),
            ),
            self._limit_w * self._unit,
        )
        self._levels = self._seen(read_w, at_s, drawn_w)
        wanted_w = float(orders.cap_w[0]) / self._unit
        if held_w is not None and abs(wanted_w - held_w) < STEP * self._most_w / 2:
            return None
        if held_w is None and wanted_w >= self._most_w:
            return None
        tightest = min(self._levels, key=lambda one: one.limit_w - np.nan_to_num(one.other_w))
        return BudgetChanged(
            at_s=0.0, budget_w=round(wanted_w, 3), source=SOURCE, cause=tightest.words()
        )

    def _seen(self, read_w: Floats, at_s: Floats, drawn_w: float) -> tuple[SiteLevel, ...]:
        above, held_w = set(self._path()), float(self._loop.caps.counted_w[0]) / self._unit
        names = [*(feed.name for feed in self._feeds), ""]
        limits_w = np.where(self._limit_w >= UNLIMITED_W, math.inf, self._limit_w)
        return tuple(
            SiteLevel(
                name=feed.name,
                parent=names[feed.above] if number < len(self._feeds) - 1 else "",
                limit_w=float(limits_w[number]),
                draw_w=float(read_w[number]),
                other_w=float(read_w[number]) - (drawn_w if number in above else 0.0),
                held_w=held_w if number in above else 0.0,
                read_at_s=float(at_s[number]),
            )
            for number, feed in enumerate(self._feeds)
        )

    def _path(self) -> list[int]:
        number = int(self._loop.fleet.feed[0])
        path = [number]
        while number < len(self._feeds) - 1:
            number = self._feeds[number].above
            path.append(number)
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRamps:
    """How fast a machine's draw may change by starts and stops, in W/s; None where it may."""

    up_w_s: float | None = None
    down_w_s: float | None = None
    window_s: float = 10.0


NO_RAMPS = StartRamps()


def start_ramps(limits: SiteLimits | None) -> StartRamps:
    """The tightest ramps of all levels above a machine.

    Raises:
        UserError: a ramp that nothing could keep, or a swing, which no scheduler holds.
    """
    if limits is None:
        return NO_RAMPS
    feeds = levels_above(limits)
    number = int(place_of(limits, feeds))
    path = [feeds[number]]
    while number < len(feeds) - 1:
        number = feeds[number].above
        path.append(feeds[number])
    for one in feeds:
        if math.isfinite(one.moves.swing_w):
            field = "site.swing" if one is feeds[-1] else f"site.feeds.{one.name}.swing"
            raise UserError("a scheduler holds no swing: jobs swing by themselves", field=field,
                            hint="ramp_up and ramp_down, or `wattherd power hold`")  # fmt: skip
    up_w_s = min(one.moves.up_w_s for one in path)
    down_w_s = min(one.moves.down_w_s for one in path)
    return StartRamps(
        up_w_s=up_w_s if math.isfinite(up_w_s) else None,
        down_w_s=down_w_s if math.isfinite(down_w_s) else None,
        window_s=seconds(limits.ramp_over, field="site.ramp_over"),
    )


def forget_site(keeper: CoreLoop) -> None:
    """Lift what these limits left, as none are configured any more."""
    if keeper.ask(_held).result(START_S) is not None:
        cause = "no limits of a site are configured any more"
        keeper.tell(BudgetChanged(at_s=0.0, budget_w=None, source=SOURCE, cause=cause))


def levels_above(limits: SiteLimits) -> list[SiteFeed]:
    """All levels, lower ones first, the site last."""
    if SOURCE in limits.feeds:
        raise UserError(f"{SOURCE!r} is the whole site", field=f"site.feeds.{SOURCE}",
                        hint="call the feed otherwise")  # fmt: skip
    names = {name: number for number, name in enumerate(lower_first(limits.feeds))}
    feeds = [feed_of(name, limits.feeds[name], names) for name in names]
    site = FeedSpec(limit=limits.limit)
    top = feed_of(SOURCE, site, {})
    meter = None if limits.meter is None else open_meter(limits.meter)
    whole = SiteFeed(name=SOURCE, above=len(names), limit=top.limit, meter=meter,
                 rated_w=watts_of(limits.rated, "site.rated", UNLIMITED_W),
                 base_w=watts_of(limits.base, "site.base"),
                 moves=moves_of(limits, "site."))  # fmt: skip
    return [*feeds, whole]


def storages_of(limits: SiteLimits, feeds: Sequence[SiteFeed]) -> tuple[HeldStorage, ...]:
    """Storage on these levels, by their numbers, the site last.

    Raises:
        UserError: a level, a size or an address that cannot be used.
    """
    numbers = {feed.name: number for number, feed in enumerate(feeds[:-1])}
    return tuple(
        storage_of(name, one, numbers, f"site.storages.{name}")
        for name, one in limits.storages.items()
    )


def place_of(limits: SiteLimits, feeds: list[SiteFeed]) -> int:
    """The level that the machine hangs on; the first of one, the site where there is no feed.

    Raises:
        UserError: it is not named, or not there.
    """
    names = [feed.name for feed in feeds[:-1]]
    if limits.feed is None:
        if len(names) > 1:
            raise UserError("is missing: there are several feeds", field="site.feed",
                            hint=f"one of {', '.join(names)}")  # fmt: skip
        return 0
    if limits.feed not in names:
        raise UserError(f"no feed {limits.feed!r}", field="site.feed",
                        hint=hint_for(limits.feed, names))  # fmt: skip
    return names.index(limits.feed)


def _reading(meter: Meter) -> Callable[[], tuple[float, float]]:
    def read() -> tuple[float, float]:
        try:
            reading = meter.read()
        except DeviceError:
            return math.nan, math.nan
        return reading.watts, reading.at_s

    return read


def _held(core: Core) -> float | None:
    return core.budgets.by_source.get("", {}).get(SOURCE)


def _told(watts: float) -> str:
    if math.isnan(watts):
        return "unknown"
    return "unlimited" if watts >= UNLIMITED_W else f"{watts:,.1f} W"
