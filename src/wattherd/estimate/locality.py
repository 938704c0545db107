"""How much speed a gang keeps by where its devices meet: the level of their lowest common cell.

Synchronous training exchanges gradients every step, so the slowest link between any two devices
sets the pace. How much that costs depends on the model: parameters to exchange over time to
compute. Factors are relative to the best placement of as many devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.topology import Topology

Device = tuple[int, int]
"""Node index and number of the GPU there."""
Factor = Callable[[str, Iterable[Device]], float]
"""Speed of a profile on devices, relative to the best placement of as many."""


class GangReach(IntEnum):
    """How far apart the devices of a gang are, nearest first."""

    DEVICE = 0
    SWITCH = 1
    SOCKET = 2
    NODE = 3
    RACK = 4
    BEYOND = 5


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Speed kept at each reach, 0 to 1 (measured ones may be above); `source` says who measured.

    A reach without a figure counts like the next nearer one.
    """

    kept: Mapping[GangReach, float] = field(default_factory=dict)
    source: str = ""

    def factor(self, reach: GangReach) -> float:
        """The figure for the farthest known reach up to this one; 1 if there is none."""
        known = [one for one in self.kept if one <= reach]
        return self.kept[max(known)] if known else 1.0


INSENSITIVE = Sensitivity()

_GAVEL = "2 V100s, on two servers over on one (Gavel, OSDI'20, measured throughputs)"
_POLLUX = "2 T4s, on two nodes over on one (Pollux, OSDI'21, measured placements)"
_GANDIVA = "2 P100s, on two sockets over under one switch (Gandiva, OSDI'18, figure 1)"


def _apart(kept: float, batch: int, source: str) -> Sensitivity:
    return Sensitivity({GangReach.RACK: kept}, f"batch {batch}, {source}")


SENSITIVITIES: Mapping[str, Sensitivity] = {
    "vgg16": Sensitivity({GangReach.NODE: 0.6}, _GANDIVA),
    "resnet18": _apart(0.353, 16, _GAVEL),
    "resnet50": _apart(0.867, 64, _GAVEL),
    "transformer": _apart(0.441, 64, _GAVEL),
    "lm": _apart(0.217, 5, _GAVEL),
    "bert": _apart(0.387, 4, _POLLUX),
    "cifar10": _apart(0.472, 32, _POLLUX),
    "deepspeech2": _apart(0.727, 10, _POLLUX),
    "imagenet": _apart(0.594, 20, _POLLUX),
    "ncf": _apart(0.559, 32, _POLLUX),
    "yolov3": _apart(0.398, 4, _POLLUX),
}
"""By model name, at the smallest batch measured (at 64 where that is a common one).

Between the best and the worst placement lie 1.15 (ResNet-50) to 4.6 times (LSTM language model).
"""


def sensitivity_of(profile: str) -> Sensitivity:
    """The named sensitivity that a profile's name begins with, ignoring case and signs.

    `ResNet-50 (batch size 64)` and `resnet50` are the same; an unknown model is insensitive.
    """
    plain = "".join(sign for sign in profile.casefold() if sign.isalnum())
    fitting = [name for name in SENSITIVITIES if plain.startswith(name)]
    return SENSITIVITIES[max(fitting, key=len)] if fitting else INSENSITIVE


def measured(table: ThroughputTable, worker_type: str, kind: str, scale: int) -> Sensitivity:
    """What measured throughputs say of a job kind at a scale (GPUs), 1 where they say nothing."""
    together = table.rate(worker_type, kind, scale)
    if not together:
        return INSENSITIVE
    kept = table.spread_rate(worker_type, kind, scale) / together
    source = f"{scale} {worker_type}, on several servers over on one (measured throughputs)"
    return Sensitivity({GangReach.RACK: kept}, source)


def reach_of(topology: Topology, devices: Iterable[Device]) -> GangReach:
    """How far apart devices are.

    Within a node the level above the GPU is the switch, all further ones below the node are
    sockets; a node without such levels has its GPUs equally far apart.

    Raises:
        KeyError: a node has no GPUs.
    """
    met = topology.meets(devices)
    if met is None:
        return GangReach.BEYOND
    chain, level = met
    if level == 0:
        return GangReach.DEVICE
    if level >= chain.node_level:
        return (GangReach.NODE, GangReach.RACK, GangReach.BEYOND)[min(level - chain.node_level, 2)]
    return GangReach.SWITCH if level == 1 else GangReach.SOCKET


@dataclass(frozen=True, slots=True)
class Locality:
    """Speed factors on one cluster; `sensitivity` looks a profile up."""

    topology: Topology
    sensitivity: Callable[[str], Sensitivity] = sensitivity_of

    def factor(self, profile: str, devices: Iterable[Device]) -> float:
        """Speed on `devices` relative to the best placement of as many; 1 without devices."""
        found = list(devices)
        if not found:
            return 1.0
        return self.sensitivity(profile).factor(reach_of(self.topology, found))
