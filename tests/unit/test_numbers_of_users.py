"""Numbers that users write: each has a bound, so that none of them stops the core for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from test_core import a_core, a_job, run, tell

from wattherd import units
from wattherd.engine.core.core import Core
from wattherd.engine.core.invariants import validate
from wattherd.engine.jobs.lifecycle import State
from wattherd.errors import UserError
from wattherd.local.devices import slots
from wattherd.model.command import WakeAt
from wattherd.model.event import BudgetChanged, JobExited, JobStarted, JobSubmitted, Woke
from wattherd.model.reason import Reason, ReasonCode
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.workload.job_edit import ArrayEdit, JobEdit
from wattherd.workload.job_file import JobFile, validated_job

HUGE = 10**400
"""No float is as large, and no machine's integer."""
DOCUMENTS: list[dict[str, Any]] = [
    {"gpus": HUGE},
    {"gpus": {"min": 1, "max": HUGE}},
    {"priority": HUGE},
    {"priority": -HUGE},
    {"priority": str(HUGE)},
    {"restarts": HUGE},
    {"backoff": HUGE},
    {"backoff": 1e17},
    {"processes": HUGE},
    {"array": HUGE},
    {"cpus_per_gpu": HUGE},
    {"memory_per_gpu": HUGE},
    {"time": {"limit": HUGE}},
    {"time": {"expected": 1e17}},
    {"checkpoint": {"grace": HUGE}},
    {"checkpoint": {"every": 1e17}},
    {"power": {"cap": HUGE}},
    {"batch": {"global": HUGE, "micro": [1]}},
    {"batch": {"global": 8, "micro": [HUGE]}},
    {"batch": {"global": 8, "micro": {"min": 1, "max": HUGE}}},
    {"ulimits": {"nofile": HUGE}},
    {"run": None, "taskRoles": {"w": {"run": "true", "count": HUGE}}},
    {"run": None, "taskRoles": {"w": {"run": "true", "gpus": HUGE}}},
    {"queue": "q" * 100_000},
    {"group": "g" * 100_000},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: str(one)[:50])
def test_a_number_that_no_machine_can_reckon_with_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, UserError)):
        JobFile.model_validate({"run": "true", **document})


