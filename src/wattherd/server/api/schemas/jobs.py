"""Jobs: as lines of lists, whole, explained, and tried out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wattherd.engine.jobs.lifecycle import State
from wattherd.server.api.schemas.shape import ApiShape, told, version
from wattherd.server.documents.documents import SHOWN_STATES

STATES = sorted({str(SHOWN_STATES.get(state, state)) for state in State})
ShownState = Annotated[str, Field(json_schema_extra={"enum": list(STATES)})]
EVENING = "2026-11-21T18:00:00.000+00:00"
MORNING = "2026-11-21T08:00:00.000+00:00"


class ReasonDocument(ApiShape):
    """Why a job waits, with the numbers that bind; or why it ended as it did."""

    code: str = told("a condition, as `explain` and the metrics name it", "WaitingForPower")
    text: str = told(
        "the same as a sentence", "WaitingForPower: asked 280 W, in use 900 W, available 100 W"
    )
    asked: float | None = Field(default=None, description="in `unit`", examples=[280.0])
    in_use: float | None = Field(default=None, description="in `unit`", examples=[900.0])
    available: float | None = Field(default=None, description="in `unit`", examples=[100.0])
    unit: str = Field(default="", description="of the three", examples=["W"])
    unblocks: str = Field(
        default="", description="what would end the wait", examples=["a higher budget"]
    )
    since: str | None = Field(default=None, description="a time", examples=[MORNING])
    due: str | None = Field(default=None, description="when that is expected", examples=[None])


class SeatDocument(ApiShape):
    """Devices of one node that a job holds."""

    node: str = told("its name", "gpu-node-1")
    gpus: list[int] = told("numbers of devices, from 0", [0, 1])


class Chapter(ApiShape):
    """Something that happened to a job."""

    at: str | None = told("a time", MORNING)
    what: str = told("what happened", "It was resumed.")
    cause: str = told("because of what", "by ann")


class TaskOf(ApiShape):
    """Of which array a job is a task, and which."""

    id: str = told("of the array", "a-7")
    index: int = told("of this task", 3)
    count: int = told("tasks of the array", 10)
    most: int | None = told("of them that may run at a time; null: all", 3)
    values: dict[str, str] = told("of the axes of its grid", {"lr": "0.01"})


class EnergyBill(ApiShape):
    """What energy has cost and emitted, at the rates of the time at which it was drawn."""

    currency: str = told("empty where none is stated", "EUR")
    cost: float | None = told("of the part whose price is known; null: of nothing", 0.052)
    co2e_kg: float | None = told("of the part whose carbon intensity is known", 0.06)
    unpriced_j: float = told("energy whose price is not known", 0.0)
    unrated_j: float = told("energy whose carbon intensity is not known", 0.0)


class JobRow(ApiShape):
    """One job as a line of a list."""

    id: str = told("given at submission", "j-12")
    name: str = told("as its user calls it", "resnet")
    labels: dict[str, str] = told("as its user gave them", {"team": "vision"})
    user: str = told("whose it is", "ann")
    tenant: str = told("of which tenant", "vision")
    queue: str = told("where it waits, or waited", "default")
    array: TaskOf | None = Field(
        default=None, description="of which it is a task; null: of none", examples=[None]
    )
    priority: int = told("higher goes first", 0)
    progress: float = told("work done, in steps where it says so", 1200.0)
    total: float | None = told("all of its work, in the same unit", 5000.0)
    loss: float | None = told("as last reported", 0.42)
    state: ShownState = told("what it is doing", "Running")
    gpus: int = told("devices it holds, or asks for", 2)
    watts: float | None = told("its draw now, while it runs", 512.5)
    cap_w: float | None = told("power limit of each of its devices", 280.0)
    micro_batch: int | None = told("samples computed at once, where the scheduler chooses", None)
    energy_j: float = told("used so far, all runs together", 615000.0)
    bill: EnergyBill | None = told("what that has cost and emitted; null: there were no rates")
    remaining_s: float | None = told("at the speed of late", 3800.0)
    rate_per_s: float | None = told("progress a second of late", 1.0)
    submitted: str | None = told("a time", MORNING)
    started: str | None = told("when it first ran", MORNING)
    finished: str | None = told("when it was over", None)
    where: list[SeatDocument] = told("devices it holds")
    reason: ReasonDocument | None = told("why it waits, ended as it did, or is in trouble", None)
    position: int | None = told("place in the queue, from 1; lists tell it", None)
    tasks: int | None = Field(
        default=None,
        description="of a row of a `grouped` list that stands for so many tasks",
        examples=[None],
    )


class JobRole(ApiShape):
    """Tasks of a job that run the same command."""

    name: str = told("of the role", "worker")
    count: int = told("how many tasks", 2)
    gpus: int = told("devices of each", 1)
    command: list[str] = told("program and arguments", ["python", "train.py"])


class JobRequest(ApiShape):
    """What was asked for at submission. Values of secrets are told to nobody."""

    roles: list[JobRole] = told("gangs: all tasks start together")
    min_gpus: int = told("with fewer it does not run", 2)
    gpu_types: list[str] = told("models that will do; all if none", ["A100"])
    time_limit_s: float | None = told("a run that takes longer is ended", 86400.0)
    expected_s: float | None = told("how long its user thinks it takes", 5000.0)
    restarts: int = told("how often it is tried again", 3)
    after: list[str] = told("jobs that must succeed before", ["j-7"])
    after_any: list[str] = told("jobs that must be over before, however they ended", [])
    after_notok: list[str] = told("jobs that must end without success before", [])
    singleton: bool = Field(
        default=False, description="it waits for all earlier jobs of its name", examples=[False]
    )
    begin: str | None = told("it does not start before", None)
    deadline: str | None = told("by when it is wanted", None)
    defer: str | None = told("it waits until this is low: `cost` or `carbon`", None)
    group: str = told("search group, if any", "")
    envs: dict[str, str] = told("variables that the job sets", {"EPOCHS": "90"})
    environment: list[str] = told(
        "names of variables of the shell it was submitted from; values are told to nobody",
        ["PATH", "VIRTUAL_ENV"],
    )
    secrets: list[str] = told("names of secret variables", ["WANDB_API_KEY"])
    stdin: bool = Field(
        default=False, description="it can be given input while it runs", examples=[False]
    )
    workdir: str | None = told("where its command starts", "/home/ann/resnet")


class JobPages(ApiShape):
    """Pages that a job serves while it runs."""

    kind: str = told("`jupyter`, `vscode` or `web`", "jupyter")
    path: str = told("where they are on this service", "/jobs/j-12/app/")
    share: str = told("who may open them: `owner` or `tenant`", "owner")


class MeasuredSpeed(ApiShape):
    """How long a step takes in one way of running, by reports."""

    gpu_model: str = told("of the devices", "A100")
    gpus: int = told("devices", 4)
    nodes: int = told("that they are on", 1)
    batch: int | None = told("samples of a step, as its user said; null: not said", 256)
    accumulation: int | None = told("passes that make a step; null: not known", None)
    cap_w: float | None = told("watts per device in force, to 5 %; null: no cap", 300.0)
    step_s: float = told("seconds per step, a median", 0.21)
    uncapped_step_s: float = told("the same without the cap, by its power curve", 0.19)
    count: int = told("how many windows of the job, or jobs of the kind, it is of", 31)
    of: Literal["this job", "its kind"] = told("of whom it was measured", "this job")


class ExpectedSpeed(ApiShape):
    """How fast a job is expected to be on a GPU model, at its width and without a cap."""

    gpu_model: str = told("one of the site's", "A100")
    gpus: int = told("its width", 4)
    times: float = told("as fast as on the slowest of them", 3.4)
    step_s: float | None = told("seconds per step, where that was learned; null: not known", 0.19)
    source: str = told(
        "learned from this job, learned from its kind, prior (catalogue), taken for equal, stated",
        "learned from its kind",
    )
    of_jobs: int = told("of how many jobs of its kind", 3)


class SpeedDocument(ApiShape):
    """What was measured of a job's speed, and what planners expect."""

    kind: str = told("jobs of one kind share what is learned", "resnet50")
    measured: list[MeasuredSpeed] = told("of the job, then of its kind")
    expected: list[ExpectedSpeed] = told("by GPU model, the fastest first")


