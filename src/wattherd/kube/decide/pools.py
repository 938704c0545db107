"""Pools of nodes with a switch: what the API shows in, orders out; no I/O.

Whoever waits is any scheduler's: a pod that was told it cannot be scheduled. Where it would go is
tried on the account of the cluster, with nodes that are off taken as they will be; `policy.
rebalance.pool` decides. A node that is to go is cordoned first, looked at again, emptied by
evictions, and switched off once nothing is left on it but what belongs to it; if work has come
meanwhile it stays. All phases stand on the nodes, so that a restart, or another copy, goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.domains import Domains, columns_of
from wattherd.kube.account.eligibility import Eligible
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.account.pool_booking import Booking
from wattherd.kube.api import names
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.node_facts import node_facts
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.node_phases import (
    Tie,
    as_if_up,
    boot_of,
    is_up,
    phase_of,
    strongest,
    tie_of,
)
from wattherd.kube.facts.pod_groups import group_of, stated_size
from wattherd.kube.facts.pod_request import ask_of_foreign, gpus_of
from wattherd.policy.rebalance.pool import Phase, PoolNode, PoolPlan, PoolRules, plan_pool
from wattherd.units import plain, watts

_OVER = frozenset({"Succeeded", "Failed"})
WAKE_MOST_S = 900.0
"""Servers of eight GPUs take five to ten minutes from power to a kubelet that is ready."""


@dataclass(frozen=True, slots=True)
class Cordon:
    """Take a node out of use: it is marked as leaving."""

    node: str


@dataclass(frozen=True, slots=True)
class Empty:
    """Evict a pod that is made anew elsewhere."""

    node: str
    uid: str
    key: str


@dataclass(frozen=True, slots=True)
class SwitchOff:
    """Switch a node off that is empty; `boot` is the one that ends."""

    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class SwitchOn:
    """Mark a node as waking, then see to it that it is on."""

    node: str


@dataclass(frozen=True, slots=True)
class Return:
    """A node may be used: it is up again, or is needed after all."""

    node: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Have whoever made a node take it away."""

    node: str


Order = Cordon | Remove | Empty | SwitchOff | SwitchOn | Return


