"""The openb trace as nodes and pods of a cluster, in the published order; what `sim pack` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_watch import Watch

from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.experiments.published.source import OpenbFiles
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TracePod
from wattherd.sim.pack import pack
from wattherd.workload.arrivals import read_order
from wattherd.workload.random_streams import stream

SEED = 42
ROOM_OF_PODS = 1001
"""Per node, as in the published simulator."""
Found = tuple[int, tuple[int, ...]] | None
"""Row of the node in tie order and its GPUs, None for a pod that was refused."""


@dataclass(frozen=True, slots=True)
class OpenbFleet:
    """Nodes in tie order, requests in order of arrival, the history that policies learn from."""

    prefix: str
    cluster: ClusterSpec
    requests: Sequence[Request]
    pods: tuple[TracePod, ...]
    history: Path

    def simulated(self, policy: str) -> list[Found]:
        placer = build_placer(
            self.cluster, self.pods, place_policy(policy), draws=stream(SEED, "placement")
        )
        decisions = pack(placer, self.requests).decisions
        return [None if one is None else (one.node, one.gpus) for one in decisions]

    def nodes(self) -> list[Object]:
        return [self._node(row, spec) for row, spec in enumerate(self.cluster.nodes)]

    def _node(self, row: int, spec: NodeSpec) -> Object:
        labels = {"wattherd.dev/gpu-shares": "annotation"}
        if spec.gpu_count:
            labels["nvidia.com/gpu.product"] = spec.gpu_model
        return a_node(
            f"{self.prefix}-{row:04}",
            gpus=spec.gpu_count,
            cpu=f"{spec.cpu_milli}m",
            memory=f"{spec.memory_mib}Mi",
            pods=ROOM_OF_PODS,
            labels=labels,
        )

    def pod(self, number: int, scheduler: str) -> Object:
        """Shares by annotation, whole GPUs as devices; only nodes of this fleet."""
        request = self.requests[number]
        amounts = {"cpu": f"{request.cpu_milli}m", "memory": f"{request.memory_mib}Mi"}
        annotations = {}
        if request.is_sharing:
            annotations["wattherd.dev/gpu-milli"] = str(request.gpu_milli)
        elif request.gpu_count:
            amounts["nvidia.com/gpu"] = str(request.gpu_count)
        made = a_pod(f"pod-{number}", scheduler=scheduler, annotations=annotations)
        made["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        return made

    def row(self, node: str) -> int:
        return int(node.removeprefix(f"{self.prefix}-"))


def fleet(
    openb: Path, prefix: str, *, nodes: int | None = None, pods: int | None = None
) -> OpenbFleet:
    """The default trace, or the first nodes and arrivals of it."""
    files = OpenbFiles(openb)
    experiment = files.experiment("default")
    assert experiment.order_file is not None
    cluster, known = experiment.cluster, experiment.pods
    order = read_order(experiment.order_file, seed=SEED, pods=len(known), nodes=len(cluster.nodes))
    ordered = cluster.reordered(tuple(order.nodes.tolist()))
    return OpenbFleet(
        prefix,
        ClusterSpec(ordered.nodes[:nodes]),
        [known[row].request for row in order.pods[:pods]],
        known,
        openb / "openb_pod_list_default.csv",
    )


def check(
    api: KubeApi, namespace: str, openb: OpenbFleet, policy: str, scheduler: str, bound_s: float
) -> int:
    """Pods one at a time, the next one when the last is bound, or refused and deleted.

    Each must go where the simulation puts it; returns how many were refused. The pace is printed.
    """
    pods, refused, began_s = f"/api/v1/namespaces/{namespace}/pods", 0, time.monotonic()
    with Watch(api, pods, silence_s=bound_s) as watch:
        for number, wanted in enumerate(openb.simulated(policy)):
            found = _play_one(api, watch, openb, number, scheduler)
            assert found == wanted, f"pod {number} of {len(openb.requests)}"
            refused += found is None
    wall_s, count = time.monotonic() - began_s, len(openb.requests)
    print(
        f"{policy} by {scheduler}: {count} pods, {refused} refused, all as simulated; "
        f"{wall_s:.0f} s, {1000 * wall_s / count:.1f} ms per pod"
    )
    return refused


def _play_one(api: KubeApi, watch: Watch, openb: OpenbFleet, number: int, scheduler: str) -> Found:
    made = openb.pod(number, scheduler)
    name = made["metadata"]["name"]
    api.create(watch.path, made)
    pod = watch.until(name, lambda pod: pod["spec"].get("nodeName") or _is_refused(pod))
    node = pod["spec"].get("nodeName")
    if node:
        gpus = pod["metadata"]["annotations"].get("wattherd.dev/gpus", "")
        return openb.row(node), tuple(map(int, gpus.split(","))) if gpus else ()
    api.delete(f"{watch.path}/{name}", gracePeriodSeconds=0)
    return None


def _is_refused(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(
        each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


@contextmanager
def whole_trace(programs: Path, openb: Path) -> Iterator[tuple[ControlPlane, OpenbFleet]]:
    """All 1,213 nodes of the default trace on a plane of their own, in the namespace `openb`.

    To throw the plane away is quicker than to empty it.
    """
    whole = fleet(openb, "openb")
    assert len(whole.cluster.nodes) == 1213
    plane = ControlPlane.calm(programs)
    with closing(plane):
        plane.start()
        plane.api.fleet(whole.nodes())
        plane.api.namespace("openb")
        yield plane, whole
