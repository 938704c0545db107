"""The jobs of a planner in their order, kept up from change to change.

Waiting jobs stand in one line per shape: jobs of one shape ask for the same, so that once one of
them does not fit the others need not be tried. A cycle costs as much as changed, the running jobs
where their keys move, and the number of shapes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from wattherd.estimate.job_work import FREE, RestartCost, Work, as_submitted, kept
from wattherd.model.job import JobSpec
from wattherd.policy.contract import JobView, View
from wattherd.policy.eligibility import eligibility_key
from wattherd.policy.schedule.priorities import JobStanding, Key, LearnedOrder, Order
from wattherd.policy.schedule.running_jobs import End, KeptKeys, LastFirst, RunningColumns

Line = list[tuple[Key, JobStanding]]
_FALL, _PROMOTE, _STARVE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingRules:
    """How jobs are ranked over time.

    `work` says how long a job is, `cost` what a restart costs it, as far as the planner knows.
    `promote` returns a waiting job to the first queue when it has waited that many times as long
    as it ran (Tiresias' PROMOTEKNOB; 0: never). A job that has waited `starve_s` since it last ran
    comes before all others (None: never). With `whole_seconds` cycles are asked for at whole
    seconds of service, as Tiresias' simulator does. `learned` says before each plan which order
    holds from then on, with queues as those of `order`.
    """

    order: Order
    work: Work = as_submitted
    cost: RestartCost = FREE
    promote: float = 0.0
    starve_s: float | None = None
    whole_seconds: bool = False
    learned: LearnedOrder | None = None


_Alarm = tuple[float, int, int, int, float, JobStanding]
"""When it rings, a running number, what for, the life (version) it belongs to, when to wake, who.

It is void once the job has started another life.
"""


class JobOrder:
    """Waiting and running jobs, their keys and what time will do to them."""

    def __init__(self, rules: RankingRules) -> None:
        """Start with no job."""
        self.rules = rules
        self.order = rules.order
        self.running: dict[str, JobStanding] = {}
        self.lines: dict[int, Line] = {}
        """Waiting jobs by shape, each line in order."""
        self.fresh: dict[str, JobStanding] = {}
        """Jobs that began to wait since the last plan; they have not been told why."""
        self.fallen: list[JobStanding] = []
        """Running jobs that fell to another queue since the last plan."""
        self.waiting = 0
        self.bound = False
        """Whether any job so far may use some nodes only."""
        self._by_key = KeptKeys()
        """Who runs, in order, as long as keys do not move."""
        self._columns = RunningColumns()
        """What ends and moving keys are made of; nobody, where every event changes all of it."""
        self._in_columns = (
            not rules.cost.every_event and rules.starve_s is None and rules.learned is None
        )
        """Whether keys that move are taken from there."""
        self._standings: dict[str, JobStanding] = {}
        self._shapes: dict[tuple[object, ...], int] = {}
        self._alarms: list[_Alarm] = []
        self._alarm_count = 0
        self._next_turn, self._first_turn = 0, 0

    # What happened ------------------------------------------------------------------------------

    def update(self, view: View) -> None:
        """Hear what changed since the last plan, and what time has done."""
        now_s = view.now_s
        if self.rules.learned is not None:
            self._go_by(self.rules.learned.order(view), now_s)
            for standing in self.running.values():
                standing.holds_s = self.rules.learned.hold_s(view, standing.job)
        for job in view.left():
            self._leave(job)
        for job in view.entered():
            self._enter(job, view)
        while self._alarms and self._alarms[0][0] <= now_s:
            _, _, kind, version, _, standing = heapq.heappop(self._alarms)
            if standing.version == version:
                self._ring(kind, standing, now_s)
        if self.order.moving:
            self._move(now_s)

    def _go_by(self, order: Order, now_s: float) -> None:
        """Rank all jobs anew where the order is another one, and tell those who wait again why."""
        if order == self.order:
            return
        self.order, self._by_key = order, KeptKeys()
        for standing in self.running.values():
            standing.key = self._key(standing, now_s)
            self._rank(standing)
        for shape, line in self.lines.items():
            waiting = [standing for _, standing in line]
            for standing in waiting:
                standing.key = self._key(standing, now_s)
                self.fresh[standing.job.id] = standing
            self.lines[shape] = sorted((one.key, one) for one in waiting)

    def _leave(self, job: JobView) -> None:
        standing = self._standings.pop(job.id, None)
        if standing is None:
            return
        standing.version += 1
        self.fresh.pop(job.id, None)
        if self.running.pop(job.id, None) is None:
            self._unline(standing)
        else:
            self._unrank(job.id)

    def _enter(self, job: JobView, view: View) -> None:
        standing = self._standings.get(job.id)
        if standing is None:
            self._admit(job, view)
        elif standing.running and not job.wanted:
            self.stopped(standing, view.now_s)

    def _admit(self, job: JobView, view: View) -> None:
        now_s = view.now_s
        spec, work_s = job.spec, self.rules.work(job.spec)
        standing = self._standings[job.id] = JobStanding(
            job=job,
            gpus=spec.gpus,
            shape=self._shape(spec, view),
            since_s=now_s,
            pause_s=self.rules.cost.pause_s(spec),
            work_s=math.inf if work_s is None else work_s,
            served_s=job.service_s(now_s),
        )
        standing.left_s = max(standing.work_s - standing.served_s, 0.0)
        served_gpu_s = standing.served_s * standing.gpus
        limits = self.order.thresholds_gpu_s
        standing.queue = sum(served_gpu_s >= limit for limit in limits)
        standing.turn = self._turn()
        if job.wanted:
            self.started(standing, now_s)
        else:
            self._wait(standing, now_s)

    def _shape(self, spec: JobSpec, view: View) -> int:
        """One number for all that find the same room: they need and may use the same."""
        key: tuple[object, ...] = (spec.roles, spec.gpu_models, spec.min_width, spec.max_width)
        masks = eligibility_key(view, spec)
        self.bound |= bool(masks)
        key += masks
        return self._shapes.setdefault(key, len(self._shapes))

    def _move(self, now_s: float) -> None:
        """Give running jobs the keys they have now; where events cost, they pay anew.

        Those whose keys come from columns have none until somebody asks for them.
        """
        if self._in_columns:
            return
        running = self.running.values()
        if self.rules.cost.every_event:
            for standing in running:
                works_from_s = standing.works_from_s
                if works_from_s < now_s:
                    standing.left_s -= now_s - works_from_s
                standing.works_from_s = now_s + standing.pause_s
        if self.rules.starve_s is None:
            self.order.rank(running, now_s)
        else:
            for standing in running:
                standing.key = self._key(standing, now_s)

    # What the plan does -------------------------------------------------------------------------

    def started(self, standing: JobStanding, now_s: float) -> None:
        """The plan runs it from now on."""
        if standing.key and not standing.running:
            self._unline(standing)
        self.fresh.pop(standing.job.id, None)
        standing.waited_s += now_s - standing.since_s
        standing.since_s = now_s
        standing.works_from_s = now_s + standing.pause_s
        standing.running = True
        standing.version += 1
        self.running[standing.job.id] = standing
        self.stays(standing, now_s)
        self._foresee_fall(standing)

    def moved(self, standing: JobStanding, now_s: float) -> None:
        """The plan runs it on other devices from now on."""
        if not self.rules.cost.every_event:
            self._book(standing, now_s)
            standing.works_from_s = now_s + standing.pause_s
            self._rank(standing)

    def _book(self, standing: JobStanding, now_s: float) -> None:
        """Count what will be kept of its work when it is stopped now."""
        if standing.work_s < math.inf:
            done_s = standing.work_s - standing.remaining_s(now_s)
            standing.left_s = standing.work_s - kept(standing.job.spec, done_s)

    def stays(self, standing: JobStanding, now_s: float) -> None:
        """It runs in its queue from now on: after those who ran there before."""
        standing.requeued = False
        standing.turn = self._turn()
        standing.key = self._key(standing, now_s)
        self._rank(standing)

    def stopped(self, standing: JobStanding, now_s: float) -> None:
        """The plan takes its devices; it waits at the head of its queue, unless it just fell."""
        self._book(standing, now_s)
        standing.served_s = standing.service_s(now_s)
        standing.works_from_s = math.inf
        standing.since_s = now_s
        standing.running = False
        standing.version += 1
        del self.running[standing.job.id]
        self._unrank(standing.job.id)
        if not standing.requeued:
            self._first_turn -= 1
            standing.turn = self._first_turn
        standing.requeued = standing.starved = False
        self._wait(standing, now_s)

    def _wait(self, standing: JobStanding, now_s: float) -> None:
        self._line(standing, now_s)
        self.fresh[standing.job.id] = standing
        rules = self.rules
        if rules.promote > 0 and standing.queue > 0 and standing.served_s > 0:
            left_s = standing.served_s * rules.promote - standing.waited_s
            self._set(standing, now_s + max(left_s, 0.0), _PROMOTE)
        if rules.starve_s is not None:
            self._set(standing, now_s + rules.starve_s, _STARVE)

    def _unline(self, standing: JobStanding) -> None:
        line = self.lines[standing.shape]
        del line[bisect_left(line, (standing.key,))]
        self.waiting -= 1

    # Keys and time ------------------------------------------------------------------------------

    def _key(self, standing: JobStanding, now_s: float) -> Key:
        key = self.order.key(standing, now_s)
        if self.rules.starve_s is None:
            return key
        return (0.0, standing.turn) if standing.starved else (1.0, *key)

    def _turn(self) -> int:
        self._next_turn += 1
        return self._next_turn

    def _set(
        self, standing: JobStanding, at_s: float, kind: int, wake_s: float | None = None
    ) -> None:
        self._alarm_count += 1
        wake_s = at_s if wake_s is None else wake_s
        alarm = (at_s, self._alarm_count, kind, standing.version, wake_s, standing)
        heapq.heappush(self._alarms, alarm)

    def _foresee_fall(self, standing: JobStanding) -> None:
        limits = self.order.thresholds_gpu_s
        if standing.queue < len(limits) and standing.gpus:
            limit_s = limits[standing.queue] / standing.gpus
            begun_s = standing.since_s - standing.served_s
            whole_s = math.ceil(limit_s) if self.rules.whole_seconds else limit_s
            self._set(standing, begun_s + limit_s, _FALL, begun_s + whole_s)

    def _ring(self, kind: int, standing: JobStanding, now_s: float) -> None:
        if kind == _FALL:
            standing.queue += 1
            standing.turn = self._turn()
            standing.requeued = True
            self.fallen.append(standing)
            standing.key = self._key(standing, now_s)
            self._rank(standing)
            self._foresee_fall(standing)
            return
        self._unline(standing)
        standing.turn = self._turn()
        if kind == _PROMOTE:
            standing.queue = 0
            standing.served_s = standing.waited_s = 0.0
            standing.since_s = now_s
        else:
            standing.starved = True
        self._line(standing, now_s)

    def _line(self, standing: JobStanding, now_s: float) -> None:
        standing.key = self._key(standing, now_s)
        insort(self.lines.setdefault(standing.shape, []), (standing.key, standing))
        self.waiting += 1

    def wake_s(self, now_s: float) -> float | None:
        """When time alone will change the order next, or may have done so."""
        alarm_s, learned = self._alarm_s(), self.rules.learned
        if learned is None or not (self.order.moving and self.running):
            return alarm_s
        look_s = learned.look_s(self.running.values(), now_s)
        return look_s if alarm_s is None else min(alarm_s, look_s)

    def _alarm_s(self) -> float | None:
        alarms = self._alarms
        while alarms and alarms[0][5].version != alarms[0][3]:
            heapq.heappop(alarms)
        if not self.rules.whole_seconds:
            return alarms[0][0] if alarms else None
        return min((alarm[4] for alarm in alarms if alarm[5].version == alarm[3]), default=None)

    def _rank(self, standing: JobStanding) -> None:
        """A running job has another key, or what its key is made of has changed."""
        if not self.order.moving:
            self._by_key.put(standing)
        if not self.rules.cost.every_event:
            self._columns.put(standing)

    def _unrank(self, job_id: str) -> None:
        self._by_key.drop(job_id)
        self._columns.drop(job_id)

    def in_order(self, now_s: float) -> list[JobStanding]:
        """The running jobs, first ones first."""
        if not self.order.moving:
            return self._by_key.in_order()
        if self._in_columns:
            self.order.rank(self.running.values(), now_s)
        return sorted(self.running.values(), key=attrgetter("key"))

    def behind(self, key: Key, now_s: float) -> LastFirst:
        """The running jobs that do not come before `key`, or before one that asks later."""
        if not self.order.moving:
            return LastFirst(self._by_key.from_last())
        if not self._in_columns:
            return LastFirst(reversed(self.in_order(now_s)))
        keys = self.order.keys(self._columns, now_s)
        return LastFirst(self._columns.from_last(keys, key))

    def ends(self, beginning: Iterable[JobStanding], now_s: float) -> Iterator[End]:
        """When running jobs, and those that are `beginning` now, are through, by time."""
        ends = sorted(
            (now_s + one.pause_s + one.remaining_s(now_s), one.job.number, one) for one in beginning
        )
        if not self.rules.cost.every_event:
            return merge(ends, self._columns.ends(now_s))
        columns = RunningColumns()
        for standing in self.running.values():
            columns.put(standing)
        return merge(ends, columns.ends(now_s))


class Heads:
    """Waiting jobs in order, one at a time; shapes that do not fit can be left out."""

    def __init__(self, lines: dict[int, Line]) -> None:
        """The lines must not change while they are looked through."""
        self._lines = lines
        self._heap = [(*line[0], shape, 0) for shape, line in lines.items() if line]
        self._extra = 0
        heapq.heapify(self._heap)
        self.key: Key | None = self._heap[0][0] if self._heap else None
        """Key of the first one, None if there is none."""

    @property
    def first(self) -> JobStanding:
        """The first one."""
        return self._heap[0][1]

    def add(self, standing: JobStanding) -> None:
        """Have one more looked at in its turn."""
        self._extra -= 1
        heapq.heappush(self._heap, (standing.key, standing, self._extra, 0))
        self.key = self._heap[0][0]

    def skip(self) -> None:
        """On to the next one."""
        _, _, shape, at = self._heap[0]
        line = self._lines.get(shape, ())
        if at + 1 < len(line):
            heapq.heapreplace(self._heap, (*line[at + 1], shape, at + 1))
        else:
            heapq.heappop(self._heap)
        self.key = self._heap[0][0] if self._heap else None

    def block(self) -> None:
        """Leave out the first one and all of its shape."""
        heapq.heappop(self._heap)
        self.key = self._heap[0][0] if self._heap else None

    def close(self) -> None:
        """Leave out everything."""
        self._heap = []
        self.key = None
