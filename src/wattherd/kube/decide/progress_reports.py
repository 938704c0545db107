"""What pods report of their progress, on its way to the core.

The core hears of a job at most every `JOB_S`, and of all jobs together every `ALL_S`: who writes
his pod anew a hundred times a second has the latest heard, and costs no plan more. Reports are
learned from by the clock at which they are told, so what is new is not kept for longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.lifecycle import State
from wattherd.kube.account.workload_index import WorkloadIndex
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.progress import PodProgress, progress_text, read_progress
from wattherd.model.event import Event, JobProgressed

JOB_S, ALL_S = 5.0, 1.0


@dataclass(slots=True)
class ProgressReports:
    """By pod, the latest that was not told yet."""

    _texts: dict[str, str] = field(default_factory=dict)
    _new: dict[str, PodProgress] = field(default_factory=dict)
    _told_s: dict[str, float] = field(default_factory=dict)
    """When a report of a pod was told last."""
    _all_s: float = float("-inf")

    def saw(self, pod: Pod) -> None:
        """A pod is there, and says so."""
        uid, text = pod.metadata.uid, progress_text(pod.metadata)
        if not text or text == self._texts.get(uid):
            return
        self._texts[uid] = text
        report = read_progress(text)
        if report is not None:
            self._new[uid] = report

    def gone(self, uid: str) -> None:
        """It says nothing more."""
        for known in (self._texts, self._new, self._told_s):
            known.pop(uid, None)

    def are_due(self, at_s: float) -> bool:
        """Whether the core is to hear one now."""
        return at_s >= self._all_s + ALL_S and any(self._is_due(uid, at_s) for uid in self._new)

    def _is_due(self, uid: str, at_s: float) -> bool:
        return at_s >= self._told_s.get(uid, float("-inf")) + JOB_S

    def events(self, core: Core, book: WorkloadIndex, at_s: float) -> list[Event]:
        """Of jobs that run: of several pods of one the furthest counts."""
        if not self._new or not self.are_due(at_s):
            return []
        self._all_s = at_s
        found: dict[str, JobProgressed] = {}
        for uid in [one for one in self._new if self._is_due(one, at_s)]:
            self._told_s[uid] = at_s  # who does not run yet is looked at again as late as others
            job = core.jobs.get(book.id_of(uid))
            if job is None or job.state is not State.RUNNING:
                continue
            report = self._new.pop(uid)
            known = found.get(job.id)
            if known is None or known.progress < report.step:
                found[job.id] = JobProgressed(
                    at_s=at_s,
                    job_id=job.id,
                    attempt=job.attempt,
                    progress=report.step,
                    total=report.total,
                    loss=report.loss,
                    noise_scale=report.noise_scale,
                    batch=report.batch,
                )
        return list(found.values())
