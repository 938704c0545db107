"""An agent at work on its node: hears what pods ask for, has it done, writes what holds.

It follows its own node and the pods bound to it, nothing else. Caps are held by whatever `hold` is;
how long they may be held follows from when the one who decides was last heard of. What is written
goes to the status of node and pods by server-side apply, under a field manager of its own: that
right cannot change a spec, and all that an agent wrote goes when it takes it off.
"""

from __future__ import annotations

import asyncio
import http
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattherd.errors import ClusterError
from wattherd.kube.api import names
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import Lease, decoder
from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Node, ObjectMeta, Pod
from wattherd.kube.api.reflector import Selection
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi
from wattherd.kube.decide.agent_caps import (
    Lately,
    wishes_of,
)
from wattherd.kube.decide.agent_notes import NodeNote, PodNote, show
from wattherd.kube.decide.agent_round import AgentRound, NodeCapSetter
from wattherd.kube.decide.node_loop import NodePower

# --- Whether whoever decides about power is still heard of: by the lease that it renews.
#
# A lease is heard of when its renewal time has changed since the last look; what that time is does
# not matter, since clocks of two machines differ. Without a lease to look at, an answer of the API
# server has to do. Reads no clock.


@dataclass(slots=True)
class LeaderContact:
    """Since when nothing was heard; `lease_s` after that caps are to sink."""

    lease_s: float
    heard_s: float
    _renewed: str | None = None

    def saw(self, lease: Lease | None, at_s: float) -> None:
        """The lease as it is; None where there is none to look at and the server has answered."""
        if lease is None:
            self.heard_s = at_s
            return
        renewed = lease.spec.renew_time
        held = bool(lease.spec.holder_identity)
        if held and renewed is not None and renewed != self._renewed:
            self._renewed = renewed
            self.heard_s = at_s

    def left_s(self, now_s: float) -> float:
        """How long caps may still be held as they were asked for."""
        return max(0.0, self.heard_s + self.lease_s - now_s)


