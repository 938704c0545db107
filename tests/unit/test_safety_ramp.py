"""Limits on how fast and how far draw moves, in rooms where everything happens in one second."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import safety_room
from safety_room import Room, a_fleet, limits
from wattherd.engine.safety.contract import Bools, Floats
from wattherd.engine.safety.loop import Fleet, SafetyLoop
from wattherd.engine.safety.ramp import RampLimits
from wattherd.errors import UserError

CALM = dataclasses.replace(safety_room.CALM, unproven=0.0)
"""Devices here are known to keep their caps: watts of draw are watts of caps."""
OVER = 10
IDLE_W, BUSY_W = 60.0, 400.0
PLENTY_W = 40e3


def ramps(fleet: Fleet, **site: float) -> RampLimits:
    """Limits of the site alone."""
    levels = fleet.feeds + 1
    told = {name: np.append(np.full(levels - 1, np.inf), value) for name, value in site.items()}
    return RampLimits.of(levels, over_s=OVER, **told)


def a_held(fleet: Fleet, **site: float) -> SafetyLoop:
    return SafetyLoop(fleet, CALM, ramps=ramps(fleet, **site))


def rises(drawn_w: Floats, over: int = OVER) -> Floats:
    """How much the draw rose within each window of that length."""
    return np.array(
        [drawn_w[t] - drawn_w[max(t - over, 0) : t + 1].min() for t in range(len(drawn_w))]
    )


def phases(room: Room, loop: SafetyLoop, limit_w: Floats, *parts: tuple[float, int]) -> Floats:
    """The site's draw while all jobs want so many watts for so many seconds, part after part."""
    drawn = []
    for demand_w, seconds in parts:
        room.demand_w = demand_w
        drawn.append(room.run(loop, limit_w, seconds)[:, -1])
    return np.concatenate(drawn)


def kinds(loop: SafetyLoop) -> set[str]:
    return {note.kind for note in loop.notes()}


def test_without_limits_of_ramps_nothing_is_different() -> None:
    orders = []
    for given in ({}, {"ramps": RampLimits.of(2)}):
        fleet = a_fleet(4)
        room, loop = Room(fleet), SafetyLoop(fleet, CALM, **given)
        orders.append(phases(room, loop, limits(fleet, 1200.0), (400, 20), (60, 20), (400, 20)))
    assert np.array_equal(*orders)


@pytest.mark.long
@pytest.mark.parametrize("delay", [0, 3])
def test_64_jobs_that_start_in_one_second_rise_along_the_ramp(delay: int) -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet, delay=delay, demand_w=IDLE_W), a_held(fleet, up_w_s=500.0)
    drawn_w = phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 40), (BUSY_W, 120))
    assert rises(drawn_w)[5:].max() <= 1.03 * 500 * OVER
    assert drawn_w[-1] >= 0.98 * 64 * BUSY_W
    assert drawn_w[40 + 70] >= 0.95 * 64 * BUSY_W  # and no slower than it must be


@pytest.mark.long
def test_checkpoints_in_the_same_second_come_back_along_the_ramp() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, up_w_s=500.0)
    drawn_w = phases(
        room, loop, limits(fleet, PLENTY_W), (BUSY_W, 60), (110.0, 8), (BUSY_W, 60), (110.0, 8),
        (BUSY_W, 80),
    )  # fmt: skip
    assert rises(drawn_w)[40:].max() <= 1.03 * 500 * OVER
    assert drawn_w[-1] >= 0.98 * 64 * BUSY_W


@pytest.mark.long
def test_a_budget_lifted_at_once_is_taken_up_along_the_ramp() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, up_w_s=100.0)
    phases(room, loop, limits(fleet, 10e3), (BUSY_W, 60))
    drawn_w = phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 200))
    assert rises(drawn_w).max() <= 1.03 * 100 * OVER
    assert drawn_w[-1] >= 0.98 * 64 * BUSY_W
    assert (drawn_w[:100] < 0.9 * 64 * BUSY_W).all()


