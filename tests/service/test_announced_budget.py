"""A budget that is announced: caps fall before it, and not at once."""

from __future__ import annotations

import json
import time

import pytest
from test_live_site import Service, service

from wattherd.errors import UserError
from wattherd.library.client import Client

pytestmark = pytest.mark.long

__all__ = ["service"]
MOST_S = 60.0


def test_caps_are_lowered_before_an_announced_budget_comes(service: Service) -> None:
    service.call("power", "set", "9W")
    jobs = [service.call("submit", "--", "sleep", "60").strip() for _ in range(2)]
    for job in jobs:
        service.until(job, "Running")
    service.call("power", "set", "6W", "--in", "8s")
    client = Client(service.url)
    power = client.get("power")
    assert (power["budget_w"], power["announced"][0]["budget_w"]) == (9.0, 6.0)
    end_s = time.monotonic() + MOST_S
    lowered_before = False
    while (power := client.get("power"))["budget_w"] != 6.0:
        caps = [client.get(f"jobs/{job}")["cap_w"] for job in jobs]
        lowered_before |= sum(caps) <= 6.0
        assert time.monotonic() < end_s, power
        time.sleep(0.2)
    assert lowered_before
    assert power["announced"] == []
    for job in jobs:
        service.call("cancel", job)


def test_what_cannot_be_announced_is_refused(service: Service) -> None:
    service.call("power", "set", "none", "--in", "5s", code=2)
    service.call("power", "set", "6W", "--in", "soon", code=2)
    with pytest.raises(UserError):
        Client(service.url).put("power", {"budget": "6W", "in": -1})
    assert json.loads(service.call("power", "-o", "json"))["announced"] == []
