"""What was learned of jobs, from core to core, and from one process to the next.

What single jobs showed goes from one core to the next of a process; what kinds of jobs and
namespaces taught goes to the next process, too.
"""

from __future__ import annotations

from wattherd.engine.core.core import Core
from wattherd.estimate.learned_memory import LearnedMemory


class LearnedSpeeds:
    """Of the core that plans now, if there is any."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._core: Core | None = None
        self._recalled: LearnedMemory | None = None
        """For the first core."""

    def go_on_in(self, core: Core) -> None:
        """Another core plans from now on: what jobs have shown is so on any set of nodes."""
        if self._core is not None:
            core.speeds = self._core.speeds.of_jobs(core.jobs)
        elif self._recalled is not None:
            core.speeds.recall(self._recalled)
        self._core, self._recalled = core, None

    def remembered(self) -> LearnedMemory:
        """What the next process is to know."""
        if self._core is None:
            return self._recalled or LearnedMemory()
        return self._core.speeds.remembered()

    def recall(self, memory: LearnedMemory) -> None:
        """This is what kinds and namespaces taught up to now, whatever was known here."""
        if self._core is None:
            self._recalled = memory
        else:
            self._core.speeds.recall(memory)
