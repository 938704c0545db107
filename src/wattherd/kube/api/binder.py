"""Binds pods to nodes, many at a time, and says of each what became of it.

A binding carries the pod's uid, so that it never meets a pod that was made anew under the same
name, and annotations that the API server copies onto the pod in the same write: what was decided
can be read back from the pod alone. The API server checks neither that the node exists nor that it
has room (measured on 1.36): whoever decides must.

A refusal is not guessed at from its text: the pod is read, and its state says why. A binding whose
outcome is unknown is looked at and, if the pod is still free, sent again to the same node only;
what stays unknown is told as `UNKNOWN`, and its reservation must be kept.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from wattherd.kube.api.api_objects import Binding, ObjectReference, decoder, encode
from wattherd.kube.api.names import DECISION
from wattherd.kube.api.objects import ObjectMeta, Pod
from wattherd.kube.api.pacing import Backoff
from wattherd.kube.api.transport import (
    ApiUnreachable,
    RefusedByApi,
    Transport,
    Withheld,
    always,
)

IN_FLIGHT = 64
"""Bindings at once; the server answers no faster with more (measured: 32 to 96 are equal)."""

SERVER_S = 4.0
"""How long the server may work at one binding: less than lies between the end of our right to bind
and the beginning of another's (`lease.Times`), so that none comes true in that one's term."""

PATIENCE_S = 30.0
"""How long a binding of unknown outcome is looked after."""

_POD = decoder(Pod)
_HTTP = http.HTTPStatus


class BindingState(StrEnum):
    """What became of a binding."""

    BOUND = "bound"  # to our node, by this very decision
    TAKEN = "taken"  # bound, but not by us, or not there: somebody else was faster
    STALE = "stale"  # the pod of this uid is no more; one of its name may be
    GONE = "gone"  # deleted, or being deleted
    GATED = "gated"  # a scheduling gate was not seen
    NO_NODE = "no-node"  # never sent: the node is not known
    FENCED = "fenced"  # we may not bind now: never sent, or refused
    DENIED = "denied"  # the server will not: rights, quota, admission
    UNKNOWN = "unknown"  # it may be bound now, or later


FREES = frozenset(
    {
        BindingState.STALE,
        BindingState.GONE,
        BindingState.GATED,
        BindingState.NO_NODE,
        BindingState.FENCED,
        BindingState.DENIED,
    }
)
"""Outcomes after which what was reserved for the pod is free.

Not `TAKEN`: the pod is somewhere, and until it is seen there its room here is kept.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """One pod to one node. `decision` is unique to this decision; `annotations` come with it."""

    namespace: str
    pod: str
    uid: str
    node: str
    decision: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The pod's."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}"

    def body(self) -> bytes:
        """As the API takes it."""
        about = ObjectMeta(
            name=self.pod,
            namespace=self.namespace,
            uid=self.uid,
            annotations={**self.annotations, DECISION: self.decision},
        )
        target = ObjectReference(api_version="v1", kind="Node", name=self.node)
        return encode(Binding(api_version="v1", kind="Binding", metadata=about, target=target))


@dataclass(frozen=True, slots=True)
class BindingOutcome:
    """What became of a binding, why, and how long it took."""

    bind: Bind
    outcome: BindingState
    why: str
    took_s: float