class Pools:
    """Decides for the nodes in `switched`; all others are only looked at."""

    def __init__(
        self,
        fleet: NodeFleet,
        domains: Domains,
        rules: PoolRules,
        switched: Collection[str],
        wake_w: float = 0.0,
        wake_most_s: float = WAKE_MOST_S,
    ) -> None:
        """`wake_w` is the least that a node is taken to draw while it starts.

        One that takes longer than `wake_most_s` to start is not counted on any more.
        """
        self.chooser = Chooser(fleet, domains)
        self.volumes = Volumes()
        self.claimed: Collection[str] = frozenset()
        """Nodes that somebody else made and can take away."""
        self.waiting: Mapping[str, str] = {}
        """Why groups that wait get no node."""
        self._fleet, self._domains, self._rules = fleet, domains, rules
        self._switched, self._wake_w = frozenset(switched), wake_w
        self._wake_most_s = wake_most_s
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._eligible = Eligible(fleet, self.volumes, self._pods)
        self._since_s: dict[str, tuple[Phase, float]] = {}
        self._idle_s: dict[str, float] = {}
        self._wanted: Collection[str] = frozenset()
        self._left_w: dict[str, float] = {}

    # What was seen --------------------------------------------------------------------------------

    def node_seen(self, node: Node, at_s: float) -> None:
        """A node is there, or changed."""
        name, phase = node.metadata.name, phase_of(node)
        self._nodes[name] = node
        facts = self._domains.fed(node_facts(node))
        self._fleet.node_seen(facts if phase is Phase.ON else as_if_up(facts))
        known = self._since_s.get(name)
        if known is None:
            # What was there before us may go at once; who was just switched may not.
            self._since_s[name] = phase, float("-inf")
        elif known[0] is not phase:
            self._since_s[name] = phase, at_s

    def node_gone(self, name: str) -> None:
        """A node was deleted."""
        self._nodes.pop(name, None)
        self._since_s.pop(name, None)
        self._idle_s.pop(name, None)
        self._fleet.node_gone(name)

    def pod_seen(self, pod: Pod) -> None:
        """A pod is there, or changed."""
        uid = pod.metadata.uid
        if pod.status.phase in _OVER:
            self.pod_gone(uid)
            return
        self._pods[uid] = pod
        self._eligible.note(pod)
        if pod.spec.node_name:
            key = f"{pod.metadata.namespace}/{pod.metadata.name}"
            self._fleet.hold(
                Holding(
                    uid=uid,
                    key=key,
                    ask=ask_of_foreign(pod),
                    node=pod.spec.node_name,
                    gpus=gpus_of(pod),
                    confirmed=True,
                )
            )

    def pod_gone(self, uid: str) -> None:
        """A pod was deleted, or is over."""
        self._pods.pop(uid, None)
        self._eligible.drop(uid)
        self._fleet.let_go(uid)

    def volumes_changed(self) -> None:
        """Somebody changed `volumes`."""
        self._eligible.forget()

    def power_seen(self, tree: DomainTree, budgets_mw: Mapping[str, int]) -> None:
        """Domains and budgets as they stand from now on."""
        self._domains.tree, self._domains.budgets_mw = tree, dict(budgets_mw)
        self._fleet.feed(self._domains.fed)

    # What to do -----------------------------------------------------------------------------------

    def plan(self, at_s: float) -> list[Order]:
        """Orders that follow from all that was seen up to now; given anew until they are seen."""
        plan = self._planned(at_s)
        self.waiting = plan.waiting
        orders: list[Order] = [SwitchOn(name) for name in plan.wake]
        mine = self._switched
        orders += [Cordon(name) if name in mine else Remove(name) for name in plan.sleep]
        for name in sorted(self._switched & self._nodes.keys()):
            orders += self._followed(name, self._wanted)
        return orders

    def headroom_w(self) -> dict[str, float]:
        """Watts left by domain, as of the last plan."""
        return dict(self._left_w)

    @property
    def tree(self) -> DomainTree:
        """The power domains in force."""
        return self._domains.tree

    def waiting_pods(self) -> list[Pod]:
        """Pods on no node."""
        return [pod for pod in self._pods.values() if not pod.spec.node_name]

    def gpus_by(self, label: str) -> dict[str, int]:
        """GPUs of nodes that are there, by what a label says of them."""
        found: dict[str, int] = {}
        for facts in self._fleet.nodes.values():
            if label in facts.labels:
                gpus = found.get(facts.labels[label], 0) + facts.spec.gpu_count
                found[facts.labels[label]] = gpus
        return found

    def _followed(self, name: str, wanted: Collection[str]) -> list[Order]:
        """What the phase of a node asks for."""
        node = self._nodes[name]
        phase = phase_of(node)
        if phase is Phase.WAKING:
            return [Return(name)] if is_up(node) else [SwitchOn(name)]
        if phase is not Phase.LEAVING:
            return []
        pods = self._on(name)
        if name in wanted or strongest(pods) is Tie.STAYS:
            return [Return(name)]
        moving = [pod for pod in pods if tie_of(pod) is Tie.MOVES]
        return [_evicted(name, pod) for pod in moving] or [SwitchOff(name, boot_of(node))]

    def _planned(self, at_s: float) -> PoolPlan:
        nodes = [self._pool_node(name, at_s) for name in sorted(self._nodes)]
        groups = self._waiting()
        headroom_w = self._left_w = self._headroom_w(nodes)
        booking = Booking(self._fleet, self._eligible, groups)
        try:
            plan = plan_pool(nodes, groups, booking, headroom_w, self._rules, at_s)
            leaving = {one.name for one in nodes if one.phase is Phase.LEAVING}
            self._wanted = self._after_all(leaving, plan, booking)
            return plan
        finally:
            booking.undo_all()

    def _after_all(
        self, leaving: Collection[str], plan: PoolPlan, booking: Booking
    ) -> Collection[str]:
        """Nodes that leave and would do for somebody who gets none: they stay, at no watts."""
        wanted: set[str] = set()
        for group in plan.waiting:
            seats = booking.seats(group, [*self._working(), *sorted(leaving)])
            wanted |= {seat.node for seat in seats or ()} & set(leaving)
        return wanted

    def _working(self) -> list[str]:
        return [name for name, node in self._nodes.items() if phase_of(node) is Phase.ON]

    def _pool_node(self, name: str, at_s: float) -> PoolNode:
        facts, node = self._fleet.nodes[name], self._nodes[name]
        phase, pods = phase_of(node), self._on(name)
        mine = name in self._switched or name in self.claimed
        idle = mine and phase is Phase.ON and strongest(pods) is not Tie.STAYS
        idle = idle and not facts.unschedulable and not facts.problem
        if idle:
            self._idle_s.setdefault(name, at_s)
        else:
            self._idle_s.pop(name, None)
        columns = columns_of([facts])
        base_w = float(columns.base_mw[0]) / 1000
        written = node.metadata.annotation(names.WAKE_W)
        stated_w = self._wake_w if written is None else watts(plain(written), field=names.WAKE_W)
        used = sum(len(seat.gpus) for pod in pods for seat in self._fleet.seats(pod.metadata.uid))
        return PoolNode(
            name=name,
            phase=self._usable(name, phase, at_s) if mine else Phase.ON,
            gpus=facts.spec.gpu_count,
            gpus_used=min(used, facts.spec.gpu_count),
            idle_w=base_w,
            wake_w=max(base_w, stated_w),
            domains=self._domains.tree.path(facts.domain),
            idle_since_s=self._idle_s.get(name),
            since_s=self._since_s[name][1],
        )

    def _usable(self, name: str, phase: Phase, at_s: float) -> Phase:
        """A node that does not wake is nobody's hope any more."""
        late = at_s - self._since_s[name][1] > self._wake_most_s
        return Phase.LEAVING if phase is Phase.WAKING and late else phase

    def _on(self, name: str) -> list[Pod]:
        held = self._fleet.held_on(name)
        return [self._pods[one.uid] for one in held if one.uid in self._pods]

    def _waiting(self) -> dict[str, list[Pod]]:
        """Pods that were told they cannot be scheduled, by gang, the oldest first; gangs whole."""
        groups: dict[str, list[Pod]] = {}
        size: dict[str, int] = {}
        pods = sorted(self._pods.values(), key=_age)
        for pod in pods:
            if pod.spec.node_name or not _is_told(pod):
                continue
            gang = group_of(pod)
            key = f"{pod.metadata.namespace}/{gang.name if gang else pod.metadata.name}"
            groups.setdefault(key, []).append(pod)
            size[key] = max(size.get(key, 1), stated_size(pod) or 1)
        return {key: found for key, found in groups.items() if len(found) >= size[key]}

    def _headroom_w(self, nodes: list[PoolNode]) -> dict[str, float]:
        """Watts left by domain; nodes that are off draw nothing, those that wake what they may."""
        placer, budgets = self._fleet.placer, self._domains.budgets_mw
        if placer is None:
            return {name: most / 1000 for name, most in budgets.items()}
        columns = columns_of(self._fleet.order)
        more_mw = np.zeros(len(columns.base_mw), dtype=np.int64)
        for one in nodes:
            row = columns.row[one.name]
            if one.phase is Phase.OFF:
                more_mw[row] = -columns.base_mw[row]
            elif one.phase is Phase.WAKING:
                more_mw[row] = round(1000 * one.wake_w) - columns.base_mw[row]
        carried = self._domains.carried_mw(columns, placer.state, more_mw)
        return {name: (most - carried[name]) / 1000 for name, most in budgets.items()}


def _evicted(node: str, pod: Pod) -> Empty:
    about = pod.metadata
    return Empty(node, about.uid, f"{about.namespace}/{about.name}")


def _is_told(pod: Pod) -> bool:
    """Whether a scheduler has said that it finds no node for it."""
    if pod.metadata.deletion_timestamp or pod.spec.scheduling_gates:
        return False
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable"
        for one in pod.status.conditions or ()
    )


def _age(pod: Pod) -> tuple[int, str, str, str]:
    about = pod.metadata
    return -(pod.spec.priority or 0), about.creation_timestamp or "", about.namespace, about.name
