"""How unsteady a job's draw is, by the samples of a service and by a capture of its meters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wattherd.devices.meters.recording import record
from wattherd.errors import UserError
from wattherd.server.documents.job_swing import captured_document, sampled_document, swing_of
from wattherd.server.hardware.draw import DrawSample


def sample(at_s: float, watts: float | None, stated: str = "measured") -> DrawSample:
    by_job = {"other": 50.0} if watts is None else {"other": 50.0, "j-1": watts}
    return DrawSample(at_s=at_s, draw_w=900.0, budget_w=None, by_job=by_job, stated=stated)


def wave(at_s: float) -> float:
    return 500.0 + 200.0 * math.sin(2 * math.pi * 0.1 * at_s)


def test_amplitude_frequency_ramp_and_bands_are_those_of_the_job_alone() -> None:
    samples = [sample(float(at), wave(at)) for at in range(600)]
    (found,) = sampled_document(samples, "j-1", 600.0, 4)["recordings"]
    assert found["swing_w"] == pytest.approx(400.0, rel=0.06)
    assert found["strongest"]["frequency_hz"] == pytest.approx(0.1, rel=0.02)
    assert found["ramp_up_w_s"] == pytest.approx(2 * math.pi * 0.1 * 200.0, rel=0.08)
    bands = {(one["low_hz"], one["high_hz"]): one["rms_w"] for one in found["bands"]}
    assert bands[(2.0, 20.0)] is None  # once a second tells nothing of it
    assert found["seen_up_to_hz"] <= 0.5
    assert found["parts"] == 4


def test_a_pause_is_no_swing() -> None:
    """A job that was stopped for a minute did not draw half of it in between."""
    past = [sample(float(at), 900.0) for at in range(100)]
    gap = [sample(float(at), None) for at in range(100, 160)]
    now = [sample(float(at), 300.0) for at in range(160, 260)]
    (found,) = sampled_document([*past, *gap, *now], "j-1", 600.0, 1)["recordings"]
    assert found["worst_swing_w"] == 0.0
    assert found["samples"] == 100


def test_a_job_that_just_began_is_not_judged() -> None:
    with pytest.raises(UserError, match="less than 32 s"):
        sampled_document([sample(float(at), 1.0) for at in range(20)], "j-1", 600.0, 1)
    with pytest.raises(UserError, match="less than 32 s"):
        sampled_document([], "j-1", 600.0, 1)


def test_a_model_is_no_measurement() -> None:
    samples = [sample(float(at), wave(at), "model") for at in range(600)]
    assert swing_of(samples, "j-1") is None
    assert sampled_document(samples, "j-1", 600.0, 1)["stated"] == "model"
    assert swing_of([], "j-1") is None


def a_meter(folder: Path) -> str:
    rows = "\n".join(f"{at / 100},{500 + 100 * (at // 25 % 2)}" for at in range(1000))
    (folder / "gpu.csv").write_text(f"time_s,power_w\n{rows}\n")
    return f"replay:{folder}/gpu.csv?loop=1"


def test_a_capture_sees_what_is_faster(tmp_path: Path) -> None:
    meter = a_meter(tmp_path)
    (found,) = captured_document("j-1", [meter, meter], 3.0, 0.02)["recordings"]
    assert found["strongest"]["frequency_hz"] == pytest.approx(2.0, rel=0.2)
    assert found["worst_swing_w"] == pytest.approx(200.0)
    assert found["seen_up_to_hz"] > 5.0


def test_devices_without_a_meter_and_meters_without_an_answer_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without a meter"):
        captured_document("j-1", [a_meter(tmp_path), ""], 1.0, 0.1)
    with pytest.raises(UserError, match="readings failed"):
        record(["modbus://127.0.0.1:9/1/0?timeout=0.1s"], 0.3, 0.1)
