"""The safety loop of a node, on simulated nodes that are as unkind as real ones.

An 8-GPU node draws 1.82 times its GPUs; caps are ignored, rounded, late or cannot be met; meters
freeze and fall silent. Judged is what the node truly draws against what it may, and what each GPU
was ordered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from wattherd.engine.safety.loop import SafetyState
from wattherd.kube.decide.node_loop import (
    NO_LIMIT_W,
    GpuRange,
    GpuReading,
    LevelReading,
    NodeLoop,
    NodeSurroundings,
)

FLOOR_W, MAX_W = 200.0, 700.0
SETTLED_S = 40.0


@dataclass
class Node:
    """GPUs that draw all they may, and what else the node draws; one second at a time."""

    count: int = 8
    around: NodeSurroundings = field(default_factory=NodeSurroundings)
    other_w: float = 0.0
    with_gpus: float = 0.0  # fans and losses: watts for each watt of the GPUs
    ignored: set[int] = field(default_factory=set)
    step_w: float = 1.0
    late_s: float = 0.0  # median of a lognormal
    reach_w: float = 0.0  # no GPU draws less, whatever its cap
    frozen: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    node_meter: bool = True
    asked_w: dict[int, float] = field(default_factory=dict)
    limit_w: float = NO_LIMIT_W
    state: SafetyState | None = None

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(7)
        self.at_s = 1000.0
        self.cap_w = np.full(self.count, MAX_W)
        self.known_w = np.full(self.count, MAX_W)
        self.waiting: list[tuple[float, int, float]] = []
        self.said_w: dict[int, float] = {}
        self.held: dict[str, float] = {}
        self.over_s = 0.0
        self.begin()

    def begin(self) -> None:
        """A new process, which knows `state` alone."""
        gpus = [
            GpuRange(uuid=f"G{n}", floor_w=FLOOR_W, max_w=MAX_W, step_w=self.step_w)
            for n in range(self.count)
        ]
        self.loop = NodeLoop(gpus, self.around, state=self.state)

    @property
    def gpus_w(self) -> np.ndarray:
        draw_w = np.maximum(self.cap_w, self.reach_w)
        for one in self.ignored:
            draw_w[one] = MAX_W
        return draw_w * (1.0 - 1e-4 * self.chance.random(self.count))

    @property
    def draw_w(self) -> float:
        return float(self.gpus_w.sum()) * (1 + self.with_gpus) + self.other_w

    def second(self) -> None:
        self.at_s += 1.0
        for due_s, one, cap_w in list(self.waiting):
            if due_s <= self.at_s:
                self.waiting.remove((due_s, one, cap_w))
                self.known_w[one] = cap_w
                if one not in self.ignored:
                    self.cap_w[one] = cap_w
        gpus_w = self.gpus_w
        found = {}
        for one in range(self.count):
            said_w = self.said_w.setdefault(one, gpus_w[one]) if one in self.frozen else gpus_w[one]
            lost = one in self.lost
            found[f"G{one}"] = GpuReading(
                cap_w=math.nan if lost else float(self.known_w[one]),
                draw_w=math.nan if lost else float(said_w),
                asked_w=self.asked_w.get(one),
            )
        meter = LevelReading(self.draw_w, self.at_s) if self.node_meter else LevelReading()
        self.held = self.loop.cycle(self.at_s, found, limit_w=self.limit_w, node=meter)
        for name, cap_w in self.held.items():
            one = int(name[1:])
            if one in self.lost:
                continue
            grid_w = math.floor(cap_w / self.step_w + 1e-6) * self.step_w
            wait_s = self.late_s * float(self.chance.lognormal(0.0, 0.6)) if self.late_s else 0.0
            self.waiting.append((self.at_s + wait_s, one, max(grid_w, FLOOR_W)))
        if not self.late_s:
            for _, one, cap_w in self.waiting:
                self.known_w[one] = cap_w
                if one not in self.ignored:
                    self.cap_w[one] = cap_w
            self.waiting = []

    def run(self, seconds: float, below_w: float = math.inf) -> float:
        """Seconds of these in which it draws more than `below_w`."""
        over_s = 0.0
        for _ in range(round(seconds)):
            self.second()
            over_s += self.draw_w > below_w * 1.001
        return over_s


LIMITED = NodeSurroundings(limit_w=6000.0, metered=True)


def test_without_limit_and_orders_nothing_is_touched() -> None:
    node = Node(other_w=2000.0)
    node.cap_w[:] = node.known_w[:] = 650.0  # as somebody set them by hand
    node.run(30)
    assert node.held == {}
    node.known_w[3] = node.cap_w[3] = 500.0
    node.run(30)
    assert node.held == {}
    assert node.loop.power().problems == ()


def test_orders_are_met_to_the_watt_and_only_where_asked() -> None:
    node = Node(asked_w={0: 300.0, 1: 450.0})
    node.run(20)
    assert node.held == {"G0": 300.0, "G1": 450.0}
    node.asked_w = {0: 320.0}
    node.run(10)
    assert node.held == {"G0": 320.0}


def test_other_load_of_the_node_is_believed_and_the_limit_is_used() -> None:
    """An 8-GPU node at 1.82 times its GPUs: the meter says 10 kW where the GPUs say 5.6 kW."""
    node = Node(around=LIMITED, other_w=1500.0, with_gpus=0.55)
    node.run(SETTLED_S)
    assert node.run(40, below_w=6000.0) == 0
    assert node.draw_w > 0.94 * 6000.0


@pytest.mark.parametrize(
    "fault",
    [
        {"ignored": {2}},
        {"step_w": 25.0},
        {"late_s": 3.0},
        {"reach_w": 260.0},
        {"frozen": {1}},
        {"lost": {5}},
    ],
    ids=["a cap is ignored", "caps are rounded", "caps are late", "floors cannot be met",
         "a reading stands still", "a GPU is lost"],
)  # fmt: skip
def test_the_limit_holds_with_a_fault(fault: dict[str, object]) -> None:
    node = Node(around=LIMITED, other_w=1500.0, with_gpus=0.2, **fault)  # type: ignore[arg-type]
    node.run(SETTLED_S + 10)
    assert node.run(60, below_w=6000.0) <= 1
    assert node.draw_w > 0.7 * 6000.0


def test_other_load_that_steps_up_is_answered_within_seconds() -> None:
    node = Node(around=LIMITED, other_w=1000.0, with_gpus=0.1)
    node.run(50)
    node.other_w = 1800.0
    assert node.run(40, below_w=6000.0) <= 4
    assert node.run(40, below_w=6000.0 * 1.035) == 0


def test_a_limit_without_any_meter_of_the_node_counts_what_is_stated() -> None:
    node = Node(around=NodeSurroundings(limit_w=4000.0, base_w=800.0), node_meter=False)
    node.run(SETTLED_S)
    assert node.run(60, below_w=4000.0 - 800.0) == 0
    assert node.draw_w > 0.95 * 3200.0


@pytest.mark.long
def test_a_limit_of_the_api_counts_beside_the_stated_one() -> None:
    node = Node(around=NodeSurroundings(limit_w=5000.0, metered=True), limit_w=3000.0)
    node.run(SETTLED_S)
    assert node.run(30, below_w=3000.0) == 0
    node.limit_w = 9000.0
    node.run(SETTLED_S)
    assert node.run(60, below_w=5000.0) == 0
    assert node.draw_w > 4800.0
    assert node.loop.power().limit_w == 5000.0


def test_a_successor_is_as_sure_as_its_predecessor_was() -> None:
    node = Node(around=LIMITED, other_w=1500.0, with_gpus=0.2)
    node.run(60)
    caps_w = node.cap_w.sum()
    for _ in range(3):
        node.state = node.loop.loop.state()
        node.at_s = float(node.chance.random() * 1e6)  # another life, another clock
        node.begin()
        assert node.run(20, below_w=6000.0) == 0
        assert node.cap_w.sum() > 0.95 * caps_w


def test_a_pod_that_asks_for_more_and_less_in_turns_takes_nothing_from_its_neighbours() -> None:
    node = Node(around=LIMITED, asked_w=dict.fromkeys(range(8), 500.0))
    node.run(60)
    neighbours_w = node.cap_w[1:].copy()
    assert neighbours_w.min() >= 498.0
    for second in range(60):
        node.asked_w[0] = 700.0 if second % 2 else 250.0
        node.second()
        assert node.draw_w <= 6000.0 * 1.001
    assert node.cap_w[1:].min() >= 498.0


def test_where_meters_fail_but_no_limit_is_in_danger_orders_hold() -> None:
    node = Node(count=1, asked_w={0: 450.0})
    node.run(10)
    node.said_w, node.frozen = {0: math.nan}, {0}
    node.run(60)
    assert node.held == {"G0": 450.0}
    node.frozen = set()
    node.asked_w = {0: 500.0}
    node.run(20)
    assert node.held == {"G0": 500.0}


def test_orders_hold_for_gpus_that_do_not_obey_and_no_limit_is_in_danger() -> None:
    node = Node(count=2, asked_w={0: 250.0, 1: 250.0}, ignored={0, 1})
    for asked_w in (250.0, 200.0, 250.0, 450.0):
        node.asked_w = {0: asked_w, 1: asked_w}
        node.run(25)
        assert node.held == {"G0": asked_w, "G1": asked_w}


def test_a_lost_gpu_counts_at_its_most_and_its_neighbours_make_room() -> None:
    node = Node(around=NodeSurroundings(limit_w=4000.0), node_meter=False)
    node.run(SETTLED_S)
    node.lost = {0}
    node.run(30)
    assert node.cap_w[1:].sum() + MAX_W <= 4000.0
    node.lost = set()
    node.run(90)
    assert node.cap_w.sum() > 3900.0


def test_what_a_gpu_truly_draws_is_told_where_its_cap_does_not_hold() -> None:
    node = Node(asked_w={0: 300.0, 1: 300.0}, ignored={1})
    node.run(30)
    power = node.loop.power()
    assert power.gpus_w["G0"] == pytest.approx(300.0, rel=0.01)
    assert power.gpus_w["G1"] >= 690.0
    assert any("G1 does not obey its cap" in one or "G1 has not taken" in one
               for one in power.problems)  # fmt: skip


def test_a_rack_that_other_nodes_load_is_kept_to_its_limit() -> None:
    around = NodeSurroundings(rack_limit_w=9000.0, rack_metered=True)
    node = Node(around=around)
    others_w = 5000.0
    for _ in range(80):
        node.at_s += 1.0
        found = {
            f"G{n}": GpuReading(cap_w=float(node.cap_w[n]), draw_w=float(node.gpus_w[n]))
            for n in range(8)
        }
        rack = LevelReading(node.draw_w + others_w, node.at_s)
        for name, cap_w in node.loop.cycle(node.at_s, found, rack=rack).items():
            node.cap_w[int(name[1:])] = cap_w
    assert node.draw_w + others_w <= 9000.0
    assert node.draw_w + others_w > 8500.0
