"""From a job to shares: the first role by the placement rule, further ones around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wattherd.model.job import TaskRole
from wattherd.policy.contract import Draft, JobView, Share
from wattherd.policy.eligibility import NodeMask, inside
from wattherd.policy.schedule.node_choice import Place, consolidated

Ints = NDArray[np.int64]


def whole_tasks(role: TaskRole, gpus: Ints, room: Ints) -> Ints:
    """Tasks of `role` that each node takes when empty, by its GPUs alone."""
    if role.gpu_count == 1:
        return gpus
    return gpus // role.gpu_count if role.gpu_count else room


def shares_of(
    job: JobView,
    draft: Draft,
    place: Place,
    gpus: Ints,
    within: Ints | None = None,
    mask: NodeMask | None = None,
) -> list[Share] | None:
    """Shares for a job at its full width where it fits now, or None; `gpus` of each usable node.

    Its first role stays `within` so many GPUs of each node, if given, and on the nodes of `mask`
    (N,): what it takes when empty counts on these alone.
    """
    spec = job.spec
    room = draft.room(job)
    if within is not None and spec.roles[0].gpu_count:
        room = np.minimum(room, within // spec.roles[0].gpu_count)
    whole = inside(whole_tasks(spec.roles[0], gpus, room), mask)
    shares = place(room, whole, spec.roles[0].count)
    if shares is None or len(spec.roles) == 1:
        return shares
    free = [draft.free_gpus(), draft.free_cpu_milli(), draft.free_memory_mib()]
    taken = list(shares)
    for number, role in enumerate(spec.roles[1:], start=1):
        _subtract(free, spec.roles[taken[-1].role], [s for s in taken if s.role == number - 1])
        limits = [have // need for have, need in zip(free, _needs(role), strict=True) if need]
        room = np.minimum.reduce(limits) if limits else np.full_like(gpus, role.count)
        room = np.minimum(room, draft.room(job, number))
        others = consolidated(room, room, role.count)
        if others is None:
            return None
        taken.extend(Share(share.node, share.tasks, number) for share in others)
    return taken


def _needs(role: TaskRole) -> tuple[int, int, int]:
    return role.gpu_count, role.cpu_milli, role.memory_mib


def _subtract(free: list[Ints], role: TaskRole, shares: list[Share]) -> None:
    for have, need in zip(free, _needs(role), strict=True):
        for share in shares:
            have[share.node] -= need * share.tasks
