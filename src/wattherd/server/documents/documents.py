"""What the service tells of jobs, nodes and watts, as JSON; schemas by name and version.

Times are ISO 8601 with zone for people and other programs, durations in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.engine.core.job_table import NEVER
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.rates import Bill
from wattherd.experiments.schedule.explain import HAND_OVER, NEXT_PLAN
from wattherd.local.apps import base_of
from wattherd.local.cgroups import Support
from wattherd.local.devices import Machine
from wattherd.local.enforcement import asked, unenforced
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason
from wattherd.server.documents.job_speed import speed_document
from wattherd.server.documents.sentences import SUBMITTED, chapter_of
from wattherd.server.hardware.draw import DrawBook, DrawSample
from wattherd.server.journal.job_history import PastJob
from wattherd.server.settings.energy_rates import RatesWatch, bill_of, bill_row, why_deferred
from wattherd.units import show_ahead

JOB, JOBS, NODES, POWER = (
    "wattherd.job/1",
    "wattherd.jobs/1",
    "wattherd.nodes/1",
    "wattherd.power/1",
)
OPERATORS = "operators"
"""Whose budget it is that no other source has stated."""
TROUBLED = "RunInTrouble"
"""Reason of a job that runs, or should: its run cannot be read, begun or told something now."""
SHOWN_STATES = {State.BLOCKED: "Queued", State.BACKING_OFF: "Queued", State.HELD: "Paused"}
"""Users see fewer states than the core has; the reason tells the rest."""


@dataclass(frozen=True, slots=True)
class SiteView:
    """All that documents are made of, between two turns."""

    core: Core
    history: Mapping[str, PastJob]
    book: DrawBook
    machine: Machine
    epoch: float
    troubles: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """By job and attempt: what cannot be read of a run, or done for it, at the moment."""
    support: Support | None = None
    """By which control groups limits are kept; None where jobs do not run on this machine."""
    undelivered: Mapping[str, str] = field(default_factory=dict)
    """By job: the last notification that could not be sent."""
    unkept: Mapping[tuple[str, int], list[str]] = field(default_factory=dict)
    """By job and attempt: limits that the kernel does not keep although it was asked to."""
    rates: RatesWatch | None = None
    """What energy costs and emits, where the service is told."""

    @property
    def stated(self) -> str:
        """Where the latest watts are from: `model` or `measured`."""
        samples = self.book.samples
        return samples[-1].stated if samples else self.machine.stated

    def time(self, at_s: float | None) -> str | None:
        """Seconds of the journal as a time."""
        return None if at_s is None else time_of(self.epoch, at_s)


def time_of(epoch: float, at_s: float) -> str:
    """Seconds since a journal began as a time, ISO 8601."""
    return datetime.fromtimestamp(epoch + at_s, UTC).isoformat(timespec="milliseconds")


def job_document(look: SiteView, job_id: str) -> dict[str, Any]:
    """One job, all of it."""
    past = look.history[job_id]
    record = look.core.jobs.get(job_id)
    story = [
        dict(zip(("at", "what", "cause"), (look.time(line.at_s), *chapter_of(line)), strict=True))
        for line in (record.story if record else ())
    ]
    whole = _whole(job_row(look, job_id), past, story, look.epoch, _app(past, record))
    return {
        **whole,
        "unenforced": [] if record is None else _unenforced(look, past, record),
        "undelivered": look.undelivered.get(job_id, ""),
        "speed": speed_document(look.core, past.spec),
    }


def _unenforced(look: SiteView, past: PastJob, record: JobRecord) -> list[str]:
    """Limits that its user asked for, and that nobody keeps."""
    if look.support is None:
        return []
    told = unenforced(look.support, asked(past.spec, past.paper))
    return told + look.unkept.get((record.id, record.attempt), []) if record.active else told


def new_job_document(epoch: float, spec: JobSpec, paper: Mapping[str, Any]) -> dict[str, Any]:
    """A job that was written down and that the core has not heard of yet."""
    past = PastJob(spec=spec, paper=paper, by="")
    row = (
        _told_by(past)
        | dict.fromkeys(_TOLD_BY_RUNS)
        | {
            "state": past.state,
            "gpus": spec.gpus,
            "energy_j": 0.0,
            "bill": None,
            "submitted": time_of(epoch, spec.submit_s),
            "where": [],
            "reason": {"code": NEXT_PLAN, "text": NEXT_PLAN},
        }
    )
    story = [{"at": row["submitted"], "what": SUBMITTED, "cause": ""}]
    return _whole(row, past, story, epoch)


def _whole(
    row: Mapping[str, Any],
    past: PastJob,
    story: list[dict[str, Any]],
    epoch: float,
    app: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "schema": JOB,
        **row,
        "spec": _spec(past, epoch),
        "attempts": past.attempts,
        "exit_code": past.exit_code,
        "app": app,
        "unenforced": [],
        "undelivered": "",
        "speed": None,
        "story": story,
    }


_TOLD_BY_RUNS = (
    "watts", "cap_w", "micro_batch", "remaining_s", "rate_per_s", "started", "finished", "position",
    "tasks",
)  # fmt: skip
"""What a job that has never run has none of."""


def _told_by(past: PastJob) -> dict[str, Any]:
    """What its user said of a job, and what it reported."""
    return {
        "id": past.spec.id,
        "name": past.paper.get("name", ""),
        "labels": {name: value for name, value in past.spec.labels if name != "name"},
        "user": past.spec.user,
        "tenant": past.spec.tenant,
        "queue": past.spec.queue,
        "array": _array(past),
        "priority": past.spec.priority,
        "progress": past.progress,
        "total": past.total,
        "loss": past.loss,
    }


def _array(past: PastJob) -> dict[str, Any] | None:
    """Of which array it is a task, and which."""
    spec = past.spec
    if not spec.array:
        return None
    return {
        "id": spec.array,
        "index": spec.array_index,
        "count": spec.array_count,
        "most": spec.array_most,
        "values": dict((past.paper.get("array") or {}).get("values", {})),
    }


def job_row(look: SiteView, job_id: str, position: int | None = None) -> dict[str, Any]:
    """One job as a line of a list."""
    past = look.history[job_id]
    record = look.core.jobs.get(job_id)
    last = look.book.samples[-1].by_job if look.book.samples else {}
    runs = record is not None and record.active
    return {
        **_told_by(past),
        "state": _state(past, record),
        "gpus": record.gpus if record and record.active else past.spec.gpus,
        "watts": last.get(job_id) if runs else None,
        "cap_w": record.cap_w if record and record.active else None,
        "micro_batch": record.micro_batch if record and record.active else None,
        "energy_j": look.book.energy_j.get(job_id, past.energy_j),
        "bill": bill_row(_bill(look, past), look.book.energy_j.get(job_id, past.energy_j)),
        "remaining_s": _remaining_s(past, record),
        "rate_per_s": record.rate_per_s if record else None,
        "submitted": look.time(past.spec.submit_s),
        "started": look.time(past.first_start_s),
        "finished": look.time(past.finish_s),
        "where": _where(look, record),
        "reason": _reason(look, record, past),
        "position": position,
        "tasks": None,
    }


def _bill(look: SiteView, past: PastJob) -> tuple[Bill, str] | None:
    """What its energy has cost so far, and in which currency."""
    live = look.book.bills.get(past.spec.id)
    return bill_of(past.bill) if live is None else (live, look.book.currency)


def _app(past: PastJob, record: JobRecord | None) -> dict[str, Any] | None:
    """Where a job's own pages are, while it runs."""
    app = past.paper.get("app")
    if not app or record is None or not record.active:
        return None
    return {"kind": app["kind"], "path": base_of(record.id), "share": app["share"]}


