"""Jobs that may run on some nodes only: every planner keeps to that, and starves nobody by it.

A mask follows from a job's name, role by role, so that events alone decide and a replay has the
same. The shell beside the core looks at every start; strikes of the guard would show a planner that
proposes what it should not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from core_shell import Shell

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import RejectJob, StartJob
from wattherd.model.event import (
    BudgetChanged,
    JobCancelled,
    JobEdited,
    NodeLost,
    NodeReturned,
)
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, Planner, Quota, Share, View
from wattherd.policy.eligibility import NodeMask
from wattherd.policy.schedule.job_order import RankingRules
from wattherd.policy.schedule.node_choice import CountTrial, anywhere, yarn
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.packings import yarn_trial
from wattherd.policy.schedule.per_job_placement import PerJobPlacement
from wattherd.policy.schedule.priorities import Fifo

GPUS = (4, 4, 2, 4, 2, 4, 8, 8)
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(
            name=f"n{number}", cpu_milli=16_000, memory_mib=64_000, gpu_count=gpus, gpu_model="T4"
        )
        for number, gpus in enumerate(GPUS)
    )
)
"""Two sizes and more: some rules look at the largest node, which a job may not use."""
SCHEDULERS = sorted(preset("none").schedulers)
IN_TURN = ("fifo", "fifo@fastest", "strict-yarn")
"""Nothing passes the first one that waits, by design: nobody waits there before the last one."""
STEPS = times(300)
ENOUGH_PLANS = 400
"""Of a job that heads the order and whose nodes are free; Gandiva's patience is some slices."""


@dataclass(frozen=True)
class ByName:
    """Masks (roles, N) of some jobs, by their ids."""

    masks: dict[str, tuple[NodeMask | None, ...]]

    def nodes(self, spec: JobSpec, role: int) -> NodeMask | None:
        known = self.masks.get(spec.id)
        return None if known is None else known[role]


class Watched(Shell):
    """Sees to it that nothing starts outside of its mask."""

    def _start(self, order: StartJob) -> None:
        super()._start(order)
        eligible = self.config.eligible
        spec = self.core.jobs[order.job_id].spec
        for part in order.allocations:
            mask = None if eligible is None else eligible.nodes(spec, part.role)
            assert mask is None or mask[part.node], (order, mask)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """All shares that the guard had to refuse because of a mask."""
    seen: list[Share] = []
    real = GuardedDraft._ineligible

    def noted(draft: GuardedDraft, spec: JobSpec, share: Share, able: int) -> Reason:
        seen.append(share)
        return real(draft, spec, share, able)

    monkeypatch.setattr(GuardedDraft, "_ineligible", noted)
    return seen


def a_mask(rng: random.Random) -> NodeMask | None:
    """Two thirds of the time some nodes, one to six of them."""
    if rng.random() < 1 / 3:
        return None
    mask = np.zeros(len(GPUS), dtype=np.bool_)
    mask[rng.sample(range(len(GPUS)), rng.randint(1, 6))] = True
    return mask


def a_job(rng: random.Random, name: str) -> JobSpec:
    tasks = rng.choice([1, 1, 2, 3, 4, 6])
    role = TaskRole(count=tasks, cpu_milli=500)
    kind = rng.random()
    if kind < 0.2:
        role = TaskRole(count=tasks, cpu_milli=500, min_count=1)
    elif kind < 0.4:
        role = TaskRole(count=rng.choice([1, 2]), gpu_count=rng.choice([2, 4]), cpu_milli=500)
    roles: tuple[TaskRole, ...] = (role,)
    if kind > 0.8:
        roles = (role, TaskRole(name="ps", count=rng.choice([1, 2]), gpu_count=0, cpu_milli=3000))
    return JobSpec(
        id=name,
        submit_s=0.0,
        roles=roles,
        priority=rng.choice([-1, 0, 0, 1, 2]),
        queue=rng.choice(["a", "b"]),
        user=rng.choice(["ann", "bob"]),
        duration_s=rng.choice([60.0, 600.0]),
        restarts=1,
    )


@dataclass(frozen=True)
class Built:
    planner: Planner
    quota: Quota | None = None


def built(name: str, specs: tuple[JobSpec, ...]) -> Built:
    """A scheduler of the preset `none`, or one of those that the tests add."""
    if name in EXTRA:
        return Built(EXTRA[name]())
    made = preset("none").scheduler(
        name, SchedulerContext(jobs=ReadJobs(specs=specs), cluster=CLUSTER)
    )
    return Built(made.planner, made.quota)


def _desk() -> Placer:
    return build_placer(CLUSTER, (), place_policy("best-fit"), draws=np.random.default_rng(1))


