"""`wattherd top` in textual's pilot: what it shows, what keys do, and without a service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("textual", reason="the extra `tui` is not installed")

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from wattherd.cli.top import top
from wattherd.cli.top_app import Top, line_text, watts_text
from wattherd.errors import UserError
from wattherd.library.client import ServiceUnreachable

POWER = {"draw_w": 7.5, "budget_w": 10.0, "headroom_w": 2.5, "stated": "model",
         "samples": [{"draw_w": 5.0}, {"draw_w": 7.5}]}  # fmt: skip


def job(number: int, state: str = "Running", **more: Any) -> dict[str, Any]:
    runs = state == "Running"
    return {
        "id": f"j-{number}", "name": f"net{number}", "user": "ann", "state": state, "gpus": 1,
        "watts": 3.0 if runs else None, "cap_w": None, "progress": 25.0, "total": 100.0,
        "where": [{"node": "n0", "gpus": [0]}] if runs else [],
        "reason": None if runs else {"code": "WaitingForGpus", "text": "WaitingForGpus: asked 1"},
        "story": [{"at": "2026-01-01T10:00:00.000", "what": "submitted", "cause": ""}], **more,
    }  # fmt: skip


class Stage:
    """A service that says what a test lets it say."""

    def __init__(self) -> None:
        self.jobs = [job(1), job(2, "Queued")]
        self.away = False

    def get(self, path: str, **query: object) -> Any:
        if self.away:
            raise ServiceUnreachable("no answer: refused", hint="start one")
        if path == "power":
            assert query == {"last": 120}
            return POWER
        if path == "jobs":
            return {"jobs": self.jobs}
        if path == "nodes":
            gpu = {"number": 0, "model": "CPU", "jobs": ["j-1"]}
            return {"nodes": [{"name": "n0", "state": "Ready", "gpus": [gpu]}]}
        return next(one for one in self.jobs if path == f"jobs/{one['id']}")


def shown(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def until(pilot: Pilot[None], what: Callable[[], bool]) -> None:
    for _ in range(300):
        if what():
            return
        await pilot.pause(0.05)
    raise AssertionError("it is never shown")


def on_screen(stage: Stage, script: Callable[[Top, Pilot[None]], Awaitable[None]]) -> None:
    async def play() -> None:
        app = Top(stage, every_s=0.1)
        async with app.run_test(size=(120, 40)) as pilot:
            await script(app, pilot)

    asyncio.run(play())


def rows(app: Top, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [table.get_row_at(number) for number in range(table.row_count)]


def test_draw_jobs_and_devices_are_shown_and_follow_the_service() -> None:
    stage = Stage()

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(app, "jobs")) == 2)
        assert "7.5 W of 10.0 W, 2.5 W left  (model)" in shown(app, "watts")
        assert shown(app, "line").splitlines() == ["  ", " █", "██", "██"]
        running, waiting = rows(app, "jobs")
        assert running == ["j-1", "net1", "ann", "Running", "1", "3.0", "-", "25%", "n0[0]"]
        assert waiting[-1].startswith("WaitingForGpus")
        assert rows(app, "devices") == [["n0", "0", "CPU", "Ready", "j-1"]]
        stage.jobs = [job(2)]
        await until(pilot, lambda: [row[0] for row in rows(app, "jobs")] == ["j-2"])

    on_screen(stage, script)


def test_enter_tells_why_and_the_cursor_stays_with_its_job() -> None:
    stage = Stage()

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(app, "jobs")) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: "WaitingForGpus: asked 1" in shown(app, "why"))
        assert "10:00:00  submitted" in shown(app, "why")
        stage.jobs = [job(9), *stage.jobs]
        await until(pilot, lambda: len(rows(app, "jobs")) == 3)
        assert app.query_one("#jobs", DataTable).cursor_row == 2

    on_screen(stage, script)


def test_a_service_that_goes_away_is_said_and_asked_again() -> None:
    stage = Stage()

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(app, "jobs")) == 2)
        stage.away = True
        await until(pilot, lambda: "no answer" in shown(app, "watts"))
        stage.away = False
        await until(pilot, lambda: "7.5 W" in shown(app, "watts"))
        await pilot.press("q")

    on_screen(stage, script)


def test_too_much_and_no_budget_are_said() -> None:
    assert "OVER THE BUDGET" in watts_text({**POWER, "draw_w": 11.0, "headroom_w": -1.0})
    assert "no budget" in watts_text({**POWER, "budget_w": None, "headroom_w": None})
    assert "no sample" in watts_text({**POWER, "draw_w": None})


def test_the_line_is_as_high_as_the_budget() -> None:
    halves = {"budget_w": 8.0, "samples": [{"draw_w": 0.0}, {"draw_w": 0.25}, {"draw_w": 16.0}]}
    assert line_text(halves).splitlines() == ["  █", "  █", "  █", "  █"]
    assert line_text({**halves, "samples": [{"draw_w": 1.25}]}).splitlines()[-1] == "▅"
    assert line_text({"budget_w": None, "samples": []}).strip() == ""


def test_without_the_library_or_a_service_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told = CliRunner().invoke(top, ["--server", "http://127.0.0.1:9"])
    assert isinstance(told.exception, ServiceUnreachable)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "wattherd.cli.top_app")
    told = CliRunner().invoke(top, ["--server", "http://127.0.0.1:9"])
    assert isinstance(told.exception, UserError)
    assert "wattherd[tui]" in told.exception.hint