def _state(past: PastJob, record: JobRecord | None) -> str:
    return past.state if record is None else shown_state(record)


def shown_state(record: JobRecord) -> str:
    """A live job's state as users see it."""
    return SHOWN_STATES.get(record.state, str(record.state))


def _remaining_s(past: PastJob, record: JobRecord | None) -> float | None:
    """At the speed of late; None unless it runs and says how much there is to do."""
    if record is None or not record.active or not record.rate_per_s or past.total is None:
        return None
    return max(0.0, past.total - past.progress) / record.rate_per_s


def _where(look: SiteView, record: JobRecord | None) -> list[dict[str, Any]]:
    if record is None or not record.active:
        return []
    nodes = look.core.config.cluster.nodes
    return [{"node": nodes[one.node].name, "gpus": list(one.gpus)} for one in record.allocations]


def _reason(look: SiteView, record: JobRecord | None, past: PastJob) -> dict[str, Any] | None:
    """Why it waits, why it ended as it did, or what cannot be done for its run at the moment."""
    if record is None:
        failed = past.state == State.FAILED and past.exit_code
        why = past.why or (f"exit code {past.exit_code}" if failed else "")
        code = NEVER if why.startswith(NEVER) else past.state
        return {"code": code, "text": why} if why else None
    if record.active:
        trouble = look.troubles.get((record.id, record.attempt), "")
        return {"code": TROUBLED, "text": trouble} if trouble else None
    if record.state is State.BLOCKED:
        return _blocked(look, record, past)
    if record.state in (State.HELD, State.BACKING_OFF):
        return {"code": str(record.state), "text": str(record.state)}
    if record.reason is None:
        code = HAND_OVER if record.wanted else NEXT_PLAN
        return {"code": code, "text": code}
    return _reason_document(look, record.reason)


