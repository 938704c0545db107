"""What was decided, and who held which device when: for pages that look back.

Follows journal and answers turn by turn and keeps the last of each; it decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.model.command import (
    AmendJob,
    Command,
    FinishJob,
    GiveNotice,
    RejectJob,
    SetBatch,
    SetCap,
    StartJob,
    StopJob,
    WakeAt,
)
from wattherd.model.event import (
    BudgetAnnounced,
    BudgetChanged,
    CapApplied,
    Event,
    JobEdited,
    JobEntered,
    JobExited,
    JobProgressed,
    JobStopped,
    JobSubmitted,
    NodeLost,
    Woke,
)
from wattherd.store.entry import JournalEntry
from wattherd.store.event_log import plain

DECISIONS, SPANS, WAITS, RATES, BUDGETS = 5000, 20_000, 2000, 240, 500
SYSTEM = "system"


@dataclass(slots=True)
class GpuSpan:
    """A job on some GPUs of a node, from `start_s` on; `caps` are (time, watts) as read back."""

    job_id: str
    attempt: int
    node: int
    gpus: tuple[int, ...]
    start_s: float
    caps: list[tuple[float, float | None]]
    stop_s: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """An entry of the journal and the orders it led to; `detail` is both as they were written."""

    seq: int
    at_s: float
    by: str
    event: str
    about: str
    orders: tuple[str, ...]
    detail: tuple[Mapping[str, Any], ...]

    def mentions(self, text: str) -> bool:
        """Whether `text` occurs in what it says, in whatever case."""
        said = " ".join((self.event, self.about, self.by, *self.orders)).casefold()
        return all(word in said for word in text.casefold().split())


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a job of `gpus` GPUs waited in a queue for its first start."""

    queue: str
    gpus: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """A source (empty: the operators) stated another budget of a domain (empty: the site).

    `before_w` is what it had stated before, None for no limit; `known` says whether that is known.
    `by` is who asked for it, now or when it was announced, `SYSTEM` where a signal did; `cause` is
    which signal.
    """

    seq: int
    at_s: float
    before_w: float | None
    known: bool
    budget_w: float | None
    domain: str
    source: str
    by: str
    cause: str
    announced_s: float | None
    """When it was announced, if it was."""


