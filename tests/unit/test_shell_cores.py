"""The cores of the service and of the Kubernetes scheduler decide as the simulator does.

Clocks leap and worlds are of paper here, so that this takes no time; the same script is played on
processes (`tests/contract/test_contract_processes.py`) and on a control plane
(`tests/kube/test_contract_plane.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from kube_builders import a_node
from kube_core_desk import CoreDesk, GangJob

from shell_contract import (
    EMPTY_W,
    GPU,
    LEARNERS,
    POLICIES,
    POWER,
    QUEUES,
    STEP_S,
    Budget,
    Decided,
    EndFirst,
    Places,
    Report,
    ScriptJob,
    ScriptPlant,
    ServiceShell,
    Step,
    happen,
    hold_to,
    hold_to_the_simulator,
    learning_script,
    nodes,
    simulated,
)
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.live import SetClock
from wattherd.testing.plant_executor import PlantExecutor


class PlantService(ServiceShell):
    """The service's loop around its core, and a plant that it drives by its own clock."""

    def __init__(self, policy: str, *, late: bool = False) -> None:
        self._clock = SetClock()
        super().__init__(policy, self._clock)
        self._plant = ScriptPlant((), late=late)
        self._executor = PlantExecutor(self._plant, self._clock, self.loop.tell)
        self.loop.recover(self._executor)
        self._step_s = STEP_S

    def end(self, name: str) -> None:
        (job_id,) = [job_id for job_id, known in self._names.items() if known == name]
        self.loop.tell(self._plant.end(job_id, self._clock.at_s))

    def happens(self) -> None:
        self.loop.turn()

    def let_pass(self, seconds: float) -> None:
        self._step_s = seconds

    def until(self, true: Callable[[], bool]) -> None:
        """A step lasts as long as in the simulator, whatever comes of it."""
        end_s = self._clock.at_s + self._step_s
        self._step_s = STEP_S
        self._settle()
        while (next_s := self._next_s()) < end_s:
            self._executor.advance(max(self._clock.at_s, next_s))
            self._settle()
        self._executor.advance(end_s)

    def first(self) -> str:
        """The job that runs and was started first."""
        return self._names[next(iter(self._plant.running()))]

    def _next_s(self) -> float:
        wake_s = self.loop.orders.next_wake_s()
        return math.inf if wake_s is None else wake_s

    def _settle(self) -> None:
        """Turns, until nothing more follows at this time."""
        before = -1
        while before < len(self.journal.kept):
            before = len(self.journal.kept)
            self.loop.turn()
            if len(self.journal.kept) == before:
                for event in self._plant.read_back(self._clock.at_s):
                    self.loop.tell(event)
                self.loop.turn()


class DeskScheduler:
    """The Kubernetes scheduler at a desk: what it orders is done, and seen by it, at once.

    The budget is that of a `domain` that feeds all nodes, empty for the site.
    """

    def __init__(self, policy: str, domain: str) -> None:
        self._desk = CoreDesk(nodes(), core_choice(policy, POWER), queues=QUEUES)
        self._step_s = STEP_S
        self._domain = domain
        for made in self._desk.nodes.values() if domain else ():
            made["metadata"]["labels"]["wattherd.dev/power-domain"] = domain
            self._desk.scheduler.node_seen(a_node(made))

    def submit(self, job: ScriptJob) -> None:
        made = GangJob(
            name=job.name,
            at_s=self._desk.now_s,
            duration_s=3600.0 * job.hours,
            pods=job.pods,
            gpus=job.gpus,
            priority=job.priority,
            queue=job.queue,
            user=job.user,
        )
        self._desk.submit(made)

    def budget(self, watts: float) -> None:
        scheduler = self._desk.scheduler
        scheduler.power_seen(scheduler.domains.tree, {self._domain: round(1000 * watts)})

    def end(self, name: str) -> None:
        self._desk.end(name)

    def let_pass(self, seconds: float) -> None:
        self._step_s = seconds

    def report(self, told: Report) -> None:
        if told.name in self._desk.running():
            self._desk.report(told.name, step=told.done, total=told.total)

    def until(self, true: Callable[[], bool]) -> None:
        """A step lasts as long as in the simulator, whatever comes of it."""
        self._desk.pass_by(self._step_s)
        self._step_s = STEP_S

    def decided(self) -> Decided:
        story, running = self._desk.story, self._desk.running()
        caps_w = {name: cap_w for (_, name), cap_w in self._desk.capped_w.items()}
        return Decided(
            tuple((name, _merged(places)) for _, what, name, places in story if what == "start"),
            tuple(name for _, what, name, _ in story if what == "stop"),
            {name: caps_w.get(name, GPU.max_w) for name in running},
        )


