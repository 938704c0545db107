"""Watts of power domains: what their nodes may draw at most, and what one more pod would add.

Counted as by a core's guard (`engine.power.account`): a device in use at its maximum, a free one
at its idle watts, a shared one once, and what the machine draws beside. Integer milliwatts, of each
machine the same numbers as there (`engine.power.demand`), and the same sums
(`tests/property/test_kube_counts_as_the_core.py`). They follow from what is free on nodes and not
from jobs, since nodes come and go at any time and foreign pods count as ours. A node counts in the
domain that feeds it and in all above (`domain_tree`). Watts that a cap saves are taken off once it
was read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.state import ClusterState
from wattherd.engine.power.demand import device_rise_mw, node_idle_mw
from wattherd.kube.facts.domain_tree import SITE, DomainTree
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI, NodeSpec
from wattherd.model.job import Request
from wattherd.units import show_watts

Ints = NDArray[np.int64]
_PLENTY = 1 << 60


@dataclass(frozen=True, slots=True)
class Columns:
    """Of each node (N,): base draw and rise per device in mW, and the number of its domain."""

    base_mw: Ints
    rise_mw: Ints
    domain: Ints
    names: tuple[str, ...]
    row: Mapping[str, int]
    """Of each node by name."""


def columns_of(nodes: Sequence[NodeFacts], caps_w: Mapping[str, float] | None = None) -> Columns:
    """Nodes in the engine's order; GPUs of models in `caps_w` draw no more than that."""
    names = tuple(sorted({facts.domain for facts in nodes} - {SITE}))
    number = {name: row for row, name in enumerate(names)}
    return Columns(
        base_mw=np.array([node_idle_mw(facts.spec, GPUS) for facts in nodes], dtype=np.int64),
        rise_mw=np.array([_rise_mw(facts.spec, caps_w or {}) for facts in nodes], dtype=np.int64),
        domain=np.array([number.get(facts.domain, -1) for facts in nodes], dtype=np.int64),
        names=names,
        row={facts.name: row for row, facts in enumerate(nodes)},
    )


def _rise_mw(spec: NodeSpec, caps_w: Mapping[str, float]) -> int:
    most_mw, cap_w = device_rise_mw(spec, GPUS), caps_w.get(spec.gpu_model)
    if cap_w is None:
        return most_mw
    return min(most_mw, max(0, round(1000 * (cap_w - GPUS[spec.gpu_model].idle_w))))


