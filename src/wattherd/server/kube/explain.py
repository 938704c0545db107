"""Why a pod of a Kubernetes cluster waits, from what the API shows alone.

What was told of it (condition, events, what was written with its binding) stands beside what the
core finds on a snapshot of this moment: the same planner places all that wait, and what keeps this
pod is counted on the account that is left. So pods that nobody explains, as those of other
schedulers and of native groups that wait in silence, are explained as if they were ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from wattherd.errors import UserError
from wattherd.kube.api import names
from wattherd.kube.api.access import find_access
from wattherd.kube.api.event_objects import ApiEvent
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.feasibility import remedy_document
from wattherd.kube.decide.what_if import Attempt
from wattherd.kube.facts.cluster_snapshot import SET_FIELDS, ClusterSnapshot
from wattherd.kube.facts.pod_groups import group_of
from wattherd.kube.live.cluster_reader import events_of, last_time
from wattherd.server.kube.what_if import Supposed, attempt, power, take
from wattherd.spelling import hint_for

SCHEMA = "wattherd.kube.explain/1"
_MOST_EVENTS = 5
_GATED = "SchedulingGated"
_STOCK = "default-scheduler"
_WRITTEN = (names.WATTS, names.DOMAIN, names.GPUS, names.DECISION, names.EPOCH)


def explain_pod(
    name: str,
    namespace: str,
    *,
    kubeconfig: Path | None,
    context: str | None,
    supposed: Supposed,
) -> dict[str, Any]:
    """A pod of the cluster, explained: `wattherd.kube.explain/1`.

    Raises:
        UserError: there is no such pod, or the cluster cannot be read.
    """
    snapshot = take(kubeconfig, context, supposed.budgets)
    pod = found(snapshot, namespace, name)
    events = events_of(find_access(kubeconfig, context), namespace, name)
    return explained(snapshot, pod, events, supposed)


def found(snapshot: ClusterSnapshot, namespace: str, name: str) -> Pod:
    """The pod of that name.

    Raises:
        UserError: there is none; a pod that is over is not in a snapshot.
    """
    there = [pod for pod in snapshot.pods or () if pod.metadata.namespace == namespace]
    for pod in there:
        if pod.metadata.name == name:
            return pod
    hint = hint_for(name, [pod.metadata.name for pod in there]) or "see `kubectl get pods -A`"
    raise UserError(f"no pod {name!r} waits or runs in namespace {namespace!r}", hint=hint)


def explained(
    snapshot: ClusterSnapshot, pod: Pod, events: Sequence[ApiEvent], supposed: Supposed
) -> dict[str, Any]:
    """The document; `events` are what was told of the pod, oldest first."""
    spec, about = pod.spec, pod.metadata
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "pod": f"{about.namespace}/{about.name}",
        "scheduler": spec.scheduler_name or _STOCK,
        "node": spec.node_name or None,
        "priority": spec.priority or 0,
        "gates": [gate.name for gate in spec.scheduling_gates or ()],
        "told": _condition(pod),
        "events": [_event(one) for one in events[-_MOST_EVENTS:]],
        "written": _written(pod),
        "gang": None,
        "reason": None,
        "text": "",
        "would_start": [],
        "power": [],
    }
    if spec.node_name:
        return document | {"state": "Placed"}
    return document | _why(snapshot, pod, supposed)


def _condition(pod: Pod) -> str | None:
    for one in pod.status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False":
            return one.message or one.reason
    return None


def _event(event: ApiEvent) -> dict[str, Any]:
    count = event.series.count if event.series is not None else 1
    return {
        "last": last_time(event),
        "from": event.reporting_controller,
        "reason": event.reason,
        "note": event.note,
        "times": count,
    }


def _written(pod: Pod) -> dict[str, str]:
    given = pod.metadata.annotations or {}
    return {name.removeprefix(names.OURS): given[name] for name in _WRITTEN if name in given}


# Why it waits -----------------------------------------------------------------------------------


def _why(snapshot: ClusterSnapshot, pod: Pod, supposed: Supposed) -> dict[str, Any]:
    """What the core says if pods of its scheduler were ours, and its gates gone."""
    name = pod.spec.scheduler_name or _STOCK
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if name == _STOCK and names.GATE not in gates:
        snapshot = _without_sets(snapshot)
    asked = Supposed(policy=supposed.policy, history=supposed.history, scheduler=name)
    trial = attempt(snapshot, asked, lambda other: _adopted(other, name, pod))
    outcome = trial.settle()
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    found = {"state": "Waiting", "gang": _gang(trial, pod), "power": power(trial.scheduler)}
    start = next((one for one in outcome.starts if one.pod == key), None)
    if start is not None:
        text = f"there are room and watts on {start.node}"
        if not gates:
            return found | {"reason": "NothingSeen", "text": f"{text}; does {name} run?"}
        return found | {"reason": _GATED, "text": f"held by {', '.join(gates)}; {text}"}
    token, text = outcome.waits.get(key, ("Unknown", "the core says nothing of it"))
    if gates:
        token, text = _GATED, f"held by {', '.join(gates)}; beside that {token}: {text}"
    members = trial.scheduler.waits_with(pod.metadata.uid)
    remedies = trial.scheduler.remedies.of(members) if members else []
    return found | {
        "reason": token,
        "text": text,
        "would_start": [remedy_document(one) for one in remedies],
    }


def _without_sets(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """As kube-scheduler sees it, to which the pods of a set are pods like any other."""
    return replace(snapshot, **dict.fromkeys(SET_FIELDS.values()))


def _adopted(other: Pod, name: str, pod: Pod) -> Pod:
    """Pods that name no scheduler have the default one; gates of this pod's gang are gone."""
    spec = replace(other.spec, scheduler_name=other.spec.scheduler_name or _STOCK)
    group = group_of(pod)
    same = other.metadata.uid == pod.metadata.uid or (group and group_of(other) == group)
    if same and spec.scheduler_name == name:
        spec = replace(spec, scheduling_gates=None)
    return replace(other, spec=spec)


def _gang(trial: Attempt, pod: Pod) -> dict[str, Any] | None:
    group = group_of(pod)
    if group is None:
        return None
    members = [one for one in trial.pods.values() if group_of(one) == group]
    return {
        "kind": str(group.kind),
        "name": group.name,
        "pods": len(members),
        "placed": sum(1 for one in members if one.spec.node_name),
    }
