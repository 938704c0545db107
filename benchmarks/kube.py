"""Pods per second on a real control plane: a stock kube-scheduler, wattherd beside it, wattherd.

    python benchmarks/kube.py [--nodes 1000] [--pods 800] [--rounds 2] [--only stock,second]

One plane on loopback (`make kube-binaries`), nodes carried by KWOK. Contenders take turns, there
and back again: each is started, given a few pods to warm up, then a burst of pods that ask for one
GPU each. Counted is from the API server's audit log, from the first pod created to the last one
bound. Processor time is that of each of the contender's processes; how long the extender took to
answer is read from its own metrics. Wall times depend on what else the machine does, so its load is
told with them: compare within a run.

* stock: kube-scheduler as it comes; * plain: with `percentageOfNodesToScore: 100`, as the extender
needs it, but without the extender; * extender: `wattherd kube extender`; * second: `wattherd kube
scheduler`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kube"))

import kube_binaries  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from kube_api import KubeApi, Object, a_node, a_pod  # noqa: E402
from kube_server import Server, free_ports, wait_until  # noqa: E402

from wattherd.runtime.kube.api.access import find_access  # noqa: E402
from wattherd.runtime.kube.api.transport import Transport  # noqa: E402

NAMESPACE = "bench"
EXTENDED = ROOT / "deploy" / "kubernetes" / "kube-scheduler-extender.yaml"
WARM_UP = 20
CREATORS = 32
EVENTS_S = 5.0
"""Events are written behind the bindings, at a rate."""
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}


@dataclass(frozen=True, slots=True)
class Running:
    """A contender at work: its processes, and where its extender tells of itself."""

    servers: Sequence[Server]
    metrics: str = ""

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in reversed(self.servers):
            server.resume()

    def cpu_s(self) -> dict[str, float]:
        return {server.name: _cpu_s(server.pid) for server in self.servers}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one burst; milliseconds of processor time, by process, and events are per pod.

    `plane_ms` is what the API server and etcd took; `load` is how many were at work, or waited
    for a processor, over the last minute of it.
    """

    pods_per_s: float
    cpu_ms: dict[str, float]
    plane_ms: float
    events: float
    load: float

    def line(self) -> str:
        parts = self.cpu_ms | {"API server and etcd": self.plane_ms}
        took = ", ".join(f"{name} {ms:.2f} ms" for name, ms in parts.items())
        return (
            f"{self.pods_per_s:.1f} pods/s; processor time per pod: {took}; "
            f"{self.events:.2f} events per pod; load {self.load:.1f}"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Bursts of one turn; `answers` by verb: how many took at most so many seconds."""

    contender: str
    queue: Figures
    racing: Figures
    answers: dict[str, dict[float, int]]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _ready(address: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return bool(_read(f"{address}/readyz"))
        except OSError:
            return False

    return ready


def _wattherd(plane: ControlPlane, command: str, address: str, *options: str) -> Server:
    arguments = ["-m", "wattherd.cli.main", "kube", command, f"--kubeconfig={plane.kubeconfig}"]
    log = plane.log(f"wattherd-{command}")
    server = Server(Path(sys.executable), [*arguments, *options], log, ready=_ready(address))
    server.name = "wattherd"
    return server


@contextmanager
def _stock(plane: ControlPlane, *, everywhere: bool) -> Iterator[Running]:
    config: Object = {"profiles": [{"schedulerName": "stock"}]}
    if everywhere:
        config = {"profiles": [{"schedulerName": "plain"}], "percentageOfNodesToScore": 100}
    server = plane.scheduler(config=config, name="plain" if everywhere else "stock")
    with _started(server):
        yield Running([server])


@contextmanager
def _extender(plane: ControlPlane) -> Iterator[Running]:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    decides = _wattherd(plane, "extender", address, f"--port={port}", "--deadline=5")
    config: Object = yaml.safe_load(EXTENDED.read_text())
    config["profiles"] = [{"schedulerName": "extender"}]
    config["extenders"][0] |= {"urlPrefix": address, "httpTimeout": "10s"}
    server = plane.scheduler(config=config, name="extended")
    with _started(decides), _started(server):
        yield Running([server, decides], f"{address}/metrics")


@contextmanager
def _second(plane: ControlPlane) -> Iterator[Running]:
    (port,) = free_ports(1)
    options = ("--name=second", f"--health=127.0.0.1:{port}")
    server = _wattherd(plane, "scheduler", f"http://127.0.0.1:{port}", *options)
    with _started(server):
        yield Running([server])


@contextmanager
def _started(server: Server) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.kill()


CONTENDERS = {
    "stock": lambda plane: _stock(plane, everywhere=False),
    "plain": lambda plane: _stock(plane, everywhere=True),
    "extender": _extender,
    "second": _second,
}


def fleet(nodes: int) -> Iterator[Object]:
    for row in range(nodes):
        yield a_node(f"node-{row:05}", labels=T4)


def create(plane: ControlPlane, names: Sequence[str], scheduler: str) -> None:
    """All at once, over many connections."""
    bodies = [json.dumps(a_pod(name, gpus=1, scheduler=scheduler)).encode() for name in names]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    async def run() -> None:
        ahead = iter(bodies)

        async def some() -> None:
            for body in ahead:
                await transport.request("POST", path, body=body, timeout_s=120)

        async with Transport(find_access(plane.kubeconfig)) as transport:
            await asyncio.gather(*(some() for _ in range(CREATORS)))

    asyncio.run(run())


def no_pod(api: KubeApi, fields: str) -> None:
    """Wait until no pod is so, without asking often: that would take time from who is measured."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    found = lambda: api.get(path, fieldSelector=fields, limit="1")["items"]  # noqa: E731
    wait_until(lambda: not found(), f"no pod with {fields}", within_s=900, every_s=0.5)


def settled(api: KubeApi) -> None:
    """Wait until all pods run, and events of them are written."""
    no_pod(api, "status.phase=Pending")
    time.sleep(EVENTS_S)


def burst(plane: ControlPlane, contender: str, number: int, pods: int) -> Result:
    """Two measurements of one contender: of a queue, and of pods as they come."""
    with CONTENDERS[contender](plane) as running:
        create(plane, [f"warm-{contender}-{number}-{row}" for row in range(WARM_UP)], contender)
        settled(plane.api)
        before = _answers(running)
        queue = _measured(plane, running, contender, f"queue-{contender}-{number}", pods)
        after = _answers(running)
        racing = _measured(
            plane, running, contender, f"racing-{contender}-{number}", pods, waits=False
        )
    answers = {
        verb: {edge: count - before.get(verb, {}).get(edge, 0) for edge, count in edges.items()}
        for verb, edges in after.items()
    }
    return Result(contender, queue, racing, answers)


def _measured(
    plane: ControlPlane,
    running: Running,
    contender: str,
    prefix: str,
    pods: int,
    *,
    waits: bool = True,
) -> Figures:
    """A burst; one that `waits` is created while the contender is stopped, which is then let go.

    KWOK is stopped until all are bound: what kubelets write is not of interest here.
    """
    names = [f"{prefix}-{row}" for row in range(pods)]
    plane.kwok.pause()
    if waits:
        running.pause()
        create(plane, names, contender)
    cpu_s, plane_s, began = running.cpu_s(), _cpu_of(plane), datetime.now(UTC)
    running.resume()
    if not waits:
        create(plane, names, contender)
    no_pod(plane.api, "spec.nodeName=")
    plane.kwok.resume()
    settled(plane.api)
    load, plane_s = os.getloadavg()[0], _cpu_of(plane) - plane_s
    cpu_ms = {name: 1000 * (s - cpu_s[name]) / pods for name, s in running.cpu_s().items()}
    wall_s = (_last_bound(plane, f"{prefix}-", pods) - began).total_seconds()
    told = _told_of(plane.api, f"{prefix}-")
    return Figures(pods / wall_s, cpu_ms, 1000 * plane_s / pods, told / pods, load)


def _cpu_of(plane: ControlPlane) -> float:
    return sum(_cpu_s(server.pid) for server in (plane.apiserver, plane.etcd))


def _last_bound(plane: ControlPlane, prefix: str, pods: int) -> datetime:
    """When the API server answered the last binding of these pods, as its audit log has it."""
    bound: dict[str, datetime] = {}
    for event in plane.audit():
        about = event.get("objectRef") or {}
        name, done = about.get("name", ""), event["responseStatus"].get("code", 0) < 300
        if about.get("subresource") == "binding" and done and name.startswith(prefix):
            bound[name] = datetime.fromisoformat(event["stageTimestamp"])
    assert len(bound) == pods, f"{len(bound)} of {pods} bindings are in the audit log"
    return max(bound.values())


def _told_of(api: KubeApi, prefix: str) -> int:
    """How many events tell of these pods."""
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    events = api.get(path)["items"]
    return sum(event["regarding"].get("name", "").startswith(prefix) for event in events)


def _answers(running: Running) -> dict[str, dict[float, int]]:
    """By verb: how many answers took at most so many seconds."""
    found: dict[str, dict[float, int]] = {}
    for line in _read(running.metrics).splitlines() if running.metrics else ():
        if "_bucket{" in line:
            _, verb, _, edge, rest = line.split('"')
            found.setdefault(verb, {})[float(edge)] = int(rest.rpartition(" ")[2])
    return found


def within_ms(edges: dict[float, int], part: float) -> float:
    """The first edge of the histogram below which at least this part of the answers is."""
    total = max(edges.values())
    return 1000 * min(edge for edge, count in edges.items() if count >= part * total)


def main() -> None:
    options = _options()
    results: list[Result] = []
    plane = ControlPlane.calm(kube_binaries.folder())
    with closing(plane):
        plane.start()
        plane.api.fleet(fleet(options.nodes))
        plane.api.namespace(NAMESPACE)
        order = options.only
        for number in range(options.rounds):
            for contender in order if number % 2 == 0 else reversed(order):
                result = burst(plane, contender, number, options.pods)
                results.append(result)
                head = f"{options.nodes} nodes, round {number + 1}, {contender}"
                print(f"{head}, a queue: {result.queue.line()}")
                print(f"{head}, as they come: {result.racing.line()}", flush=True)
    show(results, options.only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CONTENDERS))
    return parser.parse_args()


