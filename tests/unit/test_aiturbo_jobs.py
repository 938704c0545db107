"""The job lists of AITurbo's later code: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.estimate.ps_job import LossKind
from wattherd.estimate.speed import asked_shape
from wattherd.workload.aiturbo_jobs import MODELS, read_jobs, read_times

HEAD = (
    "id\tmodel_name\tbatch_size\tsynch\ttarget_loss\ttotal_steps\tarrive_time\tps_num\tworker_num"
    "\tgpu_num\tcpu_core_worker\tcpu_core_ps"
)
GOOD = "7\tresnet50\t64\tTRUE\t0.4\t1500\t39\t1\t2\t200\t5\t4"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "jobs.txt"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def test_a_row_becomes_a_job_and_its_truth(tmp_path: Path) -> None:
    work = read_jobs(written(tmp_path, GOOD))
    (spec,) = work.specs
    shape = asked_shape(spec)
    assert (spec.id, spec.submit_s, spec.batch_size) == ("7", 39.0, 128)
    assert (shape.workers, shape.servers, shape.gpus) == (2, 1, 2)
    assert (shape.worker_cores, shape.server_cores) == (5, 4)
    truth = work.truths["7"]
    assert truth.steps == 1500
    assert truth.loss.kind is LossKind.CONVERGING
    assert truth.loss.curve.loss(1500) == pytest.approx(0.4)
    assert truth.loss.curve.steps_to(work.target_loss["7"]) == pytest.approx(1500)


def test_jobs_come_in_order_of_arrival(tmp_path: Path) -> None:
    later = GOOD.replace("7\t", "8\t", 1).replace("\t39\t", "\t3\t")
    assert [spec.id for spec in read_jobs(written(tmp_path, GOOD, later)).specs] == ["8", "7"]


def test_times_say_when_a_job_tells(tmp_path: Path) -> None:
    times = tmp_path / "times.txt"
    times.write_text("200\t50\n40\t99999\n")
    other = GOOD.replace("7\t", "8\t", 1)
    work = read_jobs(written(tmp_path, GOOD, other), times)
    assert work.truths["7"].loss.tells_from == pytest.approx(0.25 * 1500)
    assert not work.truths["8"].predictable
    assert read_times(times) == [0.25, None]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (GOOD.replace("resnet50", "resnet5"), "unknown model"),
        (GOOD.replace("200", "150"), "no whole GPUs"),
        (GOOD.replace("1500", "0"), "too small"),
        (GOOD.replace("0.4", "9"), "cannot be reached"),
        (GOOD.replace("\t39", "\t-1"), "arrive_time"),
        (GOOD.replace("\t2\t200", "\t0\t200"), "too small"),
        (GOOD + "\n" + GOOD, "line 2 already"),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        read_jobs(written(tmp_path, row))
    assert "jobs.txt:" in caught.value.where


@pytest.mark.parametrize("text", ["", "5", "a b", "0 3", "-1 4"])
def test_bad_times_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.txt"
    path.write_text(text + "\n")
    with pytest.raises(UserError):
        read_times(path)


def test_another_number_of_times_is_refused(tmp_path: Path) -> None:
    times = tmp_path / "times.txt"
    times.write_text("200 50\n30 20\n")
    with pytest.raises(UserError, match="2 times for 1 jobs"):
        read_jobs(written(tmp_path, GOOD), times)


def test_every_model_has_a_positive_speed_on_every_small_shape(tmp_path: Path) -> None:
    rows = [
        f"{number}-{w}-{p}\t{name}\t64\tTRUE\t0.4\t10\t0\t{p}\t{w}\t{100 * w}\t5\t5"
        for number, name in enumerate(MODELS)
        for w in (1, 2, 4)
        for p in (1, 2)
    ]
    work = read_jobs(written(tmp_path, *rows))
    assert all(work.truths[spec.id].speed.step_s(asked_shape(spec)) > 0 for spec in work.specs)


@pytest.mark.data
def test_the_published_list_is_whole(traces: Path) -> None:
    folder = traces / "aiturbo" / "vgpu_params"
    work = read_jobs(folder / "60jobs.txt", folder / "temp_copy.txt")
    assert len(work.specs) == 60
    told = [truth for truth in work.truths.values() if truth.predictable]
    assert len(told) == 24
    assert sum(one.loss.tells_from / one.steps for one in told) / 24 == pytest.approx(
        0.49, abs=0.02
    )
