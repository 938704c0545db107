"""What planners keep from plan to plan, or within one, gives what is worked out anew each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.model.allocation import Allocation
from wattherd.model.event import NodeLost, NodeReturned
from wattherd.model.job import make_request
from wattherd.policy.contract import View
from wattherd.policy.queue.capacity import Usage
from wattherd.policy.queue.gang import FreeRoom, GangHolds
from wattherd.policy.queue.order import PlannedAmounts, vector_of
from wattherd.policy.schedule import capacity, drf
from wattherd.testing.timed_world import t4_nodes, timed


def held(gpus: int) -> tuple[Allocation, ...]:
    request = make_request(cpu_milli=100 * gpus, memory_mib=gpus, gpu_count=gpus, gpu_milli=1000)
    return (Allocation(node=0, gpus=tuple(range(gpus)), request=request),)


class Rows:
    """What a view says of jobs; a change is told by whoever made it, and some that were none."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.came: list[Any] = []
        self.gone: list[Any] = []
        self.changed: list[Any] = []

    def live(self) -> list[Any]:
        return list(self.jobs.values())

    def entered(self) -> list[Any]:
        return self.came

    def left(self) -> list[Any]:
        return self.gone

    def replanned(self) -> list[Any]:
        return self.changed

    def happens(self, plan: dict[str, tuple[int, str, str]], number: int) -> None:
        """From now on these jobs live, with so many GPUs, in a queue and of a user."""
        self.came, self.changed = [], []
        self.gone = [job for name, job in self.jobs.items() if name not in plan]
        for name, (gpus, queue, user) in plan.items():
            known, place = self.jobs.get(name), PLACES[gpus]
            spec = SPECS[queue, user]
            if known is None or known.spec is not spec:  # edited: it goes, and comes again
                self.gone += [] if known is None else [known]
                number += 1
                known = SimpleNamespace(id=name, wanted=place, spec=spec, number=number)
                self.came.append(known)
            elif gpus or known.wanted is not place:
                known.wanted = place
                self.changed.append(known)
            self.jobs[name] = known
        self.jobs = {name: self.jobs[name] for name in plan}


PLACES = {gpus: held(gpus) if gpus else () for gpus in range(5)}
SPECS = {(queue, user): SimpleNamespace(queue=queue, user=user) for queue in "pq" for user in "xy"}


@settings(max_examples=100, deadline=None)
@given(
    plans=st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"),
            st.tuples(st.integers(0, 4), st.sampled_from("pq"), st.sampled_from("xy")),
        ),
        max_size=8,
    ),
    unheard=st.integers(0, 2),
)
def test_amounts_of_owners_that_are_kept_are_those_counted_anew(
    plans: list[dict[str, tuple[int, str, str]]], unheard: int
) -> None:
    """Jobs come, go, change queues and places; owners are named in the order of their jobs."""
    kept, view = PlannedAmounts[tuple[str, str]](), Rows()
    for number, plan in enumerate(plans):
        view.happens(plan, 10 * number)
        if number < unheard:
            continue  # whoever takes over later hears of all that live then
        kept.hear(cast("View", view), lambda job: (job.spec.queue, job.spec.user))
        anew: dict[tuple[str, str], list[int]] = {}
        for job in sorted(view.live(), key=lambda job: job.number):
            if job.wanted:
                sums = anew.setdefault((job.spec.queue, job.spec.user), [0, 0, 0, 0])
                for column, more in enumerate((len(job.wanted[0].gpus), *vector_of(job.wanted))):
                    sums[column] += more
        assert [(whose, list(sums)) for whose, sums in kept.of_all().items()] == list(anew.items())


def room_anew(self: Any, place: Any, gpus: int) -> FreeRoom:
    leaf = place.queue.name
    needs = GangHolds._needs(self.kept, leaf, borrows=self._borrows(leaf, gpus))
    return self.room if needs is None else self.room.without(needs)  # type: ignore[no-any-return]


def room_beside_anew(self: Any, job_id: str) -> FreeRoom:
    others = (hold for other, hold in self.holds.items() if other != job_id)
    hold = next(others, None)
    return self.room if hold is None else self.room.without(hold.needs(len(self.room)))  # type: ignore[no-any-return]


def whole_anew(view: View) -> FreeRoom:
    rows = [(node.cpu_milli, node.memory_mib, node.gpu_count) for node in view.nodes()]
    free = np.array(rows, dtype=np.int64)
    free[~view.usable()] = 0
    return FreeRoom(free, view.nodes(), view)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), policy=st.sampled_from(["drf", "capacity"]))
def test_decisions_are_those_of_planners_that_keep_nothing(
    data: st.DataObject, policy: str
) -> None:
    draw, second = data.draw, st.integers(0, 200)
    jobs = [
        timed(
            f"j{at}",
            draw(st.integers(1, 8)),
            at_s=float(draw(second)),
            lasts_s=5.0 + draw(second),
            user=draw(st.sampled_from("xyz")),
            priority=draw(st.sampled_from([0, 0, 5])),
        )
        for at in range(draw(st.integers(2, 25)))
    ]
    sizes = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=4))
    setting = ComparisonSetup(
        preset=preset("none"),
        given=SchedulerContext(jobs=ReadJobs(specs=tuple(jobs)), cluster=t4_nodes(*sizes)),
        budget=((0.0, 70.0 * sum(sizes)), (float(draw(second)) + 1.0, 45.0 * sum(sizes))),
        faults=(NodeLost(at_s=60.0, node="n0"), NodeReturned(at_s=120.0, node="n0")),
        record=True,
    )
    kept = simulate(setting, policy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(capacity._Cycle, "_room_for", room_anew)
        patched.setattr(drf._Cycle, "_room_for", room_beside_anew)
        patched.setattr(drf._Cycle, "_finds_none", lambda *_: False)
        patched.setattr(FreeRoom, "whole", whole_anew)
        patched.setattr(capacity, "Usage", lambda limits: Usage(limits=None))
        patched.setattr(PlannedAmounts, "hear", hears_all)
        anew = simulate(setting, policy)
    assert kept.recording.commands == anew.recording.commands
    assert kept.unfinished == anew.unfinished


def hears_all(self: PlannedAmounts[Any], view: View, owner: Any) -> None:
    """As if nothing were known from earlier plans."""
    PlannedAmounts.__init__(self)
    for job in view.live():
        if job.wanted:
            self._add(job, owner(job))
