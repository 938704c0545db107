"""What a real Slurm printed becomes the same jobs, by whichever program, in text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from wattherd.workload.imports.site import ImportLog, LoggedJob, nodes_used, site_of
from wattherd.workload.imports.slurm import read_sacct, read_squeue

RECORDED = Path(__file__).with_name("slurm_22_05")
HOUR_S, DAY_S = 3600.0, 86400.0
PAST = (
    *("1", "2", "3", "4", "5_0", "5_1", "5_2", "5_3", "6", "8", "9", "10+0", "10+1"),
    *("12", "13", "14", "15", "19", "20", "25", "26"),
)
"""All that sacct tells without an option: what had begun, and one that can never begin."""
LATER = [f"22_{index}" for index in range(10, 21, 2)]


def read(name: str) -> tuple[dict[str, LoggedJob], ImportLog]:
    log = ImportLog(name)
    reader = read_sacct if name.startswith("sacct") else read_squeue
    jobs = reader((RECORDED / name).read_text(encoding="utf-8"), log, HOUR_S)
    assert len(jobs) == len({job.id for job in jobs})
    return {job.id: job for job in jobs}, log


@pytest.mark.parametrize("name", ["sacct.txt", "sacct.json"])
def test_every_job_of_sacct_is_read(name: str) -> None:
    jobs, log = read(name)
    assert set(jobs) == set(PAST)
    assert log.unreadable == []
    assert "steps without their job" not in log.left_out


@pytest.mark.parametrize("name", ["squeue.txt", "squeue-arrays.txt"])
def test_every_job_of_squeue_is_read_tasks_of_arrays_one_by_one(name: str) -> None:
    jobs, log = read(name)
    assert set(jobs) == {"7", "19", "20", "21", "23", "25", "26", *LATER}
    assert log.unreadable == []


def test_squeue_in_json_has_ended_jobs_but_none_that_never_began() -> None:
    jobs, log = read("squeue.json")
    assert set(jobs) == {*PAST, "7", "21", "23", *LATER}
    assert log.unreadable == []
    assert log.left_out["CANCELLED before it began"].examples == ["24"]


def test_text_and_json_of_sacct_say_the_same() -> None:
    """Text has local times, recorded in UTC. JSON names nobody who has no association (job 13)."""
    text, other = read("sacct.txt")[0], read("sacct.json")[0]
    assert {one: job.labels[:1] for one, job in text.items()} == {
        one: job.labels[:1] for one, job in other.items()
    }
    for name, job in text.items():
        same = other[name]
        for field in (
            *("submit_s", "start_s", "end_s", "duration_s", "gpus", "cpus", "memory_mib"),
            *("node_names", "gpu_type", "asked_type", "array", "array_index", "tenant"),
        ):
            assert getattr(job, field) == getattr(same, field), (name, field)
        assert same.user == ("" if name == "13" else job.user)


@pytest.mark.parametrize("name", ["sacct.txt", "sacct.json", "squeue.json"])
def test_names_hold_separators_and_new_lines(name: str) -> None:
    jobs, _ = read(name)
    named = {one: dict(job.labels)["name"] for one, job in jobs.items()}
    assert named["2"] == "a|b"
    assert named["3"] == "two\nlines"
    assert named["4"].startswith("comma, ")


@pytest.mark.parametrize("name", ["sacct.txt", "sacct.json"])
def test_a_run_that_was_requeued_took_as_long_as_it_ran(name: str) -> None:
    jobs, log = read(name)
    assert (jobs["19"].duration_s, jobs["19"].node_names) == (4, ("n2",))
    assert "a run that ended by a requeue is a job of its own" in log.assumptions


@pytest.mark.parametrize("name", ["sacct.txt", "sacct.json", "squeue.json"])
def test_jobs_are_as_they_were_asked_for(name: str) -> None:
    jobs, log = read(name)
    gang, mixed, whole = jobs["9"], jobs["12"], jobs["14"]
    assert (gang.gpus, gang.nodes, gang.node_names, gang.cpus) == (4, 2, ("n1", "n2"), 4)
    assert (mixed.gpus, mixed.node_names, mixed.gpu_type) == (3, ("n1", "n3"), "v100")
    assert (whole.gpus, whole.cpus, whole.queue) == (2, 8, "short")
    assert [jobs[f"10+{part}"].gpu_type for part in (0, 1)] == ["v100", "a100"]
    assert "parts of a heterogeneous job are jobs of their own" in log.assumptions
    assert (jobs["8"].duration_s, jobs["15"].duration_s) == (85, 25)
    assert (jobs["25"].duration_s, jobs["26"].duration_s) == (DAY_S, HOUR_S)
    assert [jobs[f"5_{task}"].duration_s for task in range(4)] == [2, 2, 1, 1]


@pytest.mark.parametrize("name", ["squeue-arrays.txt", "squeue.json"])
def test_a_waiting_array_keeps_how_many_run_at_a_time(name: str) -> None:
    jobs, _ = read(name)
    assert {(jobs[one].array, jobs[one].array_most) for one in LATER} == {("22", 3)}


def test_begin_times_are_in_json_alone() -> None:
    jobs, _ = read("squeue.json")
    assert (jobs["21"].begin_s, jobs["22_10"].begin_s) == (HOUR_S, 2 * HOUR_S)


def test_nodes_are_no_larger_than_the_cluster_was() -> None:
    jobs, log = read("squeue.json")
    nodes = nodes_used(list(jobs.values()), "A100", log)
    assert [(one.name, one.gpu_count, one.gpu_model) for one in nodes] == [
        *(("n1", 4, "V100M16"), ("n2", 4, "V100M16"), ("n3", 2, "A100"))
    ]
    site = site_of(list(jobs.values()), nodes, log)
    assert Counter(job.queue for job in site.jobs) == {"train": len(jobs) - 1, "short": 1}


def test_a_line_that_is_cut_off_takes_no_whole_record_with_it() -> None:
    lines = (RECORDED / "sacct.txt").read_text(encoding="utf-8").split("\n")
    cut = [lines[0], lines[1].rpartition("|")[0].rpartition("|")[0], *lines[5:6], *lines[10:12]]
    log = ImportLog("cut")
    jobs = read_sacct("\n".join(cut), log, HOUR_S)
    assert [job.id for job in jobs] == ["2", "4"]
    assert [place for place, _ in log.unreadable] == ["cut:2"]


def test_the_recordings_say_which_program_made_them() -> None:
    for name in ("sacct.json", "squeue.json"):
        meta = json.loads((RECORDED / name).read_text(encoding="utf-8"))["meta"]
        assert meta["Slurm"]["release"] == "22.05.8"
