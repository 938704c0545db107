"""An inventory of a site's power: places, sources, the devices that draw, and who feeds whom.

Every reader (`rest`, `table`) fills an `Inventory`; `supply` makes a power tree of it. Nothing here
reads a file or asks a server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

CONTINUOUS = 0.8
"""Of a breaker's rating, for loads of three hours and more (NEC 210.20, 215.3)."""


class PartKind(StrEnum):
    """What a part of the site is; also the `level` of its domain."""

    SITE = "site"
    LOCATION = "location"
    RACK = "rack"
    PANEL = "panel"
    FEED = "feed"
    PDU = "pdu"
    PHASE = "phase"


PLACES = (PartKind.SITE, PartKind.LOCATION, PartKind.RACK)


class FindingKind(StrEnum):
    """What a finding tells: a gap, something that was assumed, or facts that exclude each other."""

    UNKNOWN = "unknown"
    ASSUMED = "assumed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, order=True)
class InventoryFinding:
    """One thing that the inventory does not say, or says wrongly; `where` names the object."""

    about: FindingKind
    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """What protects a source: volts between lines for three phases, amperes of each line.

    `utilization` is the share of the rating that the owner allows (None: not stated).
    """

    volts: float
    amps: float
    three_phase: bool = False
    utilization: float | None = None

    def share(self, continuous: float) -> float:
        """The share of the rating that may be used for hours."""
        return continuous if self.utilization is None else min(continuous, self.utilization)

    def limit_w(self, continuous: float, power_factor: float) -> float:
        """Watts for hours: U I, or sqrt(3) U I for three phases."""
        factor = math.sqrt(3.0) if self.three_phase else 1.0
        return factor * self.volts * self.amps * self.share(continuous) * power_factor

    def phase_w(self, continuous: float, power_factor: float) -> float:
        """Watts for hours between one line and neutral."""
        return self.volts / math.sqrt(3.0) * self.amps * self.share(continuous) * power_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryPart:
    """A place, or a source of power.

    `within` is the place it stands in, `fed_by` are the sources above it. Its limit follows from
    `circuit`, or is `limit_w`; with both the smaller one counts. `phase_of` is the feed whose
    single line this is.
    """

    key: str
    name: str
    kind: PartKind
    within: str | None = None
    fed_by: tuple[str, ...] = ()
    circuit: Circuit | None = None
    limit_w: float | None = None
    loss: float = 0.0
    redundant: bool = False
    phase_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryLoad:
    """A device that draws: a `node` of the cluster, or something else whose watts are set aside.

    `fed_by` are (source, line) pairs, one for each cord; the line of a three-phase source is "A",
    "B", "C" or "" where it is not known. `max_w` is what it draws at most, None if unknown.
    """

    key: str
    name: str
    node: bool
    within: str | None = None
    fed_by: tuple[tuple[str, str], ...] = ()
    max_w: float | None = None


@dataclass(slots=True)
class Inventory:
    """All parts and loads by key; readers add what they could not make out to `findings`."""

    parts: dict[str, InventoryPart] = field(default_factory=dict)
    loads: dict[str, InventoryLoad] = field(default_factory=dict)
    lines: dict[tuple[str, str], str] = field(default_factory=dict)
    """(PDU, source above it) by the line of that source it hangs on, where that is stated."""
    findings: list[InventoryFinding] = field(default_factory=list)

    def unknown(self, where: str, text: str) -> None:
        """Note a gap."""
        self.findings.append(InventoryFinding(FindingKind.UNKNOWN, where, text))

    def assumed(self, where: str, text: str) -> None:
        """Note what was assumed."""
        self.findings.append(InventoryFinding(FindingKind.ASSUMED, where, text))

    def conflict(self, where: str, text: str) -> None:
        """Note what cannot be true at once."""
        self.findings.append(InventoryFinding(FindingKind.CONFLICT, where, text))

    def name_of(self, key: str | None) -> str:
        """The name of a part, for messages."""
        return self.parts[key].name if key is not None and key in self.parts else str(key)
