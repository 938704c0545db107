"""Whose job is suspended for a stop, who is told before, and who is just evicted."""

from __future__ import annotations

from typing import Any

import pytest
from kube_builders import Json, a_pod, pod_json

from wattherd.kube.account.enforcement_tally import stops_of
from wattherd.kube.api import names
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.orders import EvictPod
from wattherd.model.job import Request
from wattherd.model.reason import StopReason

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-1", "controller": True}
RECLAIMED = str(StopReason.RECLAIMED)


def pod(
    name: str, *, on: str = "n0", owner: Json | None = JOB, labels: Any = None, notice: str = ""
) -> Pod:
    made = pod_json(name, Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    made["metadata"] |= {"labels": labels or {}, "annotations": {}}
    if notice:
        made["metadata"]["annotations"][names.CHECKPOINT_NOTICE] = notice
    if owner:
        made["metadata"]["ownerReferences"] = [owner]
    if on:
        made["spec"]["nodeName"] = on
    return a_pod(made)


def known(*pods: Pod) -> dict[str, Pod]:
    return {one.metadata.uid: one for one in pods}


def evicted(*pods: Pod, why: str = RECLAIMED) -> list[EvictPod]:
    return [EvictPod(one.metadata.uid, f"default/{one.metadata.name}", why, 30.0) for one in pods]


def test_a_job_of_which_no_pod_stays_is_suspended_once() -> None:
    two = pod("a"), pod("b")
    waits = pod("c", on="")
    (stop,) = stops_of(evicted(*two), known(*two, waits))
    assert (len(stop.evictions), stop.owner and stop.owner.uid, stop.notice_s) == (2, "job-1", 0.0)


def test_of_a_job_that_keeps_a_pod_the_others_are_evicted() -> None:
    one, stays = pod("a"), pod("b")
    (stop,) = stops_of(evicted(one), known(one, stays))
    assert stop.owner is None


def test_a_pod_that_is_being_deleted_stays_not() -> None:
    one = pod("a")
    made = pod_json("b", Request(cpu_milli=1000, gpu_count=1, gpu_milli=1000))
    made["metadata"] |= {"ownerReferences": [JOB], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    made["spec"]["nodeName"] = "n0"
    (stop,) = stops_of(evicted(one), known(one, a_pod(made)))
    assert stop.owner is not None


def test_pods_of_one_set_go_together_whoever_made_them() -> None:
    label = {"jobset.sigs.k8s.io/jobset-name": "s"}
    pods = [pod(name, owner={**JOB, "uid": f"job-{name}"}, labels=label) for name in "ab"]
    (stop,) = stops_of(evicted(*pods), known(*pods))
    assert stop.owner is not None
    (partly,) = stops_of(evicted(pods[0]), known(*pods))
    assert partly.owner is None


@pytest.mark.parametrize("labels", [{"kueue.x-k8s.io/podset": "main"}])
def test_what_kueue_admitted_is_its_own_to_suspend(labels: dict[str, str]) -> None:
    one = pod("a", labels=labels)
    (stop,) = stops_of(evicted(one), known(one))
    assert stop.owner is None


def test_a_bare_pod_is_evicted() -> None:
    bare = pod("a", owner=None)
    assert [one.owner for one in stops_of(evicted(bare), known(bare))] == [None]


def test_a_gang_that_could_not_start_is_suspended_and_no_pod_of_it_fails() -> None:
    bound, waits = pod("a"), pod("b", on="")
    (stop,) = stops_of(
        evicted(bound, why="pod t/b of its gang could not be bound"), known(bound, waits)
    )
    assert stop.owner is not None


def test_pods_that_were_told_to_go_before_do_not_stay() -> None:
    """The bindings of a gang are seen one after another."""
    before, now = pod("a"), pod("b")
    (stop,) = stops_of(evicted(now), known(before, now), {before.metadata.uid})
    assert stop.owner is not None


def test_who_is_suspended_in_vain_is_evicted() -> None:
    one = pod("a")
    why = f"{StopReason.BUDGET_CUT}: its domain hall may draw 400 W"
    (stop,) = stops_of(evicted(one, why=why), known(one))
    assert stop.owner is None


@pytest.mark.parametrize(
    ("written", "why", "notice_s"),
    [
        ("2min", RECLAIMED, 120.0),
        ("9h", RECLAIMED, 300.0),
        ("soon", RECLAIMED, 0.0),
        ("-5s", RECLAIMED, 0.0),
        ("2min", str(StopReason.BUDGET_CUT), 0.0),
    ],
)
def test_a_notice_is_as_long_as_asked_within_bounds(
    written: str, why: str, notice_s: float
) -> None:
    one = pod("a", notice=written)
    (stop,) = stops_of(evicted(one, why=why), known(one))
    assert stop.notice_s == notice_s


def test_the_longest_notice_of_a_gang_counts_for_all() -> None:
    short, long = (
        pod("a", notice="1s"),
        pod("b", notice="9s"),
    )
    (stop,) = stops_of(evicted(short, long), known(short, long))
    assert stop.notice_s == 9.0
