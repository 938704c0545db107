"""Time of the journal: whatever the wall clock does, it goes on by the second."""

from __future__ import annotations

import pytest

from wattherd.server.journal.contract import JournalClock


class Clocks:
    """The wall clock and the one that counts since boot, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s, self.boot_s = 1_000_000.0, 50.0
        monkeypatch.setattr("time.time", lambda: self.wall_s)
        monkeypatch.setattr("time.monotonic", lambda: self.boot_s)

    def pass_s(self, seconds: float, jump_s: float = 0.0) -> None:
        self.wall_s += seconds + jump_s
        self.boot_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.mark.parametrize("jump_s", [-86_400.0, -1.0, 3600.0, 1e9])
def test_a_jump_of_the_wall_clock_is_not_felt(clocks: Clocks, jump_s: float) -> None:
    clock = JournalClock(epoch=999_000.0, last_s=0.0)
    assert clock.now_s() == 1000.0
    clocks.pass_s(2.0, jump_s)
    assert clock.now_s() == 1002.0


def test_a_service_that_comes_back_counts_the_time_between(clocks: Clocks) -> None:
    assert JournalClock(epoch=999_000.0, last_s=700.0).now_s() == 1000.0


def test_a_wall_clock_set_back_between_two_starts_does_not_turn_time_back(clocks: Clocks) -> None:
    clocks.pass_s(5.0, jump_s=-86_400.0)
    clock = JournalClock(epoch=999_000.0, last_s=1003.0)
    assert clock.now_s() == 1003.0
    clocks.pass_s(1.5)
    assert clock.now_s() == 1004.5
