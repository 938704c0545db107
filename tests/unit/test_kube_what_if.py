"""Snapshots, what would change under other policies and budgets, and what would help who waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kube_builders import Json, a_node, a_pod, bound, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.cli.main import cli
from wattherd.errors import UserError
from wattherd.kube.api.api_objects import PodGroup, decoder
from wattherd.kube.facts import cluster_snapshot as snapshots
from wattherd.kube.facts.cluster_snapshot import SET_FIELDS, ClusterSnapshot, snapshot_of
from wattherd.kube.facts.job_sets import SETS
from wattherd.kube.facts.pod_groups import GroupKind
from wattherd.kube.facts.power_kinds import Queue
from wattherd.model.job import Request
from wattherd.server.kube.explain import explained, found
from wattherd.server.kube.manifests import pods_of
from wattherd.server.kube.what_if import Supposed, attempt, changed, compare, simulate
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

IDLE_W = GPUS["T4"].idle_w
RISE_W = round(GPUS["T4"].max_w - GPUS["T4"].idle_w)
BASE_W = round(4 * IDLE_W)
WHOLE = exclusive(1_000, 1)
_GROUP, _QUEUE = decoder(PodGroup), decoder(Queue)
_SET = {one.group: decoder(one.made) for one in SETS}


def made(name: str, request: Request = WHOLE, *, at: int = 0, **spec: Any) -> Json:
    pod = pod_json(name, request, **({"schedulerName": "wattherd"} | spec))
    pod["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{at:02}Z"
    return pod


def a_cluster(
    *pods: Json,
    budget_w: float | None = None,
    groups: tuple[Json, ...] = (),
    queues: tuple[Json, ...] = (),
    sets: tuple[tuple[GroupKind, Json], ...] = (),
) -> ClusterSnapshot:
    """Two nodes of two T4 each, in one power domain."""
    nodes = [node_json(a_machine(f"n{row}", gpus=2, model="T4")) for row in range(2)]
    for node in nodes:
        node["metadata"]["labels"]["wattherd.dev/power-domain"] = "row-a"
    listed: dict[str, list[Any]] = {
        "nodes": [a_node(node) for node in nodes],
        "pods": [a_pod(pod) for pod in pods],
        "queues": [_QUEUE.decode(json.dumps(queue).encode()) for queue in queues],
        "native_groups": [_GROUP.decode(json.dumps(group).encode()) for group in groups],
    }
    for kind, one in sets:
        listed.setdefault(SET_FIELDS[kind], []).append(_SET[kind].decode(json.dumps(one).encode()))
    return snapshot_of(listed, {} if budget_w is None else {"row-a": budget_w})


# --- snapshots ----------------------------------------------------------------------------------


def test_a_snapshot_holds_no_secret_and_reads_back_as_it_was() -> None:
    pod = made("p")
    pod["spec"]["containers"][0] |= {
        "env": [{"name": "TOKEN", "value": "s3cret"}],
        "args": ["--password=s3cret"],
        "image": "registry/s3cret",
    }
    pod["metadata"]["annotations"] |= {
        "kubectl.kubernetes.io/last-applied-configuration": '{"env": "s3cret"}',
        "wattherd.dev/gpu-milli": "500",
    }
    pod["metadata"]["managedFields"] = [{"manager": "s3cret"}]
    text = snapshots.write(a_cluster(pod, budget_w=1000))
    assert b"s3cret" not in text
    assert b"wattherd.dev/gpu-milli" in text
    again = snapshots.read(text, "file")
    assert snapshots.write(again) == text
    assert again.budgets_w == {"row-a": 1000}


def test_the_same_cluster_gives_the_same_bytes_whatever_the_order() -> None:
    pods = [made(f"p{n}") for n in range(5)]
    there = a_cluster(*pods)
    assert snapshots.write(there) == snapshots.write(a_cluster(*reversed(pods)))


def test_pods_that_are_over_are_left_out() -> None:
    over = made("over") | {"status": {"phase": "Succeeded"}}
    assert [pod.metadata.name for pod in a_cluster(over, made("p")).pods or ()] == ["p"]


@pytest.mark.parametrize("text", [b"{}", b"nothing", b'{"schema": "wattherd.kube.snapshot/9"}'])
def test_what_is_no_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(UserError, match=r"snapshot|nothing known"):
        snapshots.read(text, "file")


# --- gangs of sets ------------------------------------------------------------------------------

LWS = "leaderworkerset.sigs.k8s.io"
PARTS = [{"name": "n", "replicas": 2, "template": {"spec": {"parallelism": 1, "completions": 1}}}]
OWNER = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "uid": "1", "controller": True}
OF_SETS: dict[str, tuple[GroupKind, Json, Json]] = {
    "JobSet": (
        GroupKind.JOBSET, {"replicatedJobs": PARTS},
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "ring"}},
    ),
    "PyTorchJob": (
        GroupKind.PYTORCH, {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 1}}},
        {"ownerReferences": [{**OWNER, "name": "ring"}]},
    ),
    "LeaderWorkerSet": (
        GroupKind.LWS, {"leaderWorkerTemplate": {"size": 2}},
        {"labels": {f"{LWS}/name": "ring", f"{LWS}/group-index": "0", f"{LWS}/group-key": "ring"}},
    ),
}  # fmt: skip


def of_a_set(kind: str, *pods: str, scheduler: str = "wattherd", **spec: Any) -> ClusterSnapshot:
    """These pods of a set of two, on a cluster that has room for them."""
    group, asked, about = OF_SETS[kind]
    members = [made(name, schedulerName=scheduler, **spec) for name in pods]
    for member in members:
        member["metadata"] |= about
    secret = {"kubectl.kubernetes.io/last-applied-configuration": "s3cret"}
    one = {
        "metadata": {"name": "ring", "namespace": "default", "annotations": secret},
        "spec": {**asked, "env": "s3cret"},
    }
    taken = snapshots.write(a_cluster(*members, sets=((group, one),)))
    assert b"s3cret" not in taken
    return snapshots.read(taken, "file")


@pytest.mark.parametrize("kind", OF_SETS)
def test_pods_of_a_set_wait_until_it_is_complete_as_on_the_cluster(kind: str) -> None:
    [told] = compare(of_a_set(kind, "r-0"), ["fgd"], Supposed())["policies"]
    assert [(one["pod"], one["reason"]) for one in told["waits"]] == [
        ("default/r-0", "WaitingForGang")
    ]
    assert told["waits"][0]["text"] == "1 of 2 pods of ring are there; create the others"
    document = explain(of_a_set(kind, "r-0"), "r-0")
    assert (document["reason"], document["text"]) == ("WaitingForGang", told["waits"][0]["text"])
    [both] = compare(of_a_set(kind, "r-0", "r-1"), ["fgd"], Supposed())["policies"]
    assert [one["pod"] for one in both["starts"]] == ["default/r-0", "default/r-1"]


def test_kube_scheduler_waits_for_no_set_unless_our_gate_holds_its_pods() -> None:
    stock = {"scheduler": "default-scheduler"}
    assert explain(of_a_set("JobSet", "r-0", **stock), "r-0")["reason"] == "NothingSeen"
    gates = [{"name": "wattherd.dev/power"}]
    gated = explain(of_a_set("JobSet", "r-0", schedulingGates=gates, **stock), "r-0")
    assert "beside that WaitingForGang: 1 of 2 pods of ring are there" in gated["text"]


# --- other policies and budgets -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("0.5x",), {"": 500, "a": 100}),
        (("a=0.5x", "40W"), {"": 40_000, "a": 100}),
        (("b=1kW",), {"": 1000, "a": 200, "b": 1_000_000}),
    ],
    ids=["all by half", "one by half and one anew", "one more"],
)
def test_budgets_are_changed_by_part_or_anew(
    changes: tuple[str, ...], says: dict[str, int]
) -> None:
    assert changed({"": 1000, "a": 200}, changes) == says


@pytest.mark.parametrize("text", ["c=0.5x", "-1x", "nox", "many"])
def test_a_budget_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        changed({"": 1000}, (text,))


def test_what_would_change_with_less_watts_is_told() -> None:
    pods = [bound(made(f"p{n}", at=n), f"n{n % 2}") for n in range(3)]
    there = a_cluster(*pods, made("q", at=9), budget_w=BASE_W + 4 * RISE_W)
    [as_it_is] = compare(there, ["fgd"], Supposed())["policies"]
    assert [one["pod"] for one in as_it_is["starts"]] == ["default/q"]
    assert as_it_is["gpus"] == {"total": 4, "in_use": 4}
    less = Supposed(budgets=(f"row-a={BASE_W + 3 * RISE_W}W",))
    [told] = compare(there, ["fgd"], less)["policies"]
    assert told["starts"] == []
    assert [(one["pod"], one["reason"]) for one in told["waits"]] == [
        ("default/q", "WaitingForPower")
    ]
    row = next(one for one in told["power"] if one["power_domain"] == "row-a")
    assert row == {
        "power_domain": "row-a",
        "bound_w": row["budget_w"],
        "budget_w": BASE_W + 3 * RISE_W,
    }


def test_quota_of_queues_counts_and_is_told() -> None:
    ours = {"labels": {"wattherd.dev/queue": "students"}}
    pods = [bound(made("p"), "n0"), made("q", at=9)]
    for pod in pods:
        pod["metadata"] |= ours
    small = {"metadata": {"name": "students"}, "spec": {"guaranteedPercent": 25}}
    small["spec"]["maximumPercent"] = 25
    there = a_cluster(*pods, queues=(small,))
    assert [queue.metadata.name for queue in there.queues or ()] == ["students"]
    document = explain(there, "q")
    assert document["reason"] == "QuotaExceeded"
    assert "queue 'students' may hold 1 GPU at most" in document["text"]
    more = made("more")
    more["metadata"] |= ours
    asked = simulate(there, [a_pod(more)], Supposed())
    assert (asked["reason"], asked["text"]) == ("QuotaExceeded", document["text"])
    assert simulate(there, [a_pod(made("other"))], Supposed())["feasible"]


def test_policies_differ_once_pods_are_placed_afresh() -> None:
    pods = [bound(made(f"p{n}", at=n), f"n{n}") for n in range(2)]
    there = a_cluster(*pods, made("large", exclusive(1_000, 2), at=9))
    [stuck] = compare(there, ["first-fit"], Supposed())["policies"]
    assert [one["reason"] for one in stuck["waits"]] == ["Fragmented"]
    [packed] = compare(there, ["first-fit"], Supposed(afresh=True))["policies"]
    assert {one["pod"]: one["node"] for one in packed["starts"]} == {
        "default/p0": "n0", "default/p1": "n0", "default/large": "n1",
    }  # fmt: skip


# --- why, and what would help -------------------------------------------------------------------


def explain(there: ClusterSnapshot, name: str) -> dict[str, Any]:
    return explained(there, found(there, "default", name), (), Supposed())


def remedy(document: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(one for one in document["would_start"] if one["kind"] == kind)


def test_who_lacks_watts_is_told_what_would_do_and_that_does() -> None:
    there = a_cluster(bound(made("p", priority=7), "n0"), made("q"), budget_w=BASE_W + RISE_W + 10)
    document = explain(there, "q")
    assert document["reason"] == "WaitingForPower"
    assert remedy(document, "budget")["raise_w"] == {"row-a": RISE_W - 10}
    assert remedy(document, "end")["pods"] == ["default/p"]
    assert remedy(document, "end")["text"] == "when default/p (priority 7) ends"
    enough = Supposed(budgets=(f"row-a={BASE_W + 2 * RISE_W}W",))
    assert (
        simulate(there, pods_of(json.dumps(made("x")).encode(), "-"), enough)["feasible"] is False
    )
    [row] = compare(there, ["fgd"], enough)["policies"]
    assert [one["pod"] for one in row["starts"]] == ["default/q"]


def test_the_least_important_pods_whose_end_would_do_are_named() -> None:
    pods = [bound(made(f"p{n}", at=n, priority=n), f"n{n % 2}") for n in range(4)]
    document = explain(a_cluster(*pods, made("large", exclusive(1_000, 2))), "large")
    assert document["reason"] == "WaitingForGpus"
    assert remedy(document, "end")["pods"] == ["default/p0", "default/p2"]


def test_a_smaller_pod_that_would_start_now_is_named() -> None:
    pods = [bound(made(f"p{n}"), f"n{n}") for n in range(2)]
    document = explain(a_cluster(*pods, made("large", exclusive(1_000, 2))), "large")
    assert document["reason"] == "Fragmented"
    assert remedy(document, "less")["text"] == "now, with 1 GPU"


def test_a_native_gang_of_another_scheduler_that_says_nothing_gets_a_reason() -> None:
    named = {"schedulingGroup": {"podGroupName": "ring"}, "schedulerName": "default-scheduler"}
    group = {
        "metadata": {"name": "ring", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    there = a_cluster(made("r-0", **named), made("r-1", **named), groups=(group,))
    document = explain(there, "r-0")
    assert (document["scheduler"], document["told"]) == ("default-scheduler", None)
    assert document["reason"] == "WaitingForGang"
    assert "2 of 3 pods of ring are there" in document["text"]
    assert document["gang"] == {
        "kind": "scheduling.k8s.io", "name": "ring", "pods": 2, "placed": 0,
    }  # fmt: skip


def test_a_gated_pod_is_told_who_holds_it_and_what_comes_after() -> None:
    gates = [{"name": "example.com/quota"}]
    free = explain(a_cluster(made("p", schedulingGates=gates)), "p")
    assert (free["reason"], free["gates"]) == ("SchedulingGated", ["example.com/quota"])
    assert "there are room and watts on n0" in free["text"]
    tight = explain(a_cluster(made("p", schedulingGates=gates), budget_w=BASE_W), "p")
    assert "beside that NeverFits" in tight["text"]  # idle nodes alone draw all of the budget


def test_a_pod_that_runs_tells_what_was_decided() -> None:
    written = {"wattherd.dev/watts": "60", "wattherd.dev/power-domain": "row-a"}
    document = explain(a_cluster(bound(made("p"), "n1", **written)), "p")
    assert (document["state"], document["node"]) == ("Placed", "n1")
    assert document["written"] == {"watts": "60", "power-domain": "row-a"}


def test_a_pod_that_is_not_there_is_not_guessed() -> None:
    with pytest.raises(UserError, match="no pod 'trian'") as refused:
        found(a_cluster(made("train")), "default", "trian")
    assert "train" in (refused.value.hint or "")


# --- pods that may come -------------------------------------------------------------------------

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: %d
  template:
    spec:
      schedulerName: wattherd
      containers:
      - name: main
        resources: {limits: {cpu: "1", memory: 1Gi, nvidia.com/gpu: "1"}}
"""


