"""What an agent writes to the API, and when: little, and only what changed.

A cluster of 5,000 nodes whose agents wrote every second would do nothing else. Watts of a node are
written when they have moved by a twentieth, at most every `LEAST_S`, and every `MOST_S` in any
case, so that a reader can tell old news; limits and problems when they change. What a pod may draw
is told at once, since others wait for it; only when it becomes unknown is that told after
`PATIENCE_S`, as a driver that does not answer once is no news.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.kube.api import names
from wattherd.kube.decide.agent_caps import GpuState, PodCapWish, applied_w

LEAST_S, MOST_S = 30.0, 300.0
MOVED = 0.05
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeNote:
    """Labels and annotations of a node that are the agent's, all of them."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodNote:
    """What is to be written on a pod (by uid): the watts that hold; None takes it off."""

    uid: str
    key: str
    applied_w: float | None


def limits_labels(gpus: Sequence[GpuState]) -> dict[str, str]:
    """Between which caps every GPU of the node can be held, in whole watts, inwards."""
    lowest = [one.lowest_w for one in gpus if one.lowest_w is not None]
    highest = [one.highest_w for one in gpus if one.highest_w is not None]
    labels = {names.AGENT: "true"}
    if gpus and len(lowest) == len(highest) == len(gpus):
        labels[names.GPU_CAP_MIN_W] = str(-int(-max(lowest) // 1))
        labels[names.GPU_CAP_MAX_W] = str(int(min(highest) // 1))
    return labels


@dataclass(slots=True)
class NodeNotes:
    """Decides when a node's own notes are worth a write."""

    _since: str = ""
    _labels: Mapping[str, str] = field(default_factory=dict)
    _problem: str = ""
    _at_rest: str | None = None
    _draw_w: float | None = None
    _at_s: float = float("-inf")

    def due(
        self,
        draw_w: float | None,
        gpus: Sequence[GpuState],
        problem: str,
        now_s: float,
        stamp: str,
        at_rest: str | None = None,
    ) -> NodeNote | None:
        """What to write now; `stamp` is the time as the API writes it. None: nothing.

        What is `at_rest` is told at once, since pods wait for it.
        """
        labels = limits_labels(gpus) if gpus else {**self._labels, names.AGENT: "true"}
        changed = labels != self._labels or problem != self._problem
        if at_rest == self._at_rest:
            if not changed and not self._draw_is_news(draw_w, now_s):
                return None
            if changed and now_s - self._at_s < PATIENCE_S:
                return None
        self._labels, self._problem, self._draw_w, self._at_s = labels, problem, draw_w, now_s
        self._at_rest = at_rest
        self._since = self._since or stamp
        annotations = {names.AGENT_SINCE: self._since}
        if problem:
            annotations[names.AGENT_PROBLEM] = problem
        if at_rest is not None:
            annotations[names.AT_REST] = at_rest
        if draw_w is not None:
            annotations |= {names.DRAW_W: f"{draw_w:.0f}", names.DRAW_AT: stamp}
        return NodeNote(labels, annotations)

    def failed(self) -> None:
        """It was not written: it is due again after the least time."""
        self._labels, self._draw_w, self._at_rest = {}, None, None

    def _draw_is_news(self, draw_w: float | None, now_s: float) -> bool:
        since_s = now_s - self._at_s
        if since_s < LEAST_S:
            return False
        if since_s >= MOST_S or (draw_w is None) != (self._draw_w is None):
            return True
        if draw_w is None or self._draw_w is None:
            return False
        return abs(draw_w - self._draw_w) > MOVED * max(abs(self._draw_w), 1.0)


@dataclass(slots=True)
class PodNotes:
    """What pods are to be told; remembers since when a cap in force is not known."""

    _unknown_since_s: dict[str, float] = field(default_factory=dict)

    def due(
        self, wishes: Iterable[PodCapWish], gpus: Sequence[GpuState], now_s: float
    ) -> list[PodNote]:
        """What differs from what their annotations say."""
        told, unknown = [], dict[str, float]()
        for wish in wishes:
            held_w = applied_w(wish, gpus)
            if held_w is None and wish.cap_w is not None and wish.told_w:
                unknown[wish.uid] = self._unknown_since_s.get(wish.uid, now_s)
                if now_s - unknown[wish.uid] < PATIENCE_S:
                    continue
            if show(held_w) != wish.told_w:
                told.append(PodNote(wish.uid, wish.key, held_w))
        self._unknown_since_s = unknown
        return told


def show(held_w: float | None) -> str:
    """As it stands in the annotation, rounded up so that all is counted; empty for none."""
    return "" if held_w is None else f"{-(-held_w * 10 // 1) / 10:g}"
