"""What a scheduler is built for, and what building one gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from wattherd.errors import UserError
from wattherd.estimate.job_rate import ALIKE, JobRates
from wattherd.estimate.power_curve import PowerCurve, prior
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.model.topology import Chain, chains_of
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.queue.capacity import FadingUse
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import QueueTree, equal_queues
from wattherd.policy.schedule.hived import PinnedCell, Shares
from wattherd.sim.world import Computer
from wattherd.workload.power_profiles import Profiles, built_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """How the cluster is cut for virtual clusters (HiveD): see `policy.queue.topology.chains_of`.

    `shares` None gives every stated queue what it is promised; without stated queues, those of the
    workload get an equal part of the nodes of each kind.
    `stated` are chains that were stated; nodes in none of them are cut as `within` and `per_rack`
    say. `pinned` are virtual clusters of one certain cell.
    """

    within: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    per_rack: int | None = None
    shares: Shares | None = None
    stated: tuple[Chain, ...] = ()
    pinned: Mapping[str, PinnedCell] = field(default_factory=dict)

    def chains(self, cluster: ClusterSpec) -> list[Chain]:
        """All cells of a cluster."""
        taken = [node for chain in self.stated for node in chain.nodes]
        if len(set(taken)) < len(taken):
            hint = "a node is part of one chain"
            raise UserError("two chains have the same node", field="cells.chains", hint=hint)
        rest = chains_of(cluster, within=self.within, per_rack=self.per_rack, leave=taken)
        return [*self.stated, *rest]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerContext:
    """One workload on one cluster; `queues` None means equal queues, as many as jobs name.

    `reclaim` None takes nothing back of what queues were lent.
    `cells` without shares give queues that were stated the cells that they are promised; with
    `equal_cells`, those that jobs name are given equal parts, as ever before rules 3.
    `lately` is what queues held before, where the shell keeps it beside the core.
    `restart_s` is the pause of a restart, where schedulers may reckon with it. `rates` say how fast
    jobs are on which devices.
    """

    jobs: ReadJobs
    cluster: ClusterSpec
    seed: int = 1
    queues: QueueTree | None = None
    reclaim: Reclaim | None = field(default_factory=Reclaim)
    cells: Cells = Cells()
    equal_cells: bool = False
    lately: FadingUse | None = None
    restart_s: float = 0.0
    power_profiles: Profiles = field(default_factory=built_in)
    rates: JobRates = ALIKE

    @property
    def job_rates(self) -> JobRates:
        """How fast jobs are, by their power curves as well."""
        return replace(self.rates, curve_of=self.curve_of)

    def curve_of(self, spec: JobSpec, gpu_model: str) -> PowerCurve:
        """A job's power curve: as measured of its profile on that GPU, else the prior."""
        measured = self.power_profiles.get(spec.power_profile, {}).get(gpu_model)
        return prior(spec, gpu_model) if measured is None else measured

    @property
    def queue_names(self) -> list[str]:
        """Queues that jobs name, sorted."""
        return sorted({spec.queue for spec in self.jobs.specs}) or ["default"]

    def tree(self) -> QueueTree:
        """The queues as configured, else equal ones."""
        return self.queues if self.queues is not None else equal_queues(self.queue_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltScheduler:
    """A planner, the quota its guard enforces, and who answers its questions.

    A `rigid` one never runs a job at another width than it was submitted with, so that a job that
    does not fit whole never fits. Where batch sizes are adapted, `adapts_batch`, jobs of measured
    applications leave theirs to their agents.
    """

    planner: Planner
    quota: Quota | None = None
    computers: Mapping[str, Computer] = field(default_factory=dict)
    rigid: bool = False
    adapts_batch: bool = False


SchedulerOf = Callable[[SchedulerContext], BuiltScheduler]


def plain(planner_of: Callable[[SchedulerContext], Planner], *, rigid: bool = False) -> SchedulerOf:
    """A planner without quota or questions."""

    def build(given: SchedulerContext) -> BuiltScheduler:
        return BuiltScheduler(planner=planner_of(given), rigid=rigid)

    return build
