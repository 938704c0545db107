"""Every placement policy on hand-made nodes: scores worked out by hand, and a plain restatement.

Each score is asked for twice, of the NumPy definition and of the compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.placement.state import ClusterState
from wattherd.estimate.node_power import power_columns
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.policy.place.dispatch import score_node
from wattherd.policy.place.registry import parse_policy
from wattherd.testing.builders import (
    a_cluster,
    a_node,
    a_placer,
    a_state,
    a_target,
    cpu_only,
    exclusive,
    sharing,
    spellings,
)
from wattherd.testing.oracle import SCORES, ScoreQuestion, decide, weighed
from wattherd.testing.plain_cluster import PlainNode, plain_nodes, tasks
from wattherd.workload.openb import read_pods

G2 = a_node()
T4 = a_node("t4", cpu_milli=104_000, gpus=2, model="T4")
FOUR = a_node("four", gpus=4)
SMALL = a_node("small", cpu_milli=32_000, gpus=2, model="T4")
WHOLE = exclusive(1_000, 1)


def a_used_state(
    node: NodeSpec,
    free: Sequence[int] | None = None,
    *,
    cpu: int | None = None,
    history: Sequence[Request] = (),
) -> ClusterState:
    """One node with these GPU milli and CPU milli free; whole GPUs went to exclusive pods."""
    state = a_state(a_cluster(node), history)
    for gpu, milli in enumerate(free or ()):
        if milli < 1000:
            taken = exclusive(0, 1) if milli == 0 else sharing(0, 1000 - milli)
            state.place(Allocation(taken, 0, (gpu,)))
    if cpu is not None:
        state.place(Allocation(cpu_only(node.cpu_milli - cpu), 0))
    return state


def score(policy: str, state: ClusterState, request: Request, node: int = 0) -> tuple[int, int]:
    """Raw score and GPU (-1 for none), by the definition and by the kernel alike."""
    part = parse_policy(policy).parts[0]
    shape = state.intern(request)
    keys, gpus = part.scorer.rows(state.world, shape, np.array([node]), part.options)
    defined = int(keys[0]), int(gpus[0])
    if part.scorer.kernel_id is not None:
        compiled = score_node(part.scorer.kernel_id, state.world, shape, node, part.options)
        assert (int(compiled[0]), int(compiled[1])) == defined
    return defined


# --- by hand: policy, node, free GPU milli, free CPU milli, request, score, GPU ---------------

NONE = -1
BY_HAND: dict[str, tuple[str, NodeSpec, Sequence[int], int | None, Request, int, int]] = {
    # 0.5 * 92848/128000 + 0.5 * 7190/8000 = 0.812 left
    "best-fit, share": ("best-fit", G2, [], None, sharing(3_152, 810), 18, 0),
    "best-fit, whole node": ("best-fit", G2, [], None, exclusive(96_000, 8), 100, NONE),
    "best-fit, least room": ("best-fit", FOUR, [400, 900, 310, 310], None, sharing(0, 305), 52, 2),
    # (0.75 * 3152/128000 + 1 * 810/8000) / 2 = 0.0599
    "dot-product, share": ("dot-product", G2, [], None, sharing(3_152, 810), 94, 0),
    "dot-product, whole node": ("dot-product", G2, [], None, exclusive(96_000, 8), 21, NONE),
    "dot-product, CPU-only": ("dot-product", G2, [], None, cpu_only(64_000), 81, NONE),
    "clustering, no pods, full size": ("gpu-clustering", G2, [], None, WHOLE, 25, NONE),
    "clustering, no pods, small": ("gpu-clustering", T4, [], None, WHOLE, 25 + 18, NONE),
    "clustering, own kind": ("gpu-clustering", G2, [190], None, sharing(0, 100), 75 + 2, 0),
    "clustering, other kind": ("gpu-clustering", G2, [190], None, WHOLE, 2, NONE),
    "clustering, both kinds": ("gpu-clustering", G2, [190, 0], None, WHOLE, 50 + 5, NONE),
    "clustering, CPU-only": ("gpu-clustering", G2, [190], None, cpu_only(1), 0, NONE),
    "clustering, CPU pods are no kind": ("gpu-clustering", G2, [], 1_000, WHOLE, 25, NONE),
    "packing, free node of 4": ("gpu-packing", FOUR, [], None, exclusive(1, 2), 29, NONE),
    "packing, free node of 8": ("gpu-packing", G2, [], None, exclusive(1, 2), 25, NONE),
    "packing, free GPUs of a used node": (
        "gpu-packing", FOUR, [200, 1000, 1000, 500], None, exclusive(1, 2), 48, NONE),
    "packing, a share of a used GPU": (
        "gpu-packing", FOUR, [200, 1000, 1000, 500], None, sharing(1, 300), 95, 3),
    "packing, the least room": (
        "gpu-packing", FOUR, [200, 1000, 1000, 500], None, sharing(1, 200), 98, 0),
    "packing, part of a percent": ("gpu-packing", FOUR, [999, 0, 0, 0], None, sharing(1, 9), 91, 0),
    "packing, a share of a free GPU": (
        "gpu-packing", FOUR, [200, 1000, 1000, 500], None, sharing(1, 600), 49, 1),
    "packing, CPU-only": ("gpu-packing", FOUR, [200], None, cpu_only(1), 0, NONE),
    "first-fit": ("first-fit", FOUR, [900, 300], None, sharing(1, 200), 0, 1),
    # Four packages of 16 cores in a T4 node: +105 W for the first core, +60 W for a GPU.
    "pwr, the first share": ("pwr", T4, [], None, sharing(2_000, 500), -165, 0),
    "pwr, a GPU at work is free": ("pwr", T4, [1000, 600], 100_000, sharing(2_000, 500), 0, 1),
    "pwr, one at work without room": ("pwr", T4, [1000, 400], 100_000, sharing(0, 500), -60, 0),
    "pwr, the lowest at work": ("pwr", FOUR, [1000, 500, 500, 200], None, sharing(0, 100), 0, 1),
    "pwr, whole GPUs": ("pwr", T4, [], 100_000, exclusive(1_000, 2), -120, NONE),
    "pwr, the next package": ("pwr", T4, [], 72_000, cpu_only(1), -105, NONE),
    "pwr, an odd half core": ("pwr", T4, [], 71_999, cpu_only(1), 0, NONE),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_scores_worked_out_by_hand(case: str) -> None:
    policy, node, free, cpu, request, expected, gpu = BY_HAND[case]
    free = [*free, *[1000] * (node.gpu_count - len(free))]
    assert score(policy, a_used_state(node, free, cpu=cpu), request) == (expected, gpu)


def test_pwr_truncates_whole_watts() -> None:
    """70.9 W less 10.4 W more is 60.5 W, scored as -60."""
    odd = GpuModel(name="T4", idle_w=10.4, max_w=70.9, memory_mib=1, source="made up")
    cluster = a_cluster(a_node(cpu_milli=0, gpus=2, model="T4"))
    power = power_columns(cluster, {"T4": odd})
    state = ClusterState(cluster, a_target((), cluster), power)
    assert score("pwr", state, sharing(0, 1)) == (-60, 0)
    assert score("pwr", state, exclusive(0, 1)) == (-60, NONE)
    assert score("pwr", state, exclusive(0, 2)) == (-121, NONE)
    assert state.gpu_power_w == 20.8


# One task wants a whole GPU and a vCPU.
FGD_BY_HAND: dict[str, tuple[Sequence[int], Request, int, int]] = {
    "nothing changes": ([1000, 1000], WHOLE, 50, NONE),
    "half a GPU is wasted: gain -500": ([1000, 1000], sharing(0, 500), 37, 0),
    "the wasted half is used up: gain 500": ([1000, 500], sharing(0, 500), 62, 1),
    "part of a waste: gain 200": ([300, 500], sharing(0, 200), 54, 0),
    "the first of equal GPUs": ([500, 500], sharing(0, 250), 56, 0),
    "a CPU-only pod strands both: gain -2000": ([1000, 1000], cpu_only(7_500), 11, NONE),
    "a CPU-only pod where nothing is left": ([0, 0], cpu_only(7_500), 50, NONE),
}


@pytest.mark.parametrize("case", FGD_BY_HAND)
def test_fgd_worked_out_by_hand(case: str) -> None:
    free, request, expected, gpu = FGD_BY_HAND[case]
    node = a_node(cpu_milli=8_000, gpus=2)
    assert score("fgd", a_used_state(node, free, history=[WHOLE]), request) == (expected, gpu)


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("fgd@scale=1000", 622),
        ("fgd@scale=20", 12),
        ("fgd@exact", 500_000_000),
        ("fgd@quantum=0.1", 5_000),
        ("fgd@quantum=400", 1),
        ("fgd@quantum=200", 2),  # half to even
    ],
)
def test_fgd_options_set_the_step(policy: str, key: int) -> None:
    """A gain of 500 on the second GPU, and a loss of 500 on the first."""
    state = a_used_state(a_node(cpu_milli=8_000, gpus=2), [1000, 500], history=[WHOLE])
    assert score(policy, state, sharing(0, 500)) == (key, 1)


def test_a_coarse_step_makes_the_gpus_equal() -> None:
    state = a_used_state(a_node(cpu_milli=8_000, gpus=2), [1000, 500], history=[WHOLE])
    assert score("fgd@quantum=1000", state, sharing(0, 500)) == (0, 0)


def test_fgd_keeps_the_first_gpu_with_the_best_integer_score() -> None:
    """Real gains of 1 and 2 milli both score 50: the first GPU wins; exactly scored, the second."""
    state = a_used_state(a_node(gpus=2), [4, 2], history=[WHOLE])
    assert score("fgd", state, sharing(0, 1)) == (50, 0)
    history = [WHOLE, sharing(0, 3)]  # on GPU 1 the 2 milli are waste for both tasks
    state = a_used_state(a_node(gpus=2), [4, 2], history=history)
    assert score("fgd", state, sharing(0, 1)) == (50, 0)
    assert score("fgd@exact", state, sharing(0, 1)) == (1_000_000, 1)


def test_expected_power_counts_what_may_come_next() -> None:
    """35 W idle; 200 W with the pod; then a share adds nothing and a whole GPU 60 W: 230 W."""
    history = [sharing(2_000, 500), exclusive(2_000, 1)]
    assert score("pwrexp", a_used_state(SMALL, history=history), sharing(2_000, 500)) == (-195, 0)


def test_expected_power_leaves_out_what_no_longer_fits() -> None:
    """After the pod only 400 milli are left on the only GPU: neither task fits, P stays 140 W."""
    node = a_node(cpu_milli=32_000, gpus=1, model="T4")
    history = [sharing(2_000, 500), exclusive(2_000, 1)]
    assert score("pwrexp", a_used_state(node, history=history), sharing(2_000, 600)) == (
        -(120 + 70 - 15 - 10),
        0,
    )


def test_expected_power_chooses_the_gpu_that_keeps_room() -> None:
    """Both GPUs work. The 300 milli GPU keeps 900 for the task; the other way it would not fit."""
    history = [sharing(0, 800)]
    state = a_used_state(SMALL, [900, 300], cpu=31_000, history=history)
    assert score("pwrexp", state, sharing(0, 200)) == (0, 0)


# --- worked examples of the published target --------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("request_", "expected"),
    [(sharing(3_152, 810), 48), (exclusive(11_400, 1), 53), (cpu_only(32_000), 50)],
)
def test_fgd_on_an_empty_g2_of_the_default_trace(
    openb: Path, request_: Request, expected: int
) -> None:
    pods = read_pods(openb / "openb_pod_list_default.csv", known=GPUS)
    state = a_used_state(G2, history=[pod.request for pod in pods])
    assert score("fgd", state, request_)[0] == expected


# --- dot product: three pairings, three units -------------------------------------------------

# G2 with 64 of 96 vCPU and GPUs of 200, 600, 0 and four whole ones free; 0.5 and 0.6 = milli
PARTLY = (FOUR, [200, 600, 1000, 1000], 64_000)
DOT: dict[str, tuple[Request, float, int]] = {
    # mean product and GPU: CPU entry first, then the GPU entry or entries
    "merge": (sharing(6_400, 160), (0.5 * 0.05 + 2800 / 8000 * 0.02) / 2, 0),
    "share": (sharing(6_400, 160), (0.5 * 0.05 + 200 / 8000 * 0.02) / 2, 0),
    "share, the next one": (sharing(6_400, 240), (0.5 * 0.05 + 600 / 8000 * 0.03) / 2, 1),
    "share, idle GPUs": (sharing(6_400, 640), (0.5 * 0.05 + 2000 / 8000 * 0.08) / 2, 2),
    "share, whole": (exclusive(6_400, 2), (0.5 * 0.05 + 2000 / 8000 * 0.25) / 2, NONE),
    "divide": (sharing(6_400, 160), (0.5 * 0.05 * 2 / 28 + 200 / 8000 * 0.02) / 2, 0),
    "divide, idle GPUs": (sharing(6_400, 640), (0.5 * 0.05 * 20 / 28 + 0.25 * 0.08) / 2, 2),
    "extend": (sharing(6_400, 160), (0.5 * 0.05 + 200 / 8000 * 0.02) / 4, 0),
    "extend, idle GPUs": (sharing(6_400, 640), (0.5 * 0.05 + 2000 / 8000 * 0.08) / 4, 2),
    "share@norm-node": (sharing(9_600, 160), (2 / 3 * 0.1 + 200 / 4000 * 0.04) / 2, 0),
    "extend@norm-node": (sharing(9_600, 160), (2 / 3 * 0.1 + 200 / 4000 * 0.04) / 4, 0),
    "merge@norm-pod": (sharing(6_400, 160), math.tanh((10 + 17.5) / 2 / 10), 0),
    "share@norm-pod": (sharing(6_400, 160), math.tanh((10 + 1.25) / 2 / 10), 0),
    "extend@norm-pod": (sharing(6_400, 160), math.tanh((10 + 1.25) / 4 / 10), 0),
    "merge@norm-pod, CPU-only": (cpu_only(6_400), math.tanh(10 / 2 / 10), NONE),
    "share, CPU-only": (cpu_only(32_000), 0.5 * 0.25 / 2, NONE),
    "divide, CPU-only pairs with the emptiest": (cpu_only(128_000 // 4), 0.125 * 2 / 28 / 2, NONE),
    "extend, CPU-only": (cpu_only(32_000), 0.5 * 0.25 / 4, NONE),
}


@pytest.mark.parametrize("case", DOT)
def test_dot_product_variants(case: str) -> None:
    request, product, gpu = DOT[case]
    node, free, cpu = PARTLY
    words = case.split(",", maxsplit=1)[0]
    state = a_used_state(node, free, cpu=cpu)
    assert score(f"dot-product@{words}", state, request) == (int(100 * (1 - product)), gpu)


def test_dot_product_takes_the_first_of_equal_gpus() -> None:
    state = a_used_state(FOUR, [1000, 600, 400, 400])
    for policy in ("dot-product@share", "dot-product@divide", "dot-product@extend"):
        assert score(policy, state, sharing(6_400, 160))[1] == 2


@pytest.mark.parametrize("dim", ["divide", "extend"])
def test_dot_product_of_a_cpu_only_pod_where_no_gpu_is_left(dim: str) -> None:
    assert score(f"dot-product@{dim}", a_used_state(a_node(gpus=0)), cpu_only(1)) == (0, NONE)
    full = a_used_state(a_node(gpus=1), [0])
    assert score(f"dot-product@{dim}", full, cpu_only(1)) == (0, NONE)


# --- the plain restatement on more nodes -----------------------------------------------------

REQUESTS = (
    cpu_only(3_000),
    sharing(2_000, 300),
    sharing(1_000, 850),
    sharing(1_000, 500, "T4"),
    exclusive(4_000, 1),
    exclusive(9_000, 2, "G2", "T4"),
    exclusive(8_000, 4),
)
HISTORY = [*REQUESTS, sharing(2_000, 300)]  # eight pods: every weight is exact
MIXED = a_cluster(
    a_node("a", cpu_milli=33_000, gpus=4),
    a_node("b", cpu_milli=64_000, gpus=2, model="T4"),
    a_node("c", cpu_milli=16_000, gpus=0),
    a_node("d", cpu_milli=96_000, gpus=8),
    a_node("e", cpu_milli=8_000, gpus=1, model="P100", cpu_model="Xeon 8163"),
    a_node("f", cpu_milli=64_000, gpus=2, model="T4"),
)


# Policies that draw are judged in test_placer.py.
RESTATED = [spelling for spelling in spellings() if weighed(parse_policy(spelling)) is not None]


@pytest.mark.parametrize("policy", RESTATED)
@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "definitions"])
def test_a_filling_cluster_decision_by_decision(policy: str, compiled: bool) -> None:
    """Forty arrivals on mixed nodes; every decision as the restatement takes it."""
    blend = weighed(parse_policy(policy))
    assert blend is not None
    placer = a_placer(a_state(MIXED, HISTORY), policy, compiled=compiled)
    nodes, workload = plain_nodes(MIXED), tasks(HISTORY)
    picks = np.random.default_rng(3).integers(len(REQUESTS), size=40)
    for request in (REQUESTS[pick] for pick in picks):
        expected, found = decide(nodes, request, blend, workload), placer.place_one(request)
        assert (None if found is None else (found.node, found.gpus)) == expected
        if expected is not None:
            nodes[expected[0]].place(request, expected[1])
    assert placer.state.used_gpu_milli > 10_000


@pytest.mark.parametrize("name", sorted(SCORES))
def test_raw_scores_equal_the_restatement(name: str) -> None:
    """Not only the choice: every node's score, on a cluster in use."""
    state, nodes = a_state(MIXED, HISTORY), plain_nodes(MIXED)
    for allocation in (
        Allocation(sharing(2_000, 300), 0, (1,)),
        Allocation(exclusive(4_000, 1), 1, (0,)),
        Allocation(cpu_only(30_000), 5),
        Allocation(sharing(1_000, 850), 3, (4,)),
        Allocation(exclusive(9_000, 2), 3, (0, 1)),
    ):
        state.place(allocation)
        nodes[allocation.node].place(allocation.request, allocation.gpus)
    workload = tasks(HISTORY)
    compared = 0
    for request in REQUESTS:
        for n, node in enumerate(nodes):
            if node.fits(request):
                expected, gpu = SCORES[name](ScoreQuestion(node, request, workload))
                assert score(name, state, request, n) == (expected, NONE if gpu is None else gpu)
                compared += 1
    assert compared > 20


