"""One contract for every scheduler that runs on plain jobs: whatever it decides, this holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wattherd.engine.core.core import Core
from wattherd.engine.core.invariants import validate
from wattherd.experiments.schedule.run import ComparedRun, ComparisonSetup, core_config, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.command import Command, StartJob
from wattherd.model.event import NodeLost, NodeReturned
from wattherd.store.event_log import digest, read_log, write_log
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.generate_jobs import JobMix, generate_jobs

NONE = preset("none")
CUT_W = 0.75 * 16 * 70
MIX = JobMix(jobs=60, gpus=16, load=1.5, widest=4, longest_s=7200.0)


@pytest.fixture(scope="module")
def setting() -> ComparisonSetup:
    """Sixty jobs on sixteen T4, a node that fails, and a cut by a quarter an hour later."""
    jobs = ReadJobs(specs=tuple(replace(one, priority=0) for one in generate_jobs(MIX, 5)))
    return ComparisonSetup(
        preset=NONE,
        given=SchedulerContext(jobs=jobs, cluster=parse_cluster("4x4:T4", known={"T4"})),
        budget=((0.0, 16 * 70.0), (7200.0, CUT_W)),
        faults=(
            NodeLost(at_s=3600.0, node="node-00001"),
            NodeReturned(at_s=10_000.0, node="node-00001"),
        ),
        record=True,
    )


@pytest.fixture(scope="module", params=sorted(NONE.schedulers))
def result(request: pytest.FixtureRequest, setting: ComparisonSetup) -> Iterator[ComparedRun]:
    return simulate(setting, request.param)


def test_every_job_finishes_within_the_budget(result: ComparedRun) -> None:
    assert (result.row["finished"], result.row["jobs"]) == (60, 60)
    assert result.row["over_budget_s"] == 0.0


def test_no_job_starts_before_it_came_or_ends_sooner_than_alone(
    result: ComparedRun, setting: ComparisonSetup
) -> None:
    specs = {spec.id: spec for spec in setting.given.jobs.specs}
    for one in result.outcomes:
        assert one.start_s is not None
        assert one.jct_s is not None
        assert one.start_s >= one.submit_s
        assert one.jct_s >= (specs[one.job_id].duration_s or 0.0) - 1e-6


def test_the_log_replayed_by_a_fresh_core_gives_the_same_commands(
    result: ComparedRun, setting: ComparisonSetup, tmp_path: Path
) -> None:
    """Through the file, with every invariant checked after every event."""
    write_log(tmp_path / "log", result.recording)
    events, recorded = read_log(tmp_path / "log")
    core = Core(core_config(setting, NONE.scheduler(result.policy, setting.given)))
    commands: list[Command] = []
    for event in events:
        commands.extend(core.handle(event))
        validate(core)
    assert digest(commands) == recorded


def test_nothing_is_started_on_a_lost_node(result: ComparedRun, setting: ComparisonSetup) -> None:
    names = [node.name for node in setting.given.cluster.nodes]
    lost, at_s = names.index("node-00001"), 0.0
    core = Core(core_config(setting, NONE.scheduler(result.policy, setting.given)))
    for event in result.recording.events:
        at_s = max(at_s, event.at_s)
        for command in core.handle(event):
            if isinstance(command, StartJob) and 3600.0 < at_s < 10_000.0:
                assert lost not in {one.node for one in command.allocations}


def test_a_budget_that_nobody_reaches_changes_nothing(
    result: ComparedRun, setting: ComparisonSetup
) -> None:
    free = simulate(replace(setting, budget=(), faults=(), record=False), result.policy)
    ample = simulate(replace(setting, budget=((0.0, 1e6),), faults=(), record=False), result.policy)
    assert [one.jct_s for one in free.outcomes] == [one.jct_s for one in ample.outcomes]
    assert free.row["energy_j"] == ample.row["energy_j"]


@pytest.mark.parametrize("name", ["muri-sigcomm22", "tiresias-nsdi19"])
@pytest.mark.parametrize("policy", ["srtf", "tiresias", "fifo"])
def test_gangs_of_a_lost_node_run_to_their_end_in_published_worlds(
    setting: ComparisonSetup, name: str, policy: str
) -> None:
    faults = tuple(
        kind(at_s=begin_s + after_s, node=f"node-{at:05}")
        for begin_s, at in ((1800.0, 1), (9000.0, 2), (16_200.0, 3))
        for kind, after_s in ((NodeLost, 0.0), (NodeReturned, 3600.0))
    )
    played = replace(setting, preset=preset(name), budget=(), faults=faults)
    assert simulate(played, policy).row["finished"] == 60
