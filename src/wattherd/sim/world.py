"""The loop of a simulated world: no sleeping, no threads, one heap of things to come.

At equal times what jobs did comes first, then what users and operators do, then the core's own
wake-ups: a round sees everything that happened before it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from wattherd.engine.core.core import Core
from wattherd.engine.core.executor import Plant
from wattherd.errors import Bug, ClusterError
from wattherd.model.command import (
    Command,
    Compute,
    FinishJob,
    SetBatch,
    SetCap,
    SleepNode,
    StartJob,
    StopJob,
    WakeAt,
    WakeNode,
)
from wattherd.model.event import BatchApplied, Computed, Event, NodeLost, Woke, woke
from wattherd.sim.machines import Machines, SwitchTimes

IDLE_WAKES = 50
"""Wake-ups in a row without any order, while nothing runs and nothing is to come: the end."""
Computer = Callable[[Any], Any]
"""Works out the answer to one kind of question: plain data in, plain data out."""


class Watcher(Protocol):
    """Somebody who looks on: meters, collectors, recorders."""

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """The core has answered with `commands`, not yet carried out."""
        ...


@runtime_checkable
class Integrates(Protocol):
    """A watcher that adds something up over time, and so is told before time goes on."""

    def until(self, now_s: float) -> None:
        """Nothing has changed since the last event, and nothing will before `now_s`."""
        ...


After = Callable[[Event, Sequence[Command]], None]


@runtime_checkable
class Ignores(Protocol):
    """A watcher to whom some events mean nothing as long as no orders follow from them."""

    @property
    def ignores(self) -> frozenset[type[Event]]:
        """Which ones: it is not told of them."""
        ...


class _Attentive(dict[type[Event], list[After]]):
    """Whom to tell of an event of each kind when no orders follow from it."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def __missing__(self, kind: type[Event]) -> list[After]:
        told: list[After] = [one.after for one in self._watchers if not _ignored(one, kind)]
        self[kind] = told
        return told


def _ignored(watcher: Watcher, kind: type[Event]) -> bool:
    return isinstance(watcher, Ignores) and kind in watcher.ignores


