"""Slurm's accounts and queues: `sacct -P`, `squeue -o`, and `--json` of both.

Columns, states and TRES as sacct(1) and squeue(1) of 22.05 to 25.11 describe them. Steps
(`123.batch`) belong to their job's line; `CANCELLED by 1000` is `CANCELLED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from typing import Any

from wattherd.errors import UserError
from wattherd.workload.imports.site import ImportLog, LoggedJob
from wattherd.workload.source import shown

SACCT_FORMAT = (
    "JobID,JobName,User,Account,Partition,QOS,Submit,Eligible,Start,End,State,"
    "AllocTRES,ReqTRES,NNodes,NodeList,Timelimit,ConsumedEnergyRaw"
)
SACCT_HINT = f"sacct -a -P --format={SACCT_FORMAT}"
SQUEUE_HINT = 'squeue -a -r -o "%i|%j|%u|%a|%P|%q|%V|%S|%e|%T|%b|%D|%C|%m|%N|%l"'
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - Slurm prints local times without a zone
_NONE = frozenset({"", "unknown", "none", "n/a", "(null)", "none assigned", "invalid"})
_MOST_NODES = 100_000
_KNOWN_TRES = frozenset({"cpu", "mem", "node", "gres/gpu", "billing", "energy"})
_WAITING = frozenset({"PENDING", "PD", "CONFIGURING", "CF", "REQUEUED", "RQ", "SPECIAL_EXIT"})
_AT_WORK = frozenset({"RUNNING", "R", "SUSPENDED", "S", "COMPLETING", "CG", "STOPPED", "ST"})
_REQUEUED = frozenset({"REQUEUED", "RQ"})
_OVER = frozenset(
    {
        *("COMPLETED", "CD", "FAILED", "F", "TIMEOUT", "TO", "CANCELLED", "CA", "NODE_FAIL", "NF"),
        *("OUT_OF_MEMORY", "OOM", "PREEMPTED", "PR", "BOOT_FAIL", "BF", "DEADLINE", "DL"),
        *("REVOKED", "RV"),
    }
)


@dataclass(slots=True)
class _Record:
    """A job as either program tells it; texts as they stand in columns of sacct."""

    place: str | int
    cells: Mapping[str, str]
    energy_j: float = 0.0

    def get(self, *names: str) -> str:
        return next((self.cells[one] for one in names if self.cells.get(one)), "")


# Cells -----------------------------------------------------------------------------------------


def time_of(text: str) -> float | None:
    """Seconds of `2026-11-01T10:00:00` or of seconds since 1970; None where there is none.

    Raises:
        ValueError: another form.
    """
    if text.casefold() in _NONE:
        return None
    if text.isdigit():
        return float(text) or None
    return (datetime.fromisoformat(text).replace(tzinfo=None) - _EPOCH).total_seconds()


def span_of(text: str) -> float | None:
    """Seconds of `1-02:03:04`, `02:03:04`, `03:04` or `03:04.5`; None for `UNLIMITED` and the like.

    Raises:
        ValueError: another form.
    """
    if text.casefold() in _NONE | {"unlimited", "partition_limit", "not_set"}:
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+(?:\.\d+)?)", text)
    if not found:
        raise ValueError(f"{shown(text)} is no span of time")
    days, first, second, last = found.groups()
    hours, minutes = (first, second) if second is not None else (None, first)
    if days and first and second is None:  # `1-02:03` is hours and minutes
        return 86400 * int(days) + 3600 * int(first) + 60 * float(last)
    return 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(last)


_SIZES = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def mebibytes(text: str) -> float:
    """`64G`, `4000M`, `4000` (MiB), `16Gn` and `4Gc` of older versions.

    Raises:
        ValueError: another form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)[nc]?", text.upper().rstrip("NC"))
    if not found:
        raise ValueError(f"{shown(text)} is no amount of memory")
    return float(found[1]) * _SIZES[found[2]]


@dataclass(frozen=True, slots=True)
class Tres:
    """Trackable resources of a job."""

    gpus: int = 0
    cpus: float = 0.0
    memory_mib: float = 0.0
    nodes: int = 0
    gpu_type: str = ""
    others: tuple[str, ...] = ()


