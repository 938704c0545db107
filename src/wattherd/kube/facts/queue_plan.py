"""Queue objects as capacity queues of the core: a tree of promises, and what is wrong with it.

What siblings with a guarantee leave is promised by weight to those without one; where none has a
weight it is promised to nobody. Pods that name no queue are in `default`: an object of that name,
or what the top queues leave. The root has no object: how all queues share what is lent is said by
queues at the top. A set of objects that makes no sense leaves the tree before it in
force, and every object that is part of the mistake says so. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from wattherd.errors import UserError
from wattherd.kube.facts.power_kinds import Queue
from wattherd.kube.facts.power_plan import PlanVerdict, Word
from wattherd.policy.queue.capacity import FadingUse
from wattherd.policy.queue.fair_share import Strategy
from wattherd.policy.queue.tree import CapacityQueue, Preempts, QueueTree
from wattherd.policy.queue.turns import QueueRules
from wattherd.units import seconds

ROOT = "the cluster"
DEFAULT = "default"
"""The queue of pods that name none."""
USER_WORD = "namespace"
"""What a user of a queue is."""
NO_END = 1e12
"""The user limit factor of a queue that states none."""
LEAST_PCT = 1e-6
"""Promised where nothing is: of nothing at all no user could hold any multiple."""
_STRATEGIES = {"FinalShare": Strategy.FINAL_SHARE, "InitialShare": Strategy.INITIAL_SHARE}


@dataclass(frozen=True, slots=True)
class QueueState:
    """The tree in force (None: no queues), and of every object how it stands."""

    tree: QueueTree | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    """By leaf the power domain that its pods are held to."""
    verdicts: Mapping[str, PlanVerdict] = field(default_factory=dict)
    preempting: frozenset[str] = frozenset()
    """Queues in which a pod may have less important ones stopped for quota."""
    lately: FadingUse = field(default_factory=FadingUse, compare=False)
    """What queues held before, whichever tree is in force."""

    def rules(self) -> QueueRules | None:
        """As a planner takes them; None: no queues."""
        if self.tree is None:
            return None
        return QueueRules(
            tree=self.tree,
            preempting=self.preempting,
            fallback=DEFAULT,
            user_word=USER_WORD,
            lately=self.lately,
        )

    def rules_as(self, other: QueueState) -> bool:
        """Whether both are the same but for what objects are told."""
        mine = (self.tree, self.domains, self.preempting)
        return mine == (other.tree, other.domains, other.preempting)


class QueuePlan:
    """Queues by name, as they come."""

    def __init__(self) -> None:
        """There are none."""
        self._queues: dict[str, Queue] = {}
        self._lately = FadingUse()
        self._state = QueueState(lately=self._lately)

    def queue_seen(self, name: str, queue: Queue | None) -> None:
        """A queue is there and so, or (None) it was deleted."""
        if queue is None:
            self._queues.pop(name, None)
            return
        self._queues[name] = queue
        if queue.status.recent_gpus is not UNSET:  # a copy that planned before us wrote it
            self._lately.recall(name, max(0.0, queue.status.recent_gpus))

    def state(self) -> QueueState:
        """What is in force now."""
        if not self._queues:
            self._state = QueueState(lately=self._lately)
            return self._state
        wrong = self._wrong()
        if not wrong:
            try:
                tree = QueueTree(self._branch("", ROOT, 100.0))
            except UserError as error:
                wrong = {name: PlanVerdict(Word.INVALID, error.line()) for name in self._queues}
            else:
                self._state = replace(
                    self._state,
                    tree=tree,
                    domains=self._domains(),
                    preempting=self._preempting(),
                )
        told = {name: PlanVerdict() for name in self._queues} | wrong
        self._state = replace(self._state, verdicts=told)
        return self._state

    def look(self, now_s: float) -> None:
        """What was given by the last plan has been held until now, also where none is made."""
        if self._state.tree is not None:
            self._lately.look(self._state.tree, now_s)

    def _wrong(self) -> dict[str, PlanVerdict]:
        """Objects that make no tree, or promise more than there is."""
        found: dict[str, PlanVerdict] = {}
        for name in sorted(self._queues):
            above = self._above(name)
            if name in above:
                text = f"it hangs below itself: {' < '.join((name, *above))}"
                found[name] = PlanVerdict(Word.CYCLE, text)
            elif above and above[-1] not in self._queues:
                found[name] = PlanVerdict(Word.UNKNOWN_PARENT, f"there is no Queue {above[-1]!r}")
        for parent in ("", *sorted(self._queues)):
            children = self._children(parent)
            promised = math.fsum(_guaranteed(self._queues[one]) for one in children)
            if promised > 100 + LEAST_PCT:
                text = f"{', '.join(children)} are promised {promised:g} % of {parent or ROOT}"
                found |= {one: PlanVerdict(Word.INVALID, text) for one in children}
        return found | self._wrong_strategies()

    def _wrong_strategies(self) -> dict[str, PlanVerdict]:
        """Strategies of a queue below another one, or others than a second queue states."""
        found = dict[str, PlanVerdict]()
        stated = self._strategies()
        text = "fairSharing.strategies is for all queues: state it of a Queue without parent"
        for name in stated:
            if _parent(self._queues[name]):
                found[name] = PlanVerdict(Word.INVALID, text)
        if len(set(stated.values())) > 1:
            text = f"{', '.join(stated)} state different fairSharing.strategies"
            found |= {name: PlanVerdict(Word.INVALID, text) for name in stated if name not in found}
        return found

    def _strategies(self) -> dict[str, tuple[str, ...]]:
        """By queue that states any: how what is lent is taken back by weights."""
        return {
            name: tuple(str(_STRATEGIES[one]) for one in stated.strategies)
            for name, queue in sorted(self._queues.items())
            if (stated := queue.spec.fair_sharing) is not UNSET and stated.strategies is not UNSET
        }

    def _above(self, name: str) -> list[str]:
        found: list[str] = []
        at = _parent(self._queues[name])
        while at and at not in found:
            found.append(at)
            at = _parent(self._queues[at]) if at in self._queues else ""
        return found

    def _children(self, parent: str) -> list[str]:
        return [name for name, one in sorted(self._queues.items()) if _parent(one) == parent]

    def _preempting(self) -> frozenset[str]:
        stated = ((name, one.spec.preemption) for name, one in self._queues.items())
        return frozenset(
            name
            for name, given in stated
            if given is not UNSET and given.within_queue == "LowerPriority"
        )

    def _domains(self) -> dict[str, str]:
        """A queue is held to its own domain, else to that of the nearest queue above."""
        found: dict[str, str] = {}
        for name in self._queues:
            for at in (name, *self._above(name)):
                domain = self._queues[at].spec.domain
                if domain is not UNSET:
                    found[name] = domain
                    break
        return found

    def _branch(self, parent: str, name: str, guaranteed_pct: float) -> CapacityQueue:
        """A queue and all below it; `parent` is its object, empty for the root."""
        children = self._children(parent)
        shares = self._shares(children)
        below = [self._branch(one, one, share) for one, share in shares.items()]
        left = 100.0 - math.fsum(shares.values())
        if below and (left > LEAST_PCT or (not parent and DEFAULT not in self._queues)):
            below.append(_rest(DEFAULT if not parent else f"rest of {parent}", left))
            below = _evened(below)
        spec = self._queues[parent].spec if parent else None
        factor = NO_END if spec is None else spec.user_limit_factor
        half_life = UNSET if spec is None else spec.half_life
        stops = None if spec is None or spec.preemption is UNSET else spec.preemption
        fair = None if spec is None or spec.fair_sharing is UNSET else spec.fair_sharing
        within = stops is not None and stops.within_queue == "LowerPriority"
        return CapacityQueue(
            name=name,
            guaranteed_pct=guaranteed_pct,
            maximum_pct=100.0 if spec is None else max(spec.maximum_percent, guaranteed_pct),
            children=tuple(below),
            user_limit_pct=100.0 if spec is None else spec.user_limit_percent,
            user_limit_factor=NO_END if factor is UNSET else factor,
            priority=0 if spec is None else spec.priority,
            half_life_s=None if half_life is UNSET else seconds(half_life, field="halfLife"),
            preempts=Preempts.LOWER_PRIORITY if within else Preempts.NEVER,
            preempts_above_user_limit=stops is not None and stops.above_user_limit,
            weight=1.0 if fair is None else fair.weight,
            fair_sharing=() if parent else next(iter(self._strategies().values()), ()),
        )

    def _shares(self, children: list[str]) -> dict[str, float]:
        """Percentages that siblings are promised, adding up to 100 where any has a weight."""
        stated = {one: _guaranteed(self._queues[one]) for one in children}
        weights = {
            one: 1.0 if spec.weight is UNSET else spec.weight
            for one in children
            if (spec := self._queues[one].spec).guaranteed_percent is UNSET
        }
        left, total = 100.0 - math.fsum(stated.values()), math.fsum(weights.values())
        by_weight = {one: left * weight / total for one, weight in weights.items()}
        return {one: max(LEAST_PCT, by_weight.get(one, stated[one])) for one in children}


def _rest(name: str, left_pct: float) -> CapacityQueue:
    return CapacityQueue(
        name=name, guaranteed_pct=max(LEAST_PCT, left_pct), user_limit_factor=NO_END
    )


def _evened(below: list[CapacityQueue]) -> list[CapacityQueue]:
    """The least promises are taken from the largest, so that all are 100 % again."""
    beyond = math.fsum(one.guaranteed_pct for one in below) - 100.0
    largest = max(below, key=lambda one: one.guaranteed_pct)
    smaller = replace(largest, guaranteed_pct=largest.guaranteed_pct - beyond)
    return [smaller if one is largest else one for one in below]


def _parent(queue: Queue) -> str:
    return "" if queue.spec.parent is UNSET else queue.spec.parent


def _guaranteed(queue: Queue) -> float:
    share = queue.spec.guaranteed_percent
    return 0.0 if share is UNSET else share
