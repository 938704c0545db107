"""`wattherd power bench`: every scenario under every fault, controlled by several controllers.

A run is determined by its seed: loads, noise and the devices a fault hits come from streams of
their own, the same for every controller.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from wattherd.engine.safety.contract import Controller, Floats
from wattherd.engine.safety.loop import SafetyLoop
from wattherd.errors import UserError
from wattherd.experiments.power_bench.controllers import (
    MAKERS,
    Clairvoyant,
    Maker,
    ProportionalShare,
)
from wattherd.experiments.power_bench.external import External
from wattherd.experiments.power_bench.scenarios import BenchScenario
from wattherd.experiments.power_bench.scores import (
    UNEXPLAINED,
    RunLog,
    jain,
    oracle_draw,
    progress,
    recovered_s,
    scores,
    told_trip,
)
from wattherd.experiments.power_bench.worlds import NAMES, build, is_measured
from wattherd.report.power_bench_page import BenchHistory
from wattherd.sim.power_plant import STEP_S, PowerPlant
from wattherd.sim.power_plant_faults import KINDS, PlantFault, drawn_fault, no_fault
from wattherd.spelling import hint_for

LEAVE_S = 90
BISECTIONS = 7
NONE = "none"
EXTERNAL = "external"
DEFAULT = ("wattherd", "uniform")
"""Controllers that run unless others are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchChoice:
    """What to run; faults are `none`, a kind, or two kinds joined by `+`."""

    scenarios: tuple[str, ...] = NAMES
    faults: tuple[str, ...] = (NONE, *KINDS)
    controllers: tuple[str, ...] = DEFAULT
    seed: int = 1
    quick: bool = False
    command: str | None = None
    """What starts the controller `external`."""

    def __post_init__(self) -> None:
        """Refuse unknown names before anything runs.

        Raises:
            UserError: a scenario, fault or controller that does not exist.
        """
        kinds = [kind for fault in self.faults for kind in fault.split("+")]
        _check(self.scenarios, list(NAMES), "--scenario")
        _check(kinds, [NONE, *KINDS], "--fault")
        for fault in self.faults:
            _check_together(fault)
        known = [*MAKERS, EXTERNAL] if self.command else list(MAKERS)
        _check(self.controllers, known, "--controller")

    def maker(self, name: str) -> Maker:
        """What makes the controller of that name."""
        return MAKERS[name] if name in MAKERS else partial(_external, self.command or "")


def _check_together(fault: str) -> None:
    parts = fault.split("+")
    if len(set(parts)) < len(parts) or (NONE in parts and len(parts) > 1):
        hint = "join different faults, such as meter-lost+cap-reset"
        raise UserError(
            f"{fault!r} joins a fault with itself or with none", field="--fault", hint=hint
        )


def _check(names: Sequence[str], known: list[str], field: str) -> None:
    if not names:
        raise UserError("names nothing", field=field, hint=hint_for("", known))
    for name in names:
        if name not in known:
            raise UserError(f"unknown name {name!r}", field=field, hint=hint_for(name, known))


def pairs() -> tuple[str, ...]:
    """Every two different faults at once."""
    return tuple("+".join(two) for two in itertools.combinations(KINDS, 2))


