"""Who held which GPUs from when to when: the stretches of a Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.engine.core.core import Core
from wattherd.model.allocation import Allocation
from wattherd.model.command import Command
from wattherd.model.event import Event, JobExited, NodeLost

COLUMNS = ("job", "start_s", "stop_s", "gpus", "nodes")
"""`nodes` as NAME:GPUS, separated by spaces; what still runs stops at the end."""

Held = tuple[Allocation, ...]


@dataclass(slots=True)
class Stretches:
    """Watches a core; a stretch ends when a job's allocation changes."""

    core: Core
    _open: dict[str, tuple[float, Held]] = field(default_factory=dict)
    _closed: list[tuple[str, float, float, Held]] = field(default_factory=list)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Look at the jobs that the event and the orders are about."""
        about = {command.job_id: None for command in commands if hasattr(command, "job_id")}
        about[getattr(event, "job_id", "")] = None
        if type(event) is NodeLost:  # it names no job
            about.update(dict.fromkeys(self._open))
        ended_s = event.at_s if isinstance(event, JobExited) else self.core.now_s
        for job_id in about:
            self._note(job_id, ended_s)

    def _note(self, job_id: str, now_s: float) -> None:
        job, before = self.core.jobs.get(job_id), self._open.get(job_id)
        held = job.allocations if job is not None else ()
        if before is not None and before[1] == held:
            return
        if before is not None:
            self._closed.append((job_id, before[0], now_s, before[1]))
            del self._open[job_id]
        if held:
            self._open[job_id] = self.core.now_s, held

    def rows(self) -> list[tuple[object, ...]]:
        """By `COLUMNS`, in order of start, then of job."""
        now_s = self.core.now_s
        still = [(job_id, start_s, now_s, held) for job_id, (start_s, held) in self._open.items()]
        ordered = sorted([*self._closed, *still], key=lambda one: (one[1], one[0]))
        return [self._row(*one) for one in ordered]

    def _row(self, job_id: str, start_s: float, stop_s: float, held: Held) -> tuple[object, ...]:
        nodes = self.core.config.cluster.nodes
        gpus: dict[int, int] = {}
        for one in held:
            gpus[one.node] = gpus.get(one.node, 0) + len(one.gpus)
        where = " ".join(f"{nodes[node].name}:{gpus[node]}" for node in sorted(gpus))
        return job_id, start_s, stop_s, sum(gpus.values()), where
