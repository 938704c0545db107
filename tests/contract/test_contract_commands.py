"""One scenario for each order of the core: the same story, simulated and with processes.

Sleeping and waking have none: one machine cannot switch itself off, and its core never asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from shells import Setup, Shell

from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn
from wattherd.local.devices import slots
from wattherd.policy.contract import Draft, Planner, View
from wattherd.policy.queue.reclaim import Reclaim
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import Fifo

Begin = Callable[[Setup], Shell]
MACHINE = slots("here", 2)
FIFO = in_turn(OrderedTerms(), Fifo(), Discipline.STRICT)


def two_queues(*, lent_pct: float = 100.0) -> QueueTree:
    ways = [
        CapacityQueue(name=name, guaranteed_pct=50.0, maximum_pct=lent_pct, user_limit_factor=2.0)
        for name in "ab"
    ]
    return QueueTree(CapacityQueue(name="root", children=tuple(ways)))


@pytest.fixture
def site(begin: Begin) -> Shell:
    return begin(Setup(machine=MACHINE, planner=FIFO))


def test_start_and_finish(site: Shell) -> None:
    job = site.submit(0.3)
    site.wait("Succeeded", job)
    assert site.story(job) == ["start on 1", "started", "exited 0", "Succeeded"]


def test_stop_with_a_checkpoint_and_go_on(site: Shell) -> None:
    job = site.submit(1.0)
    site.wait("Running", job)
    site.hold(job)
    site.wait("Held", job)
    site.release(job)
    site.wait("Succeeded", job)
    assert site.story(job) == [
        *("start on 1", "started", "stop: UserRequest", "stopped"),
        *("start on 1", "started", "exited 0", "Succeeded"),
    ]


def test_cancel(site: Shell) -> None:
    job = site.submit()
    site.wait("Running", job)
    site.cancel(job)
    site.wait("Cancelled", job)
    assert site.story(job) == ["start on 1", "started", "stop: UserRequest", "stopped", "Cancelled"]


def test_reject(site: Shell) -> None:
    job = site.submit(width=3)
    site.wait("Failed", job)
    assert site.story(job) == ["rejected: NeverFits"]


def test_a_time_limit_stops_for_good(site: Shell) -> None:
    job = site.submit(time_limit_s=1.0)
    site.wait("TimedOut", job)
    assert site.story(job) == ["start on 1", "started", "stop: TimeLimit", "stopped", "TimedOut"]


def test_caps_follow_the_budget(site: Shell) -> None:
    """Below what both devices may draw, the one that runs is capped; without a budget it is not."""
    gpu = MACHINE.gpu
    job = site.submit()
    site.wait("Running", job)
    site.budget(gpu.idle_w + (gpu.min_cap_w + gpu.max_w) / 2)
    site.has(job, "capped")
    site.budget(None)
    site.has(job, "uncapped")
    site.cancel(job)
    site.wait("Cancelled", job)
    heard = [word for word in site.story(job) if "cap" in word]
    assert heard == ["cap", "capped", "uncap", "uncapped"]


def test_a_smaller_micro_batch_comes_before_a_duty(site: Shell) -> None:
    """At 16 samples the device was measured above its cap, at 8 below it: there it stays."""
    gpu = MACHINE.gpu
    job = site.submit(batch_size=64, micro_batches=(16, 8, 4))
    site.wait("Running", job)
    cap_w = (gpu.min_cap_w + gpu.max_w) / 2
    site.budget(gpu.idle_w + cap_w)
    site.has(job, "capped")
    site.drew(job, 0.0, micro_batch=None, duty=1.0)
    site.has(job, "batch 16", "trains with 16")
    site.drew(job, gpu.max_w, micro_batch=16, duty=1.0)
    site.has(job, "batch 8", "trains with 8")
    half_w = gpu.idle_w + 0.5 * (0.8 * cap_w - gpu.idle_w)
    site.drew(job, half_w, micro_batch=8, duty=0.5)
    site.drew(job, 0.8 * cap_w, micro_batch=8, duty=1.0)
    site.cancel(job)
    site.wait("Cancelled", job)
    assert "trains with 4" not in site.story(job)


def test_an_elastic_job_is_narrowed_before_any_is_paused(site: Shell) -> None:
    gpu = MACHINE.gpu
    job = site.submit(width=2, least=1)
    site.wait("Running", job)
    site.budget(gpu.idle_w + gpu.min_cap_w + 0.01)
    site.has(job, "stop: Resized", "stopped", "start on 1")
    site.cancel(job)
    site.wait("Cancelled", job)
    assert site.story(job)[:5] == [
        *("start on 2", "started", "stop: Resized", "stopped", "start on 1"),
    ]


def test_notice_before_what_was_lent_is_taken_back(begin: Begin) -> None:
    at_once = Reclaim(wait_s=1.0, per_cycle=1.0, dead_zone=0.0, natural=1.0)
    tree = two_queues()
    planner = CapacityScheduler(tree=tree, reclaim=at_once)
    site = begin(Setup(machine=MACHINE, planner=planner, quota=tree))
    first, second = site.submit(queue="a"), site.submit(queue="a")
    site.wait("Running", first, second)
    owner = site.submit(0.3, queue="b")
    site.wait("Succeeded", owner)
    assert site.story(second)[:5] == [
        *("start on 1", "started", "notice: Reclaimed", "stop: Reclaimed", "stopped"),
    ]
    assert site.story(first) == ["start on 1", "started"]


@dataclass(frozen=True)
class AsksFirst:
    """Lets nobody start before its question was answered with 42."""

    then: Planner

    def plan(self, view: View, draft: Draft) -> None:
        answer = view.computed("sum")
        if answer is None:
            if "asked" not in view.memory:
                view.memory["asked"] = draft.compute("sum", [40, 2])
        elif answer.result == 42:
            self.then.plan(view, draft)


def test_compute_is_answered_before_the_plan(begin: Begin) -> None:
    site = begin(Setup(machine=MACHINE, planner=AsksFirst(Drf()), computers={"sum": sum}))
    job = site.submit(0.3)
    site.wait("Succeeded", job)
    assert site.story(job) == ["start on 1", "started", "exited 0", "Succeeded"]
