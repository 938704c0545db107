"""Whom the core stops when budgets are cut and raised: nobody who need not, however late news is.

The same steps as `tests/kube/test_random_cuts.py` makes on a control plane, in a room with a clock
of its own, so that thousands of them take seconds.
"""

from __future__ import annotations

import random

import pytest
from kube_led_room import EMPTY_W, GPUS, NODES, RISE_W, TOLD_WITHIN_S, LedRoom, seen

from effort import times


def change(room: LedRoom) -> dict[str, float]:
    """One budget is cut or raised; or one is raised and the other cut, in one instant."""
    most = {"hall": NODES * GPUS, "rack-0": NODES * GPUS // 2}
    name, other = room.draws.sample(sorted(most), 2)
    wanted = {name: EMPTY_W[name] + RISE_W * room.draws.randint(0, most[name])}
    if room.draws.random() < 0.3:
        raised = room.budgets_w[other] + RISE_W * room.draws.randint(0, 3)
        return {other: raised, **wanted}
    return wanted


def step(room: LedRoom, ended: set[str], *, unrest: bool = False) -> bool:
    """One change; whether anybody had to stop.

    In `unrest` pods are deleted by others, and schedulers take over from each other.
    """
    room.let_go(0.5)
    room.arrive(room.draws.randint(0, 3))
    if unrest and room.draws.random() < 0.3:
        ended |= room.delete()
    if unrest and room.draws.random() < 0.2:
        room.lead()
    room.settle()
    before = seen(room)
    late = before.going - ended - room.undone
    assert not late, (late, "were stopped, and need not", room.story[-40:])
    wanted = change(room)
    wanted_w = room.budgets_w | wanted
    room.set_budgets(wanted)
    stopped, since_s = set[str](), room.now_s
    for _ in range(4000):
        right = before.with_those_ordered_since().must_stop(wanted_w, stopped)
        if stopped == right or room.now_s - since_s > TOLD_WITHIN_S:
            break
        room.run(0.05)
        now = room.going() - before.going
        if now != stopped:
            stopped, since_s = now, room.now_s
    room.arrive(room.draws.randint(0, 1))
    room.run(1.0)
    stopped = room.going() - before.going
    right = before.with_those_ordered_since().must_stop(wanted_w, stopped) & room.bound().keys()
    assert stopped == right, (sorted(stopped), sorted(right), wanted_w, room.story[-40:])
    ended |= room.going()
    return bool(right)


def steps(room: LedRoom, many: int, *, unrest: bool = False) -> None:
    ended = set[str]()
    room.arrive(8)
    cuts = sum(step(room, ended, unrest=unrest) for _ in range(many))
    assert not room.beyond, room.beyond[:3]
    assert cuts > many / 10


@pytest.mark.parametrize("seed", range(6))
def test_who_need_not_stop_stays_through_cuts_and_raises(seed: int) -> None:
    steps(LedRoom(random.Random(seed)), times(20))


@pytest.mark.parametrize("seed", range(6))
def test_the_less_important_stop_first_though_pods_are_deleted_and_leaders_change(
    seed: int,
) -> None:
    steps(LedRoom(random.Random(seed), priorities=(0, 0, 1)), times(20), unrest=True)


@pytest.mark.parametrize("seed", range(3))
def test_news_that_takes_a_second_stops_nobody_who_need_not(seed: int) -> None:
    steps(LedRoom(random.Random(seed), slow_s=1.0), times(20))