# --- normalised scores and blends ------------------------------------------------------------


def chosen(policy: str, state: ClusterState, request: Request) -> str:
    found = {
        compiled: a_placer(state, policy, compiled=compiled).choose(request)
        for compiled in (True, False)
    }
    assert found[True] == found[False]
    assert found[True] is not None
    return state.cluster.nodes[found[True].node].name


@pytest.mark.parametrize(("far_w", "wins"), [(200, "worse"), (1000, "worst")])
def test_spreading_by_integers_makes_ties(far_w: float, wins: str) -> None:
    """Waking GPUs takes 101, 102, 103 and `far_w` watts; FGD keeps the first of them out.

    The next two are one watt apart: a percent of 99 W, but none of 899 W, where the first in
    cluster order wins.
    """
    most = {"worst": 103, "worse": 102, "best": 101, "far": far_w}
    models = {
        name: GpuModel(name=name, idle_w=0, max_w=watts, memory_mib=1, source="made up")
        for name, watts in most.items()
    }
    cluster = a_cluster(*(a_node(name, cpu_milli=0, gpus=1, model=name) for name in most))
    only_best = a_target([exclusive(0, 1, "best")], cluster)
    state = ClusterState(cluster, only_best, power_columns(cluster, models))
    share = sharing(0, 1)
    assert [score("pwr", state, share, n)[0] for n in range(4)] == [-103, -102, -101, -far_w]
    assert [score("fgd", state, share, n)[0] for n in range(4)] == [50, 50, 26, 50]
    assert chosen("pwr", state, share) == "best"
    assert chosen("pwr+fgd:0.1", state, share) == wins


