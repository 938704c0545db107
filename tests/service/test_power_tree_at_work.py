"""The power tree of a real service: its command, its page, its metrics, and who may see it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from prometheus_client.parser import text_string_to_metric_families

from service.guarded import Guarded
from unit.web_server import Site as Pages
from unit.web_server import serving as web_serving
from wattherd.server.api.schemas.power import LiveTreeDocument

pytestmark = pytest.mark.long
HOSTILE = 'rack "<b>1</b>"\u202e\n'


class Rack:
    """A meter of Prometheus' API, which may be told to say nothing."""

    def __init__(self) -> None:
        self.watts: float | None = 900.0

    def answer(self, path: str, query: dict[str, str]) -> Any:
        del path, query
        found = (
            [] if self.watts is None else [{"metric": {}, "value": [time.time(), str(self.watts)]}]
        )
        return {"status": "success", "data": {"resultType": "vector", "result": found}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, Rack]]:
    rack, pages = Rack(), Pages()
    pages.answer = rack.answer
    with web_serving(pages):
        meter = f"prom+http://127.0.0.1:{pages.port}/api/v1?query=rack&max_age=2s"
        feeds = {
            "row": {"limit": "5kW"},
            HOSTILE: {"feed": "row", "limit": "1kW", "meter": meter},
            "other": {"limit": "2kW"},
        }
        limits = {"limit": "8kW", "feeds": feeds, "feed": HOSTILE}
        state = tmp_path_factory.mktemp("tree") / "state"
        guarded = Guarded(state, site=limits, budget="2kW").let_people_in()
        guarded.until(lambda: row_of(guarded, HOSTILE)["draw_w"])
        yield guarded, rack
        guarded.close()


def rows_of(guarded: Guarded, who: str = "viewer") -> list[dict[str, Any]]:
    reply = guarded.ask("GET", "/api/v1/power/tree", who)
    assert reply.status == 200, reply.text
    LiveTreeDocument.model_validate(reply.json)
    rows: list[dict[str, Any]] = reply.json["rows"]
    return rows


def row_of(guarded: Guarded, name: str) -> dict[str, Any]:
    return next(
        (one for one in rows_of(guarded) if one["name"] == name), {"draw_w": 0.0, "over": False}
    )


def cli(guarded: Guarded, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", "power", "tree", *words],
        capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(guarded.site.config.state),
             "WATTHERD_SERVER": guarded.url, "WATTHERD_TOKEN": guarded.tokens["viewer"]},
    )  # fmt: skip


def test_rows_stand_in_the_order_of_the_drawing(site: tuple[Guarded, Rack]) -> None:
    guarded, _ = site
    machine = guarded.site.machine.node.name
    shape = [(one["name"], one["kind"], one["depth"]) for one in rows_of(guarded)]
    assert shape[0] == ("site", "level", 0)
    at = shape.index(("row", "level", 1))
    assert shape[at : at + 4] == [
        ("row", "level", 1),
        (HOSTILE, "level", 2),
        (machine, "node", 3),
        ("GPU 0", "device", 4),
    ]
    assert row_of(guarded, HOSTILE)["limit_by"] == "configuration"
    assert row_of(guarded, machine)["limit_by"] in ("operators", "site")


def test_the_command_draws_it_as_it_draws_a_file(site: tuple[Guarded, Rack]) -> None:
    guarded, rack = site
    rack.watts = 900.0
    guarded.until(lambda: row_of(guarded, HOSTILE)["draw_w"] == 900.0)
    done = cli(guarded)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["DOMAIN", "LEVEL", "LIMIT", "DRAW", "HEADROOM", "FREE", "USED"]
    assert any(line.startswith(("│  └─ rack", "   └─ rack")) for line in lines)
    assert "\u202e" not in done.stdout
    assert [line for line in lines if "─ row" in line and ">= 900 W" in line], done.stdout
    assert len(cli(guarded, "--levels", "2").stdout.splitlines()) == 4
    assert json.loads(cli(guarded, "-o", "json").stdout)["schema"] == "wattherd.live-tree/1"
    assert yaml.safe_load(cli(guarded, "-o", "yaml").stdout)["rows"][0]["name"] == "site"
    assert cli(guarded, "-o", "name").stdout.splitlines()[0] == "site"
    refused = cli(guarded, "--at", "2h")
    assert refused.returncode == 2
    assert "hint:" in refused.stderr


def test_a_level_above_its_limit_is_code_1_and_counted(site: tuple[Guarded, Rack]) -> None:
    guarded, rack = site
    before = series(guarded)["wattherd_level_over_seconds_total", HOSTILE]
    rack.watts = 1500.0
    guarded.until(lambda: row_of(guarded, HOSTILE)["over"])
    assert cli(guarded).returncode == 1
    assert "Above the limit" in page(guarded)
    guarded.until(lambda: series(guarded)["wattherd_level_over_seconds_total", HOSTILE] > before)
    assert series(guarded)["wattherd_level_headroom_watts", HOSTILE] == -500.0
    rack.watts = 900.0
    guarded.until(lambda: not row_of(guarded, HOSTILE)["over"])


def test_a_silent_meter_is_said_everywhere_and_is_zero_nowhere(site: tuple[Guarded, Rack]) -> None:
    guarded, rack = site
    rack.watts = None
    guarded.until(lambda: row_of(guarded, HOSTILE)["draw_w"] is None)
    row = row_of(guarded, HOSTILE)
    assert (row["headroom_w"], row["other_w"], row["free_complete"]) == (None, None, False)
    assert row["age_s"] > 0
    found = series(guarded)
    assert ("wattherd_level_draw_watts", HOSTILE) not in found
    assert found["wattherd_level_silent_seconds", HOSTILE] > 0
    done = cli(guarded)
    assert done.returncode == 1
    assert "draw is unknown" in done.stderr
    text = page(guarded)
    assert "No reading" in text
    assert "<b>1</b>" not in text
    rack.watts = 900.0
    guarded.until(lambda: row_of(guarded, HOSTILE)["draw_w"] == 900.0)


def test_whoever_may_look_sees_it_and_nobody_else(site: tuple[Guarded, Rack]) -> None:
    guarded, _ = site
    for who in ("viewer", "user", "stranger", "nobody", "operator", "admin"):
        assert rows_of(guarded, who)
    assert guarded.ask("GET", "/api/v1/power/tree").status == 401
    job = guarded.submit("user", "sleep 600", name="secret-name")
    told = guarded.ask("GET", "/api/v1/power/tree", "stranger").text + page(guarded, "stranger")
    assert job not in told
    assert "secret-name" not in told


def page(guarded: Guarded, who: str = "viewer") -> str:
    cookie = f"wattherd_token={guarded.tokens[who]}"
    return guarded.ask("GET", "/power", accept="text/html,*/*", cookie=cookie).text


def series(guarded: Guarded) -> dict[tuple[str, str], float]:
    text = guarded.ask("GET", "/metrics", "viewer").text
    return {
        (one.name, one.labels["level"]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if "level" in one.labels and not math.isnan(one.value)
    }
