"""What-if on a Kubernetes cluster: snapshots, other policies and budgets, pods that may come.

The decisions are those of `wattherd kube scheduler`, on what a snapshot holds; nothing is written
to the cluster and nothing is reserved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from wattherd.errors import UserError
from wattherd.kube.account.gpu_claims import with_claims
from wattherd.kube.api.access import find_access
from wattherd.kube.api.names import DOMAIN, GPUS, WATTS
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.decide.what_if import Attempt, Placement, WhatIfOutcome
from wattherd.kube.facts.cluster_snapshot import ClusterSnapshot, snapshot_of
from wattherd.kube.facts.power_kinds import PowerBudgetSpec
from wattherd.kube.facts.power_plan import PowerPlan, Timetable
from wattherd.kube.facts.queue_plan import QueuePlan
from wattherd.kube.live import cluster_reader as snapshot_live
from wattherd.server.kube.budgets import open_timetable
from wattherd.server.kube.run import KubeOptions, budgets_mw, fleet_of
from wattherd.units import watts

WHAT_IF = "wattherd.kube.what_if/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """What is to be tried: pods of `scheduler` placed by `policy` under changed budgets.

    `budgets` are `40kW`, `0.9x`, `DOMAIN=8kW` or `DOMAIN=0.9x`, the later ones on top. `afresh`
    takes the scheduler's pods off their nodes first.
    """

    policy: str = "wattherd"
    history: Path | None = None
    budgets: tuple[str, ...] = ()
    scheduler: str = "wattherd"
    afresh: bool = False


def take(
    kubeconfig: Path | None, context: str | None, budgets: Iterable[str] = ()
) -> ClusterSnapshot:
    """The cluster as it is; `budgets` stand beside those of its PowerBudget objects.

    Raises:
        UserError: a cluster that cannot be found or may not be read.
        Unreachable: one that does not answer.
    """
    listed = snapshot_live.listed(find_access(kubeconfig, context))
    listed["nodes"], listed["pods"] = with_claims(
        listed["nodes"],
        listed["pods"],
        listed.get("gpu_slices", ()),
        listed.get("gpu_claims", ()),
    )
    plan = PowerPlan(open_timetable, budgets_mw(budgets))
    try:
        for domain in listed.get("power_domains", ()):
            plan.domain_seen(domain.metadata.name, domain)
        for budget in listed.get("power_budgets", ()):
            plan.budget_seen(budget.metadata.name, budget)
        limits = plan.state(time.time()).budgets_mw
    finally:
        plan.close()
    return snapshot_of(listed, {name: mw / 1000 for name, mw in limits.items()})


def attempt(
    snapshot: ClusterSnapshot, supposed: Supposed, alter: Callable[[Pod], Pod] = lambda pod: pod
) -> Attempt:
    """A scheduler on the snapshot, to which everything was shown and that has decided nothing.

    Raises:
        UserError: a policy, file or budget that cannot be used.
    """
    options = KubeOptions(policy=supposed.policy, history=supposed.history)
    scheduler = KubeScheduler(fleet_of(options), name=supposed.scheduler, holder="what-if")
    plan = PowerPlan(_closed)
    for domain in snapshot.power_domains or ():
        plan.domain_seen(domain.metadata.name, domain)
    given = {name: round(1000 * w) for name, w in (snapshot.budgets_w or {}).items()}
    scheduler.power_seen(plan.state(0.0).tree, changed(given, supposed.budgets))
    queues = QueuePlan()
    for queue in snapshot.queues or ():
        queues.queue_seen(queue.metadata.name, queue)
    scheduler.queues_seen(queues.state())
    made = Attempt(scheduler)
    made.show(snapshot, lambda pod: alter(_afresh(pod, supposed)))
    return made


def _closed(spec: PowerBudgetSpec, limit_w: float | None) -> Timetable:
    raise UserError(f"a snapshot has no budget objects: {spec.domain} {limit_w}")


def _afresh(pod: Pod, supposed: Supposed) -> Pod:
    if not (supposed.afresh and pod.spec.scheduler_name == supposed.scheduler):
        return pod
    ours = {GPUS, WATTS, DOMAIN}
    kept = {k: v for k, v in (pod.metadata.annotations or {}).items() if k not in ours}
    about = replace(pod.metadata, annotations=kept)
    return replace(pod, metadata=about, spec=replace(pod.spec, node_name=""))


def changed(budgets: Mapping[str, int], changes: Iterable[str]) -> dict[str, int]:
    """Budgets (mW) with `40kW`, `0.9x`, `DOMAIN=8kW` or `DOMAIN=0.9x` applied in their order.

    Raises:
        UserError: one that cannot be read, or a part of a budget that there is not.
    """
    found = dict(budgets)
    for text in changes:
        domain, equals, amount = text.rpartition("=")
        if not amount.endswith("x"):
            found[domain] = round(1000 * watts(amount, field="--budget"))
            continue
        named = [domain] if equals else sorted(found)
        if not named or any(name not in found for name in named):
            problem = f"{text!r} is a part of a budget, and there is no such budget"
            raise UserError(problem, field="--budget", hint="name watts, as in 40kW")
        for name in named:
            found[name] = round(found[name] * _part(amount, text))
    return found


def _part(amount: str, text: str) -> float:
    try:
        part = float(amount.removesuffix("x"))
    except ValueError:
        part = -1.0
    if not 0.0 <= part < 1000.0:
        raise UserError(f"{text!r} is no budget", field="--budget", hint="40kW, or 0.9x")
    return part


# What would change ------------------------------------------------------------------------------


def compare(
    snapshot: ClusterSnapshot, policies: Sequence[str], supposed: Supposed
) -> dict[str, Any]:
    """What the scheduler would do now, by policy: `wattherd.kube.what_if/1`."""
    rows = []
    for policy in policies:
        trial = attempt(snapshot, _with(supposed, policy))
        rows.append({"policy": policy, **told(trial, trial.settle())})
    return {"schema": WHAT_IF, "scheduler": supposed.scheduler, "policies": rows}


def _with(supposed: Supposed, policy: str) -> Supposed:
    return Supposed(
        policy=policy,
        history=supposed.history,
        budgets=supposed.budgets,
        scheduler=supposed.scheduler,
        afresh=supposed.afresh,
    )


def told(trial: Attempt, outcome: WhatIfOutcome) -> dict[str, Any]:
    """Starts, evictions, waits and watts as a document."""
    return {
        "starts": [placement(one) for one in outcome.starts],
        "evictions": [{"pod": pod, "reason": why} for pod, why in outcome.evictions.items()],
        "waits": [
            {"pod": pod, "reason": token, "text": text}
            for pod, (token, text) in sorted(outcome.waits.items())
        ],
        "power": power(trial.scheduler),
        "gpus": _gpus(trial.scheduler),
    }


def placement(one: Placement) -> dict[str, Any]:
    """A pod, its node, and what it adds there."""
    written = one.annotations
    gpus = written.get(GPUS)
    return {
        "pod": one.pod,
        "node": one.node,
        "watts": float(written.get(WATTS, 0)),
        "power_domain": written.get(DOMAIN, ""),
        "gpus": [int(gpu) for gpu in gpus.split(",")] if gpus else None,
    }


def power(scheduler: KubeScheduler) -> list[dict[str, Any]]:
    """By domain what may be drawn at most with what is on the nodes, and the budget; watts."""
    placer = scheduler.fleet.placer
    if placer is None:
        return []
    budgets = scheduler.domains.budgets_mw
    carried = scheduler.chooser.carried_mw(placer.state)
    return [
        {
            "power_domain": name,
            "bound_w": mw / 1000,
            "budget_w": None if name not in budgets else budgets[name] / 1000,
        }
        for name, mw in sorted(carried.items())
    ]


def _gpus(scheduler: KubeScheduler) -> dict[str, int]:
    placer = scheduler.fleet.placer
    nodes = None if placer is None else placer.state.world.nodes
    if nodes is None:
        return {"total": 0, "in_use": 0}
    return {"total": int(nodes.gpu_count.sum()), "in_use": int(nodes.active.sum())}


# Pods that may come -----------------------------------------------------------------------------


def simulate(snapshot: ClusterSnapshot, pods: Sequence[Pod], supposed: Supposed) -> dict[str, Any]:
    """Whether `pods` would all start now, after those that wait already; nothing is reserved.

    The document is `wattherd.kube.simulate/1`.
    """
    trial = attempt(snapshot, supposed)
    trial.settle()
    return trial.scheduler.simulate(pods)
