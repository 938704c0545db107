"""Arrays and grids of job files: which tasks they make, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.workload.job_array import Tasks, indices, job_array, shown, tasks_called
from wattherd.workload.job_file import JobFile, validated_job


def made(**fields: Any) -> list[tuple[Any, dict[str, Any]]]:
    return list(validated_job({"run": ["true"], **fields}, "job").tasks())


@pytest.mark.parametrize(
    ("text", "found", "most"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("1,4,7", [1, 4, 7], None),
        ("0-20:5", [0, 5, 10, 15, 20], None),
        ("7,1-2%2", [1, 2, 7], 2),
        (5, [5], None),
    ],
)
def test_ranges_mean_what_they_mean_to_slurm(text: Any, found: list[int], most: int | None) -> None:
    array = job_array(text, {})
    assert array is not None
    assert (list(array.indices), array.most) == (found, most)
    assert job_array(array.text, {}) == array


@pytest.mark.parametrize(
    "text", ["0-9", "1,4,7", "0-20:5", "0", "1-2", "1,3", "0-2,7,9-11,20-40:7"]
)
def test_numbers_are_shown_as_they_can_be_read(text: str) -> None:
    assert indices(shown(indices(text))) == indices(text)


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"array": ""}, "array", "no index"),
        ({"array": "a-b"}, "array", "no index"),
        ({"array": "9-0"}, "array", "ends before it begins"),
        ({"array": "0-9:0"}, "array", "no step"),
        ({"array": "0-9,5"}, "array", "5 is given twice"),
        ({"array": "0-9%0"}, "array", "lets no task run"),
        ({"array": "0-9%x"}, "array", "lets no task run"),
        ({"array": "-3"}, "array", "no index"),
        ({"array": -3}, "array", ""),
        ({"array": "0-10000"}, "array", "10,001 tasks, 10,000 are the most"),
        ({"array": "0-99999999999"}, "array", "above"),
        ({"array": "99999999999999999999"}, "array", "no index"),
        ({"array": "%3"}, "array", "no index"),
        ({"grid": {"lr": []}}, "grid.lr", "has no value"),
        ({"grid": {"lr": ""}}, "grid.lr", "has no value"),
        ({"grid": {"lr": "1,1"}}, "grid.lr", "1 is given twice"),
        ({"grid": {"lr": "5..1"}}, "grid.lr", "has no number"),
        ({"grid": {"l r": [1]}}, "grid", "no name of an axis"),
        ({"grid": {"index": [1]}}, "grid", "no name of an axis"),
        ({"grid": {"lr": [1], "LR": [2]}}, "grid", "would both be WATTHERD_GRID_LR"),
        ({"grid": {"a": "1..200", "b": "1..200"}}, "grid", "40,000 tasks"),
        ({"grid": {"a": "1..9999999999"}}, "grid.a", "9,999,999,999 tasks"),
        ({"grid": {"a": [1, 2]}, "array": "2"}, "array", "2 is no task of a grid of 2"),
        ({"array": "0-1", "singleton": True, "name": "n"}, "", "`singleton` is for single jobs"),
        ({"array": "0-1", "checkpoint": {"dir": "/c"}}, "checkpoint.dir", "is the same for all"),
        ({"array": "0-999", "notify": {"email": "a@b.org"}}, "notify", "of each of 1,000 tasks"),
        ({"array": "0-1", "outputs": {"m": "/out"}}, "outputs.m", "is the same for all"),
        ({"grid": {"lr": [1]}, "run": "x {l}"}, "run", "{l} is no placeholder here"),
        ({"array": "0-1", "envs": {"A": "{nope}"}}, "envs.A", "{nope} is no placeholder here"),
    ],
)  # fmt: skip
def test_what_makes_no_array_is_refused_with_its_field(
    fields: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(UserError) as told:
        made(**fields)
    assert told.value.field.startswith(field)
    assert problem in told.value.problem
    assert told.value.hint or not field or not problem


def test_an_array_that_would_fill_the_journal_is_refused_before_it_is_made() -> None:
    large = {"environment": {"variables": {"BIG": "x" * 60_000}}}
    assert len(made(**large, array="0-9")) == 10
    with pytest.raises(UserError, match=r"10,000 tasks take 57\d MiB, 128 at most"):
        made(**large, array="0-9999")


def test_a_task_has_its_name_its_index_and_its_values() -> None:
    found = made(
        name="sweep",
        run="train --lr {lr} --seed {seed} --out run-{index} ${lr} {{lr}}",
        grid={"lr": [0.1, "0.01"], "seed": "1..3"},
        array="%2",
        labels={"team": "a"},
        checkpoint={"dir": "/c/{index}"},
        envs={"N": "{seed}"},
        outputs={"m": "s3://bucket/{lr}/{seed}"},
    )
    assert len(found) == 6
    spec, paper = found[5]
    assert spec.roles[0].command[-1] == "train --lr 0.01 --seed 3 --out run-5 ${lr} {lr}"
    assert (spec.name, paper["name"]) == ("sweep[5]", "sweep[5]")
    assert dict(spec.labels)["team"] == "a"
    assert (spec.array_index, spec.array_count, spec.array_most) == (5, 6, 2)
    assert paper["array"] == {"values": {"lr": "0.01", "seed": "3"}}
    assert (paper["checkpoint_dir"], paper["envs"]) == ("/c/5", {"N": "3"})
    assert paper["outputs"]["m"]["to"] == "s3://bucket/0.01/3"
    assert [task[1]["array"]["values"]["seed"] for task in found] == ["1", "2", "3"] * 2


def test_a_placeholder_inside_of_braces_of_json_is_filled() -> None:
    asked = '{"lr": {lr}, "sched": {"seed": {seed}}, "list": [{lr},{lr}], "empty": {}}'
    found = made(run=["train", "--config", asked], grid={"lr": [0.1], "seed": [7]})
    written = found[0][0].roles[0].command[2]
    assert json.loads(written) == {
        "lr": 0.1,
        "sched": {"seed": 7},
        "list": [0.1, 0.1],
        "empty": {},
    }


def test_a_grid_of_one_value_is_an_array_of_one_task() -> None:
    found = made(grid={"lr": [0.1]}, checkpoint={"dir": "/c"})
    assert [(spec.array_index, spec.array_count) for spec, _ in found] == [(0, 1)]


def test_some_tasks_of_a_grid_keep_their_numbers_and_values() -> None:
    found = made(run=["x", "{lr}"], grid={"lr": [1, 2, 3, 4]}, array="1,3%1")
    assert [(spec.array_index, spec.roles[0].command[1]) for spec, _ in found] == [
        (1, "2"),
        (3, "4"),
    ]


def test_a_command_of_a_single_job_keeps_its_braces() -> None:
    job = JobFile.model_validate({"run": "awk '{print}' {lr} {{x}}"})
    assert list(job.tasks()) == []
    assert job.spec().roles[0].command[-1] == "awk '{print}' {lr} {{x}}"


@pytest.mark.parametrize(
    ("word", "means"),
    [
        ("a-7", Tasks("a-7")),
        ("a-7[3]", Tasks("a-7", [3])),
        ("j-7[3]", Tasks("a-7", [3])),
        ("7_3", Tasks("a-7", (3,))),
        ("a-7_3", Tasks("a-7", (3,))),
        ("a-7[0-1,5]", Tasks("a-7", [0, 1, 5])),
        ("j-7", None),
        ("sweep[3]", None),
        ("7", None),
        ("a-", None),
    ],
)
def test_tasks_are_called_as_users_of_slurm_would(word: str, means: Tasks | None) -> None:
    assert tasks_called(word) == means


def test_brackets_without_a_range_are_refused() -> None:
    with pytest.raises(UserError, match="no index and no range"):
        tasks_called("a-7[x]")


def test_ten_thousand_tasks_are_made_within_a_second_or_two() -> None:
    begun_s = time.process_time()
    assert len(made(name="s", run=["x", "{index}"], array="0-9999")) == 10_000
    assert time.process_time() - begun_s < 3
