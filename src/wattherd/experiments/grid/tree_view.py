"""A power tree with the watts that are drawn in it: limit, draw and headroom of every domain.

Readings are of nodes or of domains. A domain's own reading counts for it; without one its draw is
the sum of what is below it, divided by one less its loss. Where not all below is known, that sum is
only the least that it can be.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.spelling import hint_for
from wattherd.units import plain, watts

SCHEMA = "wattherd.power-tree/1"
Readings = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A domain, or a node on it, at its place in the drawing.

    `free_w` is the headroom once all domains above are asked too: what may really be added. Where
    not all draw is known (`complete`, `free_complete`), draw is the least, headroom and free are
    the most that they can be.
    """

    name: str
    level: str
    stem: str
    limit_w: float | None
    draw_w: float | None
    complete: bool
    headroom_w: float | None
    free_w: float | None
    free_complete: bool
    node: bool = False

    @property
    def over(self) -> bool:
        """Whether more is drawn than the limit."""
        return self.headroom_w is not None and self.headroom_w < 0


def document(tree: PowerTree, readings: Readings, at_s: float) -> dict[str, Any]:
    """`wattherd.power-tree/1`: the rows of the drawing, `at_s` after the steps of budgets began."""
    found = rows(tree, readings, at_s)
    return {
        "schema": SCHEMA,
        "at_s": at_s,
        "rows": [{**asdict(one), "over": one.over} for one in found],
    }


def rows(tree: PowerTree, readings: Readings, at_s: float = 0.0) -> list[TreeRow]:
    """All domains in the order of the drawing, each followed by its nodes that have a reading.

    Raises:
        UserError: a reading of something that is not in the tree.
    """
    known = {one.name for one in tree.domains} | {
        node for one in tree.domains for node in one.nodes
    }
    literal = {_plain(name): name for name in known}
    for name in readings:
        if name not in known and name not in literal:
            raise UserError(
                "is neither a domain nor a node", where=name, hint=hint_for(name, sorted(known))
            )
    given = {literal.get(name, name): value for name, value in readings.items()}
    return list(_Drawing(tree, given, at_s).rows())


def _plain(name: str) -> str:
    """A node's name without the brackets that keep its signs from being a pattern."""
    for sign in "*?[":
        name = name.replace(f"[{sign}]", sign)
    return name


class _Drawing:
    def __init__(self, tree: PowerTree, readings: Readings, at_s: float) -> None:
        self._tree, self._readings, self._at_s = tree, readings, at_s
        self._children: dict[str | None, list[TreeDomain]] = {}
        for one in tree.domains:
            self._children.setdefault(one.parent, []).append(one)
        self._draws: dict[str, tuple[float | None, bool]] = {}
        deepest = sorted(tree.domains, key=lambda one: -tree.depth(one.name))
        for one in deepest:
            self._draws[one.name] = self._draw(one)

    def rows(self) -> Iterator[TreeRow]:
        yield from self._below(self._tree.root, "", "", (None, True))

    def _below(
        self, one: TreeDomain, stem: str, indent: str, above: tuple[float | None, bool]
    ) -> Iterator[TreeRow]:
        draw_w, complete = self._draws[one.name]
        limit_w = self._limit(one)
        headroom_w = None if limit_w is None else limit_w - (draw_w or 0.0)
        free_w = min((w for w in (headroom_w, above[0]) if w is not None), default=None)
        free_complete = above[1] and (complete or limit_w is None)
        yield TreeRow(
            name=one.name,
            level=one.level,
            stem=stem,
            limit_w=limit_w,
            draw_w=draw_w,
            complete=complete,
            headroom_w=headroom_w,
            free_w=free_w,
            free_complete=free_complete,
        )
        inside_w = None if free_w is None else free_w * (1.0 - one.loss)
        nodes = [node for node in one.nodes if node in self._readings]
        below: list[TreeDomain | str] = [*self._children.get(one.name, ()), *nodes]
        for number, child in enumerate(below, start=1):
            last = number == len(below)
            branch = indent + ("└─ " if last else "├─ ")
            if isinstance(child, str):
                yield TreeRow(
                    name=_plain(child),
                    level="node",
                    stem=branch,
                    limit_w=None,
                    draw_w=self._readings[child],
                    complete=True,
                    headroom_w=None,
                    free_w=inside_w,
                    free_complete=free_complete,
                    node=True,
                )
            else:
                deeper = indent + ("   " if last else "│  ")
                yield from self._below(child, branch, deeper, (inside_w, free_complete))

    def _limit(self, one: TreeDomain) -> float | None:
        begun = [step.budget_w for step in one.steps if step.at_s <= self._at_s]
        return begun[-1] if begun else one.budget_w

    def _draw(self, one: TreeDomain) -> tuple[float | None, bool]:
        """Watts at the domain's input, and whether all below it is known."""
        if one.name in self._readings:
            return self._readings[one.name], True
        parts = [self._draws[child.name] for child in self._children.get(one.name, ())]
        parts += [(self._readings.get(node), node in self._readings) for node in one.nodes]
        known = [value for value, _ in parts if value is not None]
        if not known:
            return None, False
        return sum(known) / (1.0 - one.loss), all(complete for _, complete in parts)


# --- readings ------------------------------------------------------------------------------------


def read_draws(path: Path) -> dict[str, float]:
    """Watts by name: a CSV file with `name,watts`, or a JSON object.

    Raises:
        UserError: unreadable, or another form.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("is no UTF-8", where=str(path)) from None
    if text.lstrip().startswith("{"):
        return _json_draws(text, str(path))
    found: dict[str, float] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        where = f"{path}:{number}"
        if not row or (number == 1 and row[:2] == ["name", "watts"]):
            continue
        if len(row) != 2:
            raise UserError("is not `name,watts`", where=where)
        found[row[0].strip()] = _watts(plain(row[1]), where)
    return found


def _json_draws(text: str, where: str) -> dict[str, float]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError("is no JSON", where=where) from None
    return {str(name): _watts(value, f"{where}: {name}") for name, value in content.items()}


def _watts(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{value!r} is no power", where=where, field="watts")
    try:
        return watts(value)
    except UserError as error:
        raise UserError(error.problem, where=where, field="watts", hint=error.hint) from None


def read_meters(path: Path) -> tuple[dict[str, float], list[str]]:
    """One reading of each meter of a YAML file, `name: URI`; what failed is told line by line.

    Raises:
        UserError: unreadable, or an address that cannot be used.
    """
    from wattherd.devices.meters.contract import MeterReading
    from wattherd.devices.meters.registry import open_meter
    from wattherd.devices.meters.watch import rounds
    from wattherd.workload.scenario import load

    content = load(path)
    if not all(isinstance(uri, str) for uri in content.values()):
        raise UserError("is no mapping of names to addresses of meters", where=str(path))
    meters = []
    try:
        meters = [open_meter(uri) for uri in content.values()]
        outcomes = next(iter(rounds(meters, 1.0, 1)), [])
    finally:
        for meter in meters:
            meter.close()
    found, troubles = {}, []
    for name, outcome in zip(content, outcomes, strict=True):
        if isinstance(outcome, MeterReading):
            found[name] = outcome.watts
        else:
            troubles.append(f"{name}: {outcome}")
    return found, troubles
