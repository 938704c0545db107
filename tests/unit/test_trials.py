"""A simulated hyper-parameter search: the same trials, the same answer, sooner."""

from __future__ import annotations

import numpy as np

from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn
from wattherd.experiments.schedule.search_trials import SearchGroup, a_search
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import Fifo
from wattherd.policy.schedule.search import Search, SuccessiveHalving
from wattherd.testing.timed_world import t4_nodes

FIFO = in_turn(OrderedTerms(), Fifo(), Discipline.STRICT)
WORK_S = 1_800.0


def search() -> SearchGroup:
    return a_search(9, WORK_S, np.random.default_rng(4))


def test_losses_begin_at_three_and_fall_to_their_floor() -> None:
    for curve in search().curves.values():
        assert abs(curve.loss(0.0) - 3.0) < 1e-9
        assert 0.1 <= curve.b2 < curve.loss(WORK_S) < 3.0


def test_all_to_the_end_finds_the_best_when_all_are_through() -> None:
    """Nine trials on two GPUs are five in a row, each with a second to get going."""
    found = search().run(FIFO, t4_nodes(2))
    assert (found.rank, found.finished) == (1, 9)
    assert found.known_s == 5 * (WORK_S + 1.0)
    assert found.gpu_s == 9 * (WORK_S + 1.0)


def test_successive_halving_knows_much_sooner_and_for_less() -> None:
    rule = SuccessiveHalving(first=WORK_S / 9, eta=3, rungs=2)
    whole = search().run(FIFO, t4_nodes(2))
    for planner in (FIFO, Gandiva()):
        found = search().run(Search(planner=planner, rule=rule), t4_nodes(2))
        assert found.finished == 1
        assert found.rank <= 3
        assert found.known_s < whole.known_s / 2
        assert found.gpu_s < whole.gpu_s / 2
        assert found == search().run(Search(planner=planner, rule=rule), t4_nodes(2))
