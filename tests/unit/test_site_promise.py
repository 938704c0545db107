"""What a running service promises the grid: its own jobs, by what they draw at this moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import ClusterError
from wattherd.model.command import WakeAt
from wattherd.model.event import JobSubmitted, Woke
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.fifo_gang import FifoGang
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.site_promise import lowerable, site_promise
from wattherd.server.hardware.draw import DrawBook, DrawSample
from wattherd.testing.timed_world import t4_nodes

T4 = GPUS["T4"]
ASKED = {"limit_w": None, "lead_s": 600.0, "for_s": 3600.0, "sure": 0.95}


def a_look(*specs: JobSpec, by_job: dict[str, float], draw_w: float) -> SiteView:
    core = Core(CoreConfig(cluster=t4_nodes(8), planner=FifoGang()))
    for spec in specs:
        for command in core.handle(JobSubmitted(at_s=0.0, job=spec)):
            if isinstance(command, WakeAt):
                core.handle(Woke(at_s=command.at_s, key=command.key))
    book = DrawBook()
    if by_job:
        book.add(DrawSample(at_s=9.0, draw_w=draw_w, budget_w=None, by_job=by_job,
                            stated="measured"))  # fmt: skip
    machine: Any = SimpleNamespace(stated="measured")
    return SiteView(core, {}, book, machine, 0.0)


def a_job(name: str, gpus: int, **more: Any) -> JobSpec:
    return JobSpec(id=name, submit_s=0.0, roles=(TaskRole(count=gpus),), **more)


def test_jobs_can_be_lowered_to_their_lowest_cap_or_stopped_after_their_grace() -> None:
    look = a_look(a_job("j-1", 4, grace_s=40.0), by_job={"j-1": 250.0}, draw_w=400.0)
    (load,), other_w = lowerable(look, 10.0)
    assert other_w == pytest.approx(150.0)
    assert T4.min_cap_w is not None
    assert load.by_cap_w == pytest.approx(250.0 - 4 * T4.min_cap_w)
    assert load.by_stop_w == pytest.approx(250.0 - 4 * T4.idle_w)
    assert load.stop_s > 40.0


def test_who_draws_less_than_the_lowest_cap_is_not_lowered_by_one() -> None:
    look = a_look(a_job("j-1", 4), by_job={"j-1": 100.0}, draw_w=100.0)
    (load,), _ = lowerable(look, 10.0)
    assert load.by_cap_w == 0.0


def test_a_job_that_would_miss_its_deadline_is_promised_nothing_of() -> None:
    jobs = (
        a_job("late", 2, deadline_s=7200.0, duration_s=5000.0),
        a_job("early", 2, deadline_s=20_000.0, duration_s=5000.0),
        a_job("unknown", 2, deadline_s=20_000.0),
    )
    look = a_look(*jobs, by_job=dict.fromkeys(("late", "early", "unknown"), 139.0), draw_w=417.0)
    found = site_promise(look, 10.0, reduce_w=300.0, **ASKED)
    assert found["offer"]["capped"] + found["offer"]["stopped"] == ["early"]
    assert not found["met"]


def test_more_is_asked_for_than_there_is_and_the_most_is_offered() -> None:
    look = a_look(a_job("j-1", 8), by_job={"j-1": 550.0}, draw_w=700.0)
    found = site_promise(look, 10.0, **{**ASKED, "limit_w": 100.0}, reduce_w=None)
    assert (found["schema"], found["stated"]) == ("wattherd.promise/1", "measured")
    assert (found["draw_w"], found["asked_w"], found["met"]) == (700.0, 600.0, False)
    assert found["offer"]["stopped"] == ["j-1"]
    # One stop in a hundred fails, which is less than the five that may.
    assert found["offer"]["reduction_w"] == pytest.approx(550.0 - 8 * T4.idle_w, abs=1)


def test_who_asks_for_no_number_is_told_the_most_there_is() -> None:
    look = a_look(a_job("j-1", 8), by_job={"j-1": 550.0}, draw_w=700.0)
    found = site_promise(look, 10.0, reduce_w=None, **ASKED)
    assert (found["asked_w"], found["offer"]["stopped"]) == (700.0, ["j-1"])


def test_what_was_never_measured_is_not_promised() -> None:
    look = a_look(a_job("j-1", 1), by_job={}, draw_w=0.0)
    with pytest.raises(ClusterError, match="not known yet"):
        lowerable(look, 10.0)
