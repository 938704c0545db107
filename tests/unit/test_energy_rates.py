"""Rates of a service: gaps, days with 23 hours, servers that hang, currencies that change."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from wattherd.errors import UserError
from wattherd.estimate.rates import Bill
from wattherd.server.hardware.draw import DrawBook, DrawSample
from wattherd.server.settings.energy_rates import RatesWatch, bill_of, bill_row, bill_text

KWH_J = 3.6e6


def a_file(folder: Path, text: str, name: str = "rates.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def of_today(folder: Path, price: float = 0.5, carbon: float = 400.0, currency: str = "EUR") -> str:
    text = f"currency: {currency}\nrates: [{{at: '00:00', price: {price}, carbon: {carbon}}}]\n"
    return a_file(folder, text)


def a_sample(at_s: float, **by_job: float) -> DrawSample:
    return DrawSample(at_s=at_s, draw_w=100.0, budget_w=None, by_job=by_job, stated="measured")


def booked(watch: RatesWatch, seconds: int = 10, book: DrawBook | None = None) -> DrawBook:
    book = DrawBook() if book is None else book
    epoch = time.time()
    book.of_one_watt = lambda start, end: watch.of_one_watt(epoch + start, epoch + end)
    for at_s in range(seconds + 1):
        book.add(a_sample(float(at_s), a=60.0, b=0.0))
    return book


def test_energy_is_billed_at_the_rates_of_its_time(tmp_path: Path) -> None:
    book = booked(RatesWatch(of_today(tmp_path)))
    assert book.bills["a"].cost == pytest.approx(0.5 * 600.0 / KWH_J)
    assert book.bills["a"].co2e_kg == pytest.approx(0.4 * 600.0 / KWH_J)
    assert book.site_bill.cost == pytest.approx(0.5 * 1000.0 / KWH_J)
    row = bill_row((book.bills["a"], book.currency), book.energy_j["a"])
    assert row is not None
    assert (row["currency"], row["unpriced_j"], row["unrated_j"]) == ("EUR", 0.0, 0.0)


def test_energy_in_a_gap_is_unknown_and_never_free(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    later = (now + timedelta(hours=3)).isoformat()
    text = f"rates:\n- {{at: '{later}', price: 1.0}}\n- {{at: '2099-01-01T00:00Z', price: 1.0}}\n"
    watch = RatesWatch(a_file(tmp_path, text))
    book = booked(watch)
    row = bill_row((book.bills["a"], book.currency), book.energy_j["a"])
    assert row is not None
    assert (row["cost"], row["co2e_kg"]) == (None, None)
    assert row["unpriced_j"] == pytest.approx(600.0)
    told = watch.document(now.timestamp())
    assert (told["price_per_kwh"], told["problem"]) == (None, "no row is of this time")


def test_energy_before_there_were_rates_is_unknown() -> None:
    bill = Bill(energy_j=100.0, cost=1.0, co2e_kg=2.0)
    row = bill_row((bill, "EUR"), 400.0)
    assert row is not None
    assert (row["cost"], row["unpriced_j"], row["unrated_j"]) == (1.0, 300.0, 300.0)
    assert bill_row(None, 400.0) is None


def test_a_price_below_zero_is_a_price(tmp_path: Path) -> None:
    book = booked(RatesWatch(of_today(tmp_path, price=-0.2)))
    row = bill_row((book.bills["a"], "EUR"), 600.0)
    assert row is not None
    assert row["cost"] < 0


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"], ids=["spring", "autumn"])
def test_a_day_of_another_length_has_rates_in_every_second(
    tmp_path: Path, day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "zone: Europe/Berlin\nrates:\n" + "".join(
        f"- {{at: '{hour:02}:00', price: {hour}.0}}\n" for hour in range(24)
    )
    zone = ZoneInfo("Europe/Berlin")
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=zone)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return noon.astimezone(UTC)

    monkeypatch.setattr("wattherd.server.settings.energy_rates.datetime", Clock)
    watch = RatesWatch(a_file(tmp_path, text))
    begin = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=zone)
    end = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=zone) + timedelta(days=1)
    length_s = end.timestamp() - begin.timestamp()
    assert length_s in (23 * 3600.0, 25 * 3600.0)
    bill, _ = watch.of_one_watt(begin.timestamp(), end.timestamp())
    assert bill.energy_j == pytest.approx(length_s)
    assert bill.unpriced_j == pytest.approx(0.0, abs=1e-3)


def test_a_currency_that_changes_makes_earlier_cost_unknown(tmp_path: Path) -> None:
    book = booked(RatesWatch(of_today(tmp_path)))
    again = booked(RatesWatch(of_today(tmp_path, currency="SEK")), book=book)
    assert again.currency == "SEK"
    assert again.bills["a"].unpriced_j == pytest.approx(600.0)
    assert again.bills["a"].cost == pytest.approx(0.5 * 600.0 / KWH_J, rel=0.01)
    assert again.bills["a"].co2e_kg == pytest.approx(0.4 * 1200.0 / KWH_J, rel=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rates: []\n", "has no rows"),
        ("rates: [{at: 0s, price: 1}, {at: 1h, price: 2}]\n", "beginning of a run"),
        ("colour: red\n", "no list `rates`"),
    ],
    ids=["empty", "durations", "others"],
)
def test_a_file_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        RatesWatch(a_file(tmp_path, text))
    assert refused.value.hint


def test_a_file_that_breaks_later_leaves_what_was_read(tmp_path: Path) -> None:
    watch = RatesWatch(of_today(tmp_path))
    a_file(tmp_path, "rates: [")
    watch._due_s = 0.0
    watch.look()
    assert watch.problem
    assert watch.document(time.time())["price_per_kwh"] == 0.5
    of_today(tmp_path, price=0.7)
    watch.look()
    assert (watch.problem, watch.document(time.time())["price_per_kwh"]) == ("", 0.7)


@pytest.mark.long
def test_a_server_that_hangs_holds_up_nothing_and_all_is_unknown_meanwhile() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        watch = RatesWatch(f"http://127.0.0.1:{port}/rates?timeout=1s")
        watch.begin()
        book = booked(watch)
        assert watch.problem == "not read yet"
        assert book.bills["a"].unpriced_j == pytest.approx(600.0)
        assert (book.bills["a"].cost, book.currency) == (0.0, "")
        end_s = time.monotonic() + 30.0
        while watch.problem == "not read yet":
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert watch.document(time.time())["price_per_kwh"] is None
        watch.end()


def test_a_bill_is_kept_as_it_is() -> None:
    bill = Bill(1.0, 0.1, 0.2, 3.0, 4.0)
    assert bill_of(bill_text(bill, "EUR")) == (bill, "EUR")
    assert bill_of(None) is None
