"""Whether this site can take a new job or an edit of one: said before anything is written.

Names by which a job calls queues and devices must be known here: with others it could only fail or
wait for ever. An edit must be possible as things are now. Senders are told at once what there is.
"""

from __future__ import annotations

from wattherd.engine.core.config import CoreConfig
from wattherd.engine.jobs.edits import amended, amendment
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.model.event import JobEdited
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.server.documents.documents import SiteView
from wattherd.server.problems import Conflict
from wattherd.spelling import hint_for
from wattherd.workload.job_file import JobFile

NO_QUEUE = JobFile.model_fields["queue"].default
"""Of jobs that name none."""


def check_names(config: CoreConfig, job: JobFile) -> None:
    """Whether this site has the queue and one of the GPU models that a job names.

    `config` may be read beside a plan: it is replaced when something changes, never altered.

    Raises:
        UserError: it has not; the hint names those it has.
    """
    check_queue(config, job.queue)
    models = [job.gpu_type] if isinstance(job.gpu_type, str) else job.gpu_type
    known = config.cluster.gpu_models
    if models and known and not set(models) & set(known):
        hint = f"{hint_for(models[0], known)}; `wattherd gpus` lists all devices"
        raise UserError(f"no GPU here is {' or '.join(models)}", field="gpu_type", hint=hint)


def check_queue(config: CoreConfig, name: str) -> None:
    """Whether this site has that queue, and it takes jobs.

    Raises:
        UserError: it has not; the hint names those it has.
    """
    tree = config.quota
    if not isinstance(tree, QueueTree):
        if name != NO_QUEUE:
            hint = "leave it out: this site's policy keeps no queues"
            raise UserError(f"queue {name!r} does not exist", field="queue", hint=hint)
        return
    if tree.leaf(name) is None:
        known = [one.queue.name for one in tree.leaves]
        parted = name in _names(tree.root)
        problem = (
            "is divided into other queues: submit to one of those" if parted else "does not exist"
        )
        raise UserError(f"queue {name!r} {problem}", field="queue", hint=hint_for(name, known))


def _names(queue: CapacityQueue) -> list[str]:
    return [queue.name, *(name for child in queue.children for name in _names(child))]


def check_edit(look: SiteView, event: JobEdited) -> None:
    """See that the edit would be done as it is asked for, as things are now.

    Raises:
        Conflict: the job is over, or runs.
        UserError: it could never run like that.
    """
    record = look.core.jobs.get(event.job_id)
    if record is None:
        hint = f"`wattherd show {event.job_id}` says how it ended"
        raise Conflict("is over", where=event.job_id, hint=hint)
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
        raise Conflict("runs: only its time limit can be lowered", where=record.id, hint=hint)
    old_s, new_s = record.spec.time_limit_s, event.time_limit_s
    if old_s is not None and new_s is not None and new_s > old_s:
        hint = f"it is {old_s:g} s, and others may count on that"
        raise Conflict("runs: its time limit can be lowered only", where=record.id, hint=hint)


def was_done(look: SiteView, event: JobEdited) -> bool:
    """Whether the job asks now for what the edit wanted: it may have begun meanwhile."""
    past = look.history.get(event.job_id)
    return past is not None and past.spec == amended(
        past.spec, amendment(past.spec, event, active=False)
    )
