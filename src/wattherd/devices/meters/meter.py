"""A meter: a driver and what its address says of unit, scale and age. Makes readings of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from wattherd.devices.meters.contract import KeepsSamples, MeterDriver, MeterReading, Quality
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import WATTS, Uri

OPTIONS = frozenset({"timeout", "scale", "unit", "max_age"})


@dataclass(slots=True)
class Meter:
    """Reads one instrument; `factor` turns its unit into watts, `max_age_s` is where stale begins.

    Time stamps of the instrument are taken as they are: a clock that is off shows as a reading too
    old, or from the future, which the reader must judge.
    """

    source: str
    driver: MeterDriver
    factor: float = 1.0
    max_age_s: float = math.inf
    clock: Clock = SYSTEM

    def read(self) -> MeterReading:
        """One reading.

        Raises:
            DeviceError: there is none; its `trouble` says why.
        """
        asked_s = self.clock.unix_s()
        try:
            sample = self.driver.sample()
            watts = self._watts(sample.value)
        except DeviceError as error:
            raise DeviceError(error.trouble, error.problem, source=self.source) from error
        at_s = asked_s if sample.at_s is None else sample.at_s
        stale = self.clock.unix_s() - at_s > self.max_age_s
        return MeterReading(watts, at_s, self.source, Quality.STALE if stale else sample.quality)

    @property
    def keeps_samples(self) -> bool:
        """Whether the instrument remembers what it measured between two questions."""
        return isinstance(self.driver, KeepsSamples) and self.driver.keeps_samples

    def kept_since(self, at_s: float) -> list[tuple[float, float]]:
        """Unix seconds and watts of all that it measured after a time, oldest first.

        Raises:
            DeviceError: it keeps nothing, or did not answer.
        """
        if not isinstance(self.driver, KeepsSamples):
            raise DeviceError(DeviceErrorKind.ABSENT, "keeps no samples", source=self.source)
        try:
            found = self.driver.kept_since(at_s)
            return [(one.at_s, self._watts(one.value)) for one in found if one.at_s is not None]
        except DeviceError as error:
            raise DeviceError(error.trouble, error.problem, source=self.source) from error

    def close(self) -> None:
        """Let go of the instrument."""
        self.driver.close()

    def __enter__(self) -> Self:
        """The meter itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _watts(self, value: float) -> float:
        watts = value * self.factor
        if not math.isfinite(watts):
            raise DeviceError(DeviceErrorKind.GARBAGE, f"answered {value}, which is no power")
        return watts


def metered(uri: Uri, driver: MeterDriver, clock: Clock = SYSTEM) -> Meter:
    """A meter around `driver` with the options that all addresses share."""
    unit = WATTS[uri.choice("unit", WATTS, "W")]
    return Meter(
        source=uri.text,
        driver=driver,
        factor=_scale(uri) * unit,
        max_age_s=uri.seconds("max_age", math.inf),
        clock=clock,
    )


def _scale(uri: Uri) -> float:
    """A factor; zero would turn every reading into no watts at all."""
    scale = uri.number("scale", 1.0)
    if scale == 0.0:
        raise uri.error("must not be zero", field="scale", hint="write scale=-1 to turn the sign")
    return scale
