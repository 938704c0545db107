"""Real jobs on a rack that others draw on, too: its meter stays below the limit, jobs come back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_live_site import Service

from unit.web_server import Site as Pages
from unit.web_server import serving as web_serving
from wattherd.errors import ClusterError, UserError
from wattherd.library.client import Client
from wattherd.local.devices import slots
from wattherd.local.orphans import end_stray
from wattherd.server.limits.site_limits import SiteLimits, SiteWatch, StartRamps, start_ramps
from wattherd.server.settings.config import read_config

pytestmark = pytest.mark.long

BUSY = ("--", "python", "-c", "while True: pass")


@dataclass
class Rack:
    """A meter of Prometheus' API that shows other load and, once known, a service's own draw."""

    other_w: float
    client: Client | None = None
    shown_w: list[float] = field(default_factory=list)
    own_w: float = 0.0

    def answer(self, path: str, query: dict[str, str]) -> Any:
        del path, query
        watts = self.other_w + self.own_w
        self.shown_w.append(watts)
        sample = [time.time(), str(watts * (1.0 + 0.001 * (len(self.shown_w) % 3)))]
        result = [{"metric": {}, "value": sample}]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    def follow(self, over: threading.Event) -> None:
        while not over.wait(0.2):
            client = self.client
            with suppress(ClusterError):  # the service has ended
                self.own_w = (client and client.get("power")["draw_w"]) or 0.0


@contextmanager
def a_rack(other_w: float) -> Iterator[tuple[Rack, str]]:
    """The rack, and the address of its meter."""
    rack, over, pages = Rack(other_w), threading.Event(), Pages()
    pages.answer = rack.answer
    thread = threading.Thread(target=rack.follow, args=[over])
    with web_serving(pages):
        thread.start()
        try:
            yield rack, f"prom+http://127.0.0.1:{pages.port}/api/v1?query=rack"
        finally:
            over.set()
            thread.join()


def test_jobs_make_way_for_other_load_on_their_rack_and_come_back(tmp_path: Path) -> None:
    """The rack carries 100 W; others take 90, 99 and 90 W of it again."""
    most_w = 2 * slots("here", 2).gpu.max_w
    limit_w = 100.0
    with a_rack(limit_w - 1.2 * most_w) as (rack, meter):
        config = tmp_path / "serve.yaml"
        feeds = {"rack-1": {"limit": limit_w, "meter": meter}}
        config.write_text(yaml.safe_dump({"site": {"feeds": feeds, "feed": "rack-1"}}))
        service = Service.begin(tmp_path / "state", "--config", str(config))
        try:
            rack.client = client = Client(service.url)
            jobs = [service.call("submit", *BUSY).strip() for _ in range(2)]
            for job in jobs:
                service.until(job, "Running")
            time.sleep(3.0)
            rack.other_w = limit_w - 0.6 * most_w
            budget = until_budget(client, lambda watts: watts is not None and watts < 0.7 * most_w)
            time.sleep(8.0)  # to be in force: caps are slowed or jobs stopped
            del rack.shown_w[:]
            time.sleep(6.0)
            assert max(rack.shown_w) <= limit_w
            power = client.get("power")
            assert {one["source"] for one in power["budgets"]} == {"site"}
            assert any("rack-1: limit 100.0 W" in note for note in power["notes"])
            rack.other_w = limit_w - 1.2 * most_w
            back = until_budget(client, lambda watts: watts is None or watts > 1.2 * (budget or 0))
            assert back is None or back > (budget or 0.0)
            for job in jobs:
                assert service.until(job, "Running")
                service.call("cancel", job)
        finally:
            rack.client = None
            service.end()
            for folder in (tmp_path / "state").glob("jobs/*/run-*"):
                end_stray(folder)


def until_budget(client: Client, holds: Any) -> float | None:
    end_s = time.monotonic() + 90.0
    while not holds(watts := site_budget(client)):
        assert time.monotonic() < end_s, watts
        time.sleep(0.3)
    return watts


def site_budget(client: Client) -> float | None:
    budgets = client.get("power")["budgets"]
    return next((one["budget_w"] for one in budgets if one["source"] == "site"), None)


@pytest.mark.parametrize(
    ("site", "problem"),
    [
        ({"feeds": {"a": {}, "b": {}}}, "site.feed: is missing: there are several feeds"),
        ({"feeds": {"a": {}}, "feed": "b"}, "site.feed: no feed 'b'"),
        ({"feeds": {"a": {"limit": "much"}}, "feed": "a"}, "feeds.a.limit"),
        ({"meter": "modbsu://h"}, "protocol 'modbsu' is unknown"),
    ],
)
def test_limits_that_cannot_be_used_are_refused_at_the_start(
    site: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError) as error:
        SiteWatch(None, slots("here", 2), SiteLimits(**site), lambda: (0.0, 0.0))  # type: ignore[arg-type]
    assert problem in error.value.line()


def test_an_unknown_field_of_a_site_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("site:\n  limits: 3kW\n")
    with pytest.raises(UserError, match="limits"):
        read_config(path, {})


def test_levels_tell_where_they_hang_and_what_is_left_of_them() -> None:
    feeds = {"rack-1": {"limit": 100.0, "feed": "row"}, "row": {"base": 30.0}, "other": {}}
    site = SiteLimits(feeds=feeds, feed="rack-1", limit=400.0)  # type: ignore[arg-type]
    watch = SiteWatch(None, slots("here", 2), site, lambda: (5.0, 0.0))  # type: ignore[arg-type]
    assert watch.levels() == ()
    watch.news(None, 5.0, 0.0, 1000.0)
    rack, *others = watch.levels()
    assert (rack.name, rack.parent, rack.limit_w) == ("rack-1", "row", 100.0)
    assert rack.held_w == pytest.approx(
        2 * slots("here", 2).gpu.max_w, rel=0.05
    )  # caps may regulate high
    assert math.isnan(rack.draw_w)
    assert math.isnan(rack.headroom_w)
    parents = {one.name: (one.parent, one.limit_w, one.held_w > 0) for one in others}
    assert parents == {
        "row": ("site", math.inf, True),
        "other": ("site", math.inf, False),
        "site": ("", 400.0, True),
    }


def test_ramps_of_the_levels_above_are_the_schedulers_to_hold() -> None:
    feeds = {
        "rack-1": {"ramp_up": "2kW/s", "feed": "row"},
        "row": {"ramp_up": 500},
        "b": {"ramp_up": 1},
    }
    site = SiteLimits(feeds=feeds, feed="rack-1", ramp_down="1kW/s", ramp_over="20s")  # type: ignore[arg-type]
    assert start_ramps(site) == StartRamps(up_w_s=500.0, down_w_s=1000.0, window_s=20.0)
    assert start_ramps(None) == StartRamps()


def test_a_swing_is_refused_where_nothing_holds_it() -> None:
    for site in ({"swing": "2kW"}, {"feeds": {"a": {"swing": "2kW"}}}):
        with pytest.raises(UserError, match="holds no swing") as error:
            start_ramps(SiteLimits(**site))  # type: ignore[arg-type]
        assert error.value.hint


def test_jobs_of_a_service_start_along_its_ramp(tmp_path: Path) -> None:
    """Each start takes more than a window's credit: the second one waits, and says how long."""
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump({"site": {"ramp_up": "1W/s", "ramp_over": "4s"}}))
    service = Service.begin(tmp_path / "state", "--config", str(config))
    try:
        jobs = [service.call("submit", *BUSY).strip() for _ in range(2)]
        service.until(jobs[0], "Running")
        reason = Client(service.url).get(f"jobs/{jobs[1]}")["reason"]
        assert reason["code"] == "WaitingForRamp"
        assert "starts are spread to 1 W/s on the site" in reason["text"]
        assert service.until(jobs[1], "Running")
        for job in jobs:
            service.call("cancel", job)
    finally:
        service.end()
        for folder in (tmp_path / "state").glob("jobs/*/run-*"):
            end_stray(folder)
