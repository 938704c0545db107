"""Full collections of garbage wait for a quiet moment."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace

import pytest

from wattherd.server.site import housekeeping
from wattherd.server.site.housekeeping import Housekeeping

pytestmark = pytest.mark.long


def test_garbage_is_collected_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.02)
    before, happened = gc.get_threshold(), [0]

    def busy() -> int:
        happened[0] += 1
        return happened[0]

    def quiet() -> int:
        return -1

    count = busy
    keeping = Housekeeping(lambda: count())
    keeping.begin()
    try:
        assert gc.get_threshold()[2] >= 1_000_000
        time.sleep(0.3)
        assert keeping.collections == 0
        count = quiet
        end_s = time.monotonic() + 10.0
        while keeping.collections == 0:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        time.sleep(0.2)
        assert keeping.collections == 1
    finally:
        keeping.end()
    assert gc.get_threshold() == before


def test_who_comes_late_may_have_missed_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, happened = [100.0], [0]
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(housekeeping, "LOOK_S", 60.0)  # nobody looks but this test
    keeping = Housekeeping(lambda: happened[0])
    keeping.begin()
    try:
        happened[0] = 1
        after = []
        for passed_s in (60.0, 600.0, 60.0):  # news; stopped meanwhile; quiet
            now_s[0] += passed_s
            keeping._last_s = now_s[0]  # no full collection is due for its own sake
            keeping.look()
            after.append(keeping.collections)
    finally:
        keeping.end()
    assert after == [0, 0, 1]
