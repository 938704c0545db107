"""Scenario files: one YAML document that says which cluster, jobs, policies and budget to simulate.

Every field has a name that `--set name.of.field=value` can change. The JSON Schema for editors is
`docs/reference/scenario.schema.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os.path import expandvars
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from wattherd.errors import UserError
from wattherd.validation import misfit
from wattherd.workload.cluster_text import NODE_LIST_ENDS
from wattherd.workload.tree_spec import DomainSpec
from wattherd.workload.yaml_lines import line_of, lines_of
from wattherd.yaml_fields import fields_of

Time = str | float
"""Seconds, or a text such as 90s, 15m, 2h30m."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class JobsFile(_Strict):
    """Where the jobs come from.

    Paths are relative to the scenario file; `${NAME}` stands for an environment variable.
    """

    file: str
    format: str = "pollux"
    profiles: str | None = None
    power_profiles: str | None = Field(
        default=None, description="CSV of measured points, instead of the built-in profiles"
    )


class QueueField(_Strict):
    """One queue of a tree; percentages are of its parent."""

    name: str = Field(description="name of the queue, without dots")
    guaranteed_pct: float = Field(
        default=100.0, description="share of its parent that is promised to it"
    )
    maximum_pct: float = Field(default=100.0, description="most of its parent that it may use")
    user_limit_pct: float = Field(
        default=100.0, description="share of the queue that each of its users can count on"
    )
    user_limit_factor: float = Field(
        default=1.0,
        description="most of one user, as a multiple of the promised share; -1 is no limit",
    )
    order: str = Field(
        default="fifo", description="order of waiting jobs: fifo, fair, drf, sjf, las, deadline"
    )
    preempts: str = Field(
        default="never",
        description="own jobs that a waiting one may stop: never, lower-priority, lower-or-newer",
    )
    reclaims: str = Field(
        default="any",
        description="from which jobs of others it takes back: any, lower-priority, never",
    )
    reclaimable: bool = Field(
        default=True, description="whether others may take back from it, and from those below it"
    )
    half_life: Time | None = Field(
        default=None,
        description="who below it had least lately, by use that fades by half in so long, is lent "
        "to first; by default who has least now",
    )
    priority: int = Field(
        default=0,
        description="among its siblings: the highest has what it is promised, and what is lent, "
        "before the others",
    )
    preempts_to_borrow: str = Field(
        default="never",
        description="jobs of others that one may stop to borrow: never, lower-priority",
    )
    preempts_to_borrow_up_to: int | None = Field(
        default=None, description="highest priority of jobs stopped to borrow; by default any"
    )
    preempts_above_user_limit: bool = Field(
        default=False,
        description="whether users below the user limit may stop jobs of those above it",
    )
    weight: float = Field(
        default=1.0,
        description="where the root has fair_sharing, its part of what is lent among siblings",
    )
    fair_sharing: list[str] = Field(
        default=[],
        description="of the root: share what is lent by weights; strategies are final-share and "
        "initial-share, in this order, or one of them",
    )
    children: list[QueueField] = Field(
        default=[], description="queues below it; their promised shares add up to 100"
    )

    def names(self) -> list[str]:
        """Of the queue itself and of all below it, parents first."""
        return [self.name, *(name for child in self.children for name in child.names())]


class ReclaimSpec(_Strict):
    """How the scheduler `capacity` takes back what queues were lent."""

    enabled: bool = True
    wait: Time = Field(default="15s", description="from the notice to the stop")
    per_cycle: float = Field(default=0.1, description="part of the cluster taken back at a time")
    dead_zone: float = Field(default=0.1, description="part above its guarantee left to a queue")
    natural: float = Field(default=0.2, description="part of an excess taken back at a time")
    balance: bool = Field(
        default=False, description="whether queues that hold their guarantees take from each other"
    )


class ChainSpec(_Strict):
    """Cells of one kind of node; several chains may be made of the same GPU model."""

    name: str = Field(description="name of the chain")
    levels: dict[str, int] = Field(
        description="level to how many cells of the one below make it: {node: 8, 2-node: 2}"
    )
    nodes: list[str] = Field(description="names of its nodes, in the order of its cells")


class PinSpec(_Strict):
    """A certain cell; jobs use it by its name, as their queue."""

    chain: str = Field(description="name of its chain")
    level: str = Field(description="its level in that chain")
    index: int = Field(default=0, ge=0, description="which of the cells of its level, from 0")


