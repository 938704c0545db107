"""Watts of power domains: what their nodes may draw at most, and what one more pod would add.

Counted as by the core's guard (`engine.watts`): a device in use at its maximum, a free one at its
idle watts, a shared one once, and what the machine draws beside. Integer milliwatts. A node is of
the domain that its label names, and of the site, whose name is empty. Foreign pods count as ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.catalog.gpus import GPUS
from wattherd.engine.state import ClusterState
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.request import Request
from wattherd.runtime.kube.node_facts import NodeFacts
from wattherd.units import show_watts

Ints = NDArray[np.int64]
SITE = ""
_PLENTY = 1 << 60


@dataclass(frozen=True, slots=True)
class Columns:
    """Of each node (N,): base draw and rise per device in mW, and the number of its domain."""

    base_mw: Ints
    rise_mw: Ints
    domain: Ints
    names: tuple[str, ...]


def columns_of(nodes: Sequence[NodeFacts]) -> Columns:
    """Nodes in the engine's order."""
    names = tuple(sorted({facts.domain for facts in nodes} - {SITE}))
    number = {name: row for row, name in enumerate(names)}
    return Columns(
        base_mw=np.array([_base_mw(facts) for facts in nodes], dtype=np.int64),
        rise_mw=np.array([_rise_mw(facts) for facts in nodes], dtype=np.int64),
        domain=np.array([number.get(facts.domain, -1) for facts in nodes], dtype=np.int64),
        names=names,
    )


def _mw(watts: float) -> int:
    return round(watts * 1000)


def _base_mw(facts: NodeFacts) -> int:
    spec = facts.spec
    idle = _mw(GPUS[spec.gpu_model].idle_w) if spec.gpu_count else 0
    return _mw(spec.idle_w) + idle * spec.gpu_count


def _rise_mw(facts: NodeFacts) -> int:
    spec = facts.spec
    if not spec.gpu_count:
        return 0
    model = GPUS[spec.gpu_model]
    return _mw(model.max_w) - _mw(model.idle_w)


class Domains:
    """Budgets (mW) by domain; a domain without one sets no limit."""

    def __init__(self, budgets_mw: Mapping[str, int]) -> None:
        """Budgets as they stand now."""
        self.budgets_mw = dict(budgets_mw)

    def room_mw(self, columns: Columns, state: ClusterState, more_mw: Ints | None = None) -> Ints:
        """(N,) what may be added on each node before its domain or the site is full.

        `more_mw` (N,) is drawn on each node beside what is on it.
        Never less than nothing: what adds no watts may come, even where too many are drawn.
        """
        draw = columns.base_mw + columns.rise_mw * state.world.nodes.active
        if more_mw is not None:
            draw = draw + more_mw
        inside = columns.domain >= 0
        by_domain = np.bincount(columns.domain[inside], draw[inside], len(columns.names))
        left = [self._left(name, int(by_domain[row])) for row, name in enumerate(columns.names)]
        of_node = np.array([*left, _PLENTY], dtype=np.int64)[columns.domain]
        room: Ints = np.maximum(np.minimum(of_node, self._left(SITE, int(draw.sum()))), 0)
        return room

    def _left(self, domain: str, draw_mw: int) -> int:
        budget = self.budgets_mw.get(domain)
        return _PLENTY if budget is None else budget - draw_mw

    def draw_mw(self, columns: Columns, state: ClusterState, domain: str) -> int:
        """What a domain may draw at most with what is on it now."""
        draw = columns.base_mw + columns.rise_mw * state.world.nodes.active
        if domain == SITE:
            return int(draw.sum())
        if domain not in columns.names:
            return 0
        return int(draw[columns.domain == columns.names.index(domain)].sum())


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
    """Why a domain has no watts left, in words; the same for all its nodes."""
    who = f"power domain {domain}" if domain else "the site"
    return (
        f"{who} may draw {show_watts(draw_mw / 1000)} of {show_watts(budget_mw / 1000)}, "
        f"the pod adds {show_watts(needs_mw / 1000)}"
    )