def tres_of(text: str) -> Tres:
    """`billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1`; also `gpu:a100:2` of squeue.

    Where only types are counted, their sum is the number of GPUs.

    Raises:
        ValueError: an entry of another form.
    """
    amounts: dict[str, str] = {}
    typed: dict[str, int] = {}
    for entry in filter(None, (one.strip() for one in text.split(","))):
        if entry.casefold() in _NONE:
            continue
        name, equals, amount = entry.rpartition("=")
        if not equals:
            name, amount = _gres(entry)
        if name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = _count(entry, amount)
        else:
            amounts[name] = amount
    total = (
        _count("gres/gpu", amounts["gres/gpu"]) if "gres/gpu" in amounts else sum(typed.values())
    )
    return Tres(
        gpus=total,
        cpus=float(_count("cpu", amounts.get("cpu", "0"))),
        memory_mib=mebibytes(amounts["mem"]) if "mem" in amounts else 0.0,
        nodes=_count("node", amounts.get("node", "0")),
        gpu_type=max(typed, key=lambda one: typed[one], default=""),
        others=tuple(sorted(set(amounts) - _KNOWN_TRES)),
    )


def _gres(entry: str) -> tuple[str, str]:
    """`gres:gpu:a100:2`, `gpu:2`, `gpu` as name and amount."""
    parts = re.sub(r"\(.*\)$", "", entry).removeprefix("gres:").removeprefix("gres/").split(":")
    amount = parts.pop() if len(parts) > 1 and parts[-1].isdigit() else "1"
    if not all(re.fullmatch(r"[\w.-]+", part) for part in parts):
        raise ValueError(f"{shown(entry)} is no NAME=AMOUNT")
    return f"gres/{':'.join(parts)}", amount


def _count(name: str, text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{name}: {shown(text)} is no count")
    return int(text)


def node_names(text: str) -> tuple[str, ...]:
    """`gpu[01-03,07],cn5` as names.

    Raises:
        ValueError: brackets that do not close, or more names than any cluster has.
    """
    if text.casefold() in _NONE or text.startswith("("):
        return ()
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = re.findall(r"\[([^\]]*)\]|([^\[\]]+)", part)
        choices = [list(_numbers(inner)) if inner else [plain] for inner, plain in pieces]
        names += ("".join(one) for one in product(*choices))
        if len(names) > _MOST_NODES:
            raise ValueError("more nodes than any cluster has")
    if text.count("[") != text.count("]"):
        raise ValueError(f"{shown(text)} is no list of nodes")
    return tuple(names)


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdigit() and (not dash or last.isdigit())):
            raise ValueError(f"[{shown(text)}] is no range of nodes")
        low, high = int(first), int(last or first)
        if high - low > _MOST_NODES:
            raise ValueError("more nodes than any cluster has")
        yield from (f"{number:0{len(first)}}" for number in range(low, high + 1))


# Texts -----------------------------------------------------------------------------------------

_SQUEUE_NAMES: Mapping[str, str] = {
    "JOBID": "JobID", "NAME": "JobName", "USER": "User", "ACCOUNT": "Account",
    "PARTITION": "Partition", "QOS": "QOS", "SUBMIT_TIME": "Submit", "START_TIME": "Start",
    "END_TIME": "End", "STATE": "State", "ST": "State", "TRES_PER_NODE": "TresPerNode",
    "GRES": "TresPerNode", "TRES_ALLOC": "AllocTRES", "TRES": "AllocTRES", "NODES": "NNodes",
    "CPUS": "AllocCPUS", "MIN_MEMORY": "MinMemory", "NODELIST": "NodeList",
    "NODELIST(REASON)": "NodeList", "TIME_LIMIT": "Timelimit", "ELIGIBLE_TIME": "Eligible",
    "ARRAY_JOB_ID": "ArrayJobID", "ARRAY_TASK_ID": "ArrayTaskID",
}  # fmt: skip
_SACCT_NAMES: Mapping[str, str] = {
    name.casefold(): name
    for name in (*SACCT_FORMAT.split(","), "JobIDRaw", "AllocCPUS", "NCPUS", "ReqCPUS", "Elapsed",
                 "ElapsedRaw", "TimelimitRaw", "AllocNodes", "ReqMem", "AllocGRES", "ReqGRES",
                 "ConsumedEnergy", "Priority", "ExitCode")
}  # fmt: skip


def read_sacct(text: str, log: ImportLog, default_s: float) -> list[LoggedJob]:
    """The jobs of `sacct -P` or `sacct --json`; unreadable lines are told to `log`.

    Raises:
        UserError: a header without what every job needs, or no JSON.
    """
    return _read(text, log, default_s, _SACCT_NAMES, SACCT_HINT)


def read_squeue(text: str, log: ImportLog, default_s: float) -> list[LoggedJob]:
    """The jobs of `squeue -o` with a separator, or `squeue --json`.

    Raises:
        UserError: a header without what every job needs, or no JSON.
    """
    names = {name.casefold(): word for name, word in _SQUEUE_NAMES.items()}
    return _read(text, log, default_s, names, SQUEUE_HINT)


