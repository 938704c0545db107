"""Watts of PowerDomain and PowerBudget objects, raced for while who hands them out is killed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import kube_ledger
import safe_copies
from control_plane import ControlPlane
from kube_api import KubeApi, a_pod
from kube_server import free_ports, wait_until
from power_api import path_of
from test_extender import SCHEDULER, a_scheduler, extender_process, wait_ready
from test_power_budgets import HALF_W, LONG_S, NAME, Bound, _kinds, fleet, sampled, tree, watts
from test_power_budgets import a_scheduler as a_copy

from promises import promise

__all__ = ["_kinds", "fleet"]
HALL, RACK = 20, 6
"""So many GPUs have watts in the hall, and in one of its two racks."""


def race(api: KubeApi, namespace: str, scheduler: str, bound: Bound) -> None:
    """200 pods are made; back when some of them are bound, seldom more than a few."""
    pods = [a_pod(f"p-{n}", gpus=1, scheduler=scheduler) for n in range(200)]
    api.create_all(f"/api/v1/namespaces/{namespace}/pods", pods)
    wait_until(bound.count, "the first pods are bound", every_s=0.005, within_s=LONG_S)


def wait_full(bound: Bound, count: int) -> None:
    wait_until(lambda: bound.count() == count, f"{count} run", within_s=LONG_S)


def wait_nothing_leaked(api: KubeApi, address: str) -> None:
    for rack in ("0", "1"):
        kube_ledger.wait_nothing_leaked(api, address, f"rack-{rack}", {"rack": rack})


def kept(seen: Sequence[dict[str, int]], hall: int) -> bool:
    return all(sum(one.values()) <= hall and one["rack-0"] <= RACK for one in seen)


def test_two_schedulers_keep_a_tree_of_objects_when_the_leader_is_killed(
    plane: ControlPlane, namespace: str, fleet: list[str]
) -> None:
    del fleet
    api, bound = plane.api, Bound(plane.api, namespace)
    lease = f"--lease={namespace}/{safe_copies.LEASE}"
    with ExitStack() as stack:
        stack.enter_context(tree(api, watts(HALL), watts(RACK, HALF_W)))
        seen = stack.enter_context(sampled(bound))
        health = [kube_ledger.an_address() for _ in range(2)]
        copies = [stack.enter_context(a_copy(plane, lease, f"--health={one}")) for one in health]
        race(api, namespace, NAME, bound)
        killed = safe_copies.leader(api, namespace, copies)
        killed.kill()
        wait_full(bound, HALL)
        promise(kept(seen, HALL), seen)
        api.merge(path_of("PowerBudget", "now"), {"spec": {"constant": watts(HALL + 2)}})
        wait_full(bound, HALL + 2)
        wait_nothing_leaked(api, health[1 - copies.index(killed)])
    assert len(seen) > 1
    promise(kept(seen, HALL + 2), seen)


def go_on(api: KubeApi, namespace: str, bound: Bound, health: str) -> None:
    """Until all runs that fits, also once pods have ended, and nothing leaked."""
    wait_full(bound, HALL)
    for name in sorted(safe_copies.written(api, namespace))[:5]:
        api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds=0)
    wait_full(bound, HALL)
    wait_nothing_leaked(api, health)


def test_a_scheduler_that_is_killed_in_a_race_keeps_a_tree_of_objects(
    plane: ControlPlane, namespace: str, fleet: list[str]
) -> None:
    """It is started again, and leads once its lease has stood still. Pods that end make room."""
    del fleet
    api, bound = plane.api, Bound(plane.api, namespace)
    lease, health = f"--lease={namespace}/{safe_copies.LEASE}", kube_ledger.an_address()
    with ExitStack() as stack:
        stack.enter_context(tree(api, watts(HALL), watts(RACK, HALF_W)))
        seen = stack.enter_context(sampled(bound))
        with a_copy(plane, lease) as first:
            race(api, namespace, NAME, bound)
            first.kill()
        stack.enter_context(a_copy(plane, lease, f"--health={health}"))
        go_on(api, namespace, bound, health)
    assert len(seen) > 1
    promise(kept(seen, HALL), seen)


def test_an_extender_that_is_killed_in_a_race_keeps_a_tree_of_objects(
    plane: ControlPlane, namespace: str, fleet: list[str]
) -> None:
    """What it had promised is lost with it; what is bound is not. Pods that end make room."""
    del fleet
    api, bound = plane.api, Bound(plane.api, namespace)
    port = free_ports(1)[0]
    with ExitStack() as stack:
        stack.enter_context(tree(api, watts(HALL), watts(RACK, HALF_W)))
        seen = stack.enter_context(sampled(bound))
        with extender_process(plane, f"--port={port}") as first:
            stack.enter_context(a_scheduler(plane, wait_ready(first), namespace))
            race(api, namespace, SCHEDULER, bound)
            first.kill()
        health = kube_ledger.an_address()
        again = extender_process(plane, f"--port={port}", f"--health={health}")
        wait_ready(stack.enter_context(again))
        go_on(api, namespace, bound, health)
    assert len(seen) > 1
    promise(kept(seen, HALL), seen)
