"""What went wrong and was let pass: training goes on when a disk or a service does not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

LOG = logging.getLogger("wattherd_train")


class Trouble:
    """Counts failures of input and output; each kind is logged the first time only."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        """The latest failure in words."""
        self._kinds: set[str] = set()

    @contextlib.contextmanager
    def swallowed(self, what: str, *more: type[Exception]) -> Iterator[None]:
        """Let failures of the system (and of kinds `more`) pass, counted under `what`."""
        kinds: tuple[type[Exception], ...] = (OSError, *more)
        try:
            yield
        except kinds as error:
            self.count += 1
            self.last = f"{what}: {error}"
            if what not in self._kinds:
                self._kinds.add(what)
                LOG.warning("wattherd: %s (training goes on)", self.last)
