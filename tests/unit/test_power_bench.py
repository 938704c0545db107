"""The machine room, its faults, and what the benchmark promises of our controller."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

from wattherd.cli.power import power
from wattherd.engine.safety.contract import Orders
from wattherd.errors import UserError
from wattherd.experiments.power_bench.controllers import ProportionalShare
from wattherd.experiments.power_bench.run import BenchChoice, bench, pairs, run_log
from wattherd.experiments.power_bench.scenarios import PLANS, BenchScenario
from wattherd.experiments.power_bench.scores import (
    UNEXPLAINED,
    RunLog,
    jain,
    oracle_draw,
    progress,
    scores,
    told_trip,
)
from wattherd.experiments.power_bench.worlds import WORLDS, build
from wattherd.sim.power_plant import STEP_S, PowerPlant, Trip
from wattherd.sim.power_plant_faults import KINDS, PlantFault, drawn_fault, no_fault

SYNTHETIC = [name for name, plan in PLANS.items() if not plan.measured]
REPOSITORY = Path(__file__).resolve().parents[2]
QUIET = build("nominal", seed=1, quick=True)
FLEET = QUIET.room.fleet


def a_fault(*kinds: str, start_s: float = 5.0, end_s: float = 1e9) -> PlantFault:
    return drawn_fault(
        kinds, np.random.default_rng(3), FLEET.feed.tolist(), share=0.15,
        hit_feeds=np.arange(FLEET.feeds) == 0, window_s=(start_s, end_s),
    )  # fmt: skip


def a_plant(fault: PlantFault | None = None) -> PowerPlant:
    return PowerPlant(QUIET.room, np.random.default_rng(4), fault)


def caps(watts: float, lease_s: float = np.inf) -> Orders:
    none = np.zeros(FLEET.size, dtype=bool)
    each_w = np.full(FLEET.size, watts)
    return Orders(cap_w=each_w, lease_s=lease_s, switch_off=none, switch_on=none)


def let_pass(plant: PowerPlant, seconds: float, demand_w: float = 10_200.0) -> None:
    for _ in range(round(seconds / STEP_S)):
        plant.step(np.full(FLEET.size, demand_w))


# --- the room ---------------------------------------------------------------------------------


def test_draw_follows_the_cap_after_the_knobs_delay_and_the_devices_lag() -> None:
    plant = a_plant()
    let_pass(plant, 20)
    plant.order(caps(5_000))
    let_pass(plant, 0.8)
    assert plant.draw_w.min() > 9_000
    let_pass(plant, 7)
    assert plant.draw_w == pytest.approx(np.full(FLEET.size, 5_000), rel=0.03)


def test_a_lease_that_nobody_renews_ends_at_the_floor() -> None:
    plant = a_plant()
    plant.order(caps(8_000, lease_s=10))
    let_pass(plant, 9)
    assert plant.cap_w.max() == 8_000
    let_pass(plant, 4)
    assert np.array_equal(plant.cap_w, FLEET.floor_w)


def test_orders_of_a_device_never_overtake_each_other() -> None:
    plant = a_plant(a_fault("actuator-delay", start_s=0.0, end_s=2.0))
    plant.order(caps(5_000))
    let_pass(plant, 3)
    plant.order(caps(6_000))  # quick again, but behind the slow one
    let_pass(plant, 5)
    slow = plant.fault.hits & (plant.fault.delay_s > 10.0)
    assert slow.sum() == 2
    assert (plant.cap_w[~slow] == 6_000).all()
    assert (plant.cap_w[slow] > 9_000).all()
    let_pass(plant, 40)
    assert (plant.cap_w == 6_000).all()


def test_an_overloaded_breaker_darkens_its_feed_and_its_devices_forget_their_caps() -> None:
    plant = a_plant()
    plant.heat[:] = 0.99
    plant.order(caps(10_000))
    let_pass(plant, 10)
    assert plant.trips > 0
    assert plant.dark.any()
    let_pass(plant, 5)
    assert plant.draw_w[plant.dark].max() < 100
    assert (plant.cap_w[plant.dark] == FLEET.max_w[plant.dark]).all()


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_shows_in_readings_or_caps_and_ends(kind: str) -> None:
    """Beside a room without fault, with the same noise: different during, the same afterwards."""
    fault = a_fault(kind, start_s=40.0, end_s=80.0)
    rooms = [a_plant(), a_plant(fault)]
    differs = {"during": False, "after": False}
    for second in range(200):
        seen = [plant.read() for plant in rooms]
        for plant in rooms:
            if not (plant.fault.kills(second) or plant.fault.stalls(second)):
                plant.order(caps(6_900 - 600 * (second // 10 % 2), lease_s=15))
            let_pass(plant, 1)
        phase = "during" if 40 <= second < 82 else "after" if second > 150 else None
        if phase:
            same = all(
                np.allclose(getattr(seen[0], name), getattr(seen[1], name), rtol=0.02,
                            equal_nan=True)
                for name in ("draw_w", "draw_at_s", "cap_w", "feed_w")
            )  # fmt: skip
            differs[phase] |= not same
    assert differs == {"during": True, "after": False}


def test_faults_hit_their_share_of_devices() -> None:
    assert a_fault("cap-ignored").hits.sum() == 6
    assert a_fault("nodes-silent").hits.sum() == 8
    assert len(pairs()) == len(KINDS) * (len(KINDS) - 1) // 2


# --- scores -----------------------------------------------------------------------------------


def a_log(scenario: BenchScenario, draw_w: np.ndarray) -> RunLog:
    level_w = np.array([scenario.room.fleet.levels(row) for row in draw_w])
    return RunLog(
        level_w=level_w, draw_w=draw_w, cap_w=draw_w, trips=0, caps_restored=True,
        wall_w=draw_w.sum(axis=1), peak_w=level_w, any_second_w=level_w,
    )  # fmt: skip


def test_a_second_above_is_found_whenever_it_begins() -> None:
    """A swing at 0.5 Hz, half of whose peaks fall between two seconds of the clock."""
    swinging = build("swing-0.5-fast", seed=1, quick=True)
    fixed = run_log(
        swinging, no_fault(swinging.room.fleet.size, swinging.room.fleet.feeds),
        lambda scenario, _: ProportionalShare(scenario.room.fleet, 0.9),
    )  # fmt: skip
    found = scores(swinging, fixed)
    assert found["worst_excess_pct"] + 1.0 < found["worst_second_pct"] < found["worst_moment_pct"]


def test_seconds_and_joules_above_the_limit_are_counted_after_the_response() -> None:
    step = build("step-25", seed=1, quick=True)
    exact = np.full((step.seconds, FLEET.size), 1.0) * (step.limit_w[:, -1:] / FLEET.size)
    late = exact.copy()
    fall = step.event_s
    assert fall == 108
    late[fall : fall + 12] = exact[0]  # four seconds longer than the response allows
    found = scores(step, a_log(step, late * 0.999))
    assert (found["over_limit_s"], found["over_limit_raw_s"]) == (4, 12)
    limit_w = step.limit_w[:, -1]
    assert found["over_limit_j"] == pytest.approx(4 * (0.999 * limit_w[0] - limit_w[fall]), abs=1)
    assert found["worst_overshoot_pct"]["1"] == pytest.approx(100 * (0.999 / 0.75 - 1), abs=0.01)
    assert found["settling_s"] == 12


def test_the_oracle_keeps_every_limit_and_no_equal_share_beats_it() -> None:
    for name in SYNTHETIC:
        scenario = build(name, seed=2, quick=True)
        best_w = oracle_draw(scenario)
        levels = np.array([scenario.room.fleet.levels(row) for row in best_w])
        assert (levels <= scenario.limit_w * (1 + 1e-6)).all()
        equal_w = np.minimum(scenario.demand_w, scenario.limit_w[:, -1:] / FLEET.size)
        assert progress(scenario, best_w).sum() >= progress(scenario, equal_w).sum()


def test_fairness_is_one_for_equals_and_one_nth_for_a_taker_of_all() -> None:
    assert jain(np.full(5, 0.3)) == pytest.approx(1.0)
    assert jain(np.array([1.0, 0, 0, 0])) == pytest.approx(0.25)


# --- promises --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm() -> list[dict]:
    runs: list[dict] = []
    for name in SYNTHETIC:
        runs += bench(BenchChoice(scenarios=(name,), faults=("none",), controllers=("wattherd",)))[
            "runs"
        ]
    return runs


@pytest.mark.long
def test_without_faults_the_limit_holds_and_what_was_found_is_restored(calm: list[dict]) -> None:
    for run in calm:
        assert run["over_limit_s"] == 0, run["scenario"]
        assert run["breaker_trips"] == run["unavoidable_trips"] == 0
        assert run["caps_restored"]


@pytest.mark.long
def test_a_quarter_less_within_ten_seconds_without_overshedding_or_snapping_back(
    calm: list[dict],
) -> None:
    events = [run for run in calm if run["over_shed_pct"] is not None]
    assert len(events) == 2
    for run in events:
        assert run["settling_s"] <= 10
        assert run["over_shed_pct"] <= 2.0
        assert run["snap_back_pct"] == 0.0


@pytest.mark.long
def test_open_loop_trips_a_breaker_that_ours_keeps() -> None:
    both = ("wattherd", "open-loop")
    choice = BenchChoice(
        scenarios=("breaker-near-trip",), faults=("none",), quick=True, controllers=both
    )
    trips = {run["controller"]: run["breaker_trips"] for run in bench(choice)["runs"]}
    assert trips["open-loop"] >= 1
    assert trips["wattherd"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC)
def test_no_single_fault_trips_a_breaker_or_costs_a_found_cap(name: str) -> None:
    for run in bench(BenchChoice(scenarios=(name,), controllers=("wattherd",), quick=True))["runs"]:
        assert run["breaker_trips"] == 0, run["fault"]
        assert run["caps_restored"], run["fault"]
        late = run["fault"] in ("none", "cap-ignored")
        assert late or run["recovered_s"] is not None, run["fault"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step-25", "demand-response"])
def test_a_knob_that_claimed_what_it_did_not_do_is_asked_again_once_it_works(name: str) -> None:
    choice = BenchChoice(scenarios=(name,), faults=("cap-ignored",), controllers=("wattherd",))
    assert bench(choice)["runs"][0]["recovered_s"] is not None


@pytest.mark.long
def test_the_same_seed_gives_the_same_document() -> None:
    choice = BenchChoice(scenarios=("two-peaks",), faults=("cap-ignored",), quick=True)
    first, second = bench(choice), bench(choice)
    assert json.dumps(first) == json.dumps(second)
    other = bench(dataclasses.replace(choice, seed=2))
    assert json.dumps(other["runs"]) != json.dumps(first["runs"])


# --- command line ----------------------------------------------------------------------------

FIELDS = {
    "scenario", "fault", "controller", "seed", "over_limit_s", "over_limit_raw_s", "over_limit_j",
    "worst_overshoot_pct", "breaker_trips", "unavoidable_trips", "settling_s", "headroom_pct",
    "cap_changes_per_min", "progress_of_oracle", "recovered_s",
}  # fmt: skip


@pytest.mark.long
def test_the_command_prints_the_document_and_nothing_else_on_stdout() -> None:
    asked = ["bench", "--scenario", "nominal", "--fault", "none", "--quick", "-o", "json"]
    done = CliRunner().invoke(power, asked)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "wattherd.bench/1"
    assert [run["controller"] for run in document["runs"]] == ["wattherd", "uniform"]
    assert all(set(run) >= FIELDS for run in document["runs"])
    assert set(document["runs"][0]["worst_overshoot_pct"]) == {"1", "10", "60"}


@pytest.mark.long
def test_a_page_plots_and_tables_are_written(tmp_path: Path) -> None:
    asked = ["bench", "--scenario", "step-25,nominal", "--fault", "none,cap-reset", "--quick"]
    done = CliRunner().invoke(power, [*asked, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == ["nominal-none.svg", "step-25-none.svg"]
    for path in (tmp_path / "plots").iterdir():
        assert ET.parse(path).getroot().tag.endswith("svg")
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    document = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == len(document["runs"]) == 8
    worst = [str(run["worst_overshoot_pct"]["10"]) for run in document["runs"]]
    assert [row["worst_10"] for row in rows] == worst
    assert page.count("<figure") == 2
    assert "cap-reset" in page


def test_measured_loads_are_replayed_or_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = BenchChoice(scenarios=("nominal-measured",), faults=("none",), quick=True)
    if Path(os.environ.get("WATTHERD_DATA") or "/nonexistent").is_dir():
        runs = bench(choice)["runs"]
        assert [run["over_limit_s"] for run in runs if run["controller"] == "wattherd"] == [0]
        assert runs[0]["progress_of_oracle"] > 0.98
    monkeypatch.delenv("WATTHERD_DATA", raising=False)
    document = bench(choice)
    assert document["runs"] == []
    assert "WATTHERD_DATA" in document["skipped"][0]["reason"]


@pytest.mark.parametrize("field", ["scenarios", "faults", "controllers"])
def test_unknown_names_are_refused_before_anything_runs(field: str) -> None:
    with pytest.raises(UserError, match="nominel"):
        BenchChoice(**{field: ("nominel",)})


# --- a controller of somebody else's ----------------------------------------------------------

EQUAL_SHARES = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["kind"] == "fleet":
        size = len(asked["feed"])
        continue
    if asked["kind"] == "cycle":
        each_w = asked["limit_w"][-1] / size
    print(json.dumps({"cap_w": [each_w] * size}), flush=True)
"""


