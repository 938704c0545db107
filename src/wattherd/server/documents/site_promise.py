"""What a running service can promise of a reduction: its jobs as loads that can be lowered.

A job is lowered to the least at which the power policy lets it run, or stopped after its grace;
both are what the core does of its own accord when a budget falls, so that what is promised is what
follows. Draw is that of the last sample, and as sure as that: `stated` says measured or model.
"""

from __future__ import annotations

import math
from typing import Any

from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import ClusterError
from wattherd.estimate.reduction_promise import LowerableLoad, promise
from wattherd.experiments.grid.promise import promise_document
from wattherd.server.documents.documents import SiteView, time_of

STOP_S = 5.0
"""Beside its grace: until a job's processes are gone and its devices rest."""


def lowerable(look: SiteView, now_s: float) -> tuple[list[LowerableLoad], float]:
    """The jobs that run, as loads, and what is drawn beside them (W), by the last sample.

    Jobs whose draw is not known yet count among the latter: they are promised nothing of.

    Raises:
        ClusterError: nothing was measured yet.
    """
    if not look.book.samples:
        raise ClusterError("what is drawn is not known yet: ask again in some seconds")
    sample = look.book.samples[-1]
    loads = [
        _load(look, job, sample.by_job[job.id], now_s)
        for job in look.core.jobs.values()
        if job.active and job.id in sample.by_job
    ]
    return loads, max(sample.draw_w - math.fsum(one.draw_w for one in loads), 0.0)


def _load(look: SiteView, job: JobRecord, draw_w: float, now_s: float) -> LowerableLoad:
    watts, devices = look.core.watts, sum(len(one.gpus) for one in job.allocations)
    curve = watts.curve(job.spec, job.allocations)
    # Whoever draws less than the lowest cap is not lowered by it.
    floor_w = draw_w if curve is None else min(draw_w, watts.least_w(curve) * devices)
    return LowerableLoad(
        name=job.id,
        draw_w=draw_w,
        floor_w=floor_w,
        idle_w=min(draw_w, watts.idle_w(job) * devices),
        preemptible=devices > 0,
        stop_s=job.spec.grace_s + STOP_S,
        hold_s=_slack_s(job, now_s),
    )


# The time that a job needs in all and not what is left of it: how far it has come is its own word,
# and lowered it needs longer for the rest.
def _slack_s(job: JobRecord, now_s: float) -> float:
    """How long a job can stay lowered: for ever without a deadline, else what it need not work."""
    spec = job.spec
    if spec.deadline_s is None:
        return math.inf
    needs_s = spec.duration_s if spec.duration_s is not None else spec.time_limit_s
    return 0.0 if needs_s is None else max(spec.deadline_s - now_s - needs_s, 0.0)


def site_promise(
    look: SiteView, now_s: float, *, reduce_w: float | None, limit_w: float | None, lead_s: float,
    for_s: float, sure: float,
) -> dict[str, Any]:  # fmt: skip
    """`wattherd.promise/1` for `reduce_w` less than now, or for `limit_w` at most.

    Raises:
        ClusterError: nothing was measured yet.
        UserError: a probability or a time that makes no sense.
    """
    loads, other_w = lowerable(look, now_s)
    draw_w = other_w + math.fsum(one.draw_w for one in loads)
    asked_w = max(draw_w - (limit_w or 0.0), 0.0) if reduce_w is None else reduce_w
    found = promise(loads, asked_w=asked_w, lead_s=lead_s, for_s=for_s, sure=sure, other_w=other_w)
    at = time_of(look.epoch, look.book.samples[-1].at_s)
    return {**promise_document(found), "at": at, "stated": look.stated}
