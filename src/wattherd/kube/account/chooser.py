"""The policy's choice among the nodes that power budgets can bear."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.state import ClusterState
from wattherd.kube.account.domains import Columns, Domains, added_mw, columns_of, least_mw
from wattherd.kube.account.fleet import Holding, Ints, Mask, NodeFleet, Spot
from wattherd.kube.facts.pod_request import PodRequest

_MOST_TRIES = 64
"""Times that a share is tried elsewhere because its GPU would be one too many for the budget."""


class Chooser:
    """Chooses on `fleet` within the budgets of `domains`; books nothing."""

    def __init__(
        self,
        fleet: NodeFleet,
        domains: Domains,
        *,
        counts_missing: bool = False,
        caps_w: Mapping[str, float] | None = None,
    ) -> None:
        """Both are looked at anew with every question.

        With `counts_missing`, GPUs that pods count on and have no seat for draw as well. GPUs of
        models in `caps_w` draw no more than that.
        """
        self._caps_w = caps_w or {}
        self._counts_missing = counts_missing
        self.fleet = fleet
        self.domains = domains
        self._columns: Columns | None = None
        self._columns_of: tuple[Placer | None, int] = (None, -1)

    def columns(self) -> Columns:
        """Watts of the nodes, in the engine's order."""
        now = (self.fleet.placer, self.fleet.version)
        if self._columns is None or self._columns_of != now:
            self._columns, self._columns_of = columns_of(self.fleet.order, self._caps_w), now
        return self._columns

    def choose(self, ask: PodRequest, among: Mask) -> tuple[Spot | None, int]:
        """Where the policy wants a pod, of the nodes in `among`, and what it adds there in mW."""
        placer, columns = self.fleet.placer, self.columns()
        if placer is None:
            return None, 0
        state = placer.state
        if not self.domains.budgets_mw:
            spot = self.fleet.choose(ask, among)
            return spot, 0 if spot is None else added_mw(columns, state, spot.allocation)
        room = self.room_mw(state)
        for request, giving in self.fleet.requests(ask):
            cheap = among & giving & (least_mw(columns, state, request) <= room)
            for _ in range(_MOST_TRIES):
                chosen = placer.choose(request, cheap)
                if chosen is None:
                    break
                added = added_mw(columns, state, chosen)
                if added <= room[chosen.node]:
                    return Spot(self.fleet.order[chosen.node].name, chosen), added
                cheap[chosen.node] = False
        return None, 0

    def room_mw(self, state: ClusterState) -> Ints:
        """(N,) what may be added on each node before a budget above it is full."""
        columns = self.columns()
        return self.domains.room_mw(columns, state, self._missing_mw(columns))

    def carried_mw(self, state: ClusterState) -> dict[str, int]:
        """By domain, and the site: what may be drawn with what is on the nodes."""
        columns = self.columns()
        return self.domains.carried_mw(columns, state, self._missing_mw(columns))

    def unseated_mw(self, holding: Holding) -> int:
        """What one will draw beside the GPUs that it has on its node, where that is counted."""
        lacking = self.fleet.lacks(holding) if self._counts_missing else 0
        return lacking and lacking * int(self.columns().rise_mw[self.fleet.row_of(holding.node)])

    def _missing_mw(self, columns: Columns) -> Ints | None:
        """(N,) what pods will draw beside those GPUs of a node that are in use, or None."""
        missing = self.fleet.missing() if self._counts_missing else {}
        if not missing:
            return None
        more = np.zeros(len(columns.rise_mw), dtype=np.int64)
        for row, gpus in missing.items():
            more[row] = gpus * int(columns.rise_mw[row])
        return more
