"""What can be promised of a reduction: against all outcomes counted one by one, by its rules."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.reduction_promise import (
    GRID,
    LowerableLoad,
    done_by,
    promise,
    quantile_w,
    weights_of,
)
from wattherd.model.power_tree import PowerTree, TreeDomain

SURE_KNOBS = {"works": 1.0, "cap_s": 0.0}


def load(name: str = "a", **fields: object) -> LowerableLoad:
    return LowerableLoad(**{"name": name, "draw_w": 1000.0, "floor_w": 600.0, **fields})  # type: ignore[arg-type]


OUTCOMES = st.lists(
    st.lists(st.tuples(st.integers(0, 900).map(float), st.floats(0, 0.5)), min_size=1, max_size=2),
    max_size=5,
)


@given(OUTCOMES, st.floats(0.05, 0.999))
def test_a_sum_is_promised_as_if_all_outcomes_were_counted(
    given_: list[list[tuple[float, float]]], sure: float
) -> None:
    found_w = quantile_w(given_, sure)
    whole = [[*one, (0.0, 1.0 - sum(share for _, share in one))] for one in given_]
    sums = [
        (sum(watts for watts, _ in chosen), math.prod(share for _, share in chosen))
        for chosen in itertools.product(*whole)
    ]
    reached = sum(share for watts, share in sums if watts >= found_w - 1e-6)
    assert reached >= sure - 1e-9 or found_w == 0
    total_w = sum(max(watts for watts, _ in one) for one in given_)
    step_w = total_w / GRID * (len(given_) + 1)
    above = sum(share for watts, share in sums if watts > found_w + step_w + 1e-6)
    assert above < sure + 1e-9


def test_caps_that_always_work_give_all_that_lies_above_the_floors() -> None:
    loads = [load(str(number), **SURE_KNOBS) for number in range(10)]
    found = promise(loads, asked_w=4000.0, lead_s=1.0, for_s=60.0)
    assert found.met
    assert found.offer.reduction_w == pytest.approx(4000.0)
    assert found.offer.stopped == ()


def test_less_is_promised_the_surer_and_the_sooner_it_is_to_be() -> None:
    loads = [load(str(number), works=0.95) for number in range(20)]

    def most_w(sure: float, lead_s: float) -> float:
        asked = promise(loads, asked_w=1e9, lead_s=lead_s, for_s=60.0, sure=sure)
        return asked.offer.reduction_w

    assert most_w(0.5, 60) > most_w(0.95, 60) > most_w(0.999, 60) > 0
    assert most_w(0.95, 60) > most_w(0.95, 4) > most_w(0.95, 1)
    assert most_w(0.95, 0) == 0


def test_as_few_loads_are_stopped_as_the_request_needs_and_none_that_may_not_be() -> None:
    loads = [
        load("big", draw_w=5000.0, floor_w=4500.0, preemptible=True, **SURE_KNOBS),
        load("small", preemptible=True, **SURE_KNOBS),
        load("kept", draw_w=9000.0, floor_w=8900.0, **SURE_KNOBS),
    ]
    few = promise(loads, asked_w=3000.0, lead_s=120.0, for_s=60.0)
    assert (few.met, few.offer.stopped) == (True, ("big",))
    most = promise(loads, asked_w=1e6, lead_s=120.0, for_s=60.0)
    assert (most.met, most.offer.stopped) == (False, ("big", "small"))
    assert most.offer.reduction_w == pytest.approx(5000 + 1000 + 100)
    assert promise(loads, asked_w=900.0, lead_s=120.0, for_s=60.0).offer.stopped == ()


def test_stops_count_only_after_their_grace_and_caps_until_then() -> None:
    loads = [load("a", preemptible=True, stop_s=100.0, **SURE_KNOBS)]
    soon = promise(loads, asked_w=1e6, lead_s=99.0, for_s=60.0)
    assert (soon.offer.reduction_w, soon.offer.stopped) == (pytest.approx(400), ())
    late = promise(loads, asked_w=1e6, lead_s=100.0, for_s=60.0)
    assert (late.offer.reduction_w, late.offer.stopped) == (pytest.approx(1000), ("a",))


def test_a_load_that_cannot_stay_low_for_so_long_is_not_counted() -> None:
    loads = [load("a", hold_s=1800.0, **SURE_KNOBS), load("b", **SURE_KNOBS)]
    short = promise(loads, asked_w=1e6, lead_s=60.0, for_s=1740.0)
    long = promise(loads, asked_w=1e6, lead_s=60.0, for_s=1741.0)
    assert [one.offer.reduction_w for one in (short, long)] == pytest.approx([800, 400])


def test_losses_of_the_tree_count_and_loads_of_other_branches_do_not() -> None:
    tree = PowerTree((
        TreeDomain(name="site", loss=0.1),
        TreeDomain(name="a", parent="site", loss=0.2, nodes=("n1",)),
        TreeDomain(name="b", parent="site", nodes=("n2",)),
    ))  # fmt: skip
    loads = [load("x", domain="n1", **SURE_KNOBS), load("y", domain="b", **SURE_KNOBS)]

    def at(domain: str) -> float:
        weight = weights_of(tree, domain)
        asked = promise(loads, asked_w=1e6, lead_s=1.0, for_s=1.0, other_w=50.0, weight=weight)
        return asked.offer.reduction_w

    assert at("site") == pytest.approx(400 / 0.9 / 0.8 + 400 / 0.9, rel=1e-3)
    assert at("a") == pytest.approx(400 / 0.8, rel=1e-3)
    with pytest.raises(UserError, match="no domain 'c'"):
        weights_of(tree, "c")
    with pytest.raises(UserError, match="no domain or node 'z'"):
        weights_of(tree)("z")


def test_half_of_all_caps_are_done_after_the_median_and_nine_of_ten_after_2_8() -> None:
    assert done_by(3.0, 3.0) == pytest.approx(0.5)
    assert done_by(8.4, 3.0) == pytest.approx(0.9, abs=0.005)


def test_thousands_of_loads_are_answered_at_once() -> None:
    loads = [load(str(number), preemptible=number % 2 == 0) for number in range(2000)]
    found = promise(loads, asked_w=1_000_000.0, lead_s=120.0, for_s=60.0)
    assert found.met
    # With one order in a hundred lost, nearly all of what is left of so many is sure.
    every = promise(loads, asked_w=1e9, lead_s=120.0, for_s=60.0).offer.reduction_w
    assert every > 0.97 * (1000 * 1000 + 1000 * 400)


LOADS = st.lists(
    st.builds(
        load,
        st.uuids().map(str),
        draw_w=st.integers(0, 5000).map(float),
        floor_w=st.integers(0, 5000).map(float),
        preemptible=st.booleans(),
        stop_s=st.sampled_from([0.0, 30.0, 300.0]),
        works=st.sampled_from([0.5, 0.9, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(LOADS, st.integers(0, 20_000), st.sampled_from([5.0, 60.0, 600.0]))
def test_what_is_promised_is_never_more_than_there_is_and_steps_only_rise(
    loads: list[LowerableLoad], asked_w: int, lead_s: float
) -> None:
    found = promise(loads, asked_w=float(asked_w), lead_s=lead_s, for_s=60.0)
    most_w = sum(max(one.by_cap_w, one.by_stop_w) for one in loads)
    assert 0 <= found.offer.reduction_w <= most_w + 1e-6
    assert found.met == (found.offer.reduction_w >= asked_w)
    assert set(found.offer.stopped) <= {one.name for one in loads if one.preemptible}
    rising = [one.reduction_w for one in found.steps]
    assert rising == sorted(set(rising))


@given(LOADS)
def test_a_load_more_never_lowers_what_can_be_promised_by_more_than_the_grid(
    loads: list[LowerableLoad],
) -> None:
    loads = [replace(one, preemptible=False) for one in loads]

    def most_w(given_: list[LowerableLoad]) -> float:
        return promise(given_, asked_w=1e9, lead_s=600.0, for_s=60.0).offer.reduction_w

    total_w = sum(one.by_cap_w for one in loads)
    assert most_w(loads) >= most_w(loads[:-1]) - 2 * total_w * len(loads) / GRID - 1e-6


@pytest.mark.parametrize(
    ("field", "value"), [("draw_w", -1.0), ("floor_w", math.nan), ("works", 1.2), ("hold_s", -1.0)]
)
def test_loads_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(UserError) as error:
        load("a", **{field: value})
    assert error.value.field == field
