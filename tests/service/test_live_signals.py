"""Limits from outside on a live site: a schedule that is handed in, a web server that is asked."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from test_live_site import Service, service

from service.serving import until as within
from unit.web_server import Site as Pages
from unit.web_server import serving as web_serving
from wattherd.library.client import Client

pytestmark = pytest.mark.long

__all__ = ["service"]
until = partial(within, most_s=60.0)


def test_a_schedule_is_met_when_it_begins(service: Service, tmp_path: Path) -> None:
    service.call("power", "set", "9W")
    jobs = [service.call("submit", "--", "sleep", "60").strip() for _ in range(2)]
    for job in jobs:
        service.until(job, "Running")
    plan = tmp_path / "limits.csv"
    plan.write_text("at,limit,until\n15s,6W,\n2h,5W,\n")
    shown = service.call("power", "set", "--schedule", str(plan))
    assert "announced 6 W" in shown
    client = Client(service.url)
    power = client.get("power")
    assert (power["budget_w"], [one["budget_w"] for one in power["announced"]]) == (9.0, [6.0, 5.0])
    assert power["announced"][0]["source"] == "signals"
    lowered_before = False
    while (power := client.get("power"))["budget_w"] != 6.0:
        caps = [client.get(f"jobs/{job}")["cap_w"] for job in jobs]
        lowered_before |= sum(caps) <= 6.0
        assert power["budget_w"] == 9.0
        time.sleep(0.2)
    assert lowered_before
    assert {one["source"]: one["budget_w"] for one in power["budgets"]} == {
        "operators": 9.0,
        "signals": 6.0,
    }
    service.call("power", "set", "--no-schedule")
    power = client.get("power")
    assert (power["budget_w"], power["announced"], power["signals"]) == (9.0, [], [])
    for job in jobs:
        service.call("cancel", job)


def test_a_web_signal_counts_and_survives_a_restart(tmp_path: Path) -> None:
    at = datetime.now(UTC) - timedelta(minutes=1)
    pages = Pages()
    pages.pages["/limits"] = {"limits": [{"at": at.isoformat(), "limit": "5W"}]}
    with web_serving(pages):
        uri = f"http://127.0.0.1:{pages.port}/limits?safe=4W&every=0.2s"
        first = Service.begin(tmp_path / "state")
        try:
            told = first.call("power", "set", "--signal", uri, "-o", "json")
            assert json.loads(told)["signals"][0]["contact"] in ("waiting", "heard")
            until(lambda: Client(first.url).get("power")["budget_w"] == 5.0)
        finally:
            first.end()
        second = Service.begin(tmp_path / "state")
        try:
            client = Client(second.url)
            assert client.get("power")["budget_w"] == 5.0
            pages.pages["/limits"] = {"limits": [{"at": at.isoformat(), "limit": "7W"}]}
            until(lambda: client.get("power")["budget_w"] == 7.0)
            second.call("power", "set", "--no-signals")
            assert client.get("power")["budget_w"] is None
        finally:
            second.end()
