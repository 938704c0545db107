"""Simulation equals production: kube-scheduler's questions get the decisions of `sim pack`.

The extender is asked in the JSON that kube-scheduler sends, through its ASGI application; pods come
one at a time and refused ones are deleted, as in the published experiment (FGD, ATC'23, section 6).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kube_builders import (
    a_node,
    a_pod,
    an_extender,
    asked_over_http,
    bound,
    fleet_of,
    node_json,
    pod_json,
)

from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.experiments.published.source import OpenbFiles
from wattherd.kube.api.objects import Node
from wattherd.kube.api.serial import SerialExecutor
from wattherd.kube.decide.extender import Extender, Grant
from wattherd.kube.decide.extender_wire import BindArgs
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import BindPod
from wattherd.kube.live.extender_app import BindResult, ExtenderApp
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import Request
from wattherd.sim.pack import pack
from wattherd.workload.arrivals import read_order
from wattherd.workload.random_streams import stream

pytestmark = pytest.mark.data

Found = tuple[int, tuple[int, ...]] | None
"""Node and GPUs, None for a pod that was refused."""
POLICIES = ("fgd", "pwr+fgd:0.1", "wattherd")
SEED = 42
FEW = 300


class Trace:
    """A published trace with its published order: nodes in tie order, requests as they arrive."""

    def __init__(self, openb: Path, name: str) -> None:
        experiment = OpenbFiles(openb).experiment(name)
        assert experiment.order_file is not None
        cluster, self.pods = experiment.cluster, experiment.pods
        order = read_order(
            experiment.order_file, seed=SEED, pods=len(self.pods), nodes=len(cluster.nodes)
        )
        self.cluster: ClusterSpec = cluster.reordered(tuple(order.nodes.tolist()))
        self.requests: list[Request] = [self.pods[row].request for row in order.pods]

    def simulated(self, policy: str, count: int) -> list[Allocation | None]:
        placer = build_placer(
            self.cluster, self.pods, place_policy(policy), draws=stream(SEED, "placement")
        )
        return pack(placer, self.requests[:count]).decisions

    def extender(self, policy: str) -> Extender:
        """It knows all nodes; their names sort as the published order has them."""
        extender = an_extender(policy, history=self.pods)
        for node in self.nodes():
            extender.node_seen(node)
        return extender

    def scheduler(self, policy: str) -> KubeScheduler:
        """As `extender`."""
        scheduler = KubeScheduler(fleet_of(policy, self.pods), holder="test")
        for node in self.nodes():
            scheduler.node_seen(node)
        return scheduler

    def nodes(self) -> Iterator[Node]:
        for row, spec in enumerate(self.cluster.nodes):
            yield a_node(node_json(spec, f"n{row:04}"))


@pytest.fixture(scope="module", params=["default", "gpuspec20"])
def trace(openb: Path, request: pytest.FixtureRequest) -> Trace:
    return Trace(openb, request.param)


def played(extender: Extender, requests: list[Request]) -> Iterator[Found]:
    """What kube-scheduler is told and has bound, pod by pod, in its own words."""
    granted: dict[str, Grant] = {}

    async def bind(args: BindArgs, grant: Grant) -> BindResult:
        granted[args.pod_uid] = grant
        return BindResult()

    with closing(SerialExecutor()) as turns:
        # A busy machine must not make the answer late: what is tested here is the answer.
        app = ExtenderApp(extender, turns, bind, deadline_s=300.0)
        everywhere = [f"n{row:04}" for row in range(len(extender.fleet.nodes))]
        for number, request in enumerate(requests):
            made = pod_json(f"pod-{number}", request)
            uid = made["metadata"]["uid"]
            sent = json.dumps({"Pod": made, "Nodes": None, "NodeNames": everywhere}).encode()
            answer = asyncio.run(asked_over_http(app, "/filter", sent))
            assert answer["Error"] == ""
            if not answer["NodeNames"]:
                assert len(answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]) == len(
                    everywhere
                )
                extender.pod_gone(uid)
                yield None
                continue
            (node,) = answer["NodeNames"]
            uid = made["metadata"]["uid"]
            args = {
                "PodName": f"pod-{number}",
                "PodNamespace": "default",
                "PodUID": uid,
                "Node": node,
            }
            assert asyncio.run(asked_over_http(app, "/bind", json.dumps(args).encode())) == {
                "Error": ""
            }
            written = granted[uid].annotations
            extender.pod_seen(a_pod(bound(made, node, **written)), float(number))
            gpus = written.get("wattherd.dev/gpus", "")
            yield int(node[1:]), tuple(map(int, gpus.split(","))) if gpus else ()


def scheduled(scheduler: KubeScheduler, requests: list[Request]) -> Iterator[Found]:
    """What the second scheduler binds, pod by pod; pods that find no room are deleted."""
    for number, request in enumerate(requests):
        made = pod_json(f"pod-{number}", request, schedulerName="wattherd")
        scheduler.pod_seen(a_pod(made), float(number))
        binds = [one for one in scheduler.plan(float(number)) if isinstance(one, BindPod)]
        if not binds:
            scheduler.pod_gone(made["metadata"]["uid"])
            yield None
            continue
        (bind,) = binds
        scheduler.pod_seen(a_pod(bound(made, bind.node, **bind.annotations)), number + 0.5)
        gpus = bind.annotations.get("wattherd.dev/gpus", "")
        yield int(bind.node[1:]), tuple(map(int, gpus.split(","))) if gpus else ()


def compare(wanted: list[Allocation | None], found: Iterator[Found]) -> int:
    """Check every decision; returns how many pods found room."""
    placed = 0
    for number, (one, decision) in enumerate(zip(found, wanted, strict=True)):
        expected = None if decision is None else (decision.node, decision.gpus)
        assert one == expected, f"pod {number}"
        placed += one is not None
    return placed


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_arrivals_are_placed_as_simulated(trace: Trace, policy: str) -> None:
    found = played(trace.extender(policy), trace.requests[:FEW])
    assert compare(trace.simulated(policy, FEW), found) == FEW


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_scheduler_places_the_first_arrivals_as_simulated(
    trace: Trace, policy: str
) -> None:
    found = scheduled(trace.scheduler(policy), trace.requests[:FEW])
    assert compare(trace.simulated(policy, FEW), found) == FEW


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_arrival_is_placed_as_simulated(trace: Trace, policy: str) -> None:
    found = played(trace.extender(policy), trace.requests)
    placed = compare(trace.simulated(policy, len(trace.requests)), found)
    assert FEW < placed < len(trace.requests)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_scheduler_places_every_arrival_as_simulated(trace: Trace, policy: str) -> None:
    found = scheduled(trace.scheduler(policy), trace.requests)
    placed = compare(trace.simulated(policy, len(trace.requests)), found)
    assert FEW < placed < len(trace.requests)