@dataclass(slots=True)
class SiteTimeline:
    """The last decisions, spans and waits, the oldest first; `nodes` are numbers by name."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    decisions: deque[DecisionEntry] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    spans: deque[GpuSpan] = field(default_factory=lambda: deque(maxlen=SPANS))
    waits: deque[Wait] = field(default_factory=lambda: deque(maxlen=WAITS))
    budgets: deque[BudgetChange] = field(default_factory=lambda: deque(maxlen=BUDGETS))
    rates: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    """(time, steps per second) as reported by jobs that are not over."""
    _open: dict[str, list[GpuSpan]] = field(default_factory=dict)
    _pending: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    _stated: dict[tuple[str, str], float | None] = field(default_factory=dict)
    _announced: deque[JournalEntry] = field(default_factory=lambda: deque(maxlen=BUDGETS))

    def note(self, entry: JournalEntry, commands: Sequence[Command]) -> None:
        """Follow one entry and the answer to it."""
        event = entry.event
        self._hear(event)
        if isinstance(event, BudgetAnnounced):
            self._announced.append(entry)
        elif isinstance(event, BudgetChanged):
            self._change_budget(entry, event)
        for command in commands:
            self._obey(command, event.at_s)
        orders = [one for one in commands if not isinstance(one, WakeAt)]
        if orders or entry.by != SYSTEM:
            self.decisions.append(_decision(entry, orders))

    def _change_budget(self, entry: JournalEntry, event: BudgetChanged) -> None:
        place = event.domain, event.source
        before_w, known = self._stated.get(place), place in self._stated
        self._stated[place] = event.budget_w
        if known and before_w == event.budget_w:
            return
        by, cause, announced_s = entry.by, event.cause, None
        for other in self._announced:
            told = other.event
            if (
                isinstance(told, BudgetAnnounced)
                and (told.domain, told.source, told.budget_w) == (*place, event.budget_w)
                and told.begins_s <= event.at_s
                and by == SYSTEM
            ):
                by, cause, announced_s = other.by, cause or told.cause, told.at_s
        self.budgets.append(
            BudgetChange(
                entry.seq, event.at_s, before_w, known, event.budget_w, *place, by, cause,
                announced_s,
            )
        )  # fmt: skip

    def _hear(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                job = event.job
                self._pending[job.id] = (job.queue, job.gpus, event.at_s)
            case JobProgressed() if event.rate_per_s:
                known = self.rates.setdefault(event.job_id, deque(maxlen=RATES))
                known.append((event.at_s, event.rate_per_s))
            case CapApplied():
                for span in self._open.get(event.job_id, ()):
                    span.caps.append((event.at_s, event.cap_w))
            case NodeLost():
                self._lose(self.nodes.get(event.node), event.at_s)
            case JobStopped() | JobExited():
                self._close(event.job_id, event.at_s, event.attempt)
            case _:
                pass

    def _obey(self, command: Command, at_s: float) -> None:
        match command:
            case StartJob():
                self._start(command, at_s)
            case FinishJob() | RejectJob():
                self._close(command.job_id, at_s)
                self._pending.pop(command.job_id, None)
                self.rates.pop(command.job_id, None)
            case _:
                pass

    def _start(self, order: StartJob, at_s: float) -> None:
        self._close(order.job_id, at_s)  # whoever took over from a service may not say so
        if order.job_id in self._pending:
            queue, gpus, since_s = self._pending.pop(order.job_id)
            self.waits.append(Wait(queue, gpus, at_s - since_s))
        spans = [
            GpuSpan(order.job_id, order.attempt, one.node, one.gpus, at_s, [(at_s, order.cap_w)])
            for one in order.allocations
            if one.gpus
        ]
        self._open[order.job_id] = spans
        self.spans.extend(spans)

    def _lose(self, node: int | None, at_s: float) -> None:
        for job_id, spans in list(self._open.items()):
            if any(span.node == node for span in spans):
                self._close(job_id, at_s)

    def _close(self, job_id: str, at_s: float, attempt: int | None = None) -> None:
        spans = self._open.get(job_id, [])
        if attempt is not None and spans and spans[0].attempt != attempt:
            return
        for span in self._open.pop(job_id, []):
            span.stop_s = at_s


def _decision(entry: JournalEntry, orders: Iterable[Command]) -> DecisionEntry:
    event = entry.event
    told = tuple(orders)
    return DecisionEntry(
        seq=entry.seq,
        at_s=event.at_s,
        by=entry.by,
        event=_words(event),
        about=_about(event),
        orders=tuple(order_line(one) for one in told),
        detail=(_document(event), *(plain(one) for one in told)),
    )


def _about(event: Event) -> str:
    if isinstance(event, JobSubmitted):
        return event.job.id
    names = ("job_id", "array", "node", "queue", "domain")
    return str(next((value for name in names if (value := getattr(event, name, ""))), ""))


def _document(event: Event) -> Mapping[str, Any]:
    """Without the commands of a job, which may hold what only its owner may read."""
    document = plain(event)
    if isinstance(event, JobSubmitted):
        job = event.job
        short = {"id": job.id, "user": job.user, "tenant": job.tenant, "queue": job.queue}
        document["job"] = {**short, "gpus": job.gpus, "priority": job.priority}
    elif isinstance(event, JobEntered):
        del document["command"]
    return document


_AWAITED = {
    "plan": "a new plan was due",
    "round": "a new plan was due",
    "budget": "an announced budget comes near",
    "ramp": "the site may draw more by now",
    "fall": "the site may draw less by now",
    "hold": "caps may be changed again",
    "backoff": "the wait before another try is over",
    "begin": "the begin time of a job has come",
    "limit": "a time limit has passed",
    "joules": "an energy budget is spent",
}
"""What the core asked to be woken for, by the beginning of the key."""


def _words(event: Event) -> str:
    if isinstance(event, JobEdited):
        return f"{event.job_id} was edited"
    if isinstance(event, JobEntered):
        return f"somebody went into {event.job_id}"
    if isinstance(event, BudgetChanged):
        return f"BudgetChanged to {_watts(event.budget_w)}"
    if isinstance(event, JobExited):
        ended = f"exit code {event.exit_code}" if event.exit_code else "it succeeded"
        return f"a run of {event.job_id} ended: {event.cause or ended}"
    if isinstance(event, Woke):
        return _AWAITED.get(event.key.partition(":")[0], "a time that was waited for has come")
    return type(event).__name__


def _watts(value: float | None) -> str:
    return "no limit" if value is None else f"{value:,.1f} W"


def order_line(command: Command) -> str:
    """An order in one line."""
    name = type(command).__name__
    match command:
        case StartJob():
            where = ", ".join(
                f"node {one.node} GPU {','.join(map(str, one.gpus))}" for one in command.allocations
            )
            return f"{name} {command.job_id} on {where}, cap {_watts(command.cap_w)}"
        case StopJob() | GiveNotice():
            return f"{name} {command.job_id}: {command.reason}"
        case SetCap():
            return f"{name} {command.job_id} to {_watts(command.cap_w)} per GPU"
        case SetBatch():
            return f"{name} {command.job_id} to {command.micro_batch} samples at once"
        case RejectJob():
            return f"{name} {command.job_id}: {command.reason.text()}"
        case FinishJob():
            return f"{name} {command.job_id}: {command.state}"
        case AmendJob():
            return f"{name} {command.job_id}"
        case _:
            return name
