"""HiveD's own design file and its tests, written as chains, shares, pinned cells and jobs.

The file is example/config/design/hivedscheduler.yaml of microsoft/hivedscheduler, the pods and
where they go are those of its hived_algorithm_test.go.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattherd.errors import UserError
from wattherd.experiments.schedule.run import simulate
from wattherd.experiments.schedule.setup import setting_of
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import RejectJob
from wattherd.model.job import JobSpec, TaskRole
from wattherd.model.topology import chains_of, stated_chain
from wattherd.policy.queue.hive_invariants import validate
from wattherd.policy.schedule.hived import HiveD, PinnedCell
from wattherd.testing.timed_world import Story, t4_nodes, timed
from wattherd.workload.scenario import read_scenario

CT1, P100, V100, IB = "T4", "P100", "V100M16", "A100"
NODES = {
    CT1: ["0.0.0.0", "0.0.0.1", "1.0.0.2c"],
    P100: ["1.0.0.2", "1.0.0.1", "1.0.0.0"],
    V100: ["0.0.1.0", "0.0.5.0", *(f"0.0.3.{n}" for n in range(4))]
    + [f"0.0.4.{n}" for n in range(4)]
    + [f"0.0.2.{n}" for n in range(3)],
    IB: ["0.1.0.0", "0.1.0.1"],
}
GPUS = {CT1: 2, P100: 8, V100: 16, IB: 16}
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(name=name, cpu_milli=0, memory_mib=0, gpu_count=GPUS[model], gpu_model=model)
        for model, names in NODES.items()
        for name in names
    )
)
DGX2 = {"2-gpu": 2, "4-gpu": 2, "8-gpu": 2, "node": 2}
DGX1 = {"pci-switch": 2, "cpu-socket": 2, "node": 2}
V = NODES[V100]
CHAINS = (
    stated_chain(CLUSTER, "CT1-NODE", {"node": 2}, NODES[CT1]),
    stated_chain(CLUSTER, "3-DGX1-P100-NODE", {**DGX1, "3-node": 3}, NODES[P100]),
    stated_chain(CLUSTER, "DGX2-V100-NODE", DGX2, V[:2]),
    stated_chain(CLUSTER, "4-DGX2-V100-NODE", {**DGX2, "2-node": 2, "4-node": 2}, V[2:10]),
    stated_chain(CLUSTER, "3-DGX2-V100-NODE", {**DGX2, "3-node": 3}, V[10:]),
    stated_chain(CLUSTER, "2-IB-DGX2-V100-NODE", {**DGX2, "2-node": 2}, NODES[IB]),
)
SHARES = {
    "VC1": {
        "4-DGX2-V100-NODE": {"node": 2, "2-node": 1},
        "3-DGX2-V100-NODE": {"node": 2},
        "DGX2-V100-NODE": {"node": 2},
    },
    "VC2": {"3-DGX1-P100-NODE": {"node": 2, "cpu-socket": 2}, "CT1-NODE": {"node": 1}},
}
PINS = {
    "VC1-YQW-CT1": PinnedCell(chain="CT1-NODE", level="gpu", index=4),
    "VC1-YQW-DGX2": PinnedCell(chain="4-DGX2-V100-NODE", level="2-node", index=0),
    "VC1-YQW-IB-DGX2": PinnedCell(chain="2-IB-DGX2-V100-NODE", level="2-node"),
}


def hived(**more: Any) -> HiveD:
    return HiveD(chains=CHAINS, shares=SHARES, pins=PINS, **more)


def pods(
    name: str, queue: str, model: str, *gpus: int, priority: int = 1, at_s: float = 0.0
) -> JobSpec:
    """An affinity group: a role for every pod."""
    roles = tuple(TaskRole(name=f"p{n}", count=1, gpu_count=one) for n, one in enumerate(gpus))
    models = (model,) if model else ()
    return timed(
        name, queue=queue, roles=roles, priority=priority, at_s=at_s, gpu_models=models, lasts_s=1e6
    )


GROUPS = [
    pods("group1", "VC1", V100, 1, priority=0),
    pods("group2", "VC1", V100, 1),
    pods("group3", "VC1", V100, 8, priority=2),
    pods("group4", "VC1", V100, 1, priority=-1),
    pods("group5", "VC1-YQW-DGX2", V100, 16, 16),
    pods("group7", "VC2", P100, 8, 8, 8),
    pods("group9", "VC2", P100, 7, 5),
    pods("group12", "VC1", V100, 16, 16),
    pods("group13", "VC1", V100, 16, 16),
    pods("group14", "VC1", V100, 16, 16, priority=-1),
    pods("group15", "VC2", CT1, 2, priority=0),
]


def story(jobs: list[JobSpec], planner: HiveD | None = None) -> Story:
    """The jobs one second after the other."""
    planner = planner or hived()
    apart = [replace(job, submit_s=float(number)) for number, job in enumerate(jobs)]
    return Story(planner, CLUSTER, apart, quota=planner, until_s=500.0)


def where(told: Story, name: str) -> list[tuple[str, tuple[int, ...]]]:
    (places,) = told.places(name)
    return sorted((CLUSTER.nodes[node].name, tuple(gpus)) for node, *gpus in places)


ALL = tuple(range(16))


def test_pods_go_where_hiveds_own_test_has_them() -> None:
    told = story(GROUPS)
    found = {job.id: told.places(job.id) for job in GROUPS}
    nodes = {
        name: sorted({CLUSTER.nodes[place[0]].name for place in places[0]}) if places else []
        for name, places in found.items()
    }
    assert nodes["group1"] == nodes["group2"] == nodes["group3"] == ["0.0.1.0"]
    assert found["group1"][0][0][1:] == (0,)
    assert found["group2"][0][0][1:] == (1,)  # buddy of the first
    assert found["group3"][0][0][1:] == tuple(range(8, 16))  # another half
    assert nodes["group4"] == ["0.0.5.0"]  # a guest stays away from guaranteed jobs
    assert nodes["group5"] == ["0.0.3.0", "0.0.3.1"]  # pinned
    assert nodes["group7"] == []  # more nodes than VC2 has
    assert len(nodes["group9"]) == 2
    assert nodes["group12"] == ["0.0.3.2", "0.0.3.3"]  # beside the pinned cell: 2 nodes of 4
    assert nodes["group13"] == ["0.0.4.0", "0.0.4.1"]
    assert nodes["group14"] == ["0.0.4.2", "0.0.4.3"]
    assert nodes["group15"] == ["0.0.0.0"]
    for hive in told.core._memory["hived"].hives.values():
        validate(hive)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (pods("x", "VC2", V100, 1), "NeverFits"),
        (pods("x", "surprise!", P100, 1), "UnknownQueue"),
        (pods("x", "VC1-YQW-DGX2", V100, 16, 16, 16), "NeverFits"),
        (pods("x", "VC1-YQW-CT1", CT1, 2), "NeverFits"),
    ],
)
def test_what_a_virtual_cluster_does_not_have_is_refused(job: JobSpec, told: str) -> None:
    done = story([job])
    (refusal,) = [c for _, c in done.commands if isinstance(c, RejectJob)]
    assert refusal.detail.startswith(told)


def test_a_pinned_gpu_is_that_gpu_and_no_other() -> None:
    told = story([pods("x", "VC1-YQW-CT1", CT1, 1)])
    (place,) = told.places("x")[0]
    assert (CLUSTER.nodes[place[0]].name, place[1:]) == ("1.0.0.2c", (0,))


def test_guests_use_a_pinned_cell_and_leave_when_it_is_needed() -> None:
    guest = pods("guest", "VC2", IB, 16, 16, priority=-1)
    told = story([guest, pods("owner", "VC1-YQW-IB-DGX2", IB, 16)])
    assert told.starts("owner") == told.stops("guest") == [1.0]


@pytest.mark.parametrize("lazy", [True, False])
def test_higher_priorities_take_a_pinned_cell_from_lower_ones(lazy: bool) -> None:
    low = pods("low", "VC1-YQW-DGX2", V100, 16, 16)
    high = pods("high", "VC1-YQW-DGX2", V100, 16, 16, priority=2)
    told = story([low, high], hived(lazy=lazy))
    assert told.stops("low") == [1.0]
    assert where(told, "high") == [("0.0.3.0", ALL), ("0.0.3.1", ALL)]


def test_only_as_many_as_fit_a_pinned_cell_run_in_it() -> None:
    jobs = [pods(f"j{n}", "VC1-YQW-DGX2", V100, 16, priority=2) for n in range(3)]
    assert sorted(story(jobs).running()) == ["j0", "j1"]


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        ({"p": PinnedCell(chain="none", level="node")}, "unknown cell chain 'none'"),
        ({"p": PinnedCell(chain="CT1-NODE", level="rack")}, "no level 'rack'"),
        ({"p": PinnedCell(chain="CT1-NODE", level="node", index=3)}, "there is no cell 3"),
        ({"VC1": PinnedCell(chain="CT1-NODE", level="node")}, "is a virtual cluster as well"),
        (
            {
                "p": PinnedCell(chain="CT1-NODE", level="node"),
                "q": PinnedCell(chain="CT1-NODE", level="gpu", index=1),
            },
            "is not free",
        ),
    ],
)
def test_pins_that_cannot_be_are_refused(pins: dict[str, PinnedCell], told: str) -> None:
    with pytest.raises(UserError, match=told):
        HiveD(chains=CHAINS, shares={"VC1": {}}, pins=pins)


def test_more_than_there_is_beside_the_pinned_cells_is_refused() -> None:
    shares = {"VC1": {"CT1-NODE": {"node": 3}}}
    with pytest.raises(UserError, match="not enough cells"):
        HiveD(chains=CHAINS, shares=shares, pins={"p": PINS["VC1-YQW-CT1"]})


def test_guests_are_packed_away_from_guaranteed_jobs() -> None:
    """Guests of 2 GPUs beside guaranteed ones of 2: on nodes of their own while there are any."""
    cluster = t4_nodes(4, 4, 4, 4)
    chains = chains_of(cluster, within={4: (2, 2)})
    planner = HiveD(chains=chains, shares={"a": {"T4x4": {"node": 2}}, "b": {"T4x4": {"node": 2}}})
    jobs = [timed("g", 2, queue="a", lasts_s=1e5)]
    jobs += [timed(f"o{n}", 2, queue="b", priority=-1, at_s=1.0, lasts_s=1e5) for n in range(4)]
    jobs.append(timed("g2", 2, queue="a", at_s=5.0, lasts_s=1e5))
    told = Story(planner, cluster, jobs, quota=planner, until_s=50.0)
    homes = [told.places(f"o{n}")[0][0][0] for n in range(4)]
    assert told.places("g")[0][0][0] not in homes
    assert len(set(homes)) == 2  # whole nodes of guests, not one each
    assert not any(told.stops(f"o{n}") for n in range(4))


def test_the_design_is_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "id,submit_s,gpus,duration_s,queue,priority\n"
        "pinned,0,16,60,spot,1\nother,0,16,60,a,1\nguest,0,8,60,a,-1\n"
    )
    (tmp_path / "scenario.yaml").write_text(
        """
