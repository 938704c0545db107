"""How long it took to go on after somebody or something was lost; shown by `pytest -s`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import safe_copies
from control_plane import ControlPlane
from test_outage import bound_at


@contextmanager
def told(what: str) -> Iterator[None]:
    """How long the block took."""
    began_s = time.monotonic()
    yield
    print(f"\n{what}: first binding {time.monotonic() - began_s:.1f} s after")


class Succession:
    """From the loss of the first leader, which is now, to the first binding of a later one."""

    def __init__(self, plane: ControlPlane, namespace: str, what: str) -> None:
        self._plane, self._namespace, self._what = plane, namespace, what
        self._lost = datetime.now(UTC)

    def tell(self) -> None:
        """Once all that fit are bound, and while one of the first leader's is there."""
        when = bound_at(self._plane, self._namespace)
        terms = safe_copies.written(self._plane.api, self._namespace, "epoch")
        first = min(terms.values(), key=int)
        later = [when[pod][0] for pod, term in terms.items() if term != first]
        if not later:
            print(f"\n{self._what}: the first had bound all that fit")
            return
        took = min(later) - self._lost
        print(f"\n{self._what}: first binding {took.total_seconds():.1f} s after")
