"""What statuses of queues say: who waits, who runs, what is held and how much of it is borrowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import UNSET

from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.pending_pods import Waiting
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.budget_status import dated, ready
from wattherd.kube.facts.power_kinds import Queue, QueueStatus
from wattherd.kube.facts.power_plan import PlanVerdict
from wattherd.kube.facts.queue_plan import DEFAULT, QueueState
from wattherd.kube.facts.workload import queue_of
from wattherd.policy.queue.tree import QueueTree


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """By queue, those above included: pods that wait, pods that run, GPUs; and of the cluster."""

    pending: Counter[str] = field(default_factory=Counter)
    admitted: Counter[str] = field(default_factory=Counter)
    gpus: Counter[str] = field(default_factory=Counter)
    total: int = 0
    recent: Mapping[str, float] = field(default_factory=dict)
    """GPUs that queues held lately, where that decides."""


def figures(
    state: QueueState,
    waiting: Iterable[Waiting],
    fleet: NodeFleet,
    pods: Mapping[str, Pod],
    owns: Callable[[Pod], bool],
) -> QueueFigures:
    """Of all pods that the scheduler `owns`."""
    total, tree = sum(facts.spec.gpu_count for facts in fleet.nodes.values()), state.tree
    found = QueueFigures(total=total, recent=dict(state.lately.gpus))
    if tree is None:
        return found
    for one in waiting:
        for member in one.members:
            if member.uid not in fleet.holdings:
                found.pending.update(_path(tree, member.pod))
    for uid in fleet.holdings:
        pod = pods.get(uid)
        if pod is not None and owns(pod):
            gpus = sum(len(seat.gpus) for seat in fleet.seats(uid))
            for name in _path(tree, pod):
                found.admitted[name] += 1
                found.gpus[name] += gpus
    return found


def _path(tree: QueueTree, pod: Pod) -> tuple[str, ...]:
    place = tree.leaf(queue_of(pod)) or tree.leaf(DEFAULT)
    return () if place is None else place.ancestors


def queue_status(
    queue: Queue, state: QueueState, figures: QueueFigures, now_s: float
) -> QueueStatus:
    """The status of a queue."""
    name = queue.metadata.name
    try:
        place = None if state.tree is None else state.tree[name]
    except KeyError:
        place = None
    promised = 0.0 if place is None else place.guaranteed * figures.total
    most = 0.0 if place is None else place.maximum * figures.total
    used = figures.gpus[name]
    text = f"promised {promised:.3g} of {figures.total} GPUs, at most {most:.3g}"
    verdict = state.verdicts.get(name, PlanVerdict())
    fades = place is not None and place.half_life_s is not None
    return QueueStatus(
        observed_generation=queue.metadata.generation,
        pending=figures.pending[name],
        admitted=figures.admitted[name],
        guaranteed_gpus=round(promised, 3),
        used_gpus=used,
        borrowed_gpus=round(max(0.0, used - promised), 3),
        recent_gpus=round(figures.recent.get(name, 0.0), 1) if fades else UNSET,
        conditions=dated(
            [ready(verdict, text)], queue.status.conditions, queue.metadata.generation, now_s
        ),
    )
