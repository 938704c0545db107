"""No sample is lost or repeated, however often a run is stopped, and at whatever width."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd_train import ResumableSampler


class Trainer:
    """Ranks that train in step on one line of samples, and are born again at other widths."""

    def __init__(self, length: int, **how: object) -> None:
        self.length, self.how = length, how
        self.state: dict | None = None
        self.kept: list[list[int]] = []

    def live(self, batch: int, width: int, steps: int, ahead: int, lost: int) -> None:
        """Train and save; then read ahead, train on without saving, and be killed."""
        samplers = self.born(batch, width)
        trained = 0
        while trained < steps:
            for parts in zip(*samplers, strict=True):
                if trained == steps:
                    break
                self.kept.append([index for part in parts for index in part])
                trained += 1
                for sampler in samplers:
                    sampler.commit()
        self.state = json.loads(json.dumps(samplers[0].state_dict()))
        assert all(sampler.state_dict() == self.state for sampler in samplers)
        for sampler in samplers:
            list(islice(sampler, ahead))
            sampler.commit(lost)

    def born(self, batch: int, width: int) -> list[ResumableSampler]:
        made = [
            ResumableSampler(self.length, batch, rank=r, size=width, **self.how)
            for r in range(width)
        ]
        for sampler in made:
            if self.state is not None:
                sampler.load_state_dict(self.state)
        return made


lives = st.lists(
    st.fixed_dictionaries(
        {
            "batch": st.integers(5, 17),
            "width": st.integers(1, 5),
            "steps": st.integers(0, 12),
            "ahead": st.integers(0, 4),
            "lost": st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=12,
)


@given(
    length=st.integers(1, 40),
    seed=st.integers(0, 3),
    last=st.sampled_from(["wrap", "short"]),
    lives=lives,
)
def test_every_sample_once_an_epoch(length, seed, last, lives) -> None:
    """Whatever the lives of a job: what was trained on and kept is each epoch's order, unbroken."""
    trainer = Trainer(length, seed=seed, last=last)
    for life in lives:
        trainer.live(**life)
    line = [index for step in trainer.kept for index in step]
    for first in range(0, len(line), length):
        epoch = Counter(line[first : first + length])
        assert set(epoch.values()) == {1}
        assert first + length > len(line) or set(epoch) == set(range(length))
    assert line == undisturbed(len(line), length, seed)
    if last == "wrap":
        assert {len(step) for step in trainer.kept} <= {life["batch"] for life in lives}


def undisturbed(samples: int, length: int, seed: int) -> list[int]:
    sampler = ResumableSampler(length, 1, seed=seed)
    line: list[int] = []
    while len(line) < samples:
        line += [index for step in sampler for index in step]
        sampler.commit(sampler.left)
    return line[:samples]


@given(length=st.integers(1, 60), batch=st.integers(1, 20), epochs=st.integers(1, 4))
def test_a_number_of_epochs_is_kept_exactly(length, batch, epochs) -> None:
    sampler = ResumableSampler(length, batch, epochs=epochs)
    line: list[int] = []
    while sampler.left:
        announced, steps = sampler.left, 0
        for step in list(sampler):
            line += step
            sampler.commit()
            steps += 1
        assert steps == announced
    assert Counter(line) == Counter(dict.fromkeys(range(length), epochs))
    assert list(sampler) == []


def test_the_length_is_of_the_whole_epoch() -> None:
    sampler = ResumableSampler(10, 4)  # steps begin at 0, 4, 8; then at 12, 16
    seen = []
    for _ in range(5):
        seen.append((sampler.epoch, len(sampler), sampler.left))
        sampler.commit()
    assert seen == [(0, 3, 3), (0, 3, 2), (0, 3, 1), (1, 2, 2), (1, 2, 1)]


@given(length=st.integers(5, 60), batch=st.integers(1, 5), place=st.integers(0, 200))
def test_dropped_ends_never_split_a_step(length, batch, place) -> None:
    sampler = ResumableSampler(length, batch, last="drop", shuffle=False)
    sampler.load_state_dict({**sampler.state_dict(), "place": place})
    steps = list(sampler)
    assert len(steps) == sampler.left
    for step in steps:
        assert step == list(range(step[0], step[0] + batch))


def test_epochs_have_different_orders_and_seeds_too() -> None:
    def orders(seed: int) -> list[list[int]]:
        sampler = ResumableSampler(50, 50, seed=seed)
        found = []
        for _ in range(3):
            found += list(sampler)
            sampler.commit()
        return found

    different = orders(1) + orders(2)
    assert len({tuple(order) for order in different}) == 6
    assert orders(1) == orders(1)
    assert orders(1)[0] != list(range(50))


def test_the_order_is_the_same_in_every_version() -> None:
    """Checkpoints outlive upgrades of Python: the order must follow from the seed for good."""
    assert next(iter(ResumableSampler(10, 10, seed=0))) == [1, 0, 2, 4, 9, 3, 8, 6, 7, 5]


def test_a_place_of_other_data_is_refused() -> None:
    state = ResumableSampler(50, 5, seed=1).state_dict()
    for wrong in ({"seed": 2}, {"length": 51}, {"format": "?"}, {"place": -1}, {"shuffle": False}):
        with pytest.raises(ValueError, match="another line"):
            ResumableSampler(50, 5, seed=1).load_state_dict({**state, **wrong})


@pytest.mark.parametrize(
    "how",
    [{"rank": 2, "size": 2}, {"size": 6}, {"rank": -1}, {"last": "pad"}],
)
def test_what_cannot_be_shared_out_is_refused(how) -> None:
    with pytest.raises(ValueError, match=r"needs 0|cannot train"):
        ResumableSampler(20, 5, **how)
    with pytest.raises(ValueError, match=r"needs 0|cannot train"):
        ResumableSampler(4, 5, last="drop")
