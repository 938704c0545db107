"""Which nodes a gang gets under each rule; nodes are told by the GPUs they have free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.policy.schedule.node_choice import (
    PLACEMENTS,
    CountTrial,
    Place,
    YarnTrial,
    anywhere,
    consolidated,
    yarn,
)


def placed(rule: Place, free: list[int], tasks: int, size: int = 8) -> list[tuple[int, int]] | None:
    shares = rule(np.array(free), np.full(len(free), size), tasks)
    return None if shares is None else [(share.node, share.tasks) for share in shares]


CASES = {
    "YARN takes the first node that fits": (yarn, [3, 8, 4], 4, [(1, 4)]),
    "YARN does not spread what fits on a node": (yarn, [3, 3, 3], 4, None),
    "YARN takes empty nodes and a rest": (yarn, [7, 8, 3, 8], 18, [(1, 8), (3, 8), (0, 2)]),
    "YARN needs whole nodes for a wide gang": (yarn, [7, 8, 7, 7], 16, None),
    "YARN finds the rest on another node": (yarn, [8, 8, 1], 17, [(0, 8), (1, 8), (2, 1)]),
    "consolidated takes the tightest node": (consolidated, [8, 4, 5], 4, [(1, 4)]),
    "consolidated takes few nodes": (consolidated, [3, 6, 4, 5], 13, [(1, 6), (3, 5), (0, 2)]),
    "consolidated gives up in time": (consolidated, [3, 3], 7, None),
    "no task needs no node": (consolidated, [3, 3], 0, []),
    "anywhere takes nodes as they come": (anywhere, [1, 0, 5], 4, [(0, 1), (2, 3)]),
    "anywhere counts": (anywhere, [1, 0, 2], 4, None),
}


@pytest.mark.parametrize("what", CASES)
def test_rule(what: str) -> None:
    rule, free, tasks, expected = CASES[what]
    assert placed(rule, free, tasks) == expected


@pytest.mark.parametrize("name", PLACEMENTS)
@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=6), tasks=st.integers(1, 30))
def test_every_rule_gives_all_tasks_within_what_is_free(
    name: str, free: list[int], tasks: int
) -> None:
    found = placed(PLACEMENTS[name], free, tasks)
    if name != "yarn":
        assert (found is not None) == (tasks <= sum(free)), "a gang fits wherever GPUs suffice"
    if found is not None:
        assert sum(taken for _, taken in found) == tasks
        used = dict.fromkeys(range(len(free)), 0)
        for node, taken in found:
            used[node] += taken
        assert all(used[node] <= free[node] for node in used)


@given(gangs=st.lists(st.integers(1, 20), max_size=12), nodes=st.integers(1, 4))
def test_packing_anew_is_the_rule_applied_gang_after_gang(gangs: list[int], nodes: int) -> None:
    trial, free, whole = YarnTrial([8] * nodes), np.full(nodes, 8), np.full(nodes, 8)
    layout, taken, misfits = [], [], []
    for at, gpus in enumerate(gangs):
        shares = yarn(free, whole, gpus)
        assert trial.take(gpus) == (shares is not None)
        if shares is None:
            misfits.append(at)
        else:
            taken.append(gpus)
        for share in shares or ():
            free[share.node] -= share.tasks
        if shares is not None:
            layout.append([(share.node, share.tasks) for share in shares])
    assert trial.layout(taken) == layout
    assert trial.full == (free.sum() == 0)
    assert YarnTrial([8] * nodes).take_each(gangs) == misfits


def test_counting_asks_for_the_sum_only() -> None:
    trial = CountTrial([4, 4])
    assert trial.take(5)
    assert not trial.take(4)
    assert trial.take_each([4, 2, 2, 1]) == [0, 2]
    assert trial.full
