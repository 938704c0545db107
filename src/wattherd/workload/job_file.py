"""Job files: what a user writes to have a job run, and what core and runtime make of it.

One YAML document; only `run` (or `taskRoles`) is required. The JSON Schema for editors is
`docs/reference/job.schema.json`. From a file come two things: the `JobSpec` that the core decides
on, and the paper that goes with it, of which the core knows nothing: environment, folders, secrets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from wattherd import units
from wattherd.devices.wire import file_places as places
from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole
from wattherd.validation import misfit
from wattherd.workload.app_spec import AppSpec, Kind
from wattherd.workload.begin_time import begin_time, moment
from wattherd.workload.job_array import MOST_INDEX, job_array, tasks
from wattherd.workload.job_environment import Environment
from wattherd.workload.job_parts import (
    MOST_COUNT,
    MOST_DEVICES,
    MOST_NAME,
    MOST_RESTARTS,
    SHARED,
    AfterSpec,
    BatchSpec,
    CheckpointSpec,
    ContainerSpec,
    Label,
    Limit,
    LimitName,
    Name,
    PowerSpec,
    RoleSpec,
    Size,
    StrictModel,
    TargetSpec,
    Text,
    Time,
    TimeSpec,
    WidthRange,
    no_number,
    none_of,
)
from wattherd.workload.notify_spec import NotifySpec
from wattherd.workload.scenario import load
from wattherd.workload.yaml_lines import lines_of

# --- The parts of a job file that say where data, code and results are, and how to get there.


def _is_place(uri: str) -> str:
    places.parse(uri)
    return uri


def _is_target(uri: str) -> str:
    if isinstance(places.parse(uri), places.GitPlace):
        raise ValueError(f"{uri!r}: results cannot be taken to a git repository")  # noqa: TRY004
    return uri


Place = Annotated[str, AfterValidator(_is_place)]
Target = Annotated[str, AfterValidator(_is_target)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OutputSpec(_Strict):
    """Where a result is taken, and when: after success only, or also at stops."""

    to: Target
    when: Literal["success", "checkpoint"] = Field(
        default="success", description="`checkpoint`: also whenever it stops with its state saved"
    )


class S3Spec(_Strict):
    """How to reach s3:// places. Keys come as secrets (AWS_ACCESS_KEY_ID, ...) or by profile."""

    model_config = SHARED

    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/@\s]+/?$", description="of a store that is not AWS's"
    )
    region: str | None = None
    profile: str | None = Field(default=None, description="of the credentials file")
    credentials: str | None = Field(default=None, description="file, if not ~/.aws/credentials")
    ca: str | None = Field(default=None, description="file of the authority of its certificate")
    addressing: Literal["auto", "path", "virtual"] = "auto"
    anonymous: bool = Field(default=False, description="public buckets, asked without credentials")
    tries: int = Field(default=6, ge=1, le=100, description="of each request, pauses growing")


PRIORITIES = {"low": -10, "normal": 0, "high": 10}
Level = Literal["low", "normal", "high"] | Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)]
"""A priority as people write it."""


def priority_of(level: Level) -> int:
    """The number of a priority; higher ones go first."""
    return PRIORITIES[level] if isinstance(level, str) else level


MIB = 1 << 20
MOST_TOLD = 100
"""Tasks of an array that may notify somebody: each tells of itself."""
HINT = "see docs/reference/job-yaml.md"


