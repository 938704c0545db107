"""What may be changed of a job after its submission, as people write it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from wattherd import units
from wattherd.model.event import ArrayLimited, JobEdited
from wattherd.workload.job_array import MOST_INDEX
from wattherd.workload.job_file import Level, begin_as_written, priority_of
from wattherd.workload.job_parts import MOST_DEVICES, MOST_NAME, StrictModel, Time, WidthRange


class EditedTime(StrictModel):
    """The part of `time` that may be changed."""

    limit: Time


class JobEdit(StrictModel):
    """Fields of a job file with their new values; those that are left out stay as they are."""

    priority: Level | None = None
    queue: Annotated[str, Field(max_length=MOST_NAME)] | None = None
    time: EditedTime | None = Field(default=None, description="`limit`")
    gpus: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | WidthRange | None = None
    begin: str | None = Field(default=None, description="as in a job file")

    @model_validator(mode="after")
    def _something(self) -> JobEdit:
        if not self.model_dump(exclude_none=True):
            raise ValueError(f"changes nothing; it may have {', '.join(type(self).model_fields)}")
        return self

    def event(self, job_id: str, *, by: str, now: datetime, now_s: float) -> JobEdited:
        """What the core is told; `now` and `now_s` are the same moment.

        Raises:
            UserError: a begin time that means no time.
        """
        begin_s = begin_as_written(self.begin, now)
        gpus = self.gpus
        width = None if gpus is None else (gpus, gpus) if isinstance(gpus, int) else gpus
        return JobEdited(
            at_s=now_s,
            cause=f"by {by}",
            job_id=job_id,
            priority=None if self.priority is None else priority_of(self.priority),
            queue=self.queue,
            time_limit_s=None if self.time is None else units.seconds(self.time.limit),
            gpus=(width.min, width.max) if isinstance(width, WidthRange) else width,
            begin_at_s=None if begin_s is None else now_s + begin_s,
        )


class ArrayEdit(JobEdit):
    """The same of tasks of an array, and how many of them may run at a time."""

    most: Annotated[int, Field(ge=1, le=MOST_INDEX)] | Literal["all"] | None = Field(
        default=None, description="tasks at a time; `all` lifts the limit", examples=[3]
    )

    @property
    def of_tasks(self) -> bool:
        """Whether anything but the limit changes."""
        return bool(self.model_dump(exclude_none=True, exclude={"most"}))

    def limit(self, array: str, *, by: str, now_s: float) -> ArrayLimited | None:
        """What the core is told of the limit; None: it stays as it is."""
        if self.most is None:
            return None
        most = None if self.most == "all" else self.most
        return ArrayLimited(at_s=now_s, cause=f"by {by}", array=array, most=most)
