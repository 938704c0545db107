"""Other load that is switched off and on: kept free for its return, then given back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from safety_room import Room, a_fleet, a_loop, limits
from wattherd.engine.safety.other_load_rises import SwitchedLoad
from wattherd.engine.safety.response import DrawResponse

LIMIT_W = 3000.0
SETTLED_S, BACK_S = 10, 60


def drawn(base: Callable[[int], float], seconds: int, **more: object) -> np.ndarray:
    """What the site draws, second by second, with other load `base` beside its devices."""
    fleet = a_fleet()
    room = Room(fleet, base=base, **more)  # type: ignore[arg-type]
    return room.run(a_loop(fleet), limits(fleet, LIMIT_W), seconds)[:, -1]


def above_s(drawn_w: np.ndarray, since_s: int) -> int:
    return int((drawn_w[since_s:] > LIMIT_W).sum())


@pytest.mark.long
@pytest.mark.parametrize("gone_w", [150.0, 300.0, 600.0])
@pytest.mark.parametrize("on_s", [5, 20, 80])
def test_what_other_load_gave_up_is_given_back_within_a_minute(gone_w: float, on_s: int) -> None:
    """It came once and went: nobody knows that it will come again."""
    off_s = 40 + on_s
    drawn_w = drawn(lambda at_s: 600.0 + gone_w * (40 <= at_s < off_s), off_s + 100)
    assert (drawn_w[off_s + BACK_S :] >= 0.95 * LIMIT_W).all()
    assert above_s(drawn_w, 40 + SETTLED_S) == 0


@pytest.mark.long
def test_what_was_on_from_the_beginning_may_come_back_as_well() -> None:
    drawn_w = drawn(lambda at_s: 300.0 + 300.0 * (at_s < 60 or at_s >= 90), 120)
    assert above_s(drawn_w, SETTLED_S) == 0


@pytest.mark.long
def test_a_load_that_comes_back_later_each_time_is_a_surprise_only_twice() -> None:
    """Off for 100 s each time: longer than what came once is waited for."""
    on_s = [at_s for first in range(60, 700, 130) for at_s in range(first, first + 30)]
    rises = list(range(60, 700, 130))
    drawn_w = drawn(lambda at_s: 300.0 + 400.0 * (at_s in on_s), 700)
    above = [above_s(drawn_w[: rise + 60], rise) for rise in rises]
    assert above[2:] == [0] * len(above[2:]), above
    assert max(above[:2]) <= SETTLED_S


@pytest.mark.long
def test_what_comes_back_on_top_of_a_ramp_is_no_surprise() -> None:
    """Its top is higher than all that was ever seen; it rises by no more than it fell."""

    def base(at_s: int) -> float:
        return 100.0 + 300.0 * min(at_s / 150.0, 1.0) + 250.0 * (at_s % 60 < 30)

    drawn_w = drawn(base, 180)
    assert above_s(drawn_w, SETTLED_S) == 0


@pytest.mark.long
@pytest.mark.parametrize("step", [2000, 2300, 2600])
def test_other_load_that_follows_devices_is_not_kept_free_after_a_cut(step: int) -> None:
    fleet = a_fleet()
    room = Room(fleet, rest_share=0.4, sees_rest=False)
    loop = a_loop(fleet)
    room.run(loop, limits(fleet, LIMIT_W), 60)
    room.run(loop, limits(fleet, float(step)), 40)
    drawn_w = room.run(loop, limits(fleet, LIMIT_W), 60)[:, -1]
    assert (drawn_w[20:] >= 0.95 * LIMIT_W).all()
    assert (drawn_w <= LIMIT_W).all()


@pytest.mark.parametrize("other_w", [2000.0, 2700.0])
def test_a_small_machine_beside_a_large_load_gets_what_that_leaves(other_w: float) -> None:
    """Hardly anything of what others draw follows two idle boards, and nothing has shown it yet."""
    fleet = a_fleet(2)
    room = Room(fleet, demand_w=40.0, base=lambda _: other_w)
    loop = a_loop(fleet)
    room.run(loop, limits(fleet, 3000.0), 30)
    left_w = min(3000.0 - other_w, 800.0)
    assert loop.offered_w() >= 0.4 * left_w


# --- the line itself, without a room -------------------------------------------------------------


def away_w(watts: list[float], load: SwitchedLoad) -> list[float]:
    """What may come back, look by look, at a level that draws 3,000 W."""
    found = []
    for read_w in watts:
        now_w = np.array([read_w])
        load.note(now_w, np.zeros(1), np.full(1, LIMIT_W), told=np.ones(1, dtype=bool), step_s=1.0)
        found.append(float(load.away_w(now_w)[0]))
    return found


def test_what_went_at_once_may_come_back_for_most_of_a_minute() -> None:
    found = away_w([500.0] * 20 + [200.0] * 70, SwitchedLoad(1))
    assert found[:20] == [0.0] * 20
    assert found[20:60] == [300.0] * 40
    assert found[75:] == [0.0] * 15


def test_what_went_slowly_is_not_waited_for() -> None:
    assert max(away_w([500.0] * 10 + [500.0 - 9.0 * n for n in range(50)], SwitchedLoad(1))) <= 50.0


def test_one_odd_reading_is_no_load_that_went() -> None:
    assert max(away_w([200.0] * 10 + [900.0] + [200.0] * 20, SwitchedLoad(1))) == 0.0


def test_of_two_loads_that_went_one_after_the_other_both_are_waited_for() -> None:
    """The first was away for half a minute when the second went."""
    found = away_w([900.0] * 20 + [700.0] * 30 + [200.0] * 40, SwitchedLoad(1))
    assert found[-1] == 700.0


def test_a_successor_waits_as_its_predecessor_did() -> None:
    first, successor = SwitchedLoad(1), SwitchedLoad(1)
    before_w = away_w([500.0] * 20 + [200.0] * 40 + [500.0] * 20 + [200.0] * 10, first)[-1]
    assert before_w == 300.0
    assert first.wait_s[0] >= 100.0  # it was away for 40 s
    successor.restore(first.away_w(np.array([200.0])), first.wait_s)
    assert away_w([200.0] * 90, successor) == [before_w] * 90


def test_a_cap_that_rose_by_two_percent_proves_no_floor() -> None:
    """Draw that stands still within the noise of its load is no device that cannot get lower."""
    response = DrawResponse(a_fleet(1), 0.0)
    yes, now_s = np.ones(1, dtype=bool), 0.0
    for cap_w, drawn_w in ((268.0, 272.0), (274.0, 271.0)):
        for _ in range(40):
            now_s += 1.0
            response.learn(np.array([cap_w]), np.array([drawn_w]), may=yes, told=yes, now_s=now_s,
                           settle_s=np.full(1, 4.0), step_s=1.0)  # fmt: skip
    assert response.reach_w[0] == 0.0


def test_what_comes_slowly_and_goes_at_once_lifts_no_line() -> None:
    """Fans, and jobs in step: else all watts would soon be kept for a load that never was."""
    turn = [200.0 + 14.0 * step for step in range(20)] + [480.0] * 5 + [200.0] * 5
    found = away_w(turn * 12, SwitchedLoad(1))
    assert max(found[at - 1] for at in range(len(turn), len(found), len(turn))) <= 280.0


def test_what_came_at_once_may_come_again_though_something_else_came_slowly() -> None:
    ramp = [200.0 + 10.0 * step for step in range(30)]
    found = away_w([700.0] * 10 + ramp + [1000.0] * 10 + [500.0] * 5, SwitchedLoad(1))
    assert found[-1] == 500.0
