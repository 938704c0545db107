"""Where pods that wait would go, tried on the account of the cluster and taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.kube.account.domains import columns_of
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.pod_request import ask_of
from wattherd.kube.facts.refusal import PodRefused
from wattherd.policy.rebalance.pool import PodSeat


@dataclass(slots=True)
class Booking:
    """Implements `policy.rebalance.pool.Fitting`; `groups` are waiting pods by group."""

    fleet: NodeFleet
    eligible: Eligible
    groups: Mapping[str, Sequence[Pod]]
    _booked: dict[str, list[str]] = field(default_factory=dict)

    def seats(self, group: str, among: Sequence[str]) -> Sequence[PodSeat] | None:
        """Seats for all pods of a group on nodes in `among`, booked; None, and nothing booked."""
        self._booked[group] = []
        found = []
        for pod in self.groups[group]:
            seat = self._seat(group, pod, among)
            if seat is None:
                self.undo(group)
                return None
            found.append(seat)
        return found

    def undo(self, group: str) -> None:
        """Book out what was booked for a group."""
        for uid in self._booked.pop(group, ()):
            self.fleet.let_go(uid)

    def undo_all(self) -> None:
        """Leave the account as it was."""
        for group in list(self._booked):
            self.undo(group)

    def _seat(self, group: str, pod: Pod, among: Sequence[str]) -> PodSeat | None:
        fleet, uid = self.fleet, pod.metadata.uid
        if fleet.placer is None:
            return None
        try:
            ask = ask_of(pod)
        except PodRefused:
            return None
        mask = self.eligible.mask(pod) & fleet.open_for(ask) & fleet.rows_of(among)
        spot = fleet.choose(ask, mask)
        if spot is None:
            return None
        before_w = self._draw_w(spot.node)
        gpus = spot.allocation.gpus
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        fleet.hold(Holding(uid=uid, key=key, ask=ask, node=spot.node, gpus=gpus))
        self._booked[group].append(uid)
        return PodSeat(spot.node, self._draw_w(spot.node) - before_w)

    def _draw_w(self, name: str) -> float:
        """What a node draws at most with what is on it."""
        placer, order = self.fleet.placer, self.fleet.order
        if placer is None:
            return 0.0
        row = next(row for row, facts in enumerate(order) if facts.name == name)
        columns = columns_of([order[row]])
        active = int(placer.state.world.nodes.active[row])
        return float(columns.base_mw[0] + columns.rise_mw[0] * active) / 1000
