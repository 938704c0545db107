"""Storage of a site that is held: as its file describes it, and its instruments.

```yaml
storages:
  battery:
    feed: row-a                # the level that it hangs on; the site if none
    power: 250kW               # most that it gives or takes
    energy: 2kWh
    efficiency: 0.9            # what comes back of what went in
    reserve: 0.5               # share of the charge that is kept for cuts
    meter: "modbus://bess/1/70?unit=kW&type=int32"      # what it gives; negative while it takes
    charge: "modbus://bess/1/72?type=uint16&scale=0.01" # how full it is, 0 to 1
    setpoint: "modbus://bess/1/80?unit=kW&type=int32"   # what it is to give; negative: take
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from wattherd.devices.knobs.contract import KnobReading, KnobUnit, OrderOutcome
from wattherd.devices.knobs.journal import KnobJournal
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import open_knob
from wattherd.devices.meters.contract import MeterReading
from wattherd.devices.meters.meter import Meter
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.engine.safety.contract import Floats
from wattherd.engine.safety.storage import LevelStorage, StorageSize
from wattherd.errors import UserError
from wattherd.hold.lines import InstrumentLine, is_concurrent
from wattherd.spelling import hint_for
from wattherd.units import joules, watts

RENEW_S = 5.0
"""A setpoint is sent again after so long: inverters drop one that is not renewed."""
STEP = 0.002
"""Of its power: a smaller change is not worth an order."""
OLD_S = 60.0
LEAVE_S = 2.0

TellStorage = Callable[[str, OrderOutcome], None]


class StorageSpec(BaseModel):
    """Storage on a level: its size, its instruments, and what is kept for cuts."""

    model_config = ConfigDict(extra="forbid")

    feed: str | None = Field(
        default=None, description="the level that it hangs on; the site if none"
    )
    power: str | float = Field(description="most that it gives or takes: 250kW")
    energy: str = Field(description="what it holds when it is full: 2kWh")
    efficiency: float = Field(default=0.9, description="what comes back of what went in")
    reserve: float = Field(default=0.5, description="share of the charge that is kept for cuts")
    meter: str = Field(description="address of what it gives, negative while it takes")
    charge: str = Field(description="address of how full it is, 0 to 1: `scale=0.01` for percent")
    setpoint: str = Field(description="address of the knob of what it is to give")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStorage:
    """Storage on level number `where.level`, and its instruments."""

    name: str
    where: LevelStorage
    meter: Meter
    charge: Meter
    setpoint: Knob


def storage_of(name: str, spec: StorageSpec, names: Mapping[str, int], field: str) -> HeldStorage:
    """The storage of a file; `names` are all feeds with their numbers. Nothing is connected to yet.

    Raises:
        UserError: a level, a size or an address that cannot be used.
    """
    if spec.feed is not None and spec.feed not in names:
        raise UserError(f"no feed {spec.feed!r}", field=f"{field}.feed",
                        hint=hint_for(spec.feed, names))  # fmt: skip
    knob = open_knob(spec.setpoint)
    if knob.unit is not KnobUnit.WATT:
        raise UserError("sets no watts", where=spec.setpoint, field=f"{field}.setpoint")
    knob.settle_s = 0.0  # the loop reads back itself
    try:
        size = StorageSize(
            power_w=watts(spec.power, field="power"), energy_j=joules(spec.energy, field="energy"),
            efficiency=spec.efficiency,
        )  # fmt: skip
        where = LevelStorage(
            size=size, level=len(names) if spec.feed is None else names[spec.feed],
            reserve=spec.reserve,
        )  # fmt: skip
    except UserError as error:
        name_of = {"power_w": "power", "energy_j": "energy"}.get(error.field, error.field)
        raise UserError(error.problem, field=f"{field}.{name_of}", hint=error.hint) from None
    return HeldStorage(name=name, where=where, meter=open_meter(spec.meter),
                       charge=open_meter(spec.charge), setpoint=knob)  # fmt: skip


@dataclass(slots=True)
class StorageLines:
    """A line to each instrument of the storages; `known` are lines that are there already."""

    storages: Sequence[HeldStorage]
    journal: KnobJournal
    tell: TellStorage
    known: Mapping[int, InstrumentLine[Any]] = field(default_factory=dict)
    _meters: list[InstrumentLine[MeterReading | None]] = field(default_factory=list)
    _charges: list[InstrumentLine[MeterReading | None]] = field(default_factory=list)
    _knobs: list[InstrumentLine[KnobReading]] = field(default_factory=list)
    _sent: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is asked yet; orders of knobs are noted in the journal first."""
        for one in self.storages:
            one.setpoint.journal = self.journal
            self._meters.append(self._line(one.meter))
            self._charges.append(self._line(one.charge))
            knob = one.setpoint
            self._knobs.append(
                self.known.get(id(knob)) or InstrumentLine(knob.read, is_concurrent(knob.driver))
            )
        self._sent = [(math.nan, -math.inf)] * len(self.storages)

    @property
    def asked(self) -> list[InstrumentLine[Any]]:
        """Lines that are to be asked each period; setpoints are not, the meters tell more."""
        return [*self._meters, *self._charges]

    def by_identity(self) -> dict[int, InstrumentLine[Any]]:
        """The line of every instrument, by the identity of its object."""
        objects: list[object] = [
            *(one.meter for one in self.storages), *(one.charge for one in self.storages),
            *(one.setpoint for one in self.storages),
        ]  # fmt: skip
        lines: list[InstrumentLine[Any]] = [*self._meters, *self._charges, *self._knobs]
        return {id(one): line for one, line in zip(objects, lines, strict=True)}

    def read(self, now_s: float) -> tuple[Floats, Floats, Floats] | tuple[None, None, None]:
        """What they give (S,), how full they are and when that was; NaN where nobody answers."""
        if not self.storages:
            return None, None, None
        given = [line.fresh(now_s, OLD_S) for line in self._meters]
        charge = [line.fresh(now_s, OLD_S) for line in self._charges]
        nan = math.nan
        at_s = [
            nan if gives is None or full is None else min(gives.at_s, full.at_s)
            for gives, full in zip(given, charge, strict=True)
        ]
        return (
            np.array([nan if one is None else one.watts for one in given]),
            np.array([nan if one is None else one.watts for one in charge]),
            np.array(at_s),
        )

    def send(self, orders_w: Floats | None) -> None:
        """Order what is new, and what was last said `RENEW_S` ago."""
        if orders_w is None:
            return
        now_s = time.monotonic()
        for number, one in enumerate(self.storages):
            power_w = float(round(orders_w[number]))
            sent_w, sent_s = self._sent[number]
            moved = not abs(power_w - sent_w) <= STEP * one.where.size.power_w
            if moved or (power_w == 0.0) != (sent_w == 0.0) or now_s - sent_s >= RENEW_S:
                self._sent[number] = power_w, now_s
                self._knobs[number].order(self._setter(one, power_w))

    def restore(self) -> list[str]:
        """Put setpoints back as they were found; names of those where that failed."""
        failed = {one.name for one in self.storages}

        def put_back(one: HeldStorage) -> Callable[[], None]:
            def order() -> None:
                outcome = one.setpoint.restore()
                if outcome.in_force:
                    failed.discard(one.name)
                else:
                    self.tell(one.name, outcome)

            return order

        for one, line in zip(self.storages, self._knobs, strict=True):
            line.order(put_back(one))
        until_s = time.monotonic() + LEAVE_S
        for line in self._knobs:
            line.wait(until_s)
        return sorted(failed)

    def _line(self, meter: Meter) -> InstrumentLine[MeterReading | None]:
        known = self.known.get(id(meter))
        return known or InstrumentLine(_reader(meter), is_concurrent(meter.driver))

    def _setter(self, one: HeldStorage, power_w: float) -> Callable[[], None]:
        def order() -> None:
            outcome = one.setpoint.set(power_w)
            if not outcome.in_force:
                self.tell(one.name, outcome)

        return order


def _reader(meter: Meter) -> Callable[[], MeterReading | None]:
    def read() -> MeterReading | None:
        try:
            return meter.read()
        except DeviceError:
            return None

    return read