def test_a_job_that_fits_is_feasible_and_nothing_is_reserved() -> None:
    there = a_cluster(budget_w=BASE_W + 4 * RISE_W)
    trial = attempt(there, Supposed())
    trial.settle()
    for _ in range(2):
        answer = trial.scheduler.simulate(pods_of((JOB % 4).encode(), "-"))
        assert (answer["feasible"], answer["reserved"]) == (True, False)
        assert sum(one["watts"] for one in answer["pods"]) == 4 * RISE_W
        assert [one["pod"] for one in answer["pods"]] == [f"default/train-{n}" for n in range(4)]


def test_a_job_that_does_not_fit_is_told_why() -> None:
    answer = simulate(
        a_cluster(budget_w=BASE_W + 3 * RISE_W), pods_of((JOB % 4).encode(), "-"), Supposed()
    )
    assert (answer["feasible"], answer["reason"], answer["pods"]) == (False, "WaitingForPower", [])
    assert remedy(answer, "budget")["raise_w"] == {"row-a": RISE_W}
    assert remedy(answer, "less")["text"] == "now, with 3 of its 4 pods"


@pytest.mark.parametrize("text", [b"kind: Service", b"- 1", b"kind: Job", b"{", b"kind: List"])
def test_manifests_without_pods_are_refused(text: bytes) -> None:
    with pytest.raises(UserError):
        pods_of(text, "file")


