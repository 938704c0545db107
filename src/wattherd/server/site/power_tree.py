"""The power tree of a running service: levels above its machine, the machine, and its devices.

What no meter says is unknown: it is None here and never 0, and headroom below an unknown draw is
only the most that it can be. How long readings have been silent is kept across looks, as is the
time that each level has spent above its limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from wattherd.server.documents.documents import OPERATORS, SiteView, time_of
from wattherd.server.hardware.draw import LONGEST_S, PERIOD_S, WORST_CASE, DrawSample
from wattherd.server.limits.site_limits import SiteLevel, SiteLimits

SCHEMA = "wattherd.live-tree/1"
CONFIGURATION = "configuration"
"""Who set the limits of levels."""
Kind = Literal["level", "node", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """A level, the machine or a device, at its place in the drawing; None is unknown.

    Names are unique among rows of a kind. A node's `parent` is a level and a device's a node, so
    that parents are unique, too. `free_w` is the headroom once everything above is asked, too:
    what may really be added. While the draw of a level is unknown, `least_w` is what hangs on it
    and is known, and `free_complete` is false below it: what is free is that at most.
    """

    name: str
    kind: Kind
    parent: str
    depth: int
    limit_w: float | None
    limit_by: str
    draw_w: float | None
    least_w: float | None
    other_w: float | None
    headroom_w: float | None
    free_w: float | None
    free_complete: bool
    age_s: float | None
    stated: str
    problem: str = ""

    @property
    def over(self) -> bool:
        """Whether more is drawn than the limit, for all that is known."""
        if self.limit_w is None:
            return False
        known_w = self.least_w if self.draw_w is None else self.draw_w
        return known_w is not None and known_w > self.limit_w


@dataclass(frozen=True, slots=True)
class LevelPast:
    """When a level's draw was last known, in seconds of the journal, and its time above the limit.

    Of a level that was never read, `read_at_s` is when it was first looked at.
    """

    read_at_s: float
    ever: bool = False
    over_s: float = 0.0


class TreeBook:
    """What is remembered between looks; `look` and `sampled` are told about once a second."""

    def __init__(self, metered: Iterable[str] = (), place: str = "") -> None:
        """`metered` levels have a meter; this machine hangs on the one called `place`."""
        self.metered, self.place = frozenset(metered), place
        self.past: Mapping[str, LevelPast] = {}
        self.heard_s: float | None = None
        self.devices_s: dict[int, float] = {}
        """When all of this machine, and each of its devices, last said what it draws."""
        self._looked_s: float | None = None

    @classmethod
    def of(cls, limits: SiteLimits | None) -> TreeBook:
        """Of a service that is configured so."""
        if limits is None:
            return cls()
        metered = [name for name, feed in limits.feeds.items() if feed.meter is not None]
        only = next(iter(limits.feeds)) if len(limits.feeds) == 1 else "site"
        whole = ["site"] if limits.meter is not None else []
        return cls([*metered, *whole], limits.feed or only)

    def sampled(self, sample: DrawSample) -> None:
        """Note which devices said what they draw."""
        if sample.stated != WORST_CASE:
            self.heard_s = sample.at_s
        for number in range(len(sample.by_device)):
            if _said(sample, number) is not None:
                self.devices_s[number] = sample.at_s

    def look(self, levels: Sequence[SiteLevel], now_s: float, epoch: float = 0.0) -> None:
        """Note what is known at `now_s` of a journal that began at `epoch` (Unix time).

        A gap between looks counts as one second: what nobody saw is not guessed.
        """
        passed_s = 0.0 if self._looked_s is None else max(now_s - self._looked_s, 0.0)
        if passed_s > LONGEST_S:
            passed_s = PERIOD_S
        self._looked_s = now_s
        self.past = {one.name: self._noted(one, now_s, passed_s, epoch) for one in levels}

    def _noted(self, one: SiteLevel, now_s: float, passed_s: float, epoch: float) -> LevelPast:
        before = self.past.get(one.name) or LevelPast(now_s)
        over_s = before.over_s + (passed_s if one.draw_w > one.limit_w else 0.0)
        if math.isnan(one.draw_w):
            return LevelPast(before.read_at_s, before.ever, over_s)
        read_at_s = now_s if math.isnan(one.read_at_s) else min(one.read_at_s - epoch, now_s)
        return LevelPast(read_at_s, ever=True, over_s=over_s)

    def silent_s(self, name: str, now_s: float) -> float | None:
        """Since when a metered level has said nothing; None without a meter, or before a look."""
        past = self.past.get(name)
        return None if past is None or name not in self.metered else max(now_s - past.read_at_s, 0)


def tree_document(look: SiteView, levels: Sequence[SiteLevel], book: TreeBook, now_s: float) -> Any:
    """`wattherd.live-tree/1`: every node of the tree in the order of its drawing."""
    found = live_rows(look, levels, book, now_s)
    return {
        "schema": SCHEMA,
        "at": time_of(look.epoch, now_s),
        "rows": [{**asdict(one), "over": one.over} for one in found],
    }


def live_rows(
    look: SiteView, levels: Sequence[SiteLevel], book: TreeBook, now_s: float
) -> list[LiveRow]:
    """All rows, each followed by what hangs on it; `now_s` is the journal's time."""
    levels = list({one.name: one for one in levels}.values())
    machine = [_machine_row(look, book, now_s), *_device_rows(look, book, now_s)]
    known = {one.name for one in levels}
    roots, below, problems = _shape(levels)
    place = book.place if book.place in known else (roots[-1].name if roots else "")
    machine[0] = replace(machine[0], parent=place)
    least = _least(levels, problems, place, machine[0].draw_w)
    rows: list[LiveRow] = []
    waiting: list[tuple[SiteLevel | None, int, float | None, bool]] = [
        (one, 0, None, True) for one in reversed(roots)
    ]
    if not roots:
        waiting.append((None, 0, None, True))
    while waiting:  # not recursive: a tree may be as deep as it likes
        level, depth, above_w, sure = waiting.pop()
        if level is None:
            rows += _placed(machine, depth, above_w, sure=sure)
            continue
        row = _level_row(level, book, least, depth, (above_w, sure), now_s)
        row = replace(row, problem=problems.get(level.name, ""))
        rows.append(row)
        children: list[SiteLevel | None] = list(below.get(level.name, ()))
        if level.name == place:
            children.append(None)
        waiting += [(one, depth + 1, row.free_w, row.free_complete) for one in reversed(children)]
    return rows


