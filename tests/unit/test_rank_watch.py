"""Ranks that hold the others up are found, by what each needs without waiting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.local.devices import Device, Machine, slots
from wattherd.local.rank_reports import RankPace, paces
from wattherd.model.event import Event, RankLagged
from wattherd.server.site.slow_ranks import RankWatch, slow_ranks


@pytest.mark.parametrize(
    ("own_s", "slow"),
    [
        ({0: 1.0, 1: 1.0, 2: 3.0}, {2: 3.0}),
        ({0: 1.0, 1: 2.0}, {1: 2.0}),
        ({0: 1.0, 1: 1.4, 2: 1.0}, {}),
        ({0: 1.0, 1: 2.0, 2: 2.0}, {}),
        ({0: 1.0}, {}),
        ({}, {}),
        ({0: 0.0, 1: 1e-4, 2: 0.0}, {}),
    ],
    ids=["one of three", "one of two", "a little", "half of them", "alone", "none", "too short"],
)
def test_a_rank_is_slow_beside_the_median_of_the_others(
    own_s: dict[int, float], slow: dict[int, float]
) -> None:
    assert slow_ranks(own_s) == slow


class Gang:
    """Three ranks that step once a second; what is told of them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.own_s = {0: 0.1, 1: 0.1, 2: 0.1}
        self.told: list[Event] = []
        self.stepping = True
        self.step = 0.0
        self.watch = RankWatch(self.say, self.told.append, lambda: self.now_s)

    def say(self) -> dict[tuple[str, int], list[RankPace]]:
        ranks = [
            RankPace(rank, 3, self.step, own_s, self.now_s) for rank, own_s in self.own_s.items()
        ]
        return {("j-1", 1): ranks}

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.step += self.stepping
            self.watch.look()


def test_a_rank_that_lags_is_told_of_within_thirty_seconds_and_once() -> None:
    gang = Gang()
    gang.run(20)
    gang.own_s[1] = 0.4
    gang.run(29)
    (event,) = gang.told
    assert event == RankLagged(
        at_s=0.0, job_id="j-1", attempt=1, rank=1, ranks=3, slowdown=pytest.approx(4.0)
    )
    gang.own_s[1] = 0.1
    gang.run(2)
    gang.own_s[1] = 0.4
    gang.run(20)
    assert len(gang.told) == 2


def test_a_checkpoint_of_one_rank_is_no_lag() -> None:
    gang = Gang()
    gang.own_s[0] = 5.0
    gang.run(8)
    gang.own_s[0] = 0.1
    gang.run(20)
    assert gang.told == []


def test_ranks_that_make_no_steps_are_not_judged_by_an_old_word() -> None:
    gang = Gang()
    gang.stepping = False
    gang.own_s[2] = 9.0
    gang.run(60)
    assert gang.told == []


def test_what_a_job_writes_is_read_with_care(tmp_path: Path) -> None:
    good = {"rank": 1, "ranks": 2, "step": 3, "own_s": 0.5, "at": 9.0}
    for number, document in enumerate(
        [good, {**good, "rank": 2}, {**good, "own_s": -1}, {**good, "at": "x"}, {"rank": 0}]
    ):
        (tmp_path / f"rank-{number}.json").write_text(json.dumps(document))
    (tmp_path / "rank-9.json").write_text("no json")
    (tmp_path / "rank-10.json").symlink_to("/etc/passwd")
    assert list(paces(tmp_path)) == [RankPace(1, 2, 3.0, 0.5, 9.0)]


@pytest.mark.parametrize(
    ("address", "number"),
    [("0000:3b:00", 1), ("0000:3b:00.0", 1), ("0000:3c:00", None), ("", None), ("gpu", None)],
    ids=["as in an Xid", "with its function", "another", "none", "no address"],
)
def test_a_gpu_at_fault_is_found_by_its_address(address: str, number: int | None) -> None:
    devices = (Device(model="T4"), Device(model="T4", address="00000000:3B:00.0"))
    slot = slots("here", 2)
    machine = Machine(node=slot.node, devices=devices, gpu=slot.gpu, stated="measured")
    assert machine.at(address) == number