def bench(choice: BenchChoice, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run everything chosen; the document is `wattherd.bench/1`."""
    return bench_and_histories(choice, note)[0]


def bench_and_histories(
    choice: BenchChoice, note: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, Any], list[BenchHistory]]:
    """The same with the site's draw second by second, of every scenario under the first fault."""
    runs: list[dict[str, Any]] = []
    stated, histories = [], []
    skipped = [one for one in map(_missing, choice.scenarios) if one is not None]
    absent = {one["scenario"] for one in skipped}
    for one in skipped:
        note(f"{one['scenario']} skipped: {one['reason']}")
    present = tuple(name for name in choice.scenarios if name not in absent)
    for name, found in _in_parallel(choice, present):
        note(name)
        stated.append(statement(build(name, seed=choice.seed, quick=choice.quick)))
        runs.extend(found.runs)
        histories.append(found.history)
    document = {
        "schema": "wattherd.bench/1",
        "seed": choice.seed,
        "scenarios": stated,
        "skipped": skipped,
        "summary": [_total(name, runs) for name in choice.controllers],
        "runs": runs,
    }
    return document, histories


def _missing(name: str) -> dict[str, str] | None:
    """Why a scenario cannot be run here."""
    if not is_measured(name):
        return None
    try:
        build(name, seed=0, quick=True)
    except UserError as error:
        return {"scenario": name, "reason": error.problem}
    return None


def _total(controller: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All runs of one controller in a line."""
    own = [run for run in runs if run["controller"] == controller]
    return {
        "controller": controller,
        "runs": len(own),
        "over_limit_s": sum(run["over_limit_s"] for run in own),
        "over_limit_j": round(math.fsum(run["over_limit_j"] for run in own), 1),
        "breaker_trips": sum(run["breaker_trips"] for run in own),
        "unavoidable_trips": sum(run["unavoidable_trips"] for run in own),
        "unexplained_trips": sum(
            reason.startswith(UNEXPLAINED) for run in own for reason in run["trip_reasons"]
        ),
        "not_restored": sum(not run["caps_restored"] for run in own),
        "not_recovered": sum(run["recovered_s"] is None for run in own if run["fault"] != NONE),
        "progress_of_oracle": round(
            math.fsum(run["progress_of_oracle"] for run in own) / max(len(own), 1), 4
        ),
    }


def statement(scenario: BenchScenario) -> dict[str, Any]:
    """What a scenario promises and assumes."""
    breaker = scenario.room.fleet.breaker
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "seconds": scenario.seconds,
        "nodes": scenario.room.fleet.size,
        "limit_w": {"highest": float(scenario.limit_w[:, -1].max()),
                    "lowest": float(scenario.limit_w[:, -1].min())},
        "cycle_s": scenario.cycle_s,
        "response_s": scenario.response_s,
        "surprises_s": list(scenario.surprises_s),
        "ahead_s": scenario.ahead_s,
        "actuator_delay_s": scenario.room.delay_s,
        "breaker": {"rated_w": breaker.rated_w.tolist(), "constant_s": breaker.constant_s,
                    "heat_at_start": float(scenario.room.heat.max())},
        "fault_window_s": list(scenario.fault_window_s),
        "fault_share": scenario.fault_share,
        "backstop": "a job stops within 4 s; a node is off at its outlet within 5 s, on in 20 s",
    }  # fmt: skip


class _Found(NamedTuple):
    """Of one scenario: its runs, and the site's draw under the first fault."""

    runs: list[dict[str, Any]]
    history: BenchHistory


def _in_parallel(choice: BenchChoice, names: Sequence[str]) -> Iterator[tuple[str, _Found]]:
    """Runs of the scenarios `names`, each in a process of its own where there is more than one."""
    if len(names) < 2:
        yield from ((name, _runs_of(name, choice)) for name in names)
        return
    workers = min(len(names), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(_runs_of, names, itertools.repeat(choice))
        yield from zip(names, found, strict=True)


def _runs_of(name: str, choice: BenchChoice) -> _Found:
    """All runs of one scenario; the calm run of each controller is the yardstick of recovery."""
    scenario = build(name, seed=choice.seed, quick=choice.quick)
    best = progress(scenario, oracle_draw(scenario))
    calm = {name: run_log(scenario, _fault(scenario, NONE), choice.maker(name))
            for name in choice.controllers}  # fmt: skip
    runs: list[dict[str, Any]] = []
    drawn_kw: dict[str, list[float]] = {}
    for text in choice.faults:
        fault = _fault(scenario, text)
        spared = cache(partial(_spared_trips, scenario, fault))
        for name in choice.controllers:
            log = calm[name] if text == NONE else run_log(scenario, fault, choice.maker(name))
            drawn_kw.setdefault(name, (log.level_w[:, -1] / 1e3).tolist())
            recovery_s = (
                recovered_s(scenario, log, calm[name], fault.end_s) if fault.kinds else None
            )
            runs.append(
                {
                    "scenario": scenario.name,
                    "fault": text,
                    "controller": name,
                    "seed": scenario.seed,
                    **scores(scenario, log),
                    **_trips(scenario, fault, log, spared),
                    **_work(progress(scenario, log.draw_w), best),
                    "recovered_s": recovery_s,
                }
            )
    limit_kw = (scenario.limit_w[:, -1] / 1e3).tolist()
    return _Found(runs, BenchHistory(scenario.name, choice.faults[0], limit_kw, drawn_kw))


def _clairvoyant(fault: PlantFault, scenario: BenchScenario, _journal: Floats | None) -> Controller:
    return Clairvoyant(scenario, fault)


def _external(command: str, scenario: BenchScenario, _journal: Floats | None) -> Controller:
    return External(command, scenario.room.fleet)


def _spared_trips(scenario: BenchScenario, fault: PlantFault) -> int:
    """Trips under a controller that knows loads, limits and the fault beforehand."""
    return run_log(scenario, fault, partial(_clairvoyant, fault)).trips


def _trips(
    scenario: BenchScenario, fault: PlantFault, log: RunLog, spared: Callable[[], int]
) -> dict[str, Any]:
    """Trips that could have been avoided, those that could not, and how each came about."""
    nobody = spared() if log.trips else 0
    return {
        "breaker_trips": max(log.trips - nobody, 0),
        "unavoidable_trips": min(nobody, log.trips),
        "trip_reasons": [told_trip(scenario, fault, one) for one in log.trip_log],
    }


def _work(done: Floats, best: Floats) -> dict[str, float]:
    """Progress of all against the oracle's, and how evenly devices share in it."""
    return {
        "progress_of_oracle": round(float(done.sum() / best.sum()), 4),
        "jain": round(jain(done / best), 4),
    }


def _fault(scenario: BenchScenario, text: str) -> PlantFault:
    fleet = scenario.room.fleet
    if text == NONE:
        return no_fault(fleet.size, fleet.feeds)
    kinds = tuple(text.split("+"))
    rng = np.random.default_rng([scenario.seed, 77, *sorted(map(KINDS.index, kinds))])
    first = np.arange(fleet.feeds) == scenario.fault_feed
    return drawn_fault(
        kinds, rng, fleet.feed.tolist(), hit_feeds=first, share=scenario.fault_share,
        window_s=scenario.fault_window_s, hit_site=fleet.site_metered and not fleet.read.any(),
    )  # fmt: skip


def run_log(scenario: BenchScenario, fault: PlantFault, make: Maker) -> RunLog:
    """Let one controller run the scenario under the fault."""
    plant = PowerPlant(scenario.room, np.random.default_rng([scenario.seed, 99]), fault)
    seconds, steps = scenario.seconds, round(1 / STEP_S)
    size, levels = scenario.room.fleet.size, scenario.room.fleet.feeds + 1
    level_w, peak_w = np.zeros((seconds, levels)), np.zeros((seconds, levels))
    any_second_w, last_second_w = np.zeros((seconds, levels)), np.zeros((steps, levels))
    draw_w, cap_w = np.zeros((seconds, size)), np.zeros((seconds, size))
    wall_w = np.zeros(seconds)
    safe_mode_s, noted = 0, Counter[str]()
    alive: Controller | None = make(scenario, None)
    journal: Floats | None = None
    cycle_steps = round(scenario.cycle_s / STEP_S)
    for second, step in itertools.product(range(seconds), range(steps)):
        if step % cycle_steps == 0:
            readings = plant.read()
            if fault.kills(plant.now_s):
                alive, journal = None, getattr(alive, "found_w", journal)
            elif not fault.stalls(plant.now_s):
                alive = alive or make(scenario, journal)
                plant.order(alive.cycle(readings, scenario.known_limit_w(second)))
                if isinstance(alive, SafetyLoop) and step == 0:
                    safe_mode_s += alive.safe_mode
                    noted.update({note.kind for note in alive.notes()})
        plant.step(scenario.demand_at_w(second, step))
        draw_w[second] += plant.draw_w / steps
        wall_w[second] += plant.wall_w().sum() / steps
        now_w = plant.levels_w()
        level_w[second] += now_w / steps
        np.maximum(peak_w[second], now_w, out=peak_w[second])
        last_second_w[step] = now_w
        mean_w = last_second_w.mean(axis=0)
        np.maximum(any_second_w[second], mean_w, out=any_second_w[second])
        cap_w[second] = plant.cap_w
    trips, sure_trips, trip_log = plant.trips, plant.sure_trips, tuple(plant.trip_log)
    restored = _leave(plant, alive or make(scenario, journal), scenario)
    return RunLog(
        level_w=level_w, draw_w=draw_w, cap_w=cap_w, trips=trips, caps_restored=restored,
        wall_w=wall_w, peak_w=peak_w, any_second_w=any_second_w,
        sure_trips=sure_trips, trip_log=trip_log, safe_mode_s=safe_mode_s,
        noted=dict(sorted(noted.items())),
    )  # fmt: skip


def best_steady_pct(scenario: BenchScenario) -> float | None:
    """The most of what is usable that caps in a fixed share of the limit draw with no excess.

    Where caps hold means, what a sum of moments leaves is out of everybody's reach: a swing that
    begins is over before a cap bites. No second is above, whenever it begins: a site's clock does
    not tell which second a swing falls into. None where caps hold every moment.
    """
    if not np.any(scenario.room.capping.window_s):
        return None
    calm = _fault(scenario, NONE)
    low, high, best = 0.0, 1.5, 0.0
    for _ in range(BISECTIONS):
        share = 0.5 * (low + high)
        found = scores(scenario, run_log(scenario, calm, partial(_proportional, share)))
        if found["worst_second_pct"] > 0.0:
            high = share
        else:
            low, best = share, max(best, found["usable_pct"] or 0.0)
    return best


def _proportional(share: float, scenario: BenchScenario, _journal: Floats | None) -> Controller:
    return ProportionalShare(scenario.room.fleet, share)


def _leave(plant: PowerPlant, controller: Controller, scenario: BenchScenario) -> bool:
    """Ask the controller to hand the devices back; whether they are as they were found."""
    found_w = plant.room.found_w
    for _ in range(LEAVE_S):
        if np.array_equal(plant.cap_w, found_w) and not plant.dark.any():
            break
        plant.order(controller.leave(plant.read()))
        for _ in range(round(1 / STEP_S)):
            plant.step(scenario.room.idle_w)
    return bool(np.array_equal(plant.cap_w, found_w) and not plant.outlet_off.any())
