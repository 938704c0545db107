"""A job file that gives the job that was handed in: for whoever wants to run it once more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.app_spec import COMMANDS
from wattherd.workload.counted_cpu import uncounted
from wattherd.workload.job_array import shown, whole_array
from wattherd.workload.job_file import PRIORITIES, JobFile
from wattherd.workload.job_parts import DIGEST, GRACE_S
from wattherd.workload.notify_spec import ENDINGS

SHELL = ("/bin/sh", "-c")
ORIGIN = "rerun-of"
"""The label of a job that was run again, with the id of the job it was made of."""
SAME = ("processes", "stdin", "workdir", "user", "code", "inputs")
"""Fields that stand in the paper as in the file."""


def file_again(spec: JobSpec, paper: Mapping[str, Any], *, secrets: bool) -> dict[str, Any]:
    """The fields of its file that are not as they are by default, in the order of the reference.

    It waits as long for its begin as it did. A deadline is left out, as it was reckoned from the
    submission, and with it that the job waited for cheap energy; so is the environment of the
    submitter's shell, and without `secrets` where secrets come from and who is told of the job. A
    task of an array becomes a job of its own by this; see `tasks_again`.
    """
    spec = uncounted(spec, paper)
    fields = {
        "name": str(paper.get("name") or ""),
        **_what_runs(spec, paper),
        "gpu_type": list(spec.gpu_models),
        "queue": "" if spec.queue == "default" else spec.queue,
        "priority": _priority(spec.priority),
        "time": _without_empty({
            "expected": _seconds(spec.duration_s), "limit": _seconds(spec.time_limit_s),
        }),
        "power": _power(paper.get("power") or {}),
        "batch": _batch(spec),
        "checkpoint": _without_empty({
            "dir": paper.get("checkpoint_dir"),
            "from": paper.get("checkpoint_from"),
            "every": _seconds(spec.checkpoint_s),
            "grace": None if spec.grace_s == GRACE_S else _seconds(spec.grace_s),
        }),
        "restarts": spec.restarts,
        "backoff": None if spec.backoff_s == 1.0 else _seconds(spec.backoff_s),
        "after": _after(spec),
        "singleton": spec.singleton or None,
        "begin": None if spec.begin_s is None or "defer" in paper
                 else f"in {_seconds(spec.begin_s)}",
        "group": spec.group,
        "envs": dict(paper.get("envs") or {}),
        "secrets": dict(paper.get("secrets") or {}) if secrets else {},
        "container": _container(paper.get("container")),
        "outputs": dict(paper.get("outputs") or {}),
        "s3": _s3(paper.get("s3") or {}),
        "ulimits": {
            name: "unlimited" if value < 0 else value
            for name, value in (paper.get("ulimits") or {}).items()
        },
        "app": _app(paper.get("app")),
        "notify": _notify(paper.get("notify") or {}) if secrets else {},
        **{name: paper.get(name) for name in SAME},
    }  # fmt: skip
    if "labels" in JobFile.model_fields:
        fields["labels"] = {key: value for key, value in spec.labels if key != "name"}
    return _without_empty(fields)


def tasks_again(
    spec: JobSpec,
    paper: Mapping[str, Any],
    made_of: Mapping[str, Any],
    indices: Sequence[int],
    *,
    secrets: bool,
) -> dict[str, Any]:
    """The fields of an array of these tasks, each with the index and the values that it had.

    `spec` and `paper` are those of any task, `made_of` is what the paper of the first one tells.
    """
    fields = file_again(*whole_array(spec, paper, made_of), secrets=secrets)
    at_a_time = "" if spec.array_most is None else f"%{spec.array_most}"
    fields["array"] = f"{shown(indices)}{at_a_time}"
    if made_of.get("grid"):
        fields["grid"] = dict(made_of["grid"])
    return fields


def rerun_of(spec: JobSpec, paper: Mapping[str, Any], *, own: bool) -> dict[str, Any]:
    """The fields of a job that runs the same once more, at once; a label names its origin.

    It waits for nothing that the first one waited for. Secrets, the environment of the shell and
    who is told of it are taken along only where it is the caller's `own` job.
    """
    return _at_once(file_again(spec, paper, secrets=own), paper, spec.id, own=own)


def tasks_rerun(
    spec: JobSpec,
    paper: Mapping[str, Any],
    made_of: Mapping[str, Any],
    indices: Sequence[int],
    *,
    own: bool,
) -> dict[str, Any]:
    """The same for tasks of an array; as `tasks_again`."""
    fields = tasks_again(spec, paper, made_of, indices, secrets=own)
    return _at_once(fields, paper, spec.array, own=own)


def begin_fresh(fields: dict[str, Any]) -> None:
    """Have a job begin without any checkpoint, in a folder of its own."""
    for name in ("dir", "from"):
        fields.get("checkpoint", {}).pop(name, None)


def begin_from(fields: dict[str, Any], folder: str) -> None:
    """Have a job begin with a copy of the checkpoint in a folder.

    One whose file names its folder goes on there, and needs no copy.
    """
    checkpoint = fields.setdefault("checkpoint", {})
    if "dir" not in checkpoint:
        checkpoint["from"] = folder


def _at_once(
    fields: dict[str, Any], paper: Mapping[str, Any], origin: str, *, own: bool
) -> dict[str, Any]:
    for name in ("after", "singleton", "begin"):
        fields.pop(name, None)
    environment = dict(paper.get("environment") or {}) if own else {}
    if environment:
        fields["environment"] = {"variables": environment}
    fields["labels"] = {**fields.get("labels", {}), ORIGIN: origin}
    return fields


def _notify(told: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {name: told.get(name) for name in ("webhook", "email")}
    usual = sorted(told.get("on", ())) == sorted(ENDINGS)
    return _without_empty({"on": [] if usual else list(told.get("on", ())), **kinds})


def _after(spec: JobSpec) -> Any:
    if not (spec.after_any or spec.after_notok):
        return list(spec.after)
    ends = {"ok": spec.after, "any": spec.after_any, "notok": spec.after_notok}
    return {end: list(jobs) for end, jobs in ends.items() if jobs}


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    empty: tuple[Any, ...] = (None, "", [], {})
    return {
        name: value
        for name, value in fields.items()
        if value not in empty and not (value == 0 and name == "restarts")
    }


def _what_runs(spec: JobSpec, paper: Mapping[str, Any]) -> dict[str, Any]:
    if paper.get("launch") != "node":
        return {"taskRoles": {role.name: _role(role) for role in spec.roles}}
    role = spec.roles[0]
    app = paper.get("app") or {}
    usual = COMMANDS.get(str(app.get("kind"))) == _run(role)
    gpus: Any = role.count * role.gpu_count
    if spec.min_width is not None and spec.max_width is not None:
        gpus = {"min": spec.min_width, "max": spec.max_width}
    return {
        "run": None if usual else _run(role),
        "gpus": gpus,
        "cpus_per_gpu": role.cpu_milli / 1000 or None,
        "memory_per_gpu": f"{role.memory_mib}MiB" if role.memory_mib else None,
    }


def _run(role: TaskRole) -> str | list[str]:
    if role.command[:2] == SHELL and len(role.command) == 3:
        return role.command[2]
    return list(role.command)


def _role(role: TaskRole) -> dict[str, Any]:
    return {
        "run": _run(role),
        "taskNumber": role.count,
        "gpus": role.gpu_count,
        **({"cpus": role.cpu_milli / 1000} if role.cpu_milli else {}),
        **({"memory": f"{role.memory_mib}MiB"} if role.memory_mib else {}),
    }


def _priority(number: int) -> int | str | None:
    names = {value: name for name, value in PRIORITIES.items()}
    return None if number == 0 else names.get(number, number)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.12g}s"


def _power(power: Mapping[str, Any]) -> dict[str, Any]:
    slowdown = power.get("max_slowdown")
    bound = isinstance(slowdown, int | float) and math.isfinite(slowdown)
    return _without_empty({
        "cap": None if power.get("cap") == "auto" else power.get("cap"),
        "max_slowdown": slowdown if bound else None,
        "profile": power.get("profile"),
    })  # fmt: skip


def _batch(spec: JobSpec) -> dict[str, Any]:
    if spec.batch_size is None:
        return {}
    return {"global": spec.batch_size, "micro": list(spec.micro_batches)}


def _container(found: Mapping[str, Any] | None) -> dict[str, Any]:
    if not found:
        return {}
    certain = DIGEST.search(str(found["image"])) is not None
    return _without_empty({
        "image": found["image"],
        "runner": found.get("runner"),
        "tag_allowed": None if certain else True,
        "credentials": found.get("credentials"),
        "shm": found.get("shm_bytes"),
    })  # fmt: skip


def _s3(found: Mapping[str, Any]) -> dict[str, Any]:
    usual = JobFile.model_fields["s3"].default.model_dump(exclude_none=True)
    return {name: value for name, value in found.items() if usual.get(name) != value}


def _app(found: Mapping[str, Any] | None) -> dict[str, Any]:
    if not found:
        return {}
    return _without_empty({
        "kind": found["kind"],
        "share": found.get("share"),
        "idle": _seconds(found.get("idle_s")),
        "keep_prefix": found.get("keep_prefix") or None,
    })  # fmt: skip
