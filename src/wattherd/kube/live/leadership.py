"""The seat of one who decides: whether this copy holds it, and what it binds in its term.

Several copies may run; where they agree by a lease, only the one that leads decides and binds. A
term begins with a look at the cluster as it is then: what the leader before bound last may be on
its way in our watches still. What was decided in one term is not bound in another: it is not sent,
and where the policy that we ship is in force, the API server refuses it.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.kube.account.gates import narrowed
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.binder import (
    IN_FLIGHT,
    PATIENCE_S,
    Bind,
    Binder,
    BindingFound,
    BindingOutcome,
    BindingState,
    denied,
)
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.lease import Elector, Term, Times
from wattherd.kube.api.names import DECISION, EPOCH, GATE, LEASE
from wattherd.kube.api.objects import Affinity, NodeAffinity, ObjectMeta, Pod, PodSpec
from wattherd.kube.api.objects import Object as ApiObject
from wattherd.kube.api.pacing import Backoff
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi, Transport, Withheld
from wattherd.kube.facts.orders import ReleasePod

# --- Takes our gate off pods, and says of each what became of it; once only, however often asked.
#
# The pod is read, its affinity is narrowed, and both are written with annotations in one patch that
# the server takes only if nobody changed the pod in between. A patch of unknown outcome is looked
# after by reading the pod: the decision written on it says whether it was ours that came through.

_POD = decoder(Pod)
_HTTP = http.HTTPStatus


class _Patch(ApiObject, frozen=True, omit_defaults=True):
    metadata: ObjectMeta
    spec: PodSpec


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a release, and why."""

    uid: str
    outcome: BindingState
    why: str


