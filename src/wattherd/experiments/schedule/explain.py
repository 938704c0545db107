"""A recorded run again: the same events into a fresh core, without any world.

The same commands must come out of it (`replayed_digest`), and what became of one job, and why it
waited, is told on the way (`explain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import UserError
from wattherd.experiments.schedule.run import core_config
from wattherd.experiments.schedule.setup import setting_of
from wattherd.model.command import (
    Command,
    FinishJob,
    GiveNotice,
    RejectJob,
    SetBatch,
    SetCap,
    StartJob,
    StopJob,
)
from wattherd.model.event import Event, JobSubmitted
from wattherd.spelling import hint_for
from wattherd.store.event_log import digest
from wattherd.units import counted, show_ahead, show_seconds
from wattherd.workload.scenario import validated

SCHEMA = "wattherd.explain/1"
NEXT_PLAN = "NextPlan"
"""Waiting to be looked at: plans are made once a round."""
HAND_OVER = "HandOver"
"""Waiting although the plan runs it: for devices to be given back, or nodes to wake."""


@dataclass(frozen=True, slots=True)
class StoryLineText:
    """At this time (s) this happened."""

    at_s: float
    what: str


@dataclass(slots=True, repr=False)
class JobStory:
    """The life of one job: lines in order of time, and seconds waited by reason code."""

    job_id: str
    lines: list[StoryLineText] = field(default_factory=list)
    waited_s: dict[str, float] = field(default_factory=dict)
    state: str = ""
    _since_s: float = 0.0
    _code: str = ""
    _reason: str = ""

    def text(self) -> Iterator[str]:
        """What happened, line by line, and how long the job waited for what."""
        for line in self.lines:
            yield f"{line.at_s:>12,.0f} s  {line.what}"
        waited = [f"{show_seconds(s)} {code}" for code, s in self.waited_s.items() if s > 0]
        yield f"waited {', '.join(waited) if waited else 'not at all'}"

    def __repr__(self) -> str:
        """All of it, to be read."""
        return "\n".join([f"{self.job_id}: {self.state}", *self.text()])

    def hear(self, core: Core, record: JobRecord | None, commands: Iterable[Command]) -> None:
        """Note what one event did to the job."""
        now_s = core.now_s
        if record is not None:
            self._wait(now_s, record)
        for command in commands:
            if getattr(command, "job_id", None) == self.job_id:
                self.lines.extend(StoryLineText(now_s, what) for what in _told(core, command))
        if record is not None:
            self.state = str(record.state)

    def _wait(self, now_s: float, record: JobRecord) -> None:
        if self._code:
            self.waited_s[self._code] = self.waited_s.get(self._code, 0.0) + now_s - self._since_s
        waits = not record.active and record.finish_s is None
        reason = record.reason
        self._code = _code(record) if waits else ""
        self._since_s = now_s
        text = reason.text() if waits and reason is not None else ""
        if text and text != self._reason:
            self.lines.append(StoryLineText(now_s, f"waits: {text}"))
        self._reason = text


def _code(record: JobRecord) -> str:
    if record.wanted:
        return HAND_OVER
    return NEXT_PLAN if record.reason is None else str(record.reason.code)


def _told(core: Core, command: Command) -> list[str]:
    match command:
        case StartJob():
            nodes = core.config.cluster.nodes
            parts = [
                f"{nodes[one.node].name} [{','.join(map(str, one.gpus))}]"
                for one in command.allocations
            ]
            cap = "" if command.cap_w is None else f", capped at {command.cap_w:g} W a GPU"
            return [f"run {command.attempt} starts on {', '.join(parts)}{cap}"]
        case StopJob():
            return [f"run {command.attempt} is told to stop: {command.reason}"]
        case GiveNotice():
            ahead = show_ahead(command.at_s - core.now_s)
            return [f"is given notice of a stop {ahead}: {command.reason}"]
        case SetCap():
            return ["uncapped" if command.cap_w is None else f"capped at {command.cap_w:g} W a GPU"]
        case SetBatch():
            return [f"told to compute {command.micro_batch} samples at once"]
        case RejectJob():
            return [f"rejected: {command.detail}"]
        case FinishJob():
            return [f"over: {command.state}"]
    return []


def explain(core: Core, events: Iterable[Event], job_id: str) -> JobStory:
    """Replay `events` and keep an account of one job.

    Raises:
        UserError: no such job was submitted.
    """
    account, known = JobStory(job_id), []
    for event in events:
        before = core.jobs.get(job_id)
        commands = core.handle(event)
        if isinstance(event, JobSubmitted):
            known.append(event.job.id)
            if event.job.id == job_id:
                account.lines.append(
                    StoryLineText(event.at_s, f"submitted, asks for {_asks(event)}")
                )
        account.hear(core, core.jobs.get(job_id, before), commands)
    if job_id not in known:
        raise UserError(f"no job {job_id!r} in this run", field="JOB", hint=hint_for(job_id, known))
    return account


def _asks(event: JobSubmitted) -> str:
    spec = event.job
    widths = ""
    if spec.least_width != spec.most_width:
        widths = f" at widths {spec.least_width} to {spec.most_width}"
    return f"{counted(spec.gpus, 'GPU')}{widths} in queue {spec.queue}"


def explain_document(account: JobStory, policy: str) -> Mapping[str, Any]:
    """The account as `wattherd.explain/1`."""
    return {
        "schema": SCHEMA,
        "policy": policy,
        "job": account.job_id,
        "state": account.state,
        "waited_s": account.waited_s,
        "story": [{"at_s": line.at_s, "what": line.what} for line in account.lines],
    }


def fresh_core(document: Mapping[str, Any], policy: str) -> Core:
    """A core set up as a `wattherd.sim/1` document says.

    Raises:
        UserError: the document holds no scenario, or a file that it names is gone.
    """
    if "scenario" not in document:
        raise UserError("holds no scenario", where="sim.json", hint="written by an older version?")
    scenario = validated(document["scenario"], "sim.json")
    setting = setting_of(scenario, budget=scenario.budgets[0], power=scenario.power[0])
    rules = document.get("rules", 0)
    setting = replace(
        setting,
        given=replace(setting.given, equal_cells=rules < 3),
        sets_aside=rules >= 1,
        spares=rules >= 2,
        own_tops=rules >= 2,
        asks_again=rules >= 3,
        plans_first=rules >= 3,
    )
    return Core(core_config(setting, setting.preset.scheduler(policy, setting.given)))


def replayed_digest(document: Mapping[str, Any], policy: str, events: Iterable[Event]) -> str:
    """Digest of the commands that a fresh core gives."""
    core = fresh_core(document, policy)
    commands: list[Command] = []
    for event in events:
        commands.extend(core.handle(event))
    return digest(commands)
