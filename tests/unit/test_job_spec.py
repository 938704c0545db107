"""Job files of users: their schema and its page, places, limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from wattherd.devices.wire.file_places import BucketPlace, FilePlace, GitPlace, parse
from wattherd.errors import UserError
from wattherd.workload.job_file import JobFile, validated_job

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((REFERENCE / "job.schema.json").read_text(encoding="utf-8"))
    assert published == JobFile.model_json_schema()


def test_the_page_has_every_field_and_no_other() -> None:
    page = (REFERENCE / "job-yaml.md").read_text(encoding="utf-8")
    cells = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    known = {info.alias or name for name, info in JobFile.model_fields.items()}
    assert set(re.findall(r"`(\w+)`", cells)) == known


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/a b/%20", FilePlace("/a b/%20")),
        ("file:///a%20b", FilePlace("/a b")),
        ("s3://bucket", BucketPlace("bucket", "")),
        ("s3://bucket/a/b", BucketPlace("bucket", "a/b")),
        ("s3://bucket/a?b#c%20d/", BucketPlace("bucket", "a?b#c%20d/")),
        ("git+https://h:8/r.git", GitPlace("https://h:8/r.git", "HEAD", "")),
        ("git+ssh://git@h/r@v1", GitPlace("ssh://git@h/r", "v1", "")),
        ("git+file:///r@a/b#subdirectory=x", GitPlace("file:///r", "a/b", "x")),
    ],
)
def test_places_are_read(text: str, place: object) -> None:
    assert parse(text) == place


def paper_of(**fields: Any) -> dict[str, Any]:
    return validated_job({"run": "true", **fields}, "job.yaml").paper()


def test_limits_are_numbers_sizes_or_none() -> None:
    limits = {"nofile": 4096, "stack": "8MiB", "memlock": "unlimited"}
    assert paper_of(ulimits=limits)["ulimits"] == {"nofile": 4096, "stack": 8 << 20, "memlock": -1}


def test_results_are_taken_after_success_unless_it_is_said_otherwise() -> None:
    found = paper_of(outputs={"a": "/a", "b": {"to": "/b", "when": "checkpoint"}})["outputs"]
    assert found == {"a": {"to": "/a", "when": "success"}, "b": {"to": "/b", "when": "checkpoint"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"ulimits": {"as": 1}},
        {"ulimits": {"nofile": "many"}},
        {"ulimits": {"nofile": -5}},
        {"processes": 0},
        {"s3": {"secret_access_key": "x"}},
        {"s3": {"tries": 0}},
    ],
)
def test_nonsense_names_the_file(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"job\.yaml"):
        paper_of(**fields)