def _blocked(look: SiteView, record: JobRecord, past: PastJob) -> dict[str, Any]:
    """What a job waits for before it is planned; its begin time also as a time of the day."""
    reason = look.core.waits.reason(record)
    document = _reason_document(look, reason)
    if reason.due_s is not None:
        at = datetime.fromtimestamp(look.epoch + reason.due_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        ahead = show_ahead(reason.due_s - look.core.now_s)
        begin_at, now = look.epoch + reason.due_s, look.epoch + look.core.now_s
        why = why_deferred(past.paper, look.rates, begin_at, now)
        text = f"{reason.unblocks} at {at}, {ahead}{'; ' * bool(why)}{why}"
        document["text"] = f"{reason.code} ({text})"
    return document


def _reason_document(look: SiteView, reason: Reason) -> dict[str, Any]:
    return {
        "code": str(reason.code),
        "text": reason.text(look.core.now_s),
        "asked": reason.asked,
        "in_use": reason.in_use,
        "available": reason.available,
        "unit": reason.unit,
        "unblocks": reason.unblocks,
        "since": look.time(reason.since_s),
        "due": look.time(reason.due_s),
    }


def _spec(past: PastJob, epoch: float) -> dict[str, Any]:
    spec = past.spec
    return {
        "roles": [
            {"name": r.name, "count": r.count, "gpus": r.gpu_count, "command": list(r.command)}
            for r in spec.roles
        ],
        "min_gpus": spec.least_gpus,
        "gpu_types": list(spec.gpu_models),
        "time_limit_s": spec.time_limit_s,
        "expected_s": spec.duration_s,
        "restarts": spec.restarts,
        "after": list(spec.after),
        "after_any": list(spec.after_any),
        "after_notok": list(spec.after_notok),
        "singleton": spec.singleton,
        "begin": None if spec.not_before_s is None else time_of(epoch, spec.not_before_s),
        "deadline": time_of(epoch, spec.deadline_s or 0.0) if _dated(spec) else None,
        "defer": (past.paper.get("defer") or {}).get("by"),
        "group": spec.group,
        "envs": past.paper.get("envs", {}),
        "environment": sorted(past.paper.get("environment", {})),
        "secrets": sorted(past.paper.get("secrets", {})),
        "stdin": bool(past.paper.get("stdin")),
        "workdir": past.paper.get("workdir"),
    }


def _dated(spec: JobSpec) -> bool:
    """Whether it has a deadline in seconds of the journal; those of old stores are of its wait."""
    return spec.deadline_s is not None and spec.deadline_s >= spec.submit_s


def positions(look: SiteView) -> dict[str, int]:
    """Places in the queue, from 1, in order of submission."""
    waiting = (record.id for record in look.core.jobs.values() if not record.active)
    return {job_id: number for number, job_id in enumerate(waiting, start=1)}


def nodes_document(look: SiteView) -> dict[str, Any]:
    """Every node and device, and who is on it."""
    holders: dict[tuple[int, int], list[str]] = {}
    for record in look.core.jobs.values():
        for one in record.allocations:
            for gpu in one.gpus:
                holders.setdefault((one.node, gpu), []).append(record.id)
    nodes = []
    for number, node in enumerate(look.core.config.cluster.nodes):
        devices = [
            _device_row(look, (number, gpu), holders.get((number, gpu), []))
            for gpu in range(node.gpu_count)
        ]
        lost = number in look.core.lost
        nodes.append({"name": node.name, "state": "Lost" if lost else "Ready", "gpus": devices})
    return {"schema": NODES, "nodes": nodes, "gpu_max_w": look.machine.gpu.max_w}


def _device_row(look: SiteView, place: tuple[int, int], jobs: list[str]) -> dict[str, Any]:
    """One device: whose it is, what it draws and may draw, and why it is out of use if it is."""
    node, gpu = place
    core, machine, number = look.core, look.machine, look.machine.number(node, gpu)
    drained = core.drained.out.get(place)
    state = "Lost" if node in core.lost else "Ready" if drained is None else "Drained"
    caps_w = [core.jobs[one].cap_w for one in jobs]
    by_device = look.book.samples[-1].by_device if look.book.samples else ()
    return {
        "number": number,
        "uuid": machine.devices[number].uuid if number < len(machine.devices) else "",
        "meter": machine.devices[number].meter if number < len(machine.devices) else "",
        "knob": machine.devices[number].knob if number < len(machine.devices) else "",
        "model": core.config.cluster.nodes[node].gpu_model,
        "state": state,
        "cause": "" if drained is None else drained.cause,
        "since": None if drained is None else look.time(drained.since_s),
        "draw_w": by_device[number] if number < len(by_device) else None,
        "stated": look.stated,
        "cap_w": min((cap for cap in caps_w if cap is not None), default=None),
        "jobs": jobs,
    }


def power_document(look: SiteView, *, last: int = 1) -> dict[str, Any]:
    """Budget, draw and headroom now, and the last samples."""
    samples = list(look.book.samples)[-last:] if last else []
    now = look.book.samples[-1] if look.book.samples else None
    budget_w = look.core.watts.stated_w
    draw_w = now.draw_w if now else None
    headroom_w = budget_w - draw_w if budget_w is not None and draw_w is not None else None
    return {
        "schema": POWER,
        "budget_w": budget_w,
        "draw_w": draw_w,
        "headroom_w": headroom_w,
        "budgets": [
            {"source": source or OPERATORS, "budget_w": one_w}
            for source, one_w in sorted(look.core.budgets.by_source.get("", {}).items())
        ],
        "announced": [
            {
                "at": look.time(one.begins_s),
                "budget_w": one.budget_w,
                "source": one.source or OPERATORS,
            }
            for one in look.core.budgets.announced
            if not one.domain
        ],
        "stated": now.stated if now else look.machine.stated,
        "over_s": look.book.over_s,
        "over_j": look.book.over_j,
        "samples": [_sample(look, one) for one in samples],
        "bill": site_bill(look),
    }


def site_bill(look: SiteView) -> dict[str, Any] | None:
    """What all energy has cost and emitted since there were rates; None where there are none."""
    bill = look.book.site_bill
    return bill_row((bill, look.book.currency), bill.energy_j) if bill.energy_j else None


def _sample(look: SiteView, sample: DrawSample) -> dict[str, Any]:
    return {
        "at": look.time(sample.at_s),
        "draw_w": sample.draw_w,
        "budget_w": sample.budget_w,
        "by_job": dict(sample.by_job),
    }


def run_is_over(look: SiteView, job_id: str, attempt: int) -> bool:
    """Whether that run of the job has ended."""
    record = look.core.jobs.get(job_id)
    return record is None or record.attempt > attempt or not record.active
