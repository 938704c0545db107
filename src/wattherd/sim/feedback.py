"""What users of a crowded cluster feel: how soon a job shows anything, how busy its GPUs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wattherd.engine.core.core import Core
from wattherd.estimate.locality import Device
from wattherd.model.command import Command
from wattherd.model.event import Event, JobExited, JobProgressed, JobStarted, JobStopped

UtilisationOf = Callable[[tuple[str, ...]], float]
"""Mean utilisation (0 to 1) of a GPU by the profiles of the jobs on it."""


class FirstFeedback:
    """When each job had reported a first part of its work; as fine as reports are frequent."""

    def __init__(self, work: Mapping[str, float], part: float) -> None:
        """`work` is what each job has to do, in the unit of its progress."""
        self._wanted = {job_id: part * total for job_id, total in work.items()}
        self.at_s: dict[str, float] = {}

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Note the first report that is far enough; a job that ends has shown all it had."""
        del commands
        match event:
            case JobProgressed() | JobStopped():
                progress = event.progress
            case JobExited():
                progress = self._wanted.get(event.job_id)
            case _:
                return
        wanted = self._wanted.get(event.job_id)
        if wanted is not None and progress is not None and progress >= wanted:
            self.at_s[event.job_id] = event.at_s
            del self._wanted[event.job_id]


class GpuUtilisation:
    """Utilisation of all GPUs, integrated between events up to `until_s`."""

    def __init__(self, core: Core, utilisation_of: UtilisationOf, until_s: float) -> None:
        """Nothing runs yet."""
        self._core, self._of, self._until_s = core, utilisation_of, until_s
        self._now = 0.0
        self._at_s = 0.0
        self._gpu_s = 0.0

    def until(self, now_s: float) -> None:
        """Count what is used up to then."""
        now_s = min(now_s, self._until_s)
        self._gpu_s += self._now * (now_s - self._at_s)
        self._at_s = now_s

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Look again at who is where, if that may have changed."""
        if commands or isinstance(event, JobStarted | JobStopped | JobExited):
            on: dict[Device, list[str]] = {}
            for job in self._core.jobs.values():
                for one in job.allocations:
                    for gpu in one.gpus:
                        on.setdefault((one.node, gpu), []).append(job.spec.profile)
            self._now = sum(self._of(tuple(profiles)) for profiles in on.values())

    @property
    def mean(self) -> float:
        """Mean over all GPUs and the time so far."""
        gpus = sum(node.gpu_count for node in self._core.config.cluster.nodes)
        return self._gpu_s / (gpus * self._at_s) if self._at_s else 0.0
