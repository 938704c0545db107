"""What an import makes of a site's log: jobs, nodes, a tree, and the list of what was assumed.

A reader of one kind of log hands over `LoggedJob`s and tells an `ImportLog` what it could not read,
left out or had to assume. Here they become native jobs, a node list and a scenario. Nothing is
dropped without a word: read + left out + unreadable is what the log holds.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.openb import MAX_GPUS_PER_NODE

_EXAMPLES = 3
_GPUS_PER_NODE = 8
_NODE_FLOOR_CPU_MILLI = 12_000
_MEMORY_FLOOR_MIB = 61_440


@dataclass(slots=True)
class Remark:
    """Something that holds for `count` jobs or lines, with the first few of them."""

    text: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        """One more."""
        self.count += 1
        if example and len(self.examples) < _EXAMPLES:
            self.examples.append(example)


@dataclass(slots=True)
class ImportLog:
    """What a reader could not take as it stands; `records` counts what the log holds."""

    where: str
    records: int = 0
    assumptions: dict[str, Remark] = field(default_factory=dict)
    left_out: dict[str, Remark] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def assume(self, text: str, example: str = "") -> None:
        """Something was taken for granted."""
        self.assumptions.setdefault(text, Remark(text)).add(example)

    def leave_out(self, text: str, example: str) -> None:
        """A record that is understood and becomes no job."""
        self.left_out.setdefault(text, Remark(text)).add(example)

    def refuse(self, place: str | int, problem: str) -> None:
        """A line or object that cannot be read."""
        self.unreadable.append((f"{self.where}:{place}", problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """One job as a log has it; times are seconds of the log's clock, None where unknown.

    `gpus`, `cpus` and `memory_mib` are of all its `nodes` together; 0 nodes are unknown ones.
    `gpu_type` is what it ran on, `asked_type` what it asked for, in the site's words.
    """

    id: str
    submit_s: float
    duration_s: float
    gpus: int
    start_s: float | None = None
    end_s: float | None = None
    nodes: int = 0
    node_names: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_mib: float = 0.0
    gpu_type: str = ""
    asked_type: str = ""
    queue: str = ""
    user: str = ""
    tenant: str = ""
    begin_s: float | None = None
    time_limit_s: float | None = None
    array: str = ""
    array_index: int = 0
    array_most: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSite:
    """A scenario's parts; `first_s` is the log's time at which the run begins."""

    jobs: tuple[JobSpec, ...]
    nodes: tuple[NodeSpec, ...]
    first_s: float


# GPU names -------------------------------------------------------------------------------------

_ALIASES: Mapping[str, str] = {
    "v100": "V100M16",
    "v10032gb": "V100M32",
    "teslav100sxm232gb": "V100M32",
    "teslav100sxm216gb": "V100M16",
    "a100sxm440gb": "A100-40GB",
    "a100sxm480gb": "A100-80GB",
    "a100pcie40gb": "A100-40GB-PCIe",
    "a10080gbpcie": "A100-80GB-PCIe",
    "h100": "H100-SXM",
    "h10080gbhbm3": "H100-SXM",
    "h100pcie": "H100-PCIe",
    "mi250": "MI250X",
    "gtx1080ti": "1080",
    "1080ti": "1080",
    "rtx2080ti": "2080",
    "2080ti": "2080",
    "rtx3090": "3090",
    "geforcertx3090": "3090",
}


def catalogue_name(text: str) -> str | None:
    """The catalogue's name of a GPU as Slurm or a driver spells it; None where unknown."""
    plain = re.sub(r"[^a-z0-9]", "", text.casefold())
    for one in (plain, plain.removeprefix("nvidia"), plain.removeprefix("nvidiatesla")):
        if one in _ALIASES:
            return _ALIASES[one]
        for name in GPUS:
            if re.sub(r"[^a-z0-9]", "", name.casefold()) == one:
                return name
    return None


def _model(text: str, default: str, log: ImportLog) -> str:
    found = catalogue_name(text) if text else None
    if found is None:
        said = f"GPU type {text!r} is not in the catalogue" if text else "the log names no GPU type"
        log.assume(f"{said}: taken for {default} (--gpu-model)", text)
        return default
    if re.sub(r"[^a-z0-9]", "", found.casefold()) != re.sub(r"[^a-z0-9]", "", text.casefold()):
        log.assume(f"GPU type {text!r} is taken for {found}", text)
    return found


# Nodes -----------------------------------------------------------------------------------------


