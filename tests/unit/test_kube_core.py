"""Schedulers of the core on Kubernetes: who starts where, in which order, under which caps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from kube_builders import a_node, a_pod, bound, node_json, pod_json
from kube_core_desk import CoreDesk, GangJob, Line

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.power_curve import prior
from wattherd.experiments.schedule.live import LEARNING
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.kube.facts.core_config import (
    CappedWhereHeld,
    CoreChoice,
    budgets_of_core,
    core_world,
    planned_caps_w,
)
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.node_facts import node_facts
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, SetCap, StartJob, StopJob
from wattherd.model.event import BudgetChanged, Event, JobSubmitted
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.policy.queue.capacity import FadingUse
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.server.kube.core_choice import core_choice, schedulers
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.speed import by_rates
from wattherd.sim.world import SimWorld
from wattherd.testing.builders import a_node as a_machine

TOP_W = GPUS["A100-40GB"].max_w
SCHEDULERS = ("gang", "fifo", "srtf", "tiresias", "drf", "capacity", "hived", "priority")


def machines(count: int, gpus: int = 2, model: str = "A100-40GB") -> list[NodeSpec]:
    return [a_machine(f"n{at}", gpus=gpus, model=model) for at in range(count)]


class Story:
    """What a simulation starts and stops."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self.nodes = nodes
        self.lines: list[Line] = []
        self.caps_w: dict[tuple[float, str], float] = {}

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, StartJob | SetCap):
                cap_w = TOP_W if command.cap_w is None else command.cap_w
                self.caps_w[event.at_s, command.job_id] = cap_w
            if isinstance(command, StopJob):
                self.lines.append((event.at_s, "stop", command.job_id, ()))
            elif isinstance(command, StartJob):
                places = tuple(
                    (self.nodes[one.node].name, one.gpus[at : at + len(one.gpus) // one.tasks])
                    for one in command.allocations
                    for at in range(0, len(one.gpus), len(one.gpus) // one.tasks)
                )
                self.lines.append((event.at_s, "start", command.job_id, tuple(sorted(places))))


def simulated(
    nodes: Sequence[NodeSpec],
    choice: CoreChoice,
    jobs: Sequence[GangJob],
    budgets_w: Mapping[float, float],
    queues: QueueTree | None,
) -> Story:
    cluster = ClusterSpec(tuple(nodes))
    planner, quota = choice.build(cluster, queues, FadingUse())
    power = choice.power()
    core = Core(CoreConfig(cluster=cluster, planner=planner, quota=quota, round_s=0.0, power=power))
    story = Story(nodes)
    events: list[Event] = [
        BudgetChanged(at_s=at_s, budget_w=budget_w) for at_s, budget_w in budgets_w.items()
    ]
    for job in jobs:
        cpu = 1000 * job.gpus
        role = TaskRole(name="pod", count=job.pods, cpu_milli=cpu, gpu_count=job.gpus)
        spec = JobSpec(
            id=job.name,
            submit_s=job.at_s,
            roles=(role,),
            duration_s=job.duration_s,
            priority=job.priority,
            queue=job.queue,
            user=job.user,
            tenant=job.user,
        )
        events.append(JobSubmitted(at_s=job.at_s, job=spec))
    plant = DurationPlant(speed_at=by_rates(cluster, JobRates(curve_of=prior)))
    SimWorld(core, plant, events, watchers=[story], record=False).run()
    return story


def jobs_of_two_teams() -> list[GangJob]:
    """Gangs of one to four GPUs, of two users and queues, none of them at the same time."""
    sizes = [(1, 2), (2, 1), (1, 1), (2, 2), (4, 1), (1, 1), (1, 2), (3, 1), (1, 1), (2, 1)]
    lengths = [311, 97, 41, 523, 173, 29, 89, 61, 211, 47]
    return [
        GangJob(
            name=f"job-{at}",
            at_s=391.0 * at + 1,
            duration_s=30.0 * lengths[at],
            pods=pods,
            gpus=gpus,
            priority=(at * 7) % 3,
            queue="red" if at % 3 else "blue",
            user="ann" if at % 2 else "bob",
        )
        for at, (pods, gpus) in enumerate(sizes)
    ]


def two_queues() -> QueueTree:
    halves = [
        CapacityQueue(name=name, guaranteed_pct=50, user_limit_factor=2) for name in ("blue", "red")
    ]
    return QueueTree(CapacityQueue(name="root", children=tuple(halves)))


def told_alike(one: Sequence[Line], other: Sequence[Line]) -> None:
    """Times may differ by what adding up in another order makes of them."""
    assert [line[1:] for line in one] == [line[1:] for line in other]
    assert [line[0] for line in one] == pytest.approx([line[0] for line in other], abs=1e-3)


def caps_by_job(
    caps_w: Mapping[tuple[float, str], float], story: Sequence[Line]
) -> dict[str, list[float]]:
    """One after the other, by job; what a run is told in the instant in which it stops is void."""
    stops = {(at_s, name) for at_s, what, name, _ in story if what == "stop"}
    found: dict[str, list[float]] = {}
    for (at_s, name), cap_w in caps_w.items():
        if (at_s, name) in stops:
            continue
        line = found.setdefault(name, [])
        if not line or line[-1] != cap_w:
            line.append(cap_w)
    return found


def test_srtf_stops_the_long_job_for_the_short_one_and_runs_it_on_afterwards() -> None:
    desk = CoreDesk(machines(1), core_choice("srtf"))
    story = desk.play(
        [
            GangJob(name="long", at_s=0, duration_s=100, pods=2),
            GangJob(name="short", at_s=10, duration_s=7),
        ]
    )
    assert [line[:3] for line in story] == [
        (0, "start", "long"),
        (10, "stop", "long"),
        (10, "start", "short"),
        (17, "start", "long"),
    ]
    assert desk.now_s == 107


@pytest.mark.parametrize("cut", [False, True], ids=["ample", "cut"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_pods_start_and_stop_as_the_same_jobs_do_in_the_simulator(
    scheduler: str, cut: bool
) -> None:
    nodes, choice = machines(4), core_choice(scheduler)
    budgets_w = {0.5: 3200.0, 2250.5: 1500.0, 4000.5: 550.0, 9000.5: 2600.0}
    if not cut:
        budgets_w = {0.5: 20_000.0}
    queues = two_queues() if scheduler in ("capacity", "hived") else None
    desk = CoreDesk(nodes, choice, queues=queues)
    played = desk.play(jobs_of_two_teams(), budgets_w)
    expected = simulated(nodes, choice, jobs_of_two_teams(), budgets_w, queues)
    told_alike(played, expected.lines)
    assert caps_by_job(desk.capped_w, played) == caps_by_job(expected.caps_w, expected.lines)


@pytest.mark.parametrize("scheduler", sorted({*schedulers()} - {*SCHEDULERS, *LEARNING}))
def test_so_do_pods_under_every_other_scheduler(scheduler: str) -> None:
    nodes, choice, budgets_w = machines(3), core_choice(scheduler), {0.5: 900.0}
    jobs = jobs_of_two_teams()[:6]
    played = CoreDesk(nodes, choice).play(jobs, budgets_w)
    told_alike(played, simulated(nodes, choice, jobs, budgets_w, None).lines)
    assert {line[2] for line in played} == {job.name for job in jobs}


@pytest.mark.parametrize("power", sorted(POWER_POLICIES))
def test_every_power_policy_gives_pods_the_caps_that_it_gives_in_the_simulator(power: str) -> None:
    nodes, choice = machines(4), core_choice("priority", power)
    budgets_w = {0.5: 3200.0, 2250.5: 1500.0, 4000.5: 950.0, 9000.5: 2600.0}
    desk = CoreDesk(nodes, choice)
    played = desk.play(jobs_of_two_teams(), budgets_w)
    expected = simulated(nodes, choice, jobs_of_two_teams(), budgets_w, None)
    told_alike(played, expected.lines)
    assert caps_by_job(desk.capped_w, played) == caps_by_job(expected.caps_w, expected.lines)


def test_a_job_starts_because_others_were_capped_by_a_little() -> None:
    """Three GPUs of 400 W and an idle one of 50 W draw 1,250 W uncapped; 1,150 W are allowed."""
    desk = CoreDesk(machines(2), core_choice("fifo"))
    jobs = [GangJob(name=f"j{at}", at_s=10.0 * at, duration_s=1000) for at in range(3)]
    story = desk.play(jobs, {0.5: 1150.0})
    assert [line[:3] for line in story] == [(10.0 * at, "start", f"j{at}") for at in range(3)]
    caps_w = [desk.capped_w[20.0, f"j{at}"] for at in range(3)]
    assert 1095.0 <= sum(caps_w) <= 1100.0
    assert min(caps_w) >= 0.9 * TOP_W


@pytest.mark.parametrize("model", sorted(GPUS))
def test_caps_that_the_core_counts_on_count_for_the_backstop_as_well(model: str) -> None:
    """Of some models nobody has published how low they can be capped, and no agent says so."""
    curve, idle_w = prior(JobSpec(id="any", submit_s=0.0), model), GPUS[model].idle_w
    desk = CoreDesk(machines(2, model=model), core_choice("fifo"))
    jobs = [GangJob(name=f"j{at}", at_s=60.0 * at, duration_s=1000) for at in range(4)]
    story = desk.play(
        jobs, {0.5: 0.5 * (3 * curve.floor_w + 3 * curve.max_w) + idle_w + curve.floor_w}
    )
    assert [line[1] for line in story] == ["start"] * 4
    assert [line[0] for line in story[:3]] == [0.0, 60.0, 120.0]


def test_without_agents_jobs_wait_for_watts_instead() -> None:
    desk = CoreDesk(machines(2), core_choice("fifo"), agents=False)
    jobs = [GangJob(name=f"j{at}", at_s=10.0 * at, duration_s=1000) for at in range(3)]
    story = desk.play(jobs, {0.5: 1150.0})
    assert [line[:3] for line in story] == [
        (0, "start", "j0"),
        (10, "start", "j1"),
        (1000, "start", "j2"),
    ]
    assert "wattherd.dev/cap-w" not in str(desk.pods)


def test_a_lower_cap_counts_when_it_was_read_back_and_not_before() -> None:
    """The agent is slow: who was promised its watts starts when it has answered."""
    desk = CoreDesk(machines(2), core_choice("fifo"), answers=False)
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 900_000})
    for at, name in enumerate(("first", "second")):
        desk.now_s = 10.0 * at
        desk.submit(GangJob(name=name, at_s=desk.now_s, duration_s=1000))
        desk.settle()
        desk.answer()
        desk.settle()
    assert [line[2] for line in desk.story] == ["first", "second"]
    desk.now_s = 20.0
    desk.submit(GangJob(name="third", at_s=20.0, duration_s=1000))
    desk.settle()
    assert [line[2] for line in desk.story] == ["first", "second"]
    (told,) = [told for uid, told in desk.told.items() if "third" in uid]
    assert told.reason == "WaitingForPower"
    assert told.text == "its place is kept; 2 jobs must first be seen to draw less"
    desk.now_s = 30.0
    desk.answer()
    desk.settle()
    assert desk.story[-1][:3] == (30.0, "start", "third")


@pytest.mark.parametrize("keep", ["taint", "cordon", "selector"])
@pytest.mark.parametrize("scheduler", ["srtf", "gang", "hived"])
def test_pods_go_only_where_kubernetes_lets_them(scheduler: str, keep: str) -> None:
    desk = CoreDesk(machines(2), core_choice(scheduler))
    made = desk.nodes["n0"]
    if keep == "taint":
        made["spec"]["taints"] = [{"key": "own", "effect": "NoSchedule"}]
    elif keep == "cordon":
        made["spec"]["unschedulable"] = True
    else:
        made["metadata"]["labels"]["pool"] = "other"
        desk.nodes["n1"]["metadata"]["labels"]["pool"] = "mine"
        desk.selector = {"pool": "mine"}
    for node in desk.nodes.values():
        desk.scheduler.node_seen(a_node(node))
    jobs = [GangJob(name=f"j{at}", at_s=10.0 * at, duration_s=100) for at in range(3)]
    story = desk.play(jobs)
    assert {node for line in story for node, _ in line[3]} == {"n1"}
    assert [line[:3] for line in story][-1] == (100, "start", "j2")


def test_a_node_that_is_uncordoned_is_used_at_once() -> None:
    desk = CoreDesk(machines(1), core_choice("srtf"))
    made = desk.nodes["n0"]
    made["spec"]["unschedulable"] = True
    desk.scheduler.node_seen(a_node(made))
    desk.submit(GangJob(name="j", at_s=0, duration_s=10))
    desk.settle()
    assert not desk.story
    [told] = desk.told.values()
    assert "the node is cordoned" in told.text
    made["spec"]["unschedulable"] = False
    desk.scheduler.node_seen(a_node(made))
    desk.settle()
    assert [line[2] for line in desk.story] == ["j"]


def test_pods_of_others_keep_their_gpus_and_are_nobodys_to_move() -> None:
    desk = CoreDesk(machines(1), core_choice("srtf"))
    foreign = pod_json("foreign", Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    desk.scheduler.pod_seen(a_pod(bound(foreign, "n0")), 0.0)
    story = desk.play([GangJob(name="one", at_s=1, duration_s=7)])
    assert story == [(1.0, "start", "one", (("n0", (1,)),))]
    desk.submit(GangJob(name="pair", at_s=9, duration_s=5, pods=2))
    desk.settle()
    assert len(desk.story) == 1


def test_pods_of_others_stay_nobodys_when_nodes_change() -> None:
    """Masks are others then, and the scheduler is told of all jobs anew; but not of these."""
    desk = CoreDesk(machines(1), core_choice("srtf"))
    foreign = pod_json("foreign", Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    desk.scheduler.pod_seen(a_pod(bound(foreign, "n0")), 0.0)
    desk.settle()
    desk.nodes["n0"]["metadata"]["labels"]["new"] = "label"
    desk.scheduler.node_seen(a_node(desk.nodes["n0"]))
    desk.submit(GangJob(name="pair", at_s=9, duration_s=5, pods=2))
    desk.settle()
    core = desk.scheduler.core
    assert core is not None
    assert [str(job.state) for job in core.jobs.values()] == ["Running", "Queued"]
    assert not desk.story


def test_budgets_of_power_domains_hold_each_for_its_nodes() -> None:
    desk = CoreDesk(machines(2), core_choice("fifo"))
    for name, rack in (("n0", "a"), ("n1", "b")):
        desk.nodes[name]["metadata"]["labels"]["wattherd.dev/power-domain"] = rack
        desk.scheduler.node_seen(a_node(desk.nodes[name]))
    # Idle, each rack draws 100 W; a GPU at its lowest cap adds 50 W.
    tree = desk.scheduler.domains.tree
    desk.scheduler.power_seen(tree, {"": 2_000_000, "a": 120_000, "b": 600_000})
    story = desk.play([GangJob(name=f"j{at}", at_s=float(at), duration_s=90) for at in range(3)])
    assert {node for line in story for node, _ in line[3]} == {"n1"}
    assert [line[:3] for line in story][:2] == [(0, "start", "j0"), (1, "start", "j1")]
    assert 598.0 <= desk.capped_w[1.0, "j0"] + desk.capped_w[1.0, "j1"] <= 600.0


def test_a_domain_that_feeds_every_gpu_is_the_site_to_the_core() -> None:
    """Site > campus > hall > rack: the least of three budgets is the site's, the rack's its own."""
    above = {"campus": "", "hall": "campus", "rack": "hall"}
    tree = DomainTree({name: DomainBranch(parent) for name, parent in above.items()})
    fed = {"n0": "rack", "n1": "hall", "cpu": ""}
    specs = {name: a_machine(name, gpus=0 if name == "cpu" else 2, model="T4") for name in fed}
    nodes = [
        replace(node_facts(a_node(node_json(specs[name]))), domain=domain)
        for name, domain in fed.items()
    ]
    world = core_world(nodes, tree)
    assert world.common == {"campus", "hall"}
    assert world.tree is not None
    assert [(one.name, one.nodes) for one in world.tree.domains[1:]] == [("rack", ("n0",))]
    assert set(world.tree.root.nodes) == {"n1", "cpu"}
    given_mw = {"": 9, "campus": 8, "hall": 7, "rack": 6}
    assert budgets_of_core(given_mw, world.common) == {"": 7, "rack": 6}


def test_caps_that_nobody_keeps_end_in_an_eviction() -> None:
    """The agents never answer: after a while the newest pod goes."""
    desk = CoreDesk(machines(1), core_choice("fifo"), answers=False)
    for name in ("first", "later"):
        desk.submit(GangJob(name=name, at_s=0, duration_s=1000))
        desk.settle()
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 600_000})
    desk.settle()
    assert [line[1] for line in desk.story] == ["start", "start"]
    for desk.now_s in (10.0, 50.0):
        for order in desk.scheduler.curb_orders(desk.now_s):
            desk._obey(order)
        desk.settle()
    assert desk.story[-1][1:3] == ("stop", "later")


def cut_to(desk: CoreDesk, budget_w: int) -> list[tuple[str, str]]:
    """What is started and stopped for it."""
    before = len(desk.story)
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 1000 * budget_w})
    desk.settle()
    return [line[1:3] for line in desk.story[before:]]


FOUND_IN_OTHER_ORDER = (
    GangJob(name="young", at_s=0, duration_s=1000, made="2026-01-01T10:00:05Z"),
    GangJob(name="old", at_s=0, duration_s=1000, made="2026-01-01T10:00:00Z"),
)


def test_a_cut_stops_who_was_made_last_though_it_was_seen_first() -> None:
    """Uncapped, each job draws 400 W; an idle GPU 50 W."""
    desk = CoreDesk(machines(1), core_choice(), agents=False)
    for job in FOUND_IN_OTHER_ORDER:
        desk.submit(job)
        desk.settle()
    assert [line[1] for line in desk.story] == ["start", "start"]
    assert cut_to(desk, 600) == [("stop", "young")]


def test_a_job_that_was_stopped_is_as_old_as_it_was_with_its_new_pods() -> None:
    desk = CoreDesk(machines(1), core_choice(), agents=False)
    for job in FOUND_IN_OTHER_ORDER:
        desk.submit(job)
        desk.settle()
    runs = desk._runs
    runs["old"].job = replace(runs["old"].job, made="2026-01-01T11:00:00Z")
    runs["young"].job = replace(runs["young"].job, made="2026-01-01T10:30:00Z")
    assert sorted(cut_to(desk, 120)) == [("stop", "old"), ("stop", "young")]
    assert sorted(cut_to(desk, 2000)) == [("start", "old"), ("start", "young")]
    assert cut_to(desk, 600) == [("stop", "young")]


def test_a_gang_is_as_old_as_it_was_after_a_change_of_nodes_too() -> None:
    """Another core takes over then: all that is seated is handed in anew."""
    desk = CoreDesk(machines(1, gpus=4), core_choice(), agents=False)
    for job in FOUND_IN_OTHER_ORDER:
        desk.submit(replace(job, pods=2))
        desk.settle()
    runs = desk._runs
    runs["old"].job = replace(runs["old"].job, made="2026-01-01T11:00:00Z")
    runs["young"].job = replace(runs["young"].job, made="2026-01-01T10:30:00Z")
    assert sorted(cut_to(desk, 240)) == [("stop", "old"), ("stop", "young")]
    assert sorted(cut_to(desk, 2000)) == [("start", "old"), ("start", "young")]
    before = desk.scheduler.core
    more = node_json(replace(machines(1, gpus=4)[0], name="one-more"))
    desk.scheduler.node_seen(a_node(more))
    desk.settle()
    assert desk.scheduler.core is not before
    assert cut_to(desk, 1300) == [("stop", "young")]


def test_of_pods_made_in_one_second_the_one_that_was_seen_last_is_stopped() -> None:
    desk = CoreDesk(machines(1), core_choice(), agents=False)
    for job in FOUND_IN_OTHER_ORDER:
        desk.submit(replace(job, made="2026-01-01T10:00:00Z"))
        desk.settle()
    assert cut_to(desk, 600) == [("stop", "old")]


@pytest.mark.parametrize(("budget_w", "kept"), [(2000, False), (600, True)])
def test_caps_of_a_leader_before_are_lifted_where_there_are_watts_and_only_there(
    budget_w: int, kept: bool
) -> None:
    desk = CoreDesk(machines(1), core_choice())
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 600_000})
    for name in ("a", "b"):
        desk.submit(GangJob(name=name, at_s=0, duration_s=1000))
        desk.settle()
    assert desk.caps_w.keys() == desk.pods.keys()
    desk.scheduler = CoreDesk(machines(1), core_choice()).scheduler
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 1000 * budget_w})
    for made in desk.pods.values():
        desk.scheduler.pod_seen(a_pod(made), 0.0)
    desk.settle()
    assert len(desk.caps_w) == (2 if kept else 0)


