"""What kube-scheduler sends an extender, and what it takes for an answer (extender API v1).

Names are Go's, capitalised. Nodes come as names only: an extender that is sent whole nodes costs
the scheduler 1.6 MB a call at 1,000 nodes and loses part of its own scores, so that is refused.
Scores must be integers: others are silently ignored by the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wattherd.errors import UserError
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.extender import TOP_SCORE, ExtenderVerdict


class Args(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", gc=False):
    """Of filter and prioritize."""

    pod: Pod = Pod()
    nodes: msgspec.Raw | None = None
    node_names: list[str] | None = None


class BindArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", gc=False):
    """Of bind."""

    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = ""


class _Filtered(msgspec.Struct, rename="pascal"):
    node_names: list[str]
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str = ""


class _Score(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _Bound(msgspec.Struct, rename="pascal"):
    error: str


_ARGS = msgspec.json.Decoder(Args)
_BIND = msgspec.json.Decoder(BindArgs)
_ENCODE = msgspec.json.Encoder().encode


def read_args(body: bytes) -> tuple[Pod, list[str]]:
    """The pod, and the names of the nodes asked about.

    Raises:
        UserError: not what kube-scheduler sends, or whole nodes instead of names.
    """
    try:
        args = _ARGS.decode(body)
    except msgspec.DecodeError as error:
        raise UserError(f"no extender arguments: {error}") from None
    if args.node_names is None:
        hint = "set nodeCacheCapable: true in the scheduler's configuration"
        raise UserError("names of nodes are needed", field="NodeNames", hint=hint)
    return args.pod, args.node_names


def read_bind(body: bytes) -> BindArgs:
    """Which pod is to be bound where.

    Raises:
        UserError: not what kube-scheduler sends.
    """
    try:
        return _BIND.decode(body)
    except msgspec.DecodeError as error:
        raise UserError(f"no extender arguments: {error}") from None


def filtered(verdict: ExtenderVerdict, node_names: Sequence[str]) -> bytes:
    """The answer to filter: one node, or why not on each of them."""
    if verdict.node is not None:
        return _ENCODE(_Filtered([verdict.node], {}, {}))
    failed: dict[str, str] = {}
    lasting: dict[str, str] = {}
    whole = verdict.refusals.get("")
    lines: dict[int, tuple[dict[str, str], str]] = {}
    for name in node_names:
        refusal = whole or verdict.refusals[name]
        said = lines.get(id(refusal))  # one for thousands of nodes
        if said is None:
            said = (lasting if refusal.token.lasting else failed, refusal.line())
            lines[id(refusal)] = said
        said[0][name] = said[1]
    return _ENCODE(_Filtered([], failed, lasting))


def filter_error(problem: str) -> bytes:
    """No decision could be made; the pod is tried again (nothing is bound without a decision)."""
    return _ENCODE(_Filtered([], {}, {}, problem))


def scores(by_node: Mapping[str, int]) -> bytes:
    """The answer to prioritize: whole numbers from 0 to 10, whatever comes in."""
    return _ENCODE(
        [_Score(name, max(0, min(TOP_SCORE, int(score)))) for name, score in by_node.items()]
    )


def bound(problem: str = "") -> bytes:
    """The answer to bind; empty is success."""
    return _ENCODE(_Bound(problem))
