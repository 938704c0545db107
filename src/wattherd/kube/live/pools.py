"""Pools at work: hears the cluster, plans each second, cordons, evicts, switches, and says so.

Switching takes seconds to minutes and is done beside planning, one order at a time for a node. What
was done is read back before it is written on the node, and is written before anybody counts on it:
a node is marked as waking before it is switched on, and as off after it was seen to be off.
"""

from __future__ import annotations

import http
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from wattherd.kube.account.cluster_news import follow_cluster, follow_volumes
from wattherd.kube.api import names
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import (
    DeleteOptions,
    Eviction,
    Preconditions,
    encode,
    list_decoder,
)
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Node, ObjectMeta, Pod
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi
from wattherd.kube.decide.pools import (
    Cordon,
    Empty,
    Order,
    Pools,
    Remove,
    Return,
    SwitchOff,
    SwitchOn,
)
from wattherd.kube.facts.node_phases import Tie, strongest
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.live.leadership import Leadership
from wattherd.kube.live.power_objects import PowerWatch
from wattherd.policy.rebalance.pool import Phase

ROUND_S = 1.0
AGAIN_S = 20.0
"""Between two attempts of the same order at a node."""
SETTLE_S = 5.0
"""From the cordon to the switch: schedulers that have not heard of it may bind for a moment."""
_HANDS = 8
_PODS = list_decoder(Pod)


class Switches(Protocol):
    """The power of nodes by name."""

    def turn(self, node: str, *, on: bool) -> str:
        """Switch it and read that back; empty if it is so, else what is wrong."""
        ...


