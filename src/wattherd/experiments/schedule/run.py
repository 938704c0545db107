"""Simulated runs of training-job schedulers: from files and names to measured outcomes."""

from __future__ import annotations

import gc
import math
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.budgets import OFF, CapRules
from wattherd.errors import Bug, UserError
from wattherd.estimate.application import Application
from wattherd.estimate.job_work import by_application
from wattherd.estimate.rates import EnergyRates
from wattherd.experiments.schedule import plugin_policies
from wattherd.experiments.schedule.budget_notes import notes_before
from wattherd.experiments.schedule.power_tree import budget_events
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.simulators import PublishedSimulator
from wattherd.experiments.schedule.summary import level_rows, model_rows, summary
from wattherd.model.event import Event, JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.model.power_tree import PowerTree
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.fair import MaxMin, Nash, Tiers
from wattherd.policy.power.simple import ByPriority, Pause, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.rebalance.sleep import SleepPolicy
from wattherd.sim.branch_meter import BranchMeter
from wattherd.sim.collector import Collector, JobOutcome
from wattherd.sim.interval import JobInterval, Rewinds
from wattherd.sim.liveness import Liveness
from wattherd.sim.machines import SwitchTimes
from wattherd.sim.meter import BillMeter, EnergyMeter
from wattherd.sim.slow_caps import SlowCaps
from wattherd.sim.speed import by_rates
from wattherd.sim.stretches import Stretches
from wattherd.sim.usage import UsageMeter
from wattherd.sim.usage_levels import UseLevels
from wattherd.sim.world import RunRecording, SimWorld, Watcher
from wattherd.spelling import hint_for

POWER_POLICIES: dict[str, Callable[[], PowerPolicy]] = {
    **plugin_policies.power_policies(),
    "water-filling": WaterFilling,
    "tiers": Tiers,
    "nash": Nash,
    "max-min": MaxMin,
    "uniform": Uniform,
    "proportional": Proportional,
    "priority": ByPriority,
    "pause": Pause,
}
Budget = tuple[tuple[float, float], ...]
"""Steps (from this second on, watts), ascending."""


