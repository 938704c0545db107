"""Power curves and the policies that share watts among jobs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, concave_hull, prior_curve
from wattherd.policy.power.contract import PowerAsk, PowerPolicy, floors_w
from wattherd.policy.power.fair import MaxMin, Nash, Tiers
from wattherd.policy.power.simple import ByPriority, Pause, Proportional, Uniform
from wattherd.policy.power.water_filling import WaterFilling

FAIR: list[PowerPolicy] = [Nash(), MaxMin(), Tiers()]
SHARING: list[PowerPolicy] = [Uniform(), Proportional(), ByPriority(), WaterFilling(), *FAIR]


@st.composite
def curves(draw: st.DrawFn) -> PowerCurve:
    floor = draw(st.integers(50, 200))
    points = draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 50)), max_size=5))
    watts, rate = float(floor), 50.0
    found = [(watts, rate)]
    for more_w, more_rate in points:
        watts, rate = watts + more_w, rate + more_rate
        found.append((watts, rate))
    return concave_hull(found)


@st.composite
def asks(draw: st.DrawFn) -> list[PowerAsk]:
    count = draw(st.integers(1, 6))
    return [
        PowerAsk(
            job_id=f"j{i}",
            devices=draw(st.integers(1, 8)),
            curve=draw(curves()),
            priority=draw(st.integers(0, 2)),
            weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
        )
        for i in range(count)
    ]


def _tops_w(some: list[PowerAsk]) -> float:
    return sum(ask.devices * ask.curve.max_w for ask in some)


def _worth(some: list[PowerAsk], caps: list[float]) -> float:
    return sum(
        ask.weight * ask.curve.rate(cap) / ask.curve.rates[-1]
        for ask, cap in zip(some, caps, strict=True)
    )


@pytest.mark.parametrize("policy", SHARING, ids=lambda policy: type(policy).__name__)
@given(some=asks(), part=st.floats(0, 1.2))
def test_caps_fit_the_watts_and_every_device(
    policy: PowerPolicy, some: list[PowerAsk], part: float
) -> None:
    watts = floors_w(some) + part * (_tops_w(some) - floors_w(some))
    caps = policy.share(some, watts)
    assert sum(a.devices * c for a, c in zip(some, caps, strict=True)) <= watts + 1e-6
    for ask, cap in zip(some, caps, strict=True):
        assert ask.curve.floor_w - 1e-9 <= cap <= ask.curve.max_w + 1e-9


@pytest.mark.parametrize("policy", SHARING, ids=lambda policy: type(policy).__name__)
@given(some=asks())
def test_enough_watts_leave_every_job_uncapped(policy: PowerPolicy, some: list[PowerAsk]) -> None:
    caps = policy.share(some, _tops_w(some) + 1)
    assert caps == pytest.approx([ask.curve.max_w for ask in some])


@given(some=asks(), part=st.floats(0, 1))
def test_water_filling_is_never_behind_any_other_policy(some: list[PowerAsk], part: float) -> None:
    watts = floors_w(some) + part * (_tops_w(some) - floors_w(some))
    best = _worth(some, WaterFilling().share(some, watts))
    for policy in SHARING:
        assert _worth(some, policy.share(some, watts)) <= best + 1e-6


@given(some=asks(), parts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_more_watts_never_buy_less_progress(
    some: list[PowerAsk], parts: tuple[float, float]
) -> None:
    span = _tops_w(some) - floors_w(some)
    less, more = (floors_w(some) + part * span for part in sorted(parts))
    filling = WaterFilling()
    assert _worth(some, filling.share(some, less)) <= _worth(some, filling.share(some, more)) + 1e-9


def test_water_filling_equals_exhaustive_search_on_a_grid() -> None:
    steep = PowerCurve((100.0, 150.0, 200.0), (1.0, 3.0, 4.0))
    flat = PowerCurve((100.0, 150.0, 200.0), (1.0, 1.5, 1.8))
    some = [
        PowerAsk(job_id="a", devices=1, curve=steep),
        PowerAsk(job_id="b", devices=2, curve=flat),
    ]
    grid = itertools.product(range(100, 201, 5), repeat=2)
    best = max(_worth(some, [a, b]) for a, b in grid if a + 2 * b <= 420)
    assert _worth(some, WaterFilling().share(some, 420.0)) == pytest.approx(best)


def test_priority_serves_the_important_first_and_keeps_the_rest_alive() -> None:
    curve = PowerCurve((100.0, 300.0), (1.0, 2.0))
    some = [
        PowerAsk(job_id="low", devices=1, curve=curve, priority=0),
        PowerAsk(job_id="high", devices=1, curve=curve, priority=9),
    ]
    assert ByPriority().share(some, 420.0) == [120.0, 300.0]


def test_pause_never_caps() -> None:
    some = [PowerAsk(job_id="a", devices=1, curve=PowerCurve((100.0, 300.0), (1.0, 2.0)))]
    assert Pause().all_or_nothing
    assert Pause().share(some, 300.0) == [300.0]


def test_the_hull_drops_points_below_the_line_and_slower_ones() -> None:
    hull = concave_hull([(100, 1.0), (150, 1.1), (200, 2.0), (250, 1.9), (300, 2.5)])
    assert hull.watts == (100, 200, 300)
    assert hull.rate(250) == pytest.approx(2.25)
    assert hull.rate(99) == 0.0
    assert hull.rate(1000) == 2.5


def test_the_prior_runs_from_the_lowest_cap_to_full_power() -> None:
    curve = prior_curve(GPUS["T4"])
    assert (curve.floor_w, curve.max_w) == (60.0, 70.0)
    assert curve.rates[-1] == pytest.approx(1.0)
    assert curve.rate(60.0) == pytest.approx((50 / 60) ** 0.37)


@pytest.mark.parametrize(
    ("watts", "rates"), [((), ()), ((1.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 1.0))]
)
def test_a_curve_that_cannot_be_is_refused(
    watts: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    with pytest.raises(UserError):
        PowerCurve(watts, rates)
