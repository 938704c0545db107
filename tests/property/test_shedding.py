"""Whom the core stops when budgets are cut, held to an oracle that tries out every choice."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from cut_oracle import Work, who_must_stop
from effort import times
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.power_curve import PowerCurve
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import StopJob
from wattherd.model.event import BudgetChanged, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.model.reason import StopReason
from wattherd.policy.contract import Draft, View
from wattherd.policy.schedule.gang import Gang

NODES, GPUS, IDLE_W, MAX_W = 4, 4, 10.0, 70.0
RISE_W = MAX_W - IDLE_W
"""Of a T4 in use above a free one, by the catalog; no cap saves anything here."""
PATHS = {name: ("hall", rack) for name, rack in zip("abcd", ("r0", "r1", "r0", "r1"), strict=True)}


EMPTY_W = {"hall": NODES * GPUS * IDLE_W} | dict.fromkeys(("r0", "r1"), 2 * GPUS * IDLE_W)


def a_site(planner: Gang) -> Core:
    nodes = tuple(
        NodeSpec(name=name, cpu_milli=64_000, memory_mib=65_536, gpu_count=GPUS, gpu_model="T4")
        for name in PATHS
    )
    tree = PowerTree(
        (
            TreeDomain(name="hall", budget_w=2000.0),
            *(
                TreeDomain(
                    name=rack,
                    parent="hall",
                    budget_w=1000.0,
                    nodes=tuple(name for name, path in PATHS.items() if rack in path),
                )
                for rack in ("r0", "r1")
            ),
        )
    )
    return Core(
        CoreConfig(
            cluster=ClusterSpec(nodes),
            planner=planner,
            tree=tree,
            curve_of=lambda spec, model: PowerCurve((MAX_W,), (1.0,)),
            returns=lambda job_id: not job_id.startswith("bare"),
        )
    )


class WhileOpen(Gang):
    """Starts whoever fits, until it is closed."""

    closed = False

    def plan(self, view: View, draft: Draft) -> None:
        if not self.closed:
            super().plan(view, draft)


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 2), st.sampled_from(["job", "bare"])),
    min_size=1,
    max_size=7,
)
CUTS = st.lists(
    st.tuples(st.sampled_from(sorted(EMPTY_W)), st.integers(0, 10)), min_size=1, max_size=3
)


@given(jobs=JOBS, cuts=CUTS)
@settings(max_examples=times(400), deadline=None)
def test_as_few_stop_as_will_do_and_the_least_important(
    jobs: list[tuple[int, int, str]], cuts: list[tuple[str, int]]
) -> None:
    planner = WhileOpen()
    core = a_site(planner)
    for number, (gpus, priority, kind) in enumerate(jobs):
        name, roles = f"{kind}-{number}", (TaskRole(count=gpus),)
        spec = JobSpec(id=name, submit_s=0.0, roles=roles, priority=priority)
        core.handle(JobSubmitted(at_s=0.0, job=spec))
    for job in core.jobs.values():
        if job.wanted:
            core.handle(JobStarted(at_s=0.0, job_id=job.id, attempt=job.attempt))
    planner.closed = True
    budgets_w = dict.fromkeys(EMPTY_W, inf)
    for at_s, (name, gpus) in enumerate(cuts, start=1):
        works = works_of(core)
        budgets_w[name] = EMPTY_W[name] + RISE_W * gpus
        over_w = {
            one: EMPTY_W[one] + sum(work.gives_w.get(one, 0.0) for work in works) - budgets_w[one]
            for one in EMPTY_W
        }
        cut = BudgetChanged(at_s=at_s, budget_w=budgets_w[name], domain=name)
        stops = [one for one in core.handle(cut) if isinstance(one, StopJob)]
        validate(core)
        assert all(one.reason is StopReason.BUDGET_CUT for one in stops)
        stay = {work.name for work in works_of(core)}
        assert {work.name for work in works} - stay == who_must_stop(over_w, works)


def works_of(core: Core) -> list[Work]:
    """All that is planned to run."""
    return [_work(job, core) for job in core.jobs.values() if job.wanted]


def _work(job: JobRecord, core: Core) -> Work:
    gives_w: dict[str, float] = {}
    for one in job.wanted:
        for domain in PATHS[core.config.cluster.nodes[one.node].name]:
            gives_w[domain] = gives_w.get(domain, 0.0) + RISE_W * len(one.gpus)
    return Work(
        name=job.id,
        priority=job.spec.priority,
        newest=f"{job.number:04d}",
        bare=job.id.startswith("bare"),
        gives_w=gives_w,
        runs=job.state in (State.RUNNING, State.STARTING),
    )
