"""The fleet of a site's safety loop: ranges, steps and meters, as stated and as knobs tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wattherd.devices.knobs.contract import KnobLimits
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.safety.loop import Breaker, Fleet
from wattherd.errors import UserError
from wattherd.hold.lines import ask_all
from wattherd.hold.saved_state import SavedDevice, SavedSite
from wattherd.hold.site_file import UNLIMITED_W, HeldDevice, HeldSite

START_S = 10.0
"""How long devices may take to tell their limits at the start."""


def fleet_of(site: HeldSite, memory: SavedSite | None = None) -> Fleet:
    """The devices' ranges: what the site states, within what the knobs tell.

    Of a knob that does not answer now, what a predecessor heard (`memory`) counts.

    Raises:
        UserError: a knob that does not tell its range, though the site leaves it to it.
    """
    told = ask_all(((one.knob.driver, _limits_of(one)) for one in site.devices), START_S)
    known = {} if memory is None else {one.knob: one for one in memory.devices}
    ranges = [
        _range(one, limits, known.get(one.knob.source))
        for one, limits in zip(site.devices, told, strict=True)
    ]
    return _fleet(site, ranges)


def unranged(site: HeldSite) -> Fleet:
    """The devices where their ranges do not matter: to put them back, nothing is asked of them."""
    return _fleet(site, [(0.0, UNLIMITED_W)] * len(site.devices))


def _fleet(site: HeldSite, ranges: Sequence[tuple[float, float]]) -> Fleet:
    return Fleet(
        feed=np.array([device.feed for device in site.devices]),
        floor_w=np.array([floor_w for floor_w, _ in ranges]),
        max_w=np.array([max_w for _, max_w in ranges]),
        breaker=Breaker(rated_w=np.array([*(feed.rated_w for feed in site.feeds), site.rated_w])),
        above=np.array([feed.above for feed in site.feeds], dtype=np.int64),
        metered=np.array([feed.meter is not None for feed in site.feeds], dtype=np.bool_),
        site_metered=site.meter is not None,
        device_metered=np.array([one.meter is not None for one in site.devices], dtype=np.bool_),
        step_w=np.array([device.step_w for device in site.devices]),
        base_w=np.array([*(feed.base_w for feed in site.feeds), site.base_w]),
    )


def _range(
    device: HeldDevice, told: KnobLimits | DeviceError | None, known: SavedDevice | None
) -> tuple[float, float]:
    limits = told if isinstance(told, KnobLimits) else None
    lowest_w = None if limits is None else limits.lowest
    highest_w = None if limits is None else limits.highest
    if limits is None and known is not None:
        lowest_w, highest_w = known.floor_w, known.max_w
    floor_w = lowest_w if device.floor_w is None else device.floor_w
    max_w = highest_w if device.max_w is None else device.max_w
    if floor_w is None or max_w is None:
        field = "floor" if floor_w is None else "max"
        why = "the knob does not tell it"
        if limits is None:
            why = told.problem if isinstance(told, DeviceError) else "the knob does not answer"
        raise UserError(f"is not known: {why}", where=str(device.knob.source),
                        field=f"devices.{device.name}.{field}", hint="state it")  # fmt: skip
    # Orders outside the knob's own range would be clamped, and never be read back.
    floor_w = floor_w if lowest_w is None else max(floor_w, lowest_w)
    max_w = max_w if highest_w is None else min(max_w, highest_w)
    return floor_w, max_w


def _limits_of(device: HeldDevice) -> Callable[[], KnobLimits | DeviceError]:
    def ask() -> KnobLimits | DeviceError:
        try:
            return device.knob.limits()
        except DeviceError as error:
            return error

    return ask
