"""Why a job waits and what its user could do about it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import ClusterError
from wattherd.model.reason import ReasonCode
from wattherd.policy.schedule.ordered import Discipline, Ordered
from wattherd.policy.schedule.priorities import Priority
from wattherd.server.documents.documents import SiteView, job_document
from wattherd.server.documents.job_speed import speed_words
from wattherd.server.documents.sentences import story_of
from wattherd.server.documents.task_logs import TaskLog
from wattherd.server.journal.timeline import SiteTimeline

EXPLANATION = "wattherd.explanation/1"
LAST = 5
"""Decisions that are told again."""
LOG_LINES, LOG_BYTES = 10, 4096
"""Of the log of a job that failed."""
OTHERS = "others"
"""Stands for jobs that are none of the caller's business."""


def explanation(
    look: SiteView, job_id: str, chronicle: SiteTimeline, seen: Container[str]
) -> dict[str, Any]:
    """State, position, the binding constraint with numbers, what would help, the last decisions."""
    job = job_document(look, job_id)
    story = job["story"] or list(_remembered(look, job_id, chronicle))
    record = look.core.jobs.get(job_id)
    waits = record is not None and not record.active
    return {
        "schema": EXPLANATION,
        "id": job_id,
        "state": job["state"],
        "position": _position(look, job_id),
        "reason": job["reason"],
        "holders": holders(look, seen) if waits else [],
        "log": [],
        "would_help": list(_would_help(look, record)) if record and waits else [],
        "speed": speed_words(look.core, look.history[job_id].spec),
        "story": story[-LAST:],
    }


def holders(look: SiteView, seen: Container[str]) -> list[dict[str, Any]]:
    """Who holds devices, how many, at how many watts, and until when; the first to end first.

    Jobs whose ids are not in `seen` stay without a name.
    """
    samples = look.book.samples
    draw_w = samples[-1].by_job if samples else {}
    found = []
    for record in look.core.jobs.values():
        if record.active and record.gpus:
            end_s, basis = _end(look, record)
            row = {
                "id": record.id if record.id in seen else OTHERS,
                "gpus": record.gpus,
                "watts": draw_w.get(record.id),
                "until": look.time(end_s),
                "basis": basis,
            }
            found.append((end_s is None, end_s or 0.0, record.number, row))
    return [row for *_, row in sorted(found, key=lambda one: one[:3])]


def _end(look: SiteView, record: JobRecord) -> tuple[float | None, str]:
    """When a running job will be over, by what it reports, else by what its user said."""
    began_s, spec = record.held_since_s, record.spec
    past = look.history[record.id]
    if record.rate_per_s and past.total is not None:
        left_s = max(past.total - past.progress, 0.0) / record.rate_per_s
        return look.core.now_s + left_s, "progress"
    known: list[tuple[float, str]] = []
    if spec.duration_s is not None:
        known.append((began_s + spec.duration_s - record.attained_s, "expected"))
    if spec.time_limit_s is not None:
        known.append((began_s + spec.time_limit_s, "time limit"))
    return min(known) if known else (None, "")


def last_words(log: TaskLog) -> list[str]:
    """The last lines of a task that failed; nothing where they cannot be read.

    A job may print what is no text, and control characters, which would write on the screen.
    """
    try:
        text = log.end(LOG_LINES, LOG_BYTES).decode(errors="replace")
    except ClusterError:
        return []
    lines = text.splitlines()[-LOG_LINES:]
    return ["".join(c if c.isprintable() or c == "\t" else "?" for c in one) for one in lines]


def _remembered(look: SiteView, job_id: str, chronicle: SiteTimeline) -> Iterator[dict[str, Any]]:
    """What was decided about a job that is over, as far as the last decisions go back."""
    names = [node.name for node in look.core.config.cluster.nodes]
    for one in chronicle.decisions:
        for what, cause in story_of(one, names, job_id):
            yield {"at": look.time(one.at_s), "what": what, "cause": cause}


def _position(look: SiteView, job_id: str) -> int | None:
    """Its place among those that wait, in order of submission; None if it does not."""
    waiting = (record.id for record in look.core.jobs.values() if not record.active)
    return next((place for place, one in enumerate(waiting, start=1) if one == job_id), None)


def _would_help(look: SiteView, record: JobRecord) -> Iterator[str]:
    """What would let it start, by what is free now."""
    code = record.reason.code if record.reason else None
    free = sum(int(count) for count in look.core.planned.whole)
    asked = record.spec.least_gpus
    if code in (ReasonCode.WAITING_FOR_GPUS, ReasonCode.FRAGMENTED) and 0 < free < asked:
        yield f"would fit now with `gpus: {free}`"
    gap_s = _gap_s(look, record, free) if asked <= free else None
    if gap_s is not None:
        yield (
            f"would fit now if it took {int(gap_s)} s at most: others that come first begin then"
            f" (`time: {{expected: {int(gap_s)}s}}` in its file says so)"
        )
    if code is ReasonCode.WAITING_FOR_POWER and record.reason is not None:
        missing = (record.reason.asked or 0.0) - (record.reason.available or 0.0)
        yield f"would fit with {missing:,.1f} W more (`wattherd power set`), or when a job ends"
    if record.spec.gpu_models and code is ReasonCode.WAITING_FOR_GPUS:
        yield "any model of GPU would do? leave `gpu_type` out"


def _gap_s(look: SiteView, record: JobRecord, free: int) -> float | None:
    """For how long the free devices are nobody's, if that is too short for the job as it is.

    Under a policy with backfill the first job that does not fit gets a reservation for when those
    that run are expected to end, and others may pass if they are over by then.
    """
    planner = look.core.config.planner
    if not isinstance(planner, Ordered) or planner.discipline is not Discipline.BACKFILL:
        return None
    by_priority = isinstance(planner.rules.order, Priority)

    def turn(job: JobRecord) -> tuple[int, int]:
        return (-job.spec.priority if by_priority else 0, job.number)

    waiting = (job for job in look.core.jobs.values() if not job.active and job.aside is None)
    ahead = [job for job in waiting if job.spec.least_gpus > free and turn(job) < turn(record)]
    if not ahead:
        return None
    needs, now_s = min(ahead, key=turn).spec.least_gpus - free, look.core.now_s
    running = [job for job in look.core.jobs.values() if job.active and job.gpus]
    ends = []
    for job in running:
        work_s = planner.rules.work(job.spec)
        if work_s is not None:  # nobody waits for one that never says when it ends
            ends.append((job.held_since_s + work_s - job.attained_s, job.gpus))
    for end_s, gpus in sorted(ends):
        needs -= gpus
        if needs <= 0:
            known_s = planner.rules.work(record.spec)
            gap_s = end_s - now_s
            return gap_s if gap_s >= 1.0 and (known_s is None or known_s > gap_s) else None
    return None
