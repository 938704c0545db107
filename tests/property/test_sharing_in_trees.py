"""Power policies under random trees: caps in range, no domain above its room, more never worse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.estimate.power_curve import prior_curve
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.policy.power.contract import PowerAsk
from wattherd.policy.power.in_tree import SharesInTree, within
from wattherd.policy.power.limits import DomainRoom

CURVES = [prior_curve(GPUS[name]) for name in ("T4", "V100M16", "A100")]
PARENT = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}
"""A site (0), two rows, three racks."""
LOSS = (0.05, 0.02, 0.0, 0.0, 0.03, 0.0)


def above(rack: int) -> list[tuple[int, float]]:
    """Domains over a rack, and what a watt there is worth in each."""
    found, factor, at = [], 1.0, rack
    while True:
        factor /= 1 - LOSS[at]
        found.append((at, factor))
        if at == 0:
            return found
        at = PARENT[at]


@st.composite
def questions(draw: st.DrawFn, *, across: bool) -> tuple[list[PowerAsk], DomainRoom]:
    """Jobs in racks (a part of their devices in a second one if `across`); floors always fit."""
    asks, rows = [], []
    for number in range(draw(st.integers(1, 7))):
        parts = {draw(st.integers(3, 5)): draw(st.integers(1, 8))}
        if across and draw(st.booleans()):
            parts.setdefault(draw(st.integers(3, 5)), draw(st.integers(1, 8)))
        devices = sum(parts.values())
        ask = PowerAsk(
            job_id=f"j{number}",
            devices=devices,
            curve=draw(st.sampled_from(CURVES)),
            priority=draw(st.integers(0, 2)),
            weight=draw(st.sampled_from([1.0, 1.0, 3.0])),
        )
        scale: dict[int, float] = {}
        for rack, count in parts.items():
            for domain, factor in above(rack):
                scale[domain] = scale.get(domain, 0.0) + factor * count / devices
        asks.append(ask)
        rows.append(sorted(scale.items(), reverse=True))
    path = np.full((len(asks), 6), -1, dtype=np.int64)
    scales = np.ones((len(asks), 6))
    for job, row in enumerate(rows):
        for level, (domain, factor) in enumerate(row):
            path[job, level], scales[job, level] = domain, factor
    limits = DomainRoom(np.zeros(6), path, scales, tuple("srrkkk"))
    floor_w = carried(asks, [ask.curve.floor_w for ask in asks], limits)
    top_w = carried(asks, [ask.curve.max_w for ask in asks], limits)
    parts_of = draw(st.lists(st.floats(0, 1.2), min_size=6, max_size=6))
    return asks, limits.with_room(floor_w + np.array(parts_of) * (top_w - floor_w))


def carried(asks: list[PowerAsk], caps: list[float], limits: DomainRoom) -> np.ndarray:
    """Watts of every domain (6,)."""
    watts = np.zeros(6)
    for ask, cap_w, path, scale in zip(asks, caps, limits.path, limits.scale, strict=True):
        for domain, factor in zip(path, scale, strict=True):
            if domain >= 0:
                watts[domain] += ask.devices * cap_w * factor
    return watts


def worth(asks: list[PowerAsk], caps: list[float]) -> float:
    return math.fsum(
        ask.weight * ask.curve.rate(cap_w) / ask.curve.rates[-1]
        for ask, cap_w in zip(asks, caps, strict=True)
    )


@pytest.mark.parametrize("name", sorted(POWER_POLICIES))
@given(asked=questions(across=True))
def test_caps_are_in_range_and_no_domain_above_its_room(
    name: str, asked: tuple[list[PowerAsk], DomainRoom]
) -> None:
    asks, limits = asked
    policy = POWER_POLICIES[name]()
    assert isinstance(policy, SharesInTree)
    caps = policy.share_in(asks, limits)
    for ask, cap_w in zip(asks, caps, strict=True):
        assert ask.curve.floor_w - 1e-6 <= cap_w <= ask.curve.max_w + 1e-6
    if not policy.all_or_nothing:
        assert (carried(asks, caps, limits) <= limits.room_w + 1e-4).all()


@given(asked=questions(across=True), proposed=st.lists(st.floats(0, 1000), min_size=7, max_size=7))
def test_whatever_is_proposed_is_cut_to_fit(
    asked: tuple[list[PowerAsk], DomainRoom], proposed: list[float]
) -> None:
    asks, limits = asked
    caps = within(asks, proposed[: len(asks)], limits)
    assert (carried(asks, caps, limits) <= limits.room_w + 1e-4).all()
    for ask, cap_w in zip(asks, caps, strict=True):
        assert ask.curve.floor_w - 1e-6 <= cap_w <= ask.curve.max_w + 1e-6
    # What fits is not touched.
    assert within(asks, caps, limits) == pytest.approx(caps, abs=1e-6)


@given(asked=questions(across=False), more=st.lists(st.floats(0, 500), min_size=6, max_size=6))
def test_more_watts_anywhere_never_lower_what_water_filling_is_worth(
    asked: tuple[list[PowerAsk], DomainRoom], more: list[float]
) -> None:
    asks, limits = asked
    policy = POWER_POLICIES["water-filling"]()
    assert isinstance(policy, SharesInTree)
    before = worth(asks, policy.share_in(asks, limits))
    wider = limits.with_room(limits.room_w + np.array(more))
    after = worth(asks, policy.share_in(asks, wider))
    # Exact with losses too: counted at the site, nested budgets stay nested.
    assert after >= before - 1e-9
