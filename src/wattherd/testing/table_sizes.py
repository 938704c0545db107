"""How much an object remembers, and of whom: a walk through all that can be reached from it.

What belongs to something that is gone must not be kept. Whoever has let pods, groups and nodes come
and go asks whether their names are still anywhere, and compares sizes of all tables, each known by
the path of attributes that leads to it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MANY = (list, tuple, set, frozenset, deque)


def sizes(root: object) -> Counter[str]:
    """Entries by path, of all containers at the same path together."""
    found: Counter[str] = Counter()
    for path, one in _reached(root):
        if isinstance(one, (Mapping, *_MANY)):
            found[path] += len(one)
    return found


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Paths whose containers have more entries than before: how many they had, and have."""
    return {
        path: (before.get(path, 0), count)
        for path, count in after.items()
        if count > before.get(path, 0)
    }


def remembered(root: object, word: str) -> dict[str, str]:
    """Paths at which there is a text with `word` in it, and one such text."""
    found: dict[str, str] = {}
    for path, one in _reached(root):
        if isinstance(one, str | bytes) and word in (one if isinstance(one, str) else str(one)):
            found.setdefault(path, str(one))
    return found


def _reached(root: object) -> Iterator[tuple[str, Any]]:
    """Everything, with its path: attributes of our own objects, `[]` for what is in a container.

    What is reached twice comes where it is reached first. Other threads may be at work meanwhile.
    """
    left, seen = deque[tuple[str, Any]]([("", root)]), set[int]()
    alive: list[Any] = []  # so that no number is given to two objects
    while left:
        path, one = left.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        alive.append(one)
        yield path, one
        left += _below(path, one)


def _below(path: str, one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Mapping):
        yield from ((f"{path}[]", value) for pair in list(one.items()) for value in pair)
    elif isinstance(one, _MANY):
        yield from ((f"{path}[]", value) for value in tuple(one))
    elif type(one).__module__.startswith("wattherd.") and not isinstance(one, type):
        yield from ((f"{path}.{name}", value) for name, value in _attributes(one))
    elif callable(one):
        yield from ((f"{path}()", value) for value in _made_with(one))


def _attributes(one: object) -> Iterator[tuple[str, Any]]:
    kind = type(one)
    slots = (name for base in kind.__mro__ for name in _slots_of(base))
    fields = getattr(kind, "__struct_fields__", ())  # msgspec's own kind of slots
    for name in (*slots, *fields, *getattr(one, "__dict__", ())):
        try:
            yield name, getattr(one, name)
        except AttributeError:  # a slot that nothing is in
            continue


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _made_with(function: Any) -> Iterator[Any]:
    """Of a method its object, of a function what it closed over."""
    yield getattr(function, "__self__", None)
    for cell in getattr(function, "__closure__", None) or ():
        yield cell.cell_contents
