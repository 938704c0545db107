"""What a job asks for: one task of one node, and the training job that a user submits.

A task's request is *sharing* (part of one GPU), *exclusive* (whole GPUs) or *CPU-only*. `models`
keeps the spelling of the input (order and repetition included), because the published target
workload groups by spelling while placement tests plain membership (FGD, ATC'23, artifact).

A `JobSpec` is what was submitted, before anything happened to it. Units: seconds since the run's
epoch, milli-vCPU, MiB, whole GPUs unless `gpu_milli` says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

from wattherd.errors import UserError
from wattherd.model.cluster import WHOLE_GPU_MILLI, NodeSpec
from wattherd.model.quick import maker, quick

# --- What one task asks of one node -----------------------------------------------------------


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """CPU in milli-vCPU, memory in MiB, `gpu_count` GPUs at `gpu_milli` milli each."""

    cpu_milli: int
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()

    @property
    def total_gpu_milli(self) -> int:
        """GPU demand over all devices, in milli-GPU."""
        return self.gpu_count * self.gpu_milli

    @property
    def is_sharing(self) -> bool:
        """Whether it asks for a part of a single GPU."""
        return self.gpu_count == 1 and self.gpu_milli < WHOLE_GPU_MILLI

    def allows(self, model: str) -> bool:
        """Whether a GPU of `model` will do; CPU-only requests and empty lists take any."""
        return not self.gpu_count or not self.models or model in self.models

    def fits(self, node: NodeSpec) -> bool:
        """Whether an empty `node` could ever hold it."""
        return (
            self.cpu_milli <= node.cpu_milli
            and self.memory_mib <= node.memory_mib
            and self.gpu_count <= node.gpu_count
            and self.allows(node.gpu_model)
        )


make_request = maker(Request)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """A request with a name and, where the trace gives them, submit time and run time (s)."""

    name: str
    request: Request
    submit_s: float | None = None
    duration_s: float | None = None


# --- Jobs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRole:
    """`count` equal tasks of a job (workers, parameter servers), and what each of them needs.

    `count`, `cpu_milli` and `gpu_count` are what was asked for. Where `min_` and `max_` of them are
    given, the job also runs with any number between, and a scheduler may choose. Where it is known
    how much memory a task needs on each of its GPUs, `gpu_memory_mib`, it may share them.
    """

    name: str = "worker"
    count: int = 1
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 1
    gpu_milli: int = WHOLE_GPU_MILLI
    gpu_memory_mib: int | None = None
    command: tuple[str, ...] = ()
    min_count: int | None = None
    max_count: int | None = None
    min_cpu_milli: int | None = None
    max_cpu_milli: int | None = None
    min_gpu_count: int | None = None
    max_gpu_count: int | None = None

    @property
    def counts(self) -> range:
        """How many of them may run."""
        return _between(self.min_count, self.count, self.max_count)

    @property
    def cpus(self) -> range:
        """Milli-vCPU that each of them may be given."""
        return _between(self.min_cpu_milli, self.cpu_milli, self.max_cpu_milli)

    @property
    def gpu_counts(self) -> range:
        """GPUs that each of them may be given."""
        return _between(self.min_gpu_count, self.gpu_count, self.max_gpu_count)


@cache
def workers(count: int) -> tuple[TaskRole, ...]:
    """Roles of a job of `count` tasks with a GPU each.

    Equal jobs share them, so that a scheduler who compares their shapes has nothing to compare.
    """
    return (TaskRole(count=count),)


def _between(least: int | None, asked: int, most: int | None) -> range:
    return range(asked if least is None else least, (asked if most is None else most) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, a gang: all its tasks run or none does.

    `width` is the number of tasks of the elastic role (the first one); it runs at `min_width`
    to `max_width` of them. `after` names jobs that must have succeeded first, `after_any` jobs
    that must be over, however they ended, `after_notok` jobs that must have ended without
    success. A `singleton` waits until all earlier jobs of its tenant, user and name are over.
    It does not start earlier than `begin_s` seconds after its submission. `duration_s` is how
    long it runs at full width where that is known. `profile` names how fast it is, where that
    depends on more than time, `power_profile` what it draws (empty: as any job), and `steps`
    how much there is to train, in the unit of its progress. It trains until its loss is
    `target_loss`, where that is stated. A job of `weight` 2 is owed twice
    what one of weight 1 is, where shares are fair. Where its draw is to be limited by how it
    trains, it may be told any of `micro_batches` (samples at once); `batch_size` samples a step
    stay. Its devices draw no more than `energy_budget_j` joules in all. `array` names the array of
    `array_count` jobs that it is a task of; `array_index` tells it from the others, of which
    `array_most` may run at a time (None: all). Dependencies may name a whole array.

    Raises:
        UserError: a width, count, time or resource that makes no sense, naming the field.
    """

    id: str
    submit_s: float
    roles: tuple[TaskRole, ...] = (TaskRole(),)
    min_width: int | None = None
    max_width: int | None = None
    gpu_models: tuple[str, ...] = ()
    priority: int = 0
    queue: str = "default"
    tenant: str = ""
    user: str = ""
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    after_notok: tuple[str, ...] = ()
    singleton: bool = False
    begin_s: float | None = None
    duration_s: float | None = None
    deadline_s: float | None = None
    time_limit_s: float | None = None
    restarts: int = 0
    backoff_s: float = 0.0
    grace_s: float = 0.0
    checkpoint_s: float | None = None
    group: str = ""
    profile: str = ""
    power_profile: str = ""
    steps: int | None = None
    target_loss: float | None = None
    weight: float = 1.0
    batch_size: int | None = None
    micro_batches: tuple[int, ...] = ()
    energy_budget_j: float | None = None
    array: str = ""
    array_index: int = 0
    array_count: int = 0
    array_most: int | None = None
    labels: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what no scheduler could serve."""
        if not self.id:
            raise UserError("a job needs an id", field="id")
        if not self.roles:
            raise self._bad("roles", "is empty", "one role with one task is the least")
        for name in ("submit_s", "backoff_s", "grace_s"):
            self._check_time(name, getattr(self, name))
        for name in ("begin_s", "duration_s", "deadline_s", "time_limit_s", "checkpoint_s"):
            if getattr(self, name) is not None:
                self._check_time(name, getattr(self, name))
        if not 1 <= self.least_width <= self.most_width:
            widths = f"{self.least_width} to {self.most_width}"
            raise self._bad("min_width", f"widths {widths} are empty", "1 <= min <= max")
        self._check_roles()
        if self.steps is not None and self.steps < 1:
            raise self._bad("steps", f"{self.steps} steps are nothing to train", "at least one")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise self._bad("weight", f"{self.weight} is no weight", "a number above zero")
        self._check_batches()
        self._check_above_zero("energy_budget_j", "budget", "joules above zero")
        self._check_above_zero("target_loss", "loss to reach", "a number above zero")
        if self.restarts < 0:
            raise self._bad("restarts", f"{self.restarts} is negative", "0 means never retried")
        self._check_array()
        if {self.id, self.array} & {*self.after, *self.after_any, *self.after_notok} - {""}:
            raise self._bad("after", "the job waits for itself", "remove it from `after`")

    def _check_above_zero(self, name: str, what: str, hint: str) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise self._bad(name, f"{value} is no {what}", hint)

    def _check_array(self) -> None:
        if not self.array:
            if self.array_count or self.array_index or self.array_most is not None:
                raise self._bad("array", "is not named", "tasks of an array name it")
        elif self.array == self.id or self.array_count < 1 or self.array_index < 0:
            problem = f"task {self.array_index} of {self.array_count} of {self.array!r} is none"
            raise self._bad("array", problem, "a name of its own, a count above zero, an index")
        elif self.array_most is not None and self.array_most < 1:
            raise self._bad("array_most", f"{self.array_most} lets none run", "at least one")
        elif self.singleton:
            # It would wait for earlier jobs of its name, which may wait for its turn in the array.
            raise self._bad("singleton", "is no task of an array", "`array_most: 1` does the same")

    def _check_batches(self) -> None:
        if any(size < 1 for size in self.micro_batches):
            raise self._bad("micro_batches", "a micro-batch without a sample", "at least one")
        if self.micro_batches and self.batch_size is None:
            raise self._bad("batch_size", "is not known", "micro-batches are parts of it")

    def _check_roles(self) -> None:
        for role in self.roles[1:]:
            if not (role.counts and role.counts.start >= 0):
                counts = f"{role.counts.start} to {role.counts.stop - 1} tasks of {role.name!r}"
                raise self._bad("roles", f"{counts} are none", "0 <= min_count <= max_count")
        for role in self.roles:
            if role.gpu_memory_mib is not None and role.gpu_memory_mib < 0:
                raise self._bad("roles", f"{role.gpu_memory_mib} MiB is no memory", "zero or more")
            for able, name in ((role.cpus, "cpu_milli"), (role.gpu_counts, "gpu_count")):
                if not (able and able.start >= 0):
                    sizes = f"{able.start} to {able.stop - 1} {name} of {role.name!r}"
                    raise self._bad("roles", f"{sizes} are none", f"0 <= min_{name} <= max_{name}")

    def _check_time(self, name: str, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise self._bad(name, f"{value} is no time", "seconds, zero or more")

    def _bad(self, name: str, problem: str, hint: str) -> UserError:
        return UserError(problem, where=f"job {self.id}", field=name, hint=hint)

    @property
    def name(self) -> str:
        """As its user calls it; empty if it has no name."""
        return dict(self.labels).get("name", "")

    @property
    def not_before_s(self) -> float | None:
        """The time before which it may not start, if there is one."""
        return None if self.begin_s is None else self.submit_s + self.begin_s

    @property
    def least_width(self) -> int:
        """The fewest tasks of the elastic role it runs with."""
        return self.roles[0].counts.start if self.min_width is None else self.min_width

    @property
    def most_width(self) -> int:
        """The most tasks of the elastic role it can use."""
        return self.roles[0].counts.stop - 1 if self.max_width is None else self.max_width

    def counts(self, role: int) -> range:
        """How many tasks of role number `role` may run; the first role has the job's widths."""
        if role == 0:
            return range(self.least_width, self.most_width + 1)
        return self.roles[role].counts

    @property
    def least_gpus(self) -> int:
        """The fewest GPUs it runs with."""
        return sum(
            self.counts(number).start * role.gpu_count for number, role in enumerate(self.roles)
        )

    @property
    def gpus(self) -> int:
        """GPUs at the width it was submitted with."""
        gpus = 0
        for role in self.roles:
            gpus += role.count * role.gpu_count
        return gpus
