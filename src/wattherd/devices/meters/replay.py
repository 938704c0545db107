"""Replay of a recording: `replay:FILE.csv?column=power_w&time=time_s&speed=1&loop=0`.

The recording starts with the first reading; each row holds until the next. What it answers is
stamped with the time at which the row came up, and says that it is a replay.
"""

from __future__ import annotations

import csv
import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.meters.contract import MeterSample, Quality
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.uri import Uri
from wattherd.errors import UserError, words
from wattherd.spelling import hint_for

OPTIONS = frozenset({"column", "time", "speed", "loop"})


@dataclass(frozen=True, slots=True)
class MeterRecording:
    """Values (as written in the file) at seconds that rise from 0; both of the same length."""

    at_s: Sequence[float]
    values: Sequence[float]


@dataclass(slots=True)
class ReplayMeter:
    """Plays a recording `speed` times as fast as it was made, over and over if `loop`."""

    recording: MeterRecording
    clock: Clock
    speed: float = 1.0
    loop: bool = False
    quick = True
    _started: tuple[float, float] | None = None

    def sample(self) -> MeterSample:
        """The row that holds now.

        Raises:
            DeviceError: the recording is over.
        """
        if self._started is None:
            self._started = self.clock.steady_s(), self.clock.unix_s()
        steady_s, unix_s = self._started
        played_s = (self.clock.steady_s() - steady_s) * self.speed
        rounds, within_s = self._position(played_s)
        row = bisect_right(self.recording.at_s, within_s) - 1
        came_up_s = rounds * self._length_s() + self.recording.at_s[row]
        value = self.recording.values[row]
        return MeterSample(value, unix_s + came_up_s / self.speed, Quality.REPLAYED)

    def close(self) -> None:
        """Rewind."""
        self._started = None

    def _position(self, played_s: float) -> tuple[int, float]:
        if self.loop:
            rounds, within_s = divmod(played_s, self._length_s())
            return int(rounds), within_s
        if played_s >= self._length_s():
            raise DeviceError(
                DeviceErrorKind.ABSENT, f"the recording of {self._length_s():g} s is over"
            )
        return 0, played_s

    def _length_s(self) -> float:
        """The last row holds as long as the one before it, or for a second if it is alone."""
        times = self.recording.at_s
        return times[-1] + (times[-1] - times[-2] if len(times) > 1 else 1.0)


def driver(uri: Uri, clock: Clock) -> ReplayMeter:
    """The driver that `uri` names.

    Raises:
        UserError: the file or one of its columns is missing, a cell is no number, or the times of
            its rows do not rise.
    """
    if uri.authority or not uri.path:
        raise uri.error(
            "names no file", hint="write replay:FILE.csv or replay:///ABSOLUTE/FILE.csv"
        )
    speed = uri.number("speed", 1.0)
    if speed <= 0:
        raise uri.error("must be above zero", field="speed")
    columns = uri.options.get("time", "time_s"), uri.options.get("column", "power_w")
    return ReplayMeter(read_recording(Path(uri.path), *columns), clock, speed, uri.flag("loop"))


def read_recording(path: Path, time: str, column: str) -> MeterRecording:
    """Two columns of a CSV file with a header; times are seconds since any moment.

    Raises:
        UserError: see `driver`.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot be read: {words(error)}", where=str(path)) from None
    if not lines:
        raise UserError("has no rows", where=str(path))
    cells = [
        (_cell(path, number, row, time), _cell(path, number, row, column))
        for number, row in enumerate(lines, start=2)
    ]
    return _rising(path, [at_s for at_s, _ in cells], [value for _, value in cells])


def _rising(path: Path, at_s: Sequence[float], values: Sequence[float]) -> MeterRecording:
    for number, (before_s, now_s) in enumerate(itertools.pairwise(at_s), start=3):
        if not before_s < now_s:
            raise UserError(f"time {now_s:g} does not follow {before_s:g}",
                            where=f"{path}:{number}")  # fmt: skip
    return MeterRecording([moment_s - at_s[0] for moment_s in at_s], values)


def _cell(path: Path, number: int, row: Mapping[str, str | None], column: str) -> float:
    where = f"{path}:{number}"
    if column not in row:
        raise UserError("no such column", where=str(path), field=column,
                        hint=hint_for(column, [name for name in row if name]))  # fmt: skip
    try:
        return float(row[column] or "")
    except ValueError:
        raise UserError(f"{row[column]!r} is no number", where=where, field=column) from None
