"""Recordings of power as files: `nvidia-smi` logs, tables of seconds and watts, MLPerf's nodes.

Three layouts are told apart by their columns:

* `nvidia-smi --query-gpu=timestamp,power.draw[.instant][,index|uuid|pci.bus_id] --format=csv`. GPUs
  are added up tick by tick; where a log has no column that names them, a tick ends where the time
  jumps, and all have as many rows.
* `time_s,watts` (or `time_seconds,power_watts`, `at_s,draw_w`, ...), one recording a file.
* the same with columns that name recordings, `node` or `job`: added up on common times by run.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.estimate.swing import Samples

Floats = NDArray[np.float64]

SECONDS: Mapping[str, float] = {
    "time_s": 1.0, "at_s": 1.0, "seconds": 1.0, "time_seconds": 1.0, "t": 1.0, "time": 1.0,
    "time_ms": 1e-3, "timestamp_ms": 1e-3,
}  # fmt: skip
"""Columns of time, and seconds in their unit."""
STAMPS = ("timestamp", "datetime")
WATTS: Mapping[str, float] = {
    "watts": 1.0, "power_w": 1.0, "draw_w": 1.0, "power_watts": 1.0, "power": 1.0, "w": 1.0,
    "power.draw": 1.0, "power.draw.instant": 1.0, "power.draw.average": 1.0,
    "power_mw": 1e-3, "milliwatts": 1e-3, "kw": 1e3, "power_kw": 1e3,
}  # fmt: skip
"""Columns of power, and watts in their unit; `power.draw.instant` is preferred to means."""
PARTS = ("index", "uuid", "pci.bus_id", "gpu", "node", "device")
"""Columns that name what is added up to one recording."""
RUNS = ("system", "benchmark", "run", "job")
"""Columns that tell recordings apart."""
TICK = 0.4
"""Share of the longest common step after which a row belongs to the next tick."""
WHOLE = 0.9
"""Share of ticks whose rows must lie together; where a row was lost, all later ones are torn."""
MOST_ROWS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRecording:
    """One draw over time; `parts` devices were added up to it."""

    name: str
    parts: int
    samples: Samples


def read_samples(path: Path, averaged_s: float = 0.0) -> tuple[DrawRecording, ...]:
    """All recordings of a file (also .gz), in the order of their names.

    Raises:
        UserError: unreadable, no column of time or power, a cell that is no number, times that go
            back, or ticks with different numbers of devices.
    """
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    named = True
    for name, part, at_s, watts in _rows(path):
        found[name][part].append((at_s, watts))
        named &= bool(part)
    if not found:
        raise UserError("has no row", where=str(path))
    recordings = []
    for name, parts in sorted(found.items()):
        tables = [np.array(sorted(rows) if named else rows) for _, rows in sorted(parts.items())]
        where = f"{path}: {name}" if name else str(path)
        count, table = _added_up(tables) if named else _by_tick(tables[0], where)
        samples = Samples(at_s=table[:, 0] - table[0, 0], watts=table[:, 1], averaged_s=averaged_s)
        recordings.append(DrawRecording(name=name or path.name, parts=count, samples=samples))
    return tuple(recordings)


def _rows(path: Path) -> Iterator[tuple[str, str, float, float]]:
    """Recording, part, seconds and watts of every row."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        opened = gzip.open if packed else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield from _parsed(csv.reader(stream), path)
    except OSError as error:
        told = (error.strerror or str(error)).lower()
        raise UserError(f"cannot be read: {told}", where=str(path)) from None
    except (EOFError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot be read: {error}", where=str(path)) from None


def _parsed(lines: Iterator[list[str]], path: Path) -> Iterator[tuple[str, str, float, float]]:
    header = [cell.strip().lower() for cell in next(lines, [])]
    plain = [cell.split(" [")[0] for cell in header]
    stamp = next((plain.index(one) for one in STAMPS if one in plain), None)
    second = next((plain.index(one) for one in SECONDS if one in plain), None)
    power = _power_column(plain)
    if power is None or (stamp is None and second is None):
        lacks = "power" if power is None else "time"
        raise UserError(
            f"no column of {lacks}", where=str(path), field=",".join(header)[:80],
            hint="time_s,watts; or a log of nvidia-smi --query-gpu=timestamp,power.draw",
        )  # fmt: skip
    parts = [plain.index(one) for one in PARTS if one in plain][:1]
    runs = [plain.index(one) for one in RUNS if one in plain]
    factor, unit_s = WATTS[plain[power]], 1.0 if second is None else SECONDS[plain[second]]
    for number, row in enumerate(lines, start=2):
        if not row:
            continue
        if number > MOST_ROWS:
            raise UserError(f"more than {MOST_ROWS:,} rows", where=str(path))
        where = f"{path}:{number}"
        if len(row) != len(header):
            raise UserError(f"{len(row)} cells, not {len(header)}", where=where)
        text = row[power].strip().removesuffix(" W")
        at_s = _stamp(row[stamp or 0], where) if second is None else (
            unit_s * _number(row[second], where, plain[second])
        )  # fmt: skip
        part = row[parts[0]].strip() if parts else ("" if second is None else "all")
        name = "/".join(row[column].strip() for column in runs)
        yield name, part, at_s, factor * _number(text, where, plain[power])


def _power_column(plain: list[str]) -> int | None:
    order = ("power.draw.instant", *(one for one in WATTS if one != "power.draw.instant"))
    return next((plain.index(one) for one in order if one in plain), None)


def _number(text: str, where: str, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UserError(f"{text.strip()[:40]!r} is no number", where=where, field=field)
    return value


def _stamp(text: str, where: str) -> float:
    """Seconds of a time as `nvidia-smi` or ISO 8601 write it; without zone, in UTC."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("/", "-"))
    except ValueError:
        raise UserError(
            f"{text.strip()[:40]!r} is no time", where=where, field="timestamp",
            hint="2026-11-23 10:00:00.125",
        ) from None  # fmt: skip
    return (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)).total_seconds()


def _added_up(tables: list[Floats]) -> tuple[int, Floats]:
    """The sum of all parts on the times of the first, as far as all of them reach."""
    tables = [_once(table) for table in tables]
    begin_s = max(table[0, 0] for table in tables)
    end_s = min(table[-1, 0] for table in tables)
    grid_s = tables[0][:, 0]
    grid_s = grid_s[(grid_s >= begin_s) & (grid_s <= end_s)]
    if not len(grid_s):
        return len(tables), tables[0]
    watts = sum(np.interp(grid_s, table[:, 0], table[:, 1]) for table in tables)
    return len(tables), np.column_stack((grid_s, watts))


def _once(table: Floats) -> Floats:
    """Each time once: of rows that share a stamp, the last."""
    keep = np.append(np.diff(table[:, 0]) > 0, True)
    return np.asarray(table[keep])


def _by_tick(table: Floats, where: str) -> tuple[int, Floats]:
    """Rows of devices without names, added up between jumps of time."""
    gaps_s = np.diff(table[:, 0])
    if (gaps_s < 0).any():
        line = int(np.argmax(gaps_s < 0)) + 3
        raise UserError("times go back", where=f"{where}:{line}", field="timestamp")
    if not len(gaps_s) or gaps_s.max() <= 0:
        raise UserError("all rows have one time", where=where, field="timestamp")
    jump_s = TICK * float(np.percentile(gaps_s[gaps_s > 0], 90))
    starts = np.flatnonzero(np.append(True, gaps_s > jump_s))
    parts = int(np.median(np.diff(np.append(starts, len(table)))))
    # The driver may stall within a tick, so rows are counted off: their order never changes.
    blocks = table[: len(table) // parts * parts].reshape(-1, parts, 2)
    together = blocks[:, -1, 0] - blocks[:, 0, 0] <= jump_s
    if together.mean() < WHOLE:
        raise UserError(
            "it cannot be told which rows belong together", where=where,
            hint="add `index` to nvidia-smi's --query-gpu",
        )  # fmt: skip
    return parts, _once(np.column_stack((blocks[:, -1, 0], blocks[:, :, 1].sum(axis=1))))