def test_a_new_node_changes_nothing_that_runs_nor_what_jobs_have_received() -> None:
    """A core of another cluster takes over: two jobs have had 100 s each, the first is through."""
    desk = CoreDesk(machines(1, gpus=1), core_choice("srtf"))
    desk.submit(GangJob(name="old", at_s=0, duration_s=100))
    desk.settle()
    desk.now_s = 90.0
    desk.scheduler.node_seen(a_node(node_json(a_machine("n1", gpus=0))))
    desk.settle()
    desk.submit(GangJob(name="new", at_s=90, duration_s=20))
    desk.settle()
    assert [line[1:3] for line in desk.story] == [("start", "old")]


def test_a_device_that_takes_lower_caps_than_its_curve_tells_is_brought_down_to_them() -> None:
    curves = CappedWhereHeld(prior, {"T4": 40.0}, lambda job_id: True)
    job = JobSpec(id="any", submit_s=0.0)
    known, found = prior(job, "T4"), curves(job, "T4")
    idle_w = GPUS["T4"].idle_w
    assert (known.floor_w, found.floor_w) == (60.0, 40.0)
    assert found.rate(40.0) == pytest.approx(known.rate(60.0) * (40.0 - idle_w) / (60.0 - idle_w))
    assert (found.rate(60.0), found.rate(70.0)) == (known.rate(60.0), known.rate(70.0))
    assert planned_caps_w({"T4": 40.0}, prior) == {"T4": 40.0}
    assert planned_caps_w({"T4": 0.0}, prior) == {"T4": 60.0}, "no agent has said"
    assert planned_caps_w({"T4": 65.0}, prior) == {"T4": 65.0}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheduler", ["", "gang", "srtf"])
