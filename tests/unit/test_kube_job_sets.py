"""How many pods of a set start together, by what its object says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wattherd.kube.api.api_objects import decoder
from wattherd.kube.facts.job_sets import JobSet, LeaderWorkerSet, PyTorchJob

Json = dict[str, Any]


def a_part(name: str, replicas: int, pods: int, **more: Any) -> Json:
    spec = {"parallelism": pods, "completions": pods}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


PARTS = [a_part("lead", 1, 1), a_part("work", 2, 4)]
AFTER = [{"name": "lead", "status": "Ready"}]
IN_ORDER = {"startupPolicyOrder": "InOrder"}
JOB_SETS: dict[str, tuple[Json, Json, int]] = {
    "all parts at once": ({"replicatedJobs": PARTS}, {}, 9),
    "one part after another": ({"replicatedJobs": PARTS, "startupPolicy": IN_ORDER}, {}, 1),
    "a part that depends on another": (
        {"replicatedJobs": [PARTS[0], a_part("work", 2, 4, dependsOn=AFTER)]}, {}, 1,
    ),
    "a part that is done": (
        {"replicatedJobs": PARTS},
        {"replicatedJobsStatus": [{"name": "lead", "succeeded": 1}]},
        1,
    ),
    "no more pods than there is to do": (
        {"replicatedJobs": [
            {"name": "n", "template": {"spec": {"parallelism": 8, "completions": 3}}}
        ]}, {}, 3,
    ),
}  # fmt: skip
PYTORCH: dict[str, tuple[Json, int]] = {
    "a master and workers": (
        {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}}, 4,
    ),
    "elastic": (
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 8}}, "elasticPolicy": {"minReplicas": 2}},
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOB_SETS)
def test_of_a_job_set_all_jobs_start_together_that_wait_for_no_other(case: str) -> None:
    spec, status, least = JOB_SETS[case]
    made = decoder(JobSet).decode(json.dumps({"spec": spec, "status": status}).encode())
    assert made.least == least


@pytest.mark.parametrize("case", PYTORCH)
def test_of_a_pytorch_job_all_parts_start_together(case: str) -> None:
    spec, least = PYTORCH[case]
    made = decoder(PyTorchJob).decode(json.dumps({"spec": spec}).encode())
    assert made.least == least


LEADER_WORKERS: dict[str, tuple[Json, int]] = {
    "all of a group at once": ({"leaderWorkerTemplate": {"size": 4}}, 4),
    "a group of one": ({"leaderWorkerTemplate": {}}, 1),
    "workers that are made when their leader is ready": (
        {"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderReady"}, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEADER_WORKERS)
def test_of_a_leader_worker_set_each_group_starts_together_unless_the_leader_goes_first(
    case: str,
) -> None:
    spec, least = LEADER_WORKERS[case]
    made = decoder(LeaderWorkerSet).decode(json.dumps({"spec": spec}).encode())
    assert made.least == least
