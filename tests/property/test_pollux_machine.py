"""Pollux under any legal sequence of events, with answers that come late, twice or never."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from core_shell import ComputingShell
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from test_core_machine import CLUSTER, FLAT, WIDE, CoreMachine

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.model.event import JobMeasured
from wattherd.model.training import BatchRange, StepTime, TrainingReport
from wattherd.policy.schedule.pollux import Pollux
from wattherd.policy.schedule.pollux_search import KINDS, searchers

SEARCH = searchers(np.random.default_rng)[KINDS["genetic"]]


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data))


def search(payload: Any) -> Any:
    """As outside of the core: through plain data both ways."""
    return through_json(SEARCH(through_json(payload)))


@st.composite
def reports(draw: st.DrawFn) -> TrainingReport:
    """Anything an agent could say."""
    seconds = st.floats(1e-8, 10.0)
    names = ("pass_s", "sample_s", "network_sync_s", "network_ring_s", "node_sync_s", "node_ring_s")
    least = draw(st.integers(1, 64))
    initial = draw(st.integers(least, 512))
    return TrainingReport(
        step_time=StepTime(
            **{name: draw(seconds) for name in names}, overlap=draw(st.floats(1, 10))
        ),
        grad_sqr=draw(st.floats(0, 1e3)),
        grad_var=draw(st.floats(0, 1e3)),
        most_replicas=draw(st.integers(1, 10)),
        batches=BatchRange(
            initial=initial,
            most=draw(st.integers(initial, 8192)),
            least_local=least,
            most_local=draw(st.integers(least, 1024)),
        ),
    )


class PolluxMachine(CoreMachine):
    roles = st.one_of(FLAT, WIDE)

    @initialize(round_s=st.sampled_from([None, 60.0]))
    def begin(self, round_s: float | None) -> None:
        interval_s = None if round_s else 60.0
        planner = Pollux(interval_s=interval_s, population=20, generations=10)
        config = CoreConfig(cluster=CLUSTER, planner=planner, round_s=round_s)
        self.shell = ComputingShell(config, search)

    @precondition(lambda self: getattr(self, "shell", None) and self.shell.asked)
    @rule(found=st.booleans(), again=st.booleans())
    def answer(self, found: bool, again: bool) -> None:
        order = self.shell.asked.pop()
        self.shell.answer(order, found=found)
        if again:
            self.shell.answer(order)

    @precondition(lambda self: self.shell.runs)
    @rule(number=st.integers(0, 99), report=reports())
    def measure(self, number: int, report: TrainingReport) -> None:
        run = self.pick(list(self.shell.runs.values()), number)
        self.shell.deliver(
            JobMeasured(
                at_s=self.shell.now_s, job_id=run.job_id, attempt=run.attempt, report=report
            )
        )


def test_every_job_ends_whatever_happens() -> None:
    PolluxMachine.TestCase.settings = settings(max_examples=times(60), stateful_step_count=50)
    PolluxMachine.TestCase().runTest()