def test_a_feed_that_is_restored_comes_back_along_its_own_ramp() -> None:
    fleet = a_fleet(16, 2)
    up_w_s = np.array([50.0, np.inf, np.inf])
    loop = SafetyLoop(fleet, CALM, ramps=RampLimits.of(3, up_w_s=up_w_s, over_s=OVER))
    room = Room(fleet)
    cut_w, whole_w = np.array([900.0, 1e9, PLENTY_W]), limits(fleet, PLENTY_W)
    room.run(loop, cut_w, 40)
    drawn_w = room.run(loop, whole_w, 90)
    assert rises(drawn_w[:, 0]).max() <= 1.05 * 50 * OVER
    assert drawn_w[-1, 0] >= 0.97 * 8 * BUSY_W
    assert drawn_w[15, 1] >= 0.97 * 8 * BUSY_W  # the other feed knows nothing of it


def test_a_swing_within_a_window_is_held() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, swing_w=3000.0)
    drawn_w = phases(room, loop, limits(fleet, PLENTY_W), (300.0, 60), (220.0, 10), (BUSY_W, 60))
    after_w = drawn_w[72:]
    assert rises(after_w).max() <= 1.05 * 3000.0


def test_a_fall_that_nobody_ordered_is_measured_and_said() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, down_w_s=500.0, swing_w=4000.0)
    phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 40))
    assert not {"ramp-down", "swing-limit"} & kinds(loop)
    phases(room, loop, limits(fleet, PLENTY_W), (120.0, 3))
    assert {"ramp-down", "swing-limit"} <= kinds(loop)
    fall = next(note for note in loop.notes() if note.kind == "ramp-down")
    assert fall.level == 1
    assert fall.watts == pytest.approx(64 * 280 / OVER, rel=0.1)


def test_an_unannounced_cut_is_obeyed_at_once_and_said_to_have_gone_before_the_ramp() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, down_w_s=100.0)
    phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 40))
    drawn_w = phases(room, loop, limits(fleet, 12e3), (BUSY_W, 8))
    assert (drawn_w[4:] <= 12e3).all()
    assert "limit-before-ramp" in kinds(loop) or "ramp-down" in kinds(loop)


class Seesaw:
    """Aims that move watts from one feed to the other."""

    def __init__(self, fleet: Fleet) -> None:
        self.first, self.fleet = True, fleet

    def caps(self, now_s: float, budget_w: Floats) -> Floats:
        del now_s, budget_w
        own: Bools = (self.fleet.feed == 0) == self.first
        return np.where(own, 400.0, 100.0)


@pytest.mark.long
def test_cuts_that_no_limit_demands_are_made_along_the_ramp() -> None:
    fleet = a_fleet(32, 2)
    aims = Seesaw(fleet)
    down_w_s = np.array([100.0, np.inf, np.inf])
    held = RampLimits.of(3, down_w_s=down_w_s, over_s=OVER)
    loop = SafetyLoop(fleet, CALM, aims=aims, ramps=held)  # type: ignore[arg-type]
    room, limit_w = Room(fleet), limits(fleet, 8200.0)
    room.run(loop, limit_w, 60)
    aims.first = False
    drawn_w = room.run(loop, limit_w, 90)
    assert rises(-drawn_w[:, 0]).max() <= 1.05 * 100 * OVER
    assert drawn_w[-1, 0] <= 2000.0
    assert (drawn_w[:, -1] <= 8200.0).all()


def test_a_limit_tighter_than_the_devices_own_step_is_said_to_be_out_of_reach() -> None:
    """From idle to the lowest cap no order holds anything."""
    fleet = a_fleet(64)
    room, loop = Room(fleet, demand_w=IDLE_W), a_held(fleet, up_w_s=50.0)
    phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 60))
    found = [note for note in loop.notes() if note.kind == "ramp-out-of-reach"]
    assert [note.level for note in found] == [1]
    assert found[0].watts == pytest.approx(64 * 40 - 500, rel=0.1)
    phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 4))
    assert "ramp-up" in kinds(loop)


