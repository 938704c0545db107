"""Settings of published simulators: round length, restart pause, job model, planners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from wattherd.engine.core.executor import Plant
from wattherd.errors import UserError
from wattherd.estimate.curve_judge import CurveJudge
from wattherd.estimate.job_work import EVERY_EVENT, by_application, constant, stretched
from wattherd.estimate.locality import Locality
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.experiments.schedule import plugin_policies
from wattherd.experiments.schedule.ordered import (
    OrderedTerms,
    by_speed,
    in_turn,
    ordered,
    preemptive,
)
from wattherd.experiments.schedule.ps_mix import PLANNERS, taught_judge
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    SchedulerContext,
    SchedulerOf,
    plain,
)
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.jit import HAVE_JIT
from wattherd.model.cluster import ClusterSpec
from wattherd.model.topology import Chain, topology_of
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.gang import Gang
from wattherd.policy.schedule.gavel import ROUND_S, Gavel
from wattherd.policy.schedule.gavel_goals import FIFO
from wattherd.policy.schedule.gavel_lp import GOALS, KIND, solver
from wattherd.policy.schedule.gavel_solvers import best_solver
from wattherd.policy.schedule.hived import HiveD, Shares, everything_for, promised_shares
from wattherd.policy.schedule.job_progress import StatedProgress
from wattherd.policy.schedule.node_choice import CountTrial, anywhere, spread, yarn
from wattherd.policy.schedule.optimus import Optimus
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.packings import yarn_trial
from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import searchers
from wattherd.policy.schedule.priorities import Fifo, LeastAttained, Smallest
from wattherd.policy.schedule.progress_per_watt import ProgressPerWatt
from wattherd.policy.schedule.tiresias import Tiresias
from wattherd.sim.application_plant import RESTART_S, SLICE_S, ApplicationPlant
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.event_charged_plant import EventChargedPlant
from wattherd.sim.gavel_plant import GavelPlant
from wattherd.sim.ps_plant import RESTART_S as PS_RESTART_S
from wattherd.sim.ps_plant import Overheads, PsPlant
from wattherd.sim.speed import SpeedAt
from wattherd.sim.surroundings import Surroundings
from wattherd.spelling import hint_for
from wattherd.workload.ps_jobs import PsMix, PsWorkload
from wattherd.workload.ps_profile import beliefs

# --- Schedulers that run on any workload, by the names users know.


def _capacity(given: SchedulerContext) -> BuiltScheduler:
    tree = given.tree()
    planner = CapacityScheduler(tree=tree, reclaim=given.reclaim, lately=given.lately)
    return BuiltScheduler(planner=planner, quota=tree, rigid=True)


def _hived(given: SchedulerContext) -> BuiltScheduler:
    cells = given.cells
    chains = cells.chains(given.cluster)
    shares = cells.shares if cells.shares is not None else _shares(given, chains)
    hived = HiveD(chains=chains, shares=shares, pins=cells.pinned)
    return BuiltScheduler(planner=hived, quota=hived, rigid=True)


def _shares(given: SchedulerContext, chains: list[Chain]) -> Shares:
    """What stated queues are promised, cells that are pinned left out; else equal parts."""
    if given.queues is None or given.equal_cells or given.cells.pinned:
        return _equal_shares(given, chains)
    return promised_shares(given.queues, chains)


def _equal_shares(given: SchedulerContext, chains: list[Chain]) -> Shares:
    """Every queue is a virtual cluster with an equal number of the largest cells of each chain."""
    if given.cells.pinned:
        hint = "say in the scenario which cells the others have"
        raise UserError("pinned cells leave no equal parts", field="cells.shares", hint=hint)
    names = given.queue_names
    if len(names) == 1:
        return everything_for(names[0], chains)
    each = {one.name: one.count(one.top) // len(names) for one in chains}
    if not all(each.values()):
        raise UserError(
            f"{len(names)} virtual clusters cannot have whole cells each",
            field="cells.shares",
            hint="say in the scenario what each of them has",
        )
    return {name: {one.name: {one.levels[-1]: each[one.name]} for one in chains} for name in names}


LOST_OF_SLICES = 20
"""A time slice is so many times as long as a restart."""


def _gandiva(given: SchedulerContext) -> Gandiva:
    """Slices of a minute, or longer where jobs last for days: a hundredth of the mean.

    At most a twentieth of a slice is lost to the restart that begins it.
    """
    known_s = [spec.duration_s for spec in given.jobs.specs if spec.duration_s]
    mean_s = sum(known_s) / len(known_s) if known_s else 0.0
    quantum_s = max(60.0, mean_s / 100, LOST_OF_SLICES * given.restart_s)
    return Gandiva(quantum_s=quantum_s, within=given.cells.within)


GENERAL: Mapping[str, SchedulerOf] = {
    "drf": plain(lambda _: Drf(), rigid=True),
    "capacity": _capacity,
    "hived": _hived,
    "gandiva": plain(_gandiva),
    "gang": plain(lambda _: Gang(), rigid=True),
}
ANYWHERE: Mapping[str, SchedulerOf] = {**plugin_policies.schedulers(), **GENERAL}
"""With those of other packages, which never take the name of one of ours."""


# --- Pollux by the published search and by our own; batch sizes are left to jobs' agents.


def _pollux(search: str, given: SchedulerContext) -> BuiltScheduler:
    """For a core that plans in rounds.

    Raises:
        UserError: Numba is not installed; a search would take minutes for every round.
    """
    if not HAVE_JIT:
        raise UserError("Pollux' searches need Numba", hint="pip install 'wattherd[fast]'")
    return BuiltScheduler(
        planner=Pollux(search=search, seed=given.seed, interval_s=None),
        computers=searchers(np.random.default_rng),
        adapts_batch=True,
    )


POLLUX: Mapping[str, SchedulerOf] = {
    "pollux": partial(_pollux, "genetic"),
    "pollux-climb": partial(_pollux, "climb"),
}


# --- Schedulers of parameter-server jobs, as a preset offers them: each with what it may know.
#
# Sample runs give every job a fitted speed model. The judge of loss curves is taught by a generated
# workload of another seed, never by the jobs that are scheduled.


def _scheduler(name: str, given: SchedulerContext) -> BuiltScheduler:
    known = beliefs(_workload(given.jobs), given.seed)
    return BuiltScheduler(planner=PLANNERS[name](known, _judge()))


PS_SCHEDULERS: Mapping[str, SchedulerOf] = {name: partial(_scheduler, name) for name in PLANNERS}
"""By policy name."""


def ps_plant(jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float) -> Plant:
    """The jobs' side of the simulated world; a cap slows all of a step.

    Raises:
        UserError: the workload is of another format.
    """
    del cluster
    overheads = Overheads(restart_s=restart_s)
    return PsPlant(_workload(jobs).truths, overheads=overheads, speed_at=speed_at)


def _workload(jobs: ReadJobs) -> PsWorkload:
    if jobs.ps is None:
        raise UserError(
            "needs parameter-server jobs", field="--preset", hint="use it with --format aiturbo"
        )
    return jobs.ps


@cache
def _judge() -> CurveJudge:
    return taught_judge(PsMix())


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSimulator:
    """How a published simulator runs jobs; with `any_restart` the pause of a restart may be set.

    `measured_on` is the GPU model on which its applications were measured. One with `own_rates`
    knows every GPU model by tables of its own.
    """

    about: str
    round_s: float | None
    restart_s: float
    plant: Callable[[ReadJobs, ClusterSpec, SpeedAt, float], Plant]
    schedulers: Mapping[str, SchedulerOf]
    any_restart: bool = False
    measured_on: str | None = None
    own_rates: bool = False

    def scheduler(self, name: str, given: SchedulerContext) -> BuiltScheduler:
        """A scheduler by policy name.

        Raises:
            UserError: no such policy here, or one that lacks something of the workload.
        """
        if name not in self.schedulers:
            hint = hint_for(name, self.schedulers)
            raise UserError(f"unknown policy {name!r} here", field="--policy", hint=hint)
        return self.schedulers[name](given)


def _application_plant(
    jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float
) -> Plant:
    for spec in jobs.specs:
        if spec.profile not in jobs.applications:
            hint = "use the preset of its format; `none` has jobs run as long as they say"
            raise UserError(
                "has no measured application", where=f"job {spec.id}", field="--preset", hint=hint
            )
    del cluster
    for application in jobs.applications.values():
        application.prepare()
    return ApplicationPlant(jobs.applications, restart_s=restart_s, speed_at=speed_at)


def _gavel_plant(
    jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float
) -> Plant:
    del restart_s
    return GavelPlant(_throughputs(jobs), cluster, round_s=ROUND_S, speed_at=speed_at)


def _gavel(goal: str, given: SchedulerContext) -> BuiltScheduler:
    jobs = given.jobs
    planner = Gavel(table=_throughputs(jobs), goal=goal, last_submit_s=_last_submit_s(jobs))
    return BuiltScheduler(planner=planner, computers={KIND: solver(best_solver())})


def _throughputs(jobs: ReadJobs) -> ThroughputTable:
    if jobs.throughputs is None:
        raise UserError(
            "needs measured throughputs", field="--preset", hint="use it with --format gavel"
        )
    return jobs.throughputs


def _duration_plant(
    jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float
) -> Plant:
    del cluster
    _known(jobs)
    return DurationPlant(cost=constant(restart_s), speed_at=speed_at)


def _locality_plant(
    jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float
) -> Plant:
    """Jobs report where some of them may share a GPU: whether that pays is seen by their rates."""
    _known(jobs)
    shares = any(role.gpu_memory_mib is not None for spec in jobs.specs for role in spec.roles)
    return DurationPlant(
        cost=constant(restart_s),
        speed_at=speed_at,
        report_s=REPORT_S if shares else None,
        surroundings=Surroundings(locality=Locality(topology_of(cluster)).factor),
    )


def _muri_plant(jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float) -> Plant:
    del cluster, restart_s
    _known(jobs)
    return EventChargedPlant(cost=EVERY_EVENT, work=MURI_WORK, speed_at=speed_at)


def _known(jobs: ReadJobs) -> None:
    for spec in jobs.specs:
        if spec.duration_s is None:
            hint = "use the preset of its format, or give every job a duration_s"
            raise UserError("has no duration", where=f"job {spec.id}", field="--preset", hint=hint)


def _measured(given: SchedulerContext) -> OrderedTerms:
    """Lengths of jobs are what their applications' true models say."""
    work = by_application(given.jobs.applications, POLLUX_NODE_GPUS)
    return OrderedTerms(work=work, cost=constant(RESTART_S), place=spread, wakes=False)