@dataclass(slots=True)
class Binder:
    """Binds while `may_bind` holds and for nodes that `knows_node`.

    `may_bind` is asked right before every request: a leader that cannot renew, or whose picture of
    the cluster is stale, binds no more.
    """

    transport: Transport
    draws: np.random.Generator
    may_bind: Callable[[], bool] = lambda: True
    knows_node: Callable[[str], bool] = lambda _: True
    in_flight: int = IN_FLIGHT
    patience_s: float = PATIENCE_S
    under_way: int = field(init=False, default=0)
    """Bindings asked for whose outcome is not known yet."""
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """As many places as bindings may be in flight."""
        self._places = asyncio.Semaphore(self.in_flight)

    async def bind(self, bind: Bind, stands: Callable[[], bool] = always) -> BindingOutcome:
        """Send it when its turn has come, if the decision still `stands`.

        Never raises what the cluster did.
        """
        self.under_way += 1
        try:
            async with self._places:
                started_s = time.monotonic()
                may_go = lambda: self.may_bind() and stands()  # noqa: E731
                outcome, why = await self._settled(bind, started_s + self.patience_s, may_go)
                return BindingOutcome(bind, outcome, why, time.monotonic() - started_s)
        finally:
            self.under_way -= 1

    async def bind_all(self, binds: list[Bind]) -> list[BindingOutcome]:
        """All of them at once, outcomes in their order."""
        return list(await asyncio.gather(*map(self.bind, binds)))

    async def _settled(
        self, bind: Bind, until_s: float, may_go: Callable[[], bool]
    ) -> BindingFound:
        if not self.knows_node(bind.node):
            return BindingFound(BindingState.NO_NODE, f"no node {bind.node}")
        pauses = Backoff(self.draws, first_s=0.2, most_s=5.0)
        doubt = ""
        while may_go():
            found = await self._sent(bind, may_go)
            if found.outcome is not BindingState.UNKNOWN:
                # What was sent before, without an answer, may come through after a refusal.
                return (
                    BindingFound(BindingState.UNKNOWN, doubt)
                    if doubt and _is_ours(found)
                    else found
                )
            doubt = found.why
            if time.monotonic() >= until_s:
                return found
            await asyncio.sleep(pauses.pause_s())
        if doubt:
            return BindingFound(BindingState.UNKNOWN, doubt)
        return BindingFound(BindingState.FENCED, _NOT_OURS)

    async def _sent(self, bind: Bind, may_go: Callable[[], bool]) -> BindingFound:
        """What became of it; UNKNOWN if it may be sent again, to the same node only."""
        path, query = f"{bind.path}/binding", {"timeout": f"{SERVER_S:g}s"}
        try:
            await self.transport.request("POST", path, query=query, body=bind.body(), may_go=may_go)
        except Withheld:
            return BindingFound(BindingState.FENCED, _NOT_OURS)
        except ApiUnreachable as error:
            return await self._looked(bind, str(error))
        except RefusedByApi as refused:
            if refused.status == _HTTP.NOT_FOUND:
                return BindingFound(BindingState.GONE, refused.message)
            if refused.status in _UNSETTLED or refused.status >= _HTTP.INTERNAL_SERVER_ERROR:
                return await self._looked(bind, refused.message)
            return BindingFound(denied(may_go), str(refused))
        return BindingFound(BindingState.BOUND, "")

    async def _looked(self, bind: Bind, why: str) -> BindingFound:
        """What the pod's own state says."""
        try:
            # Without a version: read from etcd, never from a cache that lags.
            answer = await self.transport.request("GET", bind.path)
        except ApiUnreachable as error:
            return BindingFound(BindingState.UNKNOWN, f"{why}; then {error}")
        except RefusedByApi as refused:
            gone = refused.status == _HTTP.NOT_FOUND
            return BindingFound(
                BindingState.GONE if gone else BindingState.UNKNOWN, f"{why}; then {refused}"
            )
        return BindingFound(_state(_POD.decode(answer.body), bind), why)


class BindingFound(NamedTuple):
    """An outcome, and why it is that."""

    outcome: BindingState
    why: str


def denied(may_go: Callable[[], bool]) -> BindingState:
    """What a refusal is: of a leader whose term is over, who lacks nothing; else of a right."""
    return BindingState.DENIED if may_go() else BindingState.FENCED


_UNSETTLED = (_HTTP.CONFLICT, _HTTP.TOO_MANY_REQUESTS)


_NOT_OURS = "not allowed to bind now"


def _is_ours(found: BindingFound) -> bool:
    """A refusal of this request, not a fact about the pod."""
    return found.outcome in (BindingState.DENIED, BindingState.FENCED)


def _state(pod: Pod, bind: Bind) -> BindingState:
    about = pod.metadata
    if about.uid != bind.uid:
        return BindingState.STALE
    if pod.spec.node_name:
        ours = pod.spec.node_name == bind.node and about.annotation(DECISION) == bind.decision
        return BindingState.BOUND if ours else BindingState.TAKEN
    if about.deletion_timestamp:
        return BindingState.GONE
    return BindingState.GATED if pod.spec.scheduling_gates else BindingState.UNKNOWN
