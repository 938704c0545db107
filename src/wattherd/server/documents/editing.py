"""Whether a job may be edited as asked: said before anything is written."""

from __future__ import annotations

from wattherd.engine.jobs.edits import amended, amendment
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.model.event import JobEdited
from wattherd.server.documents.documents import SiteView


def check_edit(look: SiteView, event: JobEdited) -> None:
    """See that the edit would be done as it is asked for, as things are now.

    Raises:
        UserError: the job is over, or runs, or could never run like that.
    """
    record = look.core.jobs.get(event.job_id)
    if record is None:
        hint = f"`wattherd show {event.job_id}` says how it ended"
        raise UserError("is over", where=event.job_id, hint=hint)
    if record.active:
        _check_running(record, event)
        return
    refusal = look.core.refusal(amended(record.spec, amendment(record.spec, event, active=False)))
    if refusal is not None:
        hint = "nothing was changed; ask for less, or an operator"
        raise UserError(refusal.text(), where=event.job_id, hint=hint)


def _check_running(record: JobRecord, event: JobEdited) -> None:
    """Of a job that holds devices the time limit may be lowered."""
    asked = (event.priority, event.queue, event.gpus, event.begin_at_s)
    if any(one is not None for one in asked):
        hint = f"`wattherd pause {record.id}`, edit it, `wattherd resume {record.id}`"
        raise UserError("runs: only its time limit can be lowered", where=record.id, hint=hint)
    old_s, new_s = record.spec.time_limit_s, event.time_limit_s
    if old_s is not None and new_s is not None and new_s > old_s:
        hint = f"it is {old_s:g} s, and others may count on that"
        raise UserError("runs: its time limit can be lowered only", where=record.id, hint=hint)


def was_done(look: SiteView, event: JobEdited) -> bool:
    """Whether the job asks now for what the edit wanted: it may have begun meanwhile."""
    past = look.history.get(event.job_id)
    return past is not None and past.spec == amended(
        past.spec, amendment(past.spec, event, active=False)
    )
