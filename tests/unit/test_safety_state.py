"""What a safety loop hands to its successor survives JSON, and devices that come and go."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np

from wattherd.engine.safety.loop import Breaker, Fleet, Readings, SafetyLoop
from wattherd.engine.safety.state import SafetyState, nothing_known


def a_loop() -> SafetyLoop:
    fleet = Fleet(
        feed=np.array([0, 0, 1]),
        floor_w=np.full(3, 100.0),
        max_w=np.full(3, 400.0),
        breaker=Breaker(rated_w=np.full(3, 1e9)),
    )
    loop = SafetyLoop(fleet)
    readings = Readings(
        now_s=1.0, draw_w=np.full(3, 200.0), draw_at_s=np.ones(3), cap_w=np.full(3, 250.0),
        feed_w=np.array([400.0, 200.0]), feed_at_s=np.ones(2), off=np.zeros(3, dtype=bool),
    )  # fmt: skip
    loop.cycle(readings, np.full(3, 1e4))
    return loop


def same(left: SafetyState, right: SafetyState) -> bool:
    return all(
        np.array_equal(getattr(left, one.name), getattr(right, one.name), equal_nan=True)
        for one in fields(SafetyState)
    )


def test_a_state_survives_json() -> None:
    state = a_loop().state()
    told = json.loads(json.dumps(state.as_lists(), allow_nan=False))
    assert same(SafetyState.from_lists(told, size=3, levels=3), state)
    assert state.found_w.tolist() == [250.0] * 3


def test_what_an_older_version_did_not_keep_is_unknown() -> None:
    told = a_loop().state().as_lists()
    del told["base_w"]
    told["heat"] = [0.1]  # of another site: not for these levels
    state = SafetyState.from_lists(told, size=3, levels=3)
    assert np.isnan(state.base_w).all()
    assert np.isnan(state.heat).all()


def test_devices_that_came_are_unknown_and_those_that_stayed_keep_what_was_learned() -> None:
    known_w, heat = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    state = replace(nothing_known(3, 3), held_w=known_w, heat=heat)
    moved = state.reordered(np.array([2, -1, 0, 1]), np.array([0, -1, 2]))
    assert np.array_equal(moved.held_w, [3.0, np.nan, 1.0, 2.0], equal_nan=True)
    assert np.array_equal(moved.heat, [4.0, np.nan, 6.0], equal_nan=True)