def _shape(
    levels: Sequence[SiteLevel],
) -> tuple[list[SiteLevel], dict[str, list[SiteLevel]], dict[str, str]]:
    """Levels at the top, levels by what they hang on, and what is wrong with some of them.

    One that hangs on a level that is not there, or on itself, is drawn at the top and says so.
    """
    parents = {one.name: one.parent for one in levels}
    problems: dict[str, str] = {}
    sound: set[str] = {""}
    for one in levels:
        path, at = [], one.name
        while at not in sound and at not in path and at in parents:
            path.append(at)
            at = "" if at in problems else parents[at]
        if at in path:
            problems[at] = f"hangs on itself, by {parents[at]!r}"
        elif at not in sound:
            problems[path[-1]] = f"hangs on {at!r}, which is not known"
        sound.update(path)
    roots: list[SiteLevel] = []
    below: dict[str, list[SiteLevel]] = {}
    for one in levels:
        if one.parent and one.name not in problems:
            below.setdefault(one.parent, []).append(one)
        else:
            roots.append(one)
    return roots, below, problems


def _least(
    levels: Sequence[SiteLevel], problems: Mapping[str, str], place: str, machine_w: float | None
) -> dict[str, float]:
    """What each level draws at least: its reading, or what hangs on it and is known."""
    parents = {one.name: "" if one.name in problems else one.parent for one in levels}
    read_w = {one.name: one.draw_w for one in levels if not math.isnan(one.draw_w)}
    found: dict[str, float] = {}
    if machine_w is not None and place in parents:
        found[place] = machine_w
    order: list[str] = []
    waiting = [name for name, parent in parents.items() if not parent]
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    while waiting:
        name = waiting.pop()
        order.append(name)
        waiting += children.get(name, ())
    for name in reversed(order):  # lower ones first
        if name in read_w:
            found[name] = read_w[name]
        if name in found and parents[name]:
            found[parents[name]] = found.get(parents[name], 0.0) + found[name]
    return found


