"""Gavel's rounds under any legal sequence of events, with answers that come late, twice or never.

The same play as for the other planners (`test_core_machine`); the shell here also works things
out, when Hypothesis or the end of the play says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from core_shell import Shell
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from test_core_machine import CLUSTER, FLAT, CoreMachine

from wattherd.engine.core import CoreConfig
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.command import Command, Compute
from wattherd.model.event import Computed
from wattherd.policy.schedule.gavel import Gavel

TABLE = ThroughputTable({"t4": {("", scale): 0.5 * scale for scale in range(1, 41)}}, {})


def evenly(payload: Any) -> Any:
    jobs = len(payload["rates"])
    return {"shares": [[1.0 / jobs]] * jobs}


class ComputingShell(Shell):
    """Also keeps what it was asked to work out."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.asked: list[Compute] = []

    def _obey(self, command: Command) -> None:
        if isinstance(command, Compute):
            self.asked.append(command)
        else:
            super()._obey(command)

    def answer(self, order: Compute, *, found: bool = True) -> None:
        result = evenly(order.payload) if found else None
        event = Computed(at_s=self.now_s, kind=order.kind, key=order.key, result=result)
        self.deliver(event)

    def _finish_step(self) -> None:
        if self.asked:
            self.answer(self.asked.pop())
        else:
            super()._finish_step()


class GavelMachine(CoreMachine):
    goal = "max-min"
    roles = FLAT

    @initialize(round_s=st.none())
    def begin(self, round_s: float | None) -> None:
        planner = Gavel(table=TABLE, goal=self.goal)
        self.shell = ComputingShell(CoreConfig(cluster=CLUSTER, planner=planner, round_s=round_s))

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
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
    machine.TestCase().runTest()
