"""Waiting jobs by kind, kept from plan to plan, and a walk that looks at one of each kind.

Jobs of a kind fare alike as long as nothing changes: once one of them got nothing, the others need
not be looked at, but only be told so. A plan then costs by kinds and by what changed, not by jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    ValuesView,
)
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

from wattherd.model.reason import Reason
from wattherd.policy.contract import JobView, View

Kind = tuple[Any, ...]
"""Of a job: its user or owner first, then all that decides how it fares."""
Entry = tuple[tuple[float, ...], int, JobView]
"""Where a job stands in its line, its number, and the job; numbers differ."""
Kinds = dict[Kind, list[Entry]]
"""The jobs of one line by kind, each kind in order."""


class Standing(NamedTuple):
    """In which line a job waits, what kind of job it is, and where it stands."""

    line: str
    kind: Kind
    key: tuple[float, ...]


class KindLines:
    """Who waits, in lines. What decides a job's standing must not change while it waits."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._heard = False
        self._known: dict[str, tuple[str, Kind, Entry]] = {}
        self.lines: dict[str, Kinds] = {}
        """By name; none is empty."""
        self._numbers: dict[str, list[int]] = {}
        """Of the jobs of each, ascending."""

    def hear(self, view: View, standing: Callable[[JobView], Standing]) -> None:
        """See to all that changed since the last plan; to be called at every plan."""
        if not self._heard:
            self._heard = True
            changed = view.live()
        else:
            for job in view.left():
                self.remove(job.id)
            changed = [*view.entered(), *view.replanned()]
        for job in changed:
            if job.wanted:
                self.remove(job.id)
            elif job.id not in self._known:
                self.add(job, standing(job))

    def __getitem__(self, job_id: str) -> JobView:
        """A waiting job by its id.

        Raises:
            KeyError: it does not wait.
        """
        return self._known[job_id][2][2]

    def __contains__(self, job_id: object) -> bool:
        """Whether a job waits."""
        return job_id in self._known

    def names(self) -> list[str]:
        """Lines in which somebody waits, in the order of the first who was submitted of each."""
        return sorted(self.lines, key=lambda name: self._numbers[name][0])

    def jobs(self, names: Iterable[str]) -> list[JobView]:
        """All who wait in some lines, in order of submission."""
        lines = [self.lines[name] for name in names if name in self.lines]
        entries = [entry for kinds in lines for alike in kinds.values() for entry in alike]
        return [entry[2] for entry in sorted(entries, key=itemgetter(1))]

    def entries(self, job_ids: Iterable[str], names: Collection[str]) -> dict[str, Entry]:
        """Where those of some jobs stand that wait in some lines."""
        known = [self._known[job_id] for job_id in job_ids if job_id in self._known]
        return {entry[2].id: entry for name, _, entry in known if name in names}

    def of(self, name: str) -> Kinds:
        """The jobs of one line by kind."""
        return self.lines.get(name, {})

    def add(self, job: JobView, standing: Standing) -> None:
        """A job waits that did not; for those who are told of it otherwise than by views."""
        line, kind, key = standing
        entry = key, job.number, job
        self._known[job.id] = line, kind, entry
        insort(self.lines.setdefault(line, {}).setdefault(kind, []), entry)
        insort(self._numbers.setdefault(line, []), job.number)

    def remove(self, job_id: str) -> None:
        """A job waits no more, if it did."""
        known = self._known.pop(job_id, None)
        if known is None:
            return
        name, kind, entry = known
        line = self.lines[name]
        alike = line[kind]
        del alike[bisect_left(alike, entry)]
        if not alike:
            del line[kind]
            if not line:
                del self.lines[name]
        numbers = self._numbers[name]
        del numbers[bisect_left(numbers, entry[1])]
        if not numbers:
            del self._numbers[name]


class LiveJobs(Mapping[str, JobView]):
    """All jobs of a view, looked through once somebody asks for one."""

    def __init__(self, view: View) -> None:
        """Nobody has asked."""
        self._view = view
        self._jobs: dict[str, JobView] | None = None

    def _all(self) -> dict[str, JobView]:
        if self._jobs is None:
            self._jobs = {job.id: job for job in self._view.live()}
        return self._jobs

    def __getitem__(self, job_id: str) -> JobView:
        """A job by its id."""
        return self._all()[job_id]

    def __iter__(self) -> Iterator[str]:
        """In order of submission."""
        return iter(self._all())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all())

    def values(self) -> ValuesView[JobView]:
        """The jobs themselves."""
        return self._all().values()