def test_what_is_kept_back_is_told() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet, demand_w=IDLE_W), a_held(fleet, up_w_s=400.0)
    phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 40), (BUSY_W, 10))
    held = next(note for note in loop.notes() if note.kind == "ramp-held")
    assert held.watts > 5000.0


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_jumps_releases_nothing(jump_s: int) -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet, demand_w=IDLE_W), a_held(fleet, up_w_s=400.0)
    before_w = phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 40), (BUSY_W, 8))
    room.at_s += jump_s
    after_w = phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 60))
    drawn_w = np.concatenate((before_w, after_w))
    assert rises(drawn_w)[5:].max() <= 2.0 * 400 * OVER  # a window's worth is not known of
    assert rises(after_w).max() <= 1.05 * 400 * OVER
    assert after_w[-1] >= 0.9 * 64 * BUSY_W


def test_a_successor_goes_on_along_the_ramp() -> None:
    fleet = a_fleet(64)
    room, loop = Room(fleet, demand_w=IDLE_W), a_held(fleet, up_w_s=400.0)
    parts = [phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 40), (BUSY_W, 4))]
    for _ in range(5):
        loop = SafetyLoop(fleet, CALM, state=loop.state(), ramps=ramps(fleet, up_w_s=400.0))
        parts.append(phases(room, loop, limits(fleet, PLENTY_W), (BUSY_W, 4)))
    assert rises(np.concatenate(parts))[5:].max() <= 1.2 * 400 * OVER


def test_other_load_that_rises_takes_its_part_of_the_ramp() -> None:
    fleet = a_fleet(64)
    room = Room(fleet, base=lambda at: 200.0 * float(np.clip(at - 40, 0, 20)), demand_w=IDLE_W)
    loop = a_held(fleet, up_w_s=400.0)
    drawn_w = phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 40), (BUSY_W, 80))
    assert rises(drawn_w)[5:].max() <= 1.5 * 400 * OVER  # both begin at once: nobody can know
    assert rises(drawn_w)[52:].max() <= 1.05 * 400 * OVER
    assert drawn_w[-1] >= 0.9 * (64 * BUSY_W + 4000)


@pytest.mark.long
def test_devices_without_meters_are_held_by_their_feeds() -> None:
    fleet = a_fleet(64, device_metered=np.zeros(64, dtype=np.bool_))
    room, loop = Room(fleet, demand_w=IDLE_W), a_held(fleet, up_w_s=500.0)
    drawn_w = phases(room, loop, limits(fleet, PLENTY_W), (IDLE_W, 60), (BUSY_W, 120))
    assert rises(drawn_w)[5:].max() <= 1.1 * 500 * OVER
    assert drawn_w[-1] >= 0.9 * 64 * BUSY_W


def test_a_ramp_never_keeps_a_limit_from_being_held() -> None:
    """Ramps are stated for both ways, the limit saws: it is met in all of its cuts."""
    fleet = a_fleet(64)
    room, loop = Room(fleet), a_held(fleet, up_w_s=300.0, down_w_s=300.0, swing_w=2000.0)
    for limit_w in (20e3, 9e3, 24e3, 12e3, 8e3):
        drawn_w = phases(room, loop, limits(fleet, limit_w), (BUSY_W, 20))
        assert (drawn_w[5:] <= limit_w).all()


@pytest.mark.parametrize(
    ("field", "value"), [("up_w_s", 0.0), ("down_w_s", -1.0), ("swing_w", 0.0), ("up_w_s", np.nan)]
)
def test_limits_that_nothing_could_keep_are_refused(field: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        RampLimits.of(2, **{field: np.array([np.inf, value])})
    assert caught.value.hint


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(UserError):
        RampLimits.of(2, over_s=0.0)
