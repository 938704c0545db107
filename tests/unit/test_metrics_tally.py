"""What is counted of the lives of jobs, of caps, and of what the guard refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `server` is not installed")

from prometheus_client import generate_latest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.power_curve import prior_curve
from wattherd.experiments.schedule.run import power_policy
from wattherd.model.event import BudgetChanged, JobCancelled, JobHeld, JobReleased
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Draft, Share, View
from wattherd.policy.schedule.drf import Drf
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.site.metric_names import METRICS, page
from wattherd.server.site.metrics_tally import READ_ON_SCRAPE, MetricsTally
from wattherd.testing.live import MemoryJournal, PaperExecutor, SetClock
from wattherd.testing.timed_world import t4_nodes

REPOSITORY = Path(__file__).parents[2]


class Site:
    """A keeper whose turns are taken by hand, and what is counted of it."""

    def __init__(self) -> None:
        curve = prior_curve(GPUS["T4"])
        self.core = Core(
            CoreConfig(
                cluster=t4_nodes(2),
                planner=Drf(),
                round_s=0.0,
                power=power_policy("uniform"),
                curve_of=lambda *_: curve,
            )
        )
        self.hands, self.clock = PaperExecutor(), SetClock()
        self.tally = MetricsTally("drf", lambda _: 5e3)
        self.keeper = CoreLoop(
            self.core,
            MemoryJournal(),
            self.clock,
            on_turn=lambda told: self.tally.told(told, self.core.jobs),
            on_cycle=self.tally.cycle,
        )
        self.keeper.recover(self.hands)

    def submit(self, gpus: int = 1, **more: Any) -> str:
        spec = JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=gpus),), **more)
        done = self.keeper.submit(spec, {"run": "true"}, by="ann")
        self.turns()
        return done.result(0)

    def turns(self, at_s: float | None = None) -> None:
        self.clock.at_s = self.clock.at_s if at_s is None else at_s
        for _ in range(5):
            self.keeper.turn()

    def of(self, name: str, **labels: str) -> float:
        value: float | None = self.tally.registry.get_sample_value(name, labels)
        return value or 0.0

    def steps(self) -> dict[tuple[str, str, str], float]:
        (family,) = [f for f in self.tally.registry.collect() if "transitions" in f.name]
        return {tuple(s.labels[n] for n in ("from", "to", "reason")): s.value
                for s in family.samples}  # type: ignore[misc] # fmt: skip


def test_a_life_is_counted_step_by_step() -> None:
    site = Site()
    site.clock.at_s = 3.0
    job_id = site.submit(duration_s=20.0)
    site.keeper.tell(site.hands.started((job_id, 1)))
    site.turns(4.0)
    site.keeper.tell(site.hands.exited((job_id, 1)))
    site.turns(33.0)
    assert site.steps() == {
        ("New", "Queued", "submit"): 1,
        ("Queued", "Starting", "start"): 1,
        ("Starting", "Running", "started"): 1,
        ("Running", "Succeeded", "succeed"): 1,
    }
    assert site.of("wattherd_job_wait_seconds_sum", queue="default") == 0.0
    assert site.of("wattherd_job_run_seconds_sum", queue="default") == 30.0
    assert site.of("wattherd_job_energy_joules_sum", queue="default") == 5e3
    assert site.of("wattherd_estimate_error_ratio_sum", kind="duration") == 1.5
    assert site.of("wattherd_plan_items_total", kind="start", outcome="started") == 1
    assert site.of("wattherd_cycle_seconds_count", policy="drf") >= 3


def test_what_comes_in_one_turn_is_counted_in_full() -> None:
    site = Site()
    job_id = site.submit()
    site.keeper.tell(site.hands.started((job_id, 1)))
    site.keeper.tell(site.hands.exited((job_id, 1)))
    site.turns(1.0)
    assert site.steps()["Starting", "Running", "started"] == 1
    assert site.steps()["Running", "Succeeded", "succeed"] == 1


def test_holds_cancellations_and_dependents_are_counted() -> None:
    site = Site()
    first = site.submit()
    second = site.submit(after=(first,))
    site.keeper.post(JobHeld(at_s=0.0, job_id=first), by="ann")
    site.turns()
    site.keeper.tell(site.hands.stopped((first, 1)))
    site.turns()
    site.keeper.post(JobReleased(at_s=0.0, job_id=first), by="ann")
    site.turns()
    site.keeper.tell(site.hands.exited((first, 2)))
    site.turns()
    site.keeper.post(JobCancelled(at_s=0.0, job_id=second), by="ann")
    site.turns()
    steps = site.steps()
    assert steps["New", "Blocked", "submit"] == 1
    assert (
        steps["Starting", "Stopping", "UserRequest"] == 2
    )  # the second is cancelled while it starts
    assert steps["Stopping", "Held", "hold"] == 1
    assert steps["Held", "Queued", "release"] == 1
    assert steps["Blocked", "Queued", "unblock"] == 1
    assert site.of("wattherd_plan_items_total", kind="stop", outcome="stopped") == 1


def test_caps_are_counted_when_they_are_read_back() -> None:
    site = Site()
    job_id = site.submit()
    site.keeper.tell(site.hands.started((job_id, 1)))
    site.keeper.post(BudgetChanged(at_s=0.0, budget_w=500.0), by="ann")
    site.turns(2.0)
    site.keeper.post(BudgetChanged(at_s=0.0, budget_w=75.0), by="ann")
    site.turns(2.0)
    first, *_, last = [cap_w for _, _, cap_w in site.hands.caps]
    assert last is not None
    assert first is not None
    assert last < first
    site.keeper.tell(site.hands.capped((job_id, 1), last))
    site.turns(2.75)
    assert site.of("wattherd_cap_changes_total", direction="lower", result="superseded") == 1
    assert site.of("wattherd_cap_changes_total", direction="lower", result="applied") == 1
    assert site.of("wattherd_cap_apply_seconds_sum") == 0.75


class Reckless:
    """Proposes every job on the first node, whether or not it fits."""

    def plan(self, view: View, draft: Draft) -> None:
        for job in view.live():
            if not job.wanted:
                draft.start(job, (Share(0, 1),))


def test_the_guard_counts_what_it_refuses() -> None:
    core = Core(CoreConfig(cluster=t4_nodes(1), planner=Reckless(), round_s=0.0))
    keeper = CoreLoop(core, MemoryJournal(), SetClock())
    keeper.recover(PaperExecutor())
    for _ in range(3):
        spec = JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=1),))
        keeper.submit(spec, {}, by="ann")
    for _ in range(5):
        keeper.turn()
    assert core.strikes == {"WaitingForGpus": 2}


def test_names_keep_the_rules_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"wattherd_[a-z0-9_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert name.endswith("_info") == (metric.kind == "info")
        assert (metric.buckets != ()) == (metric.kind == "histogram")
        assert metric.help.endswith(".")


def test_the_reference_page_is_fresh() -> None:
    assert (REPOSITORY / "docs" / "reference" / "metrics.md").read_text() == page()


def test_nothing_is_exposed_that_the_page_does_not_name() -> None:
    site = Site()
    site.submit()
    text = generate_latest(site.tally.registry).decode()
    exposed = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert exposed <= set(METRICS)
    assert "_created" not in text


def test_a_counter_is_told_by_the_tally_or_on_scrape_and_never_by_both() -> None:
    """A family that is told twice makes the whole page invalid for Prometheus."""
    text = (REPOSITORY / "src" / "wattherd" / "server" / "api" / "metrics.py").read_text()
    read = {
        name
        for name, metric in METRICS.items()
        if metric.kind == "counter" and (f'"{name}"' in text or name.startswith("wattherd_level_"))
    }
    assert read == READ_ON_SCRAPE
