"""Who gives a cap back that it does not use, and how soon: learned of each device."""

from __future__ import annotations

import numpy as np
import pytest

from wattherd.engine.safety import Fleet, SafetyConfig
from wattherd.engine.safety.contract import Breaker
from wattherd.engine.safety.meters import TrustedReadings
from wattherd.engine.safety.wanted_caps import TRIPS, Wants

HELD_W = 600.0
CONFIG = SafetyConfig()


def a_fleet() -> Fleet:
    return Fleet(
        feed=np.zeros(1, dtype=np.int64), floor_w=np.array([100.0]), max_w=np.array([700.0]),
        breaker=Breaker(rated_w=np.array([1000.0, 1000.0])),
    )  # fmt: skip


class Device:
    """One that rests and works, and what its cap is worth to it."""

    def __init__(self) -> None:
        self.wants = Wants(a_fleet(), CONFIG)
        self.now_s = 0.0

    def look(self, draw_w: float, answer_s: float = 0.5) -> float:
        self.now_s += 1.0
        seen = TrustedReadings(
            draw_w=np.array([draw_w]), feed_w=np.array([np.nan]), agreed=np.array([True]),
            missing_share=0.0, still=np.array([False]),
        )  # fmt: skip
        held_w = np.array([HELD_W])
        return float(self.wants.caps(seen, held_w, self.now_s, answer_s=answer_s)[0])

    def rests(self, seconds: int, answer_s: float = 0.5) -> int:
        """Seconds until it gave back; as many as it rested if it did not."""
        found = [self.look(90.0, answer_s) for _ in range(seconds)]
        self.works(30)
        return next((at for at, cap_w in enumerate(found) if cap_w < HELD_W), seconds)

    def works(self, seconds: int) -> None:
        for _ in range(seconds):
            assert self.look(598.0) == 700.0


def test_who_rests_gives_back_within_seconds() -> None:
    assert Device().rests(40) == CONFIG.idle_s


def test_who_writes_checkpoints_is_waited_for() -> None:
    """Seven seconds every half minute: after a few its cap is left alone."""
    one = Device()
    found = [one.rests(7) for _ in range(6)]
    assert found[0] == CONFIG.idle_s
    assert found[-3:] == [7, 7, 7]


def test_who_then_stays_away_is_waited_for_less_and_less() -> None:
    one = Device()
    for _ in range(6):
        one.rests(7)
    found = [one.rests(120) for _ in range(6)]
    assert found[0] > 7
    assert found == sorted(found, reverse=True)
    assert found[-1] == CONFIG.idle_s


def test_nobody_is_waited_for_longer_than_the_most() -> None:
    one = Device()
    for rest_s in (4, 7, 13, 25, 26, 27, 28):
        one.rests(rest_s)
    assert one.rests(120) <= CONFIG.idle_most_s


@pytest.mark.parametrize("answer_s", [4.0, 8.0])
def test_a_cap_that_takes_long_to_move_is_not_moved_for_a_short_dip(answer_s: float) -> None:
    assert Device().rests(40, answer_s) == TRIPS * answer_s
