"""A node's bench on simulated boards: its limit held, handed over, kept while the API is silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="the extra `kube` is not installed")
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.leased_caps import LeasedCaps
from wattherd.engine.safety.loop import SafetyConfig
from wattherd.errors import UserError
from wattherd.kube.decide.agent_caps import NodeRound
from wattherd.kube.decide.node_loop import NO_LIMIT_W, NodeSurroundings
from wattherd.local.devices import Device
from wattherd.server.kube.agent_devices import Bench
from wattherd.server.kube.cap_helper import CapHelper, RemoteBench
from wattherd.server.kube.node_around import LevelMeter, NodeAround
from wattherd.server.kube.node_memory import NodeMemory
from wattherd.testing.redfish_boards import Board, BoardRoom, a_room

pytestmark = pytest.mark.long
GPUS, LIMIT_W, OTHER_W = 4, 2400.0, 700.0
ROUND_S = 0.1
FAST = SafetyConfig(start_heat=0.0, refresh_s=0.05, idle_s=5.0, lease_s=4.0)


@pytest.fixture
def room() -> Iterator[BoardRoom]:
    """Four GPUs of 200 to 700 W that want 650 W, and a board of other load that nobody caps."""
    gpus = [Board(demand_w=650.0, serial=f"S{n}", tau_s=0.05) for n in range(GPUS)]
    with a_room(*gpus, Board(demand_w=OTHER_W, tau_s=0.05)) as made:
        yield made


def gpu(room: BoardRoom, number: int) -> Device:
    return Device(model="?", uuid=f"GPU-{number}", number=number, meter=room.uri(number),
                  knob=f"{room.uri(number)}?timeout=1s")  # fmt: skip


def a_bench(
    room: BoardRoom,
    folder: Path,
    *,
    limit_w: float = LIMIT_W,
    lease_s: float = 60.0,
    meter: bool = True,
    find: Callable[[], list[Device]] | None = None,
) -> Bench:
    journal = KnobJournal(folder / "node-caps.json")
    return Bench(
        caps=LeasedCaps({}, journal, until_s=time.monotonic() + lease_s, patience_s=1.0),
        memory=NodeMemory(journal.path),
        around=NodeAround(
            NodeSurroundings(limit_w=limit_w, metered=meter),
            LevelMeter(room.meter_uri) if meter else None,
        ),
        find=find or (lambda: [gpu(room, number) for number in range(GPUS)]),
        config=FAST,
    )


def run(bench: Bench, room: BoardRoom, seconds: float) -> tuple[NodeRound, list[float]]:
    """Rounds; the last look, and what was truly drawn after each."""
    until_s, drawn_w = time.monotonic() + seconds, []
    while True:
        look = bench.look()
        drawn_w.append(room.draw_w())
        if time.monotonic() >= until_s:
            return look, drawn_w
        time.sleep(ROUND_S)


def settle(bench: Bench, room: BoardRoom, below_w: float = LIMIT_W) -> None:
    """Until it has been within its limit and near it for a while."""
    until_s, since_s = time.monotonic() + 90.0, time.monotonic()
    while time.monotonic() - since_s < 4.0:
        bench.look()
        drawn_w = room.draw_w()
        if not 0.9 * below_w < drawn_w <= 1.005 * below_w:
            since_s = time.monotonic()
        assert time.monotonic() < until_s, f"it draws {drawn_w:.0f} W of {below_w:.0f} W"
        time.sleep(ROUND_S)


def test_a_node_with_other_load_is_held_to_its_limit_and_its_successor_goes_on(
    room: BoardRoom, tmp_path: Path
) -> None:
    bench = a_bench(room, tmp_path)
    settle(bench, room)
    look = bench.look()
    assert look.power is not None
    assert look.power.limit_w == LIMIT_W
    assert look.power.base_w == pytest.approx(OTHER_W, rel=0.1)
    assert look.draw_w == pytest.approx(room.draw_w(), rel=0.05)  # all that the node's meter shows
    before_w = [cap_w for cap_w in room.caps_w() if cap_w]
    for _ in range(2):  # killed: nothing is closed, nobody says good-bye
        bench = a_bench(room, tmp_path)
        _, drawn_w = run(bench, room, 2.0)
        assert max(drawn_w) <= 1.01 * LIMIT_W
        assert sum(cap_w for cap_w in room.caps_w() if cap_w) > 0.9 * sum(before_w)


def test_a_limit_of_the_api_outlives_the_api_and_the_process(
    room: BoardRoom, tmp_path: Path
) -> None:
    bench = a_bench(room, tmp_path, limit_w=NO_LIMIT_W)
    bench.hold({}, 60.0, LIMIT_W)
    settle(bench, room)
    bench.hold({}, 60.0, LIMIT_W - 1.0)  # killed in the same moment
    bench.hold({}, 60.0, LIMIT_W)
    bench = a_bench(room, tmp_path, limit_w=NO_LIMIT_W)  # nobody asks it for anything
    look, drawn_w = run(bench, room, 3.0)
    assert max(drawn_w) <= 1.01 * LIMIT_W
    assert look.power is not None
    assert look.power.limit_w == LIMIT_W
    bench.hold({}, 60.0, NO_LIMIT_W)  # the API is back, and says that there is none any more
    look, _ = run(bench, room, 2.0)
    assert look.power is not None
    assert look.power.limit_w is None
    assert room.caps_w() == [None] * (GPUS + 1)


def test_a_silent_api_lets_caps_sink_and_lifts_no_limit(room: BoardRoom, tmp_path: Path) -> None:
    bench = a_bench(room, tmp_path)
    bench.hold({"GPU-0": 500.0}, 2.0)
    settle(bench, room)
    _, drawn_w = run(bench, room, 4.0)  # the lease ends
    assert max(drawn_w) <= 1.01 * LIMIT_W
    assert room.caps_w()[0] == 200.0
    settle(bench, room)  # its watts went to the others


def test_what_was_found_is_put_back_when_nobody_is_to_hold_it_any_more(
    room: BoardRoom, tmp_path: Path
) -> None:
    bench = a_bench(room, tmp_path)
    settle(bench, room)
    bench.put_back()
    run(bench, room, 1.0)
    assert room.caps_w() == [None] * (GPUS + 1)
    assert bench.look().power is None
    assert not (tmp_path / "node-caps.json.state").exists()


def test_a_clock_that_is_set_anew_cuts_nobody(
    room: BoardRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = a_bench(room, tmp_path)
    settle(bench, room)
    before_w = sum(cap_w for cap_w in room.caps_w() if cap_w)
    real = time.time
    for jump_s in (7200.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        look, drawn_w = run(bench, room, 2.0)
        assert max(drawn_w) <= 1.01 * LIMIT_W
        assert look.power is not None
        assert not look.power.safe_mode
        assert sum(cap_w for cap_w in room.caps_w() if cap_w) > 0.9 * before_w


def test_a_gpu_that_is_plugged_in_later_is_held_and_one_that_is_gone_still_counts(
    room: BoardRoom, tmp_path: Path
) -> None:
    here = [gpu(room, number) for number in range(2)]
    for late in room.boards[2:GPUS]:
        late.switch(on=False)
    bench = a_bench(room, tmp_path, limit_w=1500.0, meter=False, find=lambda: list(here))
    run(bench, room, 6.0)
    assert sum(cap_w or 700.0 for cap_w in room.caps_w()[:2]) <= 1500.0
    here.append(gpu(room, 2))
    room.boards[2].switch(on=True)
    bench.search()
    run(bench, room, 8.0)
    assert sum(cap_w or 700.0 for cap_w in room.caps_w()[:3]) <= 1500.0
    bench.close()
    here.pop()
    bench = a_bench(room, tmp_path, limit_w=1500.0, meter=False, find=lambda: list(here))
    run(bench, room, 8.0)
    # It may draw on: what it may have counts, though it is not there to be asked.
    assert sum(cap_w or 700.0 for cap_w in room.caps_w()[:2]) + 700.0 <= 1500.0


def test_a_second_helper_leaves_the_first_ones_socket_alone(
    room: BoardRoom, tmp_path: Path
) -> None:
    path = tmp_path / "caps.sock"
    helper = CapHelper(lambda: a_bench(room, tmp_path), path)
    helper.begin()
    try:
        with pytest.raises(UserError, match="another helper"):
            CapHelper(lambda: a_bench(room, tmp_path), path)
        asking = RemoteBench(path)
        look = asking.hold({"GPU-1": 300.0}, 60.0, 2000.0)
        assert look.power is not None
        assert look.power.limit_w == 2000.0
        asking.close()
    finally:
        helper.close()
    CapHelper(lambda: a_bench(room, tmp_path), path)._server.server_close()
