"""The parts of a job file, each checked by itself: widths, times, batches, containers, roles."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from wattherd import units
from wattherd.errors import UserError

Text = str | int | float
GRACE_S = 30.0
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
MOST = 1e18
"""More bytes or watts than anybody has."""
MOST_S = 1e10
"""More seconds than anybody has, and few enough that dates can be reckoned with them."""
MOST_DEVICES = MOST_RESTARTS = 1_000_000
MOST_NAME = 200
"""Characters of a queue's or a group's name."""
MOST_COUNT = 1_000_000_000
"""Of whatever else is counted. Every number of a job file has an upper bound: the core reckons with
64 bits and with floats, and a number that is none there would stop it for everybody."""


def _by(parse: Any, most: float = MOST) -> AfterValidator:
    """Checks a text by the function that reads it later."""

    def check(value: Any) -> Any:
        if value is not None:
            try:
                found = parse(value)
            except UserError as error:
                raise ValueError(error.line()) from None
            if not 0 <= found < most:
                raise ValueError(f"{value!r} is out of range")
        return value

    return AfterValidator(check)


Time = Annotated[Text, _by(units.seconds, MOST_S)]
Size = Annotated[Text, _by(lambda value: units.size_bytes(str(value)))]
Watts = Annotated[Text, _by(units.watts)]


def _is_limit(value: int | str) -> int | str:
    if value != "unlimited" and units.size_bytes(str(value)) >= MOST:
        raise ValueError("is out of range")
    return value


Name = Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w./-]{0,62}$")]
Limit = Annotated[int | str, AfterValidator(_is_limit)]
LimitName = Literal["core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack"]


SHARED = ConfigDict(frozen=True)
"""Of parts that most jobs leave as they are: what cannot change is not copied for each of them."""


def none_of(
    kind: type[dict[Any, Any] | list[Any]], description: str | None = None, **more: Any
) -> Any:
    """A field that is empty unless it is written; a default that stood here would be copied.

    Copying takes ten times as long as making another, for each field of each job.
    """
    shown: dict[str, Any] = {"default": kind()}
    return Field(default_factory=kind, description=description, json_schema_extra=shown, **more)


class StrictModel(BaseModel):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class WidthRange(StrictModel):
    """From so many devices to so many: the job is elastic."""

    min: int = Field(ge=1, le=MOST_DEVICES)
    max: int = Field(ge=1, le=MOST_DEVICES)

    @model_validator(mode="after")
    def _ascend(self) -> WidthRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


def no_number(time: Any) -> Any:
    """A time as it was written: YAML makes a number of `18:00`, which would have been in 1970.

    Raises:
        ValueError: it is a number.
    """
    if isinstance(time, int | float):
        message = f"{time} is a number: put times in quotes, as in '18:00'"
        raise ValueError(message)  # noqa: TRY004 - what pydantic reports
    return time


class TimeSpec(StrictModel):
    """How long it takes, may take, by when it is wanted, and whether it waits for cheap energy."""

    model_config = SHARED

    expected: Time | None = None
    limit: Time | None = None
    deadline: datetime | None = None
    defer: Literal["cost", "carbon"] | None = Field(
        default=None,
        description="begin when that is lowest, early enough for the deadline",
    )

    @field_validator("limit")
    @classmethod
    def _leaves_time(cls, limit: Any) -> Any:
        if limit is not None and units.seconds(limit) <= 0:
            raise ValueError(f"{limit} leaves no time: leave it out for no limit")
        return limit

    @field_validator("deadline", mode="before")
    @classmethod
    def _is_date(cls, deadline: Any) -> Any:
        return no_number(deadline)

    @model_validator(mode="after")
    def _can_be_deferred(self) -> TimeSpec:
        if self.defer is not None and self.deadline is None:
            raise ValueError("`defer` needs a `deadline`: how long it may wait")
        if self.defer is not None and self.expected is None and self.limit is None:
            raise ValueError("`defer` needs `expected` or `limit`: how long it takes")
        return self


class PowerSpec(StrictModel):
    """`cap: auto` leaves it to wattherd, a power fixes it, `off` forbids caps."""

    model_config = SHARED

    cap: Literal["auto", "off"] | Watts = "auto"
    max_slowdown: float = Field(default=math.inf, ge=1)
    profile: str = ""


class AfterSpec(StrictModel):
    """Jobs whose end is waited for, by the end that is needed."""

    ok: list[str] = none_of(list, "these must succeed first")
    any: list[str] = none_of(list, "these must be over, however they ended")
    notok: list[str] = none_of(list, "these must end without success")

    def all(self) -> list[str]:
        """Every job that is named, once."""
        return list(dict.fromkeys([*self.ok, *self.any, *self.notok]))


class MicroSpec(StrictModel):
    """From so many samples at once to so many: halved from the most down."""

    min: int = Field(ge=1, le=MOST_COUNT)
    max: int = Field(ge=1, le=MOST_COUNT)

    @model_validator(mode="after")
    def _ascend(self) -> MicroSpec:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    def sizes(self) -> tuple[int, ...]:
        """The sizes, largest first."""
        halves = (self.max >> power for power in range(self.max.bit_length()))
        return tuple(size for size in halves if size >= self.min)


class BatchSpec(StrictModel):
    """How a job may be told to train: `global` samples a step stay, `micro` at once may vary."""

    global_: int = Field(
        ge=1, le=MOST_COUNT, alias="global", description="samples of a step over all ranks"
    )
    micro: MicroSpec | list[Annotated[int, Field(ge=1, le=MOST_COUNT)]] = Field(
        description="samples at once: a range, or the sizes that are possible"
    )

    def sizes(self) -> tuple[int, ...]:
        """The sizes of micro-batches, largest first."""
        if isinstance(self.micro, MicroSpec):
            return self.micro.sizes()
        return tuple(sorted(set(self.micro), reverse=True))


class TargetSpec(StrictModel):
    """What a training is to reach."""

    loss: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="training ends once its loss is this; tells planners how long it will last",
    )


class CheckpointSpec(StrictModel):
    """Where checkpoints are kept, how often they are written, and the grace for the last one."""

    model_config = SHARED

    dir: str | None = None
    from_: str | None = Field(
        default=None,
        alias="from",
        description="a folder, a copy of which is the checkpoint that the first run finds",
    )
    every: Time | None = None
    grace: Time = f"{GRACE_S:g}s"

    @model_validator(mode="after")
    def _one_place(self) -> CheckpointSpec:
        if self.dir is not None and self.from_ is not None:
            raise ValueError("`dir` holds what it holds: leave `from` out, or `dir`")
        return self


class ContainerSpec(StrictModel):
    """An image that is run by docker or podman; by digest, unless `tag_allowed`."""

    image: str = Field(pattern=r"^[A-Za-z0-9][\w./:@-]*$")
    runner: Literal["docker", "podman"] = "docker"
    tag_allowed: bool = Field(default=False, description="a tag may mean another image tomorrow")
    credentials: str | None = Field(
        default=None, description="a registry's login file (docker: one called config.json)"
    )
    shm: Size | None = Field(default=None, description="shared memory, for loaders of data")

    @model_validator(mode="after")
    def _is_certain(self) -> ContainerSpec:
        if not (self.tag_allowed or DIGEST.search(self.image)):
            raise ValueError("image has no digest (write NAME@sha256:..., or tag_allowed: true)")
        if (
            self.runner == "docker"
            and self.credentials
            and not self.credentials.endswith("/config.json")
        ):
            raise ValueError("docker reads credentials from a file called config.json only")
        return self

    def paper(self) -> dict[str, Any]:
        """As the runtime has it."""
        return {
            "image": self.image,
            "runner": self.runner,
            "credentials": self.credentials,
            "shm_bytes": None if self.shm is None else units.size_bytes(str(self.shm)),
        }


class RoleSpec(StrictModel):
    """One kind of task, as OpenPAI has them."""

    run: str | Annotated[list[str], Field(min_length=1)]
    count: int = Field(default=1, ge=1, le=MOST_DEVICES, alias="taskNumber")
    gpus: int = Field(default=1, ge=0, le=MOST_DEVICES)
    cpus: float = Field(default=0, ge=0, le=1e6)
    memory: Size | None = None
