"""Who runs where in a simulated world, and how much that slows each job down.

Three things count: how far apart a job's devices are (`estimate.locality`), who is on the same
GPU, and which other distributed jobs use the same node's link (`estimate.interference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.estimate.interference import TURNS, PairSpeeds, on_one_link
from wattherd.estimate.locality import Device, Factor
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.job import JobSpec


@dataclass(frozen=True, slots=True)
class _Place:
    """A job's profile, its shared devices, its nodes, and what its own placement costs."""

    profile: str
    shared: tuple[Device, ...]
    nodes: tuple[int, ...]
    locality: float


class Surroundings:
    """Jobs by device and node; every change answers with the jobs whose speed it changes."""

    def __init__(
        self,
        *,
        locality: Factor | None = None,
        pairs: PairSpeeds = TURNS,
        network_slowdown: float = 0.0,
    ) -> None:
        """Nobody is there; `network_slowdown` is what distributed jobs lose that share a node."""
        self._locality = locality
        self._pairs = pairs
        self._network_slowdown = network_slowdown
        self._places: dict[str, _Place] = {}
        self._on: dict[Device, dict[str, None]] = {}
        """Jobs on each shared device."""
        self._through: dict[int, dict[str, None]] = {}
        """Distributed jobs on each node."""

    def enter(self, spec: JobSpec, allocations: Sequence[Allocation]) -> list[str]:
        """A job takes its devices; returns the others that feel it."""
        devices = [(one.node, gpu) for one in allocations for gpu in one.gpus]
        shared = tuple(
            (one.node, gpu)
            for one in allocations
            if one.request.gpu_milli != WHOLE_GPU_MILLI
            for gpu in one.gpus
        )
        nodes = tuple(dict.fromkeys(node for node, _ in devices))
        locality = self._locality(spec.profile, devices) if self._locality else 1.0
        self._places[spec.id] = _Place(spec.profile, shared, nodes, locality)
        for device in shared:
            self._on.setdefault(device, {})[spec.id] = None
        for node in nodes if self._spreads(nodes) else ():
            self._through.setdefault(node, {})[spec.id] = None
        return self._others(spec.id)

    def _spreads(self, nodes: tuple[int, ...]) -> bool:
        return self._network_slowdown > 0 and len(nodes) > 1

    def _others(self, job_id: str) -> list[str]:
        place = self._places[job_id]
        found: dict[str, None] = {}
        for device in place.shared:
            found.update(self._on[device])
        for node in place.nodes if self._spreads(place.nodes) else ():
            found.update(self._through[node])
        found.pop(job_id, None)
        return list(found)

    def leave(self, job_id: str) -> list[str]:
        """A job's devices are free of it; returns the others that felt it."""
        if job_id not in self._places:
            return []
        others = self._others(job_id)
        place = self._places.pop(job_id)
        for device in place.shared:
            del self._on[device][job_id]
        for node in place.nodes if self._spreads(place.nodes) else ():
            del self._through[node][job_id]
        return others

    def factor(self, job_id: str) -> float:
        """Speed of a job relative to the best placement, alone; the worst of its devices counts."""
        place = self._places[job_id]
        factor = place.locality
        if place.shared:
            factor *= min(self._beside(job_id, place, device) for device in place.shared)
        if self._spreads(place.nodes):
            crowd = max(len(self._through[node]) for node in place.nodes)
            factor *= on_one_link(crowd, self._network_slowdown)
        return factor

    def _beside(self, job_id: str, place: _Place, device: Device) -> float:
        others = tuple(self._places[one].profile for one in self._on[device] if one != job_id)
        return self._pairs.speed(place.profile, others)