@dataclass(slots=True)
class _Passed:
    """Jobs of a kind behind `after` (None: all) that are not looked at, and why they wait."""

    why: Reason
    after: Entry | None


class KindWalk(Iterator[JobView]):
    """The jobs of one line in order, but for those of which it is known how they fare.

    Whoever takes a job from it says by `pass_over` if all others of its kind fare as it did. That
    holds while the `world` is equal; when it is another one, those that come later are looked at.
    Jobs `apart` are looked at in any case. `tell` is told whom was passed over and why: at the
    latest when the walk is at its end. Jobs looked at may leave the `kinds` meanwhile.
    """

    def __init__(
        self,
        kinds: Mapping[Kind, list[Entry]],
        apart: Mapping[str, Entry],
        world: Callable[[], Hashable],
        tell: Callable[[list[JobView], Reason], None],
    ) -> None:
        """Begin with the first."""
        self._kinds, self._apart, self._world, self._tell = kinds, apart, world, tell
        self._seen = world()
        self._at: Entry | None = None
        """The job that was taken last."""
        self._kind: Kind | None = None
        """Its kind, of which the next one is yet to come in; None: there is none."""
        self._passed: dict[Kind, _Passed] = {}
        self._count = 0
        self._heap: list[tuple[Entry, int, Kind | None]] = []
        for kind, alike in kinds.items():
            self._push(alike[0], kind)
        for entry in apart.values():
            self._push(entry, None)

    def _push(self, entry: Entry, kind: Kind | None) -> None:
        self._count += 1  # a job that is apart stands among its kind, too
        heappush(self._heap, (entry, self._count, kind))

    def _push_next(self, after: Entry | None, kind: Kind) -> None:
        alike = self._kinds.get(kind, ())
        at = 0 if after is None else bisect_right(alike, after)
        if at < len(alike):
            self._push(alike[at], kind)

    def __next__(self) -> JobView:
        """Take the next job."""
        if self._kind is not None and self._kind not in self._passed:
            self._push_next(self._at, self._kind)
        self._kind = None
        if self._passed and self._seen != self._world():
            self._look_again()
        while self._heap:
            entry, _, kind = heappop(self._heap)
            if kind is not None:
                if kind in self._passed:
                    continue  # since it came in
                if entry[2].id in self._apart:
                    self._push_next(entry, kind)  # it has a place of its own
                    continue
            self._at, self._kind = entry, kind
            return entry[2]
        for kind in self._passed:
            self._tell_passed(kind, None)
        self._passed = {}
        raise StopIteration

    def pass_over(self, why: Reason) -> None:
        """The others of the kind of the job that was taken last fare as it did."""
        if self._kind is not None:
            if not self._passed:
                self._seen = self._world()
            self._passed[self._kind] = _Passed(why, self._at)

    def pass_over_all(self, user: Hashable, why: Reason) -> None:
        """All others of a user fare as the job did that was taken last."""
        if not self._passed:
            self._seen = self._world()
        for kind in [one for one in self._kinds if one[0] == user]:
            self._tell_passed(kind, self._at)
            self._passed[kind] = _Passed(why, self._at)

    def _look_again(self) -> None:
        """Something changed: whoever comes later is looked at again."""
        self._heap = [one for one in self._heap if one[2] not in self._passed]
        heapify(self._heap)
        for kind in self._passed:
            self._tell_passed(kind, self._at)
            self._push_next(self._at, kind)
        self._passed = {}
        self._seen = self._world()

    def _tell_passed(self, kind: Kind, until: Entry | None) -> None:
        """Tell those of a kind that were passed over so far."""
        passed, alike = self._passed.get(kind), self._kinds.get(kind, ())
        if passed is None:
            return
        first = 0 if passed.after is None else bisect_right(alike, passed.after)
        last = len(alike) if until is None else bisect_right(alike, until)
        jobs = [one[2] for one in alike[first:last] if one[2].id not in self._apart]
        if jobs:
            self._tell(jobs, passed.why)