def _read(
    text: str, log: ImportLog, default_s: float, names: Mapping[str, str], hint: str
) -> list[LoggedJob]:
    is_json = text.lstrip()[:1] == "{"
    records = _json_records(text, log) if is_json else _text_records(text, log, names, hint)
    jobs: list[LoggedJob] = []
    for record in _with_steps(records, log):
        log.records += 1
        try:
            jobs += _jobs(record, log, default_s)
        except (ValueError, OverflowError) as error:
            log.refuse(record.place, str(error))
    return jobs


def _text_records(
    text: str, log: ImportLog, names: Mapping[str, str], hint: str
) -> Iterator[_Record]:
    lines = iter(enumerate(text.split("\n"), 1))
    number, head = next(((n, one) for n, one in lines if one.strip()), (1, ""))
    head = head.rstrip("\r")
    separator = next((one for one in "|\t;," if one in head), None)
    columns = [part.strip() for part in head.split(separator)]
    known = [names.get(name.casefold(), "") for name in columns]
    for name, word in zip(columns, known, strict=True):
        if name and not word:
            log.assume(f"column {name} is not used")
    if {"JobID", "Submit", "State"} - set(known) or not {
        "AllocTRES", "ReqTRES", "TresPerNode", "AllocGRES", "ReqGRES",
    } & set(known):  # fmt: skip
        needed = "the job's id, submission, state and TRES"
        where = f"{log.where}:{number}"
        raise UserError(f"the header does not name {needed}", where=where, hint=hint)
    for number, line in _whole_lines(lines, separator, len(columns)):
        cells = line.split(separator)
        if len(cells) > len(columns) and "JobName" in known:
            cells = _with_name(cells, separator or " ", known.index("JobName"), len(columns))
        if len(cells) != len(columns):
            log.records += 1
            problem = f"{len(cells)} fields, where the header has {len(columns)}"
            log.refuse(number, f"{problem}; does a name hold {separator or ' '!r}?")
            continue
        if cells == columns:  # a second file behind the first
            continue
        pairs = zip(known, cells, strict=True)
        yield _Record(number, {name: cell.strip() for name, cell in pairs if name})


def _whole_lines(
    lines: Iterator[tuple[int, str]], separator: str | None, columns: int
) -> Iterator[tuple[int, str]]:
    """Records with the number of their first line: a job's name may have a new line in it.

    A line with too few fields takes the next ones in until it has enough, but none that is a whole
    record by itself: that one would be lost with it.
    """
    waiting = list(lines)[::-1]
    while waiting:
        number, raw = waiting.pop()
        line = raw.rstrip("\r")
        if not line.strip():
            continue
        while waiting and len(line.split(separator)) < columns:
            following = waiting[-1][1].rstrip("\r")
            if not following.strip() or len(following.split(separator)) >= columns:
                break
            line = f"{line}\n{following}"
            waiting.pop()
        yield number, line


def _with_name(cells: list[str], separator: str, at: int, columns: int) -> list[str]:
    """Fields too many are the name's: no other column is free text."""
    end = at + len(cells) - columns + 1
    return [*cells[:at], separator.join(cells[at:end]), *cells[end:]]


def _with_steps(records: Iterable[_Record], log: ImportLog) -> Iterator[_Record]:
    """Jobs; a step adds its energy to the job above it, where the job itself has none."""
    last: _Record | None = None
    for record in records:
        name, dot, _ = record.get("JobID").partition(".")
        energy = record.get("ConsumedEnergyRaw")
        joules = float(energy) if energy.isdigit() else 0.0
        if dot:
            log.records += 1
            if last is not None and last.get("JobID") == name:
                last.energy_j = max(last.energy_j, joules)
                log.leave_out("steps are part of their job", record.get("JobID"))
            else:
                log.leave_out("steps without their job", record.get("JobID"))
            continue
        if last is not None:
            yield last
        record.energy_j = joules or record.energy_j
        last = record
    if last is not None:
        yield last


# JSON ------------------------------------------------------------------------------------------


def _json_records(text: str, log: ImportLog) -> Iterator[_Record]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"no JSON: {error}", where=log.where) from None
    jobs = found.get("jobs")
    if not isinstance(jobs, list):
        raise UserError("holds no list `jobs`", where=log.where, hint="sacct --json, squeue --json")
    for number, job in enumerate(jobs):
        try:
            yield _json_record(job, f"jobs[{number}]")
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            log.records += 1
            log.refuse(f"jobs[{number}]", f"is no job: {error}")


