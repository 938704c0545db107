"""What jobs draw: measured profiles, built in or from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.catalog.gpus import GPUS
from wattherd.catalog.power_profiles import MEASURED
from wattherd.errors import UserError
from wattherd.estimate.power_curve import prior
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.testing.timed_world import timed
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.power_profiles import built_in, read_profiles

HEAD = "profile,gpu_model,watts,rate\n"


@pytest.mark.parametrize("name", MEASURED)
def test_a_built_in_profile_lies_between_the_idle_and_the_highest_watts_of_its_gpu(
    name: str,
) -> None:
    for model, curve in built_in()[name].items():
        gpu = GPUS[model]
        assert gpu.idle_w < curve.floor_w < curve.max_w <= gpu.max_w
        assert curve.rate(curve.max_w) == 1.0
        measured = MEASURED[name][model]
        assert all(curve.rate(watts) >= rate - 1e-9 for watts, rate in measured)


def test_a_file_of_points(tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    path.write_text(HEAD + "mine,T4,70,100\nmine,T4,60,80\nmine,T4,65,95\n")
    curve = read_profiles(path, known={"T4"})["mine"]["T4"]
    assert curve.watts == (60.0, 65.0, 70.0)
    assert curve.rates == (80.0, 95.0, 100.0)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("mine,T5,60,80", "gpu_model"),
        ("mine,T4,-60,80", "watts"),
        ("mine,T4,60,nan", "rate"),
        ("mine,T4,60,0", "rate"),
        (",T4,60,1", "profile"),
        ("mine,T4,70,1", "watts"),
    ],
)
def test_a_wrong_point_is_named(tmp_path: Path, line: str, field: str) -> None:
    path = tmp_path / "power.csv"
    path.write_text(f"{HEAD}mine,T4,70,100\n{line}\n")
    with pytest.raises(UserError) as refused:
        read_profiles(path, known={"T4"})
    assert (refused.value.field, refused.value.where) == (field, f"{path}:3")


def test_a_job_draws_by_its_profile_and_elsewhere_as_any_job() -> None:
    cluster = parse_cluster("1x8:V100M16", known=GPUS)
    given = SchedulerContext(jobs=ReadJobs(specs=()), cluster=cluster)
    job = timed("j", power_profile="resnet50")
    assert given.curve_of(job, "V100M16").max_w == 220.3
    assert given.curve_of(job, "T4") == prior(job, "T4")
    assert given.curve_of(timed("k"), "V100M16").max_w == 300
