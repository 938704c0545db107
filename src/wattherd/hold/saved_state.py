"""What a loop leaves to its successor: on disk beside the journal, replaced as a whole.

`NAME.journal.json.state` has what the safety loop has learned (`SafetyLoop.state`), of which
devices and feeds, and the limit that signals from outside had set. It belongs to one site: another
site's is not used. `NAME.journal.json.owner` says who holds the site, or held it last.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from wattherd.engine.safety.contract import Fleet
from wattherd.engine.safety.loop import SafetyState
from wattherd.hold.site_file import HeldSite

SCHEMA = "wattherd.hold-state/1"
COST = 20
"""Keeping takes at most one part in so many of the loop's time."""


class SavedDevice(BaseModel):
    """A device as the loop knew it: its feed's name, and its range in watts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    knob: str
    feed: str
    floor_w: float
    max_w: float
    step_w: float = 1.0
    identity: str = ""


class _Content(BaseModel):
    model_config = ConfigDict(extra="ignore")

    schema_: str
    site: str
    at_s: float
    feeds: list[str]
    devices: list[SavedDevice]
    state: dict[str, list[float | None]]
    switched_off: list[str] = []
    signal_w: float | None = None
    since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSite:
    """What a loop knew at `at_s` (Unix seconds); rows of `state` are `devices` and `feeds`.

    `switched_off` are the names of devices whose outlets it had switched off, `signal_w` is the
    limit of the site that came from outside, `since_s` when the steps of limits began.
    """

    at_s: float
    feeds: tuple[str, ...]
    devices: tuple[SavedDevice, ...]
    state: SafetyState
    switched_off: frozenset[str] = frozenset()
    signal_w: float | None = None
    since_s: float | None = None

    def member(self, knob: str) -> SavedDevice | None:
        """What is known of the device with that knob."""
        return next((one for one in self.devices if one.knob == knob), None)

    def but(self, gone: Collection[str]) -> SavedSite:
        """Without the devices of these knobs, of which nothing is to be remembered."""
        rows = [row for row, one in enumerate(self.devices) if one.knob not in gone]
        levels = np.arange(len(self.feeds) + 1)
        return replace(
            self,
            devices=tuple(self.devices[row] for row in rows),
            state=self.state.reordered(np.array(rows, dtype=np.int64), levels),
        )

    def of(self, site: HeldSite, now_s: float, *, replaced: Collection[str] = ()) -> SafetyState:
        """The state in the order of `site`; unknown for new devices and `replaced` ones (knobs).

        A device is the same if it has the same knob, wherever its feed is now.
        """
        rows = {one.knob: row for row, one in enumerate(self.devices) if one.knob not in replaced}
        levels = {name: row for row, name in enumerate(self.feeds)}
        devices = [rows.get(device.knob.source, -1) for device in site.devices]
        feeds = [levels.get(feed.name, -1) for feed in site.feeds]
        state = self.state.reordered(
            np.array(devices, dtype=np.int64),
            np.array([*feeds, len(self.feeds)], dtype=np.int64),  # the site counts last
        )
        state.off_age_s[:] += max(now_s - self.at_s, 0.0)
        return state


def memory_of(
    site: HeldSite,
    fleet: Fleet,
    state: SafetyState,
    *,
    switched_off: Collection[str],
    identities: Collection[str],
    signal_w: float | None,
    since_s: float,
) -> SavedSite:
    """What a loop knows now; `identities` are in the order of the site's devices."""
    names = [feed.name for feed in site.feeds]
    ranges = zip(site.devices, fleet.floor_w, fleet.max_w, identities, strict=True)
    return SavedSite(
        at_s=time.time(),
        feeds=tuple(names),
        devices=tuple(
            SavedDevice(name=one.name, knob=one.knob.source, feed=names[one.feed],
                   floor_w=float(floor_w), max_w=float(max_w), step_w=one.step_w,
                   identity=identity)
            for one, floor_w, max_w, identity in ranges
        ),
        state=state,
        switched_off=frozenset(switched_off),
        signal_w=signal_w,
        since_s=since_s,
    )  # fmt: skip


