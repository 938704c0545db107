"""Allocation on the public Zeus and Emerald measurements, against published bounds and HiGHS."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from wattherd.estimate.measured_curve import CountedWatts, JobCurve
from wattherd.experiments.allocate.milp import exact
from wattherd.experiments.allocate.run import AllocationTerms, allocation
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.power.allocation import allocate, bound, one_budget, tree_limits
from wattherd.policy.power.rules import ChoiceProblem, fits
from wattherd.workload.curves import read_curves

pytestmark = pytest.mark.data

BOUNDS = {"v100": (0.8509, 0.9225, 0.9596), "a40": (0.6945, 0.8644, 0.9593)}


def zeus(traces: Path, gpu: str) -> tuple[JobCurve, ...]:
    path = traces.parent / "power" / "zeus_nsdi23" / f"summary_power_{gpu}.csv"
    return read_curves(path, "zeus")


def emerald(traces: Path) -> tuple[JobCurve, ...]:
    return read_curves(
        traces.parent / "power" / "emerald_phoenix_2025" / "dvfs_sweep.csv", "emerald"
    )


def full_w(curves: tuple[JobCurve, ...]) -> float:
    return sum(max(point.power_w for point in curve.points) for curve in curves)


@pytest.mark.parametrize("gpu", BOUNDS)
def test_the_bounds_are_those_known(traces: Path, gpu: str) -> None:
    curves = zeus(traces, gpu)
    for part, known in zip((0.6, 0.7, 0.8), BOUNDS[gpu], strict=True):
        document = allocation(
            curves, AllocationTerms(budget_w=part * full_w(curves)), "water-filling"
        )
        assert document["bound"] == pytest.approx(known, abs=1e-3)
        assert document["objective"] >= 0.998 * document["bound"]
        assert document["total_w"] <= part * full_w(curves)


@pytest.mark.parametrize("gpu", ["v100", "a40", "p100"])
@pytest.mark.parametrize("part", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("pause", [False, True])
def test_many_jobs_reach_the_bound(traces: Path, gpu: str, part: float, pause: bool) -> None:
    curves = zeus(traces, gpu)
    if len(curves) < 45:
        curves = tuple(random.Random(1).choices(curves, k=60))
    choices = [one.choices(CountedWatts.DRAW, paused_w=0.0 if pause else None) for one in curves]
    budget_w = part * full_w(curves)
    if sum(one[0].watts for one in choices) > budget_w:
        pytest.skip("the least caps of all jobs need more than that, and nobody may be paused")
    limits = one_budget(len(choices), budget_w)
    chosen = allocate(choices, limits)
    value = sum(one[at].value for one, at in zip(choices, chosen, strict=True))
    if pause and value < 0.998 * bound(choices, limits):
        # Whole jobs on or off: then no choice of points comes nearer to the bound.
        pytest.importorskip("scipy", reason="the judge is HiGHS in SciPy")
        judged = exact(ChoiceProblem(curves=curves, choices=choices, limits=limits))
        most = sum(one[at].value for one, at in zip(choices, judged, strict=True))
        assert value >= 0.9999 * most
    else:
        assert value >= 0.998 * bound(choices, limits)


@pytest.mark.parametrize("seed", range(12))
def test_few_jobs_are_served_as_well_as_by_integer_program(traces: Path, seed: int) -> None:
    pytest.importorskip("scipy", reason="the judge is HiGHS in SciPy")
    draw = random.Random(seed)
    curves = draw.sample(zeus(traces, draw.choice(["v100", "a40"])), draw.randint(1, 44))
    choices = [one.choices(CountedWatts.DRAW) for one in curves]
    least_w = sum(one[0].watts for one in choices)
    budget_w = least_w + draw.random() * (sum(one[-1].watts for one in choices) - least_w)
    limits = one_budget(len(choices), budget_w)
    asked = ChoiceProblem(curves=curves, choices=choices, limits=limits)
    ours, theirs = (
        sum(one[at].value for one, at in zip(choices, chosen, strict=True))
        for chosen in (allocate(choices, limits), exact(asked))
    )
    assert ours >= 0.999 * theirs


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("pause", [False, True])
def test_trees_are_served_as_well_as_by_integer_program(
    traces: Path, seed: int, pause: bool
) -> None:
    pytest.importorskip("scipy", reason="the judge is HiGHS in SciPy")
    draw = random.Random(seed)
    jobs, racks = draw.randint(10, 44), draw.randint(2, 8)
    curves = [
        replace(one, domain=f"rack-{draw.randrange(racks)}")
        for one in draw.choices(zeus(traces, draw.choice(["v100", "a40"])), k=jobs)
    ]
    part = draw.uniform(0.5, 0.9)
    names = [f"rack-{rack}" for rack in range(racks)]
    below = {name: tuple(one for one in curves if one.domain == name) for name in names}
    budgets = {name: (part + 0.05) * full_w(below[name]) for name in names if below[name]}
    site = TreeDomain(name="site", budget_w=part * full_w(tuple(curves)))
    feeds = (
        TreeDomain(name=name, parent="site", budget_w=watts) for name, watts in budgets.items()
    )
    limits = tree_limits(PowerTree((site, *feeds)), [one.domain for one in curves])
    choices = [one.choices(CountedWatts.DRAW, paused_w=0.0 if pause else None) for one in curves]
    asked = ChoiceProblem(curves=curves, choices=choices, limits=limits)
    if not fits(asked, [0] * jobs):
        pytest.skip("the least caps of all jobs need more than that, and nobody may be paused")
    ours, theirs = (
        sum(one[at].value for one, at in zip(choices, chosen, strict=True))
        for chosen in (allocate(choices, limits), exact(asked))
    )
    assert ours >= 0.99999 * theirs


def test_emeralds_jobs_cost_what_whole_jobs_draw(traces: Path) -> None:
    curves = emerald(traces)
    assert {one.job for one in curves} >= {"ft_llama_8b_dolly", "pt_mpt_7b_fast"}
    dolly = next(one for one in curves if one.job == "ft_llama_8b_dolly")
    assert dolly.devices == 48
    for part in (0.5, 0.6, 0.75, 0.9):
        document = allocation(
            curves, AllocationTerms(budget_w=part * full_w(curves)), "water-filling"
        )
        rates = {job["job"]: job["relative_rate"] for job in document["jobs"]}
        assert min(rates.values()) > 0
        assert document["objective"] <= document["bound"]