class JobDocument(JobRow):
    """One job, all of it."""

    schema_: Literal["wattherd.job/1"] = version("wattherd.job/1")
    spec: JobRequest = told("what was asked for")
    attempts: int = told("runs so far", 1)
    exit_code: int | None = told("of its last run", None)
    app: JobPages | None = told("its own pages, while it runs", None)
    unenforced: list[str] = told(
        "limits of it that this machine does not keep; live jobs only",
        ["memory limit 4 GiB is not enforced here: /sys/fs/cgroup is not writable"],
    )
    speed: SpeedDocument | None = told("how fast it is; null: it has no GPU, or never ran here")
    undelivered: str = told("the last notification that could not be sent, and why", "")
    story: list[Chapter] = told("what happened to it, oldest first; live jobs only")


class JobsDocument(ApiShape):
    """Jobs in order of submission."""

    schema_: Literal["wattherd.jobs/1"] = version("wattherd.jobs/1")
    jobs: list[JobRow] = told("a page of them")
    before: int | None = told("with `over`: asks for the page before; null: there is none", None)
    after: int | None = told("of live jobs: asks for the page behind; null: there is none", None)
    total: int | None = told("on all pages, where `count` asked for it", None)


class ArrayTask(ApiShape):
    """One task of an array."""

    task: str = told("its array and its index, as commands take it", "a-7[3]")
    id: str = told("of its job", "j-10")
    index: int = told("of the task", 3)
    state: ShownState = told("what it is doing", "Running")


