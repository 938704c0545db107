"""Prices and carbon intensities: files of all kinds, and bills against a sum over seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.estimate.rates import Bill, EnergyRates, RateRow
from wattherd.workload.rates_file import read_rates

DAY_S = 86_400.0


def written(folder: Path, text: str, name: str = "rates.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5),
                       st.none() | st.integers(-5, 50), st.none() | st.integers(0, 500)),
             min_size=1, max_size=6),
    st.integers(-5, 40), st.integers(0, 30), st.integers(0, 5000),
)  # fmt: skip
def test_a_bill_is_the_sum_over_all_seconds(
    steps: list[tuple[int, int, int | None, int | None]], start: int, length: int, watts: int
) -> None:
    rows, at = [], 0
    for gap, lasts, price, carbon in steps:
        rows.append(RateRow(at + gap, at + gap + lasts, price, carbon))
        at += gap + lasts
    rates = EnergyRates(tuple(rows))
    bill = rates.bill(float(watts), float(start), float(start + length))
    expected = [0.0] * 5
    for second in range(start, start + length):
        row = rates.at(second + 0.5)
        price = None if row is None else row.price
        carbon = None if row is None else row.carbon_g
        for number, value in enumerate((
            watts, (price or 0) * watts / 3.6e6, (carbon or 0) * watts / 3.6e9,
            watts * (price is None), watts * (carbon is None),
        )):  # fmt: skip
            expected[number] += value
    assert list(bill) == pytest.approx(expected)


def test_rows_that_overlap_are_refused() -> None:
    with pytest.raises(UserError, match="overlap"):
        EnergyRates((RateRow(0, 10, 1.0, None), RateRow(5, 20, 1.0, None)))


def test_a_day_ahead_file_names_currency_and_megawatt_hours(tmp_path: Path) -> None:
    text = "datetime,price_eur_per_mwh\n2030-06-05T00:00Z,80\n2030-06-05T01:00Z,-20\n"
    rates, start_s = read_rates(written(tmp_path, text))
    assert start_s == unix("2030-06-05T00:00+00:00")
    assert rates.currency == "EUR"
    # 1 kW for two hours: 80 - 20 EUR/MWh each for a kilowatt-hour; the last row lasts as long.
    bill = rates.bill(1000.0, start_s, start_s + 7200)
    assert bill.cost == pytest.approx(0.06)
    assert (bill.unpriced_j, bill.unrated_j) == (0.0, 7.2e6)
    assert rates.bill(1000.0, start_s + 7200, start_s + 9000).unpriced_j == 1.8e6


def test_a_tariff_by_time_of_day_comes_again_in_its_zone(tmp_path: Path) -> None:
    text = """
currency: EUR
zone: Europe/Berlin
rates:
- {at: "00:00", price: 0.2}
- {at: "07:00", price: 0.4}
"""
    path = written(tmp_path, text, "rates.yaml")
    rates, start_s = read_rates(path, "2030-06-05T00:00:00+02:00")
    assert start_s == unix("2030-06-05T00:00:00+02:00")
    assert rates.bill(1000.0, start_s, start_s + DAY_S).cost == pytest.approx(7 * 0.2 + 17 * 0.4)
    # The night on which clocks are put back has an hour more of the low tariff.
    autumn_s = unix("2030-10-27T00:00:00+02:00")
    rates, _ = read_rates(path, "2030-10-26T00:00:00+02:00")
    assert rates.bill(1000.0, autumn_s, autumn_s + 25 * 3600).cost == pytest.approx(
        8 * 0.2 + 17 * 0.4
    )
    assert read_rates(path)[1] == datetime(2023, 12, 31, 23, tzinfo=UTC).timestamp()


def test_rows_may_count_from_the_beginning_of_a_run(tmp_path: Path) -> None:
    rates, start_s = read_rates(written(tmp_path, "at,carbon\n0s,100\n1h,300\n"))
    assert start_s == 0.0
    assert rates.bill(1000.0, 0.0, 7200.0).co2e_kg == pytest.approx(0.4)


def test_hours_that_are_missing_in_an_hourly_series_are_unknown(tmp_path: Path) -> None:
    hours = [0, 1, 2, 3, 4, 5, 6, 30, 31, 32]
    text = "at,carbon\n" + "".join(f"{3600 * hour},100\n" for hour in hours)
    rates, _ = read_rates(written(tmp_path, text))
    bill = rates.bill(1000.0, 0.0, 33 * 3600.0)
    assert bill.co2e_kg == pytest.approx(1.0)
    assert bill.unrated_j == pytest.approx(23 * 3.6e6)
    # Of uneven rows, as people write tariffs, each holds until the next one.
    uneven = "at,carbon\n0s,100\n1h,100\n6h,100\n7h,100\n12h,100\n24h,100\n"
    assert read_rates(written(tmp_path, uneven))[0].bill(1.0, 0.0, 86_400.0).unrated_j == 0


def test_an_end_of_its_own_leaves_a_gap_that_is_unknown(tmp_path: Path) -> None:
    text = "at,price,carbon,until\n0s,1,,30m\n1h,1,,\n2h,1,,\n"
    rates, _ = read_rates(written(tmp_path, text))
    bill = rates.bill(1000.0, 0.0, 7200.0)
    assert bill.cost == pytest.approx(1.5)
    assert bill.unpriced_j == pytest.approx(1.8e6)


@pytest.mark.data
def test_the_public_sample_of_carbon_intensities_is_read() -> None:
    import os

    data = Path(os.environ.get("WATTHERD_DATA") or Path(__file__).parents[3] / "shared" / "data")
    path = data / "traces" / "pai_gaia" / "carbonscaler_data-sample.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    rates, start_s = read_rates(str(path))
    assert start_s == unix("2020-01-01T00:00:00+00:00")
    assert rates.bill(1000.0, start_s, start_s + 7200).co2e_kg == pytest.approx(
        (332.39 + 363.37) / 1e3
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("at,colour\n1h,3\n", "no column for a price or a carbon"),
        ("when,price\n1h,3\n", "no column for a time"),
        ("at,price\nsoon,3\n", "row 1: at: 'soon' is no time"),
        ("at,price\n0s,dear\n", "row 1: price: 'dear' is no usable number"),
        ("at,carbon\n0s,-3\n", "-3 g/kWh is below zero"),
        ("at,price\n1h,3\n0s,3\n", "row 1: is not before the next row"),
        ("at,price\n07:00,3\n06:00,3\n", "times of day do not ascend"),
        ("at,price\n07:00,3\n1h,3\n", "row 2: '1h' is no time of day"),
    ],
)
def test_files_that_cannot_be_used_name_the_row(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read_rates(written(tmp_path, text))
    assert said in error.value.line()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "has no list `rates`"),
        ("rates: [1]", "rates: is no mapping"),
        ("{rates: [], zone: Mars}", "no time zone 'Mars'"),
        ("{rates: [], colour: 1}", "colour: unknown field"),
        ("{", "is neither YAML nor JSON"),
    ],
)
def test_documents_that_cannot_be_used_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read_rates(written(tmp_path, text, "rates.yaml"))
    assert said in error.value.line()


def test_bills_add_up() -> None:
    assert Bill(1, 2, 3, 4, 5).plus(Bill(1, 1, 1, 1, 1)) == Bill(2, 3, 4, 5, 6)
