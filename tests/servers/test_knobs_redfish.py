"""Limits and power of nodes behind Redfish boards: those that obey, and those that pretend."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_sushy import Mockup, mockup  # noqa: F401
from test_sushy import pytestmark as needs_sushy

from wattherd.devices.knobs.contract import NO_LIMIT, OrderResult
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.registry import open_knob, open_switch
from wattherd.devices.wire.device_errors import DeviceErrorKind
from wattherd.testing.redfish_boards import Board, BoardReply, BoardRoom, a_room, serving

GENERATIONS = "EnvironmentMetrics", "Power"


@pytest.fixture
def room() -> Iterator[BoardRoom]:
    with a_room(Board(), Board(cap_w=500.0)) as room:
        yield room


def limit_uri(room: BoardRoom, number: int, kind: str = "", more: str = "settle=0.3s") -> str:
    return f"{room.uri(number)}/{kind}?{more}".replace("/?", "?")


@pytest.mark.parametrize("kind", ["", *GENERATIONS])
def test_a_limit_is_set_read_back_and_put_back(room: BoardRoom, kind: str) -> None:
    with open_knob(limit_uri(room, 1, kind)) as knob:
        limits = knob.limits()
        assert (limits.highest, limits.now) == (700.0, 500.0)
        outcome = knob.set(400.0)
        assert (outcome.result, outcome.read_back) == (OrderResult.TOOK_EFFECT, 400.0)
        assert room.caps_w()[1] == 400.0
        knob.set(300.0)
        assert knob.restore().result is OrderResult.TOOK_EFFECT
    assert room.caps_w() == [None, 500.0]


@pytest.mark.parametrize("kind", GENERATIONS)
def test_a_node_without_a_limit_gets_none_back(room: BoardRoom, kind: str) -> None:
    with open_knob(limit_uri(room, 0, kind)) as knob:
        assert knob.read().value == NO_LIMIT
        assert knob.set(350.0).result is OrderResult.TOOK_EFFECT
        assert knob.restore().result is OrderResult.TOOK_EFFECT
        assert room.caps_w()[0] is None
        knob.set(350.0)
        lifted = knob.set(NO_LIMIT)
        assert (lifted.result, lifted.read_back) == (OrderResult.TOOK_EFFECT, NO_LIMIT)


def test_orders_out_of_range_are_clamped(room: BoardRoom) -> None:
    with open_knob(limit_uri(room, 0)) as knob:
        low, high = knob.set(10.0), knob.set(9000.0)
    assert (low.result, low.read_back) == (OrderResult.CLAMPED, 200.0)
    assert (high.result, high.read_back) == (OrderResult.CLAMPED, 700.0)


def test_a_board_that_drops_what_it_accepts_is_caught(room: BoardRoom) -> None:
    room.boards[1].deaf = True
    with open_knob(limit_uri(room, 1)) as knob:
        outcome = knob.set(300.0)
    assert (outcome.result, outcome.read_back) == (OrderResult.UNCHANGED, 500.0)
    assert "still holds 500" in outcome.problem


def test_a_slow_board_is_waited_for(room: BoardRoom) -> None:
    room.boards[0].delay_s = 0.4
    with open_knob(limit_uri(room, 0, more="settle=2s")) as knob:
        assert knob.set(300.0).result is OrderResult.TOOK_EFFECT
        room.boards[0].delay_s = 5.0
    with open_knob(limit_uri(room, 0, more="settle=0.2s")) as knob:
        assert knob.set(250.0).result is OrderResult.UNCHANGED


def test_the_version_of_what_is_changed_goes_along(room: BoardRoom) -> None:
    room.boards[0].shy = True
    with open_knob(limit_uri(room, 0)) as knob:
        assert [knob.set(cap_w).result for cap_w in (300.0, 400.0)] == [OrderResult.TOOK_EFFECT] * 2


def test_boards_that_are_gone_mute_or_garbled_have_no_limit(room: BoardRoom) -> None:
    room.boards[0].mute = True
    assert open_knob(limit_uri(room, 0)).set(300.0).result is OrderResult.UNREACHABLE
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = open_knob(f"redfish+http://127.0.0.1:{port}").set(300.0)
    assert (gone.result, gone.trouble) == (OrderResult.UNREACHABLE, DeviceErrorKind.UNREACHABLE)
    garbage = lambda *_: BoardReply(200, {"PowerLimitWatts": "lots"})  # noqa: E731
    with serving(garbage) as port:
        garbled = open_knob(f"redfish+http://127.0.0.1:{port}").set(300.0)
    assert (garbled.result, garbled.trouble) == (OrderResult.REFUSED, DeviceErrorKind.GARBAGE)


def test_a_hanging_board_takes_its_time_limit_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"redfish+http://127.0.0.1:{silent.getsockname()[1]}?timeout=0.3s"
        began_s = time.monotonic()
        assert open_knob(uri).set(300.0).trouble is DeviceErrorKind.TIMEOUT
        assert time.monotonic() - began_s < 15.0


def test_a_limit_in_percent_is_not_taken_for_watts() -> None:
    """As BlueField has it."""
    percent = {"SetPoint": 80, "SetPointUnits": "%", "AllowableMax": 100}
    with serving(lambda *_: BoardReply(200, percent)) as port:
        outcome = open_knob(f"redfish+http://127.0.0.1:{port}/redfish/v1/C/1").set(80.0)
    assert (outcome.result, outcome.trouble) == (OrderResult.REFUSED, DeviceErrorKind.ABSENT)


def test_a_control_in_watts_is_set() -> None:
    control = {"SetPoint": 300.0, "SetPointUnits": "W", "AllowableMin": 100, "AllowableMax": 400}

    def answer(method: str, _path: str, body: dict[str, float], _version: str) -> BoardReply:
        control.update(body or {})
        return BoardReply(200, control)

    with serving(answer) as port:
        uri = f"redfish+http://127.0.0.1:{port}/redfish/v1/Chassis/1/Controls/CPU"
        outcome = open_knob(uri).set(250.0)
    assert (outcome.result, control["SetPoint"]) == (OrderResult.TOOK_EFFECT, 250)


def test_success_with_a_warning_is_a_refusal() -> None:
    power = {"PowerControl": [{"PowerLimit": {"LimitInWatts": 400}}]}
    note = {"MessageId": "Base.1.8.PropertyNotWritable", "Message": "licence missing",
            "MessageSeverity": "Warning"}  # fmt: skip

    def answer(method: str, *_: object) -> BoardReply:
        return BoardReply(200, power if method == "GET" else {"@Message.ExtendedInfo": [note]})

    with serving(answer) as port:
        outcome = open_knob(f"redfish+http://127.0.0.1:{port}/redfish/v1/P").set(300.0)
    assert outcome.result is OrderResult.REFUSED
    assert "licence missing" in outcome.problem


def test_a_successor_puts_back_what_a_killed_process_found(room: BoardRoom, tmp_path: Path) -> None:
    uri, path = limit_uri(room, 1), tmp_path / "journal.json"
    open_knob(uri, KnobJournal(path)).set(250.0)  # and never restores
    open_knob(uri, KnobJournal(path)).set(350.0)  # does not take 250 W for what was found
    successor = open_knob(uri, KnobJournal(path))
    assert successor.restore().result is OrderResult.TOOK_EFFECT
    assert room.caps_w()[1] == 500.0
    assert json.loads(path.read_text())["found"] == {}


# --- power on and off ------------------------------------------------------------------------


def test_a_node_is_switched_off_and_on(room: BoardRoom) -> None:
    switch = open_switch(room.uri(0, "Systems"))
    assert switch.read().on is True
    assert switch.turn(on=False).on is False
    assert room.boards[0].on is False
    assert switch.turn(on=True).result is OrderResult.TOOK_EFFECT
    assert room.boards[0].on is True


def test_a_node_that_does_not_follow_is_told(room: BoardRoom) -> None:
    room.boards[0].stuck = True
    position = open_switch(room.uri(0, "Systems") + "?settle=0.2s").turn(on=False)
    assert (position.result, position.on) == (OrderResult.UNCHANGED, True)
    room.boards[0].mute = True
    assert open_switch(room.uri(0, "Systems")).read().trouble is DeviceErrorKind.UNREACHABLE


def test_a_limit_is_no_switch(room: BoardRoom) -> None:
    assert open_switch(room.uri(0)).turn(on=False).trouble is DeviceErrorKind.ABSENT
    assert open_knob(room.uri(0, "Systems")).set(300.0).trouble is DeviceErrorKind.ABSENT


# --- sushy-static, which answers 204 and changes nothing ----------------------------------------


@needs_sushy
def test_sushy_static_accepts_and_keeps_its_old_limit(mockup: Mockup) -> None:  # noqa: F811
    metrics, power = (f"/redfish/v1/Chassis/Rack1/{kind}" for kind in GENERATIONS)
    mockup.write(metrics, {"PowerLimitWatts": {"SetPoint": 600, "ControlMode": "Automatic"}})
    mockup.write(power, {"PowerControl": [{"PowerLimit": {"LimitInWatts": 600}}]})
    for path in (metrics, power):
        outcome = open_knob(f"{mockup.uri(path)}?settle=0.2s").set(450.0)
        assert (outcome.result, outcome.read_back) == (OrderResult.UNCHANGED, 600.0)


@needs_sushy
def test_a_limit_that_changes_while_it_is_held_is_seen(mockup: Mockup) -> None:  # noqa: F811
    path = "/redfish/v1/Chassis/Rack1/EnvironmentMetrics"
    with open_knob(mockup.uri(path)) as knob:
        for watts in (600.0, 450.0):
            mockup.write(path, {"PowerLimitWatts": {"SetPoint": watts}})
            assert knob.read().value == watts


def test_many_nodes_at_once(room: BoardRoom) -> None:
    """One board's answers are never another's."""
    wanted = [300.0, 450.0]
    threads = [
        threading.Thread(target=lambda n=n: open_knob(limit_uri(room, n)).set(wanted[n]))
        for n in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert room.caps_w() == wanted