class LivePools:
    """Pools at work; `begin` and `close` them."""

    def __init__(
        self,
        pools: Pools,
        switches: Switches,
        access: Access,
        draws: np.random.Generator,
        *,
        power: PowerPlan | None = None,
        lease: ObjectMeta | None = None,
        identity: str = "",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` is told what is done and what goes wrong; `lease` is as of a scheduler."""
        self.pools = pools
        self.feed = ApiFeed(access, draws)
        self._switches, self._say = switches, say
        follow = self.feed.follow
        follow_cluster(
            follow,
            self._node_seen,
            lambda key: pools.node_gone(key.name),
            pools.pod_seen,
            lambda key: pools.pod_gone(key.uid),
        )
        follow_volumes(follow, pools)
        self.feed.also(self._work)
        self.seat = Leadership(self.feed, draws, lambda _: False, lease=lease, identity=identity)
        self._power: PowerWatch | None = None
        if power is not None:
            self._power = PowerWatch(self.feed, power, pools, lambda: False)
        self._hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="wattherd-switch")
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._tried: dict[str, tuple[Order, float]] = {}
        self._cordoned_s: dict[str, float] = {}
        self._told: Mapping[str, str] = {}
        self.grow: Callable[[], Mapping[str, str]] = dict
        """Has pools of others grow; tells who gets nothing, and why."""
        self.beside: list[Callable[[], None]] = []
        """Called once requests may be made, before anything is followed."""
        self.remove: Callable[[str], None] = lambda _: None
        """Has a node taken away by whoever made it."""

    def begin(self) -> None:
        """Start."""
        self.feed.open()
        for follow in self.beside:
            follow()
        if self._power is not None:
            self._power.begin()
        self.feed.begin(*self.seat.beside())

    def close(self) -> None:
        """Stop; orders under way are finished, nodes stay as they are."""
        self.feed.over.set()
        self._hands.shutdown(wait=True, cancel_futures=True)
        if self._power is not None:
            self._power.close()
        self.feed.close()

    # Work -----------------------------------------------------------------------------------------

    def _node_seen(self, node: Node) -> None:
        self.pools.node_seen(node, time.monotonic())

    def _work(self) -> None:
        while not self.feed.over.wait(ROUND_S):
            if not self.seat.ready():
                continue
            for order in self.feed.turn(self.pools.plan, time.monotonic()):
                self._begin(order)
            try:
                more = self.grow()
            except (RefusedByApi, ApiUnreachable) as error:
                more = {"growth": str(error)}
            self._tell_waiting({**self.pools.waiting, **more})

    def _tell_waiting(self, waiting: Mapping[str, str]) -> None:
        for group, why in waiting.items():
            if self._told.get(group) != why:
                self._say(f"{group} gets no node: {why}")
        self._told = dict(waiting)

    def _begin(self, order: Order) -> None:
        now_s, node = time.monotonic(), order.node
        with self._lock:
            last = self._tried.get(node)
            soon = last is not None and last[0] == order and now_s - last[1] < AGAIN_S
            if node in self._busy or soon:
                return
            if isinstance(order, SwitchOff):
                if now_s - self._cordoned_s.setdefault(node, now_s) < SETTLE_S:
                    return
            elif not isinstance(order, Empty):
                self._cordoned_s.pop(node, None)
            self._busy.add(node)
            self._tried[node] = order, now_s
        self._hands.submit(self._do, order)

    def _do(self, order: Order) -> None:
        try:
            if self.seat.leads():
                self._carry_out(order)
        except (RefusedByApi, ApiUnreachable) as error:
            self._say(f"{order.node}: {error}")
        finally:
            with self._lock:
                self._busy.discard(order.node)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Cordon():
                self._mark(order.node, unschedulable=True, **{names.POOL: Phase.LEAVING.value})
                self._say(f"{order.node} is idle and leaves")
            case Remove():
                self._say(f"{order.node} is idle and goes")
                self.remove(order.node)
            case Empty():
                self._evict(order)
            case SwitchOff():
                self._switch_off(order)
            case SwitchOn():
                self._switch_on(order.node)
            case Return():
                gone = dict.fromkeys((names.POOL, names.BOOT, names.SWITCHED))
                self._mark(order.node, unschedulable=False, **gone)
                self._say(f"{order.node} may be used")

    def _switch_off(self, order: SwitchOff) -> None:
        """Once more asked of the API itself, as the picture may be a moment old."""
        if strongest(self._pods_on(order.node)) is not Tie.NONE:
            return
        problem = self._switches.turn(order.node, on=False)
        if problem:
            self._say(f"{order.node} is not switched off: {problem}")
            return
        written = {names.POOL: Phase.OFF.value, names.SWITCHED: names.OFF, names.BOOT: order.boot}
        self._mark(order.node, unschedulable=True, **written)
        self._say(f"{order.node} is off")

    def _switch_on(self, node: str) -> None:
        marks = {names.POOL: Phase.WAKING.value, names.SWITCHED: None}
        self._mark(node, unschedulable=True, **marks)
        problem = self._switches.turn(node, on=True)
        self._say(f"{node} is not switched on: {problem}" if problem else f"{node} is switched on")

    def _pods_on(self, node: str) -> list[Pod]:
        query = {"fieldSelector": f"spec.nodeName={node}"}
        answer = self.feed.loop.run(self.feed.transport.request("GET", "/api/v1/pods", query=query))
        return list(_PODS.decode(answer.body).items or ())

    def _mark(self, node: str, *, unschedulable: bool, **written: str | None) -> None:
        body: Any = {
            "spec": {"unschedulable": unschedulable or None},
            "metadata": {"annotations": written},
        }
        path = f"/api/v1/nodes/{node}"
        data = json.dumps(body).encode()
        self.feed.loop.run(self.feed.transport.request("PATCH", path, body=data, kind=MERGE))

    def _evict(self, order: Empty) -> None:
        """By the eviction API, so that disruption budgets are kept; asked again when refused."""
        namespace, _, name = order.key.partition("/")
        body = Eviction(
            api_version="policy/v1",
            kind="Eviction",
            metadata=ObjectMeta(name=name, namespace=namespace),
            delete_options=DeleteOptions(preconditions=Preconditions(uid=order.uid)),
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        try:
            self.feed.loop.run(self.feed.transport.request("POST", path, body=encode(body)))
        except RefusedByApi as refused:
            if refused.status not in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT):
                raise
