"""Pods that draw what nobody granted them: they count in full, and go before all others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube_builders import a_node, a_pod, an_extender, bound, fleet_of, node_json, pod_json
from test_kube_kueue import World

from wattherd.kube.account.binding_mode import BindingMode, ByBinding
from wattherd.kube.account.domains import columns_of
from wattherd.kube.account.gates import ByGate
from wattherd.kube.account.watt_claims import SETTLE_S, ByClaim, ClaimCover
from wattherd.kube.account.watt_devices import drawn_mw, loads_of
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.decide.extender import Extender
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.claim_objects import ResourceClaim
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.orders import EvictPod
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

Json = dict[str, Any]
IDLE_MW, RISE_MW = 10_000, 60_000
"""Of a T4."""
GRANTED = {"wattherd.dev/decision": "d/1", "wattherd.dev/planned-node": "n"}


def on_a_node(name: str, *, priority: int = 0, gpus: int = 1, **notes: str) -> Json:
    made = pod_json(name, exclusive(1_000, gpus), schedulerName="wattherd", priority=priority)
    made["metadata"]["labels"] = {"wattherd.dev/admission": "gate"}
    made["metadata"]["creationTimestamp"] = f"2026-11-2{9 - priority % 9}T00:00:00Z"
    return bound(made, "n", **notes)


def stopped(decider: KubeScheduler | Extender, *pods: Json) -> list[str]:
    """Whom a budget for one GPU less than are in use has evicted."""
    decider.node_seen(a_node(node_json(a_machine("n", gpus=8, model="T4"))))
    used = 0
    for made in pods:
        decider.pod_seen(a_pod(made), 0.0)
        used += int(made["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"])
    decider.power_seen(DomainTree(), {"": 8 * IDLE_MW + (used - 1) * RISE_MW})
    if isinstance(decider, Extender):
        orders = decider.curb_orders(100.0)
    else:
        orders = [*decider.plan(100.0), *decider.plan(101.0)]
    return [order.uid for order in orders if isinstance(order, EvictPod)]


@pytest.mark.parametrize("way", [lambda: ByBinding("wattherd"), ByGate])
def test_who_was_never_granted_its_watts_goes_before_who_was(way: Any) -> None:
    """Though it is the most important, and though of the others one is the newest."""
    made: BindingMode = way()
    decider = KubeScheduler(fleet_of("first-fit"), {}, holder="test", way=made)
    pods = [
        on_a_node("honest-0", **GRANTED),
        on_a_node("taker", priority=9),
        on_a_node("honest-1", **GRANTED),
    ]
    assert stopped(decider, *pods) == ["uid-taker"]


def test_behind_the_extender_who_lost_its_decision_goes_first() -> None:
    decider = an_extender("first-fit")
    pods = [
        on_a_node("honest-0", **GRANTED),
        on_a_node("taker", priority=9),
        on_a_node("honest-1", **GRANTED),
    ]
    assert stopped(decider, *pods) == ["uid-taker"]


def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    other = on_a_node("other")
    other["spec"]["schedulerName"] = "default-scheduler"
    decider = KubeScheduler(fleet_of("first-fit"), {}, holder="test")
    assert stopped(decider, other, on_a_node("honest", priority=9, **GRANTED)) == ["uid-honest"]


def a_claim(pod: str, watts: int, *, levels: int = 2, kind: str = "Pod") -> ResourceClaim:
    owner = {"apiVersion": "v1", "kind": kind, "name": pod, "uid": f"uid-{pod}", "controller": True}
    results = [
        {"request": f"level-{at}", "driver": "watts.wattherd.dev", "pool": f"level-{at}",
         "device": "d", "consumedCapacity": {"watts": str(watts)}}
        for at in range(levels)
    ]  # fmt: skip
    meta = {"name": f"{pod}-watts", "uid": f"claim-{pod}", "ownerReferences": [owner]}
    status = {"allocation": {"devices": {"results": results}}}
    return decoder(ResourceClaim).decode(json.dumps({"metadata": meta, "status": status}).encode())


@pytest.mark.parametrize(
    ("claimed_w", "carried_mw"), [(240, 0), (0, 4 * RISE_MW), (60, 3 * RISE_MW), (1000, 0)]
)
def test_what_a_pod_draws_beyond_its_claim_is_offered_to_nobody(
    claimed_w: int, carried_mw: int
) -> None:
    scheduler = KubeScheduler(fleet_of("first-fit"), {}, way=ByClaim())
    scheduler.node_seen(a_node(node_json(a_machine("n", gpus=8, model="T4"))))
    claim = [{"name": "wattherd-watts", "resourceClaimTemplateName": "wattherd-4-gpus-any"}]
    taker = pod_json("taker", exclusive(1_000, 4), resourceClaims=claim)
    scheduler.pod_seen(a_pod(bound(taker, "n")), 0.0)
    scheduler.plan(0.0)
    fleet, cover = scheduler.fleet, ClaimCover()
    columns = columns_of(fleet.order)
    cover.claim_seen(a_claim("taker", claimed_w))
    for at_s in (0.0, SETTLE_S):
        cover.look(drawn_mw(fleet, columns, ["uid-taker"]), at_s)
    loads = loads_of(fleet, columns, {"uid-taker"}.__contains__, cover.beyond_mw)
    assert loads[""].unclaimable_mw == 8 * IDLE_MW + carried_mw
    cover.claim_gone("claim-taker")
    cover.look({"uid-taker": 4 * RISE_MW}, 10.0)
    cover.look({"uid-taker": 4 * RISE_MW}, 10.0 + SETTLE_S)
    assert cover.beyond_mw == {"uid-taker": 4 * RISE_MW}


def test_a_claim_of_something_else_covers_nobody() -> None:
    cover = ClaimCover()
    cover.claim_seen(a_claim("taker", 1000, kind="Job"))
    cover.look({"uid-taker": 1}, 0.0)
    assert not cover.beyond_mw, "news of both may be on their way"
    cover.look({"uid-taker": 1}, SETTLE_S)
    assert cover.beyond_mw == {"uid-taker": 1}


def test_a_pod_that_claims_by_a_name_of_its_own_is_ours_to_stop() -> None:
    claim = [{"name": "wattherd-watts", "resourceClaimName": "mine"}]
    assert ByClaim().is_ours(a_pod(pod_json("p", exclusive(1, 1), resourceClaims=claim)))


def drawn_at_kueue(world: World) -> int:
    """GPUs in use, by the account."""
    state = world.check.scheduler.fleet.placer
    assert state is not None
    free = state.state.world.nodes.gpu_free
    return int((free == 0).sum())


def a_world() -> World:
    world = World()
    for _ in range(4):
        world.add_node("rack")
    world.submit("job", main=2)
    world.settle()
    return world


def test_pods_that_say_they_are_of_anothers_workload_count_as_themselves() -> None:
    world = a_world()
    assert drawn_at_kueue(world) == 2
    for number in range(3):
        made = bound(pod_json(f"taker-{number}", exclusive(1_000, 1)), "n3" if number else "n2",
                     **{"wattherd.dev/workload": "uid-job"})  # fmt: skip
        made["metadata"]["namespace"] = "others"
        world.check.pod_seen(a_pod(made), world.now_s)
    assert drawn_at_kueue(world) == 5


def test_of_a_workload_no_more_pods_are_covered_than_were_admitted() -> None:
    world = a_world()
    for number, node in enumerate(("n0", "n0", "n1")):
        world.run("job", f"pod-{number}", node)
    assert drawn_at_kueue(world) == 3
    over = world.pods["uid-pod-0"] | {"status": {"phase": "Failed"}}
    world.check.pod_seen(a_pod(over), world.now_s)
    assert drawn_at_kueue(world) == 2, "whoever failed draws no more, and another takes its place"
    world.end("pod-0")
    world.end("pod-1")
    assert drawn_at_kueue(world) == 2


def test_a_pod_with_more_gpus_than_were_admitted_counts_as_itself() -> None:
    world = a_world()
    made = bound(pod_json("large", exclusive(1_000, 2)), "n3",
                 **{"wattherd.dev/workload": "uid-job"})  # fmt: skip
    world.check.pod_seen(a_pod(made), world.now_s)
    assert drawn_at_kueue(world) == 4
