"""The safety loop of a service whose devices have knobs: the one hand that sets their caps.

It is the loop of `wattherd power hold` (`hold.daemon`), on a thread of its own and with its
hand-over: this machine is the lowest level of the tree, below the levels that the configuration
names above it. The scheduler's caps are wishes that the loop serves within what is safe; what the
limits leave becomes a budget of the scheduler, and a device whose job has to stop is drained, so
that jobs there are stopped by the scheduler, with a reason. None of that is waited for: while the
scheduler is stuck the loop goes on with what it knew last, and has jobs stopped without it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.devices.knobs.contract import OrderOutcome
from wattherd.devices.knobs.switch import Position
from wattherd.engine.core.core import Core
from wattherd.engine.safety.aims import CapWishes
from wattherd.engine.safety.contract import Floats, SafetyConfig
from wattherd.engine.safety.loop import Orders, Readings, SafetyLoop
from wattherd.errors import UserError
from wattherd.hold.daemon import HoldLoop, Shift
from wattherd.hold.site_file import (
    UNLIMITED_W,
    HeldDevice,
    HeldSite,
    InstrumentSpec,
    Moves,
    SiteFeed,
    constants_of,
    device_of,
)
from wattherd.local.devices import Machine
from wattherd.model.event import BudgetChanged, DeviceDrained, DeviceReturned, Event
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.limits.cap_wishes import HeldCap, WishedCaps
from wattherd.server.limits.site_limits import (
    SOURCE,
    SiteLevel,
    SiteLimits,
    levels_above,
    place_of,
    storages_of,
)
from wattherd.units import seconds

JOURNAL = "caps.json"
AGAIN_S = 5.0
"""After a failed start of the loop."""
STUCK_S = 5.0
"""A scheduler that has not answered for so long is not waited for any more."""
STEP = 0.01
"""Of what the machine draws at most: smaller changes of its budget are not worth an event."""
DRAINED_FOR = "follows no cap: "
"""How the reason begins for which the loop takes a device out of use."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSaid:
    """What the scheduler last said: budgets (W, None without), GPUs with jobs, GPUs out of use."""

    stated_w: float | None
    left_w: float | None
    busy: frozenset[int]
    out: Mapping[int, str]


