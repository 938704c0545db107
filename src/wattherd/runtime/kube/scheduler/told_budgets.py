"""Budgets as a core was told of them; what changes since is told as events."""

from __future__ import annotations

from wattherd.engine.placer import Placer
from wattherd.model.event import BudgetChanged, Event
from wattherd.runtime.kube.pods.chooser import Chooser
from wattherd.runtime.kube.pods.core_config import domain_name


class ToldBudgets:
    """Of the domains of `chooser`, as far as they are the core's to guard."""

    def __init__(self, chooser: Chooser) -> None:
        """Nobody was told anything."""
        self._chooser = chooser
        self._told_mw: dict[str, int | None] = {}

    def all_w(self, placer: Placer) -> dict[str, float]:
        """For a core that is new: watts by domain, where there is a budget."""
        self._told_mw = self._now_mw(placer)
        return {name: mw / 1000 for name, mw in self._told_mw.items() if mw is not None}

    def news(self, placer: Placer, at_s: float) -> list[Event]:
        """What the core was not told yet."""
        told, self._told_mw = self._told_mw, self._now_mw(placer)
        return [
            BudgetChanged(
                at_s=at_s, budget_w=None if mw is None else mw / 1000, domain=domain_name(name)
            )
            for name, mw in sorted(self._told_mw.items())
            if told.get(name) != mw
        ]

    def _now_mw(self, placer: Placer) -> dict[str, int | None]:
        chooser = self._chooser
        return chooser.domains.guarded_mw(chooser.columns(), placer.state)