class ArrayDocument(ApiShape):
    """An array of jobs, as a whole."""

    schema_: Literal["wattherd.array/1"] = version("wattherd.array/1")
    id: str = told("given at submission, by its first job", "a-7")
    name: str = told("as its user calls it", "sweep")
    user: str = told("whose it is", "ann")
    tenant: str = told("of which tenant", "vision")
    queue: str = told("where its tasks wait, or waited", "default")
    gpus: int = told("devices that each task asks for", 1)
    submitted: str = told("a time", MORNING)
    count: int = told("tasks", 10)
    indices: str = told("of its tasks", "0-9")
    most: int | None = told("tasks that may run at a time; null: all", 3)
    grid: dict[str, list[str]] = told("axes and their values", {"lr": ["0.1", "0.01"]})
    states: dict[str, int] = told("how many tasks are in which state", {"Running": 3, "Queued": 7})
    tasks: list[ArrayTask] = told("by index")


class Holder(ApiShape):
    """A running job beside one that waits."""

    id: str = told("the job; `others` where it is not to be seen", "j-4")
    gpus: int = told("devices that it holds", 2)
    watts: float | None = told("that it draws; null: not known yet", 240.0)
    until: str | None = told("when it is expected to end; null: not known", EVENING)
    basis: Literal["progress", "time limit", "expected", ""] = told("by what", "time limit")


class ExplanationDocument(ApiShape):
    """Why a job waits and what its user could do about it."""

    schema_: Literal["wattherd.explanation/1"] = version("wattherd.explanation/1")
    id: str = told("the job", "j-12")
    state: ShownState = told("what it is doing", "Queued")
    position: int | None = told("place in the queue, from 1; null: it does not wait", 1)
    reason: ReasonDocument | None = told("the binding constraint")
    would_help: list[str] = told("what would let it start", ["would fit now with `gpus: 1`"])
    speed: list[str] = told(
        "where it is how fast, and how that is known",
        ["goes to the first of these with room: fast, 4 x, learned from its kind (2 jobs)"],
    )
    holders: list[Holder] = told("who holds devices now, the first to end first", [])
    log: list[str] = told("the last lines that it printed, where it failed", [])
    story: list[Chapter] = told(
        "what happened to it last, oldest first; once it is over, what was decided"
    )


class SwingBandDocument(ApiShape):
    """A band of frequencies of a draw; null where sampling hides it."""

    low_hz: float = told("from", 0.1)
    high_hz: float = told("to", 0.5)
    seen_to_hz: float | None = told("as far as it is seen", 0.5)
    rms_w: float | None = told("root of the variance in it", 41.0)
    share: float | None = told("its part of all variance", 0.3)


class SwingComponentDocument(ApiShape):
    """The strongest oscillation of a draw."""

    frequency_hz: float = told("its frequency", 0.12)
    swing_w: float = told("from trough to crest", 320.0)
    share: float = told("its part of all variance", 0.6)


