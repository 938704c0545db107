"""The state after an entry as bytes, and back again.

Pickled, because the core is a web of objects that refer to each other. What a core is built from
(planner, curves, cluster) is not in the bytes: it is named there, and taken from the configuration
of the process that reads them. Only classes of this package and plain containers are ever made from
the bytes, so that they cannot do anything else. A first line says which attributes those classes
had: objects that lack one would be made without a word and fail at some later plan.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import ClusterError
from wattherd.server.journal.job_history import JobHistory, PastJob
from wattherd.server.journal.moved_classes import RENAMED, name_now
from wattherd.server.journal.replay_state import ReplayState

_CONFIG = "config"
_PLAIN = {
    "builtins": {"set", "frozenset", "bytearray", "complex", "range", "slice", "object"},
    "collections": {"deque", "OrderedDict", "defaultdict", "Counter"},
    "functools": {"partial"},
    "copyreg": {"_reconstructor"},
    "numpy": {"ndarray", "dtype", "int64", "float64", "bool"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
}
_ROOMS = ("engine", "model", "policy", "estimate", "catalog", "server")


class UnusableSnapshot(ClusterError):
    """A snapshot that cannot be made or used."""


class OtherVersion(UnusableSnapshot):
    """A snapshot that another version made: no damage, but of no use here."""


@dataclass(slots=True)
class FrozenState:
    """Where everything stands; `live` are the jobs that are not over."""

    core: Core
    standing: ReplayState
    live: dict[str, PastJob]
    submitted: int

    @classmethod
    def of(cls, core: Core, standing: ReplayState, history: JobHistory) -> FrozenState:
        """The state at hand."""
        live = {job_id: past for job_id, past in history.jobs.items() if not past.over}
        return cls(core, standing, live, history.submitted)


def freeze(state: FrozenState) -> bytes:
    """The state as bytes.

    Raises:
        Unfit: something in it cannot be written down.
    """
    stream = io.BytesIO()
    writer = _Writer(stream, state.core.config)
    try:
        writer.dump((state.core, state.standing, state.live, state.submitted))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise UnusableSnapshot(f"the state cannot be written down: {error}") from None
    return json.dumps(writer.shapes()).encode() + b"\n" + stream.getvalue()


def thaw(body: bytes, config: CoreConfig) -> FrozenState:
    """The state that was frozen, on a configuration like the one it had.

    Raises:
        Unfit: the bytes are of another version, or no such state at all.
    """
    head, _, rest = body.partition(b"\n")
    try:
        _compare(json.loads(head))
        core, standing, live, submitted = _Reader(io.BytesIO(rest), config).load()
    except UnusableSnapshot:
        raise
    except Exception as error:  # noqa: BLE001 - bytes of another version may fail in any way
        raise UnusableSnapshot(f"cannot be read: {error}") from None
    if not (isinstance(core, Core) and isinstance(standing, ReplayState)):
        raise UnusableSnapshot("holds something else")
    if core.queues is not None:  # they were changed after the time of the configuration
        core.take_on(core.queues)
    return FrozenState(core, standing, live, submitted)


class _Writer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, config: CoreConfig) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        parts = {field.name: getattr(config, field.name) for field in fields(config)}
        self._names = {id(part): name for name, part in parts.items() if _is_object(part)}
        self._names[id(config)] = _CONFIG
        self._classes: set[type] = set()

    def reducer_override(self, one: Any) -> Any:
        """Take note of the class of everything that is written in the usual way."""
        if type(one).__module__.startswith("wattherd."):
            self._classes.add(type(one))
        return NotImplemented

    def shapes(self) -> dict[str, list[str]]:
        """The attributes of all classes that were written, by their names."""
        named = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in self._classes}
        return {name: _attributes(named[name]) for name in sorted(named)}

    def persistent_id(self, one: Any) -> str | None:
        """Name what the configuration has."""
        return self._names.get(id(one))


def _attributes(kind: type) -> list[str]:
    """What an object of this class has, or may have: its slots, or what its making names."""
    found: set[str] = set()
    for one in kind.__mro__[:-1]:
        found.update(vars(one).get("__slots__", ()), vars(one).get("__annotations__", ()))
        found.update(vars(one).get("_fields", ()))  # Python 3.14 annotates named tuples when asked
        making = getattr(vars(one).get("__init__"), "__code__", None)
        if making is not None and "__dataclass_fields__" not in vars(one):
            found.update(making.co_names)
    return sorted(found)


def _compare(shapes: Mapping[str, list[str]]) -> None:
    """Whether the classes that were written are the ones there are.

    Raises:
        OtherVersion: one has other attributes now, stands elsewhere, or is gone.
    """
    for name, attributes in shapes.items():
        module, _, qualname = name_now(name).partition(":")
        kind = _module(module)
        for part in qualname.split("."):
            kind = getattr(kind, part, None)
        if kind is None:
            raise OtherVersion(f"was made by another version, whose {qualname} is not here")
        if _attributes(kind) != sorted(RENAMED.get(one, one) for one in attributes):
            raise OtherVersion(f"was made by another version, whose {qualname} differs")


def _module(name: str) -> Any:
    """A module of ours, or None where there is none of that name any more."""
    if not _is_ours(name):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _is_ours(module: str) -> bool:
    return any(f"{module}.".startswith(f"wattherd.{room}.") for room in _ROOMS)


def _is_object(part: object) -> bool:
    """Whether it can be told from others by its identity."""
    return part is not None and not isinstance(part, int | float | str)


def _member(kind: Any, name: Any) -> Enum:
    """A member of one of our enums, and nothing else that `getattr` could reach."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"{name!r} of {kind!r} has no place in a snapshot")


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, config: CoreConfig) -> None:
        super().__init__(stream)
        self._config = config

    def persistent_load(self, name: Any) -> Any:
        """The part of the configuration that is named."""
        return self._config if name == _CONFIG else getattr(self._config, str(name))

    def find_class(self, module: str, name: str) -> Any:
        """Classes of the core and of plain containers, nothing else."""
        if (module, name) == ("builtins", "getattr"):
            return _member  # how Python up to 3.11.3 writes members of an Enum
        module, _, name = name_now(f"{module}:{name}").partition(":")
        if _is_ours(module) or name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")
