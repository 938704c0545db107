"""Jobs of several roles, each with its own range of counts and sizes, through the core's guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import RejectJob, StartJob
from wattherd.model.event import JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason
from wattherd.policy.contract import Draft, JobView, Share, View

WORKER = TaskRole(
    count=2, min_count=1, max_count=4, cpu_milli=2000, min_cpu_milli=1000, max_cpu_milli=4000,
    gpu_count=1, max_gpu_count=2,
)  # fmt: skip
SERVER = TaskRole(name="ps", count=1, max_count=3, cpu_milli=1000, gpu_count=0)


def a_job(*roles: TaskRole) -> JobSpec:
    return JobSpec(id="one", submit_s=0.0, roles=roles or (WORKER, SERVER))


@dataclass
class Once:
    """Proposes the given shares for the first job, and keeps the answer."""

    shares: Sequence[Share]
    answer: Reason | None = None

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if not job.wanted:
                self.answer = draft.start(job, self.shares)


def cluster(nodes: int = 2) -> ClusterSpec:
    return ClusterSpec(
        tuple(
            NodeSpec(
                name=f"n{number}", cpu_milli=16000, memory_mib=64000, gpu_count=4, gpu_model="T4"
            )
            for number in range(nodes)
        )
    )


def proposed(
    shares: Sequence[Share], spec: JobSpec | None = None
) -> tuple[Once, Core, list[object]]:
    planner = Once(shares)
    core = Core(CoreConfig(cluster=cluster(), planner=planner))
    commands = core.handle(JobSubmitted(at_s=0.0, job=spec or a_job()))
    validate(core)
    return planner, core, list(commands)


def test_a_gang_starts_with_roles_and_sizes_written_on_its_allocations() -> None:
    shares = [Share(0, 1, 0, 4000, 2), Share(1, 1, 0, 4000, 2), Share(1, 2, 1)]
    planner, _, commands = proposed(shares)
    assert planner.answer is None
    (start,) = [command for command in commands if isinstance(command, StartJob)]
    told = [(a.node, a.role, a.tasks, a.request.cpu_milli, len(a.gpus)) for a in start.allocations]
    assert told == [(0, 0, 1, 4000, 2), (1, 0, 1, 4000, 2), (1, 1, 2, 2000, 0)]


@pytest.mark.parametrize(
    ("shares", "problem"),
    [
        ([Share(0, 2)], "WaitingForGang: asked 1 ps task, available 0 ps tasks"),
        ([Share(0, 5), Share(0, 1, 1)], "WaitingForGang: asked 1 worker task, available 5"),
        ([Share(0, 1), Share(0, 4, 1)], "WaitingForGang: asked 1 ps task, available 4"),
        ([Share(0, 1, 0, 5000), Share(0, 1, 1)], "asked 5000 milli-vCPU per task"),
        ([Share(0, 1, 0, 500), Share(0, 1, 1)], "asked 500 milli-vCPU per task"),
        ([Share(0, 1, 0, None, 3), Share(0, 1, 1)], "asked 3 GPUs per task"),
        ([Share(0, 1), Share(0, 1, 1, 2000)], "asked 2000 milli-vCPU per task"),
        ([Share(0, 3, 0, None, 2), Share(0, 1, 1)], "WaitingForGpus: asked 6 GPUs, available 4"),
    ],
)
def test_what_the_job_cannot_use_is_refused(shares: Sequence[Share], problem: str) -> None:
    planner, core, commands = proposed(shares)
    assert planner.answer is not None
    assert problem in planner.answer.text()
    assert not commands
    assert not core.jobs["one"].wanted


def test_roles_without_ranges_run_exactly_as_asked() -> None:
    fixed = (
        TaskRole(count=2, cpu_milli=1000),
        TaskRole(name="ps", count=2, cpu_milli=500, gpu_count=0),
    )
    good, _, _ = proposed([Share(0, 2), Share(1, 2, 1)], a_job(*fixed))
    assert good.answer is None
    for shares in ([Share(0, 1), Share(1, 2, 1)], [Share(0, 2), Share(1, 1, 1)]):
        bad, _, _ = proposed(shares, a_job(*fixed))
        assert bad.answer is not None


def test_a_job_that_fits_at_its_least_size_is_not_rejected() -> None:
    wide = TaskRole(count=100, min_count=8, gpu_count=4, min_gpu_count=1)
    _, core, _ = proposed([], a_job(wide))
    assert "one" in core.jobs
    _, core, commands = proposed([], a_job(TaskRole(count=100, min_count=9, gpu_count=1)))
    assert isinstance(commands[0], RejectJob)
    assert "asked 9 worker tasks, available 8 worker tasks" in commands[0].detail


@pytest.mark.parametrize(
    "make",
    [
        lambda: a_job(WORKER, TaskRole(name="ps", count=1, min_count=2)),
        lambda: a_job(WORKER, TaskRole(name="ps", count=1, min_count=-1)),
        lambda: a_job(TaskRole(cpu_milli=1000, max_cpu_milli=500)),
        lambda: a_job(TaskRole(gpu_count=1, min_gpu_count=2)),
        lambda: a_job(TaskRole(count=2, min_count=3)),
    ],
)
def test_empty_ranges_are_refused(make: Callable[[], JobSpec]) -> None:
    with pytest.raises(UserError, match="job one"):
        make()


def test_reports_are_seen_by_planners() -> None:
    seen: list[tuple[float | None, float | None]] = []

    class Looks:
        def plan(self, view: View, draft: Draft) -> None:
            seen.extend((job.loss, job.rate_per_s) for job in view.live())

    core = Core(CoreConfig(cluster=cluster(), planner=Looks()))
    core.handle(JobSubmitted(at_s=0.0, job=a_job()))
    assert seen == [(None, None)]


def test_free_cores_follow_the_draft() -> None:
    free: list[list[int]] = []

    class Counts:
        def plan(self, view: View, draft: Draft) -> None:
            job: JobView = view.live()[0]
            free.append(draft.free_cpu_milli().tolist())
            draft.start(job, [Share(1, 2), Share(0, 1, 1)])
            free.append(draft.free_cpu_milli().tolist())

    Core(CoreConfig(cluster=cluster(), planner=Counts())).handle(
        JobSubmitted(at_s=0.0, job=a_job())
    )
    assert free == [[16000, 16000], [15000, 12000]]
