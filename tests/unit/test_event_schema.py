"""What `wattherd schema journal` says is true of every line, and of no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("jsonschema")

import jsonschema

from wattherd.cli.main import cli
from wattherd.model.event import BudgetChanged, Event, JobCancelled, NodeLost, NodeReturned
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.store.event_log import plain
from wattherd.testing.timed_world import Story, t4_nodes, timed

SCHEMA = json.loads(CliRunner().invoke(cli, ["schema", "journal"]).output)
CHECK = jsonschema.Draft202012Validator(SCHEMA)


class Told(Story):
    """Keeps events, too."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.events: list[Event] = []
        super().__init__(*given, **more)

    def after(self, event: Event, commands: Any) -> None:
        super().after(event, commands)
        self.events.append(event)


def test_every_line_of_a_lively_day_is_as_the_schema_says() -> None:
    jobs = [timed(f"j{n}", 1 + n % 3, at_s=7.0 * n, lasts_s=130.0, user="ann") for n in range(20)]
    events = [
        BudgetChanged(at_s=30.0, budget_w=200.0),
        NodeLost(at_s=50.0, node="n0"),
        JobCancelled(at_s=60.0, job_id="j3", cause="tired of it"),
        NodeReturned(at_s=90.0, node="n0"),
        BudgetChanged(at_s=200.0, budget_w=None),
    ]
    story = Told(Gandiva(quantum_s=60.0), t4_nodes(2, 2), jobs, events=events)
    lines = [plain(event) for event in story.events]
    lines += [plain(command) for _, command in story.commands]
    kinds = {line["type"] for line in lines}
    assert {"JobSubmitted", "NodeLost", "JobExited", "StartJob", "StopJob", "SetCap"} <= kinds
    for line in lines:
        CHECK.validate(line)


@pytest.mark.parametrize(
    "line",
    [
        {"type": "JobCancelled", "at_s": 1.0},
        {"type": "JobCancelled", "at_s": 1.0, "job_id": "j-1", "cause": "", "color": "red"},
        {"type": "JobAbducted", "at_s": 1.0, "job_id": "j-1", "cause": ""},
        {"at_s": 1.0, "job_id": "j-1", "cause": ""},
    ],
    ids=["a field is missing", "one too many", "no such kind", "no kind"],
)
def test_what_is_no_line_is_refused(line: dict[str, Any]) -> None:
    assert not CHECK.is_valid(line)


@pytest.mark.parametrize("kind", ["job", "scenario", "serve"])
def test_files_that_users_write_have_schemas_of_their_fields(kind: str) -> None:
    document = json.loads(CliRunner().invoke(cli, ["schema", kind]).output)
    jsonschema.Draft202012Validator.check_schema(document)
    assert {"job": "run", "scenario": "policies", "serve": "slots"}[kind] in document["properties"]
