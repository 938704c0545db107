"""The safety loop in rooms as data sheets describe them: tables before and after, and a page.

    python benchmarks/power.py [--faults] [--pairs] [--rooms NAME,...] [--quick] [--out D] [--write]

Runs every room of `wattherd power bench` without a fault; with --faults also under each single
fault and with --pairs under every two (8 and 45 minutes of processor time; short scenarios).
Prints the tables; --write also puts them into docs/concepts/power-control.md, where they belong.
What the loop held when the rooms were written is in benchmarks/power_before.json. Measured loads
are found by WATTHERD_DATA; without it their rooms are left out and said so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.experiments.power_bench.controllers import MAKERS
from wattherd.experiments.power_bench.run import (
    NONE,
    BenchChoice,
    bench_and_histories,
    best_steady_pct,
    pairs,
    run_log,
)
from wattherd.experiments.power_bench.scores import back_s, scores
from wattherd.experiments.power_bench.worlds import WORLDS, BenchRoom, build, build_world, swing
from wattherd.report.power_bench_page import write_bench
from wattherd.sim.power_plant_faults import KINDS, no_fault

HERE = Path(__file__).resolve().parent
BEFORE = HERE / "power_before.json"
PAGE = HERE.parent / "docs" / "concepts" / "power-control.md"
OURS = ("wattherd",)
PHASES = range(1, 9)
"""Seeds: each begins a swing at another moment of its period."""
PERIODS_S = (20.3, 33.7, 75.3, 140.0)
"""Of jobs that rest and work in turn, half of the time each."""
Runs = list[dict[str, Any]]


def calm_table(runs: Runs, before: Runs) -> Iterable[str]:
    """One row a room without a fault: then and now."""
    then = {run["scenario"]: run for run in before if run["fault"] == NONE}
    yield (
        "| room | s above | worst, % | trips | used, % | back, s | in safe mode, s | alarms now |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for run in runs:
        if run["fault"] != NONE:
            continue
        old = then.get(run["scenario"])
        cells = [_both(old, run, read) for read in CELLS]
        alarms = ", ".join(run["alarms"]) or "none"
        yield f"| `{run['scenario']}` | {' | '.join(cells)} | {alarms} |"
    used = [run["usable_pct"] for run in runs if run["usable_pct"] is not None]
    yield ""
    yield f"On average over these rooms {sum(used) / len(used):.1f} % are used."


def _trips(run: dict[str, Any]) -> str:
    return str(run["breaker_trips"] + run["unavoidable_trips"])


def _number(name: str, form: str) -> Callable[[dict[str, Any]], str]:
    return lambda run: "-" if run[name] is None else format(run[name], form)


CELLS = (
    _number("over_limit_s", "d"),
    _number("worst_excess_pct", ".1f"),
    _trips,
    _number("usable_pct", ".1f"),
    _number("back_s", "d"),
    _number("safe_mode_s", "d"),
)


def _both(
    old: dict[str, Any] | None, new: dict[str, Any], read: Callable[[dict[str, Any]], str]
) -> str:
    now = read(new)
    then = now if old is None else read(old)
    return now if then == now else f"{then} → **{now}**"


def fault_table(runs: Runs, before: Runs, kinds: Iterable[str]) -> Iterable[str]:
    """One row a fault over all rooms: then and now."""
    yield "| fault | rooms | s above | trips | not recovered |"
    yield "|---|---|---|---|---|"
    for kind in kinds:
        rooms = {run["scenario"] for run in runs if run["fault"] == kind}
        now = _sums(runs, kind)
        then = _sums([run for run in before if run["scenario"] in rooms], kind)
        if now is None:
            continue
        cells = [
            new if old == new else f"{old} → **{new}**"
            for old, new in zip(then or now, now, strict=True)
        ]
        yield f"| `{kind}` | {len(rooms)} | {' | '.join(cells)} |"


def _sums(runs: Runs, kind: str) -> tuple[str, ...] | None:
    own = [run for run in runs if run["fault"] == kind]
    if not own:
        return None
    return (
        str(sum(run["over_limit_s"] for run in own)),
        str(sum(run["breaker_trips"] + run["unavoidable_trips"] for run in own)),
        str(sum(run["recovered_s"] is None for run in own if kind != NONE)),
    )


def steady_table(*, quick: bool) -> Iterable[str]:
    """Where caps hold means: what the best fixed share of the limit reaches, and the loop."""
    yield (
        "| room | the most that caps in a fixed share of the limit use, % | the loop uses, % "
        "| back to 95 % of that most, s | its worst second, whenever it began, % of the limit |"
    )
    yield "|---|---|---|---|---|"
    for name in WORLDS:
        try:
            scenario = build(name, seed=1, quick=quick)
            best = best_steady_pct(scenario)
        except Exception as problem:  # noqa: BLE001 - its data are absent; said so above
            print(f"{name} left out: {problem}", file=sys.stderr)
            continue
        if best is None:
            continue
        fleet = scenario.room.fleet
        log = run_log(scenario, no_fault(fleet.size, fleet.feeds), MAKERS["wattherd"])
        found = scores(scenario, log)
        back = back_s(scenario, log, min(best, 100.0) / 100.0)
        worst = 100.0 + found["worst_second_pct"]
        told = f"{worst:.1f}" if found["worst_second_pct"] else "within"
        yield f"| `{name}` | {best:.1f} | {found['usable_pct']:.1f} | {back} | {told} |"


def phase_table(*, quick: bool) -> Iterable[str]:
    """Rooms whose devices move together, begun at eight moments: how many are above, how far."""
    yield (
        "| room | runs above, by the clock's seconds | s above, all runs | worst, % "
        "| worst second, whenever it began, % | used, % |"
    )
    yield "|---|---|---|---|---|---|"
    rooms = {f"`{name}`": (WORLDS[name], True) for name in WORLDS if name.startswith("swing-")}
    for period_s, looks in itertools.product(PERIODS_S, (True, False)):
        name = f"`swing-0.1`, but every {period_s:g} s{'' if looks else ', meters of moments'}"
        rooms[name] = replace(WORLDS["swing-0.1"], load=swing(1.0 / period_s)), looks
    for name, (room, looks) in rooms.items():
        found = [_at_moment(room, seed, 180 if quick else 360, looks=looks) for seed in PHASES]
        above_s = [run["over_limit_s"] for run in found]
        used = [run["usable_pct"] for run in found]
        yield (
            f"| {name} | {sum(one > 0 for one in above_s)} of {len(found)} | {sum(above_s)} "
            f"| {max(run['worst_excess_pct'] for run in found):.1f} "
            f"| {max(run['worst_second_pct'] for run in found):.1f} "
            f"| {min(used):.1f} to {max(used):.1f} |"
        )


def _at_moment(room: BenchRoom, seed: int, seconds: int, *, looks: bool) -> dict[str, Any]:
    """Scores of the loop in that room, whose swing begins where `seed` says.

    Where meters are not looked at within a second they tell moments.
    """
    rng = np.random.default_rng([seed, 5])
    scenario = build_world("at-moment", room, rng, seconds=seconds, seed=seed)
    if not looks:
        scenario = replace(scenario, room=replace(scenario.room, looks=False))
    fleet = scenario.room.fleet
    return scores(
        scenario, run_log(scenario, no_fault(fleet.size, fleet.feeds), MAKERS["wattherd"])
    )


def told_pairs(runs: Runs) -> Iterable[str]:
    """What pairs of faults did, in sums, and each trip's story."""
    own = [run for run in runs if "+" in run["fault"]]
    above = [run for run in own if run["over_limit_s"]]
    trips = [(run, reason) for run in own for reason in run["trip_reasons"]]
    rooms = dict.fromkeys(run["scenario"] for run in own)
    names, others = ", ".join(f"`{name}`" for name in rooms), [w for w in WORLDS if w not in rooms]
    if len(others) < len(rooms):
        names = "all rooms" + "".join(f" but `{name}`" for name in others)
    yield (
        f"{len(own):,} runs of every two faults, in {names}: "
        f"{len(above)} exceed a limit after the response, for "
        f"{sum(run['over_limit_s'] for run in above):,} s together; {len(trips)} trips, "
        f"{sum(run['unavoidable_trips'] for run in own)} of them unavoidable."
    )
    if trips:
        yield ""
    for run, reason in trips:
        yield f"* `{run['scenario']}`, `{run['fault']}`: {reason}."