def median(results: Sequence[Result], contender: str, of: Callable[[Result], float]) -> float:
    return statistics.median(of(each) for each in results if each.contender == contender)


def ratios(results: Sequence[Result], one: str, other: str, kind: str) -> list[float]:
    """Of each round, minutes apart: how fast the machine is drifts over the whole run."""
    speeds = {
        name: [getattr(each, kind).pods_per_s for each in results if each.contender == name]
        for name in (one, other)
    }
    return [ours / theirs for ours, theirs in zip(speeds[one], speeds[other], strict=True)]


def show(results: Sequence[Result], contenders: Sequence[str]) -> None:
    queue = {each: median(results, each, lambda one: one.queue.pods_per_s) for each in contenders}
    racing = {each: median(results, each, lambda one: one.racing.pods_per_s) for each in contenders}
    for one in contenders:
        print(f"{one}: median {queue[one]:.1f} pods/s of a queue, {racing[one]:.1f} as they come")
    for one, other in (("second", "stock"), ("extender", "plain")):
        if one in queue and other in queue:
            parts = [ratios(results, one, other, kind) for kind in ("queue", "racing")]
            told = [
                f"{statistics.median(part):.2f} ({min(part):.2f}-{max(part):.2f})" for part in parts
            ]
            print(
                f"{one} / {other}, median of rounds: {told[0]} of a queue, {told[1]} as they come"
            )
    for verb in ("filter", "bind"):
        edges: dict[float, int] = {}
        for each in results:
            for edge, count in each.answers.get(verb, {}).items():
                edges[edge] = edges.get(edge, 0) + count
        if edges:
            told = ", ".join(
                f"{part:.0%} within {within_ms(edges, part):g} ms" for part in (0.5, 0.99)
            )
            print(f"extender, {verb}: {max(edges.values())} answers, {told}")


if __name__ == "__main__":
    main()
