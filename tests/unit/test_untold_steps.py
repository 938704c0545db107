"""Knobs that round to steps without a word are asked for whole steps once they are found out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safety_room import CALM, Room, a_fleet, a_loop, limits
from wattherd.engine.safety.caps import CapBook

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


def test_a_knob_that_repeats_an_order_of_long_ago_is_no_knob_of_steps() -> None:
    """More orders are under way than are remembered: 320 W may be the echo of one of them."""
    fleet = a_fleet()
    book, at_s = CapBook(fleet, CALM), 0.0

    def told(cap_w: float) -> None:
        nonlocal at_s
        readings = replace(Room(fleet).read(), now_s=at_s, cap_w=np.full(8, cap_w))
        book.read_back(
            readings, np.ones(8, dtype=bool), np.full(8, 190.0),
            resolution_w=np.zeros(8), news_s=np.ones(8),
        )  # fmt: skip
        at_s += 1.0

    told(200.0)
    for ordered_w in (320.0, 350.0, 345.0, 340.0, 335.0, 330.0, 325.0, 315.0, 310.0, 300.0):
        book.order(np.full(8, ordered_w))
        told(200.0)
    for _ in range(15):
        told(320.0)
    assert book.step_w == pytest.approx(1.0)
