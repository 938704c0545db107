"""Models of watts: evaluated without the library that fitted them, saved, looked up, selected."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerRow, read_model, scaling
from wattherd.estimate.signatures import Signature, SignatureBook, SignatureMatch, read_book
from wattherd.experiments.power_models.fit import fit_all, fitted, load, save
from wattherd.experiments.power_models.judge import (
    baseline,
    covered,
    group_half_width,
    mape,
    out_of_fold,
    select,
)
from wattherd.experiments.power_models.learners import LEARNERS, fit, target
from wattherd.experiments.power_models.predict import WantedPrediction, predict

sklearn = pytest.importorskip("sklearn", reason="extra `learn` is not installed")


def some_rows(seed: int = 1, jobs: int = 40) -> list[PowerRow]:
    """Watts follow cap and batch size only; the learning rate follows the batch size, roughly."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(jobs):
        batch = float(2 ** chance.integers(3, 11))
        rate = 1e-3 * math.sqrt(batch) * float(np.exp(chance.normal(0, 0.3)))
        for cap in (100.0, 150.0, 200.0, 250.0):
            busy = 0.3 + 0.05 * math.log2(batch)
            power_w = min(250 * busy, cap) * float(np.exp(chance.normal(0, 0.02)))
            rows.append(
                PowerRow(
                    gpu="V100" if number % 2 else "A40", model=f"m{number % 5}", job=f"j{number}",
                    tdp_w=250, power_w=power_w,
                    values={"cap_share": cap / 250, "batch_size": batch, "learning_rate": rate},
                )
            )  # fmt: skip
    return rows


CHANCE_OF_1500 = 0.0077
"""Standard error of a share of 0.9 in 1,500 draws."""
NAMES = ("cap_share", "batch_size", "learning_rate")