def _plain(value: Any) -> Any:
    """`{"set": true, "infinite": false, "number": 5}` of 23.02 and later as its number."""
    if isinstance(value, dict) and "number" in value:
        return value["number"] if value.get("set", True) and not value.get("infinite") else ""
    if isinstance(value, list):
        return value[0] if value else ""
    return "" if value is None else value


def _json_record(job: Mapping[str, Any], place: str) -> _Record:
    sacct = isinstance(job.get("time"), dict)
    get = job.get
    time = job["time"] if sacct else {}
    whose = get("association") or {}
    array = get("array") or {}
    parent = _plain(array.get("job_id") if sacct else get("array_job_id")) or 0
    index = _plain(array.get("task_id") if sacct else get("array_task_id"))
    waiting = array.get("task") if sacct else get("array_task_string")
    name = str(_plain(job["job_id"]))
    if parent and waiting:
        name = f"{parent}_[{waiting}]"
    elif parent and index != "":
        name = f"{parent}_{index}"
    het = get("het") or {}
    leader = _plain(het.get("job_id") if sacct else get("het_job_id")) or 0
    offset = _plain(het.get("job_offset") if sacct else get("het_job_offset"))
    if leader and offset != "":
        name = f"{leader}+{offset}"
    limit = _plain(time.get("limit") if sacct else get("time_limit"))  # minutes
    state = get("state") if sacct else get("job_state")
    if isinstance(state, dict):
        state = state.get("current")
    texts: dict[str, Any] = {
        "JobID": name,
        "JobName": get("name"),
        "User": whose.get("user") or get("user") or get("user_name"),
        "Account": get("account") or whose.get("account"),
        "Partition": get("partition"),
        "QOS": get("qos"),
        "Submit": _plain(time.get("submission") if sacct else get("submit_time")),
        "Eligible": _plain(time.get("eligible") if sacct else get("eligible_time")),
        "Start": _plain(time.get("start") if sacct else get("start_time")),
        "End": _plain(time.get("end") if sacct else get("end_time")),
        "State": _plain(state),
        "NodeList": get("nodes"),
        "NNodes": _plain(get("allocation_nodes") if sacct else get("node_count")),
        "Timelimit": "" if limit == "" else f"{int(limit) * 60}",
    }
    if sacct:
        tres = get("tres") or {}
        texts["AllocTRES"] = _json_tres(tres.get("allocated") or [])
        texts["ReqTRES"] = _json_tres(tres.get("requested") or [])
    else:
        texts["AllocTRES"], texts["ReqTRES"] = get("tres_alloc_str"), get("tres_req_str")
    energies = [
        float(_plain(((step.get("statistics") or {}).get("energy") or {}).get("consumed")) or 0)
        for step in get("steps") or []
    ]
    cells = {key: "" if value is None else str(value) for key, value in texts.items()}
    return _Record(place, cells, energy_j=max(energies, default=0.0))


def _json_tres(entries: Iterable[Mapping[str, Any]]) -> str:
    parts = []
    for one in entries:
        name = "/".join(str(part) for part in (one.get("type"), one.get("name")) if part)
        count = int(one.get("count") or 0)
        parts.append(f"{name}={count}M" if name == "mem" else f"{name}={count}")
    return ",".join(parts)


# Jobs ------------------------------------------------------------------------------------------


def _jobs(record: _Record, log: ImportLog, default_s: float) -> list[LoggedJob]:
    job_id = record.get("JobID")
    submit_s = time_of(record.get("Submit"))
    if not job_id or submit_s is None:
        raise ValueError("has no id or no time of submission")
    state = (record.get("State").split() or [""])[0].rstrip("+").upper()
    start_s, end_s = time_of(record.get("Start")), time_of(record.get("End"))
    limit_s = span_of(record.get("Timelimit"))
    if state in _REQUEUED and start_s is not None and end_s is not None:
        log.assume("a run that ended by a requeue is a job of its own", job_id)
    elif state in _WAITING:
        start_s = end_s = None
    elif state in _AT_WORK:
        end_s = None
    elif state not in _OVER:
        raise ValueError(f"unknown state {shown(record.get('State'))}")
    elif start_s is None or end_s is None or _never_ran(record, start_s, end_s):
        log.leave_out(f"{state} before it began", job_id)
        return []
    duration_s = _duration(job_id, start_s, end_s, limit_s, default_s, log)
    tasks = _tasks(job_id, log)
    made = _one(record, log, submit_s, start_s, end_s, duration_s, limit_s, state)
    return [_named(made, *task) for task in tasks]