class Deaf:
    """A shell to which nobody reports."""

    def __init__(self, shell: DeskScheduler) -> None:
        self._shell = shell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shell, name)

    def report(self, told: Report) -> None:
        """It hears nothing."""


def _merged(places: Places) -> Places:
    """Pods that share a node are one place."""
    found: dict[str, list[int]] = {}
    for node, gpus in places:
        found.setdefault(node, []).extend(gpus)
    return tuple((node, tuple(sorted(gpus))) for node, gpus in sorted(found.items()))


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_service_decides_as_the_simulator_does(policy: str, *, late: bool) -> None:
    shell = PlantService(policy, late=late)
    try:
        hold_to_the_simulator(policy, shell)
    finally:
        shell.loop.end()


@pytest.mark.parametrize("domain", ["", "hall"], ids=["site", "hall"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_kubernetes_scheduler_decides_as_the_simulator_does(policy: str, domain: str) -> None:
    hold_to_the_simulator(policy, DeskScheduler(policy, domain))


def served(policy: str) -> list[tuple[Step, Decided]]:
    """Each step of the script in which jobs report, as the service decides."""
    shell, found = PlantService(policy), list[tuple[Step, Decided]]()
    try:
        for step in learning_script():
            told = EndFirst(shell.first()) if isinstance(step, EndFirst) else step
            happen(told, shell)
            shell.until(lambda: True)
            found.append((told, shell.decided()))
    finally:
        shell.loop.end()
    return found


@pytest.mark.parametrize("policy", LEARNERS)
def test_on_kubernetes_what_jobs_report_leads_to_the_same_as_in_the_service(policy: str) -> None:
    hold_to(policy, served(policy), DeskScheduler(policy, ""))


def test_reports_are_heeded() -> None:
    """Else shells that hear none of them would pass."""
    heard, deaf = served("optimus"), DeskScheduler("optimus", "")
    with pytest.raises(AssertionError, match=r"starts|stops"):
        hold_to("optimus", heard, Deaf(deaf))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_script_is_worth_playing(policy: str) -> None:
    """Under every policy a cut stops somebody and caps others, who rise again with the budget."""
    played = simulated(policy)
    steps = [step for step, _ in played]
    first, cut, *_, last = [at for at, step in enumerate(steps) if isinstance(step, Budget)]
    before, after = played[cut - 1][1], played[cut][1]
    assert first < cut < last
    assert len(after.stops) > len(before.stops)
    assert min(after.caps_w.values()) < GPU.max_w
    assert set(played[last][1].caps_w.values()) == {GPU.max_w}
    assert {step.name for step in steps if isinstance(step, EndFirst)} <= {*"abcdefgh"}
    budget_w = math.inf
    for step, told in played:
        budget_w = step.watts if isinstance(step, Budget) else budget_w
        draws_w = EMPTY_W + sum(
            (told.caps_w[name] - GPU.idle_w) * _gpus(told, name) for name in told.caps_w
        )
        assert draws_w <= budget_w + 1e-6


def _gpus(told: Decided, name: str) -> int:
    (*_, places) = [places for started, places in told.starts if started == name]
    return sum(len(gpus) for _, gpus in places)


def test_srtf_priority_and_others_really_differ() -> None:
    """Else a shell that ran one policy for all of them would pass."""
    played = [simulated(policy)[-1][1] for policy in POLICIES]
    assert len({(told.starts, told.stops) for told in played}) == len(POLICIES)