@dataclass(slots=True)
class SiteHold:
    """The loop of one service; `begin` it with the core as it was recovered, `end` it last.

    Raises:
        UserError: a limit, a feed, a meter or a knob that cannot be used.
    """

    machine: Machine
    wished: WishedCaps
    folder: Path
    limits: SiteLimits | None
    stop_at_once: Callable[[Collection[str]], None] = lambda _: None
    """Stops the jobs on devices without the scheduler, which is stuck."""
    problem: str = ""
    """Why nothing is held at the moment."""
    _keeper: CoreLoop | None = None
    _site: HeldSite = field(init=False)
    _said: CoreSaid = CoreSaid(stated_w=None, left_w=None, busy=frozenset(), out={})
    _said_s: float = 0.0
    _asked: Future[CoreSaid] | None = None
    _asked_s: float = 0.0
    _known_s: float = 0.0
    """When the scheduler was asked what it said last."""
    _news: int = 0
    _levels: tuple[SiteLevel, ...] = ()
    _ended: threading.Event = field(default_factory=threading.Event)
    _poke: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        """Addresses are read; nothing is connected to yet."""
        self._site = site_of(self.machine, self.folder, self.limits)
        self.wished.poke = self._poke.set

    # From any thread ----------------------------------------------------------------------------

    def levels(self) -> tuple[SiteLevel, ...]:
        """Those above this machine as the last cycle saw them, lower ones first, the site last."""
        return () if self.limits is None else self._levels[1:]

    def begin(self, keeper: CoreLoop, core: Core) -> None:
        """Go on from where the last loop ended, with what the recovered `core` holds."""
        self._keeper = keeper
        self._said, self._said_s = _scheduled(core), time.monotonic()
        self.wished.begin(_caps_of(core, self.machine))
        self._thread = threading.Thread(target=self._run, name="safety loop", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop; caps stay for a successor, until their lease ends."""
        self._ended.set()
        self._poke.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    # The thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            hold = HoldLoop(self._site, _log, self._ended, liaison=self, poke=self._poke,
                        guarded=self.limits is not None)  # fmt: skip
            try:
                hold.run()
            except UserError as error:
                self.problem = error.line()
                _LOG.warning("no caps are held: %s", self.problem)
            except Exception as error:  # noqa: BLE001 - nobody else holds the limits then
                self.problem = f"the safety loop has failed: {error}"
                _LOG.exception("the safety loop has failed and begins anew")
            self.wished.hold({})
            self._ended.wait(AGAIN_S)

    # For the loop (`hold.Liaison`) --------------------------------------------------------------

    def limits_w(self, site: HeldSite, limit_w: Floats) -> Floats:
        """The budget that operators and signals gave is the limit of this machine's level.

        The loop's margin is added to it: the scheduler's caps are to fit as they are.
        """
        stated_w = self._said.stated_w
        if stated_w is not None:
            limit_w[0] = min(limit_w[0], stated_w / (1.0 - site.config.margin))
        return limit_w

    def wishes(self, site: HeldSite, loop: SafetyLoop, *, found_known: bool) -> CapWishes:
        """Caps of jobs; a device without one has the limit that it was found with."""
        fleet = loop.fleet
        self._news, wished = self.wished.wished()
        most_w = fleet.max_w.copy()
        if found_known:
            most_w = np.fmin(most_w, loop.found_w)
        idle = np.zeros(fleet.size, dtype=np.bool_)
        for row, number in self._own(site):
            uuid = self.machine.devices[number].uuid
            cap_w = wished.get(uuid)
            if cap_w is not None:
                most_w[row] = cap_w
            busy = number in self._said.busy or self.wished.began_since(uuid, self._known_s)
            idle[row] = not busy
        return CapWishes(aim_w=most_w, most_w=most_w, idle=idle)

    def heard(self, shift: Shift, readings: Readings, orders: Orders, limit_w: Floats) -> None:
        """Tell everybody what is in force now."""
        self.problem = ""
        self._levels = self._seen(shift, readings, limit_w)
        caps, fleet = shift.loop.caps, shift.fleet
        held = {}
        for row, number in self._own(shift.site):
            uuid = self.machine.devices[number].uuid
            held[uuid] = HeldCap(float(caps.held_w[row]), float(fleet.floor_w[row]),
                                 float(caps.step_w[row]), self._news)  # fmt: skip
            if caps.settled[row]:
                self.wished.follows(uuid)
        self.wished.hold(held)
        self._speak(shift, orders)

    def told(self, device: HeldDevice, outcome: OrderOutcome | Position) -> None:
        """An order did not take effect."""
        number = _number(device)
        if number is not None and isinstance(outcome, OrderOutcome):
            self.wished.refused(self.machine.devices[number].uuid, outcome)

    def _own(self, site: HeldSite) -> list[tuple[int, int]]:
        """Rows of the loop's devices and their numbers on this machine; others are leaving."""
        pairs = ((row, _number(device)) for row, device in enumerate(site.devices))
        return [(row, number) for row, number in pairs if number is not None]

    # To the scheduler ---------------------------------------------------------------------------

    def _speak(self, shift: Shift, orders: Orders) -> None:
        """Exchange news with the scheduler, which answers when it can."""
        stopped = self._stopped(shift, orders)
        keeper, now_s = self._keeper, time.monotonic()
        if keeper is None:
            return
        if self._asked is not None and self._asked.done():
            if self._asked.exception() is None:
                self._said, self._said_s = self._asked.result(), now_s
                self._known_s = self._asked_s
                for event in self._news_of(shift, stopped):
                    keeper.tell(event)
            self._asked = None
        if self._asked is None:
            self._asked, self._asked_s = keeper.ask(_scheduled), now_s
        if stopped and now_s - self._said_s > STUCK_S:
            self.stop_at_once([self.machine.devices[number].uuid for number in stopped])

    def _stopped(self, shift: Shift, orders: Orders) -> dict[int, str]:
        """GPUs whose jobs are to be stopped, and why."""
        stop = orders.stop_job
        if stop is None or not stop.any():
            return {}
        why = self._exceeded()
        return {number: why for row, number in self._own(shift.site) if stop[row]}

    def _news_of(self, shift: Shift, stopped: Mapping[int, str]) -> Sequence[Event]:
        """What the scheduler does not know yet."""
        node, out = self.machine.node.name, self._said.out
        events: list[Event] = [
            DeviceDrained(at_s=0.0, node=node, gpu=gpu, cause=DRAINED_FOR + why)
            for gpu, why in stopped.items()
            if gpu not in out
        ]
        events += [
            DeviceReturned(at_s=0.0, node=node, gpu=gpu, cause="its watts fit again")
            for gpu, why in out.items()
            if why.startswith(DRAINED_FOR) and gpu not in stopped
        ]
        budget = self._budget(shift)
        return events if budget is None else [*events, budget]

    def _budget(self, shift: Shift) -> BudgetChanged | None:
        """What the levels above leave, if it is another than the scheduler plans with."""
        if self.limits is None:
            return None
        loop, node = shift.loop, self.machine.node
        above_w = loop.budget_w.copy()
        above_w[0] = UNLIMITED_W
        unlimited = float(above_w.min()) >= UNLIMITED_W / 2
        most_w = node.idle_w + node.gpu_count * self.machine.gpu.max_w
        step_w = STEP * most_w
        left_w = min(node.idle_w + loop.offered_w(above_w), most_w)
        least_w = node.idle_w + float(shift.fleet.floor_w.sum())
        coarse_w = max(math.floor(left_w / step_w) * step_w, 0.0)
        left_w = coarse_w if coarse_w >= least_w else min(max(left_w, 0.0), least_w)
        if left_w >= most_w - 1.5 * step_w:
            left_w = most_w
        said_w = self._said.left_w
        if said_w is None and (unlimited or left_w >= most_w):
            return None
        if said_w is not None and abs(left_w - said_w) < 0.75 * step_w:
            return None
        return BudgetChanged(at_s=0.0, budget_w=round(left_w, 3), source=SOURCE,
                             cause=self._tightest())  # fmt: skip

    def _tightest(self) -> str:
        above = [one for one in self._levels[1:] if math.isfinite(one.limit_w)]
        if not above:
            return "the limits of the site"
        return min(above, key=lambda one: one.limit_w - np.nan_to_num(one.other_w)).words()

    def _exceeded(self) -> str:
        """The level that is exceeded most, for users whose jobs are stopped."""

        def over_w(level: SiteLevel) -> float:
            return max(float(np.nan_to_num(level.draw_w)), level.held_w) - level.limit_w

        limited = [one for one in self._levels if math.isfinite(one.limit_w)]
        return max(limited, key=over_w).words() if limited else "a limit is exceeded"

    def _seen(self, shift: Shift, readings: Readings, limit_w: Floats) -> tuple[SiteLevel, ...]:
        loop, fleet, site = shift.loop, shift.fleet, shift.site
        own_w = fleet.levels(np.where(readings.off, 0.0, readings.draw_w))
        held_w = fleet.levels(loop.caps.counted_w)
        read_w = np.append(readings.feed_w, readings.site_w)
        at_s = np.append(readings.feed_at_s, readings.site_at_s)
        read_w[0] = own_w[0] + self.machine.node.idle_w
        names = [*(feed.name for feed in site.feeds), SOURCE]
        limit_w = limit_w.copy()
        if self._said.stated_w is not None:
            limit_w[0] = self._said.stated_w
        levels = [
            SiteLevel(
                name=name,
                parent=names[site.feeds[row].above] if row < len(site.feeds) else "",
                limit_w=math.inf if limit_w[row] >= UNLIMITED_W else float(limit_w[row]),
                draw_w=float(read_w[row]),
                other_w=float(read_w[row] - own_w[row]),
                held_w=float(held_w[row]),
                read_at_s=float(at_s[row]),
            )
            for row, name in enumerate(names)
        ]
        return tuple(levels)


def site_of(machine: Machine, folder: Path, limits: SiteLimits | None) -> HeldSite:
    """The tree that is held: this machine as the first level, below those that are configured.

    Raises:
        UserError: a limit, a feed, a meter or a knob that cannot be used.
    """
    stated = limits or SiteLimits()
    above = levels_above(stated)
    place = place_of(stated, above)
    *feeds, top = above
    taken = {feed.name for feed in above}
    name = machine.node.name
    own = SiteFeed(
        name=f"{name} (machine)" if name in taken else name,
        above=place + 1, limit=((0.0, UNLIMITED_W),), rated_w=UNLIMITED_W,
        base_w=machine.node.idle_w, meter=None,
    )  # fmt: skip
    devices = tuple(
        device_of(f"gpu-{number}", spec, 0, f"site.devices.{number}")
        for number, spec in enumerate(_specs(machine, stated))
    )
    return HeldSite(
        path=folder / JOURNAL,
        journal=(folder / JOURNAL).resolve(),
        limit=top.limit,
        rated_w=top.rated_w,
        base_w=top.base_w,
        meter=top.meter,
        since_s=None,
        period_s=seconds(stated.period, field="site.period"),
        feeds=(own, *(replace(feed, above=feed.above + 1, moves=Moves()) for feed in feeds)),
        devices=devices,
        config=_constants(stated),
        handover_s=seconds(stated.handover, field="site.handover"),
        storages=tuple(
            replace(one, where=replace(one.where, level=one.where.level + 1))
            for one in storages_of(stated, above)
        ),
    )


def _constants(stated: SiteLimits) -> SafetyConfig:
    lease_s, period_s = seconds(stated.lease), seconds(stated.period)
    if lease_s < 2 * period_s:
        raise UserError("is shorter than two periods", field="site.lease",
                        hint="`lease: 15s` suits most sites")  # fmt: skip
    return constants_of(lease_s, stated.safety, stops_jobs=True)


def _specs(machine: Machine, stated: SiteLimits) -> Sequence[InstrumentSpec]:
    """As configured, else what the machine's own driver measures and limits them by."""
    if stated.devices:
        return stated.devices
    return [InstrumentSpec(meter=one.meter or None, knob=one.knob) for one in machine.devices]


def _number(device: HeldDevice) -> int | None:
    """Of a device of this machine; None for one that leaves and is not configured any more."""
    kind, _, number = device.name.partition("-")
    return int(number) if kind == "gpu" and number.isdecimal() else None


def _scheduled(core: Core) -> CoreSaid:
    sources = core.budgets.by_source.get("", {})
    stated = [watts for source, watts in sources.items() if source != SOURCE and watts is not None]
    active = (job for job in core.jobs.values() if job.active)
    return CoreSaid(
        stated_w=min(stated, default=None),
        left_w=sources.get(SOURCE),
        busy=frozenset(gpu for job in active for one in job.allocations for gpu in one.gpus),
        out={gpu: why.cause for (_, gpu), why in core.drained.out.items()},
    )


def _caps_of(core: Core, machine: Machine) -> dict[str, float | None]:
    """What the jobs that run were given, by UUID: the lower of planned and in force."""
    caps: dict[str, float | None] = {}
    for job in core.jobs.values():
        given = [cap for cap in (job.cap_w, job.wanted_cap_w) if cap is not None]
        if job.active:
            for uuid in machine.uuids(job.allocations):
                caps[uuid] = min(given, default=None)
    return caps


def _log(line: Mapping[str, Any]) -> None:
    """What an operator may want to know of, beside the levels and the devices' problems."""
    if line["event"] not in ("cycle", "outcome", "signals"):
        _LOG.info(
            "safety loop: %s", {name: said for name, said in line.items() if name != "schema"}
        )