EXTRA = {
    "anew-yarn": lambda: Ordered(rules=RankingRules(order=Fifo()), place=yarn, anew=yarn_trial),
    "anew-count": lambda: Ordered(
        rules=RankingRules(order=Fifo()), place=anywhere, anew=CountTrial
    ),
    "strict-yarn": lambda: Ordered(
        rules=RankingRules(order=Fifo()), place=yarn, discipline=Discipline.STRICT, preemptive=False
    ),
}


def config(name: str, specs: tuple[JobSpec, ...], masks: ByName | None) -> CoreConfig:
    made = built(name, specs)
    return CoreConfig(cluster=CLUSTER, planner=made.planner, quota=made.quota, eligible=masks)


def play(shell: Shell, specs: tuple[JobSpec, ...], rng: random.Random) -> None:
    """Submit, start, stop, end, lose and return, cut budgets: `STEPS` random steps."""
    waiting = list(specs)
    for _ in range(STEPS):
        kind = rng.random()
        shell.now_s += rng.choice([0.0, 1.0, 30.0])
        runs = shell.with_status("ordered", "stopping")
        if kind < 0.3 and waiting:
            shell.submit(replace(waiting.pop(), submit_s=shell.now_s))
        elif kind < 0.6 and runs:
            run = rng.choice(runs)
            (shell.started if run.status == "ordered" else shell.stopped)(run)
        elif kind < 0.7 and (running := shell.with_status("running")):
            shell.exited(rng.choice(running), rng.choice([0, 143]))
        elif kind < 0.8 and shell.wakes:
            shell.wake()
        elif kind < 0.85:
            node = rng.choice(CLUSTER.nodes).name
            gone = node in shell.lost
            shell.deliver((NodeReturned if gone else NodeLost)(at_s=shell.now_s, node=node))
        elif kind < 0.9:
            budget_w = rng.choice([None, 400.0, 900.0, 1500.0])
            shell.deliver(BudgetChanged(at_s=shell.now_s, budget_w=budget_w))
        elif kind < 0.95 and shell.submitted:
            job_id = rng.choice(sorted(shell.submitted))
            priority = rng.choice([0, 3])
            shell.deliver(JobEdited(at_s=shell.now_s, job_id=job_id, priority=priority))
        elif shell.submitted:
            job_id = rng.choice(sorted(shell.submitted))
            shell.deliver(JobCancelled(at_s=shell.now_s, job_id=job_id))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [*SCHEDULERS, *EXTRA])
def test_nothing_runs_outside_of_its_mask_and_every_job_ends(
    name: str, seed: int, outside: list[Share]
) -> None:
    rng = random.Random(f"{name} {seed}")
    specs = tuple(a_job(rng, f"j{number}") for number in range(14))
    masks = ByName({one.id: tuple(a_mask(rng) for _ in one.roles) for one in specs})
    shell = Watched(config(name, specs, masks))
    play(shell, specs, rng)
    shell.finish()
    shell.replay()
    assert not outside, "planners propose nothing that the guard has to refuse"


@pytest.mark.parametrize("name", [*SCHEDULERS, *EXTRA])
def test_a_job_whose_nodes_are_free_starts_whoever_waits_for_others(name: str) -> None:
    """Those before it hold all nodes that it may not use, and more of them wait."""
    rng, others_wait = random.Random(name), name not in IN_TURN
    mask = np.array([at < 2 for at in range(len(GPUS))])
    others = ~mask
    crowd = tuple(
        JobSpec(
            id=f"c{number}",
            submit_s=0.0,
            roles=(TaskRole(count=2, cpu_milli=500),),
            queue="a",
            user="ann",
            duration_s=600.0,
        )
        for number in range(20 if others_wait else 8)
    )
    late = replace(crowd[0], id="late", roles=(TaskRole(count=8, cpu_milli=500),), priority=5)
    bound = ByName({**{one.id: (others,) for one in crowd}, "late": (mask,)})
    shell = Watched(config(name, (*crowd, late), bound))
    for spec in rng.sample(crowd, len(crowd)):
        shell.submit(spec)
    settle(shell)
    shell.submit(late)
    for _ in range(ENOUGH_PLANS):
        settle(shell)
        if shell.runs_of("late"):
            break
        assert shell.wakes, (name, shell.core.jobs["late"].reason)
        shell.wake()
    (run,) = shell.runs_of("late")
    assert {part.node for part in run.parts} == {0, 1}


def settle(shell: Shell) -> None:
    """Carry out all orders."""
    for _ in range(ENOUGH_PLANS):
        runs = shell.with_status("ordered", "stopping")
        if not runs:
            return
        (shell.started if runs[0].status == "ordered" else shell.stopped)(runs[0])


