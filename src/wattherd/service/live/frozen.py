"""The state after an entry as bytes, and back again.

Pickled, because the core is a web of objects that refer to each other. What a core is built from
(planner, curves, cluster) is not in the bytes: it is named there, and taken from the configuration
of the process that reads them. Only classes of this package and plain containers are ever made from
the bytes, so that they cannot do anything else.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, fields
from typing import Any

from wattherd.engine.core import Core, CoreConfig
from wattherd.errors import ClusterError
from wattherd.service.live.history import History, Past
from wattherd.service.live.standing import Standing

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
_ROOMS = ("engine", "model", "policy", "estimate", "catalog", "runtime.contract", "service")


class Unfit(ClusterError):
    """A snapshot that cannot be made or used."""


@dataclass(slots=True)
class Frozen:
    """Where everything stands; `live` are the jobs that are not over."""

    core: Core
    standing: Standing
    live: dict[str, Past]
    submitted: int

    @classmethod
    def of(cls, core: Core, standing: Standing, history: History) -> Frozen:
        """The state at hand."""
        live = {job_id: past for job_id, past in history.jobs.items() if not past.over}
        return cls(core, standing, live, history.submitted)


def freeze(state: Frozen) -> bytes:
    """The state as bytes.

    Raises:
        Unfit: something in it cannot be written down.
    """
    stream = io.BytesIO()
    try:
        _Writer(stream, state.core.config).dump(
            (state.core, state.standing, state.live, state.submitted)
        )
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise Unfit(f"the state cannot be written down: {error}") from None
    return stream.getvalue()


def thaw(body: bytes, config: CoreConfig) -> Frozen:
    """The state that was frozen, on a configuration like the one it had.

    Raises:
        Unfit: the bytes are of another version, or no such state at all.
    """
    try:
        core, standing, live, submitted = _Reader(io.BytesIO(body), config).load()
    except Exception as error:  # noqa: BLE001 - bytes of another version may fail in any way
        raise Unfit(f"cannot be read: {error}") from None
    if not (isinstance(core, Core) and isinstance(standing, Standing)):
        raise Unfit("holds something else")
    if core.queues is not None:  # they were changed after the time of the configuration
        core.take_on(core.queues)
    return Frozen(core, standing, live, submitted)


class _Writer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, config: CoreConfig) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        parts = {field.name: getattr(config, field.name) for field in fields(config)}
        self._names = {id(part): name for name, part in parts.items() if _is_object(part)}
        self._names[id(config)] = _CONFIG

    def persistent_id(self, one: Any) -> str | None:
        """Name what the configuration has."""
        return self._names.get(id(one))


def _is_object(part: object) -> bool:
    """Whether it can be told from others by its identity."""
    return part is not None and not isinstance(part, int | float | str)


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, config: CoreConfig) -> None:
        super().__init__(stream)
        self._config = config

    def persistent_load(self, name: Any) -> Any:
        """The part of the configuration that is named."""
        return self._config if name == _CONFIG else getattr(self._config, str(name))

    def find_class(self, module: str, name: str) -> Any:
        """Classes of the core and of plain containers, nothing else."""
        ours = any(
            module == f"wattherd.{room}" or module.startswith(f"wattherd.{room}.")
            for room in _ROOMS
        )
        if ours or name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")