@dataclass(slots=True)
class Releaser:
    """Releases while `may_act` holds; it is asked right before every write."""

    transport: Transport
    draws: np.random.Generator
    may_act: Callable[[], bool] = lambda: True
    patience_s: float = PATIENCE_S
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """As many places as for bindings."""
        self._places = asyncio.Semaphore(IN_FLIGHT)

    async def release(self, order: ReleasePod, more: Mapping[str, str]) -> Released:
        """Carry it out, with `more` annotations; never raises what the cluster did."""
        async with self._places:
            found = await self._settled(order, more, time.monotonic() + self.patience_s)
            return Released(order.uid, found.outcome, found.why)

    async def _settled(
        self, order: ReleasePod, more: Mapping[str, str], until_s: float
    ) -> BindingFound:
        pauses = Backoff(self.draws, first_s=0.1, most_s=5.0)
        doubt = ""
        while True:
            found = await self._tried(order, more)
            if found.outcome is not BindingState.UNKNOWN:
                lost = found.outcome in (BindingState.DENIED, BindingState.FENCED)
                return BindingFound(BindingState.UNKNOWN, doubt) if doubt and lost else found
            doubt = found.why
            if time.monotonic() >= until_s:
                return found
            await asyncio.sleep(pauses.pause_s())

    async def _tried(self, order: ReleasePod, more: Mapping[str, str]) -> BindingFound:
        """Look, and write if the pod still waits; UNKNOWN where it is to be looked at again."""
        namespace, _, name = order.key.partition("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        try:
            # Without a version: read from etcd, never from a cache that lags.
            pod = _POD.decode((await self.transport.request("GET", path)).body)
            state = _state(pod, order)
            if state is not BindingState.UNKNOWN:
                return BindingFound(state, "")
            if not self.may_act():
                return BindingFound(BindingState.FENCED, "not allowed to release now")
            body = _patch(pod, order, more)
            await self.transport.request("PATCH", path, body=body, kind=MERGE, may_go=self.may_act)
        except Withheld:
            return BindingFound(BindingState.FENCED, "not allowed to release now")
        except ApiUnreachable as error:
            return BindingFound(BindingState.UNKNOWN, str(error))
        except RefusedByApi as refused:
            return _refusal(refused, self.may_act)
        return BindingFound(BindingState.BOUND, "")


def _refusal(refused: RefusedByApi, may_act: Callable[[], bool]) -> BindingFound:
    if refused.status == _HTTP.NOT_FOUND:
        return BindingFound(BindingState.GONE, refused.message)
    again = (_HTTP.CONFLICT, _HTTP.TOO_MANY_REQUESTS)
    if refused.status in again or refused.status >= _HTTP.INTERNAL_SERVER_ERROR:
        return BindingFound(BindingState.UNKNOWN, refused.message)
    return BindingFound(denied(may_act), str(refused))


def _state(pod: Pod, order: ReleasePod) -> BindingState:
    """UNKNOWN while it is still to be released."""
    about, gates = pod.metadata, [gate.name for gate in pod.spec.scheduling_gates or ()]
    if about.uid != order.uid:
        return BindingState.STALE
    if about.deletion_timestamp:
        return BindingState.GONE
    if GATE not in gates:
        ours = about.annotation(DECISION) == order.decision
        return BindingState.BOUND if ours else BindingState.TAKEN
    return BindingState.UNKNOWN if gates == [GATE] else BindingState.GATED


def _patch(pod: Pod, order: ReleasePod, more: Mapping[str, str]) -> bytes:
    """All of it or nothing, and only for the pod as it was read."""
    about = ObjectMeta(
        uid=order.uid,
        resource_version=pod.metadata.resource_version,
        annotations={**order.annotations, **more, DECISION: order.decision},
    )
    spec = PodSpec(scheduling_gates=[], affinity=_affinity(pod, order))
    return encode(_Patch(metadata=about, spec=spec))


def _affinity(pod: Pod, order: ReleasePod) -> Affinity | None:
    if not order.needs:
        return None
    given = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = narrowed(given.required if given else None, order.needs)
    return Affinity(node_affinity=NodeAffinity(required=required))


class Leadership:
    """Binds while this copy leads; without a lease it always does."""

    def __init__(
        self,
        feed: ApiFeed,
        draws: np.random.Generator,
        knows_node: Callable[[str], bool],
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
    ) -> None:
        """`lease` names the record by which copies agree on who leads, as `identity`.

        Nothing is bound to a node that `knows_node` does not know at that time.
        """
        terms, binds, releases = draws.spawn(3)
        self._feed = feed
        self.term = 0
        """The one in which `ready` was asked last."""
        self._elector: Elector | None = None
        if lease is not None:
            self._elector = Elector(feed.transport, Term(lease, identity, Times()), terms)
        self._binder = Binder(feed.transport, binds, may_bind=self.leads, knows_node=knows_node)
        self._releaser = Releaser(feed.transport, releases, may_act=self.leads)

    def beside(self) -> list[Coroutine[Any, Any, Any]]:
        """What must run for the lease to be held."""
        return [] if self._elector is None else [self._elector.run()]

    def leads(self) -> bool:
        """Whether this copy may decide and bind."""
        return self._elector is None or self._elector.may_act()

    @property
    def standing(self) -> tuple[str, int]:
        """The lease, and the number of our last term in it; terms of two leases are two."""
        return ("", 0) if self._elector is None else (self._elector.lease_uid, self._elector.epoch)

    def ready(self) -> bool:
        """Whether to decide now: we lead, and have seen all that was when our term began."""
        if self._elector is not None:
            self._feed.note("the lease", self._elector.trouble or "")
        if not self.leads():
            return False
        self.term = 0 if self._elector is None else self._elector.epoch
        self._feed.look_again(self.term)
        return self._feed.sees(self.term)

    def binds(self) -> bool:
        """Whether any binding is under way."""
        return self._binder.under_way > 0

    def bind(
        self, key: str, uid: str, node: str, decision: str, annotations: Mapping[str, str]
    ) -> Coroutine[Any, Any, BindingOutcome]:
        """Bind the pod `key` (namespace/name), as decided since `ready` was asked last.

        With the term we lead in, so that what a leader of an earlier one still sends is known.
        """
        term = self.term
        namespace, _, name = key.partition("/")
        order = Bind(
            namespace=namespace,
            pod=name,
            uid=uid,
            node=node,
            decision=decision,
            annotations={**annotations, **self._signed(term)},
        )
        return self._binder.bind(order, lambda: self._is_current(term))

    def release(self, order: ReleasePod) -> Coroutine[Any, Any, Released]:
        """Take our gate off a pod, signed like a binding."""
        return self._releaser.release(order, self._signed(self.term))

    def _is_current(self, term: int) -> bool:
        return self._elector is None or self._elector.epoch == term

    def _signed(self, term: int) -> dict[str, str]:
        """By it the API server refuses what comes when the lease's term is a later one."""
        if self._elector is None:
            return {}
        return {EPOCH: str(term), LEASE: self._elector.lease_uid}
