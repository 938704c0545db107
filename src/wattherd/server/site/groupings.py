"""What queues, tenants and search groups are told as; schemas by name and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from wattherd.experiments.schedule.setup import queue_spec
from wattherd.model.job import JobSpec
from wattherd.policy.queue.tree import QueueTree
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView, job_row
from wattherd.server.journal.job_history import PastJob, past_of
from wattherd.server.site.site import LiveSite
from wattherd.store.projection import ANY_GROUP, JobFilter
from wattherd.workload.scenario import QueueField

QUEUES, TENANTS, GROUP, GROUPS = (
    "wattherd.queues/1",
    "wattherd.tenants/1",
    "wattherd.group/1",
    "wattherd.groups/1",
)
MOST_TRIALS = 1_000
"""Of the trials that ever were, so many of the newest are told of."""


def queues_document(look: SiteView) -> dict[str, Any]:
    """Every queue with its shares of the cluster (0 to 1) and what its jobs hold.

    `tree` is what a configuration would say. Where the policy keeps no queues there is none, and
    the names are those that live jobs carry; then nothing is promised or limited.
    """
    use = _use(look, lambda spec: spec.queue.rpartition(".")[2])
    quota = look.core.config.quota
    root = queue_spec(quota.root) if isinstance(quota, QueueTree) else None
    if root is None:
        rows = [_queue(look, name, "", 1.0, 1.0, [name], use) for name in sorted(use)]
    else:
        rows = list(_below(look, root, "", 1.0, 1.0, use))
    tree = None if root is None else root.model_dump(mode="json")
    return {"schema": QUEUES, "queues": rows, "tree": tree}


def _below(
    look: SiteView, one: QueueField, parent: str, guaranteed: float, maximum: float, use: _Use
) -> Iterator[dict[str, Any]]:
    """A queue and all below it; percentages are of the parent."""
    guaranteed, maximum = guaranteed * one.guaranteed_pct / 100, maximum * one.maximum_pct / 100
    yield _queue(look, one.name, parent, guaranteed, maximum, _leaves(one), use)
    for child in one.children:
        yield from _below(look, child, one.name, guaranteed, maximum, use)


def _leaves(one: QueueField) -> list[str]:
    below = [name for child in one.children for name in _leaves(child)]
    return below or [one.name]


def _queue(
    look: SiteView,
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


def _use(look: SiteView, of: Callable[[JobSpec], str], caller: Caller | None = None) -> _Use:
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


def tenants_document(look: SiteView, caller: Caller, known: Iterable[str] = ()) -> dict[str, Any]:
    """Tenants that the caller may see: with live jobs, with a limit, or `known` otherwise."""
    use, limits = _use(look, lambda spec: spec.tenant, caller), look.core.limits
    seen = [name for name in limits if caller.of_site or name == caller.tenant]
    rows = [
        {"name": name, **_sum([use[name]] if name in use else []), "most_gpus": limits.get(name)}
        for name in sorted({*use, *seen, *known})
    ]
    return {"schema": TENANTS, "tenants": rows}


def groups_document(site: LiveSite, caller: Caller) -> dict[str, Any]:
    """Search groups that the caller may see, by name: of the newest trials, over or not.

    Raises:
        StoreFailure: the store cannot be read.
    """
    pasts = _trials(site, caller, ANY_GROUP)

    def document(look: SiteView) -> dict[str, Any]:
        trials: dict[str, list[PastJob]] = {}
        for past in _newest(look, pasts).values():
            if past.spec.group:
                trials.setdefault(past.spec.group, []).append(past)
        rows = [_group_row(look, name, trials[name]) for name in sorted(trials)]
        return {"schema": GROUPS, "groups": rows}

    return site.look(document)


def _trials(site: LiveSite, caller: Caller, group: str) -> dict[str, PastJob]:
    """The newest trials of a group that the caller may see, in order of submission."""
    site.catch_up()
    # Chosen before they are counted: trials of others must not push the caller's out.
    tenant = None if caller.of_site else caller.tenant
    asked = JobFilter(group=group, tenant=tenant, limit=MOST_TRIALS)
    found = site.store.projection.jobs(asked)
    pasts = (past_of(row) for row in reversed(found))
    return {past.spec.id: past for past in pasts if caller.sees(past.spec)}


def _newest(look: SiteView, pasts: Mapping[str, PastJob]) -> dict[str, PastJob]:
    """The same as memory has them now, where it still does."""
    live = {job_id: look.history[job_id] for job_id in look.history if job_id in pasts}
    return {**pasts, **live}


def _group_row(look: SiteView, name: str, pasts: list[PastJob]) -> dict[str, Any]:
    live = [look.core.jobs[one.spec.id] for one in pasts if one.spec.id in look.core.jobs]
    running = sum(record.active for record in live)
    told = [(one.loss, one.spec.id) for one in pasts if one.loss is not None]
    loss, best = min(told, default=(None, None))
    return {
        "name": name,
        "trials": len(pasts),
        "running": running,
        "waiting": len(live) - running,
        "over": len(pasts) - len(live),
        "best": best,
        "loss": loss,
    }


def group_document(site: LiveSite, caller: Caller, name: str) -> dict[str, Any]:
    """The newest trials that the caller may see, in order of submission; `best` has the least loss.

    Raises:
        StoreFailure: the store cannot be read.
    """
    pasts = _trials(site, caller, name)

    def rows(look: SiteView) -> list[dict[str, Any]]:
        known = replace(look, history=_newest(look, pasts))
        return [job_row(known, job_id) for job_id in pasts]

    trials = site.look(rows)
    told = [row for row in trials if row["loss"] is not None]
    best = min(told, key=lambda row: (row["loss"], row["id"]), default=None)
    return {"schema": GROUP, "name": name, "trials": trials, "best": best and best["id"]}
