"""wattherd's own job files: CSV and JSON lines say the same, and refuse the same."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.native import FIELDS, ROLE_FIELDS, ROLES, SINGLE, read_jobs

FULL = {
    "id": "b",
    "submit_s": 5.0,
    "gpus": 8,
    "gpus_per_task": 2,
    "cpu_milli": 500,
    "memory_mib": 1024,
    "min_width": 1,
    "max_width": 6,
    "gpu_models": ["T4", "P100"],
    "priority": -3,
    "queue": "research",
    "tenant": "lab",
    "user": "ann",
    "after": ["a"],
    "after_any": ["a"],
    "after_notok": ["a"],
    "singleton": True,
    "begin_s": 7.5,
    "duration_s": 60.5,
    "deadline_s": 600.0,
    "time_limit_s": 900.0,
    "restarts": 2,
    "backoff_s": 1.5,
    "grace_s": 30.0,
    "checkpoint_s": 10.0,
    "group": "sweep",
    "profile": "bert",
    "steps": 1000,
    "weight": 2.5,
    "batch_size": 64,
    "target_loss": 0.25,
    "micro_batches": [8, 16],
    "labels": {"team": "vision", "stage": "2"},
}
FIRST = {"id": "a", "submit_s": 0.0, "duration_s": 5.0}


def as_json(tmp_path: Path, *jobs: object) -> Path:
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return path


def as_csv(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def cell(value: object) -> str:
    if isinstance(value, dict):
        return ";".join(f"{key}={text}" for key, text in value.items())
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)


def error(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_jobs(path)
    return caught.value.line().replace(f"{path.parent}/", "")


def test_every_field_of_a_job_can_be_said() -> None:
    assert {*FIELDS, ROLES} == {one.name for one in fields(JobSpec)}
    assert set(ROLE_FIELDS) == {one.name for one in fields(TaskRole)}
    assert set(SINGLE.values()) <= set(ROLE_FIELDS)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    rows = [{name: job.get(name, "") for name in FULL} for job in (FIRST, FULL)]
    lines = [",".join(FULL), *(",".join(cell(value) for value in row.values()) for row in rows)]
    from_json = read_jobs(as_json(tmp_path, FIRST, FULL))
    assert read_jobs(as_csv(tmp_path, *lines)) == from_json
    _, job = from_json
    assert job.roles == (TaskRole(count=4, gpu_count=2, cpu_milli=500, memory_mib=1024),)
    assert (job.labels, job.gpu_models) == ((("team", "vision"), ("stage", "2")), ("T4", "P100"))
    assert (job.priority, job.gpus, job.after) == (-3, 8, ("a",))
    assert (job.after_any, job.after_notok, job.singleton, job.begin_s) == (
        ("a",),
        ("a",),
        True,
        7.5,
    )


@pytest.mark.parametrize("field", ["after", "after_any", "after_notok"])
def test_whoever_is_waited_for_is_in_the_file_and_waits_for_nobody_in_a_circle(
    tmp_path: Path, field: str
) -> None:
    second = {"id": "b", "submit_s": 1}
    assert "unknown job" in error(as_json(tmp_path, FIRST, second | {field: ["z"]}))
    circle = error(as_json(tmp_path, FIRST | {field: ["b"]}, second | {field: ["a"]}))
    assert "wait for each other" in circle


def test_a_flag_is_true_or_false(tmp_path: Path) -> None:
    assert "no" in error(as_csv(tmp_path, "id,submit_s,singleton", "a,0,perhaps"))
    assert "true or false" in error(as_json(tmp_path, FIRST | {"singleton": 1}))


def test_roles_are_described_in_json(tmp_path: Path) -> None:
    roles = [{"count": 2, "gpu_count": 4, "command": ["python", "x.py"]},
             {"name": "ps", "gpu_count": 0, "cpu_milli": 2000}]  # fmt: skip
    (job,) = read_jobs(as_json(tmp_path, FIRST | {"roles": roles}))
    worker, server = job.roles
    assert (worker.count, worker.gpu_count, worker.command) == (2, 4, ("python", "x.py"))
    assert (server.name, server.cpu_milli, job.gpus) == ("ps", 2000, 8)


def test_a_job_without_gpus_is_one_task(tmp_path: Path) -> None:
    (job,) = read_jobs(as_csv(tmp_path, "id,submit_s,gpus,cpu_milli", "a,0,0,4000"))
    assert job.roles == (TaskRole(gpu_count=0, cpu_milli=4000),)


WRONG_CSV = {
    "unknown field": (
        ("id,submit_s,durations", "a,0,1"),
        "jobs.csv:1: durations: unknown field (hint: did you mean 'duration_s'?)",
    ),
    "roles in CSV": (
        ("id,submit_s,roles", "a,0,x"),
        "jobs.csv:1: roles: no column of a CSV file (hint: describe roles in a JSON lines file)",
    ),
    "time goes back": (
        ("id,submit_s", "a,5", "b,4"),
        (
            "jobs.csv:3: submit_s: 4 s is before the line above (5 s) "
            "(hint: sort the rows by time of submission)"
        ),
    ),
    "not a number": (
        ("id,submit_s,duration_s", "a,0,nan"),
        "jobs.csv:2: duration_s: 'nan' is not a number",
    ),
    "negative": (
        ("id,submit_s,duration_s", "a,0,-1"),
        "jobs.csv:2: duration_s: '-1' is negative (hint: seconds, zero or more)",
    ),
    "the job itself refuses": (
        ("id,submit_s,gpus,min_width,max_width", "a,0,4,3,2"),
        "jobs.csv:2: min_width: widths 3 to 2 are empty (hint: 1 <= min <= max)",
    ),
    "GPUs do not divide": (
        ("id,submit_s,gpus,gpus_per_task", "a,0,6,4"),
        (
            "jobs.csv:2: gpus_per_task: 6 GPUs are no whole number of tasks with 4 each "
            "(hint: a divisor of `gpus`)"
        ),
    ),
    "no id": (
        ("id,submit_s", ",1"),
        "jobs.csv:2: id: is missing (hint: every job needs an id and a time of submission)",
    ),
    "an unknown parent": (
        ("id,submit_s,after", "first,0,", "second,1,frist"),
        "jobs.csv:3: after: unknown job 'frist' (hint: did you mean 'first'?)",
    ),
    "a cycle": (
        ("id,submit_s,after", "a,0,c", "b,1,a", "c,2,b", "d,3,c"),
        (
            "jobs.csv:4: after: jobs wait for each other: c after b after a after c "
            "(hint: remove one of these dependencies)"
        ),
    ),
    "labels": (
        ("id,submit_s,labels", "a,0,vision"),
        (
            "jobs.csv:2: labels: 'vision' is not labels "
            "(hint: team=vision;stage=2, or an object in JSON)"
        ),
    ),
}


@pytest.mark.parametrize("what", WRONG_CSV)
def test_bad_cells_are_named(what: str, tmp_path: Path) -> None:
    lines, told = WRONG_CSV[what]
    assert error(as_csv(tmp_path, *lines)) == told


WRONG_JSON = {
    "unknown field": (
        FIRST | {"rols": []},
        "jobs.jsonl:1: rols: unknown field (hint: did you mean 'roles'?)",
    ),
    "unknown field of a role": (
        FIRST | {"roles": [{"cout": 2}]},
        "jobs.jsonl:1: roles[0]: cout: unknown field (hint: did you mean 'count'?)",
    ),
    "a text for a number": (
        FIRST | {"duration_s": "x"},
        "jobs.jsonl:1: duration_s: 'x' is not seconds, zero or more (hint: a plain decimal number)",
    ),
    "a truth value for a number": (
        FIRST | {"gpus": True},
        "jobs.jsonl:1: gpus: 'True' is not a whole number of zero or more",
    ),
    "roles beside GPUs": (
        FIRST | {"roles": [{}], "gpus": 2},
        "jobs.jsonl:1: gpus: stands beside `roles` (hint: say it in the roles)",
    ),
    "roles are no list": (
        FIRST | {"roles": {"count": 1}},
        'jobs.jsonl:1: roles: is no list of objects (hint: [{"name": "worker", "count": 4}])',
    ),
}


@pytest.mark.parametrize("what", WRONG_JSON)
def test_bad_objects_are_named(what: str, tmp_path: Path) -> None:
    job, told = WRONG_JSON[what]
    assert error(as_json(tmp_path, job)) == told


def test_what_is_no_json_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"id": "a", "submit_s": 0}\n{"id": \n')
    assert error(path).startswith("jobs.jsonl:2: no JSON")
