"""One round of a node's agent: what pods ask for is held, and what holds is told.

GPUs that no pod has may be held at their lowest cap, and that is promised on the node
(`gpus_at_rest`). A promise is taken back before it is broken: what cannot be written raises no cap.
Reads no clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from wattherd.errors import UserError
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.agent_caps import (
    HeldGpus,
    NodeRound,
    PodCapWish,
    caps_of,
    held_gpus,
    is_at_rest,
    limit_of,
    wishes_of,
)
from wattherd.kube.decide.agent_notes import NodeNote, NodeNotes, PodNote, PodNotes
from wattherd.kube.decide.node_loop import NodePower
from wattherd.kube.facts.gpus_at_rest import promised, written


class NodeCapSetter(Protocol):
    """What holds caps; every method may raise `ClusterError`."""

    def look(self) -> NodeRound:
        """Tell what is; what was ordered goes on."""
        ...

    def hold(
        self, caps_w: Mapping[str, float], lease_s: float, limit_w: float | None = None
    ) -> NodeRound:
        """Hold these by UUID for so long, put back all others, and tell what is.

        `limit_w` is what the node may draw; None leaves its limit as it was.
        """
        ...

    def put_back(self) -> None:
        """Put back all that was changed."""
        ...


class WritesNotes(Protocol):
    """What writes to the API what an agent tells."""

    def apply_pod(self, told: PodNote) -> None:
        """Write what a pod is told."""
        ...

    def apply_node(self, node: Node, note: NodeNote) -> bool:
        """Whether the node's own notes were written."""
        ...