@pytest.mark.parametrize("learner", LEARNERS)
def test_plain_numbers_predict_what_the_library_does(learner: str) -> None:
    rows = some_rows()
    values = [row.values for row in rows]
    scale, ours = fit(learner, rows, NAMES, seed=3)
    theirs = {
        "linear": lambda: sklearn.linear_model.Ridge(alpha=1.0),
        "boosting": lambda: sklearn.ensemble.GradientBoostingRegressor(
            n_estimators=100, max_depth=4, learning_rate=0.1, min_samples_leaf=5, random_state=3
        ),
        "network": lambda: sklearn.neural_network.MLPRegressor(
            hidden_layer_sizes=(12,), solver="lbfgs", alpha=0.3, max_iter=300, random_state=3
        ),
    }
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.neural_network

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = theirs[learner]().fit(scale.matrix(values), target(rows))
    features = scale.matrix([row.values for row in some_rows(seed=2)])
    assert np.allclose(ours.predict(features), other.predict(features), atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_saved_model_predicts_the_same(learner: str) -> None:
    rows = some_rows()
    model = fitted(rows, NAMES, learner)
    again = read_model(json.loads(json.dumps(model.plain())))
    values = [row.values for row in rows]
    assert np.array_equal(model.log_share(values), again.log_share(values))
    assert again.half_width == model.half_width


@pytest.mark.long
def test_selection_finds_that_the_learning_rate_does_not_matter() -> None:
    kept, dropped = select(some_rows(), NAMES, "boosting")
    assert set(kept) == {"cap_share", "batch_size"}
    assert [one.feature for one in dropped] == ["learning_rate"]


@pytest.mark.long
def test_selection_keeps_a_feature_that_matters() -> None:
    """The same rows, but with watts that do follow the learning rate."""
    rows = [
        replace(row, power_w=row.power_w * (row.values["learning_rate"] * 1e3) ** 0.3)
        for row in some_rows()
    ]
    assert "learning_rate" in select(rows, NAMES, "boosting")[0]


def test_learners_beat_the_baselines_where_there_is_something_to_learn() -> None:
    rows = some_rows()
    mean = mape(baseline(rows, "mean", "job"))
    found = mape(out_of_fold(rows, NAMES, "boosting", "job"))
    assert mean is not None
    assert found is not None
    assert found < mean / 3


def test_nothing_of_a_held_out_job_reaches_its_prediction() -> None:
    """A job that alone is ten times as hungry is predicted like the rest."""
    rows = [
        replace(row, power_w=row.power_w * 10) if row.job == "j0" else row for row in some_rows()
    ]
    errors = out_of_fold(rows, NAMES, "boosting", "job")
    odd = [error for error, row in zip(errors, rows, strict=True) if row.job == "j0"]
    assert max(odd) < -1.5


def test_intervals_hold_as_often_as_asked() -> None:
    found = covered(some_rows(jobs=80), NAMES, "linear", "job", 0.9)
    assert 0.82 <= found["covered"] <= 0.98


@pytest.mark.parametrize("count", [3, 4, 6, 9, 14])
@pytest.mark.parametrize("within", [0.02, 0.3])
def test_an_interval_for_a_new_group_holds_however_few_groups_there_were(
    count: int, within: float
) -> None:
    """Groups have errors of their own (0.25 in logs): a few thousand rows are but a few groups."""
    chance = np.random.default_rng(count)
    hits = []
    for _ in range(1500):
        own = chance.normal(0, 0.25, count + 1)
        rows = [one + chance.normal(0, within, 12) for one in own]
        # Learned from the others, predictions are off by what the others share.
        held = {str(at): rows[at] - np.delete(own[:-1], at).mean() for at in range(count)}
        width = group_half_width(held, 0.9)
        hits.append(np.mean(np.abs(rows[-1] - own[:-1].mean()) <= width))
    assert np.mean(hits) >= 0.9 - 2 * CHANCE_OF_1500


def test_quantiles_of_rows_would_not_have_held_for_a_new_group() -> None:
    """Why groups: what was done before covers far fewer than asked."""
    chance = np.random.default_rng(7)
    hits = []
    for _ in range(1500):
        own = chance.normal(0, 0.25, 4)
        rows = np.sort(np.abs(np.repeat(own[:3], 100) - own[:3].mean() * 1.5))
        hits.append(abs(own[3] - own[:3].mean()) <= rows[int(np.ceil(301 * 0.9)) - 1])
    assert np.mean(hits) < 0.8


def test_two_groups_promise_nothing_and_the_fewer_the_wider() -> None:
    groups = {str(at): np.array([0.1, -0.1]) for at in range(11)}
    few = dict(list(groups.items())[:2])
    assert group_half_width({}, 0.9) == math.inf
    assert group_half_width(few, 0.9) == math.inf
    assert group_half_width({**few, "unknown": np.array([np.nan])}, 0.9) == math.inf
    widths = [group_half_width(dict(list(groups.items())[:at]), 0.9) for at in range(3, 12)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0.25
    assert widths[-1] == pytest.approx(0.1)


def test_an_interval_is_no_narrower_than_a_group_so_far_needed() -> None:
    groups = {str(at): np.full(10, 0.01) for at in range(6)}
    assert group_half_width({**groups, "odd": np.full(10, 0.9)}, 0.9) >= 0.9


def test_unknown_features_count_as_average() -> None:
    scale = scaling([{"batch_size": 4.0}, {"batch_size": 16.0}], ("batch_size", "flops"))
    assert scale.matrix([{}]).tolist() == [[0.0, 0.0]]
    with pytest.raises(UserError, match="above zero"):
        scale.matrix([{"batch_size": 0.0}])


def test_lookup_finds_the_same_job_or_the_nearest_batch_size() -> None:
    small, large = Signature("V100", "a", 8), Signature("V100", "a", 64)
    book = SignatureBook([(small, 100, 80), (small, 200, 160), (small, 200, 140), (large, 100, 99)])
    assert book.find(small, 150) == SignatureMatch(115, 0)
    assert book.find(Signature("V100", "a", 32), 120) == SignatureMatch(99, 1)
    assert book.without(large).find(large, 300) == SignatureMatch(150, 3)
    assert book.find(Signature("A40", "a", 8), 100) is None
    assert read_book(json.loads(json.dumps(book.plain()))).find(small, 150) == SignatureMatch(
        115, 0
    )


@pytest.mark.long
def test_versions_follow_each_other_and_the_newest_predicts(tmp_path: Path) -> None:
    rows = some_rows()
    first = save(fit_all(rows, NAMES, "linear"), tmp_path)
    second = save(fit_all(rows, NAMES, "boosting", now_s=7.0), tmp_path)
    assert (first["version"], second["version"]) == (1, 2)
    assert second["parent"] == first["id"] != second["id"]
    assert first["data_id"] == second["data_id"]
    assert second["fitted_at_s"] == 7.0
    assert load(tmp_path)[0]["version"] == 2
    batch = {"batch_size": rows[1].values["batch_size"]}
    job = WantedPrediction(gpu=rows[1].gpu, model=rows[1].model, tdp_w=250, cap_w=250, values=batch)
    found = predict(tmp_path, job)
    assert found["source"] == "measured"
    assert found["low_w"] < found["model_w"] < found["high_w"]
    new = WantedPrediction(gpu="V100", model="new", tdp_w=250, cap_w=250, values=batch)
    strange = predict(tmp_path, new)
    assert strange["source"] == "boosting"
    assert strange["high_w"] / strange["low_w"] >= found["high_w"] / found["low_w"]
    with pytest.raises(UserError, match="unknown feature"):
        predict(
            tmp_path,
            WantedPrediction(gpu="V", model="m", tdp_w=9, cap_w=9, values={"batchsize": 1}),
        )


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no model"):
        load(tmp_path)
    (tmp_path / "power-v0001.json").write_text("[]")
    with pytest.raises(UserError, match="is no"):
        load(tmp_path)
    with pytest.raises(UserError, match="damaged"):
        read_model({"schema": "wattherd.power-model/1"})
