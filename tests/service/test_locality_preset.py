"""The preset in which placement counts: exact completion times, alone and apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.job import TaskRole
from wattherd.testing.timed_world import t4_nodes, timed


def jct_s(policy: str, *specs: object, nodes: tuple[int, ...] = (2, 2)) -> dict[str, float | None]:
    jobs = ReadJobs(specs=tuple(specs))  # type: ignore[arg-type]
    given = SchedulerContext(jobs=jobs, cluster=t4_nodes(*nodes))
    result = simulate(ComparisonSetup(preset=preset("locality"), given=given), policy)
    return {one.job_id: one.jct_s for one in result.outcomes}


def test_a_gang_is_slow_where_its_model_minds_and_its_gpus_are_apart() -> None:
    """One GPU of each node is taken: cifar10 keeps 0.472 of its speed, an unknown model all."""
    pins = [timed("p0", 1, lasts_s=900.0), timed("p1", 1, lasts_s=900.0)]
    wide = timed("w", 2, at_s=1.0, lasts_s=47.2)
    known = jct_s("fifo-first-fit", *pins, replace(wide, profile="cifar10"), nodes=(1, 1, 1, 1))
    assert known["w"] == pytest.approx(1.0 + 100.0)
    unknown = jct_s("fifo-first-fit", *pins, wide, nodes=(1, 1, 1, 1))
    assert unknown["w"] == pytest.approx(1.0 + 47.2)
    together = jct_s("fifo-first-fit", replace(wide, profile="cifar10"))
    assert together["w"] == pytest.approx(1.0 + 47.2)


def test_gandiva_does_not_keep_pairs_of_which_nothing_was_measured() -> None:
    """They take turns on the device, 0.5 + 0.5: packing pays nothing and ends after a slice."""
    roles = (TaskRole(gpu_memory_mib=5_000),)
    specs = [timed(name, roles=roles, profile=name, lasts_s=600.0) for name in "xy"]
    found = jct_s("gandiva", *specs, nodes=(1,))
    assert max(found.values()) == pytest.approx(1_200.0, rel=0.03)  # type: ignore[type-var]