def test_a_node_that_others_over_commit_takes_nobody_until_it_has_room(
    scheduler: str, seed: int
) -> None:
    """Those of another scheduler leave one by one, in any order, at once or not."""
    draws = random.Random(seed)
    desk = CoreDesk(machines(1, gpus=8, model="T4"), core_choice(scheduler), agents=False)
    if draws.random() < 0.5:
        desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 2_000_000})
    left = 0
    asks: dict[str, int] = {}
    while left <= 8 or draws.random() < 0.5:
        name = f"foreign-{len(asks)}"
        asks[name] = draws.choice((1, 1, 2))
        left += asks[name]
        ask = Request(cpu_milli=100, gpu_count=asks[name], gpu_milli=1000)
        desk.scheduler.pod_seen(a_pod(bound(pod_json(name, ask), "n0")), 0.0)
        desk.settle()
    desk.submit(GangJob(name="ours", at_s=1, duration_s=5))
    desk.settle()
    while left >= 8:
        assert not desk.story
        name = draws.choice(list(asks))
        left -= asks.pop(name)
        desk.scheduler.pod_gone(f"uid-{name}")
        if left < 8 or draws.random() < 0.7:
            desk.settle()
    assert [line[1:3] for line in desk.story] == [("start", "ours")]


def _with_dead_agents(nodes: int, jobs: int, scheduler: str = "fifo") -> CoreDesk:
    """Two of the jobs have watts to run without caps."""
    desk = CoreDesk(machines(nodes), core_choice(scheduler), answers=False)
    idle_mw = nodes * 100_000
    desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": idle_mw + 2 * 350_000})
    for number in range(jobs):
        desk.submit(GangJob(name=f"j{number}", at_s=0, duration_s=10_000))
    desk.settle()
    return desk


