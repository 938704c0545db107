"""What is read back of a job's reports, however long, broken or hostile they are."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from wattherd.report.svg import Frame
from wattherd.report.training_picture import RunLine, TrainingPicture, draw_training
from wattherd.server.documents.training_reports import MOST, TrainingReportLine, training_reports
from wattherd.server.web.job import training


def _write(root: Path, attempt: int, text: str) -> Path:
    folder = root / "j-1" / f"run-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "progress.jsonl"
    path.write_text(text)
    return path


def _line(step: float, **more: object) -> str:
    return json.dumps({"step": step, **more}) + "\n"


def test_reports_of_all_runs_are_read_in_order(tmp_path: Path) -> None:
    _write(tmp_path, 1, _line(1, loss=2.5) + _line(2, loss=2.0, rate_per_s=4))
    _write(tmp_path, 2, _line(2, loss=2.1, at=1700.0) + '{"step": 3')  # half a line is none yet
    assert training_reports(tmp_path, "j-1", 2) == [
        TrainingReportLine(1, 1, 2.5),
        TrainingReportLine(1, 2, 2.0, 4),
        TrainingReportLine(2, 2, 2.1, None, 1700.0),
    ]


def test_a_run_without_reports_has_none(tmp_path: Path) -> None:
    assert training_reports(tmp_path, "j-1", 3) == []


@pytest.mark.parametrize(
    "line",
    ["", "word", "[1]", "null", '{"loss": 1}', '{"step": "x"}', '{"step": NaN}', '{"step": 1e308}',
     '{"step": true}', "[" * 5000, '{"step": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_what_is_no_report_is_passed_over(tmp_path: Path, line: str) -> None:
    _write(tmp_path, 1, line + "\n" + _line(7, loss=float("inf"), rate_per_s="fast"))
    assert training_reports(tmp_path, "j-1", 1) == [TrainingReportLine(1, 7)]


def test_a_link_to_a_file_of_others_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(_line(1, loss=1.0))
    path = _write(tmp_path, 1, "")
    path.unlink()
    path.symlink_to(elsewhere)
    assert training_reports(tmp_path, "j-1", 1) == []


@pytest.mark.long
def test_of_a_long_file_a_few_hundred_reports_are_read_in_a_moment(tmp_path: Path) -> None:
    steps = 400_000
    _write(tmp_path, 1, "".join(_line(step, loss=1 / step) for step in range(1, steps + 1)))
    begun_s = time.monotonic()
    found = training_reports(tmp_path, "j-1", 1)
    assert time.monotonic() - begun_s < 1.0
    assert MOST - 5 <= len(found) <= MOST
    steps_read = [one.step for one in found]
    assert steps_read == sorted(steps_read)
    assert (steps_read[0], steps_read[-1]) == (1, steps)
    assert max(b - a for a, b in itertools.pairwise(steps_read)) < 3 * steps / MOST


def test_many_restarts_stay_within_the_same_number_of_points(tmp_path: Path) -> None:
    for attempt in range(1, 41):
        _write(tmp_path, attempt, "".join(_line(step, loss=1) for step in range(50)))
    found = training_reports(tmp_path, "j-1", 40)
    assert len(found) <= MOST
    assert {one.attempt for one in found} == set(range(25, 41))


def test_a_restart_and_a_change_of_width_are_named() -> None:
    reports = [
        TrainingReportLine(1, 10, 2.0, 5),
        TrainingReportLine(1, 20, 1.5, 5),
        TrainingReportLine(2, 20, 1.6, 9),
    ]
    told = training(reports, {1: 2, 2: 4}, hue=0)
    assert [one.title for one in told.pictures] == ["Loss", "Throughput"]
    assert [run["name"] for run in told.runs] == ["run 1, 2 GPUs", "run 2, 4 GPUs (before: 2)"]
    assert "run 2, 4 GPUs (before: 2)" in told.pictures[0].wide
    assert "Loss 2 at first, 1.6 at step 20; dashed lines" in told.pictures[0].caption


def test_throughput_goes_over_time_where_all_reports_have_one() -> None:
    timed = [TrainingReportLine(1, 10, 1.0, 5, 1000.0), TrainingReportLine(1, 20, 1.0, 6, 1060.0)]
    assert "s since the first report" in training(timed, {}, 0).pictures[1].wide
    untimed = [*timed, TrainingReportLine(1, 30, 1.0, 6)]
    assert "since the first report" not in training(untimed, {}, 0).pictures[1].wide


def test_a_job_that_reports_steps_alone_has_no_picture() -> None:
    assert training([TrainingReportLine(1, 10)], {}, 0).pictures == ()
    assert training([], {}, 0).runs == ()


@pytest.mark.parametrize("values", [[1e15, -1e15], [0.0], [-3.0, -2.0], [1e-12, 2e-12]])
def test_any_numbers_that_are_read_can_be_drawn(values: list[float]) -> None:
    points = [(value, value) for value in values]
    plot = TrainingPicture(
        title="t", about="a", x_title="x", y_title="y", hue=0,
        runs=[RunLine(name="run 1", points=points)],
    )  # fmt: skip
    drawn = draw_training(plot, Frame(width=480, height=280), "k").render()
    assert len(drawn) < 20_000
    assert "nan" not in drawn