class AgentRound:
    """Rounds over the devices that `caps` holds; one that `rests` has idle GPUs at rest."""

    def __init__(self, caps: NodeCapSetter, writer: WritesNotes, *, rests: bool = False) -> None:
        """Nothing is known yet, and nothing asked."""
        self._caps, self._writer, self._rests = caps, writer, rests
        self._node_notes, self._pod_notes = NodeNotes(), PodNotes()
        self._look: NodeRound | None = None
        self._assigned: dict[str, Sequence[str]] | None = None
        self._asked_w: dict[str, float] | None = None
        self._limit_w: float | None = None
        self._looked_at_promise = False
        self._but: frozenset[str] | None = None
        """Pods whose GPUs are not promised to be at rest; None where nothing is promised."""
        self._exempt: frozenset[str] = frozenset()
        """GPUs that these pods had."""
        self._problem = ""

    def power(self) -> NodePower | None:
        """The node as its loop saw it last; None before, and where nothing is held."""
        return None if self._look is None else self._look.power

    def go_on(self, left_s: float) -> None:
        """Hold what was asked for last, for `left_s`."""
        if self._asked_w is not None:
            self._caps.hold(self._asked_w, left_s)

    def work(
        self, node: Node, pods: Sequence[Pod], lowest_w: Mapping[str, float], now_s: float,
        unix_s: float, left_s: float,
    ) -> str:  # fmt: skip
        """Have held what is asked for now, for `left_s`, and tell it: what is wrong, if anything.

        `lowest_w` is by uid the lowest cap that was asked for lately.
        """
        look = self._look if self._look is not None and self._look.gpus else self._caps.look()
        self._look = look
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
        wishes = self._wishes(node, pods, look, lowest_w)
        trouble = self._hear_limit(node)
        if look.gpus:
            asked_w = self._wanted_w(node, pods, look, wishes)
            for _ in range(2):
                if self._take_back(node, pods, look, now_s, stamp):
                    look = self._held(asked_w, left_s)
                elif self._asked_w is not None:
                    look = self._held(_lower(self._asked_w, asked_w), left_s)
                wishes = self._wishes(node, pods, look, lowest_w)
                before_w, asked_w = asked_w, self._wanted_w(node, pods, look, wishes)
                if asked_w == before_w:  # else it was not known before who has which
                    break
        held = self._held_by(node, pods, look)
        if self._rests and held is None:
            trouble = trouble or "it is not known which GPUs no pod has: none can rest"
        self._problem = "; ".join(
            [*filter(None, [trouble]), *_problems(look, wishes, silent=left_s <= 0)]
        )
        for told in self._pod_notes.due(wishes, look.gpus, now_s):
            self._writer.apply_pod(told)
        self._write_node(node, look, now_s, stamp, self._promise(look, held))
        return self._problem

    def _wishes(
        self, node: Node, pods: Sequence[Pod], look: NodeRound, lowest_w: Mapping[str, float]
    ) -> list[PodCapWish]:
        """Who has which GPU does not change while a pod lives, also where nobody tells it now."""
        if look.assigned is not None:
            self._assigned = dict(look.assigned)
        elif self._assigned is not None:
            here = {f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods}
            self._assigned = {key: ids for key, ids in self._assigned.items() if key in here}
        return wishes_of(pods, node, look.gpus, self._assigned, lowest_w)

    def _wanted_w(
        self, node: Node, pods: Sequence[Pod], look: NodeRound, wishes: Sequence[PodCapWish]
    ) -> dict[str, float]:
        """Watts by UUID: what pods are asked for, and the lowest of GPUs that no pod has."""
        held = self._held_by(node, pods, look)
        idle = () if held is None else held.idle
        rest_w = {one.uuid: one.lowest_w for one in idle if one.lowest_w is not None}
        return caps_of(wishes) | rest_w

    def _held_by(self, node: Node, pods: Sequence[Pod], look: NodeRound) -> HeldGpus | None:
        """Whose GPUs do not rest; None where none do, or nobody knows who has which."""
        return held_gpus(pods, node, look.gpus, self._assigned) if self._rests else None

    def _held(self, asked_w: dict[str, float], left_s: float) -> NodeRound:
        self._asked_w = asked_w
        self._look = self._caps.hold(asked_w, left_s, self._limit_w)
        return self._look

    def _hear_limit(self, node: Node) -> str:
        """Take the node's limit; what is wrong with it, where the one before goes on to hold."""
        try:
            self._limit_w = limit_of(node)
        except UserError as error:
            return error.line()
        return ""

    # The promise ----------------------------------------------------------------------------------

    def _promise(self, look: NodeRound, held: HeldGpus | None) -> frozenset[str] | None:
        """What can be promised now."""
        if held is None or not look.gpus:
            return None
        awake = {one.uuid for one in held.idle if not is_at_rest(one)}
        if not awake:
            self._exempt = held.theirs
            return held.by
        # Those of pods that just ended have not been read back yet: these are named still. Others
        # may have been lost and found, with the caps that their driver gives them.
        return self._but if awake <= self._exempt else None

    def _take_back(
        self, node: Node, pods: Sequence[Pod], look: NodeRound, now_s: float, stamp: str
    ) -> bool:
        """Whether no GPU is promised to rest that will not: else that is written first."""
        if not self._looked_at_promise:
            before = promised(node)
            self._but, self._looked_at_promise = before.but if before else None, True
        if self._but is None:
            return True
        held = self._held_by(node, pods, look)
        if held is None:
            return self._write_node(node, look, now_s, stamp, None)
        if held.by <= self._but:
            self._exempt |= held.theirs
            return True
        if not self._write_node(node, look, now_s, stamp, self._but | held.by):
            return False
        self._exempt |= held.theirs
        return True

    def _write_node(
        self, node: Node, look: NodeRound, now_s: float, stamp: str, but: frozenset[str] | None
    ) -> bool:
        """Whether the node says so, as far as it was due."""
        told = written(but, node) if self._rests else None
        note = self._node_notes.due(look.draw_w, look.gpus, self._problem, now_s, stamp, told)
        if note is None:
            return True
        if not self._writer.apply_node(node, note):
            # It may have come through all the same: what either promises must hold.
            if but is not None:
                self._but = but if self._but is None else self._but & but
            self._node_notes.failed()
            return False
        self._but = but
        return True


def _lower(held_w: Mapping[str, float], asked_w: Mapping[str, float]) -> dict[str, float]:
    """Of two caps the lower; of none and one, the one."""
    return {
        uuid: min(each[uuid] for each in (held_w, asked_w) if uuid in each)
        for uuid in (*held_w, *asked_w)
    }


def _problems(look: NodeRound, wishes: Sequence[PodCapWish], *, silent: bool) -> list[str]:
    found = [*look.problems, *(f"{one.key}: {one.problem}" for one in wishes if one.problem)]
    return [*found, "who decides is silent: caps sink to the safe one"] if silent else found
