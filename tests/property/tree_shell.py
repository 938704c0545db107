"""A shell that knows which watts every domain of a power tree carries in its world.

Its book is its own, in floats: the cap that a device may still be at, losses by division.
"""

from __future__ import annotations

from core_shell import Run, Shell

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import CoreConfig
from wattherd.model.command import Command, SetCap, StartJob
from wattherd.model.event import BudgetChanged, CapApplied, Event
from wattherd.model.power_tree import PowerTree

SLACK = 1e-6


class TreeShell(Shell):
    """Checks after every event that nothing rises above a budget."""

    def __init__(self, config: CoreConfig, tree: PowerTree) -> None:
        super().__init__(config)
        self.tree = tree
        self.applied_w: dict[tuple[str, int], float] = {}
        self.sent: dict[tuple[str, int], list[SetCap]] = {}
        """Orders for caps that are on their way, oldest first."""
        self.budgets_w = {one.name: one.budget_w for one in tree.domains}
        self.site_w: float | None = None
        self._feeder = {node: one.name for one in tree.domains for node in one.nodes}
        self.carried_w = self.carry()

    def deliver(self, event: Event) -> None:
        before = self.carried_w
        if isinstance(event, BudgetChanged):
            if event.domain:
                self.budgets_w[event.domain] = event.budget_w
            else:
                self.site_w = event.budget_w
        super().deliver(event)
        self.carried_w = self.carry()
        for name, carried_w in self.carried_w.items():
            limit_w = self.limit_w(name)
            rose = carried_w > before[name] * (1 + SLACK)
            assert not (rose and carried_w > limit_w * (1 + SLACK)), f"{name} rose above its budget"
        self.check_settled()

    def check_settled(self) -> None:
        """Once the world has done what it was told, no domain is above its budget."""
        if any(run.cap_order for run in self.runs.values()) or self.with_status("stopping"):
            return
        idle_w = self.carry(idle=True)
        for name, carried_w in self.carried_w.items():
            limit_w = max(self.limit_w(name), idle_w[name])
            assert carried_w <= limit_w * (1 + SLACK), f"{name}: {carried_w} of {limit_w} W"

    def limit_w(self, name: str) -> float:
        known = [self.budgets_w[name]]
        if name == self.tree.root.name:
            known.append(self.site_w)
        return min((one for one in known if one is not None), default=float("inf"))

    def carry(self, *, idle: bool = False) -> dict[str, float]:
        """Watts at the input of every domain, if all runs draw their caps."""
        found = {one.name: 0.0 for one in self.tree.domains}
        for at, node in enumerate(self.config.cluster.nodes):
            idle_w = GPUS[node.gpu_model].idle_w
            drawn_w = node.idle_w
            for gpu in range(node.gpu_count):
                caps = [
                    self.cap_w(key)
                    for key, run in self.runs.items()
                    if not idle and any(p.node == at and gpu in p.gpus for p in run.parts)
                ]
                drawn_w += max([idle_w, *caps])
            for domain in self.tree.path_to_root(self._feeder[node.name]):
                drawn_w /= 1 - domain.loss
                found[domain.name] += drawn_w
        return found

    def _obey(self, command: Command) -> None:
        super()._obey(command)
        match command:
            case StartJob():
                key = command.job_id, command.attempt
                self.applied_w[key], self.sent[key] = as_watts(command.cap_w), []
            case SetCap():
                key = command.job_id, command.attempt
                self.sent[key].append(command)
                self.runs[key].cap_order = self.sent[key][0]

    def capped(self, run: Run) -> None:
        """The oldest order has arrived; others may follow it."""
        key = run.job_id, run.attempt
        order = self.sent[key].pop(0)
        self.applied_w[key] = as_watts(order.cap_w)
        run.cap_order = self.sent[key][0] if self.sent[key] else None
        self.deliver(
            CapApplied(at_s=self.now_s, job_id=run.job_id, attempt=run.attempt, cap_w=order.cap_w)
        )

    def cap_w(self, key: tuple[str, int]) -> float:
        """The highest cap that a run may be at, before all orders on their way have arrived."""
        return max(self.applied_w[key], *(as_watts(one.cap_w) for one in self.sent[key]), 0.0)

    def finish(self) -> None:
        """Nothing that was announced is still to come, and no budget is left."""
        self.now_s += 1000.0
        for name in self.budgets_w:
            self.deliver(BudgetChanged(at_s=self.now_s, budget_w=None, domain=name))
        super().finish()


def as_watts(cap_w: float | None) -> float:
    return GPUS["T4"].max_w if cap_w is None else cap_w