class CellsSpec(_Strict):
    """How the cluster is cut into cells for virtual clusters."""

    within: dict[int, list[int]] = Field(
        default={}, description="GPUs of a node to their grouping, from the GPU up: {8: [2, 2, 2]}"
    )
    per_rack: int | None = Field(
        default=None, description="nodes that make one rack, the cell above a node"
    )
    chains: list[ChainSpec] = Field(
        default=[], description="chains as stated; nodes in none of them get chains as above"
    )
    pinned: dict[str, PinSpec] = Field(
        default={}, description="names of pinned cells, and which cells they are"
    )
    shares: dict[str, dict[str, dict[str, int]]] | None = Field(
        default=None, description="virtual cluster, chain and level to a number of cells"
    )


class ScenarioFault(_Strict):
    """Something that breaks at `at` and, if `lasts` is given, is mended so long after.

    Either a node (its name) is lost, or a queue is stopped.
    """

    at: Time
    node: str | None = None
    queue: str | None = None
    lasts: Time | None = None


class SleepSpec(_Strict):
    """Idle nodes sleep: after which time, how many stay awake, and what switching takes."""

    after: Time
    spare: int = 0
    falls: Time = "10s"
    boots: Time = "2min"
    boot_j: float = Field(default=0.0, ge=0, description="joules beyond the idle draw of booting")


class CapsSpec(_Strict):
    """How caps and budgets change: ahead of time, no steeper than allowed, not to and fro."""

    delay: Time = Field(
        default=0.0, description="simulated: from an order to the cap in force and read back"
    )
    ahead: Time | None = Field(
        default=None, description="before a known fall caps are lowered so early; default: delay"
    )
    refuse: Time = Field(
        default=0.0, description="so long before a known fall no job starts that it would stop"
    )
    ramp_up: str | float | None = Field(
        default=None, description="the site's draw may rise so much a second: 2kW"
    )
    ramp_down: str | float | None = Field(
        default=None,
        description="known falls of the site's budget and a plan's stops, a second",
    )
    ramp_window: Time = Field(default="10s", description="over which ramps are averaged")
    change: str | float = Field(
        default=0.0, description="watts per device below which caps are not changed for long"
    )
    hold: Time = Field(default=0.0, description="a cap is raised so long after its last change")


class SpeedSpec(_Strict):
    """How fast jobs are on GPUs of several models.

    What is in `table` was measured; all else is a ratio of the catalogue, a prior.
    """

    durations_on: str | None = Field(
        default=None,
        description="GPU model on which durations hold; default: the slowest a job may run on",
    )
    table: str | None = Field(
        default=None, description="CSV of measured speeds: kind, gpu_model, gpus, rate"
    )
    types: Literal["catalogue", "equal"] = Field(
        default="catalogue", description="what is taken of models that were not measured"
    )


def _tree_form(value: object) -> str:
    return "file" if isinstance(value, str) else "inline"


TreeSpec = Annotated[
    Annotated[str, Tag("file")] | Annotated[DomainSpec, Tag("inline")], Discriminator(_tree_form)
]
"""A power tree: the name of its file, or the tree itself."""


class Scenario(_Strict):
    """What to simulate; `sim compare` runs every policy with every way of sharing every budget."""

    cluster: str = Field(description="16x4:T4, or V100M16=8,P100=16, or a node list: nodes.csv")
    node_idle_w: float = Field(default=0.0, ge=0, description="draw of a node beside its GPUs")
    jobs: JobsFile
    preset: str = "pollux-osdi21"
    restart: Time | None = Field(
        default=None, description="pause after every start, where the preset leaves it open"
    )
    policies: list[str] = Field(default=["tiresias"], min_length=1)
    power: list[str] = Field(default=["water-filling"], min_length=1)
    budgets: list[str | None] = Field(
        default=[None], min_length=1, description="40kW, steps 0:40kW,2h:30kW, or null for none"
    )
    power_tree: TreeSpec | None = Field(
        default=None, description="a tree file, or the tree itself: budgets of feeds, rows, racks"
    )
    caps: CapsSpec = CapsSpec()
    speed: SpeedSpec | None = Field(
        default=None, description="speed by GPU model; default: ratios of the catalogue"
    )
    seed: int = Field(default=1, ge=0)
    queues: QueueField | None = None
    reclaim: ReclaimSpec = ReclaimSpec()
    cells: CellsSpec = CellsSpec()
    faults: list[ScenarioFault] = []
    sleep: SleepSpec | None = None
    until: Time | None = Field(default=None, description="end of the simulated time")
    rates: str | None = Field(
        default=None, description="prices and carbon intensities: a CSV, YAML or JSON file, a URL"
    )
    start: str | None = Field(
        default=None, description="when the run begins, for rates; default: with the first of them"
    )

    def stated(self) -> dict[str, Any]:
        """All fields as JSON; those that came later only where they are given."""
        found = self.model_dump(mode="json")
        return {
            name: value
            for name, value in found.items()
            if name not in ("rates", "start", "speed") or value is not None
        }


