"""Rows that are put and dropped one by one say what a table made at once does."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.demand import DemandRows
from wattherd.engine.power.domain_headroom import Branches, branch_table
from wattherd.estimate.power_curve import prior_curve
from wattherd.model.job import JobSpec
from wattherd.policy.power.contract import Asks, PowerAsk

CURVES = [prior_curve(GPUS[name]) for name in ("T4", "V100M16", "A100")]
ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 10**12), st.integers(0, 10**12)),
    max_size=4,
    unique_by=lambda row: row[0],
).map(tuple)


def planned(number: int, devices: int) -> tuple[JobRecord, PowerAsk]:
    spec = JobSpec(id=f"j{number}", submit_s=0.0)
    ask = PowerAsk(job_id=spec.id, devices=devices, curve=CURVES[number % len(CURVES)])
    return JobRecord(spec=spec, number=number), ask


def without_padding(branches: Any) -> list[list[list[int]]]:
    return [[row for row in rows if row[0] >= 0] for rows in branches.tolist()]


@given(
    changes=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8), st.none() | ROWS), max_size=30)
)
def test_what_stands_there_is_what_was_put_last(
    changes: list[tuple[int, int, Branches | None]],
) -> None:
    asking, known = DemandRows(), {}
    for number, devices, branches in changes:
        job, ask = planned(number, devices)
        asking.drop(job)
        known.pop(number, None)
        if branches is not None:
            asking.put(job, ask, branches)
            known[number] = (ask, branches)
    asks = [known[number][0] for number in sorted(known)]
    assert list(asking.asks) == asks
    for name in ("devices", "floor_w", "top_w", "weight", "top_rate"):
        assert np.array_equal(getattr(asking.asks, name), getattr(Asks(asks), name))
    at_once = branch_table([known[number][1] for number in sorted(known)])
    assert without_padding(asking.branches) == without_padding(at_once)


@given(caps=st.lists(st.sampled_from([100.0, 150.0, 200.0]), min_size=3, max_size=3))
def test_only_jobs_whose_cap_changed_are_told_of(caps: list[float]) -> None:
    asking = DemandRows()
    jobs = [planned(number, 1) for number in range(3)]
    for job, ask in reversed(jobs):
        asking.put(job, ask, ((0, 1_000_000, 0),))
    assert asking.give([100.0] * 3) == [job for job, _ in jobs]
    changed = asking.give(caps)
    assert changed == [job for (job, _), cap in zip(jobs, caps, strict=True) if cap != 100.0]
    assert [job.wanted_cap_w for job, _ in jobs] == caps
    asking.forget_caps()
    assert asking.give(caps) == []