def a_tug_of_war() -> ClusterState:
    """Node `cool` draws least for a share; node `neat` wastes least."""
    cool = a_node("cool", cpu_milli=32_000, gpus=1, model="T4")
    neat = a_node("neat", cpu_milli=32_000, gpus=1, model="V100M16")
    state = a_state(a_cluster(neat, cool), [WHOLE])
    state.place(Allocation(sharing(0, 500), 1, (0,)))  # cool: at work, 500 milli left
    return state


def test_a_blend_weighs_its_parts() -> None:
    """A whole GPU fits only `neat`; half a GPU costs 0 W on `cool` and 270 W + 105 W on `neat`."""
    state = a_tug_of_war()
    half = sharing(1_000, 250)
    assert score("pwr", state, half, 0)[0] == -375
    assert score("pwr", state, half, 1)[0] == -105
    fgd = [score("fgd", state, half, n)[0] for n in (0, 1)]
    assert fgd == [32, 56]  # gains of -750 and +250
    assert chosen("pwr", state, half) == chosen("fgd", state, half) == "cool"
    assert chosen("first-fit", state, half) == "neat"


def test_weights_decide_where_parts_disagree() -> None:
    """The pod strands `small`'s GPU: FGD says 26 and 50, best-fit spreads its wish to 100 and 0.

    So `small` wins with 100 w + 26 (1000 - w) against 50 (1000 - w), from w = 194 of 1000.
    """
    small = a_node("small", cpu_milli=4_000, gpus=1)
    large = a_node("large", cpu_milli=96_000, gpus=2)
    state = a_state(a_cluster(small, large), [exclusive(3_500, 1)])
    request = cpu_only(600)
    assert [score("fgd", state, request, n)[0] for n in (0, 1)] == [26, 50]
    assert [score("best-fit", state, request, n)[0] for n in (0, 1)] == [92, 50]
    assert chosen("best-fit+fgd:0.194", state, request) == "small"
    assert chosen("best-fit+fgd:0.193", state, request) == "large"
    assert chosen("fgd", state, request) == "large"


def test_the_last_part_of_a_blend_names_the_gpu() -> None:
    """PWR takes the lowest GPU at work, best fit the fullest, FGD the one whose rest is waste."""
    node = a_node(gpus=3)
    state = a_used_state(node, [900, 500, 300], history=[sharing(0, 250)])
    for policy, gpu in [("pwr", 0), ("best-fit", 2), ("fgd+pwr:0.9", 0), ("pwr+best-fit:0.9", 2)]:
        found = a_placer(state, policy).choose(sharing(0, 100))
        assert found is not None
        assert found.gpus == (gpu,), policy


def test_a_plain_node_knows_what_it_was_given() -> None:
    """The oracle's own bookkeeping: place and release are inverses."""
    node = PlainNode(G2, 96_000, 10, [1000] * 8)
    node.place(exclusive(1_000, 2, memory_mib=3), (1, 4))
    assert (node.cpu, node.memory, node.idle, node.gpus[4]) == (95_000, 7, 6_000, 0)
    node.release(exclusive(1_000, 2, memory_mib=3), (1, 4))
    assert node == PlainNode(G2, 96_000, 10, [1000] * 8)
