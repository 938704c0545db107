"""Watts by classes of equal asks go where they go piece by piece, to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.power_curve import PowerCurve, prior_curve
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.in_tree import in_order_of, segments_of, steepest_first, worth_of
from wattherd.policy.power.limits import DomainRoom

FLAT = PowerCurve((100.0, 150.0, 200.0), (0.5, 1.0, 1.0))
STRAIGHT = PowerCurve((100.0, 150.0, 200.0), (0.5, 0.75, 1.0))
CURVES = (prior_curve(GPUS["T4"]), prior_curve(GPUS["V100M16"]), FLAT, STRAIGHT)
ASKS = st.lists(
    st.tuples(
        st.sampled_from(CURVES), st.sampled_from([1, 2, 4]), st.sampled_from([1.0, 2.0]),
        st.sampled_from([1.0, 1.02]), st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(asked=ASKS, part=st.floats(0.0, 1.1), rack=st.floats(0.2, 1.0))
def test_classes_are_served_as_their_jobs_would_be(
    asked: list[tuple[PowerCurve, int, float, float, int]], part: float, rack: float
) -> None:
    asks = [
        PowerAsk(job_id=str(at), devices=devices, curve=curve, weight=weight)
        for at, (curve, devices, weight, _, _) in enumerate(asked)
    ]
    path = np.array([(1 + below, 0) for *_, below in asked])
    scale = np.array([(1.0, loss) for *_, loss, _ in asked])
    least_w = np.array([one.devices * one.curve.floor_w for one in asks])
    most_w = np.array([one.devices * one.curve.max_w for one in asks])
    none = DomainRoom(np.zeros(4), path, scale, ("site", "a", "b", "c"))
    low_w, high_w = none.load_w(least_w), none.load_w(most_w)
    share = np.array([part, rack, rack, rack])
    limits = none.with_room(low_w + share * (high_w - low_w))
    segments = segments_of(asks, PowerCurve.segments)
    one_by_one = in_order_of(asks, limits, segments, -worth_of(asks, limits, segments))
    assert steepest_first(asks, limits) == one_by_one
