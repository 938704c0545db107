"""Watts on a GPU type that no data is of: peak rates, intervals, and one measurement."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import RATES, GpuMemory, Precision, near_rates, rates
from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerRow
from wattherd.estimate.saturation import MeasuredOnce
from wattherd.experiments.power_models.fit import fit_all, load, peaks_of, report, save
from wattherd.experiments.power_models.judge import mape, out_of_fold, select
from wattherd.experiments.power_models.measured_once import judged_once
from wattherd.experiments.power_models.predict import MeasuredDraw, WantedPrediction, predict
from wattherd.experiments.power_models.saturation import SATURATION
from wattherd.units import operations_hz
from wattherd.workload.power_rows import KnownPeakRates, read_power_rows

TYPES = {"V100": 0.14, "P100": 0.15, "A40": 0.28, "T4": 0.27}
"""Floors as shares of the TDP: those with memory on the board draw more while they wait."""
NAMES = ("cap_share", "batch_size", "flops", "gpu_flops")


def some_rows(
    types: dict[str, float] = TYPES, peaks: KnownPeakRates | None = None, seed: int = 1
) -> tuple[PowerRow, ...]:
    """Five networks from tiny to huge under three caps, with a most of their own for each type."""
    chance = np.random.default_rng(seed)
    peaks = peaks or KnownPeakRates()
    rows = []
    for gpu, floor in types.items():
        most, true_peak = chance.uniform(0.75, 0.95), (peaks.of(gpu) or 1.6e13)
        for number, flops in enumerate((1e5, 1e8, 1e9, 1e10, 3e10)):
            for batch in (8.0, 64.0, 512.0):
                reach = 2 * (math.log(batch * flops / true_peak) + 8)
                demand = floor + (most - floor) / (1 + math.exp(-reach))
                for cap in (0.5, 0.75, 1.0):
                    share = (demand**-6 + cap**-6) ** (-1 / 6) * math.exp(chance.normal(0, 0.02))
                    values = {"cap_share": cap, "batch_size": batch, "flops": flops}
                    row = PowerRow(
                        gpu=gpu, model=f"m{number}", job=f"m{number}/{batch:g}", tdp_w=300.0,
                        power_w=300.0 * share, values=values,
                    )  # fmt: skip
                    rows.append(peaks.known(row))
    return tuple(rows)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of `some_rows`, which tests only read."""
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    folder = tmp_path_factory.mktemp("fitted")
    save(fit_all(some_rows(), NAMES, "linear"), folder)
    return folder


def a_file(folder: Path, types: dict[str, float], peaks: KnownPeakRates | None = None) -> str:
    path = folder / "rows.csv"
    lines = [
        f"{row.gpu},{row.model},{row.job},300,{row.power_w},{300 * row.values['cap_share']},"
        f"{row.values['batch_size']},{row.values['flops']}"
        for row in some_rows(types, peaks)
    ]
    head = "gpu,model,job,tdp_w,power_w,cap_w,batch_size,flops\n"
    path.write_text(head + "\n".join(lines) + "\n")
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["power", *words])
    told = capsys.readouterr()
    return int(done.value.code or 0), told.out, told.err


@pytest.mark.parametrize("entry", RATES.values(), ids=lambda entry: entry.name)
def test_every_peak_rate_has_a_source_and_matrix_units_are_no_slower(entry: Any) -> None:
    assert entry.source.strip()
    assert 1e12 < entry.fp32 < 1e15
    assert entry.fp32 <= entry.peak(Precision.TF32) <= entry.peak(Precision.FP16)
    assert rates(entry.name) is entry
    assert all(rates(alias) is entry for alias in entry.aliases)


