"""Knobs that round to steps without a word are asked for whole steps once they are found out."""

from __future__ import annotations

import numpy as np
import pytest

from safety_room import Room, a_fleet, a_loop, limits

LIMIT_W = 2_370.0


@pytest.mark.parametrize("step_w", [10.0, 25.0])
def test_the_limit_is_used_where_knobs_round_without_a_word(step_w: float) -> None:
    fleet = a_fleet()
    loop, room = a_loop(fleet), Room(fleet, knob_step_w=step_w)
    drawn_w = room.run(loop, limits(fleet, LIMIT_W), 90)[:, -1]
    assert drawn_w[50:].mean() >= 0.95 * LIMIT_W
    assert drawn_w[5:].max() <= LIMIT_W


def test_a_cut_to_between_two_steps_does_not_become_the_lowest_cap_for_ever() -> None:
    fleet = a_fleet()
    loop, room = a_loop(fleet), Room(fleet, knob_step_w=25.0)
    room.run(loop, limits(fleet, LIMIT_W), 60)
    room.run(loop, limits(fleet, 1_830.0), 30)
    low_w = room.run(loop, limits(fleet, 1_210.0), 30)[:, -1]
    assert low_w[12:].max() <= 1_210.0


def test_a_knob_that_clamps_is_no_knob_of_steps() -> None:
    """It says 260 W to all lower orders, and was never seen below."""
    fleet = a_fleet()
    loop, room = a_loop(fleet), Room(fleet, lowest_w=260.0)
    drawn_w = room.run(loop, limits(fleet, LIMIT_W), 90)[:, -1]
    assert loop.caps.step_w == pytest.approx(1.0)
    assert drawn_w[50:].mean() >= 0.95 * LIMIT_W


def test_what_counts_as_an_answer_is_as_strict_as_before() -> None:
    fleet = a_fleet()
    loop, room = a_loop(fleet), Room(fleet, knob_step_w=25.0)
    room.run(loop, limits(fleet, LIMIT_W), 60)
    assert np.all(loop.caps.tolerance_w < 1.0)
