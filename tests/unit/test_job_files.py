"""Job files of published traces: what each column becomes, and one line for all that is wrong."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.experiments.schedule.workloads import TIMED, read_workload

MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,priority"
)
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
ELASTIC = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration"
CHRONUS = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,"
    "expect_time_list,expect_value_list,best_effort,job_type"
)
PAI = "arrival_time,length,cpus"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def jobs(kind: str, tmp_path: Path, *lines: str) -> tuple[object, ...]:
    return read_workload(kind, written(tmp_path, *lines), None).specs


def error(kind: str, tmp_path: Path, *lines: str) -> str:
    with pytest.raises(UserError) as caught:
        jobs(kind, tmp_path, *lines)
    return caught.value.line().replace(str(tmp_path), "")


def test_muri_counts_in_milliseconds_and_iterations(tmp_path: Path) -> None:
    (job,) = jobs("muri", tmp_path, MURI, "7,8,1456000,1000,vgg16,16,999,5,250,1")
    assert (job.id, job.submit_s, job.duration_s) == ("7", 1456.0, 250.0)
    assert (job.gpus, job.profile, job.steps, job.batch_size) == (8, "vgg16", 1000, 16)
    assert job.priority == -1, "1 marks opportunistic jobs"


def test_tiresias_counts_in_seconds(tmp_path: Path) -> None:
    (job,) = jobs("tiresias", tmp_path, TIRESIAS, "0,4,30,606,vgg19,164,30")
    assert (job.submit_s, job.duration_s, job.gpus) == (30.0, 164.0, 4)


def test_philly_begins_with_the_first_submission_and_queues_by_virtual_cluster(
    tmp_path: Path,
) -> None:
    rows = ("2017-10-09 07:01:55,66.0,1,66.0,11cb48", "2017-10-09 06:01:55,10,8,80,6214e9")
    first, second = jobs("philly", tmp_path, PHILLY, *rows)
    assert (first.id, first.submit_s, first.queue, first.gpus) == ("1", 0.0, "6214e9", 8)
    assert (second.id, second.submit_s, second.duration_s) == ("0", 3600.0, 66.0)


def test_elasticflow_deadlines_are_times_of_the_run(tmp_path: Path) -> None:
    lines = (ELASTIC, "1,100,50,bert,900,64,4,500", "2,90,50,bert,,64,4,500")
    best_effort, job = jobs("elasticflow", tmp_path, *lines)
    assert (job.id, job.deadline_s, best_effort.deadline_s) == ("1", 900.0, None)


def test_chronus_deadlines_count_from_submission(tmp_path: Path) -> None:
    rows = (
        "0,vc_1,4,100,10,resnet,211,8,282-400,10-5,0,strict",
        "1,vc_2,0,100,10,resnet,211,8,282,10,1,best",
    )
    job, cpu_only = jobs("chronus", tmp_path, CHRONUS, *rows)
    assert (job.deadline_s, job.queue, job.user) == (382.0, "vc_1", "vc_1")
    assert (cpu_only.deadline_s, cpu_only.gpus) == (None, 0)


def test_pai_jobs_need_cpus_only(tmp_path: Path) -> None:
    (job,) = jobs("pai", tmp_path, PAI, "0.5,25.0,3")
    assert (job.roles[0].count, job.roles[0].cpu_milli, job.gpus) == (3, 1000, 0)


def test_a_packed_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(f"{TIRESIAS}\n0,4,30,606,vgg19,164,30\n".encode()))
    assert read_workload("tiresias", path, None).specs[0].gpus == 4


WRONG = {
    "time goes back": (
        "tiresias",
        (TIRESIAS, "0,1,30,1,a,5,1", "1,1,20,1,a,5,1"),
        (
            "/jobs.csv:3: submit_time: 20 s is before the line above (30 s) "
            "(hint: sort the rows by time of submission)"
        ),
    ),
    "negative duration": (
        "tiresias",
        (TIRESIAS, "0,1,30,1,a,-5,1"),
        "/jobs.csv:2: duration: '-5' is negative (hint: seconds since the trace began)",
    ),
    "no number": (
        "pai",
        (PAI, "0,nan,1"),
        (
            "/jobs.csv:2: length: 'nan' is not a number of seconds "
            "(hint: a plain number, such as 90 or 0.5)"
        ),
    ),
    "no GPU": (
        "muri",
        (MURI, "7,0,0,10,a,1,9,5,2,0"),
        "/jobs.csv:2: num_gpu: 0 is too small (hint: at least 1)",
    ),
    "half a GPU": (
        "philly",
        (PHILLY, "2017-10-09 07:01:55,5,0.5,5,x"),
        "/jobs.csv:2: num_gpus: '0.5' is not a whole number (hint: digits alone)",
    ),
    "an id twice": (
        "tiresias",
        (TIRESIAS, "0,1,30,1,a,5,1", "0,1,40,1,a,5,1"),
        "/jobs.csv:3: job_id: '0' stands on line 2 already (hint: ids are unique)",
    ),
    "no time of day": (
        "philly",
        (PHILLY, "yesterday,5,1,5,x"),
        "/jobs.csv:2: timestamp: 'yesterday' is no time of day (hint: 2017-10-09 07:01:55)",
    ),
    "a column is missing": (
        "elasticflow",
        (TIRESIAS, "0,1,30,1,a,5,1"),
        (
            "/jobs.csv:1: no column ddl (found: job_id, num_gpu, submit_time, iterations, "
            "model_name, duration, interval) (hint: a ElasticFlow trace has the columns "
            "submit_time, job_id, num_gpu, duration, ddl)"
        ),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_content_names_file_line_and_column(what: str, tmp_path: Path) -> None:
    kind, lines, told = WRONG[what]
    assert error(kind, tmp_path, *lines) == told


def test_an_unknown_format_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'tiresias'"):
        read_workload("tiresia", tmp_path / "x", None)


FILES = {
    "muri": ("muri/trace2.csv.gz", 5755),
    "tiresias": ("tiresias/60_job.csv", 60),
    "philly": ("sia/philly_82248jobs.csv.gz", 82247),
    "elasticflow": ("elasticflow/philly_103959.csv", 876),
    "chronus": ("chronus/trace_job_Philly_SLO.csv.gz", 30940),
    "pai": ("pai_gaia/pai_1k.csv", 1000),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_published_files_are_read_whole(kind: str, traces: Path) -> None:
    name, count = FILES[kind]
    specs = read_workload(kind, traces / name, None).specs
    assert len(specs) == count
    assert all(a.submit_s <= b.submit_s for a, b in itertools.pairwise(specs))
    assert set(TIMED) == {*FILES, "native"}