@pytest.mark.parametrize(
    ("name", "flops", "memory"),
    [
        ("Quadro RTX 6000", 16.3e12, GpuMemory.ON_BOARD),
        ("NVIDIA RTX 6000 Ada Generation", 91.1e12, GpuMemory.ON_BOARD),
        ("NVIDIA A100-SXM4-80GB", 19.5e12, GpuMemory.STACKED),
        ("Tesla V100-PCIE-16GB", 14e12, GpuMemory.STACKED),
        ("NVIDIA H100 80GB HBM3", 67e12, GpuMemory.STACKED),
        ("NVIDIA GeForce GTX 1080 Ti", 11.3e12, GpuMemory.ON_BOARD),
        ("a40", 37.4e12, GpuMemory.ON_BOARD),
    ],
)
def test_drivers_names_are_known(name: str, flops: float, memory: GpuMemory) -> None:
    found = rates(name)
    assert found is not None
    assert (found.fp32, found.memory) == (flops, memory)


def test_a_name_that_means_several_parts_has_no_rate_and_names_them() -> None:
    assert rates("H100") is None
    assert set(near_rates("H100")) == {"H100-PCIe", "H100-SXM"}
    assert rates("Voodoo2") is None
    assert rates("") is None
    assert near_rates("") == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [("16.3TFLOPS", 16.3e12), ("1.1PFLOPS", 1.1e15), ("98 GFLOP/s", 98e9), ("5e1TFLOPS", 5e13)],
)
def test_rates_are_read_with_their_unit(text: str, value: float) -> None:
    assert operations_hz(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["16.3", "16.3T", "0TFLOPS", "-1TFLOPS", "TFLOPS", "16 TFLOPs/h"])
def test_a_rate_without_its_unit_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no rate"):
        operations_hz(text, field="--peak")


def test_a_column_beats_what_the_user_says_which_beats_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "gpu,model,tdp_w,power_w,gpu_flops\nA40,m,300,200,1e13\nA40,m,300,200,\nT4,m,70,50,\n"
        "odd,m,70,50,\n"
    )
    peaks = KnownPeakRates({"A40": 2e13}, Precision.FP16)
    found = [row.values.get("gpu_flops") for row in read_power_rows([str(path)], peaks=peaks)]
    assert found == [1e13, 2e13, 65e12, None]
    plain = [row.values.get("gpu_flops") for row in read_power_rows([str(path)])]
    assert plain == [1e13, 37.4e12, 8.1e12, None]


def test_rows_without_a_peak_rate_are_not_taken_for_jobs_that_fill_the_gpu() -> None:
    """They once counted as a second of work per step: as busy as can be."""
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    rows = some_rows({**TYPES, "odd": 0.25})
    errors = out_of_fold(rows, (), SATURATION, "gpu")
    odd = np.array([row.gpu == "odd" for row in rows])
    assert np.isnan(errors[odd]).all()
    assert not np.isnan(errors[~odd]).any()
    told = {one["gpu"]: one for one in peaks_of(rows)}
    assert told["odd"]["gpu_flops"] is None
    assert told["odd"]["rows_lost"] == told["odd"]["rows"] == odd.sum()
    assert told["odd"]["rows_of_saturation"] == 0
    assert told["V100"]["rows_of_saturation"] == told["V100"]["rows"]


def test_selection_keeps_what_tells_gpu_types_apart() -> None:
    """Jobs held out do not miss it, as batch sizes tell types apart just as well."""
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    kept, _ = select(some_rows(), (*NAMES, "gddr"), "linear")
    assert {"gpu_flops", "gddr"} <= set(kept)


def test_kinds_of_memory_carry_the_floor_to_a_type_never_seen() -> None:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    rows = some_rows()
    told = out_of_fold(rows, (), SATURATION, "gpu")
    alike = [replace(row, values={**row.values, "gddr": 0.0}) for row in rows]
    untold = out_of_fold(alike, (), SATURATION, "gpu")
    ours, theirs = mape(told), mape(untold)
    assert ours is not None
    assert theirs is not None
    assert ours < 13
    assert ours < 0.75 * theirs


