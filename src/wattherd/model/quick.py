"""Frozen dataclasses that are made by the hundred thousand: the same, made in two thirds the time.

The `__init__` that dataclasses write for frozen classes looks `object.__setattr__` up for every
field, by name. The descriptors of the slots are known when the class is made: they are called
instead. Everything else stays as it is.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots and plain defaults a quicker `__init__`.

    Raises:
        TypeError: a default is made by a factory, or something is done after `__init__`.
    """
    known: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    if hasattr(cls, "__post_init__") or any(not one.init or _made(one) for one in known):
        raise TypeError(f"{cls.__name__} needs the __init__ of dataclasses")
    usual = cls.__init__
    names: dict[str, Any] = {}
    for one in known:
        names[f"_set_{one.name}"] = getattr(cls, one.name).__set__
        names[f"_default_{one.name}"] = one.default
    made: dict[str, Any] = {}
    exec(_source(known, names), made)  # noqa: S102 - as dataclasses do; only names of fields go in
    init = made["make"](**names)
    for kept in ("__module__", "__qualname__", "__annotations__"):
        setattr(init, kept, getattr(usual, kept))
    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def _made(field: Field[Any]) -> bool:
    return field.default_factory is not MISSING


def _source(known: tuple[Field[Any], ...], names: dict[str, Any]) -> str:
    """A function that makes the `__init__`, whose constants are its arguments."""
    plain = [_parameter(one) for one in known if not one.kw_only]
    named = [_parameter(one) for one in known if one.kw_only]
    parameters = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    body = "\n".join(f"        _set_{one.name}(self, {one.name})" for one in known)
    return (
        f"def make({', '.join(names)}):\n"
        f"    def __init__({parameters}):\n{body}\n"
        f"    return __init__\n"
    )


def _parameter(field: Field[Any]) -> str:
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"
