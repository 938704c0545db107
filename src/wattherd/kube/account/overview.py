"""A cluster in one row: nodes, GPUs, who waits, what is drawn, may be drawn, and was allowed.

Metered watts are those that agents wrote on nodes, as far as they are not older than `OLD_S`; what
may be drawn is counted as by scheduler and extender; the budget is of the power domains at the top.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from wattherd.errors import UserError
from wattherd.kube.account.domains import Domains, columns_of
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.facts.domain_tree import SITE
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.pod_request import ask_of_foreign, gpus_of
from wattherd.kube.facts.power_kinds import PowerDomain
from wattherd.units import plain, watts

OLD_S = 900.0
"""Agents write every five minutes at least."""
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Counts and watts; None where nobody tells. `metered` is how many nodes tell their watts."""

    nodes: int
    nodes_ready: int
    nodes_off: int
    gpus: int
    gpus_used: int
    pods_waiting: int
    metered: int
    draw_w: float | None
    may_draw_w: float
    budget_w: float | None


def overview(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    domains: Iterable[PowerDomain],
    fleet: NodeFleet,
    now_s: float,
) -> Overview:
    """Of what a cluster shows at the Unix time `now_s`; `fleet` is empty and is filled."""
    nodes, pods = list(nodes), [pod for pod in pods if pod.status.phase not in _OVER]
    for node in nodes:
        fleet.node_seen(node_facts(node))
    for pod in pods:
        if pod.spec.node_name:
            fleet.hold(_held(pod))
    drawn = [w for node in nodes if (w := draw_of(node, now_s)) is not None]
    used = sum(len(seat.gpus) for pod in pods for seat in fleet.seats(pod.metadata.uid))
    gpus = sum(facts.spec.gpu_count for facts in fleet.nodes.values())
    return Overview(
        nodes=len(nodes),
        nodes_ready=sum(map(_is_ready, nodes)),
        nodes_off=sum(node.metadata.annotation(names.SWITCHED) == names.OFF for node in nodes),
        gpus=gpus,
        gpus_used=min(used, gpus),
        pods_waiting=sum(not pod.spec.node_name for pod in pods),
        metered=len(drawn),
        draw_w=math.fsum(drawn) if drawn else None,
        may_draw_w=_maydraw_of(fleet),
        budget_w=_budget_w(domains),
    )


def _held(pod: Pod) -> Holding:
    about = pod.metadata
    return Holding(
        uid=about.uid,
        key=f"{about.namespace}/{about.name}",
        ask=ask_of_foreign(pod),
        node=pod.spec.node_name,
        gpus=gpus_of(pod),
        confirmed=True,
    )


def _is_ready(node: Node) -> bool:
    conditions = node.status.conditions or ()
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def draw_of(node: Node, now_s: float) -> float | None:
    """What its agent wrote, unless that is old."""
    written, stamp = (node.metadata.annotation(key) for key in (names.DRAW_W, names.DRAW_AT))
    try:
        at_s = calendar.timegm(time.strptime(stamp or "", "%Y-%m-%dT%H:%M:%SZ"))
        return watts(plain(written or "")) if abs(now_s - at_s) <= OLD_S else None
    except (ValueError, UserError):
        return None


def _maydraw_of(fleet: NodeFleet) -> float:
    placer = fleet.placer
    if placer is None:
        return 0.0
    carried = Domains({}).carried_mw(columns_of(fleet.order), placer.state)
    return carried[SITE] / 1000


def _budget_w(domains: Iterable[PowerDomain]) -> float | None:
    """Of all domains at the top that have one."""
    tops = [one.status for one in domains if one.spec.parent in (UNSET, "") and one.status]
    stated = [one.budget_watts for one in tops if one.budget_watts is not UNSET]
    return math.fsum(stated) if stated else None
