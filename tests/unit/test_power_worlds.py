"""What the shipped safety loop owes in rooms written from data sheets, one unkindness each.

Targets without a fault: never above a limit once the stated response has passed, no trip on the
early edge of the breakers' band, 95 % of what is usable drawn, back there within a minute after a
cut, or after other load has ended. Where caps hold means, nothing that sees no swing coming reaches
95 %: there both are 95 % of what the best caps in a fixed share of the limit reach. Where other
load moves, no order helps within the response: there it is 95 % of what is left to whoever keeps
free what comes within that time, and for a minute what went at once (`most_with_reserve_pct`).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.experiments.power_bench.controllers import MAKERS, SHIPPED
from wattherd.experiments.power_bench.run import BenchChoice, bench, best_steady_pct, pairs, run_log
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.experiments.power_bench.scores import back_s, scores
from wattherd.experiments.power_bench.worlds import WORLDS, build, is_measured
from wattherd.hold.site_file import read_site
from wattherd.sim.power_plant_faults import KINDS, no_fault

USED_PCT, BACK_S = 95.0, 60
MOVING = "other-load-daily", "other-load-switched", "other-load-ends", "other-load-large"
MINUTE_S, AT_ONCE = 60, 0.02
NOT_YET = {
    "floor-not-reached": "92.4 % used: devices at rest may burst, as long as none has risen",
    "other-load-large": "88.0 % used, 88.3 owed: what its steps are taken to wander is kept free",
}
"""What the loop does not hold, as measured; benchmarks/power_before.json has what it once held."""


def _owed(name: str) -> Any:
    why = NOT_YET.get(name)
    marks = [pytest.mark.xfail(strict=False, reason=why)] if why else []
    return pytest.param(name, marks=marks, id=name)


@cache
def _scored(name: str) -> dict[str, Any]:
    scenario = _built(name)
    fleet = scenario.room.fleet
    log = run_log(scenario, no_fault(fleet.size, fleet.feeds), MAKERS["wattherd"])
    best = best_steady_pct(scenario)
    back = None if best is None else back_s(scenario, log, min(best, 100.0) / 100.0)
    return {**scores(scenario, log), "trips": log.trips, "best": best, "back_to_best_s": back}


def _built(name: str) -> BenchScenario:
    if is_measured(name) and not Path(os.environ.get("WATTHERD_DATA") or "/nowhere").is_dir():
        pytest.skip("needs the measured loads under WATTHERD_DATA")
    return build(name, seed=1, quick=False)


def most_with_reserve_pct(scenario: BenchScenario) -> float:
    """The most that is used by whoever is never above, seeing other load only as it comes.

    With other load o(t), limit l(t) and a response of R seconds, devices may draw at t no more than
    l(t) - max of o over [t, t + R], as what is ordered once it rises comes too late; and of what
    fell at once within the last minute M it is o over [t - M, t + R], as it may rise at once again.
    """
    limit_w, other_w = scenario.limit_w[:, -1], scenario.other_w()[:, -1]
    falls = (np.diff(other_w, prepend=other_w[0]) < -AT_ONCE * limit_w).any()
    late_s, back_s = int(np.ceil(scenario.response_s)), MINUTE_S if falls else 0
    seconds = range(scenario.seconds)
    highest_w = np.array([other_w[max(t - back_s, 0) : t + late_s + 1].max() for t in seconds])
    usable_w = scenario.usable_w()
    return float(100.0 * np.minimum(usable_w, limit_w - highest_w).sum() / usable_w.sum())


@pytest.mark.long
@pytest.mark.parametrize("name", [_owed(name) for name in WORLDS])
def test_the_limit_holds_and_is_used_without_a_fault(name: str) -> None:
    found = _scored(name)
    best = found["best"]
    most = 100.0 if best is None else best
    if name in MOVING:
        most = min(most, most_with_reserve_pct(_built(name)))
    least = USED_PCT if most == 100.0 else min(USED_PCT, 0.95 * most)
    assert found["over_limit_s"] == 0, found
    assert found["trips"] == 0, found
    assert found["usable_pct"] >= round(least, 2), found  # both to hundredths
    back = found["back_s"] if best is None else found["back_to_best_s"]
    assert back is None or back <= BACK_S, found


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_no_single_fault_trips_a_breaker(name: str) -> None:
    if is_measured(name):
        _built(name)
    choice = BenchChoice(scenarios=(name,), faults=KINDS, controllers=("wattherd",), quick=True)
    tripped = {run["fault"]: run["trip_reasons"] for run in bench(choice)["runs"]}
    assert not any(tripped.values()), {kind: why for kind, why in tripped.items() if why}


@pytest.mark.long
@pytest.mark.parametrize("fault", ["meter-spiking", "meter-frozen"])
@pytest.mark.parametrize("name", ["gpus-on-rack-meter", "other-load-35", "knob-clamps"])
def test_what_a_meter_told_while_it_was_broken_costs_nothing_a_minute_later(
    name: str, fault: str
) -> None:
    """A spike is no load that went, and neither is what changed while a meter stood still."""
    choice = BenchChoice(scenarios=(name,), faults=(fault,), controllers=("wattherd",), quick=True)
    found = bench(choice)["runs"][0]
    assert found["over_limit_s"] == 0
    assert found["recovered_s"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpus-on-rack-meter", "other-load-35", "ordinary-racks"])
def test_every_trip_under_two_faults_has_a_reason(name: str) -> None:
    choice = BenchChoice(
        scenarios=(name,), faults=pairs()[::5], controllers=("wattherd",), quick=True
    )
    document = bench(choice)
    assert document["summary"][0]["unexplained_trips"] == 0, document["runs"]


# --- the yardsticks ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in WORLDS if not is_measured(name)])
def test_every_world_can_be_held_at_its_floors_and_asks_for_more_than_it_may_have(
    name: str,
) -> None:
    """Else nobody could keep its limits, or nobody had to."""
    scenario = _built(name)
    fleet, capping = scenario.room.fleet, scenario.room.capping
    least_w = np.maximum(fleet.floor_w, capping.reachable_w)
    least_w = np.maximum(least_w, scenario.room.knobs.lowest_w) * capping.regulates_at
    floors_w = fleet.levels(least_w * (1 + capping.rest_share) + capping.rest_w)
    assert (floors_w + scenario.other_w() < scenario.limit_w).all()
    asked_w = scenario.wall_demand_w().sum(axis=1) + scenario.other_w()[:, -1]
    assert (asked_w > scenario.limit_w[:, -1]).mean() > 0.05


def test_what_is_usable_is_the_limit_less_other_load_and_never_more_than_is_asked_for() -> None:
    scenario = _built("other-load-20")
    limit_w = scenario.limit_w[:, -1]
    assert scenario.usable_w() == pytest.approx(limit_w - 0.2 * limit_w[0])
    cooled = _built("cooling-feed")
    assert cooled.usable_w() == pytest.approx(cooled.limit_w[:, -1] / 1.165)
    idle = _built("floor-not-reached")
    assert (idle.usable_w() <= idle.wall_demand_w().sum(axis=1) + 1e-6).all()


def test_the_scored_controller_is_configured_as_power_hold_configures_it(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        "limit: 20kW\n"
        "feeds: {row: {}}\n"
        "devices: {node: {feed: row, meter: 'redfish+http://127.0.0.1:9/redfish/v1/Chassis/0',"
        " knob: 'redfish+http://127.0.0.1:9/redfish/v1/Chassis/0'}}\n"
    )
    assert read_site(path).config == SHIPPED


def test_a_world_of_that_name_is_looked_for_before_anything_runs() -> None:
    with pytest.raises(UserError, match="no scenario"):
        build("swing", seed=1, quick=True)
