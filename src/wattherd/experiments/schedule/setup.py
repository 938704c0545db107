"""From a scenario to the setting of a simulation: texts become cluster, jobs, events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.estimate.job_rate import ALIKE, JobRates, RateTable
from wattherd.experiments.schedule.power_tree import cap_rules, power_tree
from wattherd.experiments.schedule.run import Budget, ComparisonSetup, power_policy
from wattherd.experiments.schedule.scheduler_context import Cells, SchedulerContext
from wattherd.experiments.schedule.simulators import PublishedSimulator, preset
from wattherd.experiments.schedule.workloads import ReadJobs, read_workload
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import Event, NodeLost, NodeReturned, QueueStarted, QueueStopped
from wattherd.model.topology import stated_chain
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.rebalance.sleep import AfterIdle
from wattherd.policy.schedule.hived import PinnedCell
from wattherd.sim.machines import SwitchTimes
from wattherd.spelling import hint_for
from wattherd.units import seconds
from wattherd.workload.budget_text import parse_steps
from wattherd.workload.cluster_text import read_cluster
from wattherd.workload.power_profiles import Profiles, built_in, read_profiles
from wattherd.workload.rates_file import read_rates
from wattherd.workload.scenario import (
    CellsSpec,
    QueueField,
    ReclaimSpec,
    Scenario,
    ScenarioFault,
    SleepSpec,
    SpeedSpec,
    Time,
)
from wattherd.workload.speed_table import read_speeds


def setting_of(
    scenario: Scenario, *, budget: str | None, power: str, record: bool = False
) -> ComparisonSetup:
    """Everything a simulation needs; files are read.

    Raises:
        UserError: a name that is unknown, a text of another form, or a bad file.
    """
    power_policy(power)
    chosen = _preset(scenario)
    cluster = _cluster(scenario)
    profiles = Path(scenario.jobs.profiles) if scenario.jobs.profiles else None
    jobs = read_workload(scenario.jobs.format, Path(scenario.jobs.file), profiles)
    queues = QueueTree(queue_of(scenario.queues)) if scenario.queues else None
    rates, start_s = read_rates(scenario.rates, scenario.start) if scenario.rates else (None, 0.0)
    given = SchedulerContext(
        jobs=jobs,
        cluster=cluster,
        seed=scenario.seed,
        queues=queues,
        reclaim=_reclaim(scenario.reclaim),
        cells=cells_of(scenario.cells, cluster),
        restart_s=chosen.restart_s,
        power_profiles=_power_profiles(scenario, jobs),
        rates=_job_rates(scenario.speed, chosen, cluster),
    )
    return ComparisonSetup(
        preset=chosen,
        given=given,
        budget=parse_budget(budget),
        power=power,
        tree=power_tree(scenario.power_tree, cluster),
        rules=cap_rules(scenario.caps),
        cap_delay_s=_seconds(scenario.caps.delay, "caps.delay"),
        faults=_faults(scenario.faults, cluster),
        sleep=_after_idle(scenario.sleep),
        switch=_switch(scenario.sleep),
        until_s=math.inf if scenario.until is None else _seconds(scenario.until, "until"),
        record=record,
        rates=rates,
        start_s=start_s,
    )


def parse_budget(text: str | None) -> Budget:
    """`40kW`, or steps `0:40kW,2h:30kW` in ascending time.

    Raises:
        UserError: another form, or times that do not ascend.
    """
    return parse_steps(text, field="--budget") if text else ()


def _seconds(time: Time, field: str) -> float:
    return seconds(time, field=field)


def _preset(scenario: Scenario) -> PublishedSimulator:
    chosen = preset(scenario.preset)
    if scenario.restart is None:
        return chosen
    if not chosen.any_restart:
        hint = "only the presets none and locality let it be chosen"
        raise UserError(f"{scenario.preset} fixes it", field="restart", hint=hint)
    return replace(chosen, restart_s=_seconds(scenario.restart, "restart"))


def _cluster(scenario: Scenario) -> ClusterSpec:
    cluster = read_cluster(scenario.cluster, known=GPUS)
    if not scenario.node_idle_w:
        return cluster
    return ClusterSpec(tuple(replace(node, idle_w=scenario.node_idle_w) for node in cluster.nodes))


def _power_profiles(scenario: Scenario, jobs: ReadJobs) -> Profiles:
    path = scenario.jobs.power_profiles
    known = read_profiles(Path(path), known=GPUS) if path else built_in()
    for spec in jobs.specs:
        if spec.power_profile and spec.power_profile not in known:
            problem = f"unknown power profile {spec.power_profile!r}"
            hint = hint_for(spec.power_profile, known)
            raise UserError(problem, where=f"job {spec.id}", field="power_profile", hint=hint)
    return known


def _job_rates(
    spec: SpeedSpec | None, chosen: PublishedSimulator, cluster: ClusterSpec
) -> JobRates:
    """How fast jobs are on the models of a cluster.

    Raises:
        UserError: a model of which nothing is known, a table that cannot be used, or a preset that
            has tables of its own.
    """
    if chosen.own_rates:
        if spec is not None:
            hint = "leave it out, or use another preset"
            raise UserError("the preset has measured speeds of its own", field="speed", hint=hint)
        return ALIKE
    stated = SpeedSpec() if spec is None else spec
    if stated.durations_on is not None and stated.durations_on not in GPUS:
        hint = hint_for(stated.durations_on, GPUS)
        problem = f"unknown GPU model {stated.durations_on!r}"
        raise UserError(problem, field="speed.durations_on", hint=hint)
    table = read_speeds(Path(stated.table), known=GPUS) if stated.table else RateTable()
    return JobRates(
        models=tuple(sorted({node.gpu_model for node in cluster.nodes if node.gpu_count})),
        durations_on=stated.durations_on or chosen.measured_on,
        equal=stated.types == "equal",
        measured=table,
    )


def queue_of(spec: QueueField) -> CapacityQueue:
    """A queue and those below it, as configured."""
    fields = spec.model_dump(exclude={"children", "half_life", "fair_sharing"})
    faded = spec.half_life
    return CapacityQueue(
        **fields,
        fair_sharing=tuple(spec.fair_sharing),
        half_life_s=None if faded is None else _seconds(faded, f"queue {spec.name}.half_life"),
        children=tuple(queue_of(child) for child in spec.children),
    )


def queue_spec(queue: CapacityQueue) -> QueueField:
    """As a configuration writes a queue and those below it."""
    plain = QueueField.model_fields.keys() - {"children", "half_life", "fair_sharing"}
    fields = {name: getattr(queue, name) for name in plain}
    return QueueField(
        **fields,
        fair_sharing=list(queue.fair_sharing),
        half_life=queue.half_life_s,
        children=[queue_spec(child) for child in queue.children],
    )


def _reclaim(spec: ReclaimSpec) -> Reclaim | None:
    if not spec.enabled:
        return None
    return Reclaim(
        wait_s=_seconds(spec.wait, "reclaim.wait"),
        per_cycle=spec.per_cycle,
        dead_zone=spec.dead_zone,
        natural=spec.natural,
        balance=spec.balance,
    )


def cells_of(spec: CellsSpec, cluster: ClusterSpec) -> Cells:
    """How a cluster is cut, as configured.

    Raises:
        UserError: chains that do not fit the cluster.
    """
    return Cells(
        within={gpus: tuple(fanout) for gpus, fanout in spec.within.items()},
        per_rack=spec.per_rack,
        shares=spec.shares,
        stated=tuple(stated_chain(cluster, one.name, one.levels, one.nodes) for one in spec.chains),
        pinned={
            name: PinnedCell(chain=one.chain, level=one.level, index=one.index)
            for name, one in spec.pinned.items()
        },
    )


def _after_idle(spec: SleepSpec | None) -> AfterIdle | None:
    if spec is None:
        return None
    return AfterIdle(after_s=_seconds(spec.after, "sleep.after"), spare=spec.spare)


def _switch(spec: SleepSpec | None) -> SwitchTimes:
    if spec is None:
        return SwitchTimes()
    return SwitchTimes(
        sleep_s=_seconds(spec.falls, "sleep.falls"),
        wake_s=_seconds(spec.boots, "sleep.boots"),
        wake_j=spec.boot_j,
    )


def _faults(faults: Sequence[ScenarioFault], cluster: ClusterSpec) -> tuple[Event, ...]:
    """Events in order of time."""
    names = {node.name for node in cluster.nodes}
    events = [
        event for at, fault in enumerate(faults) for event in _events(fault, f"faults.{at}", names)
    ]
    return tuple(sorted(events, key=lambda event: event.at_s))


def _events(fault: ScenarioFault, field: str, nodes: set[str]) -> Iterator[Event]:
    at_s = _seconds(fault.at, f"{field}.at")
    end_s = None if fault.lasts is None else at_s + _seconds(fault.lasts, f"{field}.lasts")
    if (fault.node is None) == (fault.queue is None):
        raise UserError("is about one node or one queue", field=field, hint="node: node-00003")
    if fault.node is not None:
        if fault.node not in nodes:
            hint = hint_for(fault.node, sorted(nodes))
            raise UserError(f"unknown node {fault.node!r}", field=f"{field}.node", hint=hint)
        yield NodeLost(at_s=at_s, node=fault.node, cause="scenario")
        if end_s is not None:
            yield NodeReturned(at_s=end_s, node=fault.node, cause="scenario")
    elif fault.queue is not None:
        yield QueueStopped(at_s=at_s, queue=fault.queue, cause="scenario")
        if end_s is not None:
            yield QueueStarted(at_s=end_s, queue=fault.queue, cause="scenario")
