"""A tree that was imported before, edited since, and is imported again: three versions become one.

`before` is what the last import wrote, `mine` the file as it is now, `now` what the inventory says
today. Field by field: what nobody edited follows the inventory; what was edited stays, and where
the inventory changed as well, that is told. Domains that were added by hand stay where they are,
domains that were removed by hand stay away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ADDED, REMOVED, CHANGED, KEPT = "added", "removed", "changed", "kept"
FIELDS = ("parent", "level", "budget", "loss", "signal")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDomain:
    """A domain as the file has it; `keys` are the inventory's objects in it, as far as known."""

    name: str
    parent: str | None = None
    level: str = ""
    budget: str | float | None = None
    loss: float = 0.0
    signal: str | None = None
    nodes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeChange:
    """One difference: `kept` is a hand edit that the inventory disagrees with."""

    kind: str
    domain: str
    field: str = ""
    before: Any = None
    now: Any = None


def branches_of(document: Mapping[str, Any], parent: str | None = None) -> list[FileDomain]:
    """The domains of a tree as its file describes it, each before those below it."""
    one = FileDomain(
        name=document["name"],
        parent=parent,
        level=document.get("level", ""),
        budget=document.get("budget"),
        loss=document.get("loss", 0.0),
        signal=document.get("signal"),
        nodes=tuple(document.get("nodes", ())),
    )
    below = [branches_of(child, one.name) for child in document.get("children", ())]
    return [one, *(branch for found in below for branch in found)]


def document_of(branches: Sequence[FileDomain]) -> dict[str, Any]:
    """The nested document of a tree; a domain whose parent is gone hangs on the root."""
    names = {one.name for one in branches}
    root = next(one for one in branches if one.parent is None)
    children: dict[str | None, list[FileDomain]] = {}
    for one in branches:
        if one is not root:
            above = one.parent if one.parent in names else root.name
            children.setdefault(above, []).append(one)
    return _nested(root, children)


def _nested(one: FileDomain, children: Mapping[str | None, Sequence[FileDomain]]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name}
    for field in ("level", "budget", "signal", "loss"):
        value = getattr(one, field)
        if value not in ("", None, 0.0) or (field == "budget" and value is not None):
            found[field] = value
    if one.nodes:
        found["nodes"] = list(one.nodes)
    below = [_nested(child, children) for child in children.get(one.name, ())]
    if below:
        found["children"] = below
    return found


def merged(
    before: Sequence[FileDomain], mine: Sequence[FileDomain], now: Sequence[FileDomain]
) -> tuple[list[FileDomain], list[TreeChange]]:
    """The tree to write, and how it differs from `mine`."""
    new_names = _renames(before, now)
    held = {_new(one.name, new_names): _with_new_names(one, new_names) for one in mine}
    old = {_new(one.name, new_names): _with_new_names(one, new_names) for one in before}
    there = {one.name: one for one in now}
    changes = [
        TreeChange(CHANGED, new, "name", name, new)
        for name, new in new_names.items()
        if any(one.name == name for one in mine)
    ]
    found: list[FileDomain] = []
    for name, one in there.items():
        if name in held:
            result, told = _fields(old.get(name), held[name], one)
            found.append(result)
            changes += told
        elif name not in old:
            found.append(one)
            changes.append(TreeChange(ADDED, name, now=_summary(one)))
    for name, one in held.items():
        if name in there:
            continue
        if name not in old:
            found.append(one)  # added by hand
        else:
            changes.append(TreeChange(REMOVED, name, before=_summary(one)))
    return _whole(found, now), changes


def _renames(before: Sequence[FileDomain], now: Sequence[FileDomain]) -> dict[str, str]:
    """Domains made of the same objects that go by another name today."""
    names_now = {one.name for one in now}
    by_keys = {one.keys: one.name for one in now if one.keys}
    old_names = {one.name for one in before}
    return {
        one.name: by_keys[one.keys]
        for one in before
        if one.keys in by_keys and one.name not in names_now and by_keys[one.keys] not in old_names
    }


def _new(name: str | None, names: Mapping[str, str]) -> Any:
    return None if name is None else names.get(name, name)


def _with_new_names(one: FileDomain, names: Mapping[str, str]) -> FileDomain:
    return replace(one, name=_new(one.name, names), parent=_new(one.parent, names))


def _fields(
    old: FileDomain | None, mine: FileDomain, now: FileDomain
) -> tuple[FileDomain, list[TreeChange]]:
    base = old or now
    told, values = [], {}
    for field in FIELDS:
        was, held, said = getattr(base, field), getattr(mine, field), getattr(now, field)
        edited = held != was
        values[field] = held if edited else said
        if edited and said not in (was, held):
            told.append(TreeChange(KEPT, mine.name, field, held, said))
        elif not edited and said != held:
            told.append(TreeChange(CHANGED, mine.name, field, held, said))
    nodes = _nodes(base.nodes, mine.nodes, now.nodes)
    if set(nodes) != set(mine.nodes):
        told.append(TreeChange(CHANGED, mine.name, "nodes", list(mine.nodes), list(nodes)))
    return replace(mine, **values, nodes=nodes, keys=now.keys), told


def _nodes(old: Iterable[str], mine: Iterable[str], now: Iterable[str]) -> tuple[str, ...]:
    """The inventory's nodes, less those that were taken out by hand, and those that were put in."""
    old, mine, now = set(old), list(mine), list(now)
    gone = old - set(mine)
    kept = [one for one in mine if one in set(now) or one not in old]
    return tuple(kept + [one for one in now if one not in kept and one not in gone])


def _whole(found: Sequence[FileDomain], now: Sequence[FileDomain]) -> list[FileDomain]:
    """Each node on one domain, where a hand edit and the inventory both placed it."""
    said = {node: one.name for one in now for node in one.nodes}
    seen: dict[str, int] = {}
    for one in found:
        for node in one.nodes:
            seen[node] = seen.get(node, 0) + 1
    result = []
    for one in found:
        # A node that stands twice was moved by hand: the place that the inventory names gives way.
        nodes = tuple(node for node in one.nodes if seen[node] == 1 or said.get(node) != one.name)
        result.append(replace(one, nodes=nodes))
    return result


def _summary(one: FileDomain) -> dict[str, Any]:
    return {"parent": one.parent, "level": one.level, "budget": one.budget, "nodes": len(one.nodes)}
