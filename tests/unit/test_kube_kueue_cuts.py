"""Whom Kueue's check ends when budgets are cut and raised: nobody who need not, however late news.

The same steps as `tests/kube/test_random_cuts.py` makes with Kueue's own manager, in a room with a
clock of its own.
"""

from __future__ import annotations

import random

import pytest
from kube_kueue_room import AGAIN_S, KueueRoom, and_of
from kube_led_room import TOLD_WITHIN_S, seen
from test_kube_led_cuts import change

from effort import times


def step(room: KueueRoom, ended: set[str], *, unrest: bool = False) -> bool:
    """One change; whether anybody had to stop. In `unrest` checks take over from each other."""
    room.let_go(0.5)
    room.arrive(room.draws.randint(0, 3))
    if unrest and room.draws.random() < 0.3:
        room.lead()
    room.settle()
    before = seen(room)
    late = before.going - ended
    assert not late, (late, "were stopped, and need not", room.story[-60:])
    wanted = change(room)
    wanted_w = room.budgets_w | wanted
    answer = before.must_stop(wanted_w)
    room.set_budgets(wanted)

    def look() -> tuple[set[str], set[str]]:
        stopped = room.going() - before.going
        since = {uid: made for uid, made in room.bound().items() if uid not in before.bound}
        right = set[str]()
        for one in and_of(before, since, stopped):
            right = one.must_stop(wanted_w, stopped)
            if right == stopped:
                break
        return stopped, right

    (stopped, right), since_s = look(), room.now_s
    for _ in range(4000):
        if stopped == right or room.now_s - since_s > TOLD_WITHIN_S:
            break
        room.run(0.05)
        now, right = look()
        if now != stopped:
            stopped, since_s = now, room.now_s
    room.arrive(room.draws.randint(0, 1))
    # What was let in before the cut was heard is told again, and an answer may meet a change.
    room.run(4.0 * room.slow_s + 2.0 * AGAIN_S)
    stopped, right = look()
    assert stopped == right, (sorted(stopped), sorted(right), wanted_w, room.story[-60:])
    ended |= room.going()
    return bool(answer)


def steps(room: KueueRoom, many: int, *, unrest: bool = False) -> None:
    ended = set[str]()
    room.arrive(8)
    cuts = sum(step(room, ended, unrest=unrest) for _ in range(many))
    assert cuts > many / 10


@pytest.mark.parametrize("seed", range(6))
def test_who_need_not_stop_stays_through_cuts_and_raises(seed: int) -> None:
    steps(KueueRoom(random.Random(seed)), times(20))


@pytest.mark.parametrize("seed", range(6))
def test_so_they_do_where_news_is_slow_and_checks_take_over_from_each_other(seed: int) -> None:
    steps(KueueRoom(random.Random(seed), slow_s=2.0), times(15), unrest=True)
