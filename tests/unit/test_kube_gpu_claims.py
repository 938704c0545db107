"""GPUs that pods hold by claims of other drivers: how many there are, what they draw, who waits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from gpu_claim_builders import (
    a_claim,
    a_device,
    a_slice,
    claim_json,
    gpus,
    mig,
    results,
    slice_json,
)
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import Json, a_node, a_pod, an_extender, bound, fleet_of, node_json, pod_json
from kube_desk import Desk
from kube_rights_api import RightsApi, served
from msgspec.structs import replace

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.gpu_claims import GpuClaims, with_claims
from wattherd.kube.api.objects import GpusHeld, GpusPublished, Node, Pod
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.cluster_snapshot import read, write
from wattherd.kube.facts.core_config import CoreChoice
from wattherd.kube.facts.gpu_devices import gpus_in
from wattherd.kube.facts.node_facts import Giving, node_facts
from wattherd.kube.facts.orders import BindPod, Order
from wattherd.kube.facts.pod_request import ask_of_foreign
from wattherd.server.kube.clusters import clusters
from wattherd.server.kube.core_choice import core_choice
from wattherd.server.kube.what_if import take
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

IDLE_MW = round(1000 * GPUS["T4"].idle_w)
RISE_MW = round(1000 * GPUS["T4"].max_w) - IDLE_MW
ONE, NONE = exclusive(1_000, 1), exclusive(1_000, 0)
NAMED = [{"name": "gpu", "resourceClaimName": "mine"}]


def machine(name: str, plugin: int = 0, **labels: str) -> Json:
    """A node whose device plugin gives `plugin` GPUs."""
    made = node_json(a_machine(name, gpus=plugin, model="T4"), **labels)
    del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
    return made


def claiming(name: str, node: str = "", **status: Any) -> Json:
    """A pod with a claim, by kube-scheduler."""
    made = pod_json(name, NONE, resourceClaims=NAMED)
    made["status"] |= status
    return bound(made, node) if node else made


class World(Desk):
    """What the API shows, told through `GpuClaims`; our bindings come about at once."""

    def __init__(self, budget_mw: int = 10**9, choice: CoreChoice | None = None) -> None:
        super().__init__()
        self.scheduler = KubeScheduler(
            fleet_of("first-fit"), {"": budget_mw}, holder="test", choice=choice
        )
        see = self.scheduler
        self.claims = GpuClaims(see.node_seen, lambda pod: see.pod_seen(pod, self.now_s))

    def put(self, made: Json) -> None:
        self.pods[made["metadata"]["uid"]] = made
        self.claims.pod_seen(a_pod(made))

    def delete(self, name: str) -> None:
        super().delete(name)
        self.claims.pod_gone(f"uid-{name}")

    def add(self, node: Json, devices: Iterable[Json] = (), **spec: Any) -> None:
        self.claims.node_seen(a_node(node))
        if devices:
            made = slice_json(node["metadata"]["name"], devices, **spec)
            self.claims.slice_seen(a_slice(made))

    def hold(self, name: str, devices: Iterable[str], *users: str, node: str = "n0") -> None:
        self.claims.claim_seen(a_claim(claim_json(name, results(node, devices), users)))

    def asks(self, *names: str) -> None:
        for name in names:
            self.put(pod_json(name, ONE, schedulerName="wattherd"))

    def _carry_out(self, order: Order) -> None:
        assert isinstance(order, BindPod)
        self.put(bound(self.pods[order.uid], order.node, **order.annotations))

    @property
    def bound(self) -> set[str]:
        there = (pod for pod in self.pods.values() if pod["spec"].get("schedulerName"))
        return {pod["metadata"]["name"] for pod in there if pod["spec"].get("nodeName")}

    @property
    def drawn_mw(self) -> int:
        placer = self.scheduler.fleet.placer
        return 0 if placer is None else self.scheduler.chooser.carried_mw(placer.state)[""]


# --- which devices are GPUs, and which ----------------------------------------------------------

AMD = {"type": "amdgpu-partition", "productName": "AMD_Instinct_MI300X",
       "resource.kubernetes.io__pciBusID": "0000:19:00.0"}  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "devices", "count"),
    [
        ("gpu.nvidia.com", gpus(3), 3),
        ("gpu.nvidia.com", [mig(0, 1), mig(0, 2), mig(1, 1)], 2),
        ("gpu.nvidia.com", [*gpus(1), mig(0, 1)], 1),
        ("gpu.nvidia.com", [a_device(f"gpu-0-{n}", "gpu-0-counters", type="mig") for n in "ab"], 1),
        ("gpu.nvidia.com", [a_device(name, pcieBusID="0:1") for name in ("gpu-0", "vfio-0")], 1),
        ("gpu.amd.com", [a_device("a", **AMD), a_device("b", **AMD)], 1),
        ("gpu.example.com", [a_device("a"), a_device("b")], 2),
        ("gpus.site.example", [a_device("a", productName="NVIDIA H200")], 1),
        ("compute-domain.nvidia.com", [a_device("channel-0", type="channel")], 0),
        ("dra.net", [a_device("eth0", type="nic", model="ConnectX-7")], 0),
        ("watts.wattherd.dev", [a_device("watts", type="gpu")], 0),
    ],
)  # fmt: skip
def test_parts_of_a_gpu_are_that_gpu(driver: str, devices: list[Json], count: int) -> None:
    found = gpus_in(a_slice(slice_json("n0", devices, driver)))
    assert len({(one.node, one.gpu) for one in found.values()}) == count
    assert not found or len(found) == len(devices)


def test_devices_of_no_node_are_left_out_unless_the_device_names_one() -> None:
    named = gpus(1)[0] | {"nodeName": "n7"}
    made = slice_json("n0", [named, *gpus(2)[1:]], allNodes=True)
    del made["spec"]["nodeName"]
    assert {one.node for one in gpus_in(a_slice(made)).values()} == {"n7"}


@pytest.mark.parametrize(
    ("labels", "products", "model"),
    [
        ({}, ["Tesla-T4"], "T4"),
        ({}, ["Tesla-T4", "NVIDIA-H200", "?"], "H200"),
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, ["Tesla-T4"], "H200"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, ["Tesla-T4"], "T4"),
        ({"wattherd.dev/gpu-model": "T4"}, ["NVIDIA-H200"], "T4"),
        ({}, ["Arc"], ""),
    ],
)
def test_a_node_is_of_the_hungriest_model(
    labels: dict[str, str], products: list[str], model: str
) -> None:
    published = GpusPublished(gpus=2, products=products)
    facts = node_facts(_with(a_node(machine("n0", **labels)), published))
    assert facts.spec.gpu_model == model
    assert facts.spec.gpu_count == (2 if model else 0)
    assert facts.unknown_gpu == ("" if model else "Arc")


def _with(node: Node, published: GpusPublished) -> Node:
    return replace(node, published=published)


@pytest.mark.parametrize(("plugin", "giving"), [(0, "claims"), (1, "claims"), (2, "whole")])
def test_a_node_that_publishes_both_ways_has_its_gpus_once(plugin: int, giving: str) -> None:
    facts = node_facts(_with(a_node(machine("n0", plugin)), GpusPublished(gpus=2, products=["T4"])))
    assert facts.spec.gpu_count == 2
    assert facts.offer.giving is Giving(giving)


# --- watts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [None, "gang"])
def test_gpus_of_claims_draw_as_those_of_plugins(choice: str | None) -> None:
    world = World(6 * IDLE_MW + 3 * RISE_MW, (choice and core_choice(choice)) or None)
    world.add(machine("n0"), gpus(4))
    world.add(machine("n1", 2))
    world.put(claiming("theirs", "n0"))
    world.hold("mine", ["gpu-0", "gpu-2"], "theirs")
    world.asks("a", "b")
    world.settle()
    assert world.drawn_mw == 6 * IDLE_MW + 3 * RISE_MW
    assert len(world.bound) == 1
    world.delete("theirs")
    world.settle()
    assert world.bound == {"a", "b"}


def test_a_claim_that_is_heard_of_after_its_pod_counts_from_then_on() -> None:
    world = World(8 * IDLE_MW + 3 * RISE_MW, core_choice("gang"))
    world.add(machine("n0", 4))
    world.add(machine("n1"), gpus(4))
    world.put(claiming("theirs", "n1"))
    world.settle()
    assert world.drawn_mw == 8 * IDLE_MW
    world.hold("mine", ["gpu-0", "gpu-1"], "theirs", node="n1")
    world.asks("a", "b")
    world.settle()
    assert world.drawn_mw == 8 * IDLE_MW + 3 * RISE_MW
    assert len(world.bound) == 1


def test_a_gpu_in_parts_counts_once_and_for_as_long_as_one_is_held() -> None:
    world = World()
    world.add(machine("n0"), [mig(0, 1), mig(0, 2), mig(1, 1)])
    for name in ("one", "two"):
        world.put(claiming(name, "n0"))
    world.hold("first", ["gpu-0-mig-1"], "one")
    world.hold("second", ["gpu-0-mig-2", "gpu-1-mig-1"], "two")
    assert world.drawn_mw == 2 * IDLE_MW + 2 * RISE_MW
    world.delete("one")
    assert world.drawn_mw == 2 * IDLE_MW + 2 * RISE_MW
    world.claims.claim_gone("uid-second")
    assert world.drawn_mw == 2 * IDLE_MW


def test_a_claim_of_two_pods_counts_once_and_goes_on_with_who_stays() -> None:
    world = World()
    world.add(machine("n0"), gpus(2))
    world.hold("mine", ["gpu-1"], "one", "two")
    for name in ("one", "two"):
        world.put(claiming(name, "n0"))
    assert world.drawn_mw == 2 * IDLE_MW + RISE_MW
    world.delete("one")
    assert world.drawn_mw == 2 * IDLE_MW + RISE_MW
    world.delete("two")
    assert world.drawn_mw == 2 * IDLE_MW


def test_extended_resources_that_a_claim_gives_are_not_counted_twice() -> None:
    world = World()
    world.add(machine("n0"), gpus(4))
    made = bound(pod_json("theirs", exclusive(1_000, 2)), "n0")
    made["status"] |= {"extendedResourceClaimStatus": {"resourceClaimName": "made"}}
    world.put(made)
    assert world.drawn_mw == 4 * IDLE_MW + 2 * RISE_MW
    world.hold("made", ["gpu-0", "gpu-1"], "theirs")
    assert world.drawn_mw == 4 * IDLE_MW + 2 * RISE_MW


def test_who_only_looks_on_holds_nothing() -> None:
    world = World()
    world.add(machine("n0"), gpus(1))
    world.put(claiming("watcher", "n0"))
    held = [one | {"adminAccess": True} for one in results("n0", ["gpu-0"])]
    world.claims.claim_seen(a_claim(claim_json("all", held, ["watcher"])))
    assert world.drawn_mw == IDLE_MW


def test_an_extender_counts_them_too() -> None:
    extender = an_extender("first-fit", budgets_mw={"": 4 * IDLE_MW + 2 * RISE_MW})
    claims = GpuClaims(extender.node_seen, lambda pod: extender.pod_seen(pod, 0.0))
    claims.node_seen(a_node(machine("n0", 4)))
    claims.slice_seen(a_slice(slice_json("n0", gpus(4))))
    claims.pod_seen(a_pod(claiming("theirs", "n0")))
    claims.claim_seen(a_claim(claim_json("mine", results("n0", ["gpu-3"]), ["theirs"])))
    verdicts = [extender.filter(a_pod(pod_json(name, ONE)), ["n0"], 0.0).node for name in "ab"]
    assert verdicts == ["n0", None]


# --- places -------------------------------------------------------------------------------------


def test_nobody_is_placed_on_gpus_that_a_claim_holds() -> None:
    world = World()
    world.add(machine("n0", 4), gpus(4))
    world.put(claiming("theirs", "n0"))
    world.hold("mine", ["gpu-0", "gpu-1", "gpu-3"], "theirs")
    world.asks("a", "b")
    world.settle()
    assert len(world.bound) == 1
    world.claims.claim_gone("uid-mine")
    world.settle()
    assert world.bound == {"a", "b"}


def test_gpus_that_claims_alone_give_are_for_nobody_who_asks_a_plugin() -> None:
    world = World()
    world.add(machine("n0"), gpus(4))
    world.asks("a")
    world.settle()
    assert world.bound == set()
    assert "give GPUs as claims, not as asked" in world.told["uid-a"].text


def test_gpus_of_unknown_watts_keep_nobody_off_a_node() -> None:
    world = World()
    world.add(machine("n0"), [a_device("a", model="Arc")], driver="gpu.intel.com")
    world.put(claiming("theirs", "n0"))
    held = results("n0", ["a"], "gpu.intel.com")
    world.claims.claim_seen(a_claim(claim_json("mine", held, ["theirs"])))
    world.put(pod_json("plain", NONE, schedulerName="wattherd"))
    world.settle()
    assert world.bound == {"plain"}


# --- what is read at one moment ---------------------------------------------------------------


@pytest.mark.parametrize("withheld", [(), ("resourceslices", "resourceclaims")])
def test_snapshots_and_overviews_count_them_where_they_may_be_read(
    tmp_path: Path, withheld: tuple[str, ...]
) -> None:
    rules = [{"apiGroups": [group], "resources": [one], "verbs": ["get", "list"]}
             for group, one in (("", "nodes"), ("", "pods"), ("resource.k8s.io", "resourceslices"),
                                ("resource.k8s.io", "resourceclaims"))]  # fmt: skip
    api = RightsApi([*rules, {"apiGroups": ["wattherd.dev"], "resources": ["powerdomains"],
                              "verbs": ["list"]}])  # fmt: skip
    api.without(*withheld)
    api.objects = {
        "nodes": [machine("n0")],
        "pods": [claiming("theirs", "n0")],
        "resourceslices": [slice_json("n0", gpus(4))],
        "resourceclaims": [claim_json("mine", results("n0", ["gpu-0", "gpu-3"]), ["theirs"])],
    }
    with served(api, tmp_path / "config") as kubeconfig:
        snapshot = read(write(take(kubeconfig, None)), "kept")
        [row] = clusters(kubeconfig, (), timeout_s=60.0, kept=tmp_path / "rows")
    [node], [pod] = snapshot.nodes or (), snapshot.pods or ()
    count, held = (0, 0) if withheld else (4, 2)
    assert node_facts(node).spec.gpu_count == count
    assert ask_of_foreign(pod).claimed == held
    assert row.overview is not None, row.problem
    assert (row.overview.gpus, row.overview.gpus_used) == (count, held)


# --- slices and claims that come and go ---------------------------------------------------------


def test_what_was_published_counts_while_its_driver_is_restarted() -> None:
    world = World()
    world.add(machine("n0"), gpus(3), generation=7)
    world.put(claiming("theirs", "n0"))
    world.hold("mine", ["gpu-2"], "theirs")
    world.claims.slice_gone("n0-gpu.nvidia.com")
    assert world.drawn_mw == 3 * IDLE_MW + RISE_MW
    world.add(machine("n0"), gpus(2), generation=1)
    assert world.drawn_mw == 3 * IDLE_MW + RISE_MW  # two, and the one that is held
    world.claims.claim_gone("uid-mine")
    assert world.drawn_mw == 2 * IDLE_MW


def test_of_an_older_generation_nothing_counts_and_of_a_newer_one_once_it_is_whole() -> None:
    told: dict[str, Node] = {}
    claims = GpuClaims(lambda node: told.update({node.metadata.name: node}), lambda _: None)
    claims.node_seen(a_node(machine("n0")))

    def publish(name: str, generation: int, devices: list[Json], of: int = 1) -> int:
        made = slice_json("n0", devices, generation=generation)
        made["metadata"]["name"] = name
        made["spec"]["pool"]["resourceSliceCount"] = of
        claims.slice_seen(a_slice(made))
        published = told["n0"].published
        return published.gpus if published else 0

    assert publish("one", 2, gpus(4)) == 4
    assert publish("one", 3, gpus(1), of=2) == 4
    assert publish("two", 2, gpus(8)) == 8
    assert publish("two", 3, gpus(3)[1:], of=2) == 3
    assert publish("two", 2, gpus(8)) == 3


def test_a_device_that_no_slice_describes_is_a_gpu_by_its_drivers_name() -> None:
    world = World()
    world.add(machine("n0", **{"nvidia.com/gpu.product": "Tesla-T4"}))
    world.put(claiming("theirs", "n0"))
    other = results("n0", ["eth0"], "dra.net")
    held = results("n0", ["gpu-0", "gpu-1"]) + other
    world.claims.claim_seen(a_claim(claim_json("mine", held, ["theirs"])))
    assert world.drawn_mw == 2 * IDLE_MW + 2 * RISE_MW
    world.claims.slice_seen(a_slice(slice_json("n0", gpus(4))))
    assert world.drawn_mw == 4 * IDLE_MW + 2 * RISE_MW


def test_the_node_of_an_unknown_device_is_that_of_its_allocation() -> None:
    told: dict[str, Node] = {}
    claims = GpuClaims(lambda node: told.update({node.metadata.name: node}), lambda _: None)
    claims.node_seen(a_node(machine("n9")))
    made = claim_json("mine", results("some-pool", ["gpu-0"]), ["theirs"])
    need = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [need]}]}
    made["status"]["allocation"]["nodeSelector"] = terms
    claims.claim_seen(a_claim(made))
    assert told["n9"].published == GpusPublished(gpus=1)


def test_nothing_is_kept_of_nodes_pools_and_claims_that_are_gone() -> None:
    claims = GpuClaims(lambda _: None, lambda _: None)
    empty = {name: value.copy() for name, value in vars(claims).items() if isinstance(value, dict)}
    for order in (("node", "slice"), ("slice", "node")):
        claims.node_seen(a_node(machine("n0")))
        claims.slice_seen(a_slice(slice_json("n0", gpus(2))))
        claims.slice_seen(a_slice(slice_json("n0", [a_device("eth0")], "dra.net")))
        claims.pod_seen(a_pod(claiming("theirs", "n0")))
        claims.claim_seen(a_claim(claim_json("mine", results("n0", ["gpu-0"]), ["theirs"])))
        claims.claim_seen(
            a_claim(claim_json("net", results("n0", ["eth0"], "dra.net"), ["theirs"]))
        )
        claims.pod_gone("uid-theirs")
        claims.claim_gone("uid-mine")
        claims.claim_gone("uid-net")
        for what in order:
            claims.node_gone("n0") if what == "node" else claims.slice_gone("n0-gpu.nvidia.com")
        claims.slice_gone("n0-dra.net")
        assert {name: vars(claims)[name] for name in empty} == empty


# --- whatever the order -------------------------------------------------------------------------

DEVICES = [*gpus(3), mig(3, 1), mig(3, 2), mig(4, 1)]


@given(
    held=st.lists(
        st.tuples(
            st.sets(st.sampled_from([one["name"] for one in DEVICES]), max_size=4),
            st.sets(st.sampled_from("abcd"), max_size=3),
        ),
        max_size=5,
    ),
    on_nodes=st.sets(st.sampled_from("abcd")),
    seed=st.integers(0, 10**6),
)
def test_news_in_any_order_come_to_the_same(
    held: list[tuple[set[str], set[str]]], on_nodes: set[str], seed: int
) -> None:
    node, published = a_node(machine("n0")), a_slice(slice_json("n0", DEVICES))
    pods = [a_pod(claiming(name, "n0" if name in on_nodes else "")) for name in "abcd"]
    claims = [
        a_claim(claim_json(f"c{at}", results("n0", sorted(devices)), sorted(users)))
        for at, (devices, users) in enumerate(held)
    ]
    nodes, known = with_claims([node], pods, [published], claims)
    told: dict[str, Node | Pod] = {}
    heard = GpuClaims(
        lambda one: told.update({one.metadata.uid: one}),
        lambda one: told.update({one.metadata.uid: one}),
    )
    news: list[Any] = [
        *((heard.node_seen, one) for one in [node] * 2),
        *((heard.slice_seen, one) for one in [published] * 2),
        *((heard.pod_seen, one) for one in pods * 2),
        *((heard.claim_seen, one) for one in claims * 2),
    ]
    random.Random(seed).shuffle(news)
    for hear, one in news:
        hear(one)
    assert told == {one.metadata.uid: one for one in (*nodes, *known)}
    # Each GPU that a pod on the node may use is counted, and once.
    used = {
        "-".join(device.split("-")[:2])
        for devices, users in held
        if users & on_nodes
        for device in devices
    }
    assert sum(ask_of_foreign(pod).claimed for pod in known) == len(used)
    assert nodes[0].published == GpusPublished(gpus=5, products=["Tesla-T4"])


def test_a_pod_without_claims_is_told_as_it_is() -> None:
    told: list[Pod] = []
    claims = GpuClaims(lambda _: None, told.append)
    pod = a_pod(pod_json("plain", ONE))
    claims.pod_seen(pod)
    assert told == [pod]
    assert told[0] is pod
    assert claims.known(pod).held is None
    claims.pod_seen(a_pod(claiming("theirs", "n0")))
    claims.claim_seen(a_claim(claim_json("mine", results("n0", ["gpu-0"]), ["theirs"])))
    assert claims.known(a_pod(claiming("theirs", "n0"))).held == GpusHeld(gpus=1)


class Chance(World):
    """Claims, pods and slices come and go; the scheduler plans in between."""

    def __init__(self, seed: int) -> None:
        super().__init__(100 * IDLE_MW + 9 * RISE_MW, core_choice("gang"))
        self.draw = random.Random(seed)
        self.held: dict[str, Json] = {}
        self.made = 0
        self.published = {
            name: slice_json(name, [*gpus(3), mig(3, 1), mig(3, 2)]) for name in ("n0", "n1")
        }
        for name, plugin in (("n0", 0), ("n1", 4), ("n2", 4)):
            self.nodes[name] = machine(name, plugin)
            self.claims.node_seen(a_node(self.nodes[name]))
        self.tell(self.claims)

    def tell(self, claims: GpuClaims) -> None:
        for made in self.published.values():
            claims.slice_seen(a_slice(made))
        for made in self.held.values():
            claims.claim_seen(a_claim(made))

    def step(self) -> None:
        self.made += 1
        name, names = f"p{self.made}", sorted(pod["metadata"]["name"] for pod in self.pods.values())
        match self.draw.randrange(5) if len(names) < 8 else 5:
            case 0:
                self.put(claiming(name, self.draw.choice(["n0", "n1"])))
            case 1:
                self.asks(name)
            case 2 | 3:
                uids = [uid for uid, pod in self.pods.items() if pod["spec"].get("resourceClaims")]
                users = self.draw.sample(uids, min(len(uids), self.draw.randrange(3)))
                node = self.draw.choice(["n0", "n1"])
                on = [uid for uid in users if self.pods[uid]["spec"]["nodeName"] == node]
                names = [one["name"] for one in self.published[node]["spec"]["devices"]]
                devices = self.draw.sample(names, self.draw.randrange(1, 4))
                claim = f"c{self.draw.randrange(4)}"
                users = [uid.removeprefix("uid-") for uid in on]
                self.held[claim] = claim_json(claim, results(node, devices), users)
                self.claims.claim_seen(a_claim(self.held[claim]))
            case 4:
                claim = f"c{self.draw.randrange(4)}"
                self.held.pop(claim, None)
                self.claims.claim_gone(f"uid-{claim}")
            case _:
                for one in self.draw.sample(names, 3):
                    self.delete(one)
        if self.draw.random() < 0.5:
            self.settle()

    def expected_mw(self) -> int:
        """By hand: GPUs that a pod uses that is there, and those that ours have."""
        used = {
            (one["pool"], "-".join(one["device"].split("-")[:2]))
            for made in self.held.values()
            if any(user["uid"] in self.pods for user in made["status"]["reservedFor"])
            for one in made["status"]["allocation"]["devices"]["results"]
        }
        return 12 * IDLE_MW + (len(used) + len(self.bound)) * RISE_MW


@given(seed=st.integers(0, 10**6))
def test_whatever_comes_and_goes_the_account_and_the_core_have_what_is_held(seed: int) -> None:
    world = Chance(seed)
    for _ in range(40):
        world.step()
    world.settle()
    if not world.scheduler.fleet.overfull():  # of what others put there too much there is no more
        assert world.drawn_mw == world.expected_mw()
    core, fleet = world.scheduler.core, world.scheduler.fleet
    assert core is not None
    busy = {(fleet.order[seat.node].name, gpu) for uid in fleet.holdings
            for seat in fleet.seats(uid) for gpu in seat.gpus}  # fmt: skip
    told = {(fleet.order[seat.node].name, gpu) for job in core.jobs.values() if job.active
            for seat in job.allocations for gpu in seat.gpus}  # fmt: skip
    assert told == busy