class DrawSwingDocument(ApiShape):
    """How unsteady one draw is; ramps are means over `ramp_s`, swings the range within 10 s."""

    name: str = told("of the job", "j-12")
    parts: int = told("devices", 4)
    length_s: float = told("what was looked at", 600.0)
    samples: int = told("how many", 600)
    rate_hz: float = told("of them", 1.0)
    seen_up_to_hz: float = told("above that nothing is known", 0.5)
    longest_gap_s: float = told("without a sample", 1.1)
    mean_w: float = told("of the draw", 1420.0)
    low_w: float = told("its first percentile", 980.0)
    high_w: float = told("its 99th", 1610.0)
    swing_w: float = told("in the median window", 310.0)
    worst_swing_w: float = told("in the widest", 640.0)
    ramp_s: float = told("span of ramps", 1.0)
    ramp_up_w_s: float = told("steepest rise", 290.0)
    ramp_down_w_s: float = told("steepest fall", 330.0)
    strongest: SwingComponentDocument | None = told("null: none stands out")
    bands: list[SwingBandDocument] = told("0.01 to 20 Hz")


class JobSwingsDocument(ApiShape):
    """How unsteady a job's draw is."""

    schema_: Literal["wattherd.swings/1"] = version("wattherd.swings/1")
    stated: str = told("measured, or from a model", "measured")
    by: Literal["samples", "capture"] = told("samples of each second, or its meters", "samples")
    recordings: list[DrawSwingDocument] = told("one, of the job")


class ArrayExplanation(ApiShape):
    """Which task of an array is next, and why it waits."""

    schema_: Literal["wattherd.array-explanation/1"] = version("wattherd.array-explanation/1")
    id: str = told("given at submission, by its first job", "a-7")
    name: str = told("as its user calls it", "sweep")
    user: str = told("whose it is", "ann")
    tenant: str = told("of which tenant", "vision")
    queue: str = told("where its tasks wait, or waited", "default")
    gpus: int = told("devices that each task asks for", 1)
    submitted: str = told("a time", MORNING)
    count: int = told("tasks", 10)
    indices: str = told("of its tasks", "0-9")
    most: int | None = told("tasks that may run at a time; null: all", 3)
    grid: dict[str, list[str]] = told("axes and their values", {"lr": ["0.1", "0.01"]})
    states: dict[str, int] = told("how many tasks are in which state", {"Running": 3, "Queued": 7})
    running: list[str] = told("tasks that hold devices", ["a-7[0]", "a-7[1]", "a-7[2]"])
    next: str | None = told("the task that is to begin next; null: none waits", "a-7[3]")
    explanation: ExplanationDocument | None = told("why that one waits")
    would_help: list[str] = told("what would give it a turn", [])


class Candidate(ApiShape):
    """A cap at which a job could run, where it would be placed."""

    placement: str = told("nodes and devices; `-`: none yet", "gpu-node-1[0,1]")
    cap_w: float | None = told("power limit of each device", 280.0)
    time_s: float | None = told("how long it would take, if it says what it takes", 5400.0)
    slowdown: float = told("time by time without a cap", 1.08)
    energy_j: float | None = told("at most, all devices together", 3024000.0)
    start: Literal["now", "later"] = told("when it would begin", "now")
    chosen: bool = told("whether it would be this one", True)  # noqa: FBT003 - an example


class DryRunDocument(ApiShape):
    """What would happen to a job if it were handed in now."""

    schema_: Literal["wattherd.dry-run/1"] = version("wattherd.dry-run/1")
    candidates: list[Candidate] = told("caps, from high to low")
    fits: bool = told("whether it could ever start", True)  # noqa: FBT003 - an example
    why: str = told("whether it would start, or why not", "it would start now")


class Session(ApiShape):
    """Somebody inside a job."""

    by: str = told("tenant and user", "vision/ann")
    since: str = told("a time", MORNING)
    rank: int = told("of the task beside which it runs", 0)
    command: str = told("what runs, without secrets of the job; empty: it gives input", "bash")


class SessionsDocument(ApiShape):
    """Who is inside a job."""

    schema_: Literal["wattherd.sessions/1"] = version("wattherd.sessions/1")
    allowed: bool = told("whether the service lets anybody in (`exec`)", True)  # noqa: FBT003 - an example
    sessions: list[Session] = told("the oldest first")


class TakenDocument(ApiShape):
    """Nothing: what was said has been heard."""
