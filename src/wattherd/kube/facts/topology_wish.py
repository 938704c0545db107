"""In which place of the network the pods of a gang want to be: one rack, block or NVLink domain.

Nodes of equal labels are one place. Read are a native group's `schedulingConstraints`, and the
annotations of Kueue (`podset-required-topology`, `podset-preferred-topology`) and of KAI
(`topology-required-placement`, `topology-preferred-placement`) on pods; their value is the label
of a level. A ladder names the labels of all levels, from the widest on: then a place is told by
the labels above as well, and who prefers a level that has no room gets the next wider one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import Pod

Ladder = tuple[str, ...]
"""Labels of levels, the widest first."""
Level = tuple[str, ...]
"""Labels in which the nodes of one place are equal; the last one names the level."""


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """One place of the first of `levels` that has room; outside of them only unless they `must`.

    Pods of a gang that are of one `kin` share a place.
    """

    levels: tuple[Level, ...]
    must: bool
    kin: str = ""


def topology_wish(
    pod: Pod, group: PodGroup | None, ladders: Sequence[Ladder] = ()
) -> TopologyWish | None:
    """What a pod, or the object of its group, asks for; None where neither asks."""
    constraints = None if group is None else group.spec.scheduling_constraints
    keys = tuple(one.key for one in (constraints.topology or ()) if one.key) if constraints else ()
    stated = keys[0] if keys else _first(pod, names.REQUIRED_TOPOLOGY)
    must = (keys,) if len(keys) > 1 else _rungs(stated, ladders)[:1]
    wanted = _rungs(_first(pod, names.PREFERRED_TOPOLOGY), ladders)
    within = must[0] if must else ()
    wanted = tuple(tuple(dict.fromkeys((*within, *one))) for one in wanted)
    levels = tuple(dict.fromkeys((*wanted, *must)))
    kin = "" if keys else _pod_set(pod)
    return TopologyWish(levels, bool(must), kin) if levels else None


def _first(pod: Pod, annotations: Sequence[str]) -> str:
    return next((text for one in annotations if (text := pod.metadata.annotation(one))), "")


def _rungs(label: str, ladders: Sequence[Ladder]) -> tuple[Level, ...]:
    """The level of a label, then those above it, the narrowest first."""
    if not label:
        return ()
    ladder = next((one for one in ladders if label in one), (label,))
    return tuple(ladder[:at] for at in range(ladder.index(label) + 1, 0, -1))


def _pod_set(pod: Pod) -> str:
    """Which of several sets of like pods of its gang it is of."""
    about = pod.metadata
    found = (about.label(one) for one in (names.JOBSET_REPLICATED_JOB, names.REPLICA_TYPE))
    return next((name for name in found if name), "")
