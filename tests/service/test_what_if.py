"""A journal under another policy or budget: the same from outside, decided anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("sqlalchemy", reason="the extra `server` is not installed")

from wattherd.cli.sim_replay import replay
from wattherd.errors import UserError
from wattherd.local.devices import slots
from wattherd.model.event import BudgetChanged, JobCancelled, JobProgressed, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.recovery.what_if import WhatIfChange, read_past, what_if
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.store.database import in_folder
from wattherd.store.store import ClusterStore
from wattherd.testing.live import PaperExecutor, SetClock


class Day:
    """A day of a site with two slots, lived by hand into a store on disk."""

    def __init__(self, state: Path, **config: Any) -> None:
        state.mkdir()
        self.url = in_folder(state)
        self.blueprint = Blueprint.of(ServeConfig(**config), slots("n0", 2))
        self.store = ClusterStore.open(self.url)
        self.store.snapshots.begin_with(self.blueprint.text())
        from wattherd.engine.core.core import Core

        core = Core(self.blueprint.core_config(self.blueprint.scheduler()))
        self.hands, self.clock = PaperExecutor(), SetClock()
        self.keeper = CoreLoop(core, self.store.journal, self.clock)
        self.keeper.recover(self.hands)

    def at(self, at_s: float) -> Day:
        self.clock.at_s = at_s
        return self

    def turns(self) -> None:
        for _ in range(6):
            self.keeper.turn()

    def submit(self, gpus: int, **more: Any) -> str:
        spec = JobSpec(id="new", submit_s=0.0, roles=(TaskRole(gpu_count=gpus),), **more)
        done = self.keeper.submit(spec, {"run": "true"}, by="ann")
        self.turns()
        return done.result(0)

    def tell(self, *events: Any) -> None:
        for event in events:
            self.keeper.tell(event)
            self.turns()

    def done(self) -> str:
        self.store.close()
        return self.url


@pytest.fixture
def day(tmp_path: Path) -> Day:
    """A long job of both slots before two short ones: 100 s, then 10 s and 10 s."""
    day = Day(tmp_path / "state")
    long = day.at(0.0).submit(2, duration_s=90.0)
    day.tell(day.hands.started((long, 1)))
    first = day.at(1.0).submit(1, duration_s=10.0)
    second = day.at(2.0).submit(1, duration_s=10.0)
    day.at(100.0).tell(day.hands.exited((long, 1)))
    for job_id in (first, second):
        day.tell(day.hands.started((job_id, 1)))
    day.at(110.0)
    for job_id in (first, second):
        day.tell(day.hands.exited((job_id, 1)))
    return day


def test_the_same_policy_gives_what_was_lived(day: Day) -> None:
    lived, again = what_if(read_past(day.done()), WhatIfChange())
    assert lived["finished"] == again["finished"] == 3
    assert again["avg_jct_s"] == pytest.approx(lived["avg_jct_s"], abs=1.0)
    assert lived["avg_jct_s"] == pytest.approx((100 + 109 + 108) / 3)


def test_what_learns_from_real_jobs_cannot_be_tried_on_the_past(day: Day) -> None:
    with pytest.raises(UserError, match="aiturbo learns from what real jobs report"):
        what_if(read_past(day.done()), WhatIfChange(policies=("aiturbo",)))


def test_another_policy_decides_anew_by_what_users_expected(day: Day) -> None:
    _, again, other = what_if(read_past(day.done()), WhatIfChange(policies=("srtf",)))
    assert other["finished"] == 3
    assert other["policy"] == "srtf"
    assert other["avg_jct_s"] < again["avg_jct_s"]


def test_less_budget_is_slower_and_less_energy_a_second(day: Day) -> None:
    watts = day.blueprint.gpu.max_w * 2
    day.at(0.0)
    past = read_past(day.done())
    _, free, tight = what_if(past, WhatIfChange(budget=f"{0.6 * watts}W"))
    assert tight["avg_jct_s"] > 1.2 * free["avg_jct_s"]
    assert tight["over_budget_s"] == 0.0


def test_budgets_as_they_were_can_be_scaled(tmp_path: Path) -> None:
    day = Day(tmp_path / "state")
    most_w = day.blueprint.gpu.max_w * 2
    day.keeper.post(BudgetChanged(at_s=0.0, budget_w=most_w), by="ann")
    job = day.at(0.0).submit(2)
    day.tell(day.hands.started((job, 1)))
    day.at(50.0).tell(day.hands.exited((job, 1)))
    past = read_past(day.done())
    _, whole, half = what_if(past, WhatIfChange(budget="0.6x"))
    assert whole["avg_jct_s"] == pytest.approx(50.0, abs=1.0)
    assert half["avg_jct_s"] > 60.0
    for text in ("x", "0x", "-1x", "lots"):
        with pytest.raises(UserError, match=r"watts|factor|power|budget"):
            what_if(past, WhatIfChange(budget=text))


def test_what_comes_from_outside_comes_again(tmp_path: Path) -> None:
    day = Day(tmp_path / "state")
    job = day.at(0.0).submit(1)
    gone = day.submit(1)
    day.tell(day.hands.started((job, 1)), day.hands.started((gone, 1)))
    day.at(30.0).tell(NodeLost(at_s=0.0, node="n0"))
    day.at(40.0).tell(NodeReturned(at_s=0.0, node="n0"))
    day.tell(day.hands.started((job, 2)), day.hands.started((gone, 2)))
    day.keeper.post(JobCancelled(at_s=0.0, job_id=gone), by="ann")
    day.turns()
    day.tell(day.hands.stopped((gone, 2)))
    day.at(75.0).tell(day.hands.exited((job, 2)))
    past = read_past(day.done())
    assert past.works[job] == pytest.approx(35.0)
    lived, again = what_if(past, WhatIfChange())
    assert lived["finished"] == again["finished"] == 1
    assert again["avg_jct_s"] == pytest.approx(75.0, abs=1.0)


@pytest.mark.long
def test_jobs_that_did_not_end_are_projected_and_said_to_be(tmp_path: Path) -> None:
    day = Day(tmp_path / "state")
    job = day.at(0.0).submit(1)
    day.submit(2)
    day.tell(day.hands.started((job, 1)))
    progressed = JobProgressed(at_s=0.0, job_id=job, attempt=1, progress=25.0, total=100.0)
    day.at(10.0).tell(progressed)
    past = read_past(day.done())
    assert past.works == {job: pytest.approx(40.0)}
    assert dict(past.bases) == {
        "projected from its progress": 1,
        "left out: never ran, and nothing is known": 1,
    }


def test_the_command_prints_tables_and_documents(day: Day, tmp_path: Path) -> None:
    day.done()
    state = str(tmp_path / "state")
    told = CliRunner().invoke(replay, [state, "--policy", "srtf,fifo", "--budget", "0.9x"])
    assert told.exit_code == 0, told.output
    assert "lived (priority-backfill)" in told.output
    assert "3 measured" in told.output
    told = CliRunner().invoke(replay, [state, "--budget", "40W", "-o", "json"])
    document = json.loads(told.output)
    assert document["schema"] == "wattherd.what-if/1"
    assert [row["budget"] for row in document["runs"]] == ["as it was", "as it was", "40W"]


def test_a_store_in_use_can_be_read(day: Day) -> None:
    assert len(read_past(day.url).works) == 3
    day.done()
