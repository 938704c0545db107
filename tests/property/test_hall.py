"""The safety loop in a hall of power supplies, fans, phases and meters as they are bought.

`tests/hall.py` has the physics and where each number is from; it shares no line with the other two
plants. What is not held yet is named, and on the page with what was measured.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hall import HALLS, a_day

PAGE = Path(__file__).parents[2] / "docs/concepts/power-control.md"
USED = 0.95
NOT_YET = {
    "caps-take-8-s": "91.8 % used",
    "supplies+fans+hot+unbalanced+phases-unread": "1 s above by 0.1 %",
    "half-counted+supplies+fans": "2 s above, worst 0.4 %",
}
"""Halls that are not held, as measured; a hall that holds after all fails here, to be taken out."""


def _owed(name: str) -> Any:
    why = NOT_YET.get(name)
    marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.long
@pytest.mark.parametrize("name", [_owed(name) for name in HALLS])
def test_no_limit_is_exceeded_and_the_limit_is_used(name: str) -> None:
    day = a_day(name)
    assert not day.above(), day.told()
    assert not day.trips, day.told()
    assert day.used() >= USED, day.told()


def test_the_page_tells_of_every_hall_and_of_those_that_are_not_held() -> None:
    table = PAGE.read_text().split("<!-- halls -->")[1].split("<!-- end of halls -->")[0]
    rows = re.findall(r"^\| `([^`]+)` \|.*\| (\w+) \|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(HALLS)
    assert {name for name, held in rows if held == "no"} == NOT_YET.keys()