def read_scenario(path: Path, changes: Iterable[str] = ()) -> Scenario:
    """Read a scenario and apply `a.b=value` changes (values are YAML).

    Raises:
        UserError: unreadable, no YAML, an unknown or wrong field (with its line where known).
    """
    document = load(path)
    for change in changes:
        change_field(document, change)
    with lines_of(path):
        return beside(validated(document, str(path)), path.parent)


_FIELD_OF = {
    "--cluster": "cluster", "--format": "jobs.format", "--profiles": "jobs.profiles",
    "--preset": "preset", "--policy": "policies", "--power": "power", "--budget": "budgets",
}  # fmt: skip
"""Options of commands that take what a field of a scenario says."""


@contextmanager
def told_by_field(path: Path, instead: Collection[str] = ()) -> Iterator[None]:
    """Wrong values of a scenario are told by its file, line and field, whenever they are found.

    Most values are understood only where they are used, which also serves commands with options of
    that meaning. What an option or `--set` said `instead` of the file is told as it was.

    Raises:
        UserError: those of the block, with their place in the file where they say no other.
    """
    try:
        yield
    except UserError as error:
        field = _FIELD_OF.get(error.field, error.field)
        top = field.partition(".")[0]
        if error.where or top not in Scenario.model_fields or top in instead:
            raise
        line = line_of(path, field)
        where = str(path) if line is None else f"{path}:{line}"
        raise UserError(error.problem, where=where, field=field, hint=error.hint) from None


def load(path: Path, *, hint: str = "see docs/guides/scenarios.md") -> dict[str, Any]:
    """A YAML document of fields; `hint` says where these are described.

    Raises:
        UserError: unreadable, or something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise UserError(problem, where=str(path), hint=hint) from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text", where=str(path), hint=hint) from None
    return document_of(text, str(path), hint=hint)


def document_of(text: str, name: str, *, hint: str) -> dict[str, Any]:
    """The fields of a YAML text that came from `name`; `hint` says where these are described.

    Raises:
        UserError: it is something else.
    """
    try:
        document = fields_of(text)
    except RecursionError:
        raise UserError("nested too deeply", where=name, hint=hint) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        where = f"{name}:{line}"
        raise UserError(f"no YAML: {error.problem}", where=where, hint=hint) from None
    except yaml.YAMLError as error:
        raise UserError(f"no YAML: {error}", where=name, hint=hint) from None
    if not isinstance(document, dict):
        raise UserError("holds no fields", where=name, hint=hint)
    return document


def change_field(document: dict[str, Any], change: str) -> None:
    """Apply `a.b=value`; the value is YAML.

    Raises:
        UserError: another form.
    """
    name, equals, value = change.partition("=")
    if not equals or not name:
        raise UserError(f"{change!r} is no change", field="--set", hint="write power=[uniform]")
    *parents, last = name.split(".")
    at: Any = document
    for parent in parents:
        at = at.setdefault(parent, {}) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        raise UserError(f"{name!r} is no field of a group", field="--set")
    try:
        at[last] = fields_of(value)
    except yaml.YAMLError:
        raise UserError(f"{value!r} is no YAML value", field="--set") from None


def validated(document: Mapping[str, Any], where: str) -> Scenario:
    """The scenario that a document describes, its paths as written.

    Raises:
        UserError: an unknown or wrong field.
    """
    try:
        return Scenario.model_validate(document)
    except ValidationError as problem:
        raise misfit(problem, where, Scenario) from None


def beside(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with its paths seen from `folder`.

    Raises:
        UserError: a path names an environment variable that is not set.
    """
    jobs = scenario.jobs
    paths = {name: getattr(jobs, name) for name in ("file", "profiles", "power_profiles")}
    found = jobs.model_copy(
        update={name: _expanded(path, folder) if path else None for name, path in paths.items()}
    )
    changed: dict[str, Any] = {"jobs": found}
    if scenario.cluster.endswith(NODE_LIST_ENDS):
        changed["cluster"] = _expanded(scenario.cluster, folder, "cluster")
    if isinstance(scenario.power_tree, str):
        changed["power_tree"] = _expanded(scenario.power_tree, folder, "power_tree")
    if scenario.speed is not None and scenario.speed.table is not None:
        table = _expanded(scenario.speed.table, folder, "speed.table")
        changed["speed"] = scenario.speed.model_copy(update={"table": table})
    if scenario.rates is not None and not scenario.rates.startswith(("http://", "https://")):
        changed["rates"] = _expanded(scenario.rates, folder, "rates")
    return scenario.model_copy(update=changed)


def _expanded(text: str, folder: Path, field: str = "jobs") -> str:
    path = expandvars(text)
    if "$" in path:
        hint = "export it, or write the path"
        raise UserError(f"{text!r} names a variable that is not set", field=field, hint=hint)
    return str(folder / path)