@pytest.mark.parametrize(
    "changes",
    [{"gpus": HUGE}, {"priority": -HUGE}, {"time": {"limit": HUGE}}, {"most": HUGE},
     {"gpus": {"min": 1, "max": HUGE}}],
    ids=str,
)  # fmt: skip
def test_nor_can_a_job_be_edited_to_one(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ArrayEdit.model_validate(changes)


def _unbounded(schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Integers of a schema without an upper bound."""
    if schema.get("type") == "integer" and not {"maximum", "exclusiveMaximum"} & schema.keys():
        yield where
    for name, part in schema.items():
        for number, one in enumerate(part if isinstance(part, list) else [part]):
            if isinstance(one, dict):
                yield from _unbounded(one, f"{where}.{name}" + f".{number}" * bool(number))


@pytest.mark.parametrize("kind", [JobFile, JobEdit, ArrayEdit])
def test_every_integer_has_a_bound(kind: type[BaseModel]) -> None:
    """But those that are read as times, sizes or limits, which their own readers bound."""
    read = ("backoff", "Time", "time", "every", "grace", "expected", "limit", "ulimits", "cap",
            "shm", "memory", "envs", "grid")  # fmt: skip
    found = [one for one in _unbounded(kind.model_json_schema()) if not any(r in one for r in read)]
    assert found == []


@pytest.mark.parametrize("read", [units.seconds, units.watts])
def test_a_reader_of_units_refuses_it_too(read: Any) -> None:
    with pytest.raises(UserError, match="is no"):
        read(HUGE)


def test_a_job_that_fails_for_the_thousandth_time_does_not_stop_the_core() -> None:
    """The wait doubles each time: the power of two is no float any more after 1,024 failures."""
    core = a_core()
    run(core, a_job("a", restarts=2_000, backoff_s=0.0))
    for attempt in range(1, 1_200):
        ended = JobExited(at_s=0.0, job_id="a", attempt=attempt, exit_code=1)
        for wake in [one for one in core.handle(ended) if isinstance(one, WakeAt)]:
            tell(core, Woke(at_s=wake.at_s, key=wake.key))
    assert core.jobs["a"].failures == 1_199


LONG = ("1" * 50_000 + "x", "in " + "1" * 50_000, "18:00" + " " * 50_000 + "x", "1s" * 50_000,
        "1." * 50_000)  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=lambda one: one[:6])
def test_a_long_text_is_no_time_and_that_is_said_at_once(text: str) -> None:
    """Looked at with care, it would keep the service from answering anybody for minutes."""
    fields: list[dict[str, Any]] = [
        {"time": {"limit": text}}, {"begin": text}, {"backoff": text}, {"array": text},
        {"app": {"kind": "web", "idle": text}}, {"power": {"cap": text}},
        {"memory_per_gpu": text}, {"checkpoint": {"grace": text}},
    ]  # fmt: skip
    began_s = time.process_time()
    for field in fields:
        with pytest.raises((ValidationError, UserError)):
            validated_job({"run": "true", **field}, "")
    with pytest.raises((ValidationError, UserError)):
        ArrayEdit.model_validate({"time": {"limit": text}})
    with pytest.raises((ValidationError, UserError)):
        ArrayEdit.model_validate({"begin": text}).event(
            "a", by="b", now=datetime.now(UTC), now_s=0.0
        )
    assert time.process_time() - began_s < 2.0


LARGEST: list[dict[str, Any]] = [
    {"gpus": 1_000_000, "cpus_per_gpu": 1e6, "memory_per_gpu": 9e17, "priority": 10**9},
    {"gpus": {"min": 1, "max": 1_000_000}, "priority": -(10**9), "restarts": 10**6},
    {"gpus": 1, "backoff": 9e9, "time": {"expected": 9e9, "limit": 9e9, "deadline": "9999-12-31"}},
    {"gpus": 1, "time": {"expected": 1e-300, "limit": 1e-300}, "checkpoint": {"every": 1e-300}},
    {"gpus": 2, "batch": {"global": 10**9, "micro": {"min": 1, "max": 10**9}}, "backoff": 1e-300},
    {"gpus": 1, "power": {"cap": 1e-300, "max_slowdown": 1e300}, "begin": "in 100000d"},
    {"taskRoles": {"w": {"run": "true", "count": 10**6, "gpus": 10**6, "cpus": 1e6}}},
]  # fmt: skip


@pytest.mark.parametrize("policy", ["priority-backfill", "srtf", "tiresias", "gandiva", "drf"])
def test_the_core_reckons_with_the_largest_and_smallest_that_are_taken(policy: str) -> None:
    blueprint = Blueprint.of(ServeConfig(policy=policy), slots("here", 4))
    core = Core(blueprint.core_config(blueprint.scheduler()))
    core.handle(BudgetChanged(at_s=0.0, budget_w=9.0))
    for number, document in enumerate(LARGEST, start=1):
        run_of = {} if "taskRoles" in document else {"run": "true"}
        spec = validated_job({**run_of, **document}, "").spec(at=datetime(2030, 1, 1, tzinfo=UTC))
        core.handle(JobSubmitted(at_s=0.0, job=replace(spec, id=f"j-{number}")))
        for job in list(core.jobs.values()):
            if job.state is State.STARTING:
                core.handle(JobStarted(at_s=0.0, job_id=job.id, attempt=job.attempt))
                code = number % 2
                ended = JobExited(at_s=1.0, job_id=job.id, attempt=job.attempt, exit_code=code)
                core.handle(ended)
            elif job.reason is not None:
                assert job.reason.text(1e10)
    validate(core)


def test_a_reason_tells_a_number_of_any_size() -> None:
    """Of a journal that took such a number before they were bounded."""
    reason = Reason(code=ReasonCode.NEVER_FITS, since_s=0.0, asked=HUGE, available=8, unit="tasks")
    assert "NeverFits" in reason.text(0.0)