def _pass(desk: CoreDesk, until_s: float) -> None:
    while desk.now_s < until_s:
        desk.now_s += 5.0
        for order in desk.scheduler.curb_orders(desk.now_s):
            desk._obey(order)
        if desk.scheduler._caps.is_late(desk.now_s) or desk.scheduler._dirty:
            desk.settle()


@pytest.mark.parametrize("scheduler", ["", "gang", "fifo"])
def test_where_agents_are_dead_nothing_starts_again_under_caps_that_nobody_sets(
    scheduler: str,
) -> None:
    """Eight fit at low caps, two without: six are stopped, and stay so."""
    desk = _with_dead_agents(nodes=4, jobs=8, scheduler=scheduler)
    assert len(desk.story) == 8
    _pass(desk, 600.0)
    stops = [line for line in desk.story[8:] if line[1] == "stop"]
    assert len(stops) == len(desk.story) - 8 == 6
    assert max(line[0] for line in stops) <= 50.0
    assert any("agent sets no caps" in told.text for told in desk.told.values())
    for uid in [uid for uid, made in desk.pods.items() if made["spec"].get("nodeName")]:
        desk._gone(uid)
    _pass(desk, 610.0)
    assert len(desk.story) == 14
    _pass(desk, 1300.0)
    assert "start" in [line[1] for line in desk.story[14:]], "tried again, as nothing is asked"


def test_a_node_whose_agent_answers_late_is_open_again_at_once() -> None:
    desk = _with_dead_agents(nodes=2, jobs=3)
    _pass(desk, 30.0)
    assert set(desk.scheduler._closed) == {"n0", "n1"}
    desk.submit(GangJob(name="later", at_s=30, duration_s=10_000))
    desk.settle()
    assert len(desk.story) == 3
    desk.answers = True
    desk.answer()
    desk.settle()
    assert not desk.scheduler._closed
    assert [line[1:3] for line in desk.story[3:]] == [("start", "later")]


def test_an_agent_that_does_not_answer_closes_its_own_node_only() -> None:
    desk = _with_dead_agents(nodes=2, jobs=4)
    on_n1 = {uid for uid, made in desk.pods.items() if made["spec"].get("nodeName") == "n1"}
    assert len(on_n1) == 2
    for _ in range(7):
        desk.now_s += 5.0
        for uid in on_n1 & desk._unheard.keys():
            desk._hold(uid, desk._unheard.pop(uid))
        for order in desk.scheduler.curb_orders(desk.now_s):
            desk._obey(order)
        desk.settle()
    assert set(desk.scheduler._closed) == {"n0"}
