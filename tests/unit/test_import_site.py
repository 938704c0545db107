"""Logs of other systems become scenarios; what cannot be read is counted and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli.main import cli
from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole, workers
from wattherd.workload.imports.kube_list import quantity, read_kube
from wattherd.workload.imports.public_logs import read_columns, read_philly
from wattherd.workload.imports.site import ImportLog, catalogue_name, nodes_used, site_of
from wattherd.workload.imports.slurm import (
    node_names,
    read_sacct,
    read_squeue,
    span_of,
    tres_of,
)
from wattherd.workload.imports.swf import read_swf, write_swf
from wattherd.workload.native import native_line, read_jobs

HEAD = (
    "JobID|JobName|User|Account|Partition|QOS|Submit|Eligible|Start|End|State|AllocTRES|ReqTRES"
    "|NNodes|NodeList|Timelimit|ConsumedEnergyRaw\n"
)
DAY = "2026-11-01T"
SACCT = (
    HEAD
    + f"101|train|ann|vision|gpu|normal|{DAY}10:00:00|{DAY}10:00:00|{DAY}10:00:05|{DAY}12:00:05"
    "|COMPLETED|billing=16,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=128G,node=2"
    "|cpu=16,gres/gpu=8,mem=128G,node=2|2|gpu[01-02]|1-00:00:00|\n"
    f"101.batch|batch||vision|||{DAY}10:00:05|{DAY}10:00:05|{DAY}10:00:05|{DAY}12:00:05"
    "|COMPLETED|cpu=8,mem=64G,node=1||1|gpu01||7200000\n"
    f"102|a|b|ann|vision|gpu|normal|{DAY}10:01:00|||||||||\n"
    f"103|stop|bob|nlp|gpu|normal|{DAY}10:02:00|{DAY}10:02:00|{DAY}10:03:00|{DAY}10:33:00"
    "|CANCELLED by 1000|cpu=8,gres/gpu=2,mem=64G,node=1|cpu=8,gres/gpu:a100=2,mem=64G,node=1"
    "|1|gpu03|02:00:00|\n"
    f"104|gone|bob|nlp|gpu|normal|{DAY}10:02:00|Unknown|None|{DAY}10:33:00|CANCELLED by 1000"
    "||cpu=8,gres/gpu=2|1|None assigned|02:00:00|\n"
    f"105_[1-4%2]|sweep|cat|nlp|gpu|normal|{DAY}11:00:00|{DAY}11:00:00|Unknown|Unknown|PENDING"
    "||cpu=4,gres/gpu=1,mem=16G,node=1|1|None assigned|00:30:00|\n"
    f"106|odd|cat|nlp|gpu|normal|{DAY}11:00:00|||Unknown|SLEEPY||cpu=4|1||00:30:00|\n"
)


def _log() -> ImportLog:
    return ImportLog("log")


def test_a_job_of_sacct_has_its_nodes_gpus_times_and_the_joules_of_its_steps() -> None:
    log = _log()
    job = read_sacct(SACCT, log, 60)[0]
    assert (job.id, job.gpus, job.node_names, job.cpus) == ("101", 8, ("gpu01", "gpu02"), 16)
    assert (job.duration_s, job.memory_mib, job.gpu_type) == (7200, 128 * 1024, "a100")
    assert dict(job.labels)["consumed_energy_j"] == "7200000"


def test_every_line_of_sacct_is_read_left_out_or_unreadable_by_its_number() -> None:
    log = _log()
    jobs = read_sacct(SACCT, log, 60)
    assert [job.id for job in jobs] == ["101", "103", "105_1", "105_2", "105_3", "105_4"]
    assert [place for place, _ in log.unreadable] == ["log:4", "log:8"]
    assert "SLEEPY" in log.unreadable[1][1]
    left = {text: one.examples for text, one in log.left_out.items()}
    assert left == {
        "steps are part of their job": ["101.batch"],
        "CANCELLED before it began": ["104"],
    }
    lines = len(SACCT.splitlines()) - 1
    assert log.records == lines == 3 + 2 + 2  # read (one of them an array), left out, unreadable


def test_waiting_tasks_of_an_array_take_their_time_limit_and_keep_their_bound() -> None:
    tasks = [job for job in read_sacct(SACCT, _log(), 60) if job.array]
    assert [job.array_index for job in tasks] == [1, 2, 3, 4]
    assert {(job.array, job.array_most, job.duration_s) for job in tasks} == {("105", 2, 1800)}


def test_sacct_without_its_columns_is_refused_with_the_command_that_prints_them() -> None:
    with pytest.raises(UserError, match="header") as refused:
        read_sacct("JobID|JobName|State|ExitCode\n1|a|COMPLETED|0:0\n", _log(), 60)
    assert "--format=JobID" in refused.value.hint


def test_sacct_json_says_the_same_as_its_text() -> None:
    one = {
        "job_id": 7,
        "name": "j",
        "association": {"account": "vision", "user": "ann"},
        "array": {"job_id": 0, "task_id": {"set": False, "number": 0}},
        "partition": "gpu",
        "nodes": "gpu[1-2]",
        "allocation_nodes": 2,
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            "submission": 1000,
            "eligible": 1000,
            "start": 1010,
            "end": 1070,
            "limit": {"set": True, "infinite": False, "number": 30},
        },
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "count": 8},
                {"type": "mem", "name": "", "count": 4096},
                {"type": "gres", "name": "gpu", "count": 2},
                {"type": "gres", "name": "gpu:a100", "count": 2},
            ],
            "requested": [],
        },
        "steps": [{"statistics": {"energy": {"consumed": 500}}}],
    }
    old = one | {"job_id": 8, "state": {"current": "COMPLETED"}}
    log = _log()
    jobs = read_sacct(json.dumps({"jobs": [one, old, {"job_id": 9, "time": 3}]}), log, 60)
    assert [(job.id, job.duration_s, job.gpus) for job in jobs] == [("7", 60, 2), ("8", 60, 2)]
    assert (jobs[0].memory_mib, jobs[0].time_limit_s, jobs[0].queue) == (4096, 1800, "gpu")
    assert dict(jobs[0].labels)["consumed_energy_j"] == "500"
    assert [place for place, _ in log.unreadable] == ["log:jobs[2]"]


def test_squeue_in_columns_and_in_json() -> None:
    head = "JOBID|NAME|USER|ACCOUNT|PARTITION|QOS|SUBMIT_TIME|START_TIME|END_TIME|STATE"
    head += "|TRES_PER_NODE|NODES|CPUS|MIN_MEMORY|NODELIST|TIME_LIMIT\n"
    line = f"5|a|ann|x|gpu|n|{DAY}10:00:00|{DAY}10:01:00|{DAY}12:01:00|RUNNING"
    line += "|gres:gpu:v100:4|2|8|4G|n[1-2]|2:00:00\n"
    log = _log()
    (job,) = read_squeue(head + line, log, 60)
    assert (job.gpus, job.duration_s, job.gpu_type, job.memory_mib) == (8, 7200, "v100", 8192)
    assert "a job that still runs takes its time limit" in log.assumptions
    waits = {
        "job_id": 6,
        "submit_time": {"set": True, "infinite": False, "number": 100},
        "job_state": ["PENDING"],
        "tres_req_str": "cpu=1,gres/gpu=1",
        "time_limit": {"set": False, "infinite": True, "number": 0},
        "array_job_id": {"set": True, "number": 6},
        "array_task_string": "2-3",
    }
    jobs = read_squeue(json.dumps({"jobs": [waits]}), _log(), 60)
    assert [(job.id, job.gpus, job.duration_s) for job in jobs] == [("6_2", 1, 60), ("6_3", 1, 60)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("30:00", 1800),
     ("2-00", 172800), ("1-02:03", 93780), ("UNLIMITED", None), ("Partition_Limit", None)],
)  # fmt: skip
def test_spans_of_time(text: str, seconds: float | None) -> None:
    assert span_of(text) == seconds


def test_resources_and_node_lists() -> None:
    assert tres_of("gres/gpu:a100=2,gres/gpu:h100=1").gpus == 3
    assert tres_of("cpu=4,fs/disk=9").others == ("fs/disk",)
    assert node_names("r[1-2]n[08-10],x") == (
        "r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x",
    )  # fmt: skip
    with pytest.raises(ValueError, match="no count"):
        tres_of("gres/gpu=two")
    with pytest.raises(ValueError, match="no list of nodes"):
        node_names("n[1-2")
    assert catalogue_name("NVIDIA-A100-SXM4-80GB") == "A100-80GB"
    assert catalogue_name("a100") == "A100"
    assert catalogue_name("banana") is None


def test_nodes_hold_what_ran_on_them_at_a_time_and_no_more() -> None:
    line = "{0}|j|u|a|p|q|{1}|{1}|{1}|{2}|COMPLETED|cpu=20,gres/gpu=2|cpu=20|1|n1|1:00:00|\n"
    text = HEAD + line.format(1, f"{DAY}10:00:00", f"{DAY}11:00:00")
    text += line.format(2, f"{DAY}10:30:00", f"{DAY}11:30:00")
    text += line.format(3, f"{DAY}11:00:00", f"{DAY}12:00:00")
    log = _log()
    (node,) = nodes_used(read_sacct(text, log, 60), "A100", log)
    assert (node.name, node.gpu_count, node.cpu_milli) == ("n1", 4, 40_000)


names = st.text("abcxyz", min_size=1, max_size=5)


@st.composite
def swf_jobs(draw: st.DrawFn) -> list[JobSpec]:
    count = draw(st.integers(1, 8))
    times = sorted(draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count)))
    return [
        JobSpec(
            id=str(number),
            submit_s=float(at_s - times[0]),
            roles=workers(draw(st.integers(1, 64))),
            duration_s=float(draw(st.integers(1, 10**6))),
            queue=draw(names),
            user=draw(names),
            tenant=draw(names),
        )
        for number, at_s in enumerate(times, 1)
    ]


@given(swf_jobs())
def test_jobs_come_back_from_swf_as_they_were(jobs: list[JobSpec]) -> None:
    def kept(one: JobSpec) -> tuple[object, ...]:
        return (one.id, one.submit_s, one.gpus, one.duration_s, one.queue, one.user, one.tenant)

    log = _log()
    past = read_swf(write_swf(jobs), log, 60)
    back = site_of(past, (), log).jobs
    assert [kept(one) for one in back] == [kept(one) for one in jobs]
    assert not log.unreadable
    assert write_swf(back) == write_swf(jobs)


def test_swf_names_its_bad_lines_and_leaves_out_what_never_ran() -> None:
    good = "1 0 5 100 4 -1 -1 4 200 -1 1 3 1 -1 2 -1 -1 -1\n"
    text = "; Queue: 2 batch\n" + good + "2 0 5 x 4\n" + "3 0 -1 -1 -1 -1 -1 4 9 -1 5" + " -1" * 7
    log = _log()
    (job,) = read_swf(text, log, 60)
    assert (job.gpus, job.duration_s, job.start_s, job.queue) == (4, 100, 5, "batch")
    assert [place for place, _ in log.unreadable] == ["log:3"]
    assert log.left_out["cancelled before it began"].count == 1
    assert read_swf(good, _log(), 60, processors="cpu")[0].cpus == 4


@given(
    st.lists(
        st.tuples(st.integers(0, 86_399), st.integers(0, 5000), st.integers(1, 90_000),
                  st.integers(1, 4), st.integers(0, 8)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_whatever_sacct_prints_becomes_a_job_of_the_same_length_and_gpus(
    rows: list[tuple[int, int, int, int, int]],
) -> None:
    from datetime import datetime, timedelta

    def at(seconds: int) -> str:
        return (datetime(2026, 11, 1) + timedelta(seconds=seconds)).isoformat()  # noqa: DTZ001

    text = HEAD
    for number, (submit, wait, run, nodes, each) in enumerate(rows):
        start = submit + wait
        tres = f"cpu={nodes},gres/gpu={nodes * each},node={nodes}"
        text += f"{number}|j|u|a|p|q|{at(submit)}|{at(submit)}|{at(start)}|{at(start + run)}"
        text += f"|COMPLETED|{tres}|{tres}|{nodes}|n[1-{nodes}]|1:00:00|\n"
    log = _log()
    past = read_sacct(text, log, 60)
    nodes_found = nodes_used(past, "A100", log)
    jobs = {job.id: job for job in site_of(past, nodes_found, log).jobs}
    capacity = sum(node.gpu_count for node in nodes_found)
    for number, (_, _, run, nodes, each) in enumerate(rows):
        assert jobs[str(number)].gpus == nodes * each <= capacity
        assert jobs[str(number)].duration_s == run


def test_a_native_line_is_read_as_the_same_job(tmp_path: Path) -> None:
    roles = (TaskRole(count=2, gpu_count=4, cpu_milli=8000), TaskRole(name="ps", gpu_count=0))
    job = JobSpec(
        id="a", submit_s=0.5, roles=roles, gpu_models=("A100",), duration_s=3.25, user="ü",
        labels=(("k", "v;w"),), array="x", array_index=3, array_count=9,
    )  # fmt: skip
    plain = JobSpec(id="b", submit_s=1.0)
    path = tmp_path / "jobs.jsonl"
    path.write_text(f"{native_line(job)}\n{native_line(plain)}\n", encoding="utf-8")
    assert read_jobs(path) == (job, plain)


NODE = {
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
    "status": {"allocatable": {"cpu": "63500m", "memory": "512Gi", "nvidia.com/gpu": "8"}},
}


def _pod(name: str, owner: str = "Job", **status: object) -> dict[str, object]:
    labels = {"job-name": "train"} if name.startswith("train") else {}
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"nvidia.com/gpu": "2"}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": labels,
            "creationTimestamp": "2026-11-01T10:00:00Z",
            "ownerReferences": [{"kind": owner}],
        },
        "spec": {"containers": [{"resources": resources}]},
        "status": {"phase": "Running", "startTime": "2026-11-01T10:01:00Z"} | status,
    }


def test_pods_of_one_job_are_a_gang_and_nodes_are_as_the_cluster_has_them() -> None:
    over = {
        "phase": "Succeeded",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-11-01T10:31:00Z"}}}],
    }
    items = [NODE, _pod("train-0", **over), _pod("train-1", **over), _pod("solo")]
    items += [_pod("agent", owner="DaemonSet"), {"kind": "Pod"}, {"kind": "Secret"}]
    log = _log()
    jobs, (node,) = read_kube(json.dumps({"items": items}), log, 60, "A100")
    assert [(job.id, job.gpus, job.nodes, job.duration_s) for job in jobs] == [
        ("team/train", 4, 2, 1800),
        ("team/solo", 2, 1, 60),
    ]
    assert (node.gpu_count, node.gpu_model, node.cpu_milli) == (8, "A100-80GB", 63_500)
    assert (node.memory_mib, quantity("100m"), quantity("1Ki")) == (512 * 1024, 0.1, 1024)
    assert [place for place, _ in log.unreadable] == ["log:items[5]"]
    assert set(log.left_out) == {"pods of DaemonSets", "neither pod nor node"}


def test_the_philly_log_as_microsoft_published_it() -> None:
    attempt = {
        "start_time": "2017-10-09 07:02:00",
        "end_time": "2017-10-09 08:02:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu3"]}],
    }
    one = {"status": "Pass", "vc": "6214e9", "jobid": "application_1", "user": "u",
           "attempts": [attempt, attempt], "submitted_time": "2017-10-09 07:01:00"}  # fmt: skip
    log = _log()
    (job,) = read_philly(json.dumps([one, one | {"attempts": []}, {"jobid": "x"}]), log, 60)
    assert (job.gpus, job.duration_s, job.node_names) == (3, 7200, ("m1", "m2"))
    assert len(log.unreadable) == len(log.left_out) == 1
    assert site_of([job], (), log).jobs[0].roles == workers(3)


def test_helios_and_acme_have_the_same_columns() -> None:
    head = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration"
    row = "7,u,vc1,16,64,2,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:01:00,2020-04-01 01:01:00"
    log = _log()
    (job,) = read_columns(f"{head}\n{row},3600\n8,u\n", log, 60)
    assert (job.gpus, job.nodes, job.duration_s, job.queue) == (16, 2, 3600, "vc1")
    assert [place for place, _ in log.unreadable] == ["log:3"]
    with pytest.raises(UserError, match="gpu_num"):
        read_columns("job_id,submit_time\n", _log(), 60)


def test_an_import_is_a_scenario_that_compares_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    run = CliRunner().invoke(cli, ["import", "sacct", "-", "--out", str(out)], input=SACCT)
    assert run.exit_code == 0, run.output
    assert "unreadable: <stdin>:8: unknown state 'SLEEPY'" in run.output
    document = json.loads((out / "import.json").read_text())
    assert (document["imported"], document["gpus"], len(document["unreadable"])) == (6, 10, 2)
    compared = CliRunner().invoke(cli, ["sim", "compare", str(out / "scenario.yaml"), "-o", "json"])
    assert compared.exit_code == 0, compared.output
    rows = json.loads(compared.stdout)["runs"]
    assert len(rows) == 3 * 3  # policies; without a budget, and two ways of sharing one
    assert {row["finished"] for row in rows} == {6}
    again = CliRunner().invoke(cli, ["import", "sacct", "-", "--out", str(out)], input=SACCT)
    assert isinstance(again.exception, UserError)
    exported = CliRunner().invoke(cli, ["export", "swf", str(out / "jobs.jsonl")])
    assert len(exported.stdout.splitlines()) == 6 + len([*"VMMN"]) + 3 + 2 + 1


def test_a_log_without_a_job_is_refused_with_its_first_bad_line() -> None:
    log = _log()
    with pytest.raises(UserError, match=r"log:2: 1 fields") as refused:
        site_of(read_sacct(HEAD + "x\n", log, 60), (), log)
    assert refused.value.where == "log"
