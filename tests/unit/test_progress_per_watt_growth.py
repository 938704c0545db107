"""Our planner at less cost: the same decisions as where every plan looks at every job."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from live_trainings import world as world_of
from progress_looked_at_anew import LookedAtAnew
from test_progress_per_watt import generated

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.job_rate import JobRates
from wattherd.model.command import Command, StartJob, StopJob
from wattherd.model.event import BudgetChanged, Event, JobSubmitted, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.job_progress import ReportedProgress, StatedProgress
from wattherd.policy.schedule.overdue import PATIENCE
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.world import SimWorld
from wattherd.workload.cluster_text import parse_cluster

CLUSTERS = ("3x4:V100M16", "5x2:V100M16", "2x8:V100M16", "1x4:T4,1x4:A100-40GB", "2x2:T4,2x4:A10")


@dataclass(frozen=True)
class Given:
    """A small world: what its cluster is, what comes to it, what a restart costs."""

    cluster: str
    events: tuple[Event, ...]
    restart_s: float


def given(seed: int, each: tuple[int, ...] = (1,)) -> Given:
    """Odd seeds have jobs of one width only; every third has restarts, others budgets.

    `each` are GPUs of a task, all on one node.
    """
    chance = random.Random(seed)
    cluster = chance.choice(CLUSTERS)
    nodes = parse_cluster(cluster, known=GPUS).nodes
    models = sorted({node.gpu_model for node in nodes})
    events: list[Event] = []
    at_s = 0.0
    most_w = sum(GPUS[node.gpu_model].max_w * node.gpu_count for node in nodes)
    for number in range(chance.randint(5, 24)):
        at_s += chance.choice([0.0, chance.expovariate(1 / 60)])
        count = chance.choice([1, 1, 1, 2, 2, 3, 4, 8])
        elastic = seed % 2 == 0 and chance.random() < 0.6
        roles: tuple[TaskRole, ...] = (
            TaskRole(
                count=count, gpu_count=0 if chance.random() < 0.05 else each[count % len(each)]
            ),
        )
        if chance.random() < 0.1:
            roles = (TaskRole(count=count), TaskRole(name="ps", gpu_count=chance.choice([0, 1])))
        spec = JobSpec(
            id=f"j{number}", submit_s=at_s, roles=roles,
            # Equal lengths too: who comes first among equals is a decision as well.
            duration_s=chance.choice([60.0, 600.0, round(chance.lognormvariate(5.5, 1.2), 1) + 1]),
            priority=chance.choice([0, 0, 0, 5]) if seed % 5 == 0 else 0,
            min_width=1 if elastic else None,
            max_width=count if elastic else None,
            gpu_models=(chance.choice(models),) if chance.random() < 0.15 else (),
            user=chance.choice("ab"),
        )  # fmt: skip
        events.append(JobSubmitted(at_s=at_s, job=spec))
    for _ in range(chance.choice([0, 0, 1, 3])):
        part = chance.choice([0.4, 0.6, 0.8, None])
        budget_w = None if part is None else part * most_w
        events.append(BudgetChanged(at_s=chance.uniform(0, at_s + 300), budget_w=budget_w))
    if chance.random() < 0.2:
        lost_s, node = chance.uniform(0, at_s + 100), chance.choice(nodes).name
        events += [NodeLost(at_s=lost_s, node=node), NodeReturned(at_s=lost_s + 400, node=node)]
    return Given(cluster, tuple(events), chance.choice([0.0, 10.0, 45.0]) if seed % 3 == 0 else 0.0)


@dataclass
class Orders:
    """Starts and stops as they were ordered."""

    told: list[Command] = field(default_factory=list)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        self.told += [one for one in commands if isinstance(one, StartJob | StopJob)]


def lived(world: Given, planner: Planner) -> tuple[list[Command], set[str]]:
    """What was ordered, and who is left."""
    cluster = parse_cluster(world.cluster, known=GPUS)
    rates = JobRates(models=tuple(sorted({node.gpu_model for node in cluster.nodes})))
    core = Core(CoreConfig(cluster=cluster, planner=planner, round_s=0.0, job_rates=rates))
    orders = Orders()
    SimWorld(core, DurationPlant(), world.events, watchers=[orders], record=False).run(1e6)
    return orders.told, set(core.jobs)


@pytest.mark.parametrize("seed", range(60))
def test_decisions_are_those_of_looking_at_every_job_at_every_plan(seed: int) -> None:
    world = given(seed)
    stated = StatedProgress(restart_s=world.restart_s)
    told, unfinished = lived(world, ProgressPerWatt(progress=stated, look_s=None))
    anew = lived(world, LookedAtAnew(progress=stated, look_s=None))
    assert (told, unfinished) == anew
    assert told


@pytest.mark.parametrize("seed", range(200, 204))
def test_so_are_decisions_on_jobs_that_report_for_themselves(seed: int) -> None:
    events: tuple[Event, ...] = (BudgetChanged(at_s=90.0, budget_w=4 * 10.0 + 110.0),) * (seed % 2)
    lived = world_of(*generated(seed), name="wattherd", events=events).run(600)
    anew = Core(replace(lived.core.config, planner=LookedAtAnew(progress=ReportedProgress())))
    for event, commands in lived.lived:
        assert _sorted(anew.handle(event)) == _sorted(commands)
    assert any(isinstance(one, StartJob) for _, commands in lived.lived for one in commands)


def _sorted(commands: Sequence[Command]) -> list[str]:
    return sorted(map(repr, commands))


@pytest.mark.parametrize("seed", range(300, 330))
def test_so_are_decisions_where_many_wait_too_long_and_room_is_made(seed: int) -> None:
    world, patience = given(seed, each=(1, 2, 4)), (0.0, 0.3, 1.0)[seed % 3]
    stated = StatedProgress(restart_s=world.restart_s)
    planner = ProgressPerWatt(progress=stated, look_s=None, patience=patience, owed_part=0.4)
    anew = LookedAtAnew(progress=stated, look_s=None, patience=patience, owed_part=0.4)
    assert lived(world, planner) == lived(world, anew)


def test_the_guide_is_right_that_a_wide_job_waits_four_times_its_length_and_no_longer() -> None:
    """With endless patience it begins and is stopped for the next short one until none comes."""
    chance, at_s, stream_s = random.Random(3), 0.0, 3 * 3600.0
    wide = JobSpec(id="wide", submit_s=0.0, roles=(TaskRole(count=8),), duration_s=1200.0)
    events: list[Event] = [JobSubmitted(at_s=0.0, job=wide)]
    while at_s < stream_s:
        at_s += chance.expovariate(0.5 * 8 / 60.0)  # half of what eight GPUs can do
        short = JobSpec(id=f"s{len(events)}", submit_s=at_s, roles=(TaskRole(),), duration_s=60.0)
        events.append(JobSubmitted(at_s=at_s, job=short))
    world = Given("1x8:V100M16", tuple(events), 0.0)
    ran_from = {}
    for patience in (PATIENCE, math.inf):
        planner = ProgressPerWatt(progress=StatedProgress(), look_s=None, patience=patience)
        told, _ = lived(world, planner)
        last = max(n for n, one in enumerate(told) if getattr(one, "job_id", "") == "wide")
        ran_from[patience] = last / len(told)
    # It waits for 4 of 9 lengths of the stream, and what it has done before is not lost.
    assert ran_from[PATIENCE] < 0.5 < 0.99 < ran_from[math.inf], ran_from
