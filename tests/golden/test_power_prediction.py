"""What is claimed of predicted watts, on Zeus' measurements of V100, A40 and P100."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from wattherd.service.power_fit import report
from wattherd.workload.power_rows import read_power_rows

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data")
ZEUS = DATA / "power" / "zeus_nsdi23"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ZEUS.is_dir(), reason=f"no Zeus measurements in {ZEUS}; set WATTHERD_DATA"
    ),
]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    files = [str(ZEUS / f"summary_power_{gpu}.csv") for gpu in ("v100", "a40", "p100")]
    return report(read_power_rows(files, "zeus", ZEUS / "summary_train.csv"))


def errors(document: dict[str, Any], split: str, features: str, learner: str) -> dict[str, float]:
    found = {
        one["gpu"]: one["mape_pct"]
        for one in document["errors"]
        if (one["split"], one["features"], one["learner"]) == (split, features, learner)
    }
    assert set(found) == {"V100", "A40", "P100"}
    return found


def test_the_learning_rate_does_not_matter(document: dict[str, Any]) -> None:
    assert "learning_rate" in {one["feature"] for one in document["selection"]["dropped"]}
    assert {"cap_share", "batch_size"} <= set(document["selection"]["kept"])


@pytest.mark.parametrize("split", ["job", "model", "gpu"])
@pytest.mark.parametrize("kind", ["mean", "tdp x utilisation"])
def test_features_beat_both_baselines_on_every_gpu(
    document: dict[str, Any], split: str, kind: str
) -> None:
    ours = errors(document, split, "features", "boosting")
    theirs = errors(document, split, "none", kind)
    assert all(ours[gpu] < theirs[gpu] for gpu in ours)


def test_errors_are_those_of_the_docs(document: dict[str, Any]) -> None:
    assert max(errors(document, "job", "features", "boosting").values()) < 6
    assert max(errors(document, "gpu", "features", "boosting").values()) < 22
    assert max(errors(document, "model", "hybrid, measured once", "boosting").values()) < 12


def test_intervals_for_new_jobs_hold(document: dict[str, Any]) -> None:
    held = {(one["split"], one["learner"]): one["covered"] for one in document["intervals"]}
    assert 0.88 <= held["job", "boosting"] <= 0.97
    assert 0.88 <= held["model", "saturation"] <= 0.97


def test_the_work_of_a_step_carries_to_networks_never_seen(document: dict[str, Any]) -> None:
    ours = errors(document, "model", "features", "saturation")
    for kind in ("mean", "tdp x utilisation"):
        theirs = errors(document, "model", "none", kind)
        assert all(ours[gpu] < theirs[gpu] / 3 for gpu in ours)
    assert max(ours.values()) < 27
