"""Gavel's rounds under any legal sequence of events, with answers that come late, twice or never.

The same play as for the other planners (`test_core_machine`); the shell here also works things
out, when Hypothesis or the end of the play says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from core_shell import ComputingShell
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from test_core_machine import CLUSTER, FLAT, CoreMachine

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.policy.schedule.gavel import Gavel

TABLE = ThroughputTable({"t4": {("", scale): 0.5 * scale for scale in range(1, 41)}}, {})


def evenly(payload: Any) -> Any:
    jobs = len(payload["rates"])
    return {"shares": [[1.0 / jobs]] * jobs}


class GavelMachine(CoreMachine):
    goal = "max-min"
    roles = FLAT

    @initialize(round_s=st.none())
    def begin(self, round_s: float | None) -> None:
        planner = Gavel(table=TABLE, goal=self.goal)
        config = CoreConfig(cluster=CLUSTER, planner=planner, round_s=round_s)
        self.shell = ComputingShell(config, evenly)

    @precondition(lambda self: getattr(self, "shell", None) and self.shell.asked)
    @rule(found=st.booleans(), again=st.booleans())
    def answer(self, found: bool, again: bool) -> None:
        order = self.shell.asked.pop()
        self.shell.answer(order, found=found)
        if again:
            self.shell.answer(order)


class FifoMachine(GavelMachine):
    goal = "fifo"


@pytest.mark.parametrize("machine", [GavelMachine, FifoMachine])
def test_every_job_ends_whatever_happens(machine: type[GavelMachine]) -> None:
    machine.TestCase.settings = settings(max_examples=times(60), stateful_step_count=50)
    machine.TestCase().runTest()