def power_policy(name: str) -> PowerPolicy:
    """A power policy by name."""
    if name not in POWER_POLICIES:
        hint = hint_for(name, POWER_POLICIES)
        raise UserError(f"unknown power policy {name!r}", field="--power", hint=hint)
    return POWER_POLICIES[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSetup:
    """What all policies of one comparison share.

    `tree` holds budgets below the site's, `rules` how caps follow budgets; a cap is in force
    `cap_delay_s` after its order. `faults` are events beside submissions and budgets: lost
    nodes, stopped queues. `gpus` are models of devices by name. Nodes sleep where there is a
    `sleep` policy; `switch` says what that takes. Nothing is simulated beyond `until_s`. Jobs that
    no budget lets run are set aside, and a budget spares who need not go (`CoreConfig`), but in
    runs of the time before that was so. `record` keeps every event and command, `history` what was
    in use when. `rates` are what energy costs and emits, in Unix time; the run begins at `start_s`.
    """

    preset: PublishedSimulator
    given: SchedulerContext
    budget: Budget = ()
    power: str = "water-filling"
    tree: PowerTree | None = None
    rules: CapRules = OFF
    cap_delay_s: float = 0.0
    faults: tuple[Event, ...] = ()
    gpus: Mapping[str, GpuModel] = field(default_factory=lambda: GPUS)
    sleep: SleepPolicy | None = None
    switch: SwitchTimes = field(default_factory=SwitchTimes)
    until_s: float = math.inf
    sets_aside: bool = True
    spares: bool = True
    own_tops: bool = True
    asks_again: bool = True
    plans_first: bool = True
    record: bool = False
    history: bool = False
    rates: EnergyRates | None = None
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One policy's run."""

    policy: str
    row: dict[str, object]
    outcomes: list[JobOutcome]
    unfinished: list[tuple[str, str]]
    """Jobs that were not over at the end, and why they waited or where they stood."""
    meter: EnergyMeter = field(repr=False)
    recording: RunRecording = field(repr=False)
    levels: UseLevels | None = field(default=None, repr=False)
    stretches: Stretches | None = field(default=None, repr=False)


def budget_notes(setting: ComparisonSetup, policy: str) -> list[str]:
    """What is to be said before a run: jobs that its budgets never let run, with numbers."""
    scheduler = setting.preset.scheduler(policy, setting.given)
    return notes_before(Core(core_config(setting, scheduler)), _events(setting, scheduler))


def simulate(setting: ComparisonSetup, policy: str) -> ComparedRun:
    """Run one policy to the end."""
    given, preset = setting.given, setting.preset
    scheduler = preset.scheduler(policy, given)
    core = Core(core_config(setting, scheduler))
    speed_at = by_rates(given.cluster, given.job_rates)
    plant = preset.plant(given.jobs, given.cluster, speed_at, preset.restart_s)
    slow_s = setting.cap_delay_s
    begin_s = min((spec.submit_s for spec in given.jobs.specs), default=0.0)
    meter = EnergyMeter(
        core,
        restart_s=preset.restart_s,
        reaction_s=slow_s,
        boot_j=setting.switch.wake_j,
        begin_s=begin_s,
    )
    collector, usage = Collector(core), UsageMeter(core, given.jobs.specs, begin_s)
    levels, stretches = UseLevels(core, meter, begin_s=begin_s), Stretches(core)
    watchers: list[Watcher] = [meter, collector, usage]
    counting: list[Rewinds] = [meter, usage]
    branches = (
        None if setting.tree is None else BranchMeter(core, reaction_s=slow_s, begin_s=begin_s)
    )
    if branches is not None:
        watchers.append(branches)
        counting.append(branches)
    bill = None if setting.rates is None else BillMeter(meter, setting.rates, setting.start_s)
    if bill is not None:
        watchers.append(bill)
        counting.append(bill)
    if setting.history:
        watchers += [levels, stretches]
        counting.append(levels)
    interval = JobInterval(core, counting)
    watchers += [interval, Liveness(core)]
    world = SimWorld(
        core,
        SlowCaps(plant, slow_s) if slow_s else plant,
        _events(setting, scheduler),
        watchers=watchers,
        record=setting.record,
        computers=scheduler.computers,
        switch=setting.switch,
    )
    began = _user_s()
    with _rare_collections():
        recording = world.run(setting.until_s)
    cpu_s = _user_s() - began
    collector.close()
    interval.close()
    check_conserved(collector, meter, usage)
    outcomes = list(collector.outcomes.values())
    row = summary(policy, outcomes, meter, usage, alone_s=_alone_s(given), cpu_s=cpu_s)
    row |= model_rows(collector.by_model) if len(collector.by_model) > 1 else {}
    row |= level_rows(branches.levels()) if branches else {}
    row |= bill.row() if bill else {}
    return ComparedRun(
        policy=policy,
        row=row,
        outcomes=outcomes,
        unfinished=[(job.id, _standing(job)) for job in core.jobs.values()],
        meter=meter,
        recording=recording,
        levels=levels if setting.history else None,
        stretches=stretches if setting.history else None,
    )


CONSERVED = 1e-6
"""Part by which two accounts of the same joules may differ, for sums of floats."""


def check_conserved(collector: Collector, meter: EnergyMeter, usage: UsageMeter) -> None:
    """Joules of jobs and of idle devices add up to the meter's.

    Each kind has two accounts: held devices by job and by the core's account of watts, idle ones by
    the book of devices and by the account of watts.

    Raises:
        Bug: they differ.
    """
    told = meter.energy_j()
    check_equal(collector.held_j, told["run"] + told["wasted"], "jobs", "the devices they held")
    check_equal(usage.idle_j, meter.free_j, "idle devices by the book", "those of the account")


def check_equal(one_j: float, other_j: float, one: str, other: str) -> None:
    """Hold two accounts of the same joules against each other.

    Raises:
        Bug: they differ, or one of them is no number.
    """
    # The other way round a sum that is no number would pass: NaN is above nothing.
    if not abs(one_j - other_j) <= CONSERVED * max(abs(other_j), 1.0):
        raise Bug(f"{one} drew {one_j:g} J, {other} {other_j:g} J")


def _standing(job: JobRecord) -> str:
    """Why a job is not over."""
    if job.active or job.wanted:
        return str(job.state)
    return str(job.state) if job.reason is None else job.reason.text()


def _user_s() -> float:
    """CPU time that this process has spent on its own work (s)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cyclic garbage a hundred times less often.

    What a simulation lets go of has no cycles and goes at once; looking through all that lives
    takes some hundredths of the time of a run.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _alone_s(given: SchedulerContext) -> dict[str, float]:
    """Seconds that each job takes alone at the width it asks for, where that is known."""
    widest = max(node.gpu_count for node in given.cluster.nodes)
    work = by_application(given.jobs.applications, widest)
    known = ((spec.id, work(spec)) for spec in given.jobs.specs)
    return {job_id: alone_s for job_id, alone_s in known if alone_s}


def core_config(setting: ComparisonSetup, scheduler: BuiltScheduler) -> CoreConfig:
    """A core's configuration, the same for a run and for its replay."""
    return CoreConfig(
        cluster=setting.given.cluster,
        planner=scheduler.planner,
        quota=scheduler.quota,
        round_s=setting.preset.round_s,
        power=power_policy(setting.power),
        curve_of=setting.given.curve_of,
        job_rates=setting.given.job_rates,
        gpus=setting.gpus,
        sleep=setting.sleep,
        tree=setting.tree,
        rules=setting.rules,
        sets_aside=setting.sets_aside,
        spares=setting.spares,
        own_tops=setting.own_tops,
        asks_again=setting.asks_again,
        plans_first=setting.plans_first,
    )


def _events(setting: ComparisonSetup, scheduler: BuiltScheduler) -> list[Event]:
    budgets = budget_events(setting.budget, setting.tree, setting.rules)
    jobs = setting.given.jobs
    specs = [_as_taken(spec, scheduler, jobs.applications) for spec in jobs.specs]
    submitted = (JobSubmitted(at_s=spec.submit_s, job=spec) for spec in specs)
    return [*budgets, *setting.faults, *submitted]


def _as_taken(
    spec: JobSpec, scheduler: BuiltScheduler, applications: Mapping[str, Application]
) -> JobSpec:
    """What this scheduler takes the job for."""
    application = applications.get(spec.profile)
    if scheduler.adapts_batch and application is not None:
        return _at_any_batch(spec, application)
    return _at_full_width(spec) if scheduler.rigid else spec


def _at_any_batch(spec: JobSpec, application: Application) -> JobSpec:
    """The job for a policy that adapts batch sizes, and so can split them further."""
    widest = application.most_replicas if application.pinned_batch is None else spec.max_width
    return replace(spec, batch_size=None, max_width=widest)


def _at_full_width(spec: JobSpec) -> JobSpec:
    """The job for a policy that never resizes: what does not fit whole never fits."""
    if spec.min_width is None and spec.max_width is None:
        return spec
    return replace(spec, min_width=None, max_width=None)
