"""Names that a new job calls queues and devices by: those that this site lacks are refused.

A job with such a name could only fail or wait for ever; its sender is told at once what there is.
"""

from __future__ import annotations

from wattherd.engine.core.config import CoreConfig
from wattherd.errors import UserError
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
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
            raise UserError(f"queue {name!r} is not there", field="queue", hint=hint)
        return
    if tree.leaf(name) is None:
        known = [one.queue.name for one in tree.leaves]
        parted = name in _names(tree.root)
        problem = "is parted into others and takes no jobs itself" if parted else "is not there"
        raise UserError(f"queue {name!r} {problem}", field="queue", hint=hint_for(name, known))


def _names(queue: CapacityQueue) -> list[str]:
    return [queue.name, *(name for child in queue.children for name in _names(child))]