@pytest.mark.long
def test_fit_and_predict_say_which_peak_rates_are_not_known_and_take_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    rows = a_file(tmp_path, {"V100": 0.14, "A40": 0.28, "odd": 0.25})
    models = str(tmp_path / "models")
    fit = ("fit", rows, "--learner", "linear", "--models", models)
    code, out, _ = said(capsys, *fit)
    assert code == 0
    assert "no peak rate is known for odd: saturation does without 45 of its 45 rows" in out
    assert "--peak" in out
    job = ("predict", "--models", models, "--gpu", "H100", "--model", "new", "--tdp", "700W",
           "--set", "batch_size=64", "--set", "flops=4e9")  # fmt: skip
    code, out, _ = said(capsys, *job)
    assert code == 0
    assert "no peak rate is known for H100: saturation cannot answer, linear does" in out
    assert "H100-PCIe or H100-SXM" in out
    given = json.loads(said(capsys, *job, "--peak", "67TFLOPS", "-o", "json")[1])
    set_so = json.loads(said(capsys, *job, "--set", "gpu_flops=67e12", "-o", "json")[1])
    named = json.loads(said(capsys, *job, "--gpu", "H100-SXM", "-o", "json")[1])
    assert given["source"] == set_so["source"] == named["source"] == SATURATION
    assert given["power_w"] == set_so["power_w"]
    assert given["gpu_flops"] == named["gpu_flops"] == 67e12
    (note,) = given["notes"]
    assert "no interval can be promised: too few GPU types" in note
    assert given["high_w"] is None
    code, out, _ = said(capsys, *fit, "--peak", "odd=16TFLOPS")
    assert (code, "no peak rate" in out) == (0, False)
    assert load(Path(models))[1].peaks.given == {"odd": 16e12}
    known = ("predict", "--models", models, "--gpu", "odd", "--model", "new", "--tdp", "300W",
             "--set", "batch_size=64", "--set", "flops=4e9", "-o", "json")  # fmt: skip
    assert json.loads(said(capsys, *known)[1])["gpu_flops"] == 16e12


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--peak", "16TFLOPS"], "names no GPU type"),
        (["--peak", "=16TFLOPS"], "names no GPU type"),
        (["--peak", "odd=16"], "is no rate"),
        (["--precision", "fp31"], "unknown precision 'fp31'"),
    ],
)
def test_peak_rates_that_make_no_sense_are_refused(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "fit", a_file(tmp_path, {"V100": 0.14}), *words)
    assert code == 2
    assert problem in err
    assert "hint:" in err


