"""Run directories as `wattherd sim pack --out DIR` writes them: read, checked, grouped by trace.

Only this module and `cluster` know the files; everything after works on the frozen values here.
Percentages run from 0 to 100, power is in watts, GPU shares are in milli-GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from wattherd.errors import UserError
from wattherd.validation import misfit

SCHEMA = "wattherd.pack/1"
PACK_FILE = "pack.json"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Bins = tuple[Finite | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """Metrics by arrived load, in percent of GPU capacity; None where no pod fell into the bin."""

    arrived_pct: tuple[Finite, ...]
    allocated_pct: Bins
    frag_ratio_pct: Bins
    frag_amount_pct: Bins
    power_w: Bins


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRun:
    """One policy on one arrival order: its figures at the end and its curve."""

    policy: str
    seed: int
    pods: Count
    placed: Count
    failed: Count
    allocated_pct: Finite
    grar: Finite | None
    frag_ratio_pct: Finite | None
    power_w: Finite | None
    curve: RunCurve
    cpu_s: Finite | None = None
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Size of the simulated cluster; `idle_w` and `full_w` bound its power."""

    nodes: Count
    gpus: Count
    gpu_milli: Count = 0
    cpu_milli: Count = 0
    idle_w: Finite | None = None
    full_w: Finite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpossiblePods:
    """Pods that no node of the cluster could ever hold, with the reason for each request shape."""

    pods: Count = 0
    requests: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One `pack.json`."""

    version: str
    nodes_file: str
    pods_file: str
    trace: str
    load: Finite
    cluster: Cluster
    runs: tuple[PackRun, ...]
    impossible: ImpossiblePods = field(default_factory=ImpossiblePods)
    command: str | tuple[str, ...] = ""
    order_file: str | None = None
    ties: str = "order"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """A run directory and what its `pack.json` holds."""

    directory: Path
    pack: Pack

    def final_file(self, run: PackRun) -> Path:
        """Where the final cluster of `run` is kept, if it was written."""
        policy = re.sub(r"[+:/\\]", "_", run.policy)
        return self.directory / f"final-{policy}-{run.seed}.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRuns:
    """All runs that may be compared: same trace, load, tie rule and cluster."""

    label: str
    trace: str
    load: float
    cluster: Cluster
    runs: tuple[PackRun, ...]
    sources: tuple[RunSource, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies in order of first appearance."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds, ascending."""
        return tuple(sorted({run.seed for run in self.runs}))

    def of(self, policy: str) -> tuple[PackRun, ...]:
        """The runs of one policy, by ascending seed."""
        mine = (run for run in self.runs if run.policy == policy)
        return tuple(sorted(mine, key=lambda run: run.seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSet:
    """Everything found under a directory, the first trace being the one to show in full."""

    traces: tuple[TraceRuns, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies of all traces in order of first appearance."""
        return tuple(dict.fromkeys(name for trace in self.traces for name in trace.policies))

    @property
    def sources(self) -> tuple[RunSource, ...]:
        """Every run directory that contributed."""
        found = (source for trace in self.traces for source in trace.sources)
        return tuple({source.directory: source for source in found}.values())


def load_runs(directory: Path) -> RunSet:
    """Read `DIR/pack.json` and the `pack.json` of each direct sub-directory.

    Raises:
        UserError: no such directory, no `pack.json`, broken JSON, another schema, a missing or
            wrong field, or the same policy and seed twice for one trace.
    """
    if not directory.is_dir():
        raise UserError("no such directory", where=str(directory), hint=_WRITE_HINT)
    files = [directory / PACK_FILE, *sorted(directory.glob(f"*/{PACK_FILE}"))]
    found = [file for file in files if file.is_file()]
    if not found:
        hint = _COMPARED_HINT if (directory / "compare.json").is_file() else _WRITE_HINT
        raise UserError(f"holds no {PACK_FILE}", where=str(directory), hint=hint)
    return group(RunSource(directory=file.parent, pack=read_pack(file)) for file in found)


_WRITE_HINT = "`wattherd sim pack --out DIR` and `wattherd sim run --out DIR` write run directories"
_COMPARED_HINT = (
    "`wattherd sim compare` has drawn pareto.svg there; there are pages of `sim run` and `sim pack`"
)


def read_pack(file: Path) -> Pack:
    """Read and check one `pack.json`; raises UserError naming file, line and field."""
    try:
        payload = json.loads(file.read_bytes())
    except json.JSONDecodeError as problem:
        where = f"{file}:{problem.lineno}"
        raise UserError(f"broken JSON: {problem.msg}", where=where, hint=_AGAIN_HINT) from None
    except (ValueError, RecursionError):
        raise UserError("not a JSON text", where=str(file), hint=_AGAIN_HINT) from None
    except OSError as problem:
        raise UserError(f"cannot be read: {problem.strerror}", where=str(file)) from None
    return parse_pack(payload, where=str(file))


_AGAIN_HINT = "the file may be cut off; run the simulation again"


def parse_pack(payload: object, *, where: str = "") -> Pack:
    """Check the content of a `pack.json`; raises UserError naming the field."""
    schema = payload.get("schema") if isinstance(payload, Mapping) else None
    if schema != SCHEMA:
        problem = f"is {schema!r}, not {SCHEMA!r}" if schema else f"is missing, {SCHEMA!r} expected"
        raise UserError(problem, where=where, field="schema", hint="written by another version?")
    try:
        pack = _PACK.validate_python(payload)
    except ValidationError as problem:
        raise misfit(problem, where, hint=_SCHEMA_HINT) from None
    _check(pack, where)
    return pack


_PACK = TypeAdapter(Pack)
_SCHEMA_HINT = f"see the description of {SCHEMA} in the documentation"


def _check(pack: Pack, where: str) -> None:
    if not pack.runs:
        raise UserError("no run", where=where, field="runs", hint="name at least one policy")
    for index, run in enumerate(pack.runs):
        place = f"runs.{index}"
        for name in ("policy", "trace"):
            text = getattr(run, name)
            if not text.isprintable() or (name == "policy" and not text):
                raise UserError("not a printable name", where=where, field=f"{place}.{name}")
        _check_curve(run.curve, where, f"{place}.curve")


def _check_curve(curve: RunCurve, where: str, place: str) -> None:
    bins = curve.arrived_pct
    if any(after <= before for before, after in pairwise(bins)):
        raise UserError("must increase", where=where, field=f"{place}.arrived_pct")
    for name in ("allocated_pct", "frag_ratio_pct", "frag_amount_pct", "power_w"):
        length = len(getattr(curve, name))
        if length != len(bins):
            problem = f"has {length} values for {len(bins)} bins"
            raise UserError(problem, where=where, field=f"{place}.{name}", hint=_AGAIN_HINT)


def group(sources: Iterable[RunSource]) -> RunSet:
    """Bring together what is comparable; `default` comes first, then the order of discovery."""
    groups: dict[_Key, list[tuple[RunSource, PackRun]]] = {}
    for source in sources:
        for run in source.pack.runs:
            trace = run.trace or source.pack.trace
            key = (trace, source.pack.load, source.pack.cluster, source.pack.ties)
            groups.setdefault(key, []).append((source, run))
    traces = [_trace(key, members) for key, members in groups.items()]
    distinct = _with_distinct_labels(traces)
    return RunSet(traces=tuple(sorted(distinct, key=lambda trace: trace.label != "default")))


_Key = tuple[str, float, Cluster, str]
"""Trace, load, cluster, tie rule."""


def _trace(key: _Key, members: list[tuple[RunSource, PackRun]]) -> TraceRuns:
    seen: dict[tuple[str, int], Path] = {}
    for source, run in members:
        before = seen.get((run.policy, run.seed))
        if before is not None:
            problem = f"policy {run.policy!r} with seed {run.seed} appears twice for {key[0]!r}"
            where = str(source.directory / PACK_FILE)
            raise UserError(problem, where=where, hint=f"first in {before}; keep one of them")
        seen[run.policy, run.seed] = source.directory
    return TraceRuns(
        label=short_name(key[0]),
        trace=key[0],
        load=key[1],
        cluster=key[2],
        runs=tuple(run for _, run in members),
        sources=tuple({source.directory: source for source, _ in members}.values()),
    )


def _with_distinct_labels(traces: list[TraceRuns]) -> list[TraceRuns]:
    labels = [trace.label for trace in traces]
    return [
        trace
        if labels.count(trace.label) == 1
        else replace(trace, label=f"{trace.label} ({trace.sources[0].directory.name})")
        for trace in traces
    ]


def short_name(trace: str) -> str:
    """A trace name for axes: `openb_pod_list_cpu050.csv` becomes `cpu050`."""
    stem = re.sub(r"(\.csv)?(\.gz)?$", "", trace)
    return re.sub(r"^openb_pod_list_", "", stem) or "trace"