def put(page: str, name: str, lines: Iterable[str]) -> str:
    """The page with that table between its marks renewed."""
    begin, end = f"<!-- {name}, by benchmarks/power.py -->\n", f"<!-- end of {name} -->"
    marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not marked.search(page):
        raise SystemExit(f"{PAGE} has no place for {name}")
    text = begin + "\n".join(["", *lines, "", end])
    return marked.sub(lambda _: text, page)


def run(
    faults: tuple[str, ...],
    *,
    quick: bool,
    out: Path | None,
    rooms: tuple[str, ...] = tuple(WORLDS),
) -> Runs:
    """These rooms under those faults; a page in `out`."""
    choice = BenchChoice(scenarios=rooms, faults=faults, controllers=OURS, quick=quick)
    document, histories = bench_and_histories(choice, lambda line: print(line, file=sys.stderr))
    if out is not None:
        print(write_bench(document, histories, out), file=sys.stderr)
    return list(document["runs"])


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("faults", "pairs", "quick", "write"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rooms", help="of --faults and --pairs; all without it")
    given = parser.parse_args()
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    out = given.out
    rooms = tuple(given.rooms.split(",")) if given.rooms else None
    tables: dict[str, list[str]] = {}
    calm = run((NONE,), quick=given.quick, out=out and out / "calm")
    tables["rooms"] = list(calm_table(calm, before["calm"]))
    tables["steady"] = list(steady_table(quick=given.quick))
    tables["phases"] = list(phase_table(quick=given.quick))
    if given.faults:
        found = run(
            (NONE, *KINDS), quick=True, out=out and out / "faults", rooms=rooms or tuple(WORLDS)
        )
        tables["faults"] = list(fault_table(found, before["faults"], (NONE, *KINDS)))
    if given.pairs:
        found = run(pairs(), quick=True, out=out and out / "pairs", rooms=rooms or tuple(WORLDS))
        tables["pairs"] = list(told_pairs(found))
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        print("\n".join(lines), end="\n\n")
        page = put(page, name, lines) if given.write else page
    if given.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