def test_a_job_on_matrix_units_is_predicted_by_their_rate(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On an H100 in bf16 that is 15 times the rate at FP32; its small steps leave the GPU idle."""
    job = ("predict", "--models", str(fitted), "--gpu", "H100-SXM", "--model", "new", "--tdp",
           "700W", "--set", "batch_size=1", "--set", "flops=68e9", "-o", "json")  # fmt: skip

    def told(*more: str) -> dict[str, Any]:
        code, out, _ = said(capsys, *job, *more)
        assert code == 0
        found: dict[str, Any] = json.loads(out)
        return found

    plain, matrix = told("--precision", "fp32"), told("--precision", "fp16")
    assert plain["gpu_flops"] == 67e12
    assert plain["power_w"] == told()["power_w"]
    assert matrix["gpu_flops"] == 989.4e12
    assert matrix["power_w"] < plain["power_w"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--gpu", "H100", "--precision", "fp16"], "no peak rate is known for H100"),
        (["--gpu", "L4", "--precision", "fp16", "--peak", "10TFLOPS"], "given already"),
    ],
)
def test_a_precision_that_means_no_rate_is_refused(
    fitted: Path, capsys: pytest.CaptureFixture[str], more: list[str], problem: str
) -> None:
    job = ("predict", "--models", str(fitted), "--model", "new", "--tdp", "72W")
    code, _, err = said(capsys, *job, *more)
    assert code == 2
    assert problem in err
    assert "hint:" in err


def test_intervals_grow_with_strangeness_and_end_at_what_a_device_can_draw(fitted: Path) -> None:
    _, stored = load(fitted)
    for model in filter(None, (stored.model, stored.stranger)):
        wide = [
            model.width(model.strange(gpu, name))
            for gpu, name in (("V100", "m1"), ("V100", "new"), ("L4", "m1"), ("L4", "new"))
        ]
        assert wide == sorted(wide)
        assert wide[-1] > wide[0]
        assert model.strange("L4", "new") == ("gpu", "model")
    values = {"batch_size": 512.0, "flops": 3e10}
    job = WantedPrediction(gpu="L4", model="new", tdp_w=72.0, cap_w=72.0, values=values)
    found = predict(fitted, job)
    assert found["new"] == ["gpu", "model"]
    assert found["low_w"] < found["power_w"] < found["high_w"] <= 72 * 1.05


def test_models_of_earlier_versions_answer_and_never_by_work_that_nobody_knows(
    fitted: Path, tmp_path: Path
) -> None:
    path = tmp_path / "power-v0001.json"
    plain = json.loads((fitted / path.name).read_text())
    for key in ("stranger_better", "once", "peaks"):
        del plain[key]
    stranger = plain["stranger"]
    stranger["regressor"]["shared"].pop()
    for key in ("features", "mean", "spread"):
        del stranger[key][2]
    for key in ("error_pct", "most_share"):
        del stranger[key], plain["model"][key]
    path.write_text(json.dumps(plain))
    values = {"batch_size": 64.0, "flops": 1e9}
    job = WantedPrediction(gpu="V100", model="new", tdp_w=300.0, cap_w=300.0, values=values)
    assert predict(path, job)["source"] == SATURATION
    assert predict(path, replace(job, gpu="odd"))["source"] == "linear"
    with pytest.raises(UserError, match="cannot carry a measurement"):
        predict(path, replace(job, once=MeasuredDraw(100.0, 200.0)))


@given(st.integers(0, 5), st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_one_measurement_is_kept_under_its_cap_and_rises_with_the_cap(
    seed: int, demand: float, at: float, cap: float
) -> None:
    once = MeasuredOnce((3.0, 4.0, 6.0, 8.0, 12.0, 20.0)[seed])
    measured = np.log(np.array([(demand**-once.corner + at**-once.corner) ** (-1 / once.corner)]))
    caps = np.log(np.array([at, cap, min(1.0, cap * 1.1)]))
    held, low, high = (
        float(once.log_share(measured, caps[:1], caps[i : i + 1])[0]) for i in range(3)
    )
    assert held == pytest.approx(float(measured[0]), abs=1e-9)
    assert low <= high + 1e-12
    if demand < 1.5 * at:
        # Far above its cap a demand is lost in the last digits, and taken for the TDP at most.
        truth = (demand**-once.corner + cap**-once.corner) ** (-1 / once.corner)
        assert math.exp(low) == pytest.approx(truth, rel=1e-6)


def test_a_measurement_above_its_cap_or_at_it_is_carried_without_a_fault() -> None:
    """An A40 draws 120 W at a cap of 100 W: its demand cannot be told, but is no more than TDP."""
    once = MeasuredOnce(6.0)
    one = np.log(np.array([0.4]))
    for cap in (0.2, 1 / 3, 0.5, 1.0):
        found = once.log_share(one, np.log(np.array([1 / 3])), np.log(np.array([cap])))
        assert np.isfinite(found).all()
        assert math.exp(float(found[0])) <= 1.5


def test_one_measurement_beats_no_measurement_on_every_type_left_out(fitted: Path) -> None:
    once = judged_once(some_rows(), 0.9)
    assert once is not None
    assert set(once.error_pct["down"]) == set(TYPES)
    assert max(once.error_pct["down"].values()) < 4
    assert once.half_width["down"] < once.half_width["up"]
    assert np.mean(list(once.covered["down"].values())) >= 0.9
    job = WantedPrediction(
        gpu="L4", model="new", tdp_w=72.0, cap_w=36.0, values={"batch_size": 9.0}
    )
    without = predict(fitted, job)
    found = predict(fitted, replace(job, once=MeasuredDraw(30.0, 72.0)))
    assert found["source"] == "measured once"
    assert 25 < found["power_w"] < 30
    assert found["low_w"] < found["power_w"] < found["high_w"]
    assert found["high_w"] / found["low_w"] < 0.5 * without["high_w"] / without["low_w"]
    same = predict(fitted, replace(job, cap_w=72.0, once=MeasuredDraw(30.0, 72.0)))
    assert (same["power_w"], same["low_w"], same["high_w"]) == (30.0, 30.0, 30.0)


def test_a_type_without_data_is_advised_to_be_measured_once(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ["predict", "--models", str(fitted), "--gpu", "MI300X", "--model", "m1",
           "--tdp", "750W", "--cap", "500W", "--set", "batch_size=8"]  # fmt: skip
    code, out, _ = said(capsys, *job)
    assert code == 0
    assert "nothing was measured on MI300X, only on A40, P100, T4, V100" in out
    assert "wattherd meter read amdsmi://0 --watch 1s --count 60" in out
    (again,) = [shlex.split(line, True) for line in out.splitlines() if "--measured" in line]
    assert again[:3] == ["wattherd", "power", "predict"]
    words = [word.replace("WATTS", "600W") for word in again[2:]]
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "measured once" in out
    assert "nothing was measured" not in out
    assert said(capsys, *[w.replace("MI300X", "V100") for w in job])[1].count("measure") == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("212W", "names no cap"),
        ("212W@9kW", "up to the TDP"),
        ("212@250W", "has no unit"),
        ("0W@250W", "is no draw"),
        ("2kW@250W", "is no draw"),
    ],
)
def test_measurements_that_make_no_sense_are_refused(
    text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(
        capsys, "predict", "--models", ".", "--gpu", "T", "--model", "m", "--tdp", "300W",
        "--measured", text,
    )  # fmt: skip
    assert code == 2
    assert problem in err


def test_formats_are_told_by_their_columns(tmp_path: Path) -> None:
    files = {
        "summary_power_v100.csv": (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
            "squad,bert,8,adamw,250,10,200\n"
        ),
        "gtx2070s-dvfs.csv": "coreF,appName,memF,argNo,power/W\n1680,matrixMulS,5800,in,120\n",
        "v100-dvfs.csv": (
            "benchmark,argNo,core_frequency,memory_frequency,average_power,DRAMA,SMACT,SMOCC,FP32A"
            "\nmatrixMul,in,1380,877,150,0.1,0.9,0.5,0.4\n"
        ),
        "titanX-resnet.csv": "coreF,memF,arg,power/W\n1607,3500,resnet-b64-solver,137\n",
        "sweep.csv": (
            "Workload,GPU power cap,throughput,total GPU power,power per GPU\n"
            "ft_llama_8b_dolly,200,0.1,9413,196.1\n"
        ),
        "own.csv": "gpu,model,tdp_w,power_w\nL4,m,72,60\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    rows = read_power_rows([str(tmp_path / name) for name in files], "auto")
    assert [row.gpu for row in rows] == ["V100", "GTX2070S", "V100", "TITANX", "A100", "L4"]
    assert [row.model for row in rows[:4]] == ["bert", "matrixMul", "matrixMul", "resnet"]
    assert rows[4].values["cap_share"] == 0.5
    assert all("gpu_flops" in row.values for row in rows)
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no known format"):
        read_power_rows([str(tmp_path / "none.csv")], "auto")
    with pytest.raises(UserError, match="no such file"):
        read_power_rows([str(tmp_path / "gone.csv")], "auto")


@pytest.mark.long
def test_the_report_has_rates_and_coverage_of_every_type_left_out() -> None:
    pytest.importorskip("sklearn", reason="extra `learn` is not installed")
    document = report(some_rows(), learner="linear")
    assert {one["gpu"]: one["gpu_flops"] for one in document["peaks"]} == {
        "A40": 37.4e12, "P100": 9.3e12, "T4": 8.1e12, "V100": 14e12,
    }  # fmt: skip
    (one,) = [
        one
        for one in document["intervals"]
        if (one["split"], one["learner"]) == ("gpu", SATURATION)
    ]
    assert one["method"] == "Student's t"
    assert [group["name"] for group in one["groups"]] == sorted(TYPES)
    assert one["covered"] >= 0.9
    assert {one["to"] for one in document["measured_once"]} == {"down", "up"}