# --- commands -----------------------------------------------------------------------------------


def test_sim_run_tells_what_would_change(tmp_path: Path) -> None:
    pods = [bound(made(f"p{n}"), f"n{n}") for n in range(2)]
    there = a_cluster(*pods, made("q"), budget_w=BASE_W + 3 * RISE_W)
    file = tmp_path / "cluster.json"
    file.write_bytes(snapshots.write(there))
    run = ["sim", "run", "--snapshot", str(file), "--policy", "fgd,first-fit"]
    done = CliRunner().invoke(cli, [*run, "-o", "json"], catch_exceptions=False)
    document = json.loads(done.stdout)
    assert document["schema"] == "wattherd.kube.what_if/1"
    assert [len(row["starts"]) for row in document["policies"]] == [1, 1]
    shown = CliRunner().invoke(cli, [*run, "--budget", "0.9x"], catch_exceptions=False).stdout
    assert "fgd: 0 start, 0 are evicted, 1 wait; 2 of 4 GPUs in use" in shown
    assert ". default/q: WaitingForPower: the pod adds" in shown


def test_kube_simulate_answers_for_a_snapshot(tmp_path: Path) -> None:
    file, job = tmp_path / "cluster.json", tmp_path / "job.yaml"
    file.write_bytes(snapshots.write(a_cluster()))
    job.write_text(JOB % 5)
    command = ["kube", "simulate", "-f", str(job), "--snapshot", str(file)]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.stdout.startswith("not feasible: WaitingForGpus: needs 1 GPU, 0 of 4 that it may")
    assert "would start now, with 4 of its 5 pods" in done.stdout
    job.write_text(JOB % 2)
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.stdout.endswith("feasible, not reserved\n")
