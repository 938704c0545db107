"""The safety loop in a cage of a colocation: instruments, knobs and neighbours as they are found.

`tests/colo.py` has the plant; it shares no line with the other three. What is not held yet is
named, and on the page with what was measured.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from colo import DAYS, FAULTS, a_day

PAGE = Path(__file__).parents[2] / "docs/concepts/power-control.md"
USED = 0.95
NOT_YET = {
    "job-in-step": "94.7 % used",
    "jobs-come-and-go": "86.6 % used",
    "parts-beside+decaying-means+inference": "8 s above, worst 2.9 %",
    "fans+lossy-wires+job-in-step+steps-untold": "94.8 % used",
    "parts-beside+hot-plug+caps-cached+jobs-come-and-go": "73.8 % used",
}
"""Days that are not held, as measured; one that is held after all fails here, to be taken out."""

BENEATH = "parts-beside+fans"
NOT_MENDED: dict[str, str] = {}
"""Faults on that day after which the limit is not in use again."""


def _owed(name: str, unheld: dict[str, str] = NOT_YET) -> Any:
    why = unheld.get(name)
    marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.long
@pytest.mark.parametrize("name", [_owed(name) for name in DAYS])
def test_no_limit_is_exceeded_and_the_limit_is_used(name: str) -> None:
    day = a_day(name)
    assert not day.above(), day.told()
    assert not day.trips, day.told()
    assert day.used() >= USED, day.told()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wrong_clocks_hide_no_neighbour(seed: int) -> None:
    """With seed 1 the site was 20 % above for three minutes: its meter's clock was 9 s behind."""
    day = a_day("neighbour-steps+slow-to-obey+skewed-clocks", seed=seed)
    assert not day.above(), day.told()
    assert not day.trips, day.told()
    # With seed 2 it is 93.8 %: a neighbour's smaller steps pass for wandering, and are kept free.
    assert day.used() >= 0.93, day.told()


@pytest.mark.long
@pytest.mark.parametrize("fault", [_owed(fault, NOT_MENDED) for fault in FAULTS])
def test_a_fault_trips_no_breaker_and_the_limit_is_used_again_after_it(fault: str) -> None:
    day = a_day(BENEATH, fault)
    assert not day.trips, day.told()
    assert day.mended() >= USED, day.told()


def test_the_page_tells_of_every_fault_and_of_what_it_leaves_behind() -> None:
    page = PAGE.read_text().split("<!-- colo faults -->")[1]
    rows = re.findall(r"^\| `([^`]+)` \|.*\| (\w+) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(FAULTS)
    assert {name for name, held in rows if held == "no"} == NOT_MENDED.keys()


def test_the_page_tells_of_every_day_and_of_those_that_are_not_held() -> None:
    table = PAGE.read_text().split("<!-- colo -->")[1].split("<!-- end of colo -->")[0]
    rows = re.findall(r"^\| `([^`]+)` \|.*\| (\w+) \|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(DAYS)
    assert {name for name, held in rows if held == "no"} == NOT_YET.keys()
