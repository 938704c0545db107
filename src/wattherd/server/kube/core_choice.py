"""From names to what leads on Kubernetes: the schedulers and power policies of the simulator.

They are the same objects as `wattherd serve` builds: those of `sim run --preset none`, and those
that learn from what jobs report and from how they ended. Queues are those of Queue objects.
"""

from __future__ import annotations

from dataclasses import replace

from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, prior
from wattherd.experiments.schedule.live import live_scheduler, live_schedulers
from wattherd.experiments.schedule.run import POWER_POLICIES, power_policy
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.kube.facts.core_config import BuiltPlanner, CoreChoice
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import JobSpec
from wattherd.policy.queue.capacity import FadingUse
from wattherd.policy.queue.tree import QueueTree
from wattherd.policy.schedule.aiturbo import AITurbo
from wattherd.policy.schedule.gang import PATIENCE_S, Gang
from wattherd.spelling import hint_for
from wattherd.workload.power_profiles import built_in

GANG = "gang"
POWER = "water-filling"
"""The power policy where none is named."""
KEEP_BOOKS = frozenset({"hived"})
"""Schedulers that know by themselves who has which device."""
STOP_BY_RANK = frozenset({
    *("fifo", "fifo-backfill", "fifo-first-fit", "fifo@fastest", "fifo-first-fit@fastest"),
    *("sjf", "sjf@fastest", "drf", "priority-backfill"),
    *(GANG, "priority", "capacity", "hived"),
})  # fmt: skip
"""Schedulers that stop nobody, or only for one of higher priority or whose GPUs were lent. All
others stop jobs for a better plan."""
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
LENGTHS_S = (MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 4 * HOUR_S, 12 * HOUR_S, DAY_S,
             3 * DAY_S, 7 * DAY_S)  # fmt: skip
"""The prior for lengths of jobs: about evenly spread over the logarithm, as in published traces."""
_TRIAL = ClusterSpec(
    (NodeSpec(name="n", cpu_milli=1000, memory_mib=1024, gpu_count=1, gpu_model="T4"),)
)


def schedulers() -> list[str]:
    """All that can be named."""
    return sorted(live_schedulers())


def core_choice(
    scheduler: str = "", power: str = POWER, patience_s: float = PATIENCE_S
) -> CoreChoice:
    """A scheduler and a power policy by name; `patience_s` is for those who have any.

    Without a scheduler gangs are planned by priority and placed by the placement policy.

    Raises:
        UserError: there is none of that name.
    """
    if not scheduler:
        power_policy(power)
        made, name = POWER_POLICIES[power], f"gangs by priority, {power}"
        return CoreChoice(name=name, build=None, power=made, curve_of=_curve_of)
    if scheduler not in schedulers():
        hint = hint_for(scheduler, schedulers())
        raise UserError(f"unknown scheduler {scheduler!r}", field="--scheduler", hint=hint)
    power_policy(power)

    def build(cluster: ClusterSpec, queues: QueueTree | None, lately: FadingUse) -> BuiltPlanner:
        built = _built(scheduler, cluster, queues, lately, patience_s)
        return built.planner, built.quota

    # What cannot be built is told now, not on the cluster.
    computers = _built(scheduler, _TRIAL, None, FadingUse(), patience_s).computers
    return CoreChoice(
        name=f"{scheduler}, {power}",
        build=build,
        power=POWER_POLICIES[power],
        curve_of=_curve_of,
        keeps_books=scheduler in KEEP_BOOKS,
        improves=scheduler not in STOP_BY_RANK,
        computers=computers,
    )


def _built(
    scheduler: str,
    cluster: ClusterSpec,
    queues: QueueTree | None,
    lately: FadingUse,
    patience_s: float,
) -> BuiltScheduler:
    if scheduler == GANG:
        return BuiltScheduler(planner=Gang(patience_s=patience_s))
    given = SchedulerContext(jobs=_examples(queues), cluster=cluster, queues=queues, lately=lately)
    built = live_scheduler(scheduler, given)
    if isinstance(built.planner, AITurbo):
        return replace(built, planner=replace(built.planner, recalls=True))
    return built


def _examples(queues: QueueTree | None) -> ReadJobs:
    """Jobs as they may come: one of each length, and one for each queue."""
    names = ["default"] if queues is None else [leaf.queue.name for leaf in queues.leaves]
    lengths = [
        JobSpec(id=f"length {at}", submit_s=0.0, duration_s=length_s, queue=names[0])
        for at, length_s in enumerate(LENGTHS_S)
    ]
    of_queues = [JobSpec(id=f"queue {name}", submit_s=0.0, queue=name) for name in names]
    return ReadJobs(specs=(*lengths, *of_queues))


_PROFILES = built_in()


def _curve_of(spec: JobSpec, gpu_model: str) -> PowerCurve:
    """As measured of the job's kind on that GPU, else the prior."""
    measured = _PROFILES.get(spec.power_profile, {}).get(gpu_model)
    return prior(spec, gpu_model) if measured is None else measured
