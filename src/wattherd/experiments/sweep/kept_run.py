"""Simulations of this process that need not be done again: their figures are kept by name.

A name says all that a result depends on (`ScheduleCell.key`). Beyond that, this process must run
what the name says: modules are loaded once, while a name is made of the files on disk. So nothing
is taken or kept once files of ours, of a plug-in, or installed packages have changed since the
process began; workers of a sweep are young enough not to need this.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wattherd.experiments.schedule.run import ComparedRun
from wattherd.experiments.sweep import fingerprint
from wattherd.experiments.sweep.cell import FileDigests, ScheduleCell
from wattherd.sim.collector import JobOutcome
from wattherd.sim.world import RunRecording
from wattherd.store.result_cache import ResultCache, key_of

MOST_BYTES = 32 * 2**20
"""Of one result; whatever is larger is computed again."""
_SLACK_S = 2.0
"""The system tells its own start in whole seconds, and file systems the time in ticks."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a table that was made when the run was."""

    kept: tuple[tuple[object, ...], ...]

    def rows(self) -> list[tuple[object, ...]]:
        """The rows."""
        return list(self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run of which the figures are kept; its events are there once it is run `again`."""

    policy: str
    row: dict[str, object]
    outcomes: list[JobOutcome]
    unfinished: list[tuple[str, str]]
    levels: KeptRows | None
    stretches: KeptRows | None
    again: Callable[[], ComparedRun]

    @property
    def recording(self) -> RunRecording:
        """Every event and command."""
        return self.again().recording


def run_or_kept(
    cell: ScheduleCell, kept: ResultCache, simulate: Callable[[], ComparedRun]
) -> ComparedRun | KeptRun:
    """A run with the history of what was in use: its figures from the cache, or all of it, now."""
    name = _name(cell, kept, history=True)
    found = kept.get(name) if name else None
    if found is not None:
        try:
            return _of_document(cell.policy, found, cache(simulate))
        except (KeyError, TypeError, ValueError):
            pass  # of a version that kept something else: computed anew
    run = simulate()
    if name and name == _name(cell, kept, history=True):
        _keep(kept, name, _as_document(run))
    return run


def row_or_kept(cell: ScheduleCell, kept: ResultCache) -> dict[str, object]:
    """The figures of a cell of a sweep, from the cache of sweeps or computed now.

    Raises:
        UserError: something that cannot be used.
    """
    name = _name(cell, kept, history=False)
    found = kept.get(name) if name else None
    if found is not None and isinstance(found.get("row"), dict):
        return dict(found["row"])
    result = cell.compute()
    if name and name == _name(cell, kept, history=False):
        _keep(kept, name, result)
    return dict(result["row"])


def _name(cell: ScheduleCell, kept: ResultCache, *, history: bool) -> str | None:
    """The name of what this process would compute now; None if it is neither taken nor kept."""
    if kept.folder is None:
        return None
    parts = {"schedule": cell.policy, "power": cell.scenario.power[0]}
    if changed_since(_began_s(), fingerprint.files_behind(parts)):
        return None
    name = cell.key(FileDigests())
    return key_of({"of": "history/1", "cell": name}) if name and history else name


def changed_since(began_s: float | None, paths: Iterable[Path]) -> bool:
    """Whether one of these was written, replaced or removed after then (Unix seconds)."""
    if began_s is None:
        return True
    try:
        return any(path.stat().st_ctime >= began_s - _SLACK_S for path in paths)
    except OSError:
        return True


@cache
def _began_s() -> float | None:
    """When this process began (Unix seconds); None where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        up_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return time.time() - up_s + float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _keep(kept: ResultCache, name: str, document: Mapping[str, Any]) -> None:
    try:
        plain = json.loads(json.dumps(document, allow_nan=False))
    except ValueError:  # a figure that is no number: rare, and not worth a form of its own
        return
    if len(json.dumps(plain)) <= MOST_BYTES:
        kept.put(name, plain)


def _as_document(run: ComparedRun) -> dict[str, Any]:
    return {
        "row": run.row,
        "outcomes": [asdict(one) for one in run.outcomes],
        "unfinished": run.unfinished,
        "levels": None if run.levels is None else run.levels.rows(),
        "stretches": None if run.stretches is None else run.stretches.rows(),
    }


def _of_document(
    policy: str, found: Mapping[str, Any], again: Callable[[], ComparedRun]
) -> KeptRun:
    return KeptRun(
        policy=policy,
        row=dict(found["row"]),
        outcomes=[JobOutcome(**one) for one in found["outcomes"]],
        unfinished=[(job, why) for job, why in found["unfinished"]],
        levels=_rows(found["levels"]),
        stretches=_rows(found["stretches"]),
        again=again,
    )


def _rows(found: Any) -> KeptRows | None:
    return None if found is None else KeptRows(tuple(tuple(row) for row in found))
