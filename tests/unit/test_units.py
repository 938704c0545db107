"""Watts, seconds and bytes as people write them."""

from __future__ import annotations

import pytest

from wattherd import units
from wattherd.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [("450", 450.0), ("450W", 450.0), ("40kW", 40_000.0), ("1.2 MW", 1_200_000.0), ("5mW", 0.005)],
)
def test_power_is_read_in_watts(text: str, value: float) -> None:
    assert units.watts(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("15m", 900), ("2h30m", 9000), ("1d", 86_400)]
)
def test_time_is_read_in_seconds(text: str, value: float) -> None:
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
