"""What queues, tenants and search groups are told as; schemas by name and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from wattherd.model.job import JobSpec
from wattherd.service.live.access.caller import Caller
from wattherd.service.live.documents import Look, job_row
from wattherd.workload.scenario import QueueSpec

QUEUES, TENANTS, GROUP = "wattherd.queues/1", "wattherd.tenants/1", "wattherd.group/1"


def queues_document(look: Look, root: QueueSpec | None) -> dict[str, Any]:
    """Every queue with its shares of the cluster (0 to 1) and what its jobs hold.

    Without a tree these are the names that live jobs carry; then nothing is promised or limited.
    """
    use = _use(look, lambda spec: spec.queue.rpartition(".")[2])
    if root is None:
        rows = [_queue(look, name, "", 1.0, 1.0, [name], use) for name in sorted(use)]
    else:
        rows = list(_below(look, root, "", 1.0, 1.0, use))
    return {"schema": QUEUES, "queues": rows}


def _below(
    look: Look, one: QueueSpec, parent: str, guaranteed: float, maximum: float, use: _Use
) -> Iterator[dict[str, Any]]:
    """A queue and all below it; percentages are of the parent."""
    guaranteed, maximum = guaranteed * one.guaranteed_pct / 100, maximum * one.maximum_pct / 100
    yield _queue(look, one.name, parent, guaranteed, maximum, _leaves(one), use)
    for child in one.children:
        yield from _below(look, child, one.name, guaranteed, maximum, use)


def _leaves(one: QueueSpec) -> list[str]:
    below = [name for child in one.children for name in _leaves(child)]
    return below or [one.name]


def _queue(
    look: Look,
    name: str,
    parent: str,
    guaranteed: float,
    maximum: float,
    leaves: list[str],
    use: _Use,
) -> dict[str, Any]:
    counts = [use[leaf] for leaf in leaves if leaf in use]
    return {
        "name": name,
        "parent": parent,
        "guaranteed": guaranteed,
        "maximum": maximum,
        "stopped": look.time(look.core.stopped.get(name)),
        **_sum(counts),
    }


_Use = dict[str, Counter[str]]


def _use(look: Look, of: Callable[[JobSpec], str], caller: Caller | None = None) -> _Use:
    """GPUs held, jobs running and waiting, by what `of` says of a job."""
    found: _Use = {}
    for record in look.core.jobs.values():
        if caller is None or caller.sees(record.spec):
            counts = found.setdefault(of(record.spec), Counter())
            counts["gpus"] += record.gpus if record.active else 0
            counts["running" if record.active else "waiting"] += 1
    return found


def _sum(counts: list[Counter[str]]) -> dict[str, int]:
    return {key: sum(one[key] for one in counts) for key in ("gpus", "running", "waiting")}


def tenants_document(look: Look, caller: Caller) -> dict[str, Any]:
    """Tenants with live jobs that the caller may see."""
    use = _use(look, lambda spec: spec.tenant, caller)
    rows = [{"name": name, **_sum([use[name]])} for name in sorted(use)]
    return {"schema": TENANTS, "tenants": rows}


def group_document(look: Look, caller: Caller, name: str) -> dict[str, Any]:
    """Trials that the caller may see, in order of submission; `best` has the least loss.

    Trials that were over long ago are in the list of jobs alone.
    """
    pasts = {job_id: look.history[job_id].spec for job_id in look.history}
    ids = [job_id for job_id, spec in pasts.items() if spec.group == name and caller.sees(spec)]
    rows = [job_row(look, job_id) for job_id in ids]
    told = [row for row in rows if row["loss"] is not None]
    best = min(told, key=lambda row: (row["loss"], row["id"]), default=None)
    return {"schema": GROUP, "name": name, "trials": rows, "best": best and best["id"]}
