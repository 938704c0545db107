"""Watts, seconds and bytes as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wattherd import units
from wattherd.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("450W", 450.0),
        ("40kW", 40_000.0),
        ("40k", 40_000.0),
        ("1.2 MW", 1_200_000.0),
        ("0.005W", 0.005),
        (300, 300.0),
        (12.5, 12.5),
        ("0mW", 0.0),
    ],
)
def test_power_is_read_in_watts(text: str | float, value: float) -> None:
    assert units.watts(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [(90, 90), ("0", 0), ("90s", 90), ("15m", 900), ("2h30m", 9000), ("1d", 86_400)],
)
def test_time_is_read_in_seconds(text: str | float, value: float) -> None:
    assert units.seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("512", 512), ("80GB", 80 * 10**9), ("64GiB", 64 * 2**30), ("1.5k", 1500)]
)
def test_sizes_are_read_in_bytes(text: str, value: int) -> None:
    assert units.size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "-5W", "5kWh", "lots", "5 5", "inf"])
def test_what_is_no_power_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UserError, match=r"is no power \(hint: write 450W or 40kW\)"):
        units.watts(text)


@pytest.mark.parametrize("text", ["", "2h30", "5x", "-1s", "h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no time"):
        units.seconds(text)


@pytest.mark.parametrize(
    ("read", "text", "one", "other"),
    [
        (units.watts, "10mW", "0.01W", "10MW"),
        (units.watts, "5m", "0.005W", "5MW"),
        (units.watts, "20", "20W", "20kW"),
        (units.watts, "1.5e3", "1.5e3W", "1.5e3kW"),
        (units.seconds, "12", "12s", "12m or 12h"),
        (units.seconds, "1.5", "1.5s", "1.5m or 1.5h"),
    ],
)
def test_what_can_be_read_in_two_ways_is_asked_back_with_both(
    read: Callable[[str], float], text: str, one: str, other: str
) -> None:
    with pytest.raises(UserError) as refused:
        read(text)
    assert one in refused.value.hint
    assert other in refused.value.hint


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_numbers_are_checked_as_texts_are(number: float) -> None:
    for read in (units.watts, units.seconds):
        with pytest.raises(UserError):
            read(number)


def test_columns_that_name_their_unit_hold_plain_numbers() -> None:
    assert units.watts(units.plain("300")) == 300.0
    assert units.seconds(units.plain(" 12.5 ")) == 12.5
    assert units.watts(units.plain("40kW")) == 40_000.0


def test_how_far_off_something_is_is_said_as_people_do() -> None:
    said = [units.show_ahead(s) for s in (-5.0, 0.2, 12.4, 90.0, 600.0, 7200.0, 3 * 86_400.0)]
    assert said == [
        "any moment now", "any moment now", "in about 12 s", "in about 90 s", "in about 10 min",
        "in about 2 h", "in about 3 days",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [(0, "GPU", "0 GPUs"), (1, "GPU", "1 GPU"), (2, "more pod", "2 more pods"),
     (1.0, "CPU", "1 CPU"), (0.5, "CPU", "0.5 CPUs"), (12_000, "job", "12,000 jobs")],
)  # fmt: skip
def test_one_is_not_many(count: float, thing: str, text: str) -> None:
    assert units.counted(count, thing) == text


@pytest.mark.parametrize(
    ("things", "one"),
    [("GPUs", "GPU"), ("GPUs of one type", "GPU of one type"), ("ps tasks", "ps task"), ("W", "W"),
     ("GPUs on GPUs-1", "GPU on GPUs-1"), ("loss", "loss"), ("", "")],
)  # fmt: skip
def test_words_for_many_become_words_for_one(things: str, one: str) -> None:
    assert units.singular(things) == one
