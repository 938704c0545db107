"""A newer service takes a store over: decisions of the time replay, and what runs goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")

from wattherd.engine.core.invariants import validate
from wattherd.local.devices import slots
from wattherd.model.event import BudgetChanged, JobExited, JobStarted, JobSubmitted, Woke
from wattherd.model.job import JobSpec
from wattherd.model.reason import ReasonCode
from wattherd.server.limits.site_limits import StartRamps
from wattherd.server.recovery.replay import JournalReplay
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.testing.timed_world import timed

NOW = Blueprint.of(ServeConfig(), slots("here", 4))
OLD = replace(NOW, policy="fifo-backfill", rules=0)
"""As a store has it that was made before there were rules, by the default of that time."""


def hand_in(replay: JournalReplay, job: JobSpec, at_s: float) -> None:
    tell(replay, JobSubmitted(at_s=at_s, job=job))


def tell(replay: JournalReplay, event: object) -> None:
    core = replay.state.core
    commands = core.handle(event)  # type: ignore[arg-type]
    while commands:
        command = commands.pop(0)
        at_s, key = getattr(command, "at_s", None), getattr(command, "key", None)
        if key is not None and at_s == core.now_s:
            commands += core.handle(Woke(at_s=at_s, key=key))
        if type(command).__name__ == "StartJob":
            commands += core.handle(
                JobStarted(at_s=core.now_s, job_id=command.job_id, attempt=command.attempt)  # type: ignore[union-attr]
            )
    validate(core)


def running(replay: JournalReplay) -> list[str]:
    return [job.id for job in replay.state.core.jobs.values() if job.active]


def test_texts_of_the_time_before_rules_stay_as_they_are() -> None:
    assert "rules" not in json.loads(OLD.text())
    assert Blueprint.read(OLD.text()) == OLD
    assert Blueprint.read(NOW.text()) == NOW


def test_by_default_a_higher_priority_goes_first_and_then_the_order_of_coming() -> None:
    replay = JournalReplay([(0, NOW)])
    hand_in(replay, timed("all", 4), 0.0)
    for at, (name, priority) in enumerate([("a", 0), ("low", -10), ("b", 0), ("high", 10)]):
        hand_in(replay, timed(name, 4, at_s=1.0 + at, priority=priority), 1.0 + at)
    order = []
    for at_s in range(10, 15):
        (now,) = running(replay)
        order.append(now)
        tell(replay, JobExited(at_s=float(at_s), job_id=now, attempt=1))
    assert order == ["all", "high", "a", "b", "low"]


def test_a_store_of_the_old_default_keeps_its_order_and_its_runs_and_then_counts_priority() -> None:
    replay = JournalReplay([(0, OLD)])
    hand_in(replay, timed("runs", 4), 0.0)
    hand_in(replay, timed("early", 4, at_s=1.0), 1.0)
    hand_in(replay, timed("high", 4, at_s=2.0, priority=10), 2.0)
    before = replay.state.core
    tell(replay, JobExited(at_s=5.0, job_id="runs", attempt=1))
    assert running(replay) == ["early"], "the order of the time"
    hand_in(replay, timed("late", 4, at_s=6.0), 6.0)
    hand_in(replay, timed("higher", 4, at_s=7.0, priority=20), 7.0)
    assert replay.take_on(NOW) == []
    assert replay.state.core is before
    assert running(replay) == ["early"], "nothing is begun again"
    tell(replay, JobExited(at_s=9.0, job_id="early", attempt=1))
    assert running(replay) == ["higher"]
    tell(replay, JobExited(at_s=10.0, job_id="higher", attempt=1))
    assert running(replay) == ["high"]


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "capacity", "gandiva"])
def test_an_upgrade_with_the_same_policy_sets_hopeless_jobs_aside_from_then_on(policy: str) -> None:
    old = replace(NOW, policy=policy, rules=0)
    replay = JournalReplay([(0, old)])
    gpu = NOW.gpu
    idle_w = NOW.node.idle_w + 4 * gpu.idle_w
    one_w = (gpu.min_cap_w or gpu.max_w / 2) - gpu.idle_w
    tell(replay, BudgetChanged(at_s=0.0, budget_w=idle_w + 1.5 * one_w))
    hand_in(replay, timed("runs", 1), 0.0)
    hand_in(replay, timed("wide", 4, at_s=1.0), 1.0)
    reason = replay.state.core.jobs["wide"].reason
    assert reason is not None
    assert reason.code is not ReasonCode.NEVER_FITS
    replay.take_on(replace(old, rules=NOW.rules))
    assert running(replay) == ["runs"]
    hand_in(replay, timed("more", 1, at_s=2.0), 2.0)
    reason = replay.state.core.jobs["wide"].reason
    assert reason is not None
    assert reason.code is ReasonCode.NEVER_FITS


def test_a_change_of_policy_that_was_hard_at_its_time_replays_so() -> None:
    """Between two settings without rules, jobs begin again, whatever the policies."""
    replay = JournalReplay([(0, OLD), (0, replace(OLD, policy="sjf"))])
    hand_in(replay, timed("runs", 4), 0.0)
    replay.take_on(replace(OLD, policy="fifo"))
    assert running(replay) == []


def test_other_devices_or_queues_are_never_taken_over_gently() -> None:
    fewer = Blueprint.of(ServeConfig(), slots("here", 2))
    assert not fewer.follows_gently(OLD)
    assert not replace(NOW, policy="drf").follows_gently(OLD)
    assert not replace(NOW, power="uniform").follows_gently(OLD)
    assert NOW.follows_gently(OLD)


def test_ramps_are_edited_without_anything_beginning_anew() -> None:
    ramped = replace(NOW, ramps=StartRamps(up_w_s=5.0))
    assert ramped.follows_gently(NOW)
    assert NOW.follows_gently(ramped)
    assert Blueprint.read(ramped.text()) == ramped
    assert "ramps" not in NOW.text()
