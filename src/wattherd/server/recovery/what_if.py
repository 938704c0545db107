"""Yesterday's journal under another policy, budget or way of sharing watts, in the simulator.

What comes from outside happens as it did: submissions, cancellations, holds, lost nodes, stopped
queues, budgets. How much work jobs are is measured (`server.recovery.played_jobs`); everything else
is decided anew. Jobs checkpoint when they are stopped and lose nothing by it; a device of a running
job draws what its cap allows, busy or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattherd.engine.core.executor import Plant
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, prior_curve
from wattherd.experiments.schedule.live import LEARNING
from wattherd.experiments.schedule.run import ComparisonSetup, power_policy, simulate
from wattherd.experiments.schedule.simulators import PublishedSimulator, preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import (
    ArrayLimited,
    BudgetAnnounced,
    BudgetChanged,
    DeviceDrained,
    DeviceReturned,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    NodeLost,
    NodeReturned,
    QueueStarted,
    QueueStopped,
    TenantLimited,
)
from wattherd.model.job import JobSpec
from wattherd.server.recovery.played_jobs import UNKNOWN, PlayedJobs
from wattherd.server.recovery.replay import JournalReplay, settings_of
from wattherd.server.settings.blueprint import Blueprint
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.speed import SpeedAt
from wattherd.store.store import ClusterStore
from wattherd.units import watts

AS_IT_WAS = "as it was"
STATED = "stated"
"""Power profile of all jobs here: what a live site assumes of them."""
_FROM_OUTSIDE = (
    *(
        ArrayLimited,
        JobCancelled,
        JobHeld,
        JobReleased,
        NodeLost,
        NodeReturned,
        QueueStopped,
        QueueStarted,
    ),
    *(BudgetChanged, BudgetAnnounced, TenantLimited, DeviceDrained, DeviceReturned),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPast:
    """What a store tells of a site; `works` in seconds, `bases` says how jobs' work is known."""

    blueprint: Blueprint
    lived: PlayedJobs
    outside: tuple[Event, ...]
    works: Mapping[str, float]
    bases: Mapping[str, int]
    energy_j: float

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """The jobs whose work is known."""
        found = (job.spec for job_id, job in self.lived.jobs.items() if job_id in self.works)
        return tuple(replace(spec, power_profile=STATED) for spec in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChange:
    """What is to be different; None: as it was. `budget` is `0.9x`, `40kW` or `none`."""

    policies: tuple[str, ...] = ()
    budget: str | None = None
    power: str | None = None


def read_past(url: str) -> StoredPast:
    """Live the journal of a store through.

    Raises:
        UserError: there is none, or it has lost its beginning.
        StoreFailure: it cannot be read.
    """
    store = ClusterStore.open(url, sole=False)
    try:
        return _read(store, url)
    finally:
        store.close()


def _read(store: ClusterStore, url: str) -> StoredPast:
    settings = settings_of(store.snapshots)
    if not settings:
        raise UserError("nothing has happened here yet", where=url)
    if store.journal.base().seq > 1:
        hint = "import an export from before it was compacted"
        raise UserError("the journal has lost its beginning", where=url, hint=hint)
    blueprint, replay = settings[-1][1], JournalReplay(settings)
    lived = PlayedJobs(_rate_of(prior_curve(blueprint.gpu)))
    outside: list[Event] = []
    for step in replay.live(store.journal.entries()):
        lived.note(step.entry.event, step.commands)
        if isinstance(step.entry.event, _FROM_OUTSIDE):
            outside.append(step.entry.event)
    if replay.state.core.queues is not None:
        blueprint = blueprint.with_queues(replay.state.core.queues)
    works = lived.works()
    return StoredPast(
        blueprint=blueprint,
        lived=lived,
        outside=tuple(outside),
        works={job_id: s for job_id, (s, basis) in works.items() if basis != UNKNOWN},
        bases=Counter(basis for _, basis in works.values()),
        energy_j=math.fsum(row["draw_w"] * row["span_s"] for row in _samples(store)),
    )


def _samples(store: ClusterStore) -> Iterator[Mapping[str, Any]]:
    after_s = -1.0
    while rows := store.projection.samples(after_s):
        yield from rows
        after_s = rows[-1]["at_s"]


def _rate_of(curve: PowerCurve) -> Any:
    def rate(cap_w: float | None) -> float:
        return 1.0 if cap_w is None else curve.rate(cap_w) / curve.rates[-1]

    return rate


def what_if(past: StoredPast, change: WhatIfChange) -> list[dict[str, Any]]:
    """How it was, the same simulated, and what would have been: one row each.

    The second row shows what the simulation is worth: it should be like the first.

    Raises:
        UserError: a policy, budget or way of sharing that is none, or no job to try it on.
    """
    if not past.works:
        raise UserError("no job has run here yet")
    rows = [_as_it_was(past), _row(past, past.blueprint.policy, WhatIfChange())]
    if change != WhatIfChange():
        policies = change.policies or (past.blueprint.policy,)
        rows += [_row(past, policy, change) for policy in policies]
    return rows


def _row(past: StoredPast, policy: str, change: WhatIfChange) -> dict[str, Any]:
    power = change.power or past.blueprint.power
    power_policy(power)
    if policy in LEARNING:
        problem = f"{policy} learns from what real jobs report, and simulated ones report nothing"
        hint = "it cannot be tried on the past, nor can what ran under it"
        raise UserError(problem, field="--policy", hint=hint)
    events = _with_budget(past.outside, change.budget)
    setting = _setting(past, replace(past.blueprint, policy=policy), events, power)
    return {**simulate(setting, policy).row, "power": power, "budget": change.budget or AS_IT_WAS}


def _setting(
    past: StoredPast, blueprint: Blueprint, events: tuple[Event, ...], power: str
) -> ComparisonSetup:
    given = blueprint.given(ReadJobs(specs=past.specs))
    curves = {STATED: {name: prior_curve(gpu) for name, gpu in blueprint.gpus.items()}}
    return ComparisonSetup(
        preset=_world(past.works),
        given=replace(given, power_profiles=curves),
        power=power,
        faults=events,
        gpus=blueprint.gpus,
    )


def _world(works: Mapping[str, float]) -> PublishedSimulator:
    """Jobs of known work, which policies are not told: they know what users expected."""

    def plant(jobs: ReadJobs, cluster: ClusterSpec, speed_at: SpeedAt, restart_s: float) -> Plant:
        del jobs, cluster, restart_s
        return DurationPlant(work=lambda spec: works.get(spec.id), speed_at=speed_at)

    return replace(preset("none"), round_s=0.0, plant=plant)


def _with_budget(events: Sequence[Event], budget: str | None) -> tuple[Event, ...]:
    if budget is None:
        return tuple(events)
    if budget.endswith("x"):
        factor = _factor(budget)
        return tuple(_scaled(event, factor) for event in events)
    budget_w = None if budget == "none" else watts(budget, field="--budget")
    others = (e for e in events if not isinstance(e, BudgetChanged | BudgetAnnounced))
    return (BudgetChanged(at_s=0.0, budget_w=budget_w), *others)


def _factor(text: str) -> float:
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise UserError(f"{text!r} is no factor", field="--budget", hint="write 0.9x or 40kW")
    return factor


def _scaled(event: Event, factor: float) -> Event:
    if isinstance(event, BudgetChanged | BudgetAnnounced) and event.budget_w is not None:
        return replace(event, budget_w=event.budget_w * factor)
    return event


def _as_it_was(past: StoredPast) -> dict[str, Any]:
    """The figures of the journal itself, named as the simulator's."""
    jobs = past.lived.jobs.values()
    jcts = sorted(
        job.finish_s - job.spec.submit_s
        for job in jobs
        if job.finish_s is not None and job.state == "Succeeded"
    )
    return {
        "policy": f"lived ({past.blueprint.policy})",
        "power": past.blueprint.power,
        "budget": AS_IT_WAS,
        "jobs": len(jobs),
        "finished": len(jcts),
        "avg_jct_s": math.fsum(jcts) / len(jcts) if jcts else None,
        "p99_jct_s": jcts[math.ceil(0.99 * len(jcts)) - 1] if jcts else None,
        "makespan_s": past.lived.now_s,
        "energy_j": {"site": past.energy_j},
        "over_budget_s": None,
    }