def _never_ran(record: _Record, start_s: float, end_s: float) -> bool:
    """Whether it ended without a node: then Slurm's JSON gives its end as its start, too."""
    told = "NodeList" in record.cells
    return told and end_s <= start_s and not node_names(record.get("NodeList"))


def _duration(
    job_id: str,
    start_s: float | None,
    end_s: float | None,
    limit_s: float | None,
    default_s: float,
    log: ImportLog,
) -> float:
    if start_s is not None and end_s is not None:
        if end_s < start_s:
            raise ValueError("ends before it begins")
        return end_s - start_s
    what = "waits" if start_s is None else "still runs"
    if limit_s is not None:
        log.assume(f"a job that {what} takes its time limit", job_id)
        return limit_s
    log.assume(f"a job that {what} without a limit takes {default_s:g} s (--duration)", job_id)
    return default_s


def _one(
    record: _Record,
    log: ImportLog,
    submit_s: float,
    start_s: float | None,
    end_s: float | None,
    duration_s: float,
    limit_s: float | None,
    state: str,
) -> LoggedJob:
    job_id = record.get("JobID")
    asked = tres_of(record.get("ReqTRES", "ReqGRES"))
    given = tres_of(record.get("AllocTRES", "AllocGRES")) if start_s is not None else asked
    per_node = tres_of(record.get("TresPerNode"))
    if not record.get("AllocTRES", "AllocGRES"):
        given = asked
    names = node_names(record.get("NodeList")) if start_s is not None else ()
    told = record.get("NNodes", "AllocNodes").split("-")[0]
    nodes = len(names) or given.nodes or (int(told) if told.isdigit() else 0)
    for other in (*asked.others, *given.others):
        log.assume(f"TRES {other} is not used", job_id)
    cpus = record.get("AllocCPUS", "NCPUS", "ReqCPUS")
    memory = given.memory_mib
    if not memory and (least := record.get("MinMemory")):
        memory = mebibytes(least) * max(nodes, 1)
        log.assume("MIN_MEMORY is taken as of a node", job_id)
    eligible_s = time_of(record.get("Eligible"))
    begin_s = eligible_s - submit_s if eligible_s is not None and eligible_s > submit_s else None
    if begin_s is not None:
        log.assume("a job waits until it was eligible (begin time, dependencies)", job_id)
    if "+" in job_id:
        log.assume("parts of a heterogeneous job are jobs of their own", job_id)
    energy = str(round(record.energy_j)) if record.energy_j else ""
    return LoggedJob(
        id=job_id,
        submit_s=submit_s,
        duration_s=duration_s,
        start_s=start_s,
        end_s=end_s,
        gpus=given.gpus or per_node.gpus * max(nodes, 1),
        nodes=nodes,
        node_names=names,
        cpus=given.cpus or (float(cpus) if cpus.isdigit() else 0.0),
        memory_mib=memory,
        gpu_type=given.gpu_type or per_node.gpu_type,
        asked_type=asked.gpu_type or per_node.gpu_type,
        queue=record.get("Partition").split(",")[0],
        user=record.get("User"),
        tenant=record.get("Account"),
        begin_s=begin_s,
        time_limit_s=limit_s,
        labels=(
            ("name", record.get("JobName")),
            ("qos", record.get("QOS")),
            ("state", state),
            ("consumed_energy_j", energy),
        ),
    )


_Task = tuple[str, str, int, int | None]


def _tasks(job_id: str, log: ImportLog) -> list[_Task]:
    """Id, array, index and how many at a time: of `12`, `12_3`, or all of `12_[3-9:2%4]`."""
    array, bar, tasks = job_id.partition("_")
    if not bar:
        return [(job_id, "", 0, None)]
    if tasks.isdigit():
        return [(job_id, array, int(tasks), None)]
    text, percent, most = tasks.strip("[]").partition("%")
    indices: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part)
        if not found:
            raise ValueError(f"{shown(job_id)}: its tasks cannot be told apart")
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if not step or high - low > _MOST_NODES:
            raise ValueError(f"{shown(job_id)}: too many tasks")
        indices += range(low, high + 1, step)
    log.assume("waiting tasks of an array, one line in the log, are jobs of their own", job_id)
    at_once = int(most) if percent and most.isdigit() and int(most) else None
    return [(f"{array}_{index}", array, index, at_once) for index in indices]


def _named(job: LoggedJob, name: str, array: str, index: int, most: int | None) -> LoggedJob:
    return replace(job, id=name, array=array, array_index=index, array_most=most)