def nodes_used(jobs: Iterable[LoggedJob], default: str, log: ImportLog) -> tuple[NodeSpec, ...]:
    """The nodes that jobs ran on, as large as what ran on them at a time.

    A job's resources are divided evenly over its nodes. Without node names: as many nodes of eight
    GPUs as ran at a time, at least as many as the widest job needs.
    """
    jobs = list(jobs)
    changes: dict[str, list[tuple[float, int, float, float, float]]] = defaultdict(list)
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        if job.start_s is None or not job.node_names:
            continue
        each = len(job.node_names)
        gpus, cpus, memory = math.ceil(job.gpus / each), job.cpus / each, job.memory_mib / each
        end_s = math.inf if job.end_s is None else job.end_s
        for name in job.node_names:
            changes[name].append((job.start_s, 1, gpus, cpus, memory))
            changes[name].append((end_s, 0, -gpus, -cpus, -memory))
            if gpus and job.gpu_type:
                types[name][job.gpu_type] += 1
    if not changes:
        return _nodes_unnamed(jobs, default, log)
    log.assume("nodes are those that jobs ran on, as large as what ran on them at a time")
    made = []
    for name in sorted(changes, key=_natural):
        most_gpus, cpus, memory = _peaks(changes[name])
        gpus = int(most_gpus)
        if gpus > MAX_GPUS_PER_NODE:
            log.assume(f"a node has at most {MAX_GPUS_PER_NODE} GPUs", name)
            gpus = MAX_GPUS_PER_NODE
        most = types[name].most_common(1)
        model = _model(most[0][0] if most else "", default, log) if gpus else ""
        made.append(
            NodeSpec(
                name=name,
                cpu_milli=max(_NODE_FLOOR_CPU_MILLI, math.ceil(cpus * 1000)),
                memory_mib=max(_MEMORY_FLOOR_MIB, math.ceil(memory)),
                gpu_count=gpus,
                gpu_model=model,
            )
        )
    return tuple(made)


def _peaks(changes: list[tuple[float, int, float, float, float]]) -> tuple[float, float, float]:
    """Most GPUs, CPUs and memory at a time; at equal times what ends goes first."""
    now, most = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for change in sorted(changes):
        for i, amount in enumerate(change[2:]):
            now[i] += amount
            most[i] = max(most[i], now[i])
    return most[0], most[1], most[2]


def _nodes_unnamed(jobs: Sequence[LoggedJob], default: str, log: ImportLog) -> tuple[NodeSpec, ...]:
    changes = [
        change
        for job in jobs
        if job.start_s is not None
        for change in (
            (job.start_s, 1, float(job.gpus), job.cpus, job.memory_mib),
            (job.start_s + job.duration_s, 0, -float(job.gpus), -job.cpus, -job.memory_mib),
        )
    ]
    at_once = _peaks(changes)
    gpus = max([at_once[0], *(float(job.gpus) for job in jobs)], default=0.0)
    cpus = max([at_once[1], *(job.cpus for job in jobs)], default=0.0)
    memory = max([at_once[2], *(job.memory_mib for job in jobs)], default=0.0)
    named = Counter(job.gpu_type or job.asked_type for job in jobs if job.gpus)
    named.pop("", None)
    model = _model(named.most_common(1)[0][0] if named else "", default, log) if gpus else ""
    return even_nodes(math.ceil(gpus), cpus, memory, model, log)


def even_nodes(
    gpus: int, cpus: float, memory_mib: float, model: str, log: ImportLog
) -> tuple[NodeSpec, ...]:
    """Nodes of eight GPUs that hold so much together, each as much as the whole needs of a node."""
    count = max(1, math.ceil(gpus / _GPUS_PER_NODE))
    log.assume(f"the log names no nodes: {count} equal ones hold what ran at a time (--cluster)")
    each = min(gpus, _GPUS_PER_NODE)
    return tuple(
        NodeSpec(
            name=f"node-{number:05}",
            cpu_milli=max(_NODE_FLOOR_CPU_MILLI * max(each, 1), math.ceil(cpus * 1000 / count)),
            memory_mib=max(_MEMORY_FLOOR_MIB * max(each, 1), math.ceil(memory_mib / count)),
            gpu_count=each,
            gpu_model=model if each else "",
        )
        for number in range(count)
    )