class JobFile(StrictModel):
    """A job as its user describes it."""

    name: str = Field(default="", max_length=80, pattern=r"^[\w.-]*$")
    labels: dict[Label, str] = none_of(dict, "NAME: VALUE, by which lists of jobs can be filtered")
    kind: str = Field(
        default="",
        max_length=80,
        pattern=r"^[\w./+-]*$",
        description="jobs of one kind take equally long on the same devices: they learn together",
    )
    run: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="a command line, or a list"
    )
    target: TargetSpec = TargetSpec()
    gpus: Annotated[int, Field(ge=0, le=MOST_DEVICES)] | WidthRange = Field(
        default=1, description="devices: GPUs, or slots where there is none"
    )
    gpu_type: str | list[str] = none_of(list, "any of these models")
    cpus_per_gpu: float = Field(default=0, ge=0, le=1e6)
    memory_per_gpu: Size | None = None
    queue: str = Field(default="default", max_length=MOST_NAME)
    priority: Level = "normal"
    time: TimeSpec = TimeSpec()
    power: PowerSpec = PowerSpec()
    batch: BatchSpec | None = Field(
        default=None, description="lets the micro-batch be chosen, to draw fewer watts"
    )
    checkpoint: CheckpointSpec = CheckpointSpec()
    restarts: int = Field(default=0, ge=0, le=MOST_RESTARTS)
    backoff: Time = "1s"
    after: list[str] | AfterSpec = none_of(
        list, "ids of jobs that must succeed first; or `ok`, `any`, `notok`"
    )
    singleton: bool = Field(
        default=False, description="wait until all earlier jobs of this name and user are over"
    )
    begin: str | datetime | None = Field(
        default=None, description="not before: 2026-11-23T18:00, 18:00, or `in 2h`"
    )
    array: str | Annotated[int, Field(ge=0, le=MOST_INDEX)] | None = Field(
        default=None, description="indices of its tasks: 0-9, 1,4,7 or 0-20:5; %3: three at a time"
    )
    grid: dict[str, str | list[str | int | float | bool]] = none_of(
        dict, "NAME: values, a list or 1..5; a task for every combination"
    )
    group: str = Field(
        default="",
        max_length=MOST_NAME,
        description="name of a search group of which this is a trial",
    )
    envs: dict[str, str | int | float] = none_of(dict)
    export: str | list[str] | None = Field(
        default=None,
        description="of the submitter's shell: ALL, NONE, NAME or NAME=VALUE; read by `submit`",
    )
    environment: Environment | None = Field(
        default=None, description="what `submit` has chosen by `export`"
    )
    secrets: dict[str, str] = none_of(dict, "NAME: file:/path or env:NAME")
    workdir: str | None = None
    user: str | None = Field(
        default=None, description="system user to run as (root's service only)"
    )
    container: ContainerSpec | None = None
    inputs: dict[Name, Place] = none_of(dict, "brought to $WATTHERD_INPUTS/NAME before the start")
    outputs: dict[Name, Target | OutputSpec] = none_of(
        dict, "$WATTHERD_OUTPUTS/NAME is taken there after success"
    )
    code: Place | None = Field(
        default=None, description="a folder or git repository; a copy is where tasks begin"
    )
    stdin: bool = Field(
        default=False, description="keep the input of its first task open, for `wattherd attach`"
    )
    s3: S3Spec = S3Spec()
    processes: int | None = Field(
        default=None, ge=1, le=MOST_COUNT, description="most at a time; else 4096"
    )
    ulimits: dict[LimitName, Limit] = none_of(
        dict, "of each process: numbers, sizes or `unlimited`"
    )
    task_roles: dict[str, RoleSpec] = none_of(dict, alias="taskRoles")
    notify: NotifySpec | None = Field(
        default=None, description="who is told what becomes of it: `on`, `webhook`, `email`"
    )
    app: AppSpec | None = Field(
        default=None, description="it serves pages: jupyter, vscode, or web"
    )

    @field_validator("begin", mode="before")
    @classmethod
    def _is_begin(cls, begin: Any) -> Any:
        if isinstance(begin, str):
            try:
                begin_time(begin, datetime(2000, 1, 1, tzinfo=UTC))
            except UserError as error:
                raise ValueError(f"{error.problem}: {error.hint}") from None
        return no_number(begin)

    @field_validator("app", mode="before", json_schema_input_type=AppSpec | Kind | None)
    @classmethod
    def _kind_alone(cls, app: Any) -> Any:
        """`app: jupyter` is short for its kind."""
        return {"kind": app} if isinstance(app, str) else app

    @model_validator(mode="before")
    @classmethod
    def _sound_texts(cls, document: Any) -> Any:
        """No text may hold what neither a file nor a process can: half a character, or a NUL."""
        try:
            text = json.dumps(document, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half a character") from None
        if b"\\u0000" in text:
            raise ValueError("a text holds a NUL character")
        return document

    @model_validator(mode="after")
    def _something_to_run(self) -> JobFile:
        if self.run is None and self.app is not None and not self.task_roles:
            self.run = self.app.command
        if (self.run is None) == (not self.task_roles):
            raise ValueError("needs either `run` or `taskRoles`")
        if "name" in self.labels:
            raise ValueError("the label `name` is the job's own `name`")
        if self.singleton and not self.name:
            raise ValueError("`singleton` needs a `name`")
        if self.singleton and self.is_array:
            raise ValueError("`singleton` is for single jobs; of an array `%1` lets one run")
        return self

    @property
    def is_array(self) -> bool:
        """Whether it describes many jobs instead of one."""
        return self.array is not None or bool(self.grid)

    def check_array(self) -> None:
        """Whether its tasks can be made.

        Raises:
            UserError: ranges, axes or placeholders make no array.
        """
        next(self.tasks(), None)

    def tasks(
        self, *, user: str = "", tenant: str = "", at: datetime | None = None
    ) -> Iterator[tuple[JobSpec, dict[str, Any]]]:
        """The spec and the paper of every task of an array; nothing of a single job.

        Raises:
            UserError: as `spec`, and where ranges, axes or placeholders make no array.
        """
        array = job_array(self.array, self.grid)
        if array is not None and self.notify is not None and len(array.indices) > MOST_TOLD:
            problem = f"would tell of each of {len(array.indices):,} tasks, {MOST_TOLD} at most"
            hint = "let a job with `after: {any: [ARRAY]}` and `notify` follow the array"
            raise UserError(problem, field="notify", hint=hint)
        if array is not None:
            yield from tasks(array, self.spec(user=user, tenant=tenant, at=at), self.paper())

    def after_spec(self) -> AfterSpec:
        """The jobs that it waits for, by the end that is needed."""
        return self.after if isinstance(self.after, AfterSpec) else AfterSpec(ok=self.after)

    def spec(self, *, user: str = "", tenant: str = "", at: datetime | None = None) -> JobSpec:
        """What the core decides on; id and time of submission are set by whoever takes it in.

        `at` is now, where a deadline is to be reckoned from it: `deadline_s` are seconds from then.

        Raises:
            UserError: values that no scheduler could serve.
        """
        width = self.gpus if isinstance(self.gpus, WidthRange) else None
        time, after = self.time, self.after_spec()
        return JobSpec(
            id="new",
            submit_s=0.0,
            roles=self._roles(),
            min_width=width.min if width else None,
            max_width=width.max if width else None,
            gpu_models=tuple([self.gpu_type] if isinstance(self.gpu_type, str) else self.gpu_type),
            priority=priority_of(self.priority),
            queue=self.queue,
            tenant=tenant,
            user=user,
            after=tuple(after.ok),
            after_any=tuple(after.any),
            after_notok=tuple(after.notok),
            singleton=self.singleton,
            begin_s=begin_as_written(self.begin, at),
            duration_s=_seconds(time.expected),
            time_limit_s=_seconds(time.limit),
            deadline_s=_until(time.deadline, at),
            restarts=self.restarts,
            backoff_s=units.seconds(self.backoff),
            grace_s=units.seconds(self.checkpoint.grace),
            checkpoint_s=_seconds(self.checkpoint.every),
            group=self.group,
            profile=self.kind,
            target_loss=self.target.loss,
            power_profile=self.power.profile,
            batch_size=None if self.batch is None else self.batch.global_,
            micro_batches=() if self.batch is None else self.batch.sizes(),
            labels=(("name", self.name),) * bool(self.name) + tuple(sorted(self.labels.items())),
        )

    def _roles(self) -> tuple[TaskRole, ...]:
        if self.run is not None:
            count = self.gpus.max if isinstance(self.gpus, WidthRange) else self.gpus
            return (
                TaskRole(
                    count=max(1, count),
                    gpu_count=min(1, count),
                    cpu_milli=round(self.cpus_per_gpu * 1000),
                    memory_mib=_mib(self.memory_per_gpu),
                    command=_command(self.run),
                ),
            )
        return tuple(
            TaskRole(
                name=name,
                count=role.count,
                gpu_count=role.gpus,
                cpu_milli=round(role.cpus * 1000),
                memory_mib=_mib(role.memory),
                command=_command(role.run),
            )
            for name, role in self.task_roles.items()
        )

    def paper(self) -> dict[str, Any]:
        """What goes with it: plain data, without the value of any secret."""
        environment = {} if self.environment is None else self.environment.here()
        return {
            **({"environment": environment} if environment else {}),
            **({} if self.notify is None else {"notify": self.notify.model_dump(mode="json")}),
            **({"stdin": True} if self.stdin else {}),
            **({} if self.time.defer is None else {"defer": {"by": self.time.defer}}),
            "name": self.name,
            "launch": "node" if self.run is not None else "task",
            "envs": {name: str(value) for name, value in self.envs.items()},
            "secrets": dict(self.secrets),
            "workdir": self.workdir,
            "checkpoint_dir": self.checkpoint.dir,
            **({"checkpoint_from": self.checkpoint.from_} if self.checkpoint.from_ else {}),
            "user": self.user,
            "container": None if self.container is None else self.container.paper(),
            "inputs": dict(self.inputs),
            "outputs": {
                name: {"to": one, "when": "success"} if isinstance(one, str) else one.model_dump()
                for name, one in self.outputs.items()
            },
            "s3": self.s3.model_dump(exclude_none=True),
            "processes": self.processes,
            "ulimits": {name: _limit(value) for name, value in self.ulimits.items()},
            "code": self.code,
            "app": None if self.app is None else self.app.paper(),
            "power": self.power.model_dump(mode="json"),
        }


def read_job(path: Path) -> JobFile:
    """The job of a file; `workdir` and the checkpoint's folder are seen from the file.

    Raises:
        UserError: unreadable, no YAML, an unknown or wrong field, with the file's name.
    """
    document = load(path, hint=HINT)
    with lines_of(path):
        job = validated_job(document, str(path))
    return seen_from(job, path.parent.resolve())


def seen_from(job: JobFile, folder: Path) -> JobFile:
    """The job with `workdir` and the checkpoint's folder as they are seen from `folder`."""
    checkpoint = job.checkpoint
    for name in ("dir", "from_"):
        if getattr(checkpoint, name) is not None:
            place = str(folder / getattr(checkpoint, name))
            checkpoint = checkpoint.model_copy(update={name: place})
    workdir = str(folder / (job.workdir or "."))
    return job.model_copy(update={"workdir": workdir, "checkpoint": checkpoint})


def validated_job(document: Mapping[str, Any], where: str) -> JobFile:
    """The job that a document describes.

    Raises:
        UserError: an unknown or wrong field.
    """
    try:
        job = JobFile.model_validate(document)
        job.spec()
        job.check_array()
    except ValidationError as problem:
        raise misfit(problem, where, JobFile, hint=HINT) from None
    except UserError as error:
        raise UserError(error.problem, where=where, field=error.field, hint=error.hint) from None
    return job


def _command(run: str | list[str]) -> tuple[str, ...]:
    """A list is run as it stands, a text by the shell."""
    return ("/bin/sh", "-c", run) if isinstance(run, str) else tuple(run)


def _limit(value: int | str) -> int:
    """As the kernel has it: -1 is without limit."""
    return -1 if value == "unlimited" else units.size_bytes(str(value))


def _seconds(text: Text | None) -> float | None:
    return None if text is None else units.seconds(text)


def begin_as_written(begin: str | datetime | None, at: datetime | None) -> float | None:
    """Seconds from `at` to the time that is meant, in this machine's zone."""
    if isinstance(begin, str) and at is not None:
        begin = begin_time(begin, at)
    return None if isinstance(begin, str) else _until(begin, at, "begin")


def _until(
    deadline: datetime | None, at: datetime | None, field: str = "time.deadline"
) -> float | None:
    if deadline is None or at is None:
        return None
    try:
        return max(0.0, (moment(deadline) - at).total_seconds())
    except OverflowError:
        raise UserError(f"{deadline} is out of range", field=field) from None


def _mib(text: Text | None) -> int:
    return 0 if text is None else math.ceil(units.size_bytes(str(text)) / MIB)
