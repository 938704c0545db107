"""Memory of a scheduler that works on and on: pods come and go on 5,000 nodes; it must not grow.

    python benchmarks/kube_soak.py [--nodes 5000] [--pods 1000] [--minutes 10] [--mode extender]

One plane on loopback (`make kube-binaries`), nodes carried by KWOK. Round after round a twentieth
of the pods ends and as many new ones come, gangs among them; a few ask for what no node has, and
are refused, told why, and deleted; a node goes and another comes. Resident memory of the process
is read after each round. A third of the time is for warming up (caches, the allocator); after that
the median of the last quarter must not lie more than `--growth` (a twentieth) above that of the
first.

Prints a line a round and, at the end, what was found as JSON; ends with 1 if it grew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kube"))

import kube_binaries  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from kube_api import Object, a_node, a_pod  # noqa: E402
from kube_server import Server, free_ports, wait_until  # noqa: E402

NAMESPACE = "soak"
EXTENDED = ROOT / "deploy" / "kubernetes" / "kube-scheduler-extender.yaml"
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
TURNOVER, GANG, HOPELESS = 20, 4, 2
"""A round ends one of so many pods; so many make a gang; so many fit nowhere."""
WARM_UP = 1 / 3
PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Sample:
    """After one round: seconds since the first, resident bytes, pods bound since the beginning."""

    at_s: float
    resident_bytes: int
    bound: int


def growth(samples: Sequence[Sample]) -> float:
    """By which part memory grew, from the first quarter to the last one after warming up."""
    after = [one for one in samples if one.at_s >= WARM_UP * samples[-1].at_s]
    quarter = max(1, len(after) // 4)
    first, last = (statistics.median(one.resident_bytes for one in part)
                   for part in (after[:quarter], after[-quarter:]))  # fmt: skip
    return last / first - 1


def bytes_per_pod(samples: Sequence[Sample]) -> float:
    """What memory grew by for each pod that came and went after warming up, by a median of slopes.

    Of all pairs of samples (Theil-Sen): steps of the allocator do not count for more than they are.
    """
    after = [one for one in samples if one.at_s >= WARM_UP * samples[-1].at_s]
    slopes = [
        (last.resident_bytes - first.resident_bytes) / (last.bound - first.bound)
        for first, last in itertools.combinations(after, 2)
    ]
    return statistics.median(slopes) if slopes else 0.0


def resident_bytes(pid: int) -> int:
    """Of a process (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [one for one in lines if one.startswith("VmRSS:")]
    return 1024 * int(line.split()[1])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def _deciding(plane: ControlPlane, mode: str) -> Iterator[Server]:
    """The process whose memory is looked at, at work for pods of the scheduler `soak`."""
    (health,) = free_ports(1)
    address = f"http://127.0.0.1:{health}"
    own = [f"--name={NAMESPACE}"] if mode == "scheduler" else ["--port=0", "--deadline=5"]
    if mode == "extender":
        (port,) = free_ports(1)
        own[0] = f"--port={port}"
    arguments = ["-m", "wattherd.cli.main", "kube", mode, f"--kubeconfig={plane.kubeconfig}"]
    arguments += [*own, f"--health=127.0.0.1:{health}"]
    ready = lambda: _is_ready(f"{address}/readyz")  # noqa: E731
    server = Server(Path(sys.executable), arguments, plane.log("wattherd"), ready=ready)
    stock = None
    server.begin()
    try:
        wait_until(lambda: not server.running or ready(), "it sees the cluster",
                   within_s=PATIENCE_S)  # fmt: skip
        assert server.running, server.said()
        if mode == "extender":
            config: Object = yaml.safe_load(EXTENDED.read_text())
            config["profiles"] = [{"schedulerName": NAMESPACE}]
            config["extenders"][0] |= {
                "urlPrefix": f"http://127.0.0.1:{port}", "httpTimeout": "10s",
            }  # fmt: skip
            stock = plane.scheduler(config=config, name="soak")
            stock.start()
        yield server
    finally:
        for one in (stock, server):
            if one is not None:
                one.kill()


class Soak:
    """Pods and nodes that come and go."""

    def __init__(self, plane: ControlPlane, *, pods: int, gangs: bool) -> None:
        self.bound = 0
        self._api, self._pods, self._gangs = plane.api, pods, gangs
        self._path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self._numbers, self._alive = itertools.count(), deque[str]()
        self._last_node = ""

    def fill(self) -> None:
        """As many pods as there are to be."""
        self._come(self._pods)

    def turn(self) -> None:
        """One round."""
        leaving = max(1, self._pods // TURNOVER)
        for _ in range(leaving):
            self._end(self._alive.popleft())
        hopeless = [f"hopeless-{next(self._numbers)}" for _ in range(HOPELESS)]
        made = [a_pod(name, gpus=64, scheduler=NAMESPACE) for name in hopeless]
        self._api.create_all(self._path, made)
        self._come(leaving)
        wait_until(lambda: all(map(self._is_told, hopeless)), "they are told why", every_s=0.2,
                   within_s=PATIENCE_S)  # fmt: skip
        for name in hopeless:
            self._end(name)
        number = next(self._numbers)
        self._api.create("/api/v1/nodes", a_node(f"late-{number}", labels=T4))
        gone, self._last_node = self._last_node, f"late-{number}"
        if gone:
            self._api.remove_nodes([gone])

    def _come(self, count: int) -> None:
        names = [f"pod-{next(self._numbers)}" for _ in range(count)]
        in_gangs = count // 2 // GANG * GANG if self._gangs else 0
        made = [
            a_pod(
                name,
                gpus=1,
                scheduler=NAMESPACE,
                **_about(names[row - row % GANG], in_gang=row < in_gangs),
            )
            for row, name in enumerate(names)
        ]
        self._api.create_all(self._path, made)
        self._alive.extend(names)
        wait_until(self._all_bound, "all pods are bound", every_s=0.5, within_s=PATIENCE_S)
        self.bound += count

    def _all_bound(self) -> bool:
        query = {"fieldSelector": "spec.nodeName=", "limit": "1", "resourceVersion": "0"}
        query |= {"labelSelector": "soak"}
        waiting: list[Any] = self._api.get(self._path, **query)["items"]
        return not waiting

    def _is_told(self, name: str) -> bool:
        return bool(self._api.pod(NAMESPACE, name)["status"].get("conditions"))

    def _end(self, name: str) -> None:
        self._api.call("DELETE", f"{self._path}/{name}?gracePeriodSeconds=0")


def _about(first: str, *, in_gang: bool) -> Object:
    """Metadata of one of ours; gangs are told by the label and annotation of Kueue's pod groups."""
    if not in_gang:
        return {"labels": {"soak": ""}}
    return {
        "labels": {"soak": "", "kueue.x-k8s.io/pod-group-name": f"gang-{first}"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(GANG)},
    }


def soak(options: argparse.Namespace) -> list[Sample]:
    """Samples, one for each round."""
    plane = ControlPlane.calm(kube_binaries.folder())
    samples: list[Sample] = []
    try:
        plane.start()
        plane.api.namespace(NAMESPACE)
        plane.api.fleet(a_node(f"node-{row:05}", labels=T4) for row in range(options.nodes))
        with _deciding(plane, options.mode) as process:
            rounds = Soak(plane, pods=options.pods, gangs=options.mode == "scheduler")
            rounds.fill()
            begun_s = time.monotonic()
            while time.monotonic() - begun_s < 60 * options.minutes or len(samples) < 12:
                rounds.turn()
                at_s = time.monotonic() - begun_s
                samples.append(Sample(at_s, resident_bytes(process.pid), rounds.bound))
                print(f"{at_s:6.0f} s  {samples[-1].resident_bytes / 2**20:7.1f} MiB  "
                      f"{rounds.bound} pods bound", file=sys.stderr, flush=True)  # fmt: skip
    finally:
        plane.close()
    return samples


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; 1 if memory grew."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--growth", type=float, default=0.05)
    parser.add_argument("--mode", choices=("scheduler", "extender"), default="scheduler")
    options = parser.parse_args(arguments)
    samples = soak(options)
    grew = growth(samples)
    found = {
        "nodes": options.nodes, "mode": options.mode, "rounds": len(samples),
        "pods_bound": samples[-1].bound, "seconds": round(samples[-1].at_s),
        "resident_mib": [round(one.resident_bytes / 2**20, 1) for one in samples],
        "growth": round(grew, 4), "allowed": options.growth,
        "bytes_per_pod": round(bytes_per_pod(samples)),
    }  # fmt: skip
    print(json.dumps(found))
    return 0 if grew <= options.growth else 1


if __name__ == "__main__":
    sys.exit(main())
