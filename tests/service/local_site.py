"""One server's life with real processes: a core, its keeper, and the executor of this machine."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.power_curve import prior_curve
from wattherd.local.devices import Machine, slots
from wattherd.local.executor import LocalExecutor
from wattherd.local.orphans import end_stray
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import JobHeld, JobReleased
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.schedule.drf import Drf
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.testing.live import MemoryJournal, SetClock

MOST_S = 30.0


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + MOST_S
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


class Site:
    """One server's life on a folder that may have seen others."""

    def __init__(self, root: Path, journal: MemoryJournal) -> None:
        self.root, self.journal = root, journal
        self.machine = slots("here", 2)
        core = Core(_config(self.machine))
        self.keeper = CoreLoop(core, journal, _Since())
        self.executor = LocalExecutor(root, self.machine, self.keeper.tell)
        self.keeper.recover(self.executor)
        self.keeper.begin()

    def submit(
        self, run: str | list[str], *, slots: int = 1, paper: Any = None, **more: Any
    ) -> str:
        role = TaskRole(
            count=more.pop("tasks", 1),
            command=_command(run),
            memory_mib=more.pop("memory_mib", 0),
            cpu_milli=more.pop("cpu_milli", 0),
        )
        spec = JobSpec(id="new", submit_s=0.0, roles=(role,), **more)
        return self.keeper.submit(spec, paper or {}, by="ann").result(MOST_S)

    def state(self, job_id: str) -> str:
        def look(core: Core) -> str:
            job = core.jobs.get(job_id)
            return str(job.state if job else core.finished[job_id])

        return self.keeper.ask(look).result(MOST_S)

    def wait(self, job_id: str, state: str) -> None:
        until(lambda: self.state(job_id) == state)

    def log(self, job_id: str, attempt: int = 1, rank: int = 0) -> str:
        path = self.root / job_id / f"run-{attempt}" / "logs" / f"{rank}.log"
        return path.read_text() if path.exists() else ""

    def hold(self, job_id: str) -> None:
        """Pause a job, and wait until it is."""
        self.keeper.post(JobHeld(at_s=0.0, job_id=job_id), by="ann").result(MOST_S)
        self.wait(job_id, "Held")

    def release(self, job_id: str) -> None:
        self.keeper.post(JobReleased(at_s=0.0, job_id=job_id), by="ann").result(MOST_S)

    def die(self) -> None:
        """As by kill -9: nobody is told anything."""
        self.keeper._over.set()
        self.executor._over.set()
        self.keeper._inbox.put(None)
        self.keeper._thread.join()


@contextlib.contextmanager
def passable_site() -> Iterator[Site]:
    """Below /tmp itself: folders of tests are closed to other users."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o711)
    site = Site(above / "jobs", MemoryJournal())
    try:
        yield site
    finally:
        site.keeper.end()
        for folder in site.root.glob("*/run-*"):
            end_stray(folder)
        shutil.rmtree(above)


class _Since(SetClock):
    def now_s(self) -> float:
        return time.monotonic()


def _command(run: str | list[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", run) if isinstance(run, str) else tuple(run)


def _config(machine: Machine) -> CoreConfig:
    return CoreConfig(
        cluster=ClusterSpec((machine.node,)),
        planner=Drf(),
        round_s=0.0,
        gpus={machine.gpu.name: machine.gpu},
        curve_of=lambda spec, model: prior_curve(machine.gpu),
    )
