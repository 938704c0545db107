"""Which cap each GPU of a node is to hold, and what may be told of that to whoever asked.

A pod asks by its annotation `cap-w`: what its GPUs may draw together, in equal parts. Where pods
share a GPU the lowest part holds, so that none draws more than it was given. What is told back
(`cap-applied-w`) is the sum of the limits as they were read back, never what was ordered: a GPU
that cannot go as low as asked, or whose limit is not known, must go on being counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.runtime.kube.api import names
from wattherd.runtime.kube.api.objects import Node, Pod
from wattherd.runtime.kube.pods.pod_ask import ask_of_foreign, gpus_of
from wattherd.units import plain, watts

_OVER = frozenset({"Succeeded", "Failed"})
Assigned = Mapping[str, Sequence[str]]
"""UUIDs of the GPUs that the kubelet gave to each pod, by namespace/name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """A GPU as it is now: watts drawn and allowed, None where nobody knows."""

    uuid: str
    number: int
    draw_w: float | None = None
    cap_w: float | None = None
    lowest_w: float | None = None
    highest_w: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A node's devices after a round; `draw_w` is of all that is metered, None if nothing is.

    `assigned` is None where the kubelet was not asked, or does not tell.
    """

    gpus: tuple[GpuState, ...]
    draw_w: float | None
    assigned: Assigned | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one pod asks for: `cap_w` for all of its GPUs; these are None where nobody knows them.

    `told_w` is what its annotation says holds, `problem` why nothing can be done.
    """

    uid: str
    key: str
    cap_w: float | None
    gpus: tuple[str, ...] | None
    told_w: str = ""
    problem: str = ""


def wishes_of(
    pods: Iterable[Pod], node: Node, gpus: Sequence[GpuState], assigned: Assigned | None
) -> list[Wish]:
    """Of the pods on a node, by name: those that ask for a cap, or were told of one."""
    found = [_wish(pod, node, gpus, assigned) for pod in pods if pod.status.phase not in _OVER]
    return sorted((one for one in found if one is not None), key=lambda one: one.key)


def _wish(pod: Pod, node: Node, gpus: Sequence[GpuState], assigned: Assigned | None) -> Wish | None:
    about = pod.metadata
    asked, told = about.annotation(names.CAP_ASKED_W), about.annotation(names.CAP_APPLIED_W)
    if asked is None and told is None:
        return None
    problem, cap_w = "", None
    try:
        cap_w = None if asked is None else watts(plain(asked), field=names.CAP_ASKED_W)
    except UserError as error:
        problem = error.line()
    key = f"{about.namespace}/{about.name}"
    mine = None if problem else gpus_given(pod, node, gpus, assigned)
    if cap_w is not None and mine is None:
        problem = "it is not known which GPUs it has"
    return Wish(uid=about.uid, key=key, cap_w=cap_w, gpus=mine, told_w=told or "", problem=problem)


def gpus_given(
    pod: Pod, node: Node, gpus: Sequence[GpuState], assigned: Assigned | None
) -> tuple[str, ...] | None:
    """UUIDs of the GPUs a pod has; None where nobody knows.

    The kubelet knows best. Numbers that the scheduler wrote count only on nodes whose device plugin
    obeys them; and whoever has as many GPUs as there are has all of them.
    """
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if assigned is not None and key in assigned:
        known = {one.uuid for one in gpus}
        mine = tuple(dict.fromkeys(assigned[key]))
        return mine if mine and known.issuperset(mine) else None
    if node.metadata.label(names.GPU_SHARES) == "annotation":
        by_number = {one.number: one.uuid for one in gpus}
        numbers = gpus_of(pod)
        if numbers is None or not by_number.keys() >= set(numbers):
            return None
        return tuple(by_number[number] for number in numbers)
    everything = ask_of_foreign(pod).whole == len(gpus) > 0
    return tuple(one.uuid for one in gpus) if everything else None


def caps_of(wishes: Iterable[Wish]) -> dict[str, float]:
    """Watts by UUID that the GPUs are to hold; GPUs of which nobody asks anything are left out."""
    caps_w: dict[str, float] = {}
    for wish in wishes:
        if wish.cap_w is None or not wish.gpus:
            continue
        part_w = wish.cap_w / len(wish.gpus)
        for uuid in wish.gpus:
            caps_w[uuid] = min(part_w, caps_w.get(uuid, math.inf))
    return caps_w


def applied_w(wish: Wish, gpus: Iterable[GpuState]) -> float | None:
    """What a pod's GPUs may draw together as they were read back; None while that is not known."""
    if wish.cap_w is None or not wish.gpus:
        return None
    by_uuid = {one.uuid: one.cap_w for one in gpus}
    held = [by_uuid.get(uuid) for uuid in wish.gpus]
    known = [one for one in held if one is not None and math.isfinite(one)]
    return math.fsum(known) if len(known) == len(held) else None