@pytest.mark.parametrize("name", [*SCHEDULERS, "strict-yarn"])
def test_masks_that_leave_out_nothing_change_no_command(name: str) -> None:
    """Those who pack the cluster anew lay it out in another way where there are masks."""
    seed = f"whole {name}"
    rng = random.Random(seed)
    specs = tuple(a_job(rng, f"j{number}") for number in range(14))
    everything = np.ones(len(GPUS), dtype=np.bool_)
    masks = ByName({one.id: (everything,) * len(one.roles) for one in specs})
    plain, masked = (Watched(config(name, specs, given)) for given in (None, masks))
    state = rng.getstate()
    for shell in (plain, masked):
        rng.setstate(state)
        play(shell, specs, rng)
    assert plain.commands == masked.commands


def a_plain_job(name: str, gpus: int, priority: int = 0) -> JobSpec:
    roles = (TaskRole(count=gpus, cpu_milli=500),)
    return JobSpec(id=name, submit_s=0.0, roles=roles, priority=priority, duration_s=600.0)


def only(*nodes: int) -> tuple[NodeMask]:
    return (np.array([at in nodes for at in range(len(GPUS))]),)


def test_who_preempts_takes_devices_where_it_may_run() -> None:
    """The last to come are the first to go, but they hold nodes that are of no use to it."""
    low = [a_plain_job(f"l{at}", 4) for at in (0, 1)]
    masks = ByName({"l0": only(0), "l1": only(1), "high": only(0)})
    shell = Watched(config("priority", tuple(low), masks))
    for spec in low:
        shell.submit(spec)
    settle(shell)
    shell.submit(a_plain_job("high", 4, priority=5))
    settle(shell)
    (run,) = shell.runs_of("high")
    assert [part.node for part in run.parts] == [0]
    assert shell.runs_of("l1")
    assert not shell.runs_of("l0")


@pytest.mark.parametrize("name", ["fifo-backfill", "priority", "drf", "capacity"])
def test_a_job_that_waits_for_its_nodes_does_not_stand_for_one_of_the_same_shape(name: str) -> None:
    masks = ByName({"a": only(0), "b": only(0), "c": only(1)})
    specs = tuple(a_plain_job(name, 4) for name in "abc")
    shell = Watched(config(name, specs, masks))
    for spec in specs:
        shell.submit(spec)
    settle(shell)
    assert [bool(shell.runs_of(one)) for one in "abc"] == [True, False, True]


class EverywhereOnce:
    """A planner that knows no masks: it tries the first job on every node in turn."""

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            refusals = [draft.start(job, [Share(node, 1)]) for node in range(len(GPUS))]
            assert [one is None for one in refusals] == view.eligible(job.spec).tolist()
            self.said = [one.text() for one in refusals if one is not None]


def test_the_guard_refuses_a_node_outside_and_says_how_many_may_be_used(
    outside: list[Share],
) -> None:
    mask = np.array([at in (1, 4) for at in range(len(GPUS))])
    planner = EverywhereOnce()
    shell = Watched(CoreConfig(cluster=CLUSTER, planner=planner, eligible=ByName({"j": (mask,)})))
    shell.submit(JobSpec(id="j", submit_s=0.0, roles=(TaskRole(),)))
    assert [share.node for share in outside] == [0, 2, 3, 5, 6, 7]
    assert planner.said[0] == (
        "WaitingForGpus: asked 1 worker task on node n0, available 0 worker tasks on node n0 "
        "(it may use 2 of 8 nodes, and this is none of them)"
    )


def test_a_job_that_its_nodes_never_hold_is_refused_with_numbers() -> None:
    mask = np.array([at in (0, 2) for at in range(len(GPUS))])
    eligible = ByName({"j": (mask,), "k": (mask,)})
    shell = Watched(CoreConfig(cluster=CLUSTER, planner=EverywhereOnce(), eligible=eligible))
    shell.submit(JobSpec(id="j", submit_s=0.0, roles=(TaskRole(count=7),)))
    (reject,) = shell.commands[-1]
    assert isinstance(reject, RejectJob)
    assert reject.reason.code is ReasonCode.NEVER_FITS
    assert (reject.reason.asked, reject.reason.available) == (7, 6)
    assert "2 of 8 nodes" in reject.reason.text()


@pytest.mark.parametrize("seed", range(2))
def test_a_placement_policy_keeps_to_masks(seed: int, outside: list[Share]) -> None:
    rng = random.Random(f"pods {seed}")
    specs = tuple(
        replace(a_job(rng, f"j{number}"), roles=(TaskRole(gpu_milli=milli, cpu_milli=500),))
        for number, milli in enumerate(rng.choice([250, 600, 1000]) for _ in range(30))
    )
    masks = ByName({one.id: (a_mask(rng),) for one in specs})
    planner = PerJobPlacement(desk=_desk)
    shell = Watched(CoreConfig(cluster=CLUSTER, planner=planner, eligible=masks))
    play(shell, specs, rng)
    shell.finish()
    shell.replay()
    assert not outside
