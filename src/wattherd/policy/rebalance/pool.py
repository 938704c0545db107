"""Which nodes of a pool to switch on or off: by who waits, by watts, by how busy the pool is.

Scaling up is for somebody: a group of pods that fits on no node that is on, or will be, wakes the
nodes it would go to, all or none, while every power domain above them carries what they draw when
they start and what the pods add. A pool that is busy beyond `busy` wakes one node more, so that the
next arrival need not wait. Scaling down follows a `SleepPolicy`, and three rules against swinging:
a node stays in a phase for `hold_s`, the pool must stay `slack` below `busy` without it, and a node
that waiting pods would go to stays. Where a domain draws more than it may, idle nodes go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from wattherd.errors import UserError
from wattherd.policy.rebalance.sleep import SleepPolicy


class Phase(StrEnum):
    """Where a node stands."""

    ON = "on"
    LEAVING = "leaving"  # takes nothing new, and is emptied
    OFF = "off"
    WAKING = "waking"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node: `domains` are all above it, `wake_w` what it draws at most until it can work.

    `idle_since_s` is None unless it is on and could go; `since_s` is when its phase began.
    """

    name: str
    phase: Phase
    gpus: int = 0
    gpus_used: int = 0
    idle_w: float = 0.0
    wake_w: float = 0.0
    domains: tuple[str, ...] = ()
    idle_since_s: float | None = None
    since_s: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """How a pool is scaled; parts of its GPUs in 0..1.

    Raises:
        UserError: parts that mean nothing, or a negative time.
    """

    sleep: SleepPolicy
    busy: float = 1.0
    slack: float = 0.2
    hold_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if not (0 < self.busy <= 1 and 0 <= self.slack < self.busy and self.hold_s >= 0):
            problem = f"busy {self.busy} with slack {self.slack} and hold {self.hold_s} s"
            hint = "0 < busy <= 1, 0 <= slack < busy, hold >= 0"
            raise UserError(f"{problem} makes no sense", field="pool", hint=hint)


@dataclass(frozen=True, slots=True)
class PodSeat:
    """Where a pod would go, and what it would add to that node's draw."""

    node: str
    adds_w: float


