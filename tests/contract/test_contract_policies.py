"""One scenario for each scheduling policy that runs live: the same story in both shells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from shells import Setup, Shell
from test_contract_commands import MACHINE, two_queues

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.live import live_schedulers
from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn, preemptive
from wattherd.model.cluster import ClusterSpec
from wattherd.model.topology import chains_of
from wattherd.policy.contract import Planner
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.hived import HiveD
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import (
    Deadline,
    Fifo,
    LeastAttained,
    Priority,
    ShortestRemaining,
    SmallestRemainingService,
)
from wattherd.policy.schedule.search import Search, SuccessiveHalving
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig

Begin = Callable[[Setup], Shell]
START, THROUGH = ["start on 1", "started"], ["exited 0", "Succeeded"]
TURNS = Gandiva(quantum_s=1.0, migration=False, packing=False, growth=False)
GPU = replace(
    MACHINE,
    node=replace(MACHINE.node, gpu_model="T4", gpu_count=1),
    gpu=replace(MACHINE.gpu, memory_mib=GPUS["T4"].memory_mib),
)
"""One device with the memory of a T4, for what a policy decides by the memory of GPUs."""
TWO_NODES = ClusterSpec(
    tuple(replace(MACHINE.node, name=name, gpu_count=2, cpu_milli=64_000) for name in ("n0", "n1"))
)


def ordered(discipline: Discipline) -> Planner:
    return in_turn(OrderedTerms(), Fifo(), discipline)


@pytest.mark.long
@pytest.mark.parametrize(
    ("discipline", "passes"),
    [
        (Discipline.STRICT, False),
        (Discipline.FIRST_FIT, True),
        (Discipline.BACKFILL, True),
    ],
)
def test_who_may_pass_a_wide_job_that_waits(
    begin: Begin, discipline: Discipline, passes: bool
) -> None:
    """`fifo`, `fifo-first-fit`, `fifo-backfill`: the short one ends before the long one does."""
    site = begin(Setup(machine=MACHINE, planner=ordered(discipline)))
    long, wide = site.submit(3.0), site.submit(0.3, width=2)
    short = site.submit(0.3)
    site.wait("Succeeded", *([short] if passes else [wide, short]))
    assert site.state(long) == ("Running" if passes else "Succeeded")
    site.wait("Succeeded", long, wide, short)
    assert site.story(wide) == ["start on 2", "started", *THROUGH]
    assert site.story(long) == site.story(short) == [*START, *THROUGH]


@pytest.mark.parametrize("order", [ShortestRemaining(), SmallestRemainingService()])
def test_less_left_comes_first(begin: Begin, order: ShortestRemaining) -> None:
    """`srtf`, `srsf`."""
    site = begin(Setup(machine=MACHINE, planner=preemptive(OrderedTerms(), order)))
    long = site.submit(600.0, width=2)
    site.wait("Running", long)
    short = site.submit(0.3, width=2)
    site.wait("Succeeded", short)
    site.has(long, "started", times=2)
    assert site.story(short) == ["start on 2", "started", *THROUGH]
    assert site.story(long) == [
        *("start on 2", "started", "stop: PreemptedForPriority", "stopped", "start on 2", "started")
    ]


@pytest.mark.parametrize(
    ("planner", "urgent"),
    [
        (preemptive(OrderedTerms(), Priority()), {"priority": 10}),
        (preemptive(OrderedTerms(), Deadline()), {"deadline_s": 60.0}),
    ],
    ids=["priority", "deadline"],
)
def test_the_urgent_come_first(begin: Begin, planner: Planner, urgent: dict[str, float]) -> None:
    site = begin(Setup(machine=MACHINE, planner=planner))
    usual = site.submit(width=2)
    site.wait("Running", usual)
    first = site.submit(0.3, width=2, **urgent)
    site.wait("Succeeded", first)
    site.has(usual, "started", times=2)
    assert site.story(first) == ["start on 2", "started", *THROUGH]
    assert site.story(usual).count("stopped") == 1


def test_tiresias_lets_newcomers_go_before_those_who_had_enough(begin: Begin) -> None:
    """The first threshold is at ten GPU seconds: more than a start takes on a busy machine."""
    order = LeastAttained(limits_gpu_s=(10.0,))
    site = begin(Setup(machine=MACHINE, planner=preemptive(OrderedTerms(), order)))
    old = site.submit(600.0, width=2)
    site.until(lambda: site.ask(lambda core: core.jobs[old].progress) > 5.5)
    new = site.submit(0.3, width=2)
    site.wait("Succeeded", new)
    site.has(old, "started", times=2)
    assert site.story(new) == ["start on 2", "started", *THROUGH]
    assert site.story(old).count("stopped") == 1


def test_capacity_takes_back_what_was_lent_and_no_more(begin: Begin) -> None:
    tree = two_queues()
    at_once = Reclaim(wait_s=0.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
    site = begin(
        Setup(machine=MACHINE, planner=CapacityScheduler(tree=tree, reclaim=at_once), quota=tree)
    )
    kept, lent = site.submit(queue="a"), site.submit(queue="a")
    site.wait("Running", kept, lent)
    owner = site.submit(0.3, queue="b")
    site.wait("Succeeded", owner)
    site.has(lent, "started", times=2)
    assert site.story(kept) == START
    assert site.story(lent) == [*START, "stop: Reclaimed", "stopped", *START]


def test_drf_gives_the_next_device_to_who_has_least(begin: Begin) -> None:
    site = begin(Setup(machine=MACHINE, planner=Drf()))
    site.submit(1.0, width=2, user="cyd")
    first, second = (site.submit(600.0, user="ann") for _ in range(2))
    of_bob = site.submit(0.3, user="bob")
    site.wait("Succeeded", of_bob)
    site.has(second, "started")
    order = site.order("start on 1")
    assert order == [first, of_bob, second]


def test_hived_keeps_cells_for_their_owner(begin: Begin) -> None:
    """An opportunistic job on the whole machine leaves as soon as an owner asks for a part."""
    chains = chains_of(ClusterSpec((MACHINE.node,)), within={2: (2,)})
    top = chains[0]
    shares = {name: {top.name: {top.levels[0]: 1}} for name in ("a", "b")}
    planner = HiveD(chains=chains, shares=shares)
    site = begin(Setup(machine=MACHINE, planner=planner, quota=planner))
    guest = site.submit(width=2, queue="b", priority=-1)
    site.wait("Running", guest)
    owner = site.submit(0.3, queue="a")
    site.wait("Succeeded", owner)
    assert site.story(owner) == [*START, *THROUGH]
    site.has(guest, "started", times=2)
    assert site.story(guest)[2].startswith("stop: ")


def test_gandiva_has_jobs_take_turns(begin: Begin) -> None:
    site = begin(Setup(machine=MACHINE, planner=TURNS))
    jobs = [site.submit(width=2) for _ in range(2)]
    for job in jobs:
        site.has(job, "stop: TimeSlice", "stopped", times=2)
    for job in jobs:
        assert site.story(job)[:5] == [
            *("start on 2", "started", "stop: TimeSlice", "stopped", "start on 2"),
        ]


def test_gandiva_packs_two_jobs_on_one_device(begin: Begin) -> None:
    """Both sleep most of the time, so that together they do twice as much as in turns."""
    planner = replace(TURNS, quantum_s=2.0, packing=True)
    site = begin(Setup(machine=GPU, planner=planner))
    jobs = [site.submit(gpu_memory_mib=4000) for _ in range(2)]
    site.until(lambda: all(site.state(one) == "Running" for one in jobs))
    assert site.placed(jobs[0]) == site.placed(jobs[1]) == [(0, (0,))]
    site.cancel(*jobs)
    site.wait("Cancelled", *jobs)


def test_gandiva_brings_a_gang_together(begin: Begin) -> None:
    """A gang that began on two nodes moves to one of them when that has room."""
    planner = replace(TURNS, migration=True, free_share=2.0)
    site = begin(Setup(machine=MACHINE, planner=planner, cluster=TWO_NODES))
    ones = [site.submit() for _ in range(3)]
    site.wait("Running", *ones)
    alone = next(one for one in ones if site.placed(one)[0][0] == 1)
    beside = next(one for one in ones if site.placed(one)[0][0] == 0)
    site.cancel(beside)
    site.wait("Cancelled", beside)
    gang = site.submit(width=2)
    site.wait("Running", gang)
    assert {node for node, _ in site.placed(gang)} == {0, 1}
    site.cancel(alone)
    site.has(gang, "stop: Migrated", "stopped")
    site.has(gang, "started", times=2)
    ((_, gpus),) = site.placed(gang)
    assert len(gpus) == 2


@pytest.mark.long
def test_gandiva_grows_and_shrinks(begin: Begin) -> None:
    site = begin(Setup(machine=MACHINE, planner=replace(TURNS, growth=True)))
    elastic = site.submit(most=2)
    site.has(elastic, "start on 1", "stop: Resized", "stopped", "start on 2")
    other = site.submit(3.0)
    site.wait("Succeeded", other)
    site.has(elastic, "start on 1", "start on 2", times=2)


def test_trials_of_a_search_end_where_others_are_better(begin: Begin) -> None:
    rule = SuccessiveHalving(first=1.0, eta=2, rungs=1)
    planner = Search(planner=ordered(Discipline.STRICT), rule=rule, look_s=0.5)
    site = begin(Setup(machine=MACHINE, planner=planner))
    worse = site.submit(3.0, group="search", loss=5)
    better = site.submit(3.0, group="search", loss=1)
    site.wait("Succeeded", better)
    # Who comes to the rung first is paused there, and ended once the other has come.
    assert any(f"stop: Trial{how}" in site.story(worse) for how in ("Ended", "Paused"))
    assert site.story(worse)[-1] == "Cancelled"
    assert site.story(better)[-2:] == THROUGH


@pytest.mark.parametrize("policy", sorted(live_schedulers()))
def test_every_policy_begins_without_jobs(policy: str) -> None:
    """A live site begins empty: what a policy wants to know of its jobs beforehand is not there."""
    blueprint = Blueprint.of(ServeConfig(policy=policy), MACHINE)
    assert blueprint.scheduler().planner is not None
