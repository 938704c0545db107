"""Watts of networks and GPU types never seen, and when a model is fitted anew."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerRow, read_model
from wattherd.estimate.refit import Fitted, RefitReason, RefitTerms, should_refit
from wattherd.estimate.saturation import Saturation, derived, names_of
from wattherd.experiments.power_models.fit import data_id, fit_all, load, save
from wattherd.experiments.power_models.judge import mape, out_of_fold
from wattherd.experiments.power_models.predict import WantedPrediction, predict
from wattherd.experiments.power_models.refit import refit
from wattherd.experiments.power_models.saturation import SATURATION
from wattherd.workload.power_rows import read_power_rows

DAY_S = 86400.0


def some_rows(seed: int = 1) -> tuple[PowerRow, ...]:
    """Six networks from tiny to huge on two GPU types: floor, most, and a cap."""
    chance = np.random.default_rng(seed)
    rows = []
    for gpu, floor, most, peak in (("A40", 0.3, 0.85, 3.7e13), ("V100", 0.15, 0.95, 1.4e13)):
        for number, flops in enumerate((1e5, 1e7, 1e8, 1e9, 1e10, 3e10)):
            for batch in (8.0, 32.0, 128.0, 512.0):
                work = batch * flops / peak
                demand = floor + (most - floor) / (1 + math.exp(-2 * (math.log(work) + 8)))
                for cap in (0.5, 0.75, 1.0):
                    share = min(demand, cap) * float(np.exp(chance.normal(0, 0.02)))
                    values = {
                        "cap_share": cap, "batch_size": batch, "flops": flops, "gpu_flops": peak,
                    }  # fmt: skip
                    rows.append(
                        PowerRow(
                            gpu=gpu, model=f"m{number}", job=f"m{number}/{batch:g}", tdp_w=300.0,
                            power_w=300.0 * share, values=derived(gpu, values),
                        )
                    )  # fmt: skip
    return tuple(rows)


@pytest.fixture(autouse=True)
def _needs_learn() -> None:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")


def test_the_work_of_a_step_carries_to_networks_never_seen() -> None:
    rows = some_rows()
    ours = mape(out_of_fold(rows, (), SATURATION, "model"))
    trees = mape(out_of_fold(rows, ("cap_share", "batch_size", "flops"), "boosting", "model"))
    assert ours is not None
    assert trees is not None
    assert ours < 12
    assert ours < trees / 2


def test_a_saturating_model_rises_with_work_and_cap_and_never_leaves_its_bounds() -> None:
    """As fitted before kinds of memory were told apart: such models still answer."""
    model = Saturation((math.log(0.2), math.log(0.8), 2.0, -8.0, 8.0), (0.1,), (-0.1,))
    work = np.linspace(-40, 20, 200)
    one = np.ones_like(work)
    found = np.exp(model.predict(np.column_stack([0 * one, work, one])))
    assert (np.diff(found) >= -1e-12).all()
    assert found.min() > 0.2
    assert found.max() < 0.8
    caps = np.log(np.linspace(0.2, 1.0, 50))
    by_cap = np.exp(model.predict(np.column_stack([caps, 0 * caps, 0 * caps])))
    assert (np.diff(by_cap) > 0).all()
    assert (by_cap <= np.exp(caps) + 1e-12).all()


def test_a_gpu_type_never_seen_has_the_floor_of_all() -> None:
    assert names_of(["A40"]) == ("cap_share", "work_s", "gddr", "gpu:A40")
    values = {"batch_size": 8.0, "flops": 1e9, "gpu_flops": 1e13}
    assert derived("T4", values)["work_s"] == pytest.approx(8e-4)
    assert "work_s" not in derived("T4", {"batch_size": 8.0})


def test_a_stored_model_answers_strangers_by_their_work(tmp_path: Path) -> None:
    rows = some_rows()
    stored = fit_all(rows, ("cap_share", "batch_size", "flops"), "boosting", now_s=5.0)
    assert stored.stranger is not None
    again = read_model(json.loads(json.dumps(stored.stranger.plain())))
    values = [row.values for row in rows]
    assert np.array_equal(again.log_share(values), stored.stranger.log_share(values))
    save(stored, tmp_path)
    job = {"gpu": "V100", "tdp_w": 300.0, "cap_w": 300.0}
    small = WantedPrediction(model="new", values={"batch_size": 8, "flops": 1e5}, **job)
    large = WantedPrediction(model="new", values={"batch_size": 64, "flops": 2e10}, **job)
    found = predict(tmp_path, small), predict(tmp_path, large)
    assert [one["source"] for one in found] == [SATURATION] * 2
    assert found[0]["power_w"] == pytest.approx(45, rel=0.25)
    assert found[1]["power_w"] == pytest.approx(285, rel=0.15)
    assert all(one["low_w"] < one["power_w"] < one["high_w"] for one in found)


def test_nothing_is_refitted_without_a_reason_and_each_reason_is_told() -> None:
    model, terms = Fitted(rows=100, half_width=0.1, coverage=0.9), RefitTerms(every_s=DAY_S)
    assert should_refit(model, [0.05] * 9 + [0.2], 60.0, terms) is None
    assert should_refit(model, [0.2] * 5 + [0.0] * 5, 60.0, terms) is RefitReason.DRIFT
    assert should_refit(model, [0.01] * 20, 60.0, terms) is RefitReason.SAMPLES
    assert should_refit(model, [0.01], 2 * DAY_S, terms) is RefitReason.AGE
    assert should_refit(model, [], 0.0, terms) is None
    assert should_refit(model, [0.01] * 4000, 0.0, replace(terms, growth=1e3)) is None
    with pytest.raises(UserError, match="above zero"):
        RefitTerms(every_s=0)


def test_false_alarms_of_drift_are_as_rare_as_asked() -> None:
    chance = np.random.default_rng(3)
    model = Fitted(rows=10_000, half_width=1.645, coverage=0.9)
    terms = RefitTerms(doubt=0.01)
    alarms = [should_refit(model, chance.normal(size=80).tolist(), 0.0, terms) for _ in range(1500)]
    assert sum(one is RefitReason.DRIFT for one in alarms) <= 30


@pytest.mark.long
def test_a_drifted_fleet_gets_a_new_version_and_the_same_data_does_not(tmp_path: Path) -> None:
    rows = some_rows()
    names = ("cap_share", "batch_size", "flops")
    save(fit_all(rows, names, "boosting", now_s=0.0), tmp_path)
    terms = RefitTerms(every_s=DAY_S)
    assert refit(tmp_path, rows[::-1], terms, 9 * DAY_S)["reason"] is None
    odd = [
        replace(row, job="m9/16", power_w=row.power_w * 3, values={**row.values, "batch_size": 16})
        for row in rows[-12:]
    ]
    dry = refit(tmp_path, (*rows, *odd), terms, 60.0, dry=True)
    assert (dry["reason"], dry["new_rows"]) == ("drift", 12)
    assert "model" not in dry
    done = refit(tmp_path, (*rows, *odd), terms, 60.0)
    assert done["model"]["version"] == 2
    head, stored = load(tmp_path)
    assert head["version"] == 2
    assert stored.fitted_at_s == 60.0
    assert refit(tmp_path, (*rows, *odd), terms, 9 * DAY_S)["reason"] is None


def test_the_data_id_ignores_order_and_nothing_else() -> None:
    rows = some_rows()
    assert data_id(rows) == data_id(rows[::-1])
    assert data_id(rows) != data_id(rows[1:])


def test_caffe_networks_at_several_clocks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "titanX-caffe-resnet.csv"
    path.write_text(
        "appName,coreF,memF,arg,time/s,power/W\n"
        "caffe,1607,3500,train --solver=resnet-b64-solver-GPU.prototxt -gpu=0,0.4,137.3\n"
        "caffe,-100,-1000,time --model=ffn26752l6-b128.prototxt -gpu=1,0.02,132.6\n"
        "caffe,1500,3500,time -model vgg.train_val.prototxt.txt -gpu 1,0.2,182.8\n"
    )
    resnet, vgg = read_power_rows([str(path)], "dlbench")
    assert (resnet.gpu, resnet.model, resnet.values["batch_size"]) == ("TITANX", "resnet", 64)
    assert resnet.values["core_hz"] == 1.607e9
    assert vgg.model == "vgg"
    assert "batch_size" not in vgg.values
    with pytest.raises(UserError, match="TDP"):
        read_power_rows([f"T4={path}"], "dlbench")