@dataclass(slots=True)
class RunRecording:
    """Events and commands in the order in which they occurred, as the store will keep them."""

    events: list[Event] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Keep both."""
        self.events.append(event)
        self.commands.extend(commands)


class SimWorld:
    """Drives one core through one plant until nothing is left to happen."""

    def __init__(
        self,
        core: Core,
        plant: Plant,
        given: Iterable[Event],
        *,
        watchers: Sequence[Watcher] = (),
        computers: Mapping[str, Computer] | None = None,
        record: bool = True,
        switch: SwitchTimes | None = None,
    ) -> None:
        """`given` is what comes from outside: submissions, node failures, budget changes.

        An iterator of it must be in order of time; it is read as time goes on.
        `computers` answer the core's questions by kind, in no simulated time.
        Without `record` nothing is kept of the past, so that memory follows the live jobs.
        `switch` says how long nodes take to sleep and to wake.
        """
        self.core = core
        self._plant = plant
        self._machines = Machines(switch or SwitchTimes())
        self._given = given if isinstance(given, Iterator) else iter(sorted(given, key=_time))
        self._next_given = next(self._given, None)
        self._nodes = {node.name: at for at, node in enumerate(core.config.cluster.nodes)}
        self._wakes: list[tuple[float, int, str]] = []
        self._latest: dict[str, int] = {}
        self._order = 0
        self._last_orders = 0
        self._idle_wakes = 0
        self.recording = RunRecording()
        self._computers = computers or {}
        looking_on = [*watchers, self.recording] if record else list(watchers)
        self._until = [watcher.until for watcher in looking_on if isinstance(watcher, Integrates)]
        self._after = [watcher.after for watcher in looking_on]
        self._after_news = _Attentive(looking_on)
        self._watched_s = -math.inf
        """Up to when those who integrate have been told."""

    def run(self, until_s: float = float("inf")) -> RunRecording:
        """Let everything happen up to `until_s`.

        Raises:
            Bug: the core plans for ever without any job getting anywhere.
        """
        for event in self._happenings(until_s):
            self._deliver(event)
            if isinstance(event, Woke) and self._stuck():
                break
        return self.recording

    def _stuck(self) -> bool:
        """Whether nothing can happen any more but further rounds, all alike.

        The last jobs may wait for watts or devices that nobody is going to bring; a planner that
        looks rarely may let some wake-ups pass before it acts.
        """
        if self._last_orders or self._more_to_come():
            self._idle_wakes = 0
        else:
            self._idle_wakes += 1
        return self._idle_wakes >= IDLE_WAKES

    def _more_to_come(self) -> bool:
        sources = (self._next_given, self._plant.next_s(), self._machines.next_s())
        coming = any(source is not None for source in sources)
        return coming or any(job.active for job in self.core.jobs.values())

    def _happenings(self, until_s: float) -> Iterator[Event]:
        while True:
            now_s = self._next_s()
            if now_s > until_s or now_s == math.inf:
                return
            yield from self._plant.advance(now_s)
            yield from self._machines.advance(now_s)
            while self._next_given is not None and self._next_given.at_s <= now_s:
                event, self._next_given = self._next_given, next(self._given, None)
                yield event
            while self._wakes and self._wakes[0][0] <= now_s:
                at_s, number, key = heapq.heappop(self._wakes)
                if self._latest.get(key) == number:
                    del self._latest[key]
                    yield woke(at_s=at_s, key=key)

    def _next_s(self) -> float:
        """When something happens next; wake-ups that were replaced are no happenings."""
        wakes = self._wakes
        while wakes and self._latest.get(wakes[0][2]) != wakes[0][1]:
            heapq.heappop(wakes)
        now_s = wakes[0][0] if wakes else math.inf
        if self._next_given is not None and self._next_given.at_s < now_s:
            now_s = self._next_given.at_s
        for at_s in (self._plant.next_s(), self._machines.next_s()):
            if at_s is not None and at_s < now_s:
                now_s = at_s
        return now_s

    def _deliver(self, event: Event) -> None:
        """Hand an event to the core and carry its orders out, and theirs, until quiet."""
        pending, handle = deque([event]), self.core.handle
        self._last_orders = 0
        for _ in range(1_000_000):
            if not pending:
                return
            event = pending.popleft()
            if event.at_s > self._watched_s:
                self._pass_time(event.at_s)
            if isinstance(event, NodeLost):
                self._lose(event)
            commands = handle(event)
            for after in self._after if commands else self._after_news[type(event)]:
                after(event, commands)
            for command in commands:
                if isinstance(command, WakeAt):
                    self._set_wake(command)
                    continue
                self._last_orders += 1
                if not isinstance(command, FinishJob):
                    pending += self._carry_out(command)
        raise Bug(f"no end of orders at {self.core.now_s} s")

    def _pass_time(self, to_s: float) -> None:
        """The core has heard everything up to now: add up until `to_s`."""
        self._watched_s = to_s
        for until in self._until:
            until(to_s)

    def _lose(self, event: NodeLost) -> None:
        """What ran on a node is gone, and so is its switching."""
        self._plant.lose(self._nodes.get(event.node, -1), event.at_s)
        self._machines.hear(event)

    def _carry_out(self, command: Command) -> Iterable[Event]:
        if isinstance(command, StartJob):  # first, as most orders start or stop jobs
            spec = self.core.jobs[command.job_id].spec
            return self._plant.start(spec, command, self.core.now_s)
        if isinstance(command, StopJob):
            return self._plant.stop(command, self.core.now_s)
        match command:
            case SetCap():
                return self._plant.cap(command, self.core.now_s)
            case SetBatch():
                return [_applied(command, self.core.now_s)]
            case SleepNode() | WakeNode():
                self._machines.order(command, self.core.now_s)
            case Compute():
                return [self._compute(command)]
        return ()

    def _set_wake(self, order: WakeAt) -> None:
        self._order += 1
        self._latest[order.key] = self._order
        heapq.heappush(self._wakes, (order.at_s, self._order, order.key))

    def _compute(self, order: Compute) -> Computed:
        if order.kind not in self._computers:
            raise Bug(f"nobody in this world computes {order.kind!r}")
        try:
            result = self._computers[order.kind](order.payload)
        except ClusterError:
            result = None
        return Computed(at_s=self.core.now_s, kind=order.kind, key=order.key, result=result)


def _time(event: Event) -> float:
    return event.at_s


def _applied(order: SetBatch, now_s: float) -> BatchApplied:
    """Simulated jobs train as they are told, at once."""
    return BatchApplied(
        at_s=now_s, job_id=order.job_id, attempt=order.attempt, micro_batch=order.micro_batch
    )
