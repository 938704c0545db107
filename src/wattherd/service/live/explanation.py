"""Why a job waits and what its user could do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wattherd.engine.ledger import JobRecord
from wattherd.model.reason import ReasonCode
from wattherd.service.live.chronicle import SYSTEM, Chronicle
from wattherd.service.live.documents import Look, job_document

EXPLANATION = "wattherd.explanation/1"
LAST = 5
"""Decisions that are told again."""


def explanation(look: Look, job_id: str, chronicle: Chronicle) -> dict[str, Any]:
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
        "would_help": list(_would_help(look, record)) if record and waits else [],
        "story": story[-LAST:],
    }


def _remembered(look: Look, job_id: str, chronicle: Chronicle) -> Iterator[dict[str, Any]]:
    """What was decided about a job that is over, as far as the last decisions go back."""
    for one in chronicle.decisions:
        orders = [line for line, of in zip(one.orders, one.detail[1:], strict=True)
                  if of.get("job_id") == job_id]  # fmt: skip
        cause = one.event if one.by in ("", SYSTEM) else f"{one.event} by {one.by}"
        for order in orders:
            yield {"at": look.time(one.at_s), "what": order, "cause": cause}
        if not orders and one.about == job_id:
            yield {"at": look.time(one.at_s), "what": cause, "cause": ""}


def _position(look: Look, job_id: str) -> int | None:
    """Its place among those that wait, in order of submission; None if it does not."""
    waiting = (record.id for record in look.core.jobs.values() if not record.active)
    return next((place for place, one in enumerate(waiting, start=1) if one == job_id), None)


def _would_help(look: Look, record: JobRecord) -> Iterator[str]:
    """What would let it start, by what is free now."""
    code = record.reason.code if record.reason else None
    free = sum(int(count) for count in look.core.planned.whole)
    asked = record.spec.least_gpus
    if code in (ReasonCode.WAITING_FOR_GPUS, ReasonCode.FRAGMENTED) and 0 < free < asked:
        yield f"would fit now with `gpus: {free}`"
    if code is ReasonCode.WAITING_FOR_POWER and record.reason is not None:
        missing = (record.reason.asked or 0.0) - (record.reason.available or 0.0)
        yield f"would fit with {missing:,.1f} W more (`wattherd power set`), or when a job ends"
    if record.spec.gpu_models and code is ReasonCode.WAITING_FOR_GPUS:
        yield "any model of GPU would do? leave `gpu_type` out"
