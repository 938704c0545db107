"""The published experiments: every decision of a run, every bin of a curve, power at equal load.

Quick samples by default; everything (a few minutes) under the marker `slow`. What is compared
with what, and how closely, is told by `wattherd.experiments.published`.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from wattherd.experiments.placement.pack import Experiment, run_once
from wattherd.experiments.published import fgd_atc23, pwr_ccgrid25
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.published.source import ALL_SEEDS, OpenbFiles
from wattherd.store.run_dir import RunDir

pytestmark = pytest.mark.data

GOLDEN = {
    "fgd": "FGD",
    "best-fit": "BestFit",
    "dot-product": "DotProd",
    "gpu-packing": "GpuPacking",
    "gpu-clustering": "GpuClustering",
    "pwr": "PWR",
    "pwr+fgd:0.1": "PWR100_FGD900",
}
PLAIN_TRACES = (
    "cpu050",
    "cpu100",
    "cpu200",
    "default",
    "gpushare40",
    "gpushare60",
    "gpushare80",
    "multigpu20",
    "multigpu30",
    "multigpu40",
)
CONSTRAINED_TRACES = ("gpuspec10", "gpuspec20", "gpuspec25")
PWR_TRACES = (
    "default",
    "gpushare40",
    "gpushare60",
    "gpushare80",
    "multigpu20",
    "multigpu30",
    "multigpu40",
)
FEW_SEEDS = (42, 47, 51)


@pytest.fixture(scope="module")
def files(openb: Path) -> OpenbFiles:
    return OpenbFiles(openb)


def a_table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as stream:
        return list(csv.DictReader(stream))


def only(policies: Iterable[str], module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Compare only these policies of a publication."""
    chosen = {policy: module.POLICIES[policy] for policy in policies}
    patch.setattr(module, "POLICIES", chosen)


def failing(checks: Iterable[FigureCheck]) -> list[FigureCheck]:
    checks = list(checks)
    assert checks
    return [check for check in checks if not check.holds]


# --- every decision of seed 42 on the default trace ------------------------------------------


@pytest.fixture(scope="module")
def default_trace(files: OpenbFiles) -> Experiment:
    experiment = files.experiment("default")
    assert experiment.order_file is not None
    return experiment


@pytest.mark.long
@pytest.mark.parametrize("by_core", [False, True])
@pytest.mark.parametrize("policy", GOLDEN)
def test_every_decision_equals_the_golden_one(
    default_trace: Experiment, openb: Path, tmp_path: Path, policy: str, *, by_core: bool
) -> None:
    """Whether the policy is asked directly or the pods are submitted to a core."""
    out = RunDir(tmp_path)
    experiment = replace(default_trace, out=out, keep_decisions=True, by_core=by_core)
    run_once(experiment, policy, 42)
    (written,) = tmp_path.glob("decisions-*.csv.gz")
    golden = a_table(openb / "golden" / f"default_42_{GOLDEN[policy]}.csv.gz")
    found = a_table(written)
    assert list(found[0]) == list(golden[0])
    assert len(found) == len(golden) == 10_866
    for mine, theirs in zip(found, golden, strict=True):
        for column in ("step", "pod_row", "node_row", "gpu_ids", "arrived_gpu_milli",
                       "used_gpu_milli"):  # fmt: skip
            assert mine[column] == theirs[column], (column, mine, theirs)
        for column in ("power_cpu_w", "power_gpu_w"):
            assert float(mine[column]) == float(theirs[column]), (column, mine, theirs)
        difference = float(mine["frag_gpu_milli"]) - float(theirs["frag_gpu_milli"])
        assert abs(difference) <= 1e-3, (mine, theirs)


@pytest.mark.long
def test_fgd_ends_as_published(default_trace: Experiment) -> None:
    """95.3 % of GPU milli allocated, 2,532 of 10,866 pods lost, 291.36k milli fragmented."""
    run = run_once(default_trace, "fgd", 42)
    assert (run.pods, run.pods - run.placed) == (10_866, 2_532)
    assert run.allocated_pct == pytest.approx(100 * 5_919_410 / 6_212_000)
    idle = 6_212_000 - 5_919_410
    assert run.frag_ratio_pct * idle / 100 == pytest.approx(291_360, abs=5)


# --- FGD: every bin --------------------------------------------------------------------------


@pytest.mark.long
def test_a_sample_of_the_published_bins(files: OpenbFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    deterministic = [policy for policy in fgd_atc23.POLICIES if policy != "random"]
    only(deterministic, fgd_atc23, monkeypatch)
    checks = list(fgd_atc23.compare(files, ["multigpu20"], FEW_SEEDS, processes=1))
    assert {check.policy for check in checks} == set(deterministic)
    assert all(check.tolerance is not None for check in checks)
    assert failing(checks) == []


@pytest.mark.long
def test_a_constrained_trace_agrees_on_the_mean(
    files: OpenbFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(["fgd"], fgd_atc23, monkeypatch)
    checks = list(fgd_atc23.compare(files, ["gpuspec10"], ALL_SEEDS, processes=1))
    assert [check.tolerance for check in checks] == [0.3, None, None]
    assert failing(checks) == []


@pytest.mark.long
def test_a_wrong_figure_is_noticed(files: OpenbFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: FGD's bins held against best fit's published ones."""
    monkeypatch.setattr(fgd_atc23, "POLICIES", {"fgd": "05-BestFit"})
    checks = fgd_atc23.compare(files, ["multigpu20"], (42,), processes=1)
    assert len(failing(checks)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("trace", [*PLAIN_TRACES, *CONSTRAINED_TRACES])
def test_every_published_bin(files: OpenbFiles, trace: str) -> None:
    checks = list(fgd_atc23.compare(files, [trace], ALL_SEEDS, processes=2))
    assert {check.policy for check in checks} == set(fgd_atc23.POLICIES)
    strict = [check for check in checks if check.tolerance is not None]
    bins = 0 if trace.startswith("gpuspec") else 2 * 5
    assert len(strict) == len(fgd_atc23.POLICIES) + bins
    assert failing(checks) == []


# --- PWR: GRAR and power saved at equal load -------------------------------------------------


@pytest.mark.long
def test_a_sample_of_the_power_reference(
    files: OpenbFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(["fgd", "pwr", "pwr+fgd:0.1"], pwr_ccgrid25, monkeypatch)
    checks = list(pwr_ccgrid25.compare(files, ["multigpu20"], ALL_SEEDS, processes=1))
    judged = {check.policy for check in checks if check.tolerance == 0.1}
    assert judged == {"fgd", "pwr", "pwr+fgd:0.1"}
    assert failing(checks) == []


@pytest.mark.long
def test_expected_power_is_reported_beside_pwr(
    files: OpenbFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(["fgd", "pwr"], pwr_ccgrid25, monkeypatch)
    checks = list(pwr_ccgrid25.compare(files, ["multigpu20"], (42,), processes=1))
    beside = [check for check in checks if check.policy == "pwrexp beside pwr"]
    assert len(beside) == 5
    assert all(check.holds and check.tolerance is None for check in beside)


@pytest.mark.slow
@pytest.mark.parametrize("trace", PWR_TRACES)
def test_all_of_the_power_reference(files: OpenbFiles, trace: str) -> None:
    checks = list(pwr_ccgrid25.compare(files, [trace], ALL_SEEDS, processes=2))
    assert len({check.policy for check in checks}) >= 7
    assert failing(checks) == []


def test_the_traces_named_here_are_those_on_disk(files: OpenbFiles) -> None:
    assert set(files.traces()) == {*PLAIN_TRACES, *CONSTRAINED_TRACES}
