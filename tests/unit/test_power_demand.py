"""Sharing watts by classes of equal asks is as good as one by one, and touches only who changes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.demand import DemandClasses
from wattherd.estimate.power_curve import PowerCurve, prior_curve
from wattherd.model.job import JobSpec
from wattherd.policy.power.contract import PowerAsk, floors_w
from wattherd.policy.power.water_filling import WaterFilling

T4, V100 = prior_curve(GPUS["T4"]), prior_curve(GPUS["V100M16"])
CLASSES = st.lists(
    st.tuples(st.sampled_from([T4, V100]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 6)),
    min_size=1,
    max_size=6,
    unique_by=lambda one: (one[0].max_w, one[1]),
)


def ask(curve: PowerCurve, devices: int) -> PowerAsk:
    return PowerAsk(job_id="any", devices=devices, curve=curve)


def worth(asks: list[PowerAsk], caps: list[float]) -> float:
    rates = (one.curve.rate(cap) / one.curve.rates[-1] for one, cap in zip(asks, caps, strict=True))
    return math.fsum(rates)


@given(classes=CLASSES, share=st.floats(0.0, 1.1))
def test_water_filling_by_classes_is_as_good_as_one_by_one(
    classes: list[tuple[PowerCurve, int, int]], share: float
) -> None:
    together = [(ask(curve, devices), count) for curve, devices, count in classes]
    asks = [one for one, count in together for _ in range(count)]
    tops = sum(one.devices * one.curve.max_w for one in asks)
    watts = floors_w(asks) + share * (tops - floors_w(asks))
    caps: list[float] = []
    for (_, count), level in zip(together, WaterFilling().levels(together, watts), strict=True):
        first = min(level.full, count)
        rest = max(count - first - 1, 0)
        caps += [level.high_w] * first + [level.partial_w] * (count - first - rest)
        caps += [level.low_w] * rest
    drawn = sum(one.devices * cap for one, cap in zip(asks, caps, strict=True))
    assert drawn <= watts + 1e-6
    assert worth(asks, caps) >= worth(asks, WaterFilling().share(asks, watts)) - 1e-9


def record(number: int) -> JobRecord:
    return JobRecord(spec=JobSpec(id=f"j{number}", submit_s=0.0), number=number)


def test_only_jobs_whose_cap_changes_are_named() -> None:
    asking, jobs = DemandClasses(), [record(number) for number in range(5)]
    for job in reversed(jobs):
        asking.put(job, ask(T4, 1))
    assert asking.give(asking.uncapped()) == jobs
    assert asking.give(asking.uncapped()) == []
    one_less = WaterFilling().levels(asking.classes(), 5 * T4.max_w - 0.5)
    assert asking.give(one_less) == [jobs[4]], "the last one in order makes way"
    asking.drop(jobs[0])
    assert asking.give(asking.uncapped()) == [jobs[4]]
    asking.put(record(9), ask(T4, 1))
    assert [job.id for job in asking.give(asking.uncapped())] == ["j9"]


def test_tops_add_up_and_empty_classes_go() -> None:
    asking, job = DemandClasses(), record(1)
    asking.put(job, ask(V100, 4))
    assert asking.top_mw == 4 * round(V100.max_w * 1000)
    asking.drop(job)
    asking.drop(job)
    assert (asking.top_mw, asking.classes()) == (0, [])


def test_the_order_of_classes_comes_back_with_a_plan_that_is_taken_back() -> None:
    """Both gain alike, so that the last watts go to the first: a trial must not change which."""
    asking, jobs = DemandClasses(), [record(0), record(1)]
    for job, priority in zip(jobs, (0, 1), strict=True):
        asking.put(job, PowerAsk(job_id=job.id, devices=1, curve=V100, priority=priority))
    order = asking.order()
    asking.drop(jobs[0])
    asking.put(jobs[0], PowerAsk(job_id="j0", devices=1, curve=V100, priority=0))
    assert asking.order() != order
    asking.restore_order(order)
    for_one_piece_w = V100.floor_w + V100.watts[1]
    asking.give(WaterFilling().levels(asking.classes(), for_one_piece_w))
    assert [job.wanted_cap_w for job in jobs] == [float(int(V100.watts[1])), V100.floor_w]
