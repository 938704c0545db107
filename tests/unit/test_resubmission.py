"""A job that was handed in becomes a file again, and the file the same job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.journal.job_history import PastJob
from wattherd.server.web import submission
from wattherd.workload.job_file import JobFile
from wattherd.workload.resubmission import file_again, rerun_of, tasks_again

IMAGE = "example.org/trainer@sha256:" + "a" * 64
FILES: list[dict[str, Any]] = [
    {"run": "true"},
    {"run": ["python", "-m", "train", "a,b"], "gpus": 0, "name": "resnet"},
    {"run": "python train.py\npython eval.py", "gpus": {"min": 2, "max": 8}, "queue": "nlp"},
    {"run": "x", "gpus": 4, "gpu_type": ["A100", "H100"], "cpus_per_gpu": 1.5,
     "memory_per_gpu": "3GiB", "priority": "high", "restarts": 3, "backoff": "10s"},
    {"run": "x", "time": {"expected": "90m", "limit": "1.5d"}, "priority": -3},
    {"run": "x", "power": {"cap": "250W", "max_slowdown": 1.2, "profile": "resnet50"}},
    {"run": "x", "power": {"cap": "off"}, "batch": {"global": 256, "micro": [64, 32]}},
    {"run": "x", "checkpoint": {"dir": "/c", "every": "10m", "grace": "2m"}, "group": "search"},
    {"run": "x", "checkpoint": {"from": "/c", "every": "10m"}, "stdin": True},
    {"run": "x", "envs": {"EPOCHS": 90}, "secrets": {"KEY": "env:KEY"}, "after": ["j-1"],
     "workdir": "/home/ann", "user": "ann", "processes": 7, "ulimits": {"core": 0,
     "memlock": "unlimited", "nofile": 1024}},
    {"run": "x", "container": {"image": IMAGE, "runner": "podman", "shm": "1GiB"}},
    {"run": "x", "container": {"image": "trainer:1", "tag_allowed": True}},
    {"run": "x", "inputs": {"data": "s3://bucket/data"}, "code": "/home/ann/code",
     "outputs": {"model": "s3://bucket/model", "log": {"to": "/out", "when": "checkpoint"}},
     "s3": {"region": "eu", "tries": 3}},
    {"run": "x", "name": "n", "singleton": True, "labels": {"team": "a"},
     "after": {"ok": ["j-1", "a-2"], "any": ["j-3"], "notok": ["j-4"]}},
    {"run": "x", "notify": {"email": "ann@example.org", "on": ["started", "failed"]}},
    {"run": "x", "notify": {"webhook": "https://hooks.example.org/x"}, "begin": "in 2h"},
    {"app": {"kind": "jupyter", "idle": "1h", "share": "tenant"}},
    {"taskRoles": {"server": {"run": "serve", "cpus": 2, "gpus": 0, "memory": "2GiB"},
                   "worker": {"run": ["w"], "taskNumber": 3}}},
]  # fmt: skip


NOW = datetime(2026, 11, 23, 18, tzinfo=UTC)
ARRAYS: list[dict[str, Any]] = [
    {"run": "x", "array": "0-9:3%2", "name": "s"},
    {"run": ["x", "{lr}", "{{lr}}", "${lr}"], "grid": {"lr": [0.1, 0.01], "seed": "1..2"},
     "labels": {"team": "a"}, "array": "%3"},
    {"run": "x", "array": "1,4", "checkpoint": {"dir": "/c/{index}"}, "envs": {"A": "{index}"},
     "outputs": {"m": "/out/{index}"}, "inputs": {"d": "/in/{index}"}, "workdir": "/w/{index}"},
    {"taskRoles": {"a": {"run": "a {index}"}, "b": {"run": ["b", "{index}"]}}, "array": "0-3"},
]  # fmt: skip


def _taken(document: dict[str, Any]) -> tuple[Any, Any]:
    job = JobFile.model_validate(document)
    return job.spec(at=NOW), job.paper()


@pytest.mark.parametrize("document", ARRAYS, ids=str)
def test_tasks_of_an_array_made_again_are_the_same_with_their_indices(
    document: dict[str, Any],
) -> None:
    tasks = list(JobFile.model_validate(document).tasks(at=NOW))
    made_of = tasks[0][1]["array"]
    for chosen in (tasks, tasks[-1:], tasks[1:3]):
        spec, paper = chosen[0]
        indices = [one.array_index for one, _ in chosen]
        fields = tasks_again(spec, paper, made_of, indices, secrets=True)
        again = list(JobFile.model_validate(fields).tasks(at=NOW))
        assert [replace(one, array_count=len(tasks)) for one, _ in again] == [
            one for one, _ in chosen
        ]
        for (_, made), (_, first) in zip(again, chosen, strict=True):
            assert {**made, "array": made["array"].get("values")} == {
                **first,
                "array": first["array"].get("values"),
            }


def test_a_form_filled_from_a_task_makes_that_task_again() -> None:
    tasks = list(JobFile.model_validate(ARRAYS[1]).tasks())
    pasts = [
        PastJob(spec=replace(spec, user="ann"), paper=paper, by="ann") for spec, paper in tasks
    ]
    ann = Caller(user="ann", role=Role.USER)
    filled = submission.from_job(pasts[2], ann, pasts[0])
    sent = {**filled.texts, "rest": filled.rest}
    made = submission.document_of(submission.typed(sent))
    ((spec, paper),) = submission.job_of(made, None, ann, also=False).tasks()
    assert (spec.array_index, spec.array_count, spec.array_most) == (2, 1, 3)
    assert (spec.roles, paper["array"]["values"]) == (
        tasks[2][0].roles,
        {"lr": "0.01", "seed": "1"},
    )


def test_who_runs_somebody_elses_job_again_does_not_have_its_user_told() -> None:
    document = {"run": "x", "notify": {"email": "ann@example.org"}, "begin": "in 2h"}
    spec, paper = _taken(document)
    assert "notify" not in rerun_of(spec, paper, own=False)
    own = rerun_of(spec, paper, own=True)
    assert (own["notify"], "begin" in own) == ({"email": "ann@example.org"}, False)


@pytest.mark.parametrize("document", FILES, ids=str)
def test_a_file_made_again_gives_the_same_job(document: dict[str, Any]) -> None:
    spec, paper = _taken(document)
    again = file_again(spec, paper, secrets=True)
    assert _taken(again) == (spec, paper)


@pytest.mark.parametrize("document", FILES, ids=str)
def test_a_form_filled_from_a_job_gives_the_same_job(document: dict[str, Any]) -> None:
    spec, paper = _taken(document)
    past = PastJob(spec=replace(spec, id="j-9", user="ann"), paper=paper, by="ann")
    ann = Caller(user="ann", role=Role.USER)
    filled = submission.from_job(past, ann)
    sent = {**filled.texts, "rest": filled.rest, "from": "j-9"}
    made = submission.document_of(submission.typed(sent))
    job = submission.job_of(made, past, ann, also=True)
    assert (job.spec(at=NOW), job.paper()) == (spec, paper)


def test_secrets_and_environment_stay_with_their_owner() -> None:
    spec, paper = _taken({"run": "x", "secrets": {"KEY": "env:KEY"}})
    paper |= {"environment": {"VIRTUAL_ENV": "/home/ann/env"}}
    past = PastJob(spec=replace(spec, id="j-9", user="ann", tenant="a"), paper=paper, by="ann")
    own = Caller(user="ann", role=Role.USER, tenant="a")
    for other in (
        Caller(user="ben", role=Role.USER, tenant="a"),
        Caller(user="ann", role=Role.USER, tenant="b"),
        Caller(user="root", role=Role.ADMIN),
    ):
        filled = submission.from_job(past, other)
        assert (filled.variables, "KEY" in filled.rest) == (0, False)
        job = submission.job_of({"run": "x"}, past, other, also=True)
        assert "environment" not in job.paper()
    assert (submission.from_job(past, own).variables) == 1
    job = submission.job_of({"run": "x"}, past, own, also=True)
    assert job.paper()["environment"] == {"VIRTUAL_ENV": "/home/ann/env"}
    job = submission.job_of({"run": "x"}, past, own, also=False)
    assert "environment" not in job.paper()


@pytest.mark.parametrize(
    ("sent", "problem", "fault"),
    [
        ({}, "needs either `run` or `taskRoles`", ""),
        ({"run": "x", "gpus": "some"}, "", "gpus"),
        ({"run": "x", "limit": "12"}, "", "limit"),
        ({"run": "x", "restarts": "-1"}, "", "restarts"),
        ({"run": "x", "rest": "envz: {}"}, "unknown field", "rest"),
        ({"run": "x", "rest": "- a"}, "is no mapping of fields", "rest"),
        ({"run": "x", "rest": "a: [1"}, "is no YAML at line", "rest"),
        ({"run": "x", "rest": "envs: &a {A: b}\nulimits: *a"}, "aliases are not taken", "rest"),
        ({"run": "x", "rest": "[" * 5000}, "is no YAML", "rest"),
        ({"run": "x", "rest": "a" * 30_000}, "is longer than", "rest"),
        ({"run": "x", "rest": "1: 2"}, "is no mapping of fields", "rest"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(
    sent: dict[str, str], problem: str, fault: str
) -> None:
    filled = submission.typed(sent)
    with pytest.raises(UserError) as told:
        _made(filled)
    filled.error = told.value
    assert problem in told.value.problem
    assert filled.fault == fault


def _made(filled: submission.FilledForm) -> JobFile:
    ann = Caller(user="ann", role=Role.USER)
    return submission.job_of(submission.document_of(filled), None, ann, also=False)


def test_lines_end_as_shells_want_them() -> None:
    made = submission.document_of(submission.typed({"run": "a\r\nb", "rest": "envs:\r\n  A: 1"}))
    assert made == {"run": "a\nb", "envs": {"A": 1}}
