"""Which cap each GPU of a node is to hold, and what may be told of that to whoever asked.

A pod asks by its annotation `cap-w`: what its GPUs may draw together, in equal parts. Where pods
share a GPU the lowest part holds, so that none draws more than it was given. What is told back
(`cap-applied-w`) is the sum of the limits as they were read back, never what was ordered: a GPU
that cannot go as low as asked, or whose limit is not known, must go on being counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.errors import UserError
from wattherd.kube.api import names
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.node_loop import NO_LIMIT_W, NodePower
from wattherd.kube.facts.pod_request import ask_of_foreign, gpus_of
from wattherd.units import plain, watts

_OVER = frozenset({"Succeeded", "Failed"})
STANDS_S = 3.0
"""So long must a higher cap stand, or none, until it counts; a lower one counts at once."""
MOST_ASKS = 64
SAME_W = 0.5
"""A cap nearer than this to the lowest is the lowest: drivers round."""
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
class NodeRound:
    """A node's devices after a round; `draw_w` is of all that is metered, None if nothing is.

    `assigned` is None where the kubelet was not asked, or does not tell; `power` is what the loop
    that holds the node's limits makes of it.
    """

    gpus: tuple[GpuState, ...]
    draw_w: float | None
    assigned: Assigned | None = None
    problems: tuple[str, ...] = ()
    power: NodePower | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCapWish:
    """What one pod asks for: `cap_w` for all of its GPUs; these are None where nobody knows them.

    `told_w` is what its annotation says holds, `problem` why nothing can be done.
    """

    uid: str
    key: str
    cap_w: float | None
    gpus: tuple[str, ...] | None
    told_w: str = ""
    problem: str = ""


@dataclass(slots=True)
class Lately:
    """What pods asked for in the last seconds: a raise counts once it has stood for a while.

    Somebody who may write a pod, and writes a higher cap again and again over that of whoever
    decides, gains nothing by it: the lowest cap of that time holds. So does the last one that could
    be read where what is written now cannot.
    """

    _asks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def hear(self, pod: Pod, now_s: float) -> None:
        """A pod came or changed."""
        try:
            asked_w = _asked_w(pod)
        except UserError:
            return
        asks = self._asks.setdefault(pod.metadata.uid, [])
        if not asks or asks[-1][1] != asked_w:
            asks.append((now_s, math.inf if asked_w is None else asked_w))
        self._asks[pod.metadata.uid] = _since(asks, now_s - STANDS_S)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._asks.pop(uid, None)

    def lowest_w(self, now_s: float) -> dict[str, float]:
        """By uid the lowest cap of the last seconds, in watts; infinity for none."""
        return {
            uid: min(asked_w for _, asked_w in _since(list(asks), now_s - STANDS_S))
            for uid, asks in list(self._asks.items())
        }


def _since(asks: list[tuple[float, float]], begin_s: float) -> list[tuple[float, float]]:
    """Those in force at some time after `begin_s`: a quick writer fills no memory."""
    older = [one for one in asks if one[0] <= begin_s]
    newer = [one for one in asks if one[0] > begin_s]
    if len(newer) > MOST_ASKS:
        lowest = min(newer[:-1], key=lambda one: one[1])
        newer = [(newer[-2][0], lowest[1]), newer[-1]]
    return [*older[-1:], *newer]


def wishes_of(
    pods: Iterable[Pod], node: Node, gpus: Sequence[GpuState], assigned: Assigned | None,
    lowest_w: Mapping[str, float] | None = None,
) -> list[PodCapWish]:  # fmt: skip
    """Of the pods on a node, by name: those that ask for a cap, or were told of one.

    `lowest_w` is by uid the lowest cap that was asked for lately.
    """
    lately = lowest_w or {}
    found = [
        _wish(pod, node, gpus, assigned, lately.get(pod.metadata.uid, math.inf))
        for pod in pods
        if pod.status.phase not in _OVER
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.key)


def _asked_w(pod: Pod) -> float | None:
    asked = pod.metadata.annotation(names.CAP_ASKED_W)
    return None if asked is None else watts(plain(asked), field=names.CAP_ASKED_W)


def _wish(
    pod: Pod, node: Node, gpus: Sequence[GpuState], assigned: Assigned | None, lately_w: float
) -> PodCapWish | None:
    about = pod.metadata
    asked, told = about.annotation(names.CAP_ASKED_W), about.annotation(names.CAP_APPLIED_W)
    if asked is None and told is None and math.isinf(lately_w):
        return None
    problem, cap_w = "", None
    try:
        cap_w = _asked_w(pod)
    except UserError as error:
        problem = error.line()
    if math.isfinite(lately_w):
        cap_w = lately_w if cap_w is None else min(cap_w, lately_w)
    key = f"{about.namespace}/{about.name}"
    mine = None if problem and cap_w is None else gpus_given(pod, node, gpus, assigned)
    if cap_w is not None and mine is None and not problem:
        problem = "it is not known which GPUs it has"
    return PodCapWish(
        uid=about.uid, key=key, cap_w=cap_w, gpus=mine, told_w=told or "", problem=problem
    )


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


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """Pods (by uid) that have GPUs of a node, which these are, and those that none of them has."""

    by: frozenset[str]
    theirs: frozenset[str]
    idle: tuple[GpuState, ...]


def held_gpus(
    pods: Iterable[Pod], node: Node, gpus: Sequence[GpuState], assigned: Assigned | None
) -> HeldGpus | None:
    """Who has GPUs; None where nobody knows who has which.

    Pods that are not known yet have none: what the kubelet gave them is left as it is. It may still
    tell of pods that ended, and what it gives under names of its own (parts of a GPU) is not known.
    """
    by, taken, obeys = set[str](), set[str](), node.metadata.label(names.GPU_SHARES) == "annotation"
    for pod in pods:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        told = assigned is not None and key in assigned
        if pod.status.phase in _OVER or not (told or ask_of_foreign(pod).uses_gpus):
            continue
        if assigned is not None and not told and not obeys:
            continue  # the kubelet has given it none yet
        mine = gpus_given(pod, node, gpus, assigned)
        if mine is None:
            return None
        by.add(pod.metadata.uid)
        taken.update(mine)
    idle = tuple(one for one in gpus if one.uuid not in taken)
    return HeldGpus(frozenset(by), frozenset(taken), idle)


def is_at_rest(gpu: GpuState) -> bool:
    """Whether a GPU was read back at the lowest cap that it takes."""
    if gpu.cap_w is None or gpu.lowest_w is None:
        return False
    return gpu.cap_w <= gpu.lowest_w + SAME_W


def limit_of(node: Node) -> float:
    """What the node may draw as a whole, in watts, as the API has it.

    Raises:
        UserError: what stands there is no power.
    """
    text = node.metadata.annotation(names.NODE_LIMIT)
    return NO_LIMIT_W if text is None else watts(plain(text), field=names.NODE_LIMIT)


def caps_of(wishes: Iterable[PodCapWish]) -> dict[str, float]:
    """Watts by UUID that the GPUs are to hold; GPUs of which nobody asks anything are left out."""
    caps_w: dict[str, float] = {}
    for wish in wishes:
        if wish.cap_w is None or not wish.gpus:
            continue
        part_w = wish.cap_w / len(wish.gpus)
        for uuid in wish.gpus:
            caps_w[uuid] = min(part_w, caps_w.get(uuid, math.inf))
    return caps_w


def applied_w(wish: PodCapWish, gpus: Iterable[GpuState]) -> float | None:
    """What a pod's GPUs may draw together as they were read back; None while that is not known."""
    if wish.cap_w is None or not wish.gpus:
        return None
    by_uuid = {one.uuid: one.cap_w for one in gpus}
    held = [by_uuid.get(uuid) for uuid in wish.gpus]
    known = [one for one in held if one is not None and math.isfinite(one)]
    return math.fsum(known) if len(known) == len(held) else None