@pytest.mark.long
def test_a_controller_in_another_process_is_scored_like_ours(tmp_path: Path) -> None:
    script = tmp_path / "equal.py"
    script.write_text(EQUAL_SHARES)
    choice = BenchChoice(
        scenarios=("nominal",), faults=("controller-killed",), quick=True,
        controllers=("uniform", "external"), command=f"{sys.executable} {script}",
    )  # fmt: skip
    uniform, external = bench(choice)["runs"]
    assert {**external, "controller": "uniform"} == uniform


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("print('hello')", "no JSON object"),
        ("print('{}')", "has no cap_w"),
        ("print('{\"cap_w\": [1, 2]}')", "40 finite numbers"),
        ("pass", "no answer|has ended"),
    ],
)
def test_a_controller_that_answers_badly_ends_the_run_with_a_reason(
    script: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(f"import sys\nsys.stdin.readline()\n{script}\n")
    choice = BenchChoice(
        scenarios=("nominal",), faults=("none",), quick=True, controllers=("external",),
        command=f"{sys.executable} {path}",
    )  # fmt: skip
    with pytest.raises(UserError, match=problem):
        bench(choice)


# --- trips and their stories ------------------------------------------------------------------


def test_a_trip_tells_what_was_drawn_ordered_and_shown_at_that_moment() -> None:
    trip = Trip(
        at_s=12.3,
        level=1,
        draw_w=120.0,
        rated_w=100.0,
        shown_w=60.0,
        hit_w=80.0,
        hit_ordered_w=50.0,
    )
    fault = a_fault("cap-ignored")
    assert told_trip(QUIET, fault, trip) == (
        "devices hit drew 80 W on orders for 50 W and meters showed 60 W; "
        "rack-1 at 12.3 s, 20 W above 100 W"
    )
    blind = dataclasses.replace(trip, shown_w=np.nan, hit_w=0.0)
    assert told_trip(QUIET, fault, blind).startswith("no meter showed it; rack-1")
    honest = dataclasses.replace(trip, shown_w=119.0, hit_w=65.0)  # 15 W do not explain 20 W
    assert told_trip(QUIET, fault, honest).startswith(UNEXPLAINED)
    dead = a_fault("controller-killed", start_s=5.0, end_s=10.0)
    assert told_trip(QUIET, dead, honest).startswith("the loop was not at work; ")


@pytest.mark.long
def test_what_open_loop_trips_is_told_and_counted_as_avoidable() -> None:
    choice = BenchChoice(
        scenarios=("gpus-on-rack-meter",), faults=("none",), controllers=("uniform",)
    )
    document = bench(choice)
    run = document["runs"][0]
    assert run["breaker_trips"] == len(run["trip_reasons"]) >= 1
    assert run["unavoidable_trips"] == 0
    assert document["summary"][0]["unexplained_trips"] == run["breaker_trips"]
    assert "site at" in run["trip_reasons"][0]


def test_the_table_of_rooms_says_then_and_now_and_finds_its_place_in_the_page() -> None:
    spec = importlib.util.spec_from_file_location(
        "benchmarks_power", REPOSITORY / "benchmarks/power.py"
    )
    assert spec is not None
    assert spec.loader is not None
    power_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(power_tables)
    old = {"scenario": "deep-tree", "fault": "none", "over_limit_s": 38, "worst_excess_pct": 4.3,
           "breaker_trips": 0, "unavoidable_trips": 0, "usable_pct": 97.7, "back_s": 5,
           "safe_mode_s": 0, "alarms": {}}  # fmt: skip
    new = {**old, "over_limit_s": 0, "worst_excess_pct": 0.0, "alarms": {"base-load": 300}}
    lines = list(power_tables.calm_table([new], [old]))
    assert lines[-1] == "On average over these rooms 97.7 % are used."
    assert lines[-3] == (
        "| `deep-tree` | 38 → **0** | 4.3 → **0.0** | 0 | 97.7 | 5 | 0 | base-load |"
    )
    page = power_tables.PAGE.read_text()
    for name in ("rooms", "steady", "phases", "faults", "pairs"):
        once = power_tables.put(page, name, ["a", "b"])
        assert power_tables.put(once, name, ["a", "b"]) == once
        assert "\na\nb\n" in once
    before = {run["scenario"] for run in json.loads(power_tables.BEFORE.read_text())["calm"]}
    assert set(WORLDS) - before == {"other-load-ends", "other-load-large"}  # rooms of later
    assert before <= set(WORLDS)