cluster: 4x8:V100M16
jobs: {file: jobs.csv, format: native}
preset: none
policies: [hived]
cells:
  chains:
    - name: 4-node
      levels: {4-gpu: 4, node: 2, 2-node: 2, 4-node: 2}
      nodes: [node-00000, node-00001, node-00002, node-00003]
  pinned: {spot: {chain: 4-node, level: 2-node, index: 1}}
  shares: {a: {4-node: {2-node: 1}}}
"""
    )
    scenario = read_scenario(tmp_path / "scenario.yaml")
    done = simulate(setting_of(scenario, budget=None, power="water-filling"), "hived")
    assert done.row["finished"] == 3
    started = {one.job_id: one.start_s for one in done.outcomes}
    assert started["pinned"] == started["other"] == 0.0


@pytest.mark.parametrize(
    ("levels", "nodes", "told"),
    [
        ({"node": 8}, ["nowhere"], "unknown node 'nowhere'"),
        ({"box": 16}, ["0.0.1.0"], "no level is called 'node'"),
        ({"node": 8}, ["0.0.1.0"], "its levels make 8 GPUs"),
        ({"node": 16}, ["0.0.1.0", "0.1.0.0"], "16 x V100M16, 16 x A100"),
        ({"node": 16, "2-node": 2}, ["0.0.1.0"], "do not fill cells of 2"),
    ],
)
def test_chains_that_cannot_be_are_refused(
    levels: dict[str, int], nodes: list[str], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        stated_chain(CLUSTER, "c", levels, nodes)
