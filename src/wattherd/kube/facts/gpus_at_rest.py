"""What a node's agent promises of free GPUs: all are at their lowest cap but those of these pods.

A pod that starts under a cap may have any of its node's free GPUs. Where all of these are at their
lowest cap beforehand, it draws no more than that until the agent, which must be alive for it,
raises them to what it was given: a start under a cap then rests on what was read back, not on an
agent that may be dead. A pod is named before its GPUs are raised, and until they were read back at
their lowest cap again. The promise is of one boot, since drivers forget caps with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wattherd.kube.api import names
from wattherd.kube.api.objects import Node

_UNKNOWN, _NOBODY = "?", "-"


@dataclass(frozen=True, slots=True)
class RestPromise:
    """All GPUs of a node are at their lowest cap but those of `but` (uids); None: maybe none is."""

    but: frozenset[str] | None = None


def promised(node: Node) -> RestPromise | None:
    """What is promised in this boot; None where the node's agent never promises anything."""
    text = node.metadata.annotation(names.AT_REST)
    if text is None:
        return None
    boot, _, told = text.partition(" ")
    if boot != _boot_of(node) or not told or told == _UNKNOWN:
        return RestPromise()
    return RestPromise(frozenset() if told == _NOBODY else frozenset(told.split(",")))


def written(but: Collection[str] | None, node: Node) -> str:
    """As it stands in the annotation."""
    told = _UNKNOWN if but is None else ",".join(sorted(but)) or _NOBODY
    return f"{_boot_of(node)} {told}"


def _boot_of(node: Node) -> str:
    return (node.status.node_info.boot_id if node.status.node_info else "") or _NOBODY
