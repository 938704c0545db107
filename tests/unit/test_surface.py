"""Ways to run a job valued by progress: frontiers, kept batches, accumulation, files, choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattherd.cli.main import main
from wattherd.errors import UserError
from wattherd.estimate.measured_curve import JobSetting
from wattherd.estimate.surface import (
    Surface,
    SurfaceGoal,
    SurfacePoint,
    accumulated,
    expected_epochs,
)
from wattherd.experiments.power_models.surfaces import curves_of, surface_report
from wattherd.workload.surfaces import read_surfaces

POWER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
TRAIN = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"


def a_point(
    batch: int, cap_w: float, power_w: float, epoch_s: float, epochs: float, layout: str = ""
) -> SurfacePoint:
    setting = JobSetting(batch_size=batch, layout=layout)
    return SurfacePoint(
        setting=setting, cap_w=cap_w, power_w=power_w, epochs_per_s=1 / epoch_s,
        epochs_to_target=epochs,
    )  # fmt: skip


def a_surface() -> Surface:
    """The large batch is faster per epoch and needs three times the epochs."""
    points = (
        a_point(32, 100, 95, 20, 10), a_point(32, 200, 160, 12, 10),
        a_point(256, 100, 98, 10, 30), a_point(256, 200, 180, 6, 30),
    )  # fmt: skip
    return Surface(job="a", points=points)


def test_progress_and_samples_rank_batches_differently() -> None:
    surface = a_surface()
    assert max(surface.points, key=lambda p: p.epochs_per_s).setting.batch_size == 256
    best = max(surface.points, key=lambda p: p.progress_per_s)
    assert best.setting.batch_size == 32
    assert best.progress_per_s == pytest.approx(1 / 120)
    assert {p.setting.batch_size for p in surface.frontier()} == {32}
    assert {p.setting.batch_size for p in surface.frontier(SurfaceGoal.SAMPLES)} == {32, 256}


def test_a_layout_is_a_point_of_the_same_frontier() -> None:
    split = a_point(32, 150, 120, 14, 10, layout="tp2")
    surface = Surface(job="a", points=(*a_surface().points, split))
    assert [p.setting.layout for p in surface.frontier()] == ["", "tp2", ""]


def test_a_kept_batch_leaves_cap_and_accumulation_open() -> None:
    epochs = {32: 10.0, 256: 30.0}
    points = accumulated(a_surface().points, epochs)
    assert len(points) == 6
    kept = Surface(job="a", points=points).kept_at(256)
    assert {(p.setting.batch_size, p.setting.accumulation) for p in kept.points} == {
        (256, 1), (32, 8),
    }  # fmt: skip
    passes = [p for p in kept.points if p.setting.accumulation == 8]
    assert all(p.epochs_to_target == 30 for p in passes)
    with pytest.raises(UserError, match="nothing measured"):
        a_surface().kept_at(64)


def test_failed_attempts_are_paid_for() -> None:
    assert expected_epochs([4, 6]) == 5
    assert expected_epochs([4, 6, None]) == pytest.approx(7.5)
    assert expected_epochs([4, None, None]) is None
    assert expected_epochs([]) is None


def test_choosing_by_progress_is_never_worse_and_here_much_better() -> None:
    document = surface_report([a_surface()], (0.6, 1.0))
    for one in document["budgets"]:
        assert one["by"]["progress"]["progress"] > 1.3 * one["by"]["samples"]["progress"]
    with pytest.raises(UserError, match="shares"):
        surface_report([a_surface()], (1.5,))


def test_fixed_batches_are_jobs_of_their_own_and_free_ones_choices() -> None:
    fixed = curves_of([a_surface()], "fixed", SurfaceGoal.PROGRESS)
    assert [curve.job for curve in fixed] == ["a/32", "a/256"]
    (free,) = curves_of([a_surface()], "free", SurfaceGoal.PROGRESS)
    assert len(free.points) == 4
    with pytest.raises(UserError, match="unknown way"):
        curves_of([a_surface()], "loose", SurfaceGoal.PROGRESS)


def files(folder: Path) -> tuple[Path, Path]:
    """Batch 8 always reaches .6, batch 64 reaches it half the time; nobody reaches .7."""
    power, train = folder / "power.csv", folder / "train.csv"
    power.write_text(
        POWER
        + "".join(
            f"d,n,{batch},adam,{cap},{epoch},{watts}\n"
            for batch, cap, epoch, watts in (
                (8, 100, 20, 90), (8, 200, 12, 150), (64, 100, 10, 95), (64, 200, 6, 170),
                (99, 200, 1, 170),
            )
        )
    )  # fmt: skip
    rows = []
    for run in (1, 2, 3, 4):
        rows += [f"d,n,8,adam,1e-3,{run},0.5,3", f"d,n,8,adam,1e-3,{run},0.6,10"]
        late = 10 if run % 2 else "nan"
        rows += [f"d,n,64,adam,1e-3,{run},0.5,4", f"d,n,64,adam,1e-3,{run},0.6,{late}"]
        rows += [f"d,n,{batch},adam,1e-3,{run},0.7,nan" for batch in (8, 64)]
    train.write_text(TRAIN + "\n".join(rows) + "\n")
    return power, train


def test_zeus_files_give_a_surface_to_the_hardest_target_most_runs_reach(tmp_path: Path) -> None:
    (surface,) = read_surfaces(*files(tmp_path))
    assert surface.job == "d/n/adam"
    assert surface.global_batches() == (8, 64)  # nobody knows how 99 trains
    epochs = {p.setting.batch_size: p.epochs_to_target for p in surface.points}
    assert epochs == {8: 10.0, 64: 20.0}
    (passes,) = read_surfaces(*files(tmp_path), accumulate=True)
    assert (8, 8) in {(p.setting.batch_size, p.setting.accumulation) for p in passes.points}


def test_own_files_are_read_and_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    head = "job,batch_size,accumulation,layout,cap_w,power_w,epoch_s,epochs_to_target,devices\n"
    path.write_text(head + "a,8,4,tp2,100,390,20,10,4\na,32,,,200,700,10,10,4\n")
    (surface,) = read_surfaces(path, None)
    assert surface.devices == 4
    assert [p.setting.global_batch for p in surface.points] == [32, 32]
    path.write_text(head + "a,8,4,tp2,100,390,20,10,4\na,32,,,200,700,10,10,2\n")
    with pytest.raises(UserError, match="another weight or devices"):
        read_surfaces(path, None)
    path.write_text(head + "a,8,0,,100,390,20,10,4\n")
    with pytest.raises(UserError, match="accumulation: is zero"):
        read_surfaces(path, None)


def test_the_commands_say_which_batch_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    power, train = map(str, files(tmp_path))
    zeus = ["--curves", power, "--format", "zeus", "--train", train]
    with pytest.raises(SystemExit) as done:
        main(["power", "allocate", *zeus, "--progress", "--batch", "free", "--budget", "150W",
              "-o", "json"])  # fmt: skip
    assert not done.value.code
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["job"], job["batch_size"], job["cap_w"]) == ("d/n/adam", 8, 200)
    assert job["rate"] == pytest.approx(1 / 120)
    with pytest.raises(SystemExit) as done:
        main(["power", "surface", power, "--train", train, "--shares", "0.9"])
    assert not done.value.code
    assert "d/n/adam" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["power", "allocate", *zeus, "--budget", "150W"])
    assert done.value.code == 2
    assert "--progress" in capsys.readouterr().err
