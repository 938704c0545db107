"""The account in numbers, as Prometheus reads it: who is held, who is only promised, what counts.

Whoever compares it with what the API shows finds what leaked: a promise that nobody takes up, watts
that nobody draws, a pod that is counted and is no more. Names and meanings stand in
`server.site.metric_names`; here is what is told of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.overview import draw_of
from wattherd.kube.api.objects import Node

PREFIX = "wattherd_kube_"
Series = dict[str, list[tuple[tuple[str, ...], float]]]
"""By metric, values with their labels."""
_LONGEST_S = 60.0
"""A reading is taken for the draw until the next one, but for no longer than that."""


class Tally(Protocol):
    """Who counts what happens; metrics are named without their prefix."""

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Something happened."""
        ...

    def took(self, name: str, seconds: float, *labels: str) -> None:
        """Something took so long."""
        ...


class Untold:
    """Nobody counts."""

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Implements Tally."""

    def took(self, name: str, seconds: float, *labels: str) -> None:
        """Implements Tally."""


def ledger(chooser: Chooser) -> Series:
    """The whole site is the domain without a name.

    `seen` are pods on nodes, as the API shows them or as a silent node may still run them,
    `promised` those that are being bound.
    """
    fleet, domains = chooser.fleet, chooser.domains
    promised, placer = len(fleet.reserved), fleet.placer
    counted_mw = {} if placer is None else chooser.carried_mw(placer.state)
    return {
        f"{PREFIX}pods": [
            (("seen",), len(fleet.holdings) - promised),
            (("promised",), promised),
        ],
        f"{PREFIX}counted_watts": _by_domain(counted_mw),
        f"{PREFIX}budget_watts": _by_domain(domains.budgets_mw),
    }


def _by_domain(mw: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((name,), watts / 1000) for name, watts in sorted(mw.items())]


@dataclass(slots=True)
class NodeDraws:
    """What agents say that nodes draw, and for how long domains are above their budgets."""

    chooser: Chooser
    tally: Tally
    _drawn: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By node, watts and since when."""
    _looked_s: float | None = None

    def node_seen(self, node: Node, now_s: float) -> None:
        """A node is there, or changed: up to now it has drawn what it said last."""
        name = node.metadata.name
        self.node_gone(name, now_s)
        draw_w = draw_of(node, time.time())
        if draw_w is not None:
            self._drawn[name] = draw_w, now_s

    def node_gone(self, name: str, now_s: float) -> None:
        """It is no more, or says something else."""
        if name in self._drawn:
            draw_w, since_s = self._drawn.pop(name)
            joules = draw_w * min(now_s - since_s, _LONGEST_S)
            self.tally.count("node_energy_joules_total", name, by=joules)

    def look(self, now_s: float) -> None:
        """Between two looks a domain was above its budget if it is so now.

        Its metered nodes are the least that it draws; what counts is the most.
        """
        before_s, self._looked_s = self._looked_s, now_s
        budgets_mw, placer = self.chooser.domains.budgets_mw, self.chooser.fleet.placer
        if before_s is None or not budgets_mw or placer is None:
            return
        counted_mw, measured_w = self.chooser.carried_mw(placer.state), self._by_domain()
        for name, mw in budgets_mw.items():
            drawn = {"counted": counted_mw[name], "measured": round(1000 * measured_w[name])}
            for basis, drawn_mw in drawn.items():
                by = now_s - before_s if drawn_mw > mw else 0.0
                self.tally.count("over_budget_seconds_total", name, basis, by=by)

    def _by_domain(self) -> Mapping[str, float]:
        fleet, tree = self.chooser.fleet, self.chooser.domains.tree
        found: defaultdict[str, float] = defaultdict(float)
        for name, (draw_w, _) in self._drawn.items():
            facts = fleet.nodes.get(name)
            for domain in () if facts is None else tree.path(facts.domain):
                found[domain] += draw_w
        return found

    def series(self) -> Series:
        """What each node drew when its agent looked last."""
        drawn = sorted(self._drawn.items())
        return {f"{PREFIX}node_draw_watts": [((name,), draw_w) for name, (draw_w, _) in drawn]}