POLLUX_NODE_GPUS = 4
SLOW_RESTART_QUANTUM_S = LOST_OF_SLICES * RESTART_S
"""Time slices where a restart takes half a minute: at most a twentieth of them is lost."""
REPORT_S = 30.0
"""How often jobs that may share a GPU report their progress."""
MURI_WORK = stretched(1.015)
"""Muri's simulator has every iteration take 1.5 % longer than measured."""
_MURI = OrderedTerms(
    work=MURI_WORK,
    cost=EVERY_EVENT,
    place=yarn,
    anew=yarn_trial,
    counted=True,
    whole_seconds=True,
)
_NSDI = OrderedTerms(place=anywhere, anew=CountTrial, whole_seconds=True)
_NSDI_YARN = OrderedTerms(place=yarn, anew=yarn_trial, counted=True, whole_seconds=True)


def _plain(given: SchedulerContext) -> OrderedTerms:
    """Planners know what a restart costs."""
    return OrderedTerms(cost=constant(given.restart_s)) if given.restart_s else OrderedTerms()


def _wattherd(given: SchedulerContext) -> BuiltScheduler:
    """Ours, on what jobs state; nothing is learned in a simulation, so it plans at events only."""
    stated = StatedProgress(restart_s=given.restart_s)
    return BuiltScheduler(planner=ProgressPerWatt(progress=stated, look_s=None))


