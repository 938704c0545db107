"""`wattherd serve` holds its devices below a rack's limit: real jobs, dummy boards, bad days."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path

import pytest
from hold_site import eventually
from serve_rack import BUSY_W, IDLE_W, Rack, a_rack, again, gpus, served

from wattherd.server.settings.config import read_config
from wattherd.server.site.site import open_site
from wattherd.testing.redfish_boards import Board

pytestmark = pytest.mark.long

NOISE = 0.005
"""Of a reading: a loop that has just begun knows other load no better than boards' meters tell."""
SETTLE_S = 12.0
"""Lower caps are ordered within a second or two and judged a while later."""


class Rounding(Board):
    """Takes steps of 25 W, upwards, and says so only by what it holds."""

    def order(self, cap_w: float | None) -> None:
        super().order(None if cap_w is None else 25.0 * math.ceil(cap_w / 25.0))


class Stiff(Board):
    """Draws 240 W at least while it computes, whatever its cap: a fifth above its lowest."""

    def draw_w(self) -> float:
        return max(super().draw_w(), min(self.demand_w, 240.0))


def settled(rack: Rack, seconds: float = 6.0) -> None:
    """From now on, after the settling time, the draw stays within the limit."""
    time.sleep(SETTLE_S)
    since_s = time.monotonic()
    time.sleep(seconds)
    assert rack.above_s(since_s) == []


@pytest.mark.parametrize(
    "given_back", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["way", "back"]
)
def test_other_load_that_jumps_is_made_way_for_and_given_back(
    tmp_path: Path,
    given_back: bool,
) -> None:
    with a_rack(1400.0) as rack:
        config = rack.config(tmp_path / "serve.yaml")
        with served(rack, tmp_path, config) as now:
            eventually(lambda: rack.draw_w() > 0.9 * 1400.0, 60.0)
            settled(rack)
            rack.other_w = 700.0  # and it may do so again: that much is kept free for minutes
            settled(rack)
            assert [now[0].job(job)["state"] for job in now[1:]] == ["Running"] * 2
            rack.other_w = 100.0
            settled(rack)
            if given_back:
                eventually(lambda: rack.room.draw_w() > 1100.0, 900.0)
                settled(rack)


def test_a_board_that_ignores_its_cap_loses_its_job_with_a_reason(tmp_path: Path) -> None:
    with a_rack(1500.0) as rack:
        rack.other_w = 900.0  # with that, one board at full draw is too much
        rack.room.boards[0].deaf = True
        config = rack.config(tmp_path / "serve.yaml")
        with served(rack, tmp_path, config, jobs=0) as now:
            now += [now[0].call("submit", "--", "sleep", "600").strip() for _ in range(2)]
            eventually(lambda: "Drained" in now[0].call("gpus"), 60.0)
            settled(rack, 3.0)
            states = {one["number"]: one for one in gpus(rack)}
            assert states[0]["cause"].startswith("follows no cap: rack-1: limit 1,500.0 W")
            assert [len(one["jobs"]) for _, one in sorted(states.items())] == [0, 1]
            told = [now[0].call("explain", job) for job in now[1:]]
            assert any("out of use" in one for one in told), told


@pytest.mark.parametrize("kind", ["rounds", "cannot get low"])
def test_boards_that_do_it_their_way_stay_below_the_limit(tmp_path: Path, kind: str) -> None:
    board = Rounding if kind == "rounds" else Stiff
    with a_rack(1300.0, board(demand_w=IDLE_W), board(demand_w=IDLE_W)) as rack:
        config = rack.config(tmp_path / "serve.yaml", step="25W" if kind == "rounds" else None)
        with served(rack, tmp_path, config) as now:
            eventually(lambda: rack.draw_w() > 0.9 * 1300.0, 60.0)
            settled(rack)
            rack.other_w = 500.0
            settled(rack)
            assert "Drained" not in now[0].call("gpus")


def test_a_scheduler_that_is_stuck_holds_up_no_cap(tmp_path: Path) -> None:
    """And devices on which somebody else computes are held, too."""
    with a_rack(1300.0, Board(demand_w=BUSY_W), Board(demand_w=BUSY_W)) as rack:
        config = read_config(rack.config(tmp_path / "serve.yaml"), {"slots": 2})
        site = open_site(config.model_copy(update={"state": tmp_path / "state"}))
        try:
            eventually(lambda: 0.9 * 1300.0 < rack.draw_w() <= 1300.0, 60.0)
            stuck = site.keeper.ask(lambda _: time.sleep(16.0))
            rack.other_w, since_s = 450.0, time.monotonic() + 8.0
            stuck.result(60.0)
            assert len(rack.seen_w) > 0
            assert rack.above_s(since_s) == []
            assert site.limits is not None
            rack_1 = site.limits.levels()[0]
            assert (rack_1.name, rack_1.parent) == ("rack-1", "site")
            assert rack_1.other_w == pytest.approx(450.0, abs=60.0)
        finally:
            site.close()


def test_five_deaths_and_an_upgrade_never_lift_the_limit(tmp_path: Path) -> None:
    with a_rack(1200.0) as rack:
        config = rack.config(tmp_path / "serve.yaml")
        with served(rack, tmp_path, config) as now:
            eventually(lambda: rack.draw_w() > 0.9 * 1200.0, 60.0)
            time.sleep(SETTLE_S)
            since_s = time.monotonic()
            for number in (signal.SIGKILL,) * 5 + (signal.SIGTERM,):
                now[0].process.send_signal(number)
                now[0].process.wait(30.0)
                now[0].process.stderr.close()
                again(rack, tmp_path, config, now)
                time.sleep(3.0)
            time.sleep(5.0)
            assert max(rack.above_s(since_s), default=0.0) <= NOISE * 1200.0
            assert [now[0].job(job)["state"] for job in now[1:]] == ["Running"] * 2
            eventually(lambda: rack.draw_w() > 0.85 * 1200.0, 60.0)


def test_without_a_successor_the_watchdog_lowers_the_boards(tmp_path: Path) -> None:
    with a_rack(1200.0) as rack:
        config = rack.config(tmp_path / "serve.yaml")
        with served(rack, tmp_path, config) as now:
            eventually(lambda: rack.draw_w() > 0.9 * 1200.0, 60.0)
            now[0].process.kill()
            now[0].process.wait(30.0)
            now[0].process.stderr.close()
            eventually(lambda: rack.caps_w() == [200.0, 200.0], 30.0)
            again(rack, tmp_path, config, now)
            eventually(lambda: rack.draw_w() > 0.85 * 1200.0, 60.0)
            settled(rack, 3.0)


def test_a_meter_that_falls_silent_frees_no_watt(tmp_path: Path) -> None:
    with a_rack(1200.0) as rack:
        config = rack.config(tmp_path / "serve.yaml")
        with served(rack, tmp_path, config):
            eventually(lambda: rack.draw_w() > 0.9 * 1200.0, 60.0)
            time.sleep(SETTLE_S)
            rack.mute, since_s = True, time.monotonic()
            time.sleep(15.0)
            assert rack.above_s(since_s) == []
            rack.mute = False
            settled(rack, 3.0)
