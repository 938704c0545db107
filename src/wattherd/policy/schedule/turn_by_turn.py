"""Whose turn is it? One question at a time, answered by whatever chooses: a rule or a learner.

At each plan `choose` sees the first jobs that wait, as numbers, and names one to start, until it
names none. Gangs start whole or not at all, and every start goes through the draft: the guard
refuses what would break a budget or a quota, whoever chose it. A job that was named and found no
room is not offered again in the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattherd.estimate.speed import asked_shape
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import Draft, JobView, View
from wattherd.policy.eligibility import role_masks
from wattherd.policy.schedule.gang_placement import GangRoom

TURNS = 16
"""So many jobs that wait are offered at a time, in order of submission."""
JOB_FEATURES = ("offered", "gpus", "duration", "waited", "priority", "fits")
"""Of each of them: whether there is one, its part of all GPUs, log10 of seconds over 6 (what it
says it lasts; what it has waited), its priority over 10, and whether its GPUs are free."""
SITE_FEATURES = ("free", "running", "waiting")
"""Of the site: the free part of its GPUs, and jobs over `TURNS`, 10 at most."""
MOST = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuestion:
    """One question: `offered` are ids of jobs, in the order of the rows of `jobs`.

    `jobs` is (TURNS, len(JOB_FEATURES)), `site` is (len(SITE_FEATURES),); `lived_s` is the time
    that all jobs so far have been there, summed.
    """

    now_s: float
    offered: tuple[str, ...]
    jobs: NDArray[np.float32]
    site: NDArray[np.float32]
    lived_s: float


@dataclass(slots=True)
class TurnByTurn:
    """A planner that asks `choose` which of the jobs that wait starts next; None ends the plan."""

    choose: Callable[[TurnQuestion], int | None]
    lived_s: float = field(default=0.0, init=False)
    _seen_s: float = field(default=-math.inf, init=False)

    def plan(self, view: View, draft: Draft) -> None:
        """Ask until nobody is named, or nobody is left."""
        live = view.live()
        self._live_on(view)
        room = GangRoom.of(draft)
        waiting = [job for job in live if not job.wanted]
        running = len(live) - len(waiting)
        refused: dict[str, Reason] = {}
        while offered := [job for job in waiting if job.id not in refused][:TURNS]:
            named = self.choose(self._turn(view, room, offered, running, len(waiting)))
            if named is None or not 0 <= named < len(offered):
                break
            job = offered[named]
            refusal = _start(view, draft, room, job)
            if refusal is not None:
                refused[job.id] = refusal
            else:
                waiting.remove(job)
                running += 1
        for job in waiting:
            draft.wait(job, refused.get(job.id) or _not_named(job, room, view.now_s))

    def _live_on(self, view: View) -> None:
        """Count the time since the last plan; whoever has gone since went just now."""
        since_s = self._seen_s
        for job in (*view.live(), *view.left()):
            self.lived_s += max(0.0, view.now_s - max(since_s, job.spec.submit_s))
        self._seen_s = view.now_s

    def _turn(
        self, view: View, room: GangRoom, offered: list[JobView], running: int, waiting: int
    ) -> TurnQuestion:
        total, free = max(view.gpu_total(), 1), sum(room.gpus)
        jobs = np.zeros((TURNS, len(JOB_FEATURES)), dtype=np.float32)
        for row, job in zip(jobs, offered, strict=False):
            gpus = asked_shape(job.spec).gpus
            row[:] = (
                1.0,
                gpus / total,
                _log(job.spec.duration_s or 0.0),
                _log(view.now_s - job.spec.submit_s),
                job.spec.priority / 10,
                float(gpus <= free),
            )
        site = np.array([free / total, running / TURNS, waiting / TURNS], dtype=np.float32)
        return TurnQuestion(
            now_s=view.now_s,
            offered=tuple(job.id for job in offered),
            jobs=np.clip(jobs, -MOST, MOST),
            site=np.clip(site, 0.0, MOST),
            lived_s=self.lived_s,
        )


def _log(time_s: float) -> float:
    return math.log10(1.0 + max(0.0, time_s)) / 6


def _start(view: View, draft: Draft, room: GangRoom, job: JobView) -> Reason | None:
    """The whole gang, or why not."""
    shape = asked_shape(job.spec)
    shares = room.place(shape, role_masks(view, job.spec))
    if shares is None:
        return Reason(
            code=ReasonCode.WAITING_FOR_GPUS,
            since_s=view.now_s,
            asked=shape.gpus,
            available=sum(room.gpus),
            unit="GPUs",
            unblocks="devices that others give back",
        )
    refusal = draft.start(job, shares)
    if refusal is not None:
        room.give_back(shares)
    return refusal


def _not_named(job: JobView, room: GangRoom, now_s: float) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_FOR_TURN,
        since_s=now_s,
        asked=asked_shape(job.spec).gpus,
        available=sum(room.gpus),
        unit="GPUs",
        unblocks="its turn in the learned order",
    )
