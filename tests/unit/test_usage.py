"""How well a run used its cluster: fragments, CPUs, and the gap between CPUs and GPUs."""

from __future__ import annotations

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.model.event import JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.sim.usage import UsageMeter
from wattherd.sim.world import SimWorld
from wattherd.testing.timed_world import TimedPlant, t4_nodes, timed


def run(*jobs: JobSpec) -> UsageMeter:
    core = Core(CoreConfig(cluster=t4_nodes(4, 4, cpu_milli=8000), planner=Drf()))
    usage = UsageMeter(core, jobs)
    given = [JobSubmitted(at_s=job.submit_s, job=job) for job in jobs]
    SimWorld(core, TimedPlant(), given, watchers=[usage], record=False).run()
    return usage


def test_what_is_free_beside_a_job_is_a_fragment_to_those_who_want_a_whole_node() -> None:
    """One GPU taken of four: three are free there; half of the jobs ask for four in one piece."""
    small, large = timed("a", 1, lasts_s=100.0), timed("b", 4, at_s=100.0, lasts_s=50.0)
    usage = run(small, large)
    assert usage.free_gpu_s == pytest.approx(7 * 100 + 4 * 50)
    assert usage.fragment_gpu_s == pytest.approx(3 * 0.5 * 100)
    assert usage.fragmentation_pct == pytest.approx(100 * 150 / 900)


def test_a_gang_larger_than_a_node_asks_for_the_whole_node() -> None:
    usage = run(timed("a", 1, lasts_s=100.0), timed("b", 8, at_s=100.0, lasts_s=50.0))
    assert usage.fragment_gpu_s == pytest.approx(3 * 0.5 * 100)


def test_the_gap_is_between_the_shares_in_use() -> None:
    """Two of eight GPUs and twelve of sixteen CPUs: 25 against 75 %."""
    role = TaskRole(count=2, cpu_milli=6000)
    usage = run(timed("a", lasts_s=100.0, roles=(role,)))
    assert usage.cpu_milli_s == pytest.approx(12_000 * 100)
    assert usage.gap_s == pytest.approx(0.5 * 100)


def test_a_cluster_that_is_always_full_has_no_fragmentation() -> None:
    usage = run(timed("a", 8, lasts_s=100.0))
    assert usage.free_gpu_s == 0
    assert usage.fragmentation_pct is None
