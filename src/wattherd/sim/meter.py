"""Energy, budget and bill of a simulated run, integrated exactly between events.

A device of a running job draws its cap (or what it draws uncapped), a free device its idle watts,
a sleeping node nothing. Energy of a restart's pause counts as wasted, not as run, and that of a
booting node as wake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import Core
from wattherd.estimate.rates import Bill, EnergyRates
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import Command, StartJob, WakeNode
from wattherd.model.event import Event, JobProgressed, JobStarted, JobSubmitted, Woke

UNMOVED: frozenset[type[Event]] = frozenset({JobProgressed, JobStarted, JobSubmitted, Woke})
"""Events that change nothing of what devices draw, unless orders follow from them."""


@dataclass(slots=True)
class EnergyMeter:
    """Watches a core from event to event; all energies in joules.

    `reaction_s` is how long after an unannounced budget change a shell may take; draw above the
    budget within it is `exempt_s`, not counted in `over_budget_s`. `boot_j` is what a wake-up costs
    beyond the idle draw of the node while it boots. Nothing is counted before `begin_s`.
    """

    core: Core
    restart_s: float = 0.0
    reaction_s: float = 0.0
    boot_j: float = 0.0
    begin_s: float = 0.0
    run_j: list[float] = field(default_factory=list)
    idle_j: list[float] = field(default_factory=list)
    wake_j: list[float] = field(default_factory=list)
    wasted_j: list[float] = field(default_factory=list)
    resting_j: list[float] = field(default_factory=list)
    """What waking nodes draw, and sleeping ones would if they were on."""
    over_budget_s: float = 0.0
    over_budget_j: float = 0.0
    exempt_s: float = 0.0
    exempt_j: float = 0.0
    _at_s: float = field(init=False)
    _stale: bool = False
    _run_w: float = 0.0
    _free_w: float = 0.0
    _waking_w: float = 0.0
    _asleep_w: float = 0.0
    _budget_w: float | None = None
    _surprised_s: float = -math.inf

    def __post_init__(self) -> None:
        """Begin to count at the beginning."""
        self._at_s = self.begin_s

    def until(self, now_s: float) -> None:
        """Integrate what is drawn up to then."""
        if self._stale:
            self._look()
        self._integrate(now_s - self._at_s)
        self._at_s = max(now_s, self._at_s)

    def mark(self) -> tuple[tuple[int, ...], float, float, float, float]:
        """What was counted so far (`sim.interval`)."""
        counts = tuple(len(one) for one in self._lists())
        return counts, self.over_budget_s, self.over_budget_j, self.exempt_s, self.exempt_j

    def rewind(self, mark: tuple[tuple[int, ...], float, float, float, float]) -> None:
        """Forget what was counted since."""
        counts, self.over_budget_s, self.over_budget_j, self.exempt_s, self.exempt_j = mark
        for joules, count in zip(self._lists(), counts, strict=True):
            del joules[count:]

    def _lists(self) -> tuple[list[float], ...]:
        return self.run_j, self.idle_j, self.wake_j, self.wasted_j, self.resting_j

    @property
    def ignores(self) -> frozenset[type[Event]]:
        """What changes nothing by itself."""
        return UNMOVED

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Count the restarts just ordered; what is drawn is looked at once time passes."""
        del event
        self._stale = True
        for command in commands:
            if type(command) is StartJob:
                if command.attempt > 1 and self.restart_s:
                    self.wasted_j.append(self.core.watts.held_w(command.job_id) * self.restart_s)
            elif type(command) is WakeNode:
                self.wake_j.append(self.boot_j)

    def _look(self) -> None:
        """Look at the core as it is since `_at_s`."""
        watts, cluster, rest = self.core.watts, self.core.config.cluster, self.core.rest
        self._stale = False
        self._waking_w, self._asleep_w = (
            _idle_w(cluster, nodes) for nodes in (rest.waking, rest.asleep)
        )
        self._run_w = watts.run_w
        self._free_w = watts.free_w - self._waking_w - self._asleep_w
        self._budget_w = watts.stated_w
        self._surprised_s = self.core.budgets.surprised_s.get("", -math.inf)

    @property
    def run_w(self) -> float:
        """What running jobs draw now."""
        return self._run_w

    @property
    def draw_w(self) -> float:
        """What everything draws now."""
        return self._run_w + self._free_w + self._waking_w

    @property
    def budget_w(self) -> float | None:
        """The budget in force, None without one."""
        return self._budget_w

    def _integrate(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self.idle_j.append(self._free_w * seconds)
        self.run_j.append(self._run_w * seconds)
        if self._waking_w:
            self.wake_j.append(self._waking_w * seconds)
        if self._waking_w or self._asleep_w:
            self.resting_j.append((self._waking_w + self._asleep_w) * seconds)
        above_w = self.draw_w - self._budget_w if self._budget_w is not None else 0.0
        late_s = self._at_s + seconds - (self._surprised_s + self.reaction_s)
        if above_w > 1e-6:
            counted_s = max(min(seconds, late_s), 0.0)
            self.over_budget_s += counted_s
            self.over_budget_j += above_w * counted_s
            self.exempt_s += seconds - counted_s
            self.exempt_j += above_w * (seconds - counted_s)

    @property
    def held_j(self) -> float:
        """Joules of all devices while jobs held them, restarts included."""
        return math.fsum(self.run_j)

    @property
    def free_j(self) -> float:
        """Joules of machines and of devices that nobody held, if no node had slept."""
        return math.fsum((*self.idle_j, *self.resting_j))

    def energy_j(self) -> dict[str, float]:
        """Joules by kind."""
        # A restart that is broken off was counted whole.
        wasted = min(math.fsum(self.wasted_j), self.held_j)
        return {
            "run": self.held_j - wasted,
            "idle": math.fsum(self.idle_j),
            "wake": math.fsum(self.wake_j),
            "wasted": wasted,
        }


def _idle_w(cluster: ClusterSpec, nodes: Sequence[int]) -> float:
    """What `nodes` draw when nothing runs on them."""
    if not nodes:
        return 0.0
    found = [cluster.nodes[node] for node in nodes]
    gpus_w = sum(GPUS[node.gpu_model].idle_w * node.gpu_count for node in found if node.gpu_count)
    return gpus_w + sum(node.idle_w for node in found)


@dataclass(slots=True)
class BillMeter:
    """What a run costs and emits: its draw from event to event, at the rates of that time.

    Watches beside the meter that knows the watts, which must watch before it.

    `start_s` is the Unix time of the run's beginning.
    """

    meter: EnergyMeter
    rates: EnergyRates
    start_s: float = 0.0
    bill: Bill = field(default_factory=Bill)
    _at_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin where the meter begins."""
        self._at_s = self.meter.begin_s

    def mark(self) -> Bill:
        """What was counted so far (`sim.interval`)."""
        return self.bill

    def rewind(self, mark: Bill) -> None:
        """Forget what was counted since."""
        self.bill = mark

    def until(self, now_s: float) -> None:
        """Add what was drawn up to then."""
        if now_s > self._at_s:
            from_s, until_s = self.start_s + self._at_s, self.start_s + now_s
            self.bill = self.bill.plus(self.rates.bill(self.meter.draw_w, from_s, until_s))
            self._at_s = now_s

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Booting a node takes its joules at once, in this account as in the meter's."""
        del event
        wakes = sum(type(one) is WakeNode for one in commands)
        if wakes and self.meter.boot_j:
            now_s = self.start_s + self._at_s
            watts = wakes * self.meter.boot_j
            self.bill = self.bill.plus(self.rates.bill(watts, now_s, now_s + 1.0))

    def row(self) -> dict[str, object]:
        """What it adds to the figures of a run (docs/reference/sim-json.md)."""
        bill = self.bill
        return {
            "cost": bill.cost,
            "currency": self.rates.currency,
            "co2e_kg": bill.co2e_kg,
            "unpriced_j": bill.unpriced_j,
            "unrated_j": bill.unrated_j,
        }
