"""The safety loop on boards that answer over HTTP: cuts, kills, liars, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hold_site import (
    Loop,
    end_watchdogs,
    eventually,
    holding,
    sampled,
    watchdog_of,
    watchdogs,
    watched,
    write_site,
)

from wattherd.testing.redfish_boards import Board, BoardRoom, a_room

pytestmark = pytest.mark.long

FLOORS = [200.0] * 4


@pytest.fixture
def room(tmp_path: Path) -> Iterator[BoardRoom]:
    """Four nodes that want 600 W each; the second had a limit before."""
    with a_room(Board(), Board(cap_w=580.0), Board(), Board()) as room:
        try:
            yield room
        finally:
            end_watchdogs(tmp_path / "site.yaml")


FOUND = [None, 580.0, None, None]


def journal(site: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(site.with_name("site.journal.json").read_text())["found"]
    return found


def test_a_quarter_less_is_met_and_every_cap_is_put_back(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "0:2400W,3s:1800W")
    with holding(site, "--release") as loop:
        eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 1800.0)
        took_s = eventually(lambda: room.draw_w() <= 1800.0)
        assert took_s < 10.0
        assert max(watched(room, 2.0)) <= 1800.0
        # A board counts at 4.5 % beyond its cap until it was seen to keep one.
        eventually(lambda: room.draw_w() > 0.97 * 1800.0)
        assert max(watched(room, 2.0)) <= 1800.0
        assert set(journal(site)) == {room.uri(n) + "?timeout=1s" for n in range(4)}
        assert loop.end() == 0
    assert room.caps_w() == FOUND
    assert journal(site) == {}
    assert loop.said("restored")[-1]["failed"] == []


def test_a_killed_loop_leaves_floors_and_its_successor_restores(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="4s")
    with holding(site) as loop:
        eventually(lambda: min(cap_w or 0.0 for cap_w in room.caps_w()) > 420.0)
        loop.end(signal.SIGKILL)
    assert min(cap_w or 0.0 for cap_w in room.caps_w()) > 420.0  # the lease still runs
    assert eventually(lambda: room.caps_w() == FLOORS, 15.0) > 0.5
    assert len(journal(site)) == 4
    with holding(site, "--release") as successor:
        assert successor.said("start")[0]["from_predecessor"] == 4
        eventually(lambda: min(cap_w or 0.0 for cap_w in room.caps_w()) > 300.0)
        assert max(watched(room, 1.0)) <= 1800.0
        assert successor.end(signal.SIGINT) == 0
    assert room.caps_w() == FOUND


def test_five_upgrades_in_place_never_let_the_draw_above_the_limit(
    room: BoardRoom, tmp_path: Path
) -> None:
    """Half of what the nodes want: were caps lifted for a moment, it would show."""
    site = write_site(tmp_path / "site.yaml", room, "1200W", lease="10s")
    with holding(site) as loop:
        eventually(lambda: room.draw_w() <= 1200.0)
        eventually(lambda: room.draw_w() > 0.95 * 1200.0)
        with sampled(room) as seen_w:
            assert loop.end() == 0
            for _ in range(5):
                ended_with_w = room.caps_w()
                with holding(site) as successor:
                    assert successor.said("start")[0]["taken_over"] is True
                    time.sleep(2.0)
                    assert successor.end() == 0
                assert successor.said("handed-over")
                assert min(cap_w or 0.0 for cap_w in ended_with_w) > 200.0  # no lease lapsed
    assert max(seen_w) <= 1200.0
    assert min(seen_w) > 0.9 * 1200.0
    assert len(journal(site)) == 4  # still known: what there was before the first of them
    with holding(site, "--restore") as after:
        assert after.process.wait(timeout=60) == 0
    assert room.caps_w() == FOUND
    time.sleep(1.0)
    assert room.caps_w() == FOUND  # watchdogs of those that are over leave it alone


def test_a_killed_loop_is_succeeded_within_its_lease_without_a_moment_above(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1200W", lease="10s")
    with holding(site) as loop:
        eventually(lambda: 0.95 * 1200.0 < room.draw_w() <= 1200.0)
        loop.end(signal.SIGKILL)
    with sampled(room) as seen_w, holding(site, "--release") as successor:
        assert successor.said("start")[0]["taken_over"] is True
        time.sleep(3.0)
        assert max(seen_w) <= 1200.0
        assert min(seen_w) > 0.9 * 1200.0
        assert successor.end() == 0
    assert room.caps_w() == FOUND


def test_without_a_successor_caps_stay_for_the_time_of_the_hand_over_only(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1200W", lease="1s", handover="4s")
    with holding(site) as loop:
        eventually(lambda: 0.95 * 1200.0 < room.draw_w() <= 1200.0)
        held_w = room.caps_w()
        assert loop.end() == 0
    assert loop.said("handed-over")[0]["keeps_s"] == 4.0
    time.sleep(2.5)
    assert room.caps_w() == held_w
    eventually(lambda: room.caps_w() == FLOORS, 10.0)


def test_what_was_put_back_by_hand_stays_though_a_watchdog_still_waits(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1200W", lease="4s")
    with holding(site) as loop:
        eventually(lambda: None not in room.caps_w())
        assert loop.end() == 0
    with holding(site, "--restore") as after:
        assert after.process.wait(timeout=60) == 0
    assert room.caps_w() == FOUND
    eventually(lambda: not watchdogs(site), 15.0)
    assert room.caps_w() == FOUND


def test_known_steps_of_a_limit_go_on_after_an_upgrade(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "0:1200W,1h:2400W", lease="10s")
    with holding(site) as loop:
        eventually(lambda: None not in room.caps_w())
        assert loop.end() == 0
    first_s = json.loads(site.with_name("site.journal.json.state").read_text())["since_s"]
    with holding(site, "--release") as successor:
        eventually(lambda: bool(successor.said("cycle")))
        kept = json.loads(site.with_name("site.journal.json.state").read_text())
        assert kept["since_s"] == first_s
        assert successor.end() == 0
    assert not site.with_name("site.journal.json.state").exists()  # the next one begins anew


def rewritten(site: Path, room: BoardRoom, limit: str, *numbers: int, **more: Any) -> None:
    """The file as it is to be, with these boards only."""
    write_site(site, room, limit, **{"lease": "10s", **more})
    told = json.loads(site.read_text())
    keep = {f"node-{number}" for number in numbers}
    told["devices"] = {name: one for name, one in told["devices"].items() if name in keep}
    site.write_text(json.dumps(told))


def reloads(loop: Loop) -> list[dict[str, Any]]:
    return loop.said("reload")


def test_devices_come_and_go_while_the_limit_holds(room: BoardRoom, tmp_path: Path) -> None:
    """Three of four boards are held; the fourth comes, then the first, and capped, goes."""
    site = tmp_path / "site.yaml"
    room.boards[3].demand_w = 150.0  # not managed at first, and still known: below all limits
    rewritten(site, room, "1350W", 0, 1, 2)
    with holding(site, "--release") as loop:
        eventually(lambda: 0.95 * 1350.0 < room.draw_w() <= 1350.0)
        with sampled(room) as seen_w:
            rewritten(site, room, "1350W", 0, 1, 2, 3)
            loop.process.send_signal(signal.SIGHUP)
            eventually(lambda: len(reloads(loop)) == 1)
            assert reloads(loop)[0]["added"] == ["node-3"]
            eventually(lambda: room.caps_w()[3] is not None)
            assert "Chassis/3" in "".join(journal(site))
            rewritten(site, room, "1350W", 1, 2, 3)
            loop.process.send_signal(signal.SIGHUP)
            eventually(lambda: bool(loop.said("left")))
            eventually(lambda: len(reloads(loop)) == 3)
            time.sleep(3.0)
        assert reloads(loop)[1]["leaving"] == ["node-0"]
        assert reloads(loop)[2]["leaving"] == []
        assert room.caps_w()[0] is None  # as it was found
        assert len(journal(site)) == 3
        assert max(seen_w) <= 1350.0
        assert min(cap_w or 0.0 for cap_w in room.caps_w()[1:]) >= 200.0
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_limits_change_by_a_reload_that_is_asked_for_from_elsewhere(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "2000W")
    with holding(site, "--release") as loop:
        eventually(lambda: room.draw_w() > 1900.0)
        rewritten(site, room, "1200W", 0, 1, 2, 3)
        asked = Loop(site, "--reload", text=True)
        assert asked.process.wait(timeout=60) == 0
        asked.close()
        eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 1200.0)
        eventually(lambda: room.draw_w() <= 1200.0)
        assert max(watched(room, 2.0)) <= 1200.0
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_a_bad_file_keeps_the_old_one_in_force_and_says_why(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1200W")
    with holding(site, "--release") as loop:
        eventually(lambda: room.draw_w() <= 1200.0)
        for bad, problem in (
            ("limit: [", "site.yaml"),
            ("limit: 1kW\nfeeds: {a: {}}\n", "devices"),
        ):
            before = len(reloads(loop))
            site.write_text(bad)
            loop.process.send_signal(signal.SIGHUP)
            eventually(lambda before=before: len(reloads(loop)) > before)
            assert reloads(loop)[-1]["taken"] is False
            assert problem in reloads(loop)[-1]["problem"]
        assert loop.said("cycle")[-1]["limit_w"][-1] == 1200.0
        assert max(watched(room, 1.0)) <= 1200.0
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_another_device_at_the_same_address_is_noted_as_it_was_found(
    room: BoardRoom, tmp_path: Path
) -> None:
    """The board of node 1 is replaced while it is silent; the new one had a limit of its own."""
    room.boards[1].serial = "A1"
    safety = {"silent_s": 1.0}
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="10s", safety=safety)
    with holding(site, "--release") as loop:
        eventually(lambda: None not in room.caps_w())
        room.boards[1].mute = True
        eventually(lambda: "node-1" in loop.said("cycle")[-1]["silent"])
        time.sleep(6.0)
        room.boards[1].serial, room.boards[1].cap_w = "B2", 650.0
        room.boards[1].mute = False
        eventually(lambda: bool(reloads(loop)))
        assert reloads(loop)[0]["replaced"] == ["node-1"]
        eventually(lambda: (room.caps_w()[1] or 700.0) < 600.0)
        assert loop.end() == 0
    assert room.caps_w() == [None, 650.0, None, None]


def test_a_device_that_is_gone_from_the_file_leaves_after_the_next_start(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    rewritten(site, room, "1800W", 0, 1, 2, 3)
    with holding(site) as loop:
        eventually(lambda: None not in room.caps_w() and room.draw_w() <= 1800.0)
        assert loop.end() == 0
    rewritten(site, room, "1800W", 1, 2, 3)
    with sampled(room) as seen_w, holding(site, "--release") as successor:
        assert successor.said("start")[0]["leaving"] == ["node-0"]
        eventually(lambda: bool(successor.said("left")))
        assert room.caps_w()[0] is None
        assert max(seen_w) <= 1800.0
        assert successor.end() == 0
    assert room.caps_w() == FOUND


def test_what_a_killed_loop_changed_can_be_put_back_without_holding(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="1s")
    with holding(site) as loop:
        eventually(lambda: None not in room.caps_w())
        loop.end(signal.SIGKILL)
    eventually(lambda: room.caps_w() == FLOORS)
    with holding(site, "--restore") as after:
        assert after.process.wait(timeout=60) == 0
    assert room.caps_w() == FOUND
    assert journal(site) == {}


def test_a_loop_that_hangs_loses_its_caps_and_gets_them_back(
    room: BoardRoom, tmp_path: Path
) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="1s")
    with holding(site, "--release") as loop:
        eventually(lambda: None not in room.caps_w())
        os.kill(loop.process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: room.caps_w() == FLOORS)
        finally:
            os.kill(loop.process.pid, signal.SIGCONT)
        eventually(lambda: min(cap_w or 0.0 for cap_w in room.caps_w()) > 300.0)
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_a_watchdog_that_dies_is_replaced(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="1s")
    with holding(site) as loop:
        first = watchdog_of(loop)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: watchdog_of(loop) not in (None, first))
        loop.end(signal.SIGKILL)
    eventually(lambda: room.caps_w() == FLOORS)


def test_a_board_that_ignores_its_cap_is_paid_for_by_the_others(
    room: BoardRoom, tmp_path: Path
) -> None:
    room.boards[0].deaf = True
    site = write_site(tmp_path / "site.yaml", room, "1700W")
    with holding(site, "--release") as loop:
        eventually(lambda: room.draw_w() <= 1700.0)
        eventually(lambda: "node-0" in loop.said("cycle")[-1]["late"])
        assert max(watched(room, 2.0)) <= 1700.0
        assert loop.said("outcome")[0]["result"] == "accepted-but-unchanged"
        room.boards[0].deaf = False
        eventually(lambda: (room.caps_w()[0] or 700.0) < 500.0)
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def noticed(loop: Loop) -> set[tuple[str, str]]:
    return {(one["kind"], one["device"]) for one in loop.said("cycle")[-1]["notes"]}


def test_meters_that_freeze_are_counted_at_their_worst(room: BoardRoom, tmp_path: Path) -> None:
    """Node 0 claims to idle from now on, in the same digits: it may lend nobody its watts."""
    site = write_site(tmp_path / "site.yaml", room, "1800W")
    with holding(site, "--release") as loop:
        eventually(lambda: 0.95 * 1800.0 < room.draw_w() <= 1800.0)
        time.sleep(2.0)  # its meter has flickered at every look
        with sampled(room) as seen_w:
            room.boards[0].reads_w = 90.0
            eventually(lambda: "node-0" in loop.said("cycle")[-1]["unread"])
            eventually(lambda: ("frozen-meter", "node-0") in noticed(loop))
            time.sleep(4.0)
        assert max(seen_w) <= 1800.0
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_meters_that_say_half_buy_nobody_watts(room: BoardRoom, tmp_path: Path) -> None:
    for board in room.boards[:2]:
        board.reads_share = 0.5
    site = write_site(tmp_path / "site.yaml", room, "1800W")
    with holding(site, "--release") as loop:
        eventually(lambda: room.draw_w() <= 1800.0)
        assert max(watched(room, 6.0)) <= 1800.0
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_what_cannot_be_put_back_is_told_and_kept(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W", lease="1s")
    with holding(site, "--release") as loop:
        eventually(lambda: None not in room.caps_w())
        room.boards[0].mute = True
        assert loop.end() == 1
        assert loop.said("restored")[-1]["failed"] == ["node-0"]
    assert room.caps_w()[1:] == FOUND[1:]
    assert len(journal(site)) == 1
    room.boards[0].mute = False
    with holding(site, "--restore") as after:
        assert after.process.wait(timeout=60) == 0
    assert room.caps_w() == FOUND


def test_a_board_that_falls_silent_is_counted_at_its_most(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W")
    with holding(site, "--release") as loop:
        eventually(lambda: room.draw_w() <= 1800.0)
        room.boards[3].mute = True
        eventually(lambda: "node-3" in loop.said("cycle")[-1]["silent"])
        eventually(lambda: loop.said("cycle")[-1]["counted_w"] <= 1800.0)
        assert max(watched(room, 1.0)) <= 1800.0
        room.boards[3].mute = False
        eventually(lambda: "node-3" not in loop.said("cycle")[-1]["silent"])
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_the_last_resort_is_the_outlet_and_it_comes_back(room: BoardRoom, tmp_path: Path) -> None:
    room.boards[0].deaf = True
    outlet = {"node-0": {"outlet": room.uri(0, "Systems")}}
    safety = {"backstop_s": 1.0, "settle_s": 1.0, "silent_s": 1.0}
    site = write_site(tmp_path / "site.yaml", room, "1100W", each=outlet, safety=safety)
    with holding(site, "--release") as loop:
        eventually(lambda: any("node-0" in line["switch_off"] for line in loop.said("cycle")))
        eventually(lambda: not room.boards[0].on)
        eventually(lambda: room.draw_w() <= 1100.0)
        assert loop.end() == 0
    assert room.boards[0].on


def test_a_site_is_held_by_one_loop(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W")
    with holding(site):
        second = Loop(site, "--restore")
        try:
            assert second.process.poll() is None
        finally:
            second.process.kill()
            second.process.wait()
            second.reader.join()
            for pipe in (second.process.stdout, second.process.stderr):
                assert pipe is not None
                pipe.close()


def test_a_limit_from_outside_counts_early_and_ends(room: BoardRoom, tmp_path: Path) -> None:
    now_s = time.time()
    limits = tmp_path / "limits.csv"
    limits.write_text(f"at,until,limit\n{now_s + 16:.1f},{now_s + 18:.1f},1500W\n")
    site = write_site(tmp_path / "site.yaml", room, "2400W", lead="6s",
                      signals=[f"schedule:{limits}"])  # fmt: skip
    with holding(site, "--release") as loop:
        assert loop.said("cycle")[0]["limit_w"][-1] == 2400.0
        eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 1500.0)
        eventually(lambda: room.draw_w() <= 1500.0)
        assert time.time() < now_s + 16  # before it begins
        eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 2400.0)
        assert time.time() >= now_s + 18
        assert loop.end() == 0
    assert room.caps_w() == FOUND


def test_slow_meters_are_believed_if_the_site_says_so(room: BoardRoom, tmp_path: Path) -> None:
    """Boards that renew their reading every 1.5 s, asked four times a second."""
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(1.5):
            for board in room.boards:
                board.reads_w = round(board.draw_w())

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        site = write_site(tmp_path / "site.yaml", room, "1800W", safety={"refresh_s": 2.0})
        with holding(site) as loop:
            time.sleep(6.0)
            assert not any(line["safe_mode"] for line in loop.said("cycle")[8:])
            assert loop.end() == 0
    finally:
        stop.set()
        thread.join()


def test_a_dry_run_decides_and_sets_nothing(room: BoardRoom, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site.yaml", room, "1800W")
    with holding(site, "--dry-run", "--duration", "1s") as loop:
        assert loop.process.wait(timeout=60) == 0
    # A quarter of the limit each, less the 4.5 % by which an unknown board may exceed its cap.
    assert loop.said("cycle")[0]["orders"] == {f"node-{n}": 429 for n in range(4)}
    assert room.caps_w() == FOUND
    assert not site.with_name("site.journal.json").exists()


def test_jobs_that_start_in_one_second_rise_along_the_ramp(room: BoardRoom, tmp_path: Path) -> None:
    """Four boards at 100 W want 600 W at once; allowed are 100 W/s, over 4 s."""
    for board in room.boards:
        board.demand_w = 100.0
    site = write_site(tmp_path / "site.yaml", room, "4kW", ramp_up="100W/s", ramp_over="4s")
    with holding(site) as loop:
        eventually(lambda: all((one.cap_w or 700) < 260 for one in room.boards))
        for board in room.boards:
            board.demand_w = 600.0
        began_s = time.monotonic()
        drawn = []
        while time.monotonic() < began_s + 12.0:
            drawn.append((time.monotonic(), sum(board.draw_w() for board in room.boards)))
            time.sleep(0.1)
        kinds = {note["kind"] for line in loop.said("cycle") for note in line["notes"]}
    # From idle to the lowest cap of 200 W nothing holds them: that much is theirs.
    rises = [w - min(v for s, v in drawn if t - 4.0 <= s <= t) for t, w in drawn]
    assert max(rises) <= 1.25 * 400.0
    assert drawn[-1][1] > drawn[40][1] + 300.0
    assert "ramp-held" in kinds
