"""The one reason why a pod waits, with numbers, and what would unblock it."""

from __future__ import annotations

from typing import Any

import pytest
from kube_builders import a_node
from test_kube_scheduler import IDLE_MW, RISE_MW, WHOLE, World

from wattherd.kube.decide.reasons import finding_of
from wattherd.model.job import Request
from wattherd.model.reason import Reason, ReasonCode
from wattherd.testing.builders import G2_CPU_MILLI, exclusive, sharing

ROW = {"wattherd.dev/power-domain": "row-a"}
BASE_W = 8 * IDLE_MW // 1000
RISE_W = RISE_MW // 1000


def a_world(budgets_w: dict[str, int] | None = None, **labels: str) -> World:
    """Four nodes of two T4 each."""
    budgets_mw = {name: watts * 1000 for name, watts in (budgets_w or {}).items()}
    made = World("first-fit", budgets_mw)
    made.add_nodes(4, **labels)
    return made


def fill(world: World, *requests: Request) -> None:
    for number, request in enumerate(requests):
        world.create(f"there-{number}", request)
        world.settle()


def test_a_pod_that_lacks_watts_says_how_many_and_where() -> None:
    world = a_world({"row-a": BASE_W + 2 * RISE_W + 20}, **ROW)
    fill(world, WHOLE, WHOLE)
    world.create("p")
    world.settle()
    budget = BASE_W + 2 * RISE_W + 20
    assert world.why("p") == (
        f"WaitingForPower: the pod adds {RISE_W} W, power domain row-a has 20 W left of "
        f"{budget} W; raise the budget of power domain row-a by {RISE_W - 20} W, or free "
        f"{RISE_W - 20} W there"
    )


def test_a_pod_that_no_budget_lets_run_is_told_so_with_numbers() -> None:
    world = a_world({"row-a": BASE_W + 20}, **ROW)
    world.create("p")
    world.create("share", sharing(1_000, 500))
    world.settle()
    assert world.why("p") == (
        f"NeverFits: the pod adds {RISE_W} W, power domain row-a may draw {BASE_W + 20} W and draws"
        f" {BASE_W} W with idle nodes; raise the budget of power domain row-a by {RISE_W - 20} W,"
        " or ask for less"
    )
    assert world.why("share").startswith("WaitingForPower")  # it may join others
    world.add_nodes(1)  # one that no budget is above
    world.settle()
    assert "p" in world.places


def test_watts_that_others_have_now_are_waited_for() -> None:
    world = a_world({"row-a": BASE_W + RISE_W}, **ROW)
    fill(world, WHOLE)
    world.create("p")
    world.settle()
    assert world.why("p").startswith("WaitingForPower")


def test_what_is_said_to_be_enough_is_enough() -> None:
    world = a_world({"row-a": BASE_W + 20}, **ROW)
    world.create("p")
    world.settle()
    for short_w in (RISE_W - 21, RISE_W - 20):
        for order in world.scheduler.budget("row-a", (BASE_W + 20 + short_w) * 1000, world.now_s):
            world._obey(order)
        world.settle()
        assert bool(world.places) == (short_w == RISE_W - 20)


def test_where_domain_and_site_lack_watts_both_are_named() -> None:
    world = a_world({"row-a": BASE_W, "": BASE_W + 10}, **ROW)
    world.create("p")
    world.settle()
    assert f"row-a by {RISE_W} W" in world.why("p")
    assert f"the budget of the site by {RISE_W - 10} W" in world.why("p")


def test_a_gang_that_lacks_watts_counts_all_that_must_start() -> None:
    world = a_world({"row-a": BASE_W + RISE_W}, **ROW)
    world.gang("g", 3)
    world.settle()
    assert "1 of 3 pods of its gang find a place, the next: the pod adds" in world.why("g-0")
    assert f"raise the budget of power domain row-a by {2 * RISE_W} W" in world.why("g-0")


