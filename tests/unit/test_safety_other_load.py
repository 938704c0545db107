"""What the safety loop takes for other load that goes with devices, and what for their reach."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from safety_room import Room, a_fleet, a_loop, limits
from wattherd.engine.safety.loop import Readings


class LateMeters(Room):
    """Meters of devices that say nothing for the first four seconds."""

    def read(self) -> Readings:
        readings = super().read()
        if self.at_s >= 4:
            return readings
        unread = np.full(self.fleet.size, np.nan)
        return dataclasses.replace(readings, draw_w=unread, draw_at_s=unread)


@pytest.mark.long
def test_meters_that_begin_to_speak_do_not_hide_that_other_load_goes_with_devices() -> None:
    """From what was counted to what is read nothing has changed: no point of a regression."""
    fleet = a_fleet()
    room = LateMeters(fleet, rest_share=0.5, sees_rest=False)
    loop = a_loop(fleet)
    room.run(loop, limits(fleet, 3000), 60)
    room.run(loop, limits(fleet, 2200), 40)
    drawn_w = room.run(loop, limits(fleet, 3000), 60)[:, -1]
    assert 0.4 <= loop.base.slope[-1] <= 0.6
    assert (drawn_w <= 3000).all()


def test_caps_that_regulate_high_are_no_floor_that_is_not_reached() -> None:
    fleet = a_fleet()
    room = Room(fleet, regulates_at=1.045)
    loop, kinds = a_loop(fleet), set()
    for limit_w in (2400.0, 1000.0, 1150.0):
        for _ in range(25):
            room.run(loop, limits(fleet, limit_w), 1)
            kinds |= {note.kind for note in loop.notes()}
    assert "floor-not-reached" not in kinds


def test_other_load_is_known_as_soon_as_the_devices_meters_have_spoken() -> None:
    """While no meter tells of them devices count as capped, and all else hides behind that."""
    fleet = a_fleet()
    room = LateMeters(fleet, demand_w=250.0, base=lambda _: 700.0)
    loop = a_loop(fleet)
    room.run(loop, limits(fleet, 3500, 3500), 8)
    assert 0.95 * 700 <= loop.base.steady_w[0] <= 1.05 * 700
    room.demand_w = 400.0
    assert (room.run(loop, limits(fleet, 3500, 3500), 30)[:, 0] <= 3500).all()