def _level_row(
    level: SiteLevel,
    book: TreeBook,
    least: Mapping[str, float],
    depth: int,
    above: tuple[float | None, bool],
    now_s: float,
) -> LiveRow:
    limit_w = level.limit_w if math.isfinite(level.limit_w) else None
    draw_w = _known(level.draw_w)
    known_w = least.get(level.name) if draw_w is None else draw_w
    headroom_w = None if limit_w is None or draw_w is None else limit_w - draw_w
    most_w = None if limit_w is None else limit_w - (known_w or 0.0)
    past = book.past.get(level.name)
    return LiveRow(
        name=level.name,
        kind="level",
        parent=level.parent,
        depth=depth,
        limit_w=limit_w,
        limit_by="" if limit_w is None else CONFIGURATION,
        draw_w=draw_w,
        least_w=known_w,
        other_w=_known(level.other_w),
        headroom_w=headroom_w,
        free_w=min((one for one in (most_w, above[0]) if one is not None), default=None),
        free_complete=above[1] and (limit_w is None or draw_w is not None),
        age_s=_age_s(past.read_at_s if past is not None and past.ever else None, now_s),
        stated="measured" if draw_w is not None else "",
    )


def _machine_row(look: SiteView, book: TreeBook, now_s: float) -> LiveRow:
    sample = look.book.samples[-1] if look.book.samples else None
    limit_w = look.core.watts.stated_w
    said = look.core.budgets.by_source.get("", {})
    by = min(said, key=lambda source: (said[source], source), default=None)
    silent = sample is None or sample.stated == WORST_CASE
    draw_w = None if sample is None or silent else sample.draw_w
    least_w = draw_w
    if sample is not None and silent:
        known_w = math.fsum(one for one in sample.read if one is not None)
        least_w = known_w + look.machine.node.idle_w if known_w else None
    other_w = None
    if sample is not None and draw_w is not None and sample.by_device:
        other_w = max(draw_w - math.fsum(sample.by_device), 0.0)
    return LiveRow(
        name=look.machine.node.name,
        kind="node",
        parent="",
        depth=0,
        limit_w=limit_w,
        limit_by="" if limit_w is None or by is None else by or OPERATORS,
        draw_w=draw_w,
        least_w=least_w,
        other_w=other_w,
        headroom_w=None if limit_w is None or draw_w is None else limit_w - draw_w,
        free_w=None,
        free_complete=True,
        age_s=_age_s(book.heard_s, now_s),
        stated="" if draw_w is None else look.stated,
    )


def _device_rows(look: SiteView, book: TreeBook, now_s: float) -> list[LiveRow]:
    """Leaves; their limit is the cap in force, or the most that the device draws."""
    caps: dict[int, float] = {}
    for record in look.core.jobs.values():
        if record.active and record.cap_w is not None:
            for one in record.allocations:
                for number in look.machine.numbers([one]):
                    caps[number] = min(record.cap_w, caps.get(number, math.inf))
    sample = look.book.samples[-1] if look.book.samples else None
    machine, rows = look.machine, []
    for number in range(machine.node.gpu_count):
        draw_w = None if sample is None else _said(sample, number)
        limit_w = caps.get(number, machine.gpu.max_w)
        rows.append(
            LiveRow(
                name=f"GPU {number}",
                kind="device",
                parent=machine.node.name,
                depth=0,
                limit_w=limit_w,
                limit_by="cap" if number in caps else "device",
                draw_w=draw_w,
                least_w=draw_w,
                other_w=None,
                headroom_w=None if draw_w is None else limit_w - draw_w,
                free_w=None,
                free_complete=True,
                age_s=_age_s(book.devices_s.get(number), now_s),
                stated="" if draw_w is None else look.stated,
            )
        )
    return rows


def _said(sample: DrawSample, number: int) -> float | None:
    """What the device draws; None while its meter, or the one of all, is silent."""
    if number >= len(sample.by_device):
        return None
    if sample.read:
        return sample.read[number]
    return None if sample.stated == WORST_CASE else sample.by_device[number]


def _placed(
    machine: Sequence[LiveRow], depth: int, above_w: float | None, *, sure: bool
) -> list[LiveRow]:
    """The machine and its devices below what they hang on."""
    node, *devices = machine
    most_w = None if node.limit_w is None else node.limit_w - (node.least_w or 0.0)
    free_w = min((one for one in (most_w, above_w) if one is not None), default=None)
    sure = sure and (node.limit_w is None or node.draw_w is not None)
    found = [replace(node, depth=depth, free_w=free_w, free_complete=sure)]
    for one in devices:
        own_w = None if one.limit_w is None else one.limit_w - (one.draw_w or 0.0)
        least_w = min((w for w in (own_w, free_w) if w is not None), default=None)
        known = sure and one.draw_w is not None
        found.append(replace(one, depth=depth + 1, free_w=least_w, free_complete=known))
    return found


def _known(watts: float) -> float | None:
    return None if math.isnan(watts) else watts


def _age_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(now_s - at_s, 0.0)
