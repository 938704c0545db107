"""The Gavel suite: the published figures, and every job of every policy against a plain model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gavel_model import Job, Model, Shares

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.experiments.published.gavel_osdi20 import PUBLISHED_H, cluster, compare, run
from wattherd.model.command import Compute
from wattherd.model.event import Computed
from wattherd.model.job import JobSpec
from wattherd.policy.schedule.gavel import Gavel
from wattherd.policy.schedule.gavel_lp import isolated_rates, solve
from wattherd.workload.gavel import read_jobs, read_throughputs

pytest.importorskip("scipy")
pytest.importorskip("clarabel")
pytestmark = pytest.mark.data

GPUS = {"k80": 24, "p100": 16, "v100": 8}
TYPES = sorted(GPUS)
SHOCKWAVE = "shockwave/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"


@pytest.fixture(scope="module")
def table(traces: Path) -> ThroughputTable:
    return read_throughputs(traces / "gavel" / "physical_cluster_throughputs.json.gz")


def jobs_of(traces: Path, name: str, table: ThroughputTable) -> tuple[JobSpec, ...]:
    return read_jobs(traces / name, table, left_out=lambda error: None)


@pytest.mark.long
def test_every_published_figure_holds(traces: Path) -> None:
    checks = list(compare(traces / "gavel", program="clarabel"))
    assert [check for check in checks if not check.holds] == []
    figures = {(check.policy, check.quantity) for check in checks}
    for policy in PUBLISHED_H:
        assert (policy, "average JCT (h)") in figures
        assert (policy, "makespan (h)") in figures


@pytest.mark.long
def test_a_vertex_solver_reaches_the_same_objectives(traces: Path) -> None:
    checks = list(compare(traces / "gavel", program="highs"))
    objectives = [check for check in checks if "objective" in check.quantity]
    assert len(objectives) == 4
    assert all(check.holds for check in objectives)
    assert [check for check in checks if not check.holds] == []


# --- against the plain model -------------------------------------------------------------------


def model_of(jobs: tuple[JobSpec, ...], table: ThroughputTable, goal: str) -> Model:
    plain = [
        Job(
            arrival_s=job.submit_s,
            steps=job.steps or 0,
            scale=job.gpus,
            weight=job.weight,
            rates={name: table.rate(name, job.profile, job.gpus) for name in TYPES},
        )
        for job in jobs
    ]
    allot = _Fifo(plain) if goal == "fifo" else _Solved(plain, goal)
    return Model(plain, GPUS, allot, shuffled=goal == "max-min-agnostic", fifo=goal == "fifo")


class _Fifo:
    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs

    def __call__(self, live: list[int], left: dict[int, int], now_s: float) -> Shares:
        room = dict(GPUS)
        shares: Shares = {number: dict.fromkeys(TYPES, 0.0) for number in live}
        for number in live:
            job = self.jobs[number]
            fitting = [name for name in TYPES if room[name] >= job.scale]
            if not fitting:
                break
            best = max(fitting, key=lambda name: job.rates[name])
            if job.rates[best]:
                shares[number][best] = 1.0
                room[best] -= job.scale
        return shares


class _Solved:
    def __init__(self, jobs: list[Job], goal: str) -> None:
        self.jobs, self.goal = jobs, goal
        self.alone_s: dict[int, float] = {}
        self.last: dict[int, tuple[int, float]] = {}

    def __call__(self, live: list[int], left: dict[int, int], now_s: float) -> Shares:
        jobs = [self.jobs[number] for number in live]
        rates = np.array([[job.rates[name] for name in TYPES] for job in jobs])
        scale = np.array([job.scale for job in jobs], dtype=float)
        gpus = np.array([GPUS[name] for name in TYPES], dtype=float)
        alone = isolated_rates(rates, scale, gpus)
        for number, rate in zip(live, alone, strict=True):
            steps, before = self.last.get(number, (left[number], rate))
            passed_s = (steps - left[number]) / before
            self.alone_s[number] = self.alone_s.get(number, 0.0) + passed_s
            self.last[number] = left[number], rate
        payload: dict[str, Any] = {
            "goal": self.goal,
            "rates": rates.tolist(),
            "scale": scale.tolist(),
            "weights": [job.weight for job in jobs],
            "gpus": gpus.tolist(),
            "steps": [left[number] for number in live],
            "elapsed_s": [now_s - job.arrival_s for job in jobs],
            "isolated_s": [
                self.alone_s[number] + left[number] / rate
                for number, rate in zip(live, alone.tolist(), strict=True)
            ],
        }
        found = solve(payload, "clarabel")["shares"]
        return {
            number: dict(zip(TYPES, row, strict=True))
            for number, row in zip(live, found, strict=True)
        }


@pytest.mark.long
@pytest.mark.parametrize("goal", ["fifo", "max-min-agnostic", "max-min", "ftf", "makespan"])
@pytest.mark.parametrize(
    "name", ["gavel/max_min_fairness.trace", "gavel/msr_sample/seed0_51b7ef.trace.gz", SHOCKWAVE]
)
def test_every_job_ends_when_the_plain_model_says(
    traces: Path, table: ThroughputTable, name: str, goal: str
) -> None:
    jobs = jobs_of(traces, name, table)
    model = model_of(jobs, table, goal)
    end_s = model.run()
    done = run(f"gavel-{goal}", jobs, table, program="clarabel")
    expected = [model.jct_s[number] for number in range(len(jobs))]
    assert [done.jct_s[job.id] for job in jobs] == pytest.approx(expected, abs=1e-6)
    first_s = min(job.submit_s for job in jobs)
    assert math.isclose(done.makespan_s + first_s, end_s, abs_tol=400.0)


def test_a_replay_needs_no_solver(traces: Path, table: ThroughputTable) -> None:
    jobs = jobs_of(traces, "gavel/medium_test.trace", table)
    for goal in ("max-min-agnostic", "ftf"):
        recording = run(f"gavel-{goal}", jobs, table, program="clarabel").recording
        planner = Gavel(table=table, goal=goal, last_submit_s=max(job.submit_s for job in jobs))
        core = Core(CoreConfig(cluster=cluster(), planner=planner))
        commands = [command for event in recording.events for command in core.handle(event)]
        assert commands == recording.commands
        asked = sum(isinstance(command, Compute) for command in commands)
        assert asked == sum(isinstance(event, Computed) for event in recording.events) > 0