def _natural(name: str) -> tuple[object, ...]:
    """Sorts n2 before n10."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.findall(r"\d+|\D+", name)
    )


# Jobs ------------------------------------------------------------------------------------------


def site_of(jobs: Sequence[LoggedJob], nodes: Sequence[NodeSpec], log: ImportLog) -> ImportedSite:
    """Native jobs by time of submission, the first at 0 s; an id that comes again gets a number.

    Raises:
        UserError: the log holds no job.
    """
    if not jobs:
        worst = f"; {log.unreadable[0][0]}: {log.unreadable[0][1]}" if log.unreadable else ""
        problem = f"holds no job that ran or waits (of {log.records} records){worst}"
        raise UserError(problem, where=log.where, hint="is this the right file and kind?")
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    first_s = ordered[0].submit_s
    arrays = Counter(job.array for job in ordered if job.array)
    models = {node.gpu_model for node in nodes}
    seen: Counter[str] = Counter()
    specs = []
    for job in ordered:
        seen[job.id] += 1
        if seen[job.id] > 1:
            log.assume("an id that comes again is a run of its own (requeued)", job.id)
        own = job.id if seen[job.id] == 1 else f"{job.id}#{seen[job.id]}"
        try:
            specs.append(_spec(replace(job, id=own), first_s, arrays[job.array], models, log))
        except UserError as error:
            log.refuse(f"job {job.id}", error.line())
    return ImportedSite(jobs=tuple(specs), nodes=tuple(nodes), first_s=first_s)


def _spec(job: LoggedJob, first_s: float, tasks: int, models: set[str], log: ImportLog) -> JobSpec:
    duration_s = job.duration_s
    if duration_s < 1:
        log.assume("a job of less than a second runs for one second", job.id)
        duration_s = 1.0
    asked = catalogue_name(job.asked_type) if job.asked_type else None
    if job.asked_type and asked not in models:
        log.assume("a GPU type that no node has is not asked for", f"{job.id}: {job.asked_type}")
        asked = None
    return JobSpec(
        id=job.id,
        submit_s=job.submit_s - first_s,
        roles=_roles(job, log),
        gpu_models=(asked,) if asked else (),
        queue=job.queue or "default",
        user=job.user,
        tenant=job.tenant,
        begin_s=job.begin_s,
        duration_s=duration_s,
        array=job.array if job.array != job.id else "",
        array_index=job.array_index,
        array_count=tasks if job.array else 0,
        array_most=job.array_most,
        labels=tuple((name, value) for name, value in job.labels if value),
    )


def _roles(job: LoggedJob, log: ImportLog) -> tuple[TaskRole, ...]:
    """A task on every node; where GPUs cannot be divided so, a task for every GPU."""
    nodes = job.nodes or len(job.node_names)
    if job.gpus and (not nodes or job.gpus % nodes):
        if nodes:
            log.assume("GPUs that do not divide by the nodes are tasks of one GPU each", job.id)
        count, gpus = job.gpus, 1
    else:
        count, gpus = max(nodes, 1), job.gpus // max(nodes, 1)
    return (
        TaskRole(
            count=count,
            gpu_count=gpus,
            cpu_milli=math.floor(job.cpus * 1000 / count),
            memory_mib=math.floor(job.memory_mib / count),
        ),
    )


# Files -----------------------------------------------------------------------------------------


def nodes_csv(nodes: Iterable[NodeSpec]) -> str:
    """A node list as scenarios read it (`cluster: nodes.csv`)."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
    writer.writerows(
        (one.name, one.cpu_milli, one.memory_mib, one.gpu_count, one.gpu_model) for one in nodes
    )
    return text.getvalue()


def tree_yaml(nodes: Iterable[NodeSpec]) -> str:
    """A power tree without budgets: nodes whose names differ in the last number are a group."""
    import yaml

    groups: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        groups[re.sub(r"[-_.]?\d+$", "", node.name) or "nodes"].append(node.name)
    children = [{"name": f"group-{name}", "nodes": names} for name, names in groups.items()]
    head = "# Groups are guessed from node names. Give domains budgets (budget: 25kW).\n"
    return head + yaml.safe_dump({"name": "site", "children": children}, sort_keys=False)


def scenario_yaml(site: ImportedSite, *, cluster: str, source: str) -> str:
    """A scenario of the files beside it: three schedulers, without and with a cut of a quarter."""
    most_w = sum(
        GPUS[node.gpu_model].max_w * node.gpu_count for node in site.nodes if node.gpu_count
    )
    budgets = f'[null, "{0.75 * most_w / 1000:.3f}kW"]' if most_w else "[null]"
    return (
        f"# Made by `wattherd import {source}`; import.json lists what had to be assumed.\n"
        f"cluster: {cluster}\n"
        "jobs: {file: jobs.jsonl, format: native}\n"
        "preset: none\n"
        "policies: [fifo-backfill, srtf, tiresias]\n"
        "power: [water-filling, uniform]\n"
        f"budgets: {budgets}  # three quarters of what all GPUs draw at most\n"
        "# power_tree: tree.yaml  # give its domains budgets first\n"
        "seed: 1\n"
    )
