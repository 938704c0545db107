"""Figures of the comparison, each computed here a second time from the raw numbers."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from report_runs import GPUS, POLICIES, a_pack, a_run, all_runs, write_pack

from wattherd.report import CompareRow, RunSet, comparison_table, load_runs
from wattherd.report.compare import curves, pareto_front, power_and_gpus, spread, trace_rows
from wattherd.report.findings import pack_findings
from wattherd.report.table import cells, fields

Payload = dict[str, Any]


def read(folder: Path, runs: list[Payload], **changes: Any) -> RunSet:
    return load_runs(write_pack(folder, a_pack(runs, **changes)))


def by_policy(rows: list[CompareRow]) -> dict[str, CompareRow]:
    return {row.policy: row for row in rows}


def raw_saving(runs: list[Payload], policy: str, seed: int, load: int) -> float:
    power = {run["policy"]: run["curve"]["power_w"][load] for run in runs if run["seed"] == seed}
    return float(100 * (power["fgd"] - power[policy]) / power["fgd"])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_table_holds_means_and_sample_deviations_over_seeds(
    tmp_path: Path, policy: str
) -> None:
    runs = all_runs(range(42, 52))
    mine = [run for run in runs if run["policy"] == policy]
    row = by_policy(comparison_table(read(tmp_path, runs)))[policy]
    for field in ("allocated_pct", "grar", "frag_ratio_pct", "power_w", "cpu_s"):
        raw = [run[field] for run in mine]
        found = getattr(row, field)
        assert found.mean == pytest.approx(statistics.mean(raw))
        assert found.sd == pytest.approx(statistics.stdev(raw))
        assert (found.low, found.high, found.seeds) == (min(raw), max(raw), 10)
    held = [run["allocated_pct"] / 100 * GPUS for run in mine]
    assert row.allocated_gpus.mean == pytest.approx(statistics.mean(held))
    per_gpu = [run["power_w"] / have for run, have in zip(mine, held, strict=True)]
    assert row.watts_per_gpu is not None
    assert row.watts_per_gpu.mean == pytest.approx(statistics.mean(per_gpu))


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fgd"])
def test_savings_compare_the_same_seed_at_the_same_load(tmp_path: Path, policy: str) -> None:
    runs = all_runs(range(42, 46))
    row = by_policy(comparison_table(read(tmp_path, runs)))[policy]
    assert row.baseline == "fgd"
    for load in (20, 50, 80):
        raw = [raw_saving(runs, policy, seed, load) for seed in range(42, 46)]
        found = row.savings_pct[load]
        assert found is not None
        assert found.mean == pytest.approx(statistics.mean(raw))
        assert found.sd == pytest.approx(statistics.stdev(raw))
    means = [
        statistics.mean(raw_saving(runs, policy, seed, load) for load in range(20, 81))
        for seed in range(42, 46)
    ]
    assert row.mean_saving_pct is not None
    assert row.mean_saving_pct.mean == pytest.approx(statistics.mean(means))
    assert row.mean_saving_pct.low == pytest.approx(min(means))


def test_the_baseline_saves_nothing_against_itself(tmp_path: Path) -> None:
    row = by_policy(comparison_table(read(tmp_path, all_runs([1, 2]))))["fgd"]
    assert row.savings_pct == {20: None, 50: None, 80: None}
    assert row.mean_saving_pct is None


def test_without_fgd_the_first_policy_is_the_baseline(tmp_path: Path) -> None:
    rows = comparison_table(read(tmp_path, [a_run("best-fit"), a_run("pwr")]))
    assert {row.baseline for row in rows} == {"best-fit"}
    assert rows[1].mean_saving_pct is not None


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    (row,) = comparison_table(read(tmp_path, [a_run("fgd", 7)]))
    assert (row.seeds, row.allocated_pct.sd) == (1, None)


def test_a_seed_without_baseline_is_compared_with_the_baselines_mean(tmp_path: Path) -> None:
    runs = [a_run("fgd", 1), a_run("fgd", 2), a_run("pwr", 3)]
    row = by_policy(comparison_table(read(tmp_path, runs)))["pwr"]
    base = statistics.mean(run["curve"]["power_w"][50] for run in runs[:2])
    saved = 100 * (base - runs[2]["curve"]["power_w"][50]) / base
    assert row.savings_pct[50] is not None
    assert row.savings_pct[50].mean == pytest.approx(saved)


def test_unknown_figures_stay_unknown(tmp_path: Path) -> None:
    nothing: Payload = {"grar": None, "frag_ratio_pct": None, "power_w": None, "cpu_s": None}
    blank = [None] * 131
    runs = [a_run("fgd", **nothing), a_run("pwr", **nothing)]
    for run in runs:
        run["curve"]["power_w"] = blank
    for row in comparison_table(read(tmp_path, runs)):
        assert row.grar is row.power_w is row.watts_per_gpu is row.cpu_s is None
        assert row.mean_saving_pct is None
        assert row.savings_pct[50] is None


def test_empty_bins_are_bridged_and_the_ends_stay_open(tmp_path: Path) -> None:
    run = a_run("fgd", gaps=(0, 10, 11, 129, 130))
    (trace,) = read(tmp_path, [run]).traces
    (line,) = curves(trace, "fgd", "frag_amount_pct").y
    raw = run["curve"]["frag_amount_pct"]
    step = (raw[12] - raw[9]) / 3
    assert line[10] == pytest.approx(raw[9] + step)
    assert line[11] == pytest.approx(raw[9] + 2 * step)
    assert all(math.isnan(line[at]) for at in (0, 129, 130))
    assert line[128] == raw[128]


def test_a_load_that_was_not_reached_has_no_saving(tmp_path: Path) -> None:
    runs = [a_run(policy, bins=range(51)) for policy in ("fgd", "pwr")]
    row = by_policy(comparison_table(read(tmp_path, runs, load=0.5)))["pwr"]
    assert row.savings_pct[80] is None
    assert row.savings_pct[50] is not None
    assert row.savings_pct[50].mean == pytest.approx(raw_saving(runs, "pwr", 42, 50))
    means = statistics.mean(raw_saving(runs, "pwr", 42, load) for load in range(20, 51))
    assert row.mean_saving_pct is not None
    assert row.mean_saving_pct.mean == pytest.approx(means)


def test_the_mean_line_stops_where_a_seed_stops(tmp_path: Path) -> None:
    runs = [a_run("fgd", 1), a_run("fgd", 2, gaps=(128, 129, 130))]
    (trace,) = read(tmp_path, runs).traces
    mean = curves(trace, "fgd", "allocated_pct").mean
    assert math.isfinite(mean[127])
    assert math.isnan(mean[128])


def test_a_spread_of_nothing_is_none() -> None:
    assert spread([None, float("nan")]) is None


FRONTS: dict[str, tuple[dict[str, tuple[float, float]], list[str]]] = {
    "one beats all": ({"a": (1, 1), "b": (2, 2)}, ["b"]),
    "a trade": ({"a": (1, 2), "b": (2, 1), "c": (1, 1)}, ["a", "b"]),
    "equal points share the front": ({"a": (1, 1), "b": (1, 1)}, ["a", "b"]),
    "a tie in one coordinate is decided by the other": ({"a": (1, 2), "b": (2, 2)}, ["b"]),
    "alone": ({"a": (0, 0)}, ["a"]),
}


@pytest.mark.parametrize("name", FRONTS)
def test_the_pareto_front(name: str) -> None:
    points, front = FRONTS[name]
    assert pareto_front(points) == front


def test_the_pareto_plot_puts_the_baseline_at_zero(tmp_path: Path) -> None:
    (trace,) = read(tmp_path, all_runs([1])).traces
    points = power_and_gpus(trace_rows(trace))
    assert points["fgd"][0] == 0.0
    assert set(points) == set(POLICIES)


def marked(rows: list[CompareRow]) -> dict[str, set[str]]:
    columns = fields(rows)
    table = cells(rows, columns)
    return {
        column.head: {row.policy for row, line in zip(rows, table, strict=True) if line[at].best}
        for at, column in enumerate(columns)
    }


def test_the_best_of_each_column_is_marked(tmp_path: Path) -> None:
    rows = comparison_table(read(tmp_path, all_runs(range(3))))
    best = marked(rows)
    assert best["GPUs allocated"] == {"fgd"}
    assert best["at 50 %"] == {"pwr"}
    assert best["power"] == set()  # by then each policy holds another number of GPUs
    assert best["frag. ratio"] == set()  # all the same


def test_figures_that_print_alike_are_marked_alike(tmp_path: Path) -> None:
    shapes = {"best-fit": 93.001, "fgd": 93.002, "pwr": 90.0}
    runs = [a_run(policy, full=full, saved=1.0) for policy, full in shapes.items()]
    best = marked(comparison_table(read(tmp_path, runs)))
    assert best["GPUs allocated"] == {"best-fit", "fgd"}


def test_findings_state_figures_of_the_table(tmp_path: Path) -> None:
    rows = comparison_table(read(tmp_path, [a_run(p, full=POLICIES[p][0]) for p in POLICIES]))
    most, least, front = pack_findings(rows)
    more = (95.4 - 93.1) / 100 * GPUS
    assert (
        most == f"fgd allocates the most GPUs: 95.40 % at the end, {more:.0f} GPUs more than "
        "best-fit, the next."
    )
    saved = by_policy(rows)["pwr"].mean_saving_pct
    assert saved is not None
    assert f"pwr draws the least power at equal load: {saved.mean:.1f} % less than fgd" in least
    assert "fgd, best-fit, pwr+fgd:0.1 and pwr" in front


def test_a_policy_that_wins_both_ways_is_named(tmp_path: Path) -> None:
    runs = [a_run("fgd", full=90, saved=0), a_run("wattherd", full=96, saved=15)]
    sentences = pack_findings(comparison_table(read(tmp_path, runs)))
    assert sentences[0].startswith("wattherd allocates the most GPUs: 96.00 %")
    assert sentences[-1] == "No other policy is better than wattherd in GPUs or in power saved."


def test_a_single_policy_is_not_compared(tmp_path: Path) -> None:
    (sentence,) = pack_findings(comparison_table(read(tmp_path, [a_run("fgd", full=90.0)])))
    assert sentence == "fgd allocated 90.00 % of all GPUs (5,591 GPUs); nothing to compare it with."


def test_policies_that_print_alike_tie_and_nobody_is_best(tmp_path: Path) -> None:
    rows = comparison_table(read(tmp_path, [a_run(p, full=85.42) for p in ("wattherd", "fgd")]))
    told = pack_findings(rows)
    assert told[0] == "Both policies tie: each allocates 85.42 % (5,306 GPUs)."
    assert not any("more than" in one or "a different trade" in one for one in told)


def test_a_tie_of_some_names_the_next(tmp_path: Path) -> None:
    shapes = {"best-fit": 93.001, "fgd": 93.002, "pwr": 90.0}
    rows = comparison_table(read(tmp_path, [a_run(p, full=full) for p, full in shapes.items()]))
    told = pack_findings(rows)[0]
    assert told.startswith("best-fit and fgd tie: each allocates 93.00 % at the end, 186 GPUs")
    assert told.endswith("more than pwr, the next.")