APPLY = "application/apply-patch+yaml"
MANAGER = "wattherd-agent"
ROUND_S = 1.0
CLOSE_S = 60.0
"""For the round that is under way to end."""
LOOKS = 4
"""At the lease of whoever decides, within the time in which caps would sink."""
_GONE = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)
_LEASE = decoder(Lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Which node; the lease of whoever decides, if it has one, and how long its silence may last.

    `daemon_set` is what this agent belongs to: while that is there, a successor will come. One that
    `rests` holds GPUs that no pod has at their lowest cap, and tells how many (`gpus_at_rest`).
    """

    node: str
    rests: bool = False
    lease: ObjectMeta | None = None
    lease_s: float = 60.0
    daemon_set: ObjectMeta | None = None


@dataclass(slots=True)
class SeenNode:
    """What was seen of the node and its pods, by the thread that hears."""

    node: Node | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    lately: Lately = field(default_factory=Lately)

    def hear_nodes(self, batch: list[ObjectChange[Node]]) -> None:
        """The node is there, changed or gone."""
        for change in batch:
            self.node = change.item

    def hear_pods(self, batch: list[ObjectChange[Pod]]) -> None:
        """Pods came, changed or went."""
        for change in batch:
            if change.item is None:
                self.pods.pop(change.key.uid, None)
                self.lately.forget(change.key.uid)
            else:
                self.lately.hear(change.item, time.monotonic())
                self.pods[change.key.uid] = change.item


class LiveAgent:
    """One node's agent; `begin` and `close` it."""

    def __init__(
        self,
        caps: NodeCapSetter,
        access: Access,
        draws: np.random.Generator,
        options: AgentOptions,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` is told of problems, once each."""
        self.feed = ApiFeed(access, draws)
        self._caps, self._options, self._say = caps, options, say
        self._seen = SeenNode()
        by_name = f"metadata.name={options.node}"
        here = f"spec.nodeName={options.node}"
        self.feed.follow(Selection("/api/v1/nodes", Node, fields=by_name), self._seen.hear_nodes)
        self.feed.follow(Selection("/api/v1/pods", Pod, fields=here), self._seen.hear_pods)
        self.feed.also(self._work)
        self._contact = LeaderContact(options.lease_s, time.monotonic())
        self._rounds = AgentRound(caps, self, rests=options.rests)
        self._said = ""
        self._looked_s = float("-inf")
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start."""
        self.feed.open()
        self.feed.begin()

    def close(self) -> None:
        """Stop; what was changed is put back unless a successor is to go on."""
        self.feed.over.set()
        self._ended.wait(CLOSE_S)
        try:
            self._leave()
        except ClusterError as error:
            self._tell(f"caps are not put back: {error}")
        finally:
            self.feed.close()

    # Rounds ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self.feed.over.wait(ROUND_S):
            self._hear_of_the_controller()
            try:
                self._round()
            except ClusterError as error:
                self._tell(str(error))
        self._ended.set()

    def _round(self) -> None:
        """Have held what is asked for now, as far as it is known who has which GPU."""
        now_s = time.monotonic()
        left_s = self._contact.left_s(now_s)
        node, pods = self._seen.node, list(self._seen.pods.values())
        if not self.feed.sees() or node is None:
            self._rounds.go_on(left_s)  # an old picture is better than none, for a lease
            if self.feed.sees():
                self._tell(f"there is no node {self._options.node}")
            return
        lowest_w = self._seen.lately.lowest_w(now_s)
        self._tell(self._rounds.work(node, pods, lowest_w, now_s, time.time(), left_s))

    def power(self) -> NodePower | None:
        """The node as its loop saw it last; None before, and where nothing is held."""
        return self._rounds.power()

    def _hear_of_the_controller(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < self._options.lease_s / LOOKS:
            return
        self._looked_s = now_s
        lease = self._options.lease
        kind, about = ("leases", lease) if lease else ("nodes", None)
        group = "/apis/coordination.k8s.io/v1" if about else "/api/v1"
        place = f"/namespaces/{about.namespace}" if about else ""
        name = about.name if about else self._options.node
        try:
            answer = self.feed.loop.run(
                self.feed.transport.request("GET", f"{group}{place}/{kind}/{name}")
            )
        except (RefusedByApi, ApiUnreachable) as error:
            self._tell(f"who decides is not heard of: {error}")
            return
        self._contact.saw(_LEASE.decode(answer.body) if about else None, now_s)

    def _tell(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            self._say(problem or "all is well again")

    # Writing --------------------------------------------------------------------------------------

    def apply_pod(self, told: PodNote) -> None:
        """Write what a pod is told."""
        namespace, _, name = told.key.partition("/")
        about: dict[str, Any] = {"name": name, "namespace": namespace, "uid": told.uid}
        if told.applied_w is not None:
            about["annotations"] = {names.CAP_APPLIED_W: show(told.applied_w)}
        self._applied(f"/api/v1/namespaces/{namespace}/pods/{name}/status", "Pod", about)

    def apply_node(self, node: Node, note: NodeNote) -> bool:
        """Whether the node's own notes were written."""
        about = {
            "name": node.metadata.name,
            "uid": node.metadata.uid,
            "labels": dict(note.labels),
            "annotations": dict(note.annotations),
        }
        return self._applied(f"/api/v1/nodes/{node.metadata.name}/status", "Node", about)

    def _applied(self, path: str, kind: str, about: Mapping[str, Any]) -> bool:
        """Whether it was written; by uid, so that nothing is made that is not there."""
        body = json.dumps({"apiVersion": "v1", "kind": kind, "metadata": about}).encode()
        query = {"fieldManager": MANAGER, "force": "true"}
        try:
            self.feed.loop.run(
                self.feed.transport.request("PATCH", path, query=query, body=body, kind=APPLY)
            )
        except RefusedByApi as refused:
            if refused.status not in _GONE:
                self._tell(f"cannot write to {path}: {refused}")
            return False
        except (ApiUnreachable, asyncio.CancelledError):
            return False
        return True

    # The end --------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Caps of pods that run on are kept for a successor; else nothing of ours stays."""
        if self._has_successor():
            return
        node, pods = self._seen.node, list(self._seen.pods.values())
        if node is not None:  # first the promise is taken back, then what was promised
            for wish in wishes_of(pods, node, (), None):
                if wish.told_w:
                    self.apply_pod(PodNote(wish.uid, wish.key, None))
            alone = NodeNote({names.AGENT: "true"}, {})
            if self._options.rests and not self.apply_node(node, alone):
                self._tell("caps are not put back: the node still says that its GPUs rest")
                return
        self._caps.put_back()
        if node is not None:
            self.apply_node(node, NodeNote({}, {}))

    def _has_successor(self) -> bool:
        about = self._options.daemon_set
        if about is None:
            return False
        path = f"/apis/apps/v1/namespaces/{about.namespace}/daemonsets/{about.name}"
        try:
            answer = self.feed.loop.run(self.feed.transport.request("GET", path))
        except RefusedByApi as refused:
            return refused.status != http.HTTPStatus.NOT_FOUND
        except ApiUnreachable:
            return True
        return "deletionTimestamp" not in json.loads(answer.body)["metadata"]