def test_gpus_that_are_free_in_pieces_are_told_apart_from_gpus_that_are_not() -> None:
    world = a_world()
    fill(world, exclusive(1_000, 2), exclusive(1_000, 2))
    for name in ("a", "b"):
        world.create(name, nodeSelector={"zone": name})
    for node, made in enumerate(list(world.nodes.values())[2:]):
        made["metadata"]["labels"]["zone"] = "ab"[node]
        world.scheduler.node_seen(a_node(made))
    world.settle()
    world.create("p", exclusive(1_000, 2))
    world.settle()
    assert world.why("p") == (
        "Fragmented: needs 2 GPUs on one node; 2 of 8 are free, but on 2 nodes, at most 1 on one "
        "(n2); wait until 1 more GPU on n2 is free, or ask for 1 GPU a pod"
    )
    world.create("q")
    world.settle()
    assert world.why("p") == (
        "WaitingForGpus: needs 2 GPUs, 1 of 8 that it may use is free; wait until 1 more GPU on "
        "n3 is free, or add a node"
    )


def test_shares_that_are_free_in_pieces_are_told_apart_as_well() -> None:
    world = a_world()
    fill(world, *[sharing(100, 600)] * 8)
    world.create("p", sharing(100, 700))
    world.settle()
    assert world.why("p") == (
        "Fragmented: needs 700/1000 of a GPU; 3.2 GPUs in all are free, but in pieces, the largest "
        "400/1000 (n0); wait until 300/1000 more of one GPU on n0 is free, or ask for 400/1000"
    )


CASES: dict[str, tuple[Request, dict[str, Any], str]] = {
    "too large for any node": (
        exclusive(1_000, 3), {},
        "NeverFits: asks for 3 GPUs on one node, the largest of 4 nodes that it may use has 2",
    ),
    "no such label": (
        WHOLE, {"nodeSelector": {"zone": "a"}},
        ("NodeSelectorMismatch: none of 4 nodes may take the pod: 4 nodes: NodeSelectorMismatch: "
        "label zone is not a; change the pod's node selector, or label a node"),
    ),
    "a model that is not there": (
        exclusive(1_000, 1, "A100-80GB"), {},
        ("GpuModelMismatch: asks for A100-80GB, there is T4; ask for a model that is there, or add "
        "a node"),
    ),
    "more processors than any has": (
        exclusive(10_000_000, 1), {}, "NeverFits: asks for 10000 CPUs on one node",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_lasts_comes_before_what_passes(case: str) -> None:
    request, spec, said = CASES[case]
    world = a_world({"": 1})
    world.create("p", request, **spec)
    world.settle()
    assert world.why("p").startswith(said)


def test_gpus_that_lie_idle_for_want_of_processors_say_so() -> None:
    world = a_world()
    fill(world, *[exclusive(G2_CPU_MILLI - 500, 0)] * 4)
    world.create("p")
    world.settle()
    assert world.why("p") == (
        "ResourceShort: needs 1 CPU on one node; on 4 nodes with enough free GPUs at most 0.5 CPUs "
        "free (n0); wait until 0.5 CPUs more free on n0, or ask for less"
    )


def test_a_gang_that_is_too_large_for_the_cluster_is_not_told_to_wait() -> None:
    world = a_world()
    world.gang("g", 9)
    world.settle()
    assert world.why("g-0") == (
        "NeverFits: 9 such pods, and room for 8 if all were free; ask for less, or add nodes"
    )


def test_the_reason_follows_what_happens() -> None:
    world = a_world({"row-a": BASE_W + 8 * RISE_W}, **ROW)
    fill(world, *[exclusive(1_000, 2)] * 4)
    world.create("p")
    world.settle()
    assert world.why("p").startswith("WaitingForGpus")
    world.add_nodes(1, **ROW)
    world.settle()
    assert world.why("p").startswith("WaitingForPower")
    world.delete("there-0")
    world.settle()
    assert "p" in world.places


def test_what_the_core_refuses_comes_with_what_would_help() -> None:
    reason = Reason(
        code=ReasonCode.QUOTA_EXCEEDED,
        since_s=0.0,
        asked=2,
        in_use=3,
        available=1,
        unit="GPUs",
        unblocks="queue research may hold 4",
    )
    assert finding_of(reason).line() == (
        "QuotaExceeded: asked 2 GPUs, in use 3 GPUs, available 1 GPU (queue research may hold 4); "
        "or wait until pods of its queue end"
    )