@dataclass(slots=True)
class StateKeeper:
    """Writes a site's memory, as often as is cheap; a loop that is killed loses a moment's."""

    site: HeldSite
    _next_s: float = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time again."""
        return time.monotonic() >= self._next_s

    def keep(self, memory: SavedSite, *, sync: bool = False) -> None:
        """Replace what was kept.

        Raises:
            OSError: it cannot be written; what was kept before stays.
        """
        began_s = time.monotonic()
        write_memory(self.site.journal, memory, sync=sync)
        self._next_s = time.monotonic() + COST * (time.monotonic() - began_s)


def write_memory(journal: Path, memory: SavedSite, *, sync: bool) -> None:
    """Replace what is kept beside a journal.

    Raises:
        OSError: it cannot be written; what was kept before stays.
    """
    text = json.dumps({
        "schema": SCHEMA,
        "site": str(journal),
        "at_s": memory.at_s,
        "feeds": memory.feeds,
        "devices": [one.model_dump(exclude_defaults=True) for one in memory.devices],
        "state": memory.state.as_lists(),
        "switched_off": sorted(memory.switched_off),
        "signal_w": memory.signal_w,
        "since_s": memory.since_s,
    })  # fmt: skip
    replace_file(beside(journal), text, sync=sync)


def remembered(site: HeldSite) -> tuple[SavedSite | None, str]:
    """What the last loop of this site left, or why it cannot be used."""
    return read_memory(site.journal)


def read_memory(journal: Path) -> tuple[SavedSite | None, str]:
    """What is kept beside a journal, or why it cannot be used."""
    path = beside(journal)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        content = _Content.model_validate({**told, "schema_": told.get("schema", "")})
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, AttributeError, TypeError, ValidationError) as error:
        return None, f"{path} cannot be read: {str(error).splitlines()[0]}"
    if content.schema_ != SCHEMA:
        return None, f"{path} is of another version: {content.schema_!r}"
    if content.site != str(journal):
        return None, f"{path} is of another site: {content.site}"
    size, levels = len(content.devices), len(content.feeds) + 1
    return SavedSite(
        at_s=content.at_s,
        feeds=tuple(content.feeds),
        devices=tuple(content.devices),
        state=SafetyState.from_lists(content.state, size=size, levels=levels),
        switched_off=frozenset(content.switched_off),
        signal_w=content.signal_w,
        since_s=content.since_s,
    ), ""


def forget(site: HeldSite) -> None:
    """Nothing is held any more: the next loop begins anew."""
    state_path(site).unlink(missing_ok=True)


def state_path(site: HeldSite) -> Path:
    """Where a site's memory is kept."""
    return beside(site.journal)


def beside(journal: Path) -> Path:
    """Where the memory is kept that belongs to a journal."""
    return journal.with_name(f"{journal.name}.state")


# --- Who holds the site --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SiteOwner:
    """A process that holds a site; `token` is new with every life."""

    pid: int
    token: str


def claim(journal: Path) -> SiteOwner:
    """Write down that this process holds the site; it has the journal's lock.

    Raises:
        OSError: it cannot be written.
    """
    owner = SiteOwner(os.getpid(), uuid.uuid4().hex)
    replace_file(
        _owner_path(journal), json.dumps({"pid": owner.pid, "token": owner.token}), sync=False
    )
    return owner


def owner_of(journal: Path) -> SiteOwner | None:
    """Who held the site last; that process may have ended."""
    try:
        told = json.loads(_owner_path(journal).read_text(encoding="utf-8"))
        return SiteOwner(int(told["pid"]), str(told["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _owner_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.owner")


def replace_file(path: Path, text: str, *, sync: bool) -> None:
    """Write a file as a whole; with `sync` it is on the disk afterwards."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
