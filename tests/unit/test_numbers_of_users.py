"""Numbers that users write: each has a bound, so that none of them stops the core for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from test_core import a_core, a_job, run, tell

from wattherd import units
from wattherd.errors import UserError
from wattherd.model.command import WakeAt
from wattherd.model.event import JobExited, Woke
from wattherd.model.reason import Reason, ReasonCode
from wattherd.workload.job_edit import ArrayEdit, JobEdit
from wattherd.workload.job_file import JobFile

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


def test_a_reason_tells_a_number_of_any_size() -> None:
    """Of a journal that took such a number before they were bounded."""
    reason = Reason(code=ReasonCode.NEVER_FITS, since_s=0.0, asked=HUGE, available=8, unit="tasks")
    assert "NeverFits" in reason.text(0.0)
