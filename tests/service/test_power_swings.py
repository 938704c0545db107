"""`wattherd power swings` as typed: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.estimate.swing import Samples, swing
from wattherd.experiments.grid.swings import SwingLimits, report, spreads
from wattherd.workload.power_samples import DrawRecording


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Ten seconds at 1,000 W, ten at 3,000 W, for five minutes."""
    at_s = np.arange(0, 300, 0.1)
    watts = np.where(at_s % 20 < 10, 1_000.0, 3_000.0)
    path = tmp_path / "job.csv"
    rows = [f"{at:.1f},{draw}" for at, draw in zip(at_s, watts, strict=True)]
    path.write_text("time_s,watts\n" + "\n".join(rows) + "\n")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["power", "swings", *words])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_spreading_jobs_takes_most_of_the_swing_away(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, str(recorded), "--jobs", "10", "--out", str(tmp_path / "page"),
                        "-o", "json")  # fmt: skip
    alone, together, spread = json.loads(out)["recordings"]
    assert code == 0
    assert alone["strongest"]["frequency_hz"] == pytest.approx(0.05, abs=0.003)
    assert together["worst_swing_w"] == pytest.approx(20_000)
    assert spread["worst_swing_w"] < 0.1 * together["worst_swing_w"]
    assert spread["mean_w"] == pytest.approx(together["mean_w"], rel=0.01)
    assert spread["mean_wait_s"] == pytest.approx(9.0, abs=0.6)
    page = (tmp_path / "page" / "report.html").read_text()
    assert "10 spread" in page
    plot = (tmp_path / "page" / "plots" / "swing-and-ramp.svg").read_text()
    assert "10 together" in plot
    assert "10 spread" in plot
    assert page.count("starts wait 9 s, once") == 2  # below the plot, and in the table
    assert "10 together: costs no job time" in page
    assert (tmp_path / "page" / "plots" / "spectrum.svg").stat().st_size > 1_000


def test_a_draw_beyond_a_limit_is_said_and_exits_with_one(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--ramp-up", "500W", "--ramp-down", "5kW", "--swing", "1.5kW"]
    code, out, _ = said(capsys, str(recorded), *limits)
    assert code == 1
    assert "ramp_up 2,000 W/s, allowed 500 W/s" in out
    assert "swing 2,000 W, allowed 1,500 W" in out
    assert "ramp_down" not in out


@pytest.mark.long
def test_a_meter_is_recorded_and_judged(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"replay:{recorded}?column=watts&time=time_s&speed=20&loop=1"
    code, out, _ = said(capsys, "--meter", uri, "--for", "4s", "--every", "0.02s", "-o", "json")
    (found,) = json.loads(out)["recordings"]
    assert (code, found["worst_swing_w"]) == (0, 2_000.0)
    assert found["strongest"]["frequency_hz"] == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "FILES: nothing to judge"),
        (["FILE", "--jobs", "0"], "--jobs: 0 jobs"),
        (["FILE", "--drift", "2"], "--drift: 2 is no small share"),
        (["FILE", "--ramp-over", "0s"], "--ramp-over: is too short"),
        (["FILE", "--swing", "5"], "--swing"),
        (["FILE", "--jobs", "4", "--ramp-up", "0W"], "--ramp-up: must be above zero"),
        (["FILE", "--jobs", "4", "--storage", "2kWh"], "--storage: '2kWh' is no storage"),
        (["FILE", "--jobs", "4", "--storage", "0kW,2kWh"], "--storage: stores nothing"),
        (["FILE", "--storage", "9kW,2kWh"], "--storage: smooths jobs"),
        (["--meter", "replay:none.csv"], "none.csv"),
    ],
)
def test_wrong_words_are_refused(
    recorded: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    code, _, err = said(capsys, *(str(recorded) if word == "FILE" else word for word in words))
    assert (code, says in err) == (2, True), err


@given(jobs=st.integers(2, 20), drift=st.sampled_from([0.0, 0.01]), seed=st.integers(0, 9))
def test_no_way_of_starting_changes_what_jobs_draw_on_average(
    jobs: int, drift: float, seed: int
) -> None:
    at_s = np.arange(0, 120, 0.5)
    samples = Samples(at_s=at_s, watts=500.0 + 300.0 * np.sin(2 * np.pi * 0.1 * at_s))
    for way in spreads(samples, swing(samples), jobs, drift, seed):
        assert way.samples.watts.mean() == pytest.approx(500.0 * jobs, rel=0.02)
        assert way.samples.watts.max() <= 800.0 * jobs + 1e-6


@pytest.mark.long
def test_jobs_that_begin_together_are_held_to_a_ramp_and_pay_with_time(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 jobs rise by 32 kW in a tenth of a second; held, they rise by 2 kW/s over ten seconds."""
    words = [str(recorded), "--jobs", "16", "--ramp-up", "2kW", "--ramp-over", "10s", "-o", "json"]
    code, out, _ = said(capsys, *words)
    rows = {one["name"]: one for one in json.loads(out)["recordings"]}
    free, held = rows["16 together"], rows["16 together, held"]
    assert code == 1  # as the other two are beyond what is allowed
    assert free["ramp_up_w_s"] == pytest.approx(3_200.0)
    assert held["ramp_up_w_s"] <= 1.05 * 2_000.0
    assert 0.02 < held["slowed"] < 0.5
    assert free["slowed"] == 0.0
    _, table, _ = said(capsys, *words[:-2])
    assert "16 together, held: work takes" in table


@pytest.mark.long
def test_storage_beside_the_jobs_holds_ramps_that_caps_cannot(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also falls: 16 jobs swing by 32 kW every ten seconds, the grid sees 1 kW/s either way."""
    words = [str(recorded), "--jobs", "16", "--ramp-up", "1kW", "--ramp-down", "1kW", "-o", "json"]
    _, out, _ = said(capsys, *words, "--storage", "40kW,200Wh,0.9")
    row = {one["name"]: one for one in json.loads(out)["recordings"]}["16 together, with storage"]
    assert max(row["ramp_up_w_s"], row["ramp_down_w_s"]) <= 1_001.0
    assert row["missed_s"] == 0.0
    assert 0.0 < row["lost_w"] < 2_000.0
    _, out, _ = said(capsys, *words, "--storage", "5kW,1Wh")
    weak = {one["name"]: one for one in json.loads(out)["recordings"]}["16 together, with storage"]
    assert weak["missed_s"] > 10.0
    assert weak["ramp_up_w_s"] > 1_001.0


def test_a_recording_too_short_to_judge_is_named() -> None:
    short = DrawRecording(
        name="mine", parts=1, samples=Samples(at_s=np.arange(3.0), watts=np.ones(3))
    )
    with pytest.raises(UserError, match="mine: 3 samples"):
        report([short], SwingLimits())