PRESETS: Mapping[str, PublishedSimulator] = {
    "pollux-osdi21": PublishedSimulator(
        about="measured applications, 60 s rounds, 30 s restarts (Pollux artifact, OSDI'21)",
        round_s=SLICE_S,
        restart_s=RESTART_S,
        measured_on="T4",
        plant=_application_plant,
        schedulers={
            **ANYWHERE,
            **ordered(_measured),
            "tiresias": plain(lambda _: Tiresias(), rigid=True),
            "optimus": plain(lambda given: Optimus(applications=given.jobs.applications)),
            "gandiva": plain(lambda _: Gandiva(quantum_s=SLOW_RESTART_QUANTUM_S)),
            **POLLUX,
        },
    ),
    "gavel-osdi20": PublishedSimulator(
        about="measured throughputs by GPU type, 360 s rounds (Gavel's simulator, OSDI'20)",
        round_s=None,
        restart_s=0.0,
        own_rates=True,
        plant=_gavel_plant,
        schedulers={f"gavel-{goal}": partial(_gavel, goal) for goal in (*GOALS, FIFO)},
    ),
    "muri-sigcomm22": PublishedSimulator(
        about="known durations, YARN's placement, all restart at every event (Muri, SIGCOMM'22)",
        round_s=0.0,
        restart_s=0.0,
        plant=_muri_plant,
        schedulers=ordered(lambda _: _MURI),
    ),
    "tiresias-nsdi19": PublishedSimulator(
        about="known durations, GPUs only counted, restarts are free (Tiresias, NSDI'19)",
        round_s=0.0,
        restart_s=0.0,
        plant=_duration_plant,
        schedulers={
            **ordered(lambda _: _NSDI),
            "sjf": plain(lambda _: preemptive(_NSDI, Smallest()), rigid=True),
            "fifo@yarn": plain(
                lambda _: in_turn(_NSDI_YARN, Fifo(), Discipline.STRICT), rigid=True
            ),
            "tiresias@yarn": plain(lambda _: preemptive(_NSDI_YARN, LeastAttained()), rigid=True),
        },
    ),
    "aiturbo-hpdc21": PublishedSimulator(
        about="parameter-server jobs of modelled speed and loss, 30 s restarts (AITurbo, HPDC'21)",
        round_s=None,
        restart_s=PS_RESTART_S,
        plant=ps_plant,
        schedulers=PS_SCHEDULERS,
    ),
    "none": PublishedSimulator(
        about="known durations, plans at every event, restarts are free unless you say otherwise",
        round_s=0.0,
        restart_s=0.0,
        plant=_duration_plant,
        schedulers={**ANYWHERE, **ordered(_plain), **by_speed(_plain), "wattherd": _wattherd},
        any_restart=True,
    ),
    "locality": PublishedSimulator(
        about="durations at the best placement; models are slower where their GPUs are apart",
        round_s=0.0,
        restart_s=1.0,
        plant=_locality_plant,
        schedulers={**ANYWHERE, **ordered(_plain)},
        any_restart=True,
    ),
}


def _last_submit_s(jobs: ReadJobs) -> float:
    return max((spec.submit_s for spec in jobs.specs), default=0.0)


def preset(name: str) -> PublishedSimulator:
    """A preset by name."""
    if name not in PRESETS:
        hint = hint_for(name, PRESETS)
        raise UserError(f"unknown preset {name!r}", field="--preset", hint=hint)
    return PRESETS[name]
