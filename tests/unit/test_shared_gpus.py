"""Two jobs on one GPU: what the guard allows, and what power and energy count."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.engine.power.domain_loads import SharedDevices
from wattherd.model.command import SetCap, StartJob
from wattherd.model.event import BudgetChanged, CapApplied, JobExited, JobStarted, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.reason import Reason, StopReason
from wattherd.policy.contract import Draft, Share, View
from wattherd.sim.collector import Collector
from wattherd.sim.meter import EnergyMeter
from wattherd.testing.timed_world import Story, t4_nodes, timed

T4_MIB = 15_109
SMALL = (TaskRole(gpu_memory_mib=5_000),)


@dataclass
class Packed:
    """Every job on GPU 0 of node 0, with the part that the test gives it."""

    parts: dict[str, int | None]
    answers: dict[str, Reason | None] = field(default_factory=dict)

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if not job.wanted and job.id not in self.answers:
                share = Share(0, 1, gpus=(0,), gpu_milli=self.parts[job.id])
                self.answers[job.id] = draft.start(job, [share])


def spec(name: str, memory_mib: int | None = 5_000) -> JobSpec:
    return timed(name, roles=(TaskRole(gpu_memory_mib=memory_mib),))


def core_of(planner: Packed, *gpus: int) -> Core:
    return Core(CoreConfig(cluster=t4_nodes(*gpus), planner=planner))


def run(core: Core, *names: str) -> list[object]:
    commands: list[object] = []
    for name in names:
        commands += core.handle(JobSubmitted(at_s=0.0, job=spec(name)))
        commands += core.handle(JobStarted(at_s=0.0, job_id=name, attempt=1))
        validate(core)
    return commands


def test_two_jobs_share_a_gpu_by_parts_of_its_memory() -> None:
    core = core_of(Packed({"a": 400, "b": 600}), 1)
    started = [c for c in run(core, "a", "b") if isinstance(c, StartJob)]
    assert [order.allocations[0].gpus for order in started] == [(0,), (0,)]
    assert core.held.gpu_free(0) == [0]


@pytest.mark.parametrize(
    ("part", "memory_mib", "says"),
    [
        (300, 5_000, f"asked 5000 MiB of GPU, available {T4_MIB * 300 // 1000}"),
        (400, None, f"asked {T4_MIB} MiB of GPU"),
        (1_001, 5_000, "milli-GPU per GPU"),
        (0, 5_000, "milli-GPU per GPU"),
    ],
)
def test_no_part_that_is_too_small_for_a_job(part: int, memory_mib: int | None, says: str) -> None:
    planner = Packed({"a": part})
    core_of(planner, 1).handle(JobSubmitted(at_s=0.0, job=spec("a", memory_mib)))
    answer = planner.answers["a"]
    assert answer is not None
    assert says in answer.text()


def test_parts_of_one_gpu_add_up_to_the_gpu_at_most() -> None:
    planner = Packed({"a": 600, "b": 401})
    core = core_of(planner, 1)
    run(core, "a", "b")
    assert planner.answers["b"] is not None
    assert core.held.gpu_free(0) == [400]


def test_a_shared_gpu_draws_and_idles_once() -> None:
    core = core_of(Packed({"a": 400, "b": 400}), 2)
    run(core, "a")
    alone = core.watts.run_w, core.watts.free_w
    run(core, "b")
    assert (core.watts.run_w, core.watts.free_w) == alone == (70.0, 10.0)
    assert core.watts.held_w("a") == core.watts.held_w("b") == 35.0
    core.handle(JobExited(at_s=5.0, job_id="a", attempt=1))
    assert (core.watts.run_w, core.watts.held_w("b")) == (70.0, 70.0)


def test_joules_of_two_jobs_on_one_gpu() -> None:
    """10 s alone at 70 W, 10 s together, 10 s alone; the meter sees 30 s of 70 W."""
    core = core_of(Packed({"a": 400, "b": 400}), 1)
    meter, collector = EnergyMeter(core), Collector(core)
    events = [
        JobSubmitted(at_s=0.0, job=spec("a")),
        JobStarted(at_s=0.0, job_id="a", attempt=1),
        JobSubmitted(at_s=10.0, job=spec("b")),
        JobStarted(at_s=10.0, job_id="b", attempt=1),
        JobExited(at_s=20.0, job_id="a", attempt=1),
        JobExited(at_s=30.0, job_id="b", attempt=1),
    ]
    for event in events:
        meter.until(event.at_s)
        commands = core.handle(event)
        meter.after(event, commands)
        collector.after(event, commands)
    assert meter.energy_j() == {"run": 2100.0, "idle": 0.0, "wake": 0.0, "wasted": 0.0}
    assert [collector.outcomes[name].energy_j for name in "ab"] == [1050.0, 1050.0]


def test_a_budget_for_one_gpu_is_enough_for_two_jobs_on_it() -> None:
    planner = Packed({"a": 400, "b": 400})
    core = core_of(planner, 1)
    core.handle(BudgetChanged(at_s=0.0, budget_w=65.0))
    orders = run(core, "a", "b")
    assert planner.answers == {"a": None, "b": None}
    assert [order.cap_w for order in orders if isinstance(order, StartJob)] == [65.0, 65.0]
    assert core.watts.run_w == 65.0
    lower = core.handle(BudgetChanged(at_s=1.0, budget_w=60.0))
    caps = [one for one in lower if isinstance(one, SetCap)]
    assert {(one.job_id, one.cap_w) for one in caps} == {("a", 60.0), ("b", 60.0)}
    core.handle(CapApplied(at_s=1.0, job_id="a", attempt=1, cap_w=60.0))
    assert core.watts.run_w == 65.0  # the other's cap may still be in force
    core.handle(CapApplied(at_s=1.0, job_id="b", attempt=1, cap_w=60.0))
    assert core.watts.run_w == 60.0


NAMES = st.sampled_from("abcd")
DEVICES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), unique=True, max_size=3)
IDLE_MW = (10, 20)


@given(st.lists(st.tuples(NAMES, DEVICES, st.integers(10, 99)), max_size=30))
def test_shared_devices_add_up_whatever_the_order(steps: list[tuple[str, list, int]]) -> None:
    shared, plain = SharedDevices(IDLE_MW), dict[str, tuple[list, int]]()
    for name, devices, mw in steps:
        before = shared.above_idle_mw - shared.held_rise_mw(name)
        assert shared.above_idle_mw - before == shared.held_rise_mw(name)
        rise_mw = shared.rise_mw(name, devices, mw)
        shared.put(name, devices, mw)
        plain[name] = devices, mw
        assert shared.above_idle_mw == before + rise_mw
        used = {device for devices, _ in plain.values() for device in devices}
        top = {d: max(m for ds, m in plain.values() if d in ds) for d in used}
        assert shared.idle_mw == sum(IDLE_MW[node] for node, _ in used)
        assert shared.above_idle_mw == sum(max(top[d] - IDLE_MW[d[0]], 0) for d in used)
        total = shared.idle_mw + shared.above_idle_mw
        assert math.isclose(sum(map(shared.part_mw, plain)), total)
        owned = [device for one in plain for device in shared.owned(one)]
        assert sorted(owned) == sorted(used)


# --- trials that a scheduler ends -------------------------------------------------------------


@dataclass
class Ends:
    """Runs everything one after the other, and ends what it is told to at the next plan."""

    names: tuple[str, ...]
    answers: dict[str, Reason | None] = field(default_factory=dict)

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if job.id in self.names and view.now_s >= 10.0:
                self.answers[job.id] = draft.end(job, StopReason.TRIAL_ENDED)
                assert self.answers[job.id] is not None or draft.start(job, [Share(0, 1)])
            elif not job.wanted:
                draft.start(job, [Share(0, 1)])
        draft.wake_at(10.0) if view.now_s < 10.0 else None


def test_a_trial_is_ended_for_good_running_or_waiting() -> None:
    planner = Ends(("a", "b"))
    jobs = [timed(name, group="g") for name in "abc"]
    story = Story(planner, t4_nodes(1), jobs)
    assert planner.answers == {"a": None, "b": None}
    assert {name: str(state) for name, state in story.core.finished.items()} == {
        "a": "Cancelled",
        "b": "Cancelled",
        "c": "Succeeded",
    }
    assert story.stops("a") == [10.0]
    assert story.starts("c") == [10.0]


def test_no_scheduler_ends_what_is_no_trial() -> None:
    planner = Ends(("a",))
    story = Story(planner, t4_nodes(1), [timed("a")])
    answer = planner.answers["a"]
    assert answer is not None
    assert "only trials" in answer.text()
    assert str(story.core.finished["a"]) == "Succeeded"
