"""Queues, tenants and search groups: what jobs have in common."""

from __future__ import annotations

from typing import Literal

from wattherd.server.api.schemas.jobs import JobRow
from wattherd.server.api.schemas.shape import ApiShape, told, version
from wattherd.workload.scenario import QueueField


class GroupUse(ApiShape):
    """What live jobs hold together."""

    gpus: int = told("devices held", 6)
    running: int = told("jobs with devices", 3)
    waiting: int = told("jobs without", 1)


class QueueRow(GroupUse):
    """One queue; shares are of the whole cluster, 0 to 1."""

    name: str = told("of the queue", "research")
    parent: str = told("the queue that it is in; empty: none", "root")
    guaranteed: float = told("promised share", 0.6)
    maximum: float = told("largest share", 1.0)
    stopped: str | None = told("since when nothing more is started", None)


class QueuesDocument(ApiShape):
    """Queues as a list, parents first."""

    schema_: Literal["wattherd.queues/1"] = version("wattherd.queues/1")
    queues: list[QueueRow] = told("all of them")
    tree: QueueField | None = told(
        "as a configuration says it; null: the policy keeps no queues",
        {
            "name": "root", "guaranteed_pct": 100.0, "maximum_pct": 100.0, "user_limit_pct": 100.0,
            "user_limit_factor": 1.0, "order": "fifo", "preempts": "never", "reclaims": "any",
            "reclaimable": True, "half_life": None, "priority": 0,
            "preempts_to_borrow": "never", "preempts_to_borrow_up_to": None,
            "preempts_above_user_limit": False, "weight": 1.0, "fair_sharing": [],
            "children": [],
        },
    )  # fmt: skip


class TenantRow(GroupUse):
    """One tenant."""

    name: str = told("of the tenant; empty: jobs of none", "vision")
    most_gpus: int | None = told("that its jobs may hold together; null: no limit", 8)


class TenantsDocument(ApiShape):
    """Tenants that the caller may see."""

    schema_: Literal["wattherd.tenants/1"] = version("wattherd.tenants/1")
    tenants: list[TenantRow] = told("by name")


class GroupRow(ApiShape):
    """One search group."""

    name: str = told("of the group", "lr-sweep")
    trials: int = told("jobs of it", 16)
    running: int = told("of them", 3)
    waiting: int = told("of them", 1)
    over: int = told("of them", 12)
    best: str | None = told("the trial with the least loss", "j-12")
    loss: float | None = told("of that trial", 0.42)


class GroupsDocument(ApiShape):
    """Search groups with trials that the caller may see."""

    schema_: Literal["wattherd.groups/1"] = version("wattherd.groups/1")
    groups: list[GroupRow] = told("by name")


class GroupDocument(ApiShape):
    """The trials of a search group."""

    schema_: Literal["wattherd.group/1"] = version("wattherd.group/1")
    name: str = told("of the group", "lr-sweep")
    trials: list[JobRow] = told("in order of submission")
    best: str | None = told("the trial with the least loss", "j-12")
