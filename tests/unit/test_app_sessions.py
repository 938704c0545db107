"""Sessions of apps: one caller's end nobody else's, and those that are over go first."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.server.auth import app_origin as origin
from wattherd.server.auth.app_origin import (
    MOST_OF_APP,
    MOST_OF_CALLER,
    SESSION_S,
    TICKET_S,
    AppOrigins,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ticket(origins: AppOrigins, job: str, shown: str, caller: str) -> str:
    entry = origins.entry("http://x", job, shown, "/", caller=caller)
    return entry.partition("&ticket=")[2].partition("&")[0]


def opened(origins: AppOrigins, job: str, caller: str, shown: str = "") -> str:
    shown = shown or f"of {caller}"
    session = origins.redeem(ticket(origins, job, shown, caller), job)
    assert session is not None
    return session


@pytest.mark.long
def test_one_caller_ends_no_session_and_no_ticket_of_others() -> None:
    origins = AppOrigins(None, "")
    anns, waiting = opened(origins, "j-1", "ann"), ticket(origins, "j-1", "of ann", "ann")
    for number in range(10_100):  # each time with another login
        opened(origins, f"j-{number % 600}", "mallory", f"login {number}")
    for number in range(10_100):
        ticket(origins, f"j-{number % 600}", f"login {number}", "mallory")
    assert origins.shown(anns, "j-1") == "of ann"
    assert origins.redeem(waiting, "j-1") is not None


def test_many_windows_of_one_app_end_the_oldest_of_that_app() -> None:
    origins = AppOrigins(None, "")
    other = opened(origins, "j-2", "ann")
    windows = [opened(origins, "j-1", "ann") for _ in range(MOST_OF_APP + 1)]
    assert [origins.shown(one, "j-1") is None for one in windows[:2]] == [True, False]
    assert origins.shown(windows[-1], "j-1") == "of ann"
    assert origins.shown(other, "j-2") == "of ann"


def test_many_apps_of_one_caller_end_its_oldest() -> None:
    origins = AppOrigins(None, "")
    apps = [opened(origins, f"j-{number}", "ann") for number in range(MOST_OF_CALLER + 1)]
    assert origins.shown(apps[0], "j-0") is None
    assert origins.shown(apps[1], "j-1") == "of ann"


def test_what_is_over_is_dropped_before_what_is_not() -> None:
    clock = Clock()
    origins = AppOrigins(None, "", clock)
    held = opened(origins, "j-1", "ann")
    unused = [ticket(origins, "j-1", "of ann", "ann") for _ in range(MOST_OF_APP)]
    clock.now_s = TICKET_S
    assert origins.redeem(unused[-1], "j-1") is None
    opened(origins, "j-1", "ann")
    assert len(origins) == 2
    assert origins.shown(held, "j-1") == "of ann"
    clock.now_s = SESSION_S
    ticket(origins, "j-9", "of bob", "bob")
    assert len(origins) == 2  # bob's ticket, and the session opened later


def test_where_there_are_too_many_the_caller_who_has_most_loses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(origin, "MOST", 10)
    origins = AppOrigins(None, "")
    anns = opened(origins, "j-1", "ann")
    mallorys = [opened(origins, f"j-{number}", "mallory") for number in range(9)]
    bobs = opened(origins, "j-1", "bob")
    assert [origins.shown(one, "j-1") for one in (anns, bobs)] == ["of ann", "of bob"]
    assert origins.shown(mallorys[0], "j-0") is None
