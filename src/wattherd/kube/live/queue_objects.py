"""Queues of a cluster: heard, put in force, and told how they stand.

As `power_live`: in force in the turn in which they are heard, told by the copy that leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.decide.queue_status import QueueFigures, queue_status
from wattherd.kube.facts.power_kinds import API, Queue
from wattherd.kube.facts.queue_plan import QueuePlan, QueueState
from wattherd.kube.live.power_objects import LOOK_S, StatusWriter, newest


class Queued(Protocol):
    """Who decides within queues."""

    def queues_seen(self, state: QueueState) -> None:
        """These are in force from now on; what runs stays."""
        ...

    def queue_figures(self) -> QueueFigures:
        """Who waits and runs of each queue."""
        ...


class QueueWatch:
    """Keeps `queued` to the Queue objects of the cluster; `begin` it before its feed."""

    def __init__(self, feed: ApiFeed, queued: Queued, leads: Callable[[], bool]) -> None:
        """`leads` says whether status is ours to write."""
        self._feed, self._queued, self._leads = feed, queued, leads
        self._plan = QueuePlan()
        self._queues: dict[str, Queue] = {}
        self._state = QueueState()
        self._writer = StatusWriter(feed)

    def begin(self) -> None:
        """Follow the objects, as soon as the API server knows them."""
        queues = Selection(f"{API}/queues", Queue, served=Served.ONCE_INSTALLED)
        self._feed.follow(queues, self._hear)
        self._feed.also(self._work)

    def _hear(self, batch: list[ObjectChange[Queue]]) -> None:
        for name, item in newest(batch, self._queues):
            self._plan.queue_seen(name, item)
            if item is None:
                self._writer.forget(f"{API}/queues/{name}")
        before, self._state = self._state, self._plan.state()
        if not self._state.rules_as(before):
            self._queued.queues_seen(self._state)

    def _work(self) -> None:
        while not self._feed.over.wait(LOOK_S):
            if self._feed.sees() and self._leads() and self._queues:
                self._feed.turn(self._plan.look, time.monotonic())
                self._tell(self._feed.turn(self._queued.queue_figures))

    def _tell(self, figures: QueueFigures) -> None:
        for name, queue in list(self._queues.items()):
            status = queue_status(queue, self._state, figures, time.time())
            if status != queue.status:
                self._writer.write(f"{API}/queues/{name}", status, time.monotonic())
