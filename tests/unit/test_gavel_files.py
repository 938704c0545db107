"""Gavel's traces and throughputs: every layout, and one line for everything that can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.estimate.throughput_table import ThroughputTable, whole_steps
from wattherd.workload.gavel import read_jobs, read_throughputs

KIND = "ResNet-18 (batch size 128)"
RATES = {
    "v100": {(KIND, 1): 50.0, (KIND, 2): 80.0, ("CycleGAN", 1): 4.0},
    "p100": {(KIND, 1): 20.0, (KIND, 2): 30.0, ("CycleGAN", 1): 3.0},
    "k80": {(KIND, 1): 5.0, (KIND, 2): 0.0, ("CycleGAN", 1): 0.5},
}
TABLE = ThroughputTable(RATES, {"v100": {(KIND, 2): 60.0}})
TEN = [KIND, "python3 main.py", "cifar10", "--num_steps", "1", "1000", "2", "5", "-1.0", "12.5"]


def trace(tmp_path: Path, *lines: list[str]) -> Path:
    path = tmp_path / "some.trace"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    return path


def changed(**cells: str) -> list[str]:
    names = ["job_type", "command", "dir", "arg", "data", "steps", "scale", "weight", "slo", "at"]
    return [cells.get(name, cell) for name, cell in zip(names, TEN, strict=True)]


def error_of(tmp_path: Path, *lines: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        read_jobs(trace(tmp_path, *lines), TABLE)
    return caught.value.line()


# --- layouts ---------------------------------------------------------------------------------


def test_a_line_of_the_released_traces(tmp_path: Path) -> None:
    (job,) = read_jobs(trace(tmp_path, TEN), TABLE)
    assert (job.id, job.profile, job.gpus, job.steps) == ("0", KIND, 2, 1000)
    assert (job.submit_s, job.weight, job.batch_size) == (12.5, 5.0, 128)
    assert job.duration_s == 1000 / 80.0
    assert job.deadline_s is None


def test_an_slo_is_a_multiple_of_the_time_on_the_reference_type(tmp_path: Path) -> None:
    (job,) = read_jobs(trace(tmp_path, changed(slo="1.2")), TABLE)
    assert job.deadline_s == pytest.approx(12.5 + 1.2 * 12.5)


def test_nine_columns_lack_the_directory(tmp_path: Path) -> None:
    (job,) = read_jobs(trace(tmp_path, TEN[:2] + TEN[3:]), TABLE)
    assert (job.gpus, job.steps, job.submit_s) == (2, 1000, 12.5)


def test_seven_columns_have_the_scale_last(tmp_path: Path) -> None:
    old = [KIND, "cd %s && python3 main.py", "--num_steps", "1", "1000", "1456.000000", "2"]
    (job,) = read_jobs(trace(tmp_path, old), TABLE)
    assert (job.gpus, job.steps, job.submit_s, job.weight) == (2, 1000, 1456.0, 1.0)


def test_twelve_columns_bring_mode_and_duration(tmp_path: Path) -> None:
    line = [*TEN[:7], "gns", "1", "-1.0", "3338", "55"]
    (job,) = read_jobs(trace(tmp_path, line), TABLE)
    assert (job.duration_s, job.submit_s, job.labels) == (3338.0, 55.0, (("mode", "gns"),))


def test_gzip_and_blank_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "some.trace.gz"
    path.write_bytes(gzip.compress(("\t".join(TEN) + "\r\n\n" + "\t".join(TEN)).encode()))
    assert [job.id for job in read_jobs(path, TABLE)] == ["0", "1"]


def test_jobs_are_confined_to_models_that_run_them(tmp_path: Path) -> None:
    path = trace(tmp_path, TEN, changed(scale="1"))
    two, one = read_jobs(path, TABLE, gpu_models=["V100M16", "P100", "K80"])
    assert two.gpu_models == ("V100M16", "P100")
    assert one.gpu_models == ()


# --- what can be wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"job_type": "ResNet-18 (batch size 127)"}, "job_type: unknown job type"),
        ({"scale": "16"}, "scale_factor: no throughput of"),
        ({"scale": "0"}, "scale_factor: '0' is no whole number of one or more"),
        ({"steps": "-4"}, "total_steps: '-4' is no whole number of one or more"),
        ({"steps": "1e6"}, "total_steps: '1e6' is no whole number"),
        ({"weight": "0"}, "priority_weight: '0' is no weight"),
        ({"weight": "nan"}, "priority_weight: 'nan' is no number"),
        ({"slo": "soon"}, "SLO: 'soon' is no number"),
        ({"at": "-1"}, "arrival_time: '-1' is too small"),
        ({"at": "inf"}, "arrival_time: 'inf' is no number"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, cells: dict[str, str], expected: str) -> None:
    line = error_of(tmp_path, changed(at="0"), changed(**cells))
    assert line.startswith(f"{tmp_path}/some.trace:2: {expected}")
    assert "\n" not in line


def test_hints_name_what_was_meant(tmp_path: Path) -> None:
    assert "did you mean 'CycleGAN'?" in error_of(tmp_path, changed(job_type="CycleGan"))
    assert "measured on 1, 2" in error_of(tmp_path, changed(scale="4"))


def test_time_must_not_run_backwards(tmp_path: Path) -> None:
    line = error_of(tmp_path, changed(at="9"), changed(at="8.5"))
    assert "some.trace:2: arrival_time: 8.5 is before the line above (9)" in line


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    assert "3 columns (hint: a Gavel trace has 7, 9, 10, 12 columns" in error_of(
        tmp_path, ["a", "b", "c"]
    )
    assert "some.trace:2: 7 columns, the lines above have 10" in error_of(tmp_path, TEN, TEN[:7])
    assert "holds no job" in error_of(tmp_path)


def test_unmeasured_jobs_can_be_left_out(tmp_path: Path) -> None:
    out: list[UserError] = []
    path = trace(tmp_path, TEN, changed(scale="16"), changed(job_type="?"), TEN)
    kept = read_jobs(path, TABLE, left_out=out.append)
    assert [job.id for job in kept] == ["0", "3"]
    assert [error.field for error in out] == ["scale_factor", "job_type"]


# --- throughputs -----------------------------------------------------------------------------


def throughputs(tmp_path: Path, whole: object) -> Path:
    path = tmp_path / "throughputs.json"
    path.write_text(json.dumps(whole))
    return path


def test_throughputs_alone_and_apart(tmp_path: Path) -> None:
    path = throughputs(
        tmp_path,
        {
            "v100": {"('A', 2)": {"null": 8.0, "('B', 2)": [5.0, 3.0]}, "('B', 2)": {"null": 1}},
            "v100_unconsolidated": {"('A', 2)": {"null": 6.5}},
        },
    )
    table = read_throughputs(path)
    assert table.types == ("v100",)
    assert (table.rate("v100", "A", 2), table.rate("v100", "A", 1)) == (8.0, 0.0)
    assert (table.spread_rate("v100", "A", 2), table.spread_rate("v100", "B", 2)) == (6.5, 1.0)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ([], "no worker type in it"),
        ({"v100": {}}, "v100: no job type in it"),
        ({"v100": {"ResNet": {"null": 1.0}}}, "v100: 'ResNet' is no job type with its scale"),
        ({"v100": {"('A', 1)": {"null": -1.0}}}, "v100: null: throughput '-1.0'"),
        ({"v100": {"('A', 1)": {"null": True}}}, "v100: null: throughput 'True'"),
        ({"v100": {"('A', 1)": 3.0}}, "v100: null: throughput 'None'"),
        ({"v100_unconsolidated": {"('A', 1)": {"null": 1.0}}}, "only worker types that end in"),
    ],
)
def test_bad_throughputs_are_named(tmp_path: Path, whole: object, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_throughputs(throughputs(tmp_path, whole))
    assert expected in caught.value.line()


def test_nan_and_broken_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    path.write_text('{"v100": {"(\'A\', 1)": {"null": NaN}}}')
    with pytest.raises(UserError, match="is no number of zero or more"):
        read_throughputs(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        read_throughputs(path)


# --- the table -------------------------------------------------------------------------------


def test_types_are_ordered_by_speed_and_found_by_gpu_model() -> None:
    assert TABLE.types == ("v100", "p100", "k80")
    assert [TABLE.type_of(name) for name in ("V100M32", "P100", "k80")] == ["v100", "p100", "k80"]
    with pytest.raises(UserError, match="no throughputs were measured on GPU model 'A100'"):
        TABLE.type_of("A100")


def test_only_whole_steps_that_end_in_time_count() -> None:
    assert whole_steps(2.0, 360.0, None) == 720
    assert whole_steps(1.599, 360.0, None) == 575
    assert whole_steps(2.0, 360.0, 7) == 7


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "jobs", "out", "gpus"),
    [
        ("gavel/max_min_fairness.trace", 96, 0, 169),
        ("gavel/msr_sample/seed0_51b7ef.trace.gz", 17, 1, None),
        ("shockwave/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
         120, 0, None),
    ],
)  # fmt: skip
def test_published_files(traces: Path, name: str, jobs: int, out: int, gpus: int | None) -> None:
    table = read_throughputs(traces / "gavel" / "physical_cluster_throughputs.json.gz")
    missing: list[UserError] = []
    found = read_jobs(traces / name, table, left_out=missing.append)
    assert (len(found), len(missing)) == (jobs, out)
    if gpus is not None:
        assert sum(job.gpus for job in found) == gpus
