"""What would happen to a job if it were handed in now: tried out on a copy of the core."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve
from wattherd.model.command import RejectJob, WakeAt
from wattherd.model.event import JobSubmitted, Woke
from wattherd.model.job import JobSpec
from wattherd.model.reason import ReasonCode
from wattherd.server.documents.documents import SiteView

DRY_RUN = "wattherd.dry-run/1"
MOST_JOBS = 5_000
"""Live jobs up to which a copy of the core is made; beyond, that would hold up everything else."""
CAPS = 4
"""Caps that are shown beside the chosen one."""
_TRIAL = "dry-run"
_NEVER = (ReasonCode.NEVER_FITS, ReasonCode.UNKNOWN_QUEUE, ReasonCode.INVALID_SPEC)
"""Reasons of a job that no wait would start."""


def dry_run(look: SiteView, spec: JobSpec, now_s: float) -> dict[str, Any]:
    """Where, at which cap and when the job would start; nothing is changed.

    Time, slowdown and energy are known only for jobs that say how long they take (`time.expected`);
    they follow from the power curve that the core reckons with.

    Raises:
        UserError: there are too many jobs to try it out.
    """
    if len(look.core.jobs) > MOST_JOBS:
        raise UserError(f"more than {MOST_JOBS:,} jobs are live", hint="submit it and `explain`")
    core = copy.deepcopy(look.core)
    refusal = _try(core, replace(spec, id=_TRIAL, submit_s=now_s), now_s)
    record = core.jobs.get(_TRIAL)
    candidates = [] if record is None else list(_candidates(core, record))
    never = record is not None and record.reason is not None and record.reason.code in _NEVER
    fits = not refusal and not never
    why = refusal or _why(record)
    return {"schema": DRY_RUN, "candidates": candidates, "fits": fits, "why": why}


def _try(core: Core, spec: JobSpec, now_s: float) -> str:
    """Hand it in and let the plans be made that follow at once; why it was rejected, if it was."""
    now_s = max(now_s, core.now_s)
    waiting = core.handle(JobSubmitted(at_s=now_s, job=spec))
    while waiting:
        command = waiting.pop(0)
        if isinstance(command, RejectJob):
            return command.detail
        if isinstance(command, WakeAt) and command.at_s <= now_s:
            waiting.extend(core.handle(Woke(at_s=now_s, key=command.key)))
    return ""


def _why(record: JobRecord | None) -> str:
    if record is None:
        return "it would be over at once"
    if record.active:
        return "it would start now"
    if record.wanted:
        return "it would start as soon as what it was given is free"
    return "it would wait" if record.reason is None else f"it would wait: {record.reason.text()}"


def _candidates(core: Core, record: JobRecord) -> Iterator[dict[str, Any]]:
    """The chosen cap among others, at the place it would get."""
    nodes = core.config.cluster.nodes
    places = [f"{nodes[one.node].name}[{','.join(map(str, one.gpus))}]" for one in record.wanted]
    placement = " ".join(places) or "-"
    start = "now" if record.active else "later"
    curve = core.watts.curve(record.spec, record.wanted)
    if curve is None:
        yield _candidate(record, placement, start, curve, None, chosen=True)
        return
    chosen = record.wanted_cap_w
    for cap_w in sorted({*_caps(curve), *([] if chosen is None else [chosen])}, reverse=True):
        is_it = cap_w == (curve.max_w if chosen is None else chosen)
        yield _candidate(record, placement, start, curve, cap_w, chosen=is_it)


def _caps(curve: PowerCurve) -> list[float]:
    span = curve.max_w - curve.floor_w
    return [curve.floor_w + span * step / (CAPS - 1) for step in range(CAPS)]


def _candidate(
    record: JobRecord,
    placement: str,
    start: str,
    curve: PowerCurve | None,
    cap_w: float | None,
    *,
    chosen: bool,
) -> dict[str, Any]:
    spec = record.spec
    devices = sum(len(one.gpus) for one in record.wanted) or spec.gpus
    slowdown = 1.0
    if curve is not None and cap_w is not None:
        slowdown = curve.rates[-1] / curve.rate(cap_w)
    time_s = None if spec.duration_s is None else spec.duration_s * slowdown
    energy_j = None if time_s is None or cap_w is None else time_s * cap_w * devices
    return {
        "placement": placement,
        "cap_w": cap_w,
        "time_s": time_s,
        "slowdown": slowdown,
        "energy_j": energy_j,
        "start": start,
        "chosen": chosen,
    }
