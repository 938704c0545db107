"""Ends apps that nobody has used for as long as their job says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as StillWaiting

from wattherd.engine.core.core import Core
from wattherd.engine.core.executor import RunOrder
from wattherd.errors import ClusterError
from wattherd.model.event import JobCancelled
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.periodic import PeriodicThread
from wattherd.units import show_seconds

PERIOD_S = 1.0
PATIENCE_S = 5.0
BY = "idle watch"


class IdleWatch(PeriodicThread):
    """Hears of every use, and looks between turns who has been idle for too long.

    Times are of the monotonic clock of this process: after a restart everybody counts as just used.
    """

    def __init__(self, keeper: CoreLoop) -> None:
        """Nothing is ended before `begin`."""
        super().__init__("idle-watch", PERIOD_S)
        self._keeper = keeper
        self._used_s: dict[str, float] = {}

    def used(self, job_id: str) -> None:
        """Somebody has just asked the app of that job, or it has said something."""
        self._used_s[job_id] = time.monotonic()

    def look(self) -> None:
        """End what has been idle for too long."""
        try:
            apps = self._keeper.ask(self._apps).result(PATIENCE_S)
        except (StillWaiting, ClusterError):
            return
        for event in self.due(apps, time.monotonic()):
            self._keeper.post(event, by=BY)

    def _apps(self, core: Core) -> dict[str, float]:
        """Idle times of the apps that run."""
        runs = self._keeper.orders.runs
        return {
            job_id: idle_s
            for job_id, run in runs.items()
            if (idle_s := _idle_s(run)) is not None and core.jobs[job_id].active and not run.stop
        }

    def due(self, apps: Mapping[str, float], now_s: float) -> list[JobCancelled]:
        """What ends those that have been idle; the others are remembered."""
        self._used_s = {job_id: self._used_s.get(job_id, now_s) for job_id in apps}
        return [
            JobCancelled(at_s=0.0, job_id=job_id, cause=f"idle for {show_seconds(idle_s)}")
            for job_id, idle_s in sorted(apps.items())
            if now_s - self._used_s[job_id] >= idle_s
        ]


def _idle_s(run: RunOrder) -> float | None:
    found = (run.paper.get("app") or {}).get("idle_s")
    return None if found is None else float(found)