class Domains:
    """Budgets (mW) by domain of a tree; a domain without one sets no limit.

    `saved_mw` is by node what caps that were read back take off.
    """

    def __init__(self, budgets_mw: Mapping[str, int], tree: DomainTree | None = None) -> None:
        """Budgets as they stand now; without a `tree` nodes are below the site by their label."""
        self.budgets_mw = dict(budgets_mw)
        self.tree = tree or DomainTree()
        self.saved_mw: dict[str, int] = {}

    def fed(self, facts: NodeFacts) -> NodeFacts:
        """A node with the domain that feeds it."""
        domain = self.tree.feeder(facts.labels)
        return facts if facts.domain == domain else replace(facts, domain=domain)

    def inside(self, domain: str, nodes: Sequence[NodeFacts]) -> NDArray[np.bool_]:
        """(N,) which of these a domain feeds, with all below it."""
        below = self.tree.below
        return np.array([below(domain, facts.domain) for facts in nodes], dtype=np.bool_)

    def room_mw(self, columns: Columns, state: ClusterState, more_mw: Ints | None = None) -> Ints:
        """(N,) what may be added on each node before one of its domains or the site is full.

        `more_mw` (N,) is drawn on each node beside what is on it.

        Never less than nothing: what adds no watts may come, even where too many are drawn.
        """
        carried = self.carried_mw(columns, state, more_mw)
        room: Ints = np.maximum(self._of_node(columns, carried), 0)
        return room

    def most_mw(self, columns: Columns) -> Ints:
        """(N,) what may be added on each node with nobody on any; less than nothing, too."""
        return self._of_node(columns, self.idle_mw(columns))

    def _of_node(self, columns: Columns, carried: Mapping[str, int]) -> Ints:
        left = [self._left(name, carried) for name in (*columns.names, SITE)]
        of_node: Ints = np.array(left, dtype=np.int64)[columns.domain]
        return of_node

    def _left(self, domain: str, carried: Mapping[str, int]) -> int:
        budgets = self.budgets_mw
        above = (name for name in self.tree.path(domain) if name in budgets)
        return min((budgets[name] - carried[name] for name in above), default=_PLENTY)

    def carried_mw(
        self, columns: Columns, state: ClusterState, more_mw: Ints | None = None
    ) -> dict[str, int]:
        """What every domain, and the site, may draw at most with what is on their nodes now.

        `more_mw` (N,) is drawn on each node beside that.
        """
        draw = columns.base_mw + columns.rise_mw * state.world.nodes.active
        if more_mw is not None:
            draw = draw + more_mw
        for node, saved in self.saved_mw.items():
            if node in columns.row:
                draw[columns.row[node]] -= saved
        return self._by_domain(columns, draw)

    def idle_mw(self, columns: Columns) -> dict[str, int]:
        """What every domain, and the site, draws with nobody on its nodes."""
        return self._by_domain(columns, columns.base_mw)

    def _by_domain(self, columns: Columns, draw: Ints) -> dict[str, int]:
        inside = columns.domain >= 0
        own = np.bincount(columns.domain[inside], draw[inside], len(columns.names))
        carried = dict.fromkeys((*self.budgets_mw, *self.tree.branches), 0)
        for name, draw_mw in zip(columns.names, own.tolist(), strict=True):
            for above in self.tree.path(name)[:-1]:
                carried[above] = carried.get(above, 0) + int(draw_mw)
        carried[SITE] = int(draw.sum())
        return carried

    def saved_in(self, columns: Columns) -> dict[str, int]:
        """By domain, and the site, what caps take off."""
        saved: dict[str, int] = {}
        for node, mw in self.saved_mw.items():
            row = columns.row.get(node)
            number = -1 if row is None else int(columns.domain[row])
            for name in self.tree.path(columns.names[number] if number >= 0 else SITE):
                saved[name] = saved.get(name, 0) + mw
        return saved


def least_mw(columns: Columns, state: ClusterState, request: Request) -> Ints:
    """(N,) the least that `request` would add on each node: nothing, where it may join others."""
    if not request.gpu_count:
        return np.zeros(len(columns.base_mw), dtype=np.int64)
    least = columns.rise_mw * request.gpu_count
    if request.is_sharing:
        free = state.world.nodes.gpu_free
        joins = ((free >= request.gpu_milli) & (free < WHOLE_GPU_MILLI)).any(axis=1)
        least = np.where(joins, 0, least)
    added: Ints = least
    return added


def added_mw(columns: Columns, state: ClusterState, allocation: Allocation) -> int:
    """What `allocation`, not yet placed, would add: devices that are free now begin to draw."""
    free = state.world.nodes.gpu_free[allocation.node]
    begun = sum(1 for gpu in allocation.gpus if free[gpu] == WHOLE_GPU_MILLI)
    return begun * int(columns.rise_mw[allocation.node])


def full(domain: str, draw_mw: int, budget_mw: int, needs_mw: int) -> str:
    """Why a domain has no watts left, and what would do, in words; the same for all its nodes."""
    who = f"power domain {domain}" if domain else "the site"
    short_w = -(-(draw_mw + needs_mw - budget_mw) // 1000)
    return (
        f"{who} may draw {show_watts(draw_mw / 1000)} of {show_watts(budget_mw / 1000)}, "
        f"the pod adds {show_watts(needs_mw / 1000)}; "
        f"raise its budget by {short_w:,} W, or free them"
    )
