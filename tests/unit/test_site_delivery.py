"""What a service delivered in an event, by the samples that its store keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.experiments.grid.delivery import BaselineMethod, DeliveryEvent
from wattherd.server.documents.site_delivery import drawn, site_delivery
from wattherd.store.projection import Projection, ProjectionBatch
from wattherd.store.store import ClusterStore

pytest.importorskip("sqlalchemy", reason="the extra `server` is not installed")
EPOCH = 1_795_270_000.0
START_S = 4 * 3600.0
"""Of the event, from the epoch."""


def a_sample(at_s: float, draw_w: float) -> dict[str, Any]:
    return {"at_s": at_s, "span_s": 10.0, "draw_w": draw_w, "budget_w": None, "by_job": "{}",
            "stated": "measured"}  # fmt: skip


OPEN: list[ClusterStore] = []


@pytest.fixture(autouse=True)
def stores_are_closed() -> Iterator[None]:
    """Whatever a test opened."""
    yield
    while OPEN:
        OPEN.pop().close()


def a_store(tmp_path: Path, *, until_s: float, draw_w: Any, but: range = range(0)) -> Projection:
    tmp_path.mkdir(exist_ok=True)
    store = ClusterStore.open(f"sqlite:///{tmp_path}/store.db")
    OPEN.append(store)
    batch = ProjectionBatch()
    for at in range(10, int(until_s) + 1, 10):
        if at not in but:
            batch.samples.append(a_sample(float(at), draw_w(at)))
    store.projection.write(batch)
    return store.projection


def cut(at: float) -> float:
    """8 kW, and 6 kW from 30 s after the event began until it ends."""
    return 6000.0 if START_S + 30 < at <= START_S + 3600 else 8000.0


def told(store: Projection, **more: Any) -> dict[str, Any]:
    event = DeliveryEvent(start_s=EPOCH + START_S, end_s=EPOCH + START_S + 3600,
                          **{"limit_w": 6500.0, **more})  # fmt: skip
    return site_delivery(store, EPOCH, event, BaselineMethod.HOUR_BEFORE, UTC, ())


@pytest.mark.parametrize("thinned", [False, True])
def test_a_cut_is_proved_from_samples_and_from_their_means(tmp_path: Path, thinned: bool) -> None:
    store = a_store(tmp_path, until_s=START_S + 7200, draw_w=cut)
    if thinned:
        store.thin(START_S + 3 * 3600)
    found = told(store)
    assert (found["schema"], found["stated"]) == ("wattherd.delivery/1", "measured")
    assert found["reduction_w"] == pytest.approx(2000 * 3570 / 3600, abs=10 if thinned else 0.1)
    assert found["asked_w"] == pytest.approx(1500)
    # Of a mean of a minute no part is told apart: five of its six samples are of before.
    assert 30 <= found["above_s"] <= (60 if thinned else 30.001)
    assert 30 <= found["late_s"] <= (60 if thinned else 30.001)
    assert found["worst_w"] == pytest.approx(1500 * 7 / 9 if thinned else 1500, abs=1)
    assert found["unseen_s"] == pytest.approx(0, abs=1e-6)


def test_time_without_samples_proves_nothing(tmp_path: Path) -> None:
    gap = range(int(START_S) + 1000, int(START_S) + 1600)
    found = told(a_store(tmp_path, until_s=START_S + 3600, draw_w=cut, but=gap))
    assert found["unseen_s"] == pytest.approx(600, abs=10)


def test_a_model_is_not_called_measured(tmp_path: Path) -> None:
    store = a_store(tmp_path, until_s=START_S + 3600, draw_w=cut)
    more = ProjectionBatch()
    more.samples.append({**a_sample(START_S - 10, 8000.0), "stated": "model"})
    store.write(more)
    assert told(store)["stated"] == "model"


def test_what_is_not_written_down_cannot_be_proved(tmp_path: Path) -> None:
    store = a_store(tmp_path / "a", until_s=600, draw_w=cut)
    with pytest.raises(UserError, match="30 days back are kept"):
        drawn(store, EPOCH, EPOCH + 600, EPOCH + 900)
    fresh = a_store(tmp_path / "b", until_s=START_S + 600, draw_w=cut, but=range(int(START_S)))
    with pytest.raises(UserError, match="too few readings in the hour before") as caught:
        told(fresh)
    assert caught.value.hint == "take baseline=ten-in-ten"


def test_samples_never_overlap_and_cover_what_was_asked(tmp_path: Path) -> None:
    store = a_store(tmp_path, until_s=7200, draw_w=lambda at: 5000.0 + at % 70)
    store.thin(7200)
    readings, _ = drawn(store, EPOCH, EPOCH + 1000, EPOCH + 7000)
    assert (readings.begins_s[1:] >= readings.ends_s[:-1]).all()
    mean_w, seen = readings.mean_w(EPOCH + 1200, EPOCH + 6600)
    assert seen == pytest.approx(1)
    exact_w = math.fsum(5000.0 + at % 70 for at in range(1210, 6601, 10)) / 540
    assert mean_w == pytest.approx(exact_w, rel=1e-3)