class Fitting(Protocol):
    """Tries where waiting pods would go; what fits is booked until it is undone."""

    def seats(self, group: str, among: Sequence[str]) -> Sequence[PodSeat] | None:
        """Seats for all pods of a group on nodes in `among`, booked; None, and nothing booked."""
        ...

    def undo(self, group: str) -> None:
        """Book out what was booked for a group."""
        ...


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Nodes to switch, and why groups get none."""

    wake: tuple[str, ...]
    sleep: tuple[str, ...]
    waiting: Mapping[str, str]


def plan_pool(
    nodes: Iterable[PoolNode],
    groups: Iterable[str],
    fitting: Fitting,
    headroom_w: Mapping[str, float],
    rules: PoolRules,
    now_s: float,
) -> PoolPlan:
    """What to switch now.

    Args:
        nodes: of the pool, in the order in which they are woken.
        groups: those who wait, in the order in which they are served.
        fitting: where they would go.
        headroom_w: watts left by domain; a domain that is not named has no limit.
        rules: how the pool is scaled.
        now_s: seconds.
    """
    round_ = _Round(list(nodes), fitting, dict(headroom_w), rules, now_s)
    for group in groups:
        round_.serve(group)
    round_.wake_ahead()
    sleep = round_.sleepers()
    return PoolPlan(tuple(round_.woken), sleep, round_.waiting)


@dataclass(slots=True)
class _Round:
    nodes: list[PoolNode]
    fitting: Fitting
    left_w: dict[str, float]
    rules: PoolRules
    now_s: float
    woken: list[str] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    # Up -------------------------------------------------------------------------------------------

    def serve(self, group: str) -> None:
        """Nodes for one group: those that are on or coming first, then those that are off."""
        coming = [one.name for one in self.nodes if one.phase in (Phase.ON, Phase.WAKING)]
        seats = self.fitting.seats(group, [*coming, *self.woken])
        if seats is not None:
            self._taken |= {seat.node for seat in seats}
            return
        seats = self.fitting.seats(group, [*coming, *self.woken, *self._may_wake()])
        if seats is None:
            self.waiting[group] = self._why(group)
            return
        needed = {seat.node for seat in seats}
        fresh = [one for one in self.nodes if one.name in needed and self._is_off(one)]
        short = self._short(fresh, seats)
        if short is not None:
            self.fitting.undo(group)
            self.waiting[group] = short
            return
        self._spend(fresh, seats)
        self.woken += [one.name for one in fresh]
        self._taken |= needed

    def wake_ahead(self) -> None:
        """One node more for a busy pool, in whose queue nobody is in vain."""
        used, all_gpus = self._use()
        if self.waiting or not all_gpus or used <= self.rules.busy * all_gpus:
            return
        for node in self.nodes:
            may = self._is_off(node) and node.gpus and self._held(node)
            if may and self._short([node], ()) is None:
                self._spend([node], ())
                self.woken.append(node.name)
                return

    def _may_wake(self) -> list[str]:
        """Off, and none of the domains above is full already."""
        return [one.name for one in self.nodes if self._is_off(one) and not self._short([one], ())]

    def _is_off(self, node: PoolNode) -> bool:
        return node.phase is Phase.OFF and node.name not in self.woken

    def _why(self, group: str) -> str:
        off = [one.name for one in self.nodes if self._is_off(one)]
        coming = [one.name for one in self.nodes if one.phase in (Phase.ON, Phase.WAKING)]
        if self.fitting.seats(group, [*coming, *self.woken, *off]) is None:
            return "no node of the pool would do"
        self.fitting.undo(group)
        blocked = [one for one in self.nodes if self._is_off(one) and self._short([one], ())]
        return self._short(blocked[:1], ()) or "no node of the pool would do"

    def _costs(self, fresh: Iterable[PoolNode], seats: Iterable[PodSeat]) -> dict[str, float]:
        above = {one.name: one.domains for one in self.nodes}
        asks: dict[str, float] = {}
        for node in fresh:
            for domain in node.domains:
                asks[domain] = asks.get(domain, 0.0) + node.wake_w
        for seat in seats:
            for domain in above.get(seat.node, ()):
                asks[domain] = asks.get(domain, 0.0) + seat.adds_w
        return asks

    def _short(self, fresh: Sequence[PoolNode], seats: Iterable[PodSeat]) -> str | None:
        """Which domain cannot carry it, in words; None if all can."""
        for domain, asked_w in sorted(self._costs(fresh, seats).items()):
            left_w = self.left_w.get(domain)
            if left_w is not None and asked_w > left_w:
                where = f"domain {domain}" if domain else "the site"
                return f"waking needs {asked_w:.0f} W, {where} has {max(left_w, 0.0):.0f} W left"
        return None

    def _spend(self, fresh: Sequence[PoolNode], seats: Sequence[PodSeat]) -> None:
        for domain, asked_w in self._costs(fresh, seats).items():
            if domain in self.left_w:
                self.left_w[domain] -= asked_w

    # Down -----------------------------------------------------------------------------------------

    def sleepers(self) -> tuple[str, ...]:
        """Idle nodes to switch off: for lack of watts at once, else when they are tired."""
        idle = self._idle()
        chosen = self._over_budget(idle)
        since = {at: s for at, s in idle.items() if at not in chosen and self._held(self.nodes[at])}
        for at in self.rules.sleep.tired(since, self.now_s):
            if self._spared(at, chosen):
                chosen.append(at)
        return tuple(self.nodes[at].name for at in chosen)

    def _idle(self) -> dict[int, float]:
        return {
            at: one.idle_since_s
            for at, one in enumerate(self.nodes)
            if one.phase is Phase.ON
            and one.idle_since_s is not None
            and one.name not in self._taken
        }

    def _over_budget(self, idle: Mapping[int, float]) -> list[int]:
        chosen = []
        for at in sorted(idle, key=lambda at: (idle[at], at)):
            node = self.nodes[at]
            if any(self.left_w.get(domain, 0.0) < 0 for domain in node.domains):
                for domain in set(node.domains) & self.left_w.keys():
                    self.left_w[domain] += node.idle_w
                chosen.append(at)
        return chosen

    def _spared(self, at: int, chosen: Sequence[int]) -> bool:
        """Whether the pool is not too busy without it."""
        node = self.nodes[at]
        used, all_gpus = self._use()
        left = all_gpus - node.gpus - sum(self.nodes[one].gpus for one in chosen)
        return not node.gpus or used <= (self.rules.busy - self.rules.slack) * left

    def _use(self) -> tuple[int, int]:
        """GPUs in use, and of all nodes that are on or coming."""
        here = [
            one
            for one in self.nodes
            if one.phase in (Phase.ON, Phase.WAKING) or one.name in self.woken
        ]
        return sum(one.gpus_used for one in here), sum(one.gpus for one in here)

    def _held(self, node: PoolNode) -> bool:
        return self.now_s - node.since_s >= self.rules.hold_s
