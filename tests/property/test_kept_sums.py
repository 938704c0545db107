"""What planners keep from plan to plan, or within one, gives what is worked out anew each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
from wattherd.policy.queue.gang import FreeRoom, GangHolds
from wattherd.policy.queue.order import HeldAmounts, RunningAmounts, vector_of
from wattherd.policy.schedule import capacity, drf
from wattherd.testing.timed_world import t4_nodes, timed


def held(gpus: int) -> tuple[Allocation, ...]:
    request = make_request(cpu_milli=100 * gpus, memory_mib=gpus, gpu_count=gpus, gpu_milli=1000)
    return (Allocation(node=0, gpus=tuple(range(gpus)), request=request),)


@settings(max_examples=50, deadline=None)
@given(
    plans=st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"), st.tuples(st.integers(1, 4), st.sampled_from("xyz"))
        ),
        max_size=8,
    )
)
def test_amounts_that_are_kept_are_those_counted_anew(
    plans: list[dict[str, tuple[int, str]]],
) -> None:
    """Jobs come, go, change hands and places; only who holds something is named."""
    kept, places = HeldAmounts(), {gpus: held(gpus) for gpus in range(1, 5)}
    for plan in plans:
        running: list[Any] = [
            SimpleNamespace(id=name, wanted=places[gpus], owner=owner)
            for name, (gpus, owner) in plan.items()
        ]
        anew: dict[str, list[int]] = {}
        for job in running:
            sums = anew.setdefault(job.owner, [0, 0, 0])
            for column, more in enumerate(vector_of(job.wanted)):
                sums[column] += int(more)
        assert kept.of(running, lambda job: job.owner) == {  # type: ignore[attr-defined]
            owner: tuple(sums) for owner, sums in anew.items()
        }


@settings(max_examples=50, deadline=None)
@given(
    plans=st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"),
            st.tuples(st.integers(0, 4), st.sampled_from("pq"), st.sampled_from("xy")),
        ),
        max_size=8,
    )
)
def test_amounts_of_users_that_are_kept_are_those_counted_anew(
    plans: list[dict[str, tuple[int, str, str]]],
) -> None:
    """Jobs come, go, change queues and places; their users are named in the order of jobs."""
    kept, places = RunningAmounts(), {gpus: held(gpus) for gpus in range(5)}
    specs = {
        (queue, user): SimpleNamespace(queue=queue, user=user) for queue in "pq" for user in "xy"
    }
    for plan in plans:
        running: list[Any] = [
            SimpleNamespace(id=name, wanted=places[gpus], spec=specs[queue, user])
            for name, (gpus, queue, user) in plan.items()
        ]
        anew: dict[tuple[str, str], list[float]] = {}
        for job in running:
            sums = anew.setdefault((job.spec.queue, job.spec.user), [0, 0, 0, 0])
            for column, more in enumerate((len(job.wanted[0].gpus), *vector_of(job.wanted))):
                sums[column] += more
        told = kept.of(running)
        assert [(whose, list(sums)) for whose, sums in told.items()] == list(anew.items())


def room_anew(self: Any, place: Any, gpus: int) -> FreeRoom:
    leaf = place.queue.name
    needs = GangHolds._needs(self.kept, leaf, borrows=self._borrows(leaf, gpus))
    return self.room if needs is None else self.room.without(needs)  # type: ignore[no-any-return]


def room_beside_anew(self: Any, job_id: str) -> FreeRoom:
    others = (hold for other, hold in self.holds.items() if other != job_id)
    hold = next(others, None)
    return self.room if hold is None else self.room.without(hold.needs(len(self.room)))  # type: ignore[no-any-return]


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
        patched.setattr(drf, "HeldAmounts", Forgetful)
        anew = simulate(setting, policy)
    assert kept.recording.commands == anew.recording.commands
    assert kept.unfinished == anew.unfinished


class Forgetful(HeldAmounts):
    def of(self, running: Any, owner: Any) -> Any:
        return HeldAmounts().of(running, owner)
