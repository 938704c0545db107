"""A packing that remembers is the packing that it remembers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.policy.schedule import packings
from wattherd.policy.schedule.node_choice import YarnTrial
from wattherd.policy.schedule.packings import MOST_NODES, RememberedTrial, yarn_trial

clusters = st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=6)
gangs = st.lists(st.integers(1, 20), max_size=20)


@given(gpus=clusters, rounds=st.lists(gangs, min_size=1, max_size=4), alone=st.integers(1, 20))
def test_what_fits_is_the_same_however_often_it_was_packed(
    gpus: list[int], rounds: list[list[int]], alone: int
) -> None:
    for one_round in rounds:
        plain, remembering = YarnTrial(gpus), RememberedTrial(gpus)
        assert remembering.take(alone) == plain.take(alone)
        assert remembering.take_each(one_round) == plain.take_each(one_round)
        assert remembering.full == plain.full


@given(gpus=clusters, asked=gangs)
def test_several_gangs_are_taken_as_one_after_the_other(gpus: list[int], asked: list[int]) -> None:
    together, single = YarnTrial(gpus), YarnTrial(gpus)
    misfits = together.take_each(asked)
    assert misfits == [at for at, gang in enumerate(asked) if not single.take(gang)]
    assert together.free == single.free


@given(gpus=clusters, asked=gangs, split=st.integers(0, 20))
def test_a_packing_goes_on_from_what_is_free(gpus: list[int], asked: list[int], split: int) -> None:
    whole, first = YarnTrial(gpus), YarnTrial(gpus)
    misfits = whole.take_each(asked)
    before = first.take_each(asked[:split])
    rest = YarnTrial(gpus, first.free)
    assert misfits == before + [split + at for at in rest.take_each(asked[split:])]
    assert rest.free == whole.free


def taken(trial: RememberedTrial | YarnTrial, asked: Sequence[int]) -> list[int]:
    misfits = set(trial.take_each(asked))
    return [gang for at, gang in enumerate(asked) if at not in misfits]


def test_remembering_begins_anew_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packings, "MOST_STATES", 3)
    gpus, asked = [3, 5, 7], [1, 2, 3, 1, 7, 2, 1, 1, 4]
    for turn in range(4):
        order = asked[turn:] + asked[:turn]
        assert taken(RememberedTrial(gpus), order) == taken(YarnTrial(gpus), order)


def test_small_clusters_remember() -> None:
    assert isinstance(yarn_trial([8] * MOST_NODES), RememberedTrial)
    assert isinstance(yarn_trial([8] * (MOST_NODES + 1)), YarnTrial)
