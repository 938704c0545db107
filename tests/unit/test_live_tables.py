"""Documents of a service in a terminal: sorted by a field, and as YAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from wattherd.cli.live_tables import ordered, show_job
from wattherd.cli.output import show
from wattherd.errors import UserError

ROWS: list[dict[str, Any]] = [
    {"id": "j-1", "watts": 30.0, "where": []},
    {"id": "j-2", "watts": None, "where": []},
    {"id": "j-3", "watts": 9.5, "where": []},
]


@pytest.mark.parametrize(
    ("by", "ids"),
    [
        ("", ["j-1", "j-2", "j-3"]),
        ("watts", ["j-3", "j-1", "j-2"]),
        ("-watts", ["j-1", "j-3", "j-2"]),
        ("-id", ["j-3", "j-2", "j-1"]),
    ],
)
def test_rows_are_sorted_by_a_field_and_what_has_none_comes_last(by: str, ids: list[str]) -> None:
    assert [row["id"] for row in ordered(ROWS, by)] == ids


def test_nothing_is_sorted_by_any_field() -> None:
    assert ordered([], "watts") == []


@pytest.mark.parametrize("by", ["wats", "where"])
def test_a_field_that_cannot_be_sorted_by_is_told(by: str) -> None:
    with pytest.raises(UserError, match="cannot sort by") as told:
        ordered(ROWS, by)
    assert told.value.field == "--sort"


def test_yaml_says_what_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"schema": "wattherd.jobs/1", "jobs": ROWS, "by": "Zoë"}
    show(document, "yaml", lambda: None)
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == document
    assert printed.startswith("schema: wattherd.jobs/1\n")
    assert "Zoë" in printed


def test_times_of_a_job_have_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("watts", "cap_w", "remaining_s", "reason", "total", "loss"))
    show_job(
        {
            **nothing, "id": "j-1", "name": "", "user": "ann", "state": "Failed", "gpus": 1,
            "started": None, "finished": None, "progress": None, "where": [], "queue": "default",
            "priority": 0, "energy_j": 0.0, "submitted": "2026-11-26T10:57:50", "attempts": 2,
            "exit_code": 7, "story": [],
            "spec": {"roles": [], "expected_s": 90.0, "time_limit_s": 10_800.0},
        }
    )  # fmt: skip
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "expected 90.0 s  limit 3.00 h  attempts 2  exit code 7"
