"""Requests interned as small integers, so that score tables can be arrays.

Requests that differ only in memory or in the spelling of their model list share a shape: no score
looks at memory, and membership does not depend on spelling.
"""

from __future__ import annotations

import numpy as np

from wattherd.model.request import Request
from wattherd.policy.place.contract import RequestShapes

_FIRST_CAPACITY = 64


class ShapeBook:
    """Shapes in order of first sight; `columns` has room for `capacity` of them."""

    def __init__(self, models: tuple[str, ...]) -> None:
        """`models` are the cluster's GPU models, in the order of the node columns' indices."""
        self.models = models
        self.columns = _columns(_FIRST_CAPACITY, len(models))
        self._index: dict[tuple[int, int, int, frozenset[str]], int] = {}
        self._seen: dict[Request, int] = {}

    def __len__(self) -> int:
        """How many shapes are known."""
        return len(self._index)

    @property
    def spellings(self) -> int:
        """How many requests were seen, those that share a shape counted apart."""
        return len(self._seen)

    @property
    def capacity(self) -> int:
        """How many shapes fit the present arrays."""
        return len(self.columns.cpu_milli)

    def intern(self, request: Request) -> int:
        """The number of the request's shape, new or known."""
        known = self._seen.get(request)
        if known is not None:
            return known
        key = (
            request.cpu_milli,
            request.gpu_milli,
            request.gpu_count,
            frozenset(request.models if request.gpu_count else ()),
        )
        if key not in self._index:
            self._index[key] = self._append(request)
        self._seen[request] = self._index[key]
        return self._index[key]

    def _append(self, request: Request) -> int:
        shape = len(self._index)
        if shape == self.capacity:
            self._grow()
        self.columns.cpu_milli[shape] = request.cpu_milli
        self.columns.gpu_milli[shape] = request.gpu_milli
        self.columns.gpu_count[shape] = request.gpu_count
        self.columns.sharing[shape] = request.is_sharing
        self.columns.allowed[shape, :-1] = [request.allows(model) for model in self.models]
        return shape

    def _grow(self) -> None:
        larger = _columns(2 * self.capacity, len(self.models))
        for old, new in zip(self.columns, larger, strict=True):
            new[: len(old)] = old
        self.columns = larger


def _columns(capacity: int, models: int) -> RequestShapes:
    return RequestShapes(
        cpu_milli=np.zeros(capacity, dtype=np.int64),
        gpu_milli=np.zeros(capacity, dtype=np.int64),
        gpu_count=np.zeros(capacity, dtype=np.int64),
        sharing=np.zeros(capacity, dtype=np.bool_),
        allowed=np.zeros((capacity, models + 1), dtype=np.bool_),
    )
