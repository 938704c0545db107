"""Pods per second on a real control plane: a stock kube-scheduler, wattherd beside it, wattherd.

    python benchmarks/kube.py [--nodes 1000] [--pods 150] [--rounds 10] [--only stock,second]
    python benchmarks/kube.py --rounds 5 --only stock,second-capacity,second-tiresias

One plane on loopback (`make kube-binaries`), nodes carried by KWOK. All contenders (see
`kube_contenders.py`) run from the first to the last round, stopped while it is not their turn.
A turn is a few pods to warm up and two bursts of pods that ask for one GPU each: a queue that was
there before its scheduler was let go, and pods as they come. Counted is from the API server's audit
log, from the first pod created (or let go) to the last one bound.

Turns are short and go there and back again, as a shared machine is not equally fast for long:
compare within a round, and take the median of many. Round 0 is not counted: heaps and caches grow
in it. Processor time is that of each process until all is quiet again; how long the extender took
to answer is read from its own metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kube"))

import kube_binaries
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_contenders import CONTENDERS, SECOND, Contender, contender, cpu_s, read
from kube_server import wait_until

from wattherd.kube.api.access import find_access
from wattherd.kube.api.transport import Transport

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WARM_UP = 10
CREATORS = 32
QUIET = 0.3
"""Of one processor: less than that is no work of ours, but heartbeats."""
LOOK_S = 0.5
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
PLANE = "API server and etcd"
KINDS = {"queue": "a queue", "racing": "as they come"}
Histogram = dict[float, int]
"""How many answers took at most so many seconds."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What was measured of one burst; processor time, by process, and events are per pod."""

    pods_per_s: float
    cpu_ms: dict[str, float]
    events: float

    def line(self) -> str:
        took = ", ".join(f"{name} {ms:.2f} ms" for name, ms in self.cpu_ms.items())
        return f"{self.pods_per_s:.1f} pods/s; processor time per pod: {took}"


class Arena:
    """A plane with its nodes, on which contenders take turns."""

    def __init__(self, plane: ControlPlane, contenders: Mapping[str, Contender]) -> None:
        self._plane = plane
        self._contenders = contenders
        self._bursts = 0

    def turn(self, name: str, pods: int) -> dict[str, Burst]:
        """Both bursts of one contender, by kind."""
        contender = self._contenders[name]
        contender.resume()
        create(self._plane, [f"warm-{self._bursts}-{row}" for row in range(WARM_UP)], name)
        self._settle()
        bursts = {kind: self._burst(name, pods, waits=kind == "queue") for kind in KINDS}
        contender.pause()
        return bursts

    def _burst(self, name: str, pods: int, *, waits: bool) -> Burst:
        """One that `waits` is created while the contender is stopped, which is then let go.

        KWOK is stopped until all are bound: what kubelets write is not of interest here.
        """
        plane, contender = self._plane, self._contenders[name]
        self._bursts += 1
        names = [f"burst-{self._bursts}-{row}" for row in range(pods)]
        plane.kwok.pause()
        if waits:
            contender.pause()
            create(plane, names, name)
            self._quiet()
        before, began = self._cpu_s(contender), datetime.now(UTC)
        contender.resume()
        if not waits:
            create(plane, names, name)
        no_pod(plane.api, "spec.nodeName=")
        self._quiet()
        cpu_ms = {
            each: 1000 * (s - before[each]) / pods for each, s in self._cpu_s(contender).items()
        }
        wall_s = (last_bound(plane, names) - began).total_seconds()
        told = events_of(plane.api, names[0].rpartition("-")[0])
        plane.kwok.resume()
        self._clear()
        return Burst(pods / wall_s, cpu_ms, told / pods)

    def _clear(self) -> None:
        self._plane.api.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
        no_pod(self._plane.api, "")
        self._settle()

    def _settle(self) -> None:
        no_pod(self._plane.api, "status.phase=Pending")
        self._quiet()

    def _quiet(self) -> None:
        """Until nothing is left to do: events and statuses are written behind the bindings."""
        busy = self._work_s()

        def quiet() -> bool:
            nonlocal busy
            before, busy = busy, self._work_s()
            return busy - before < QUIET * LOOK_S

        time.sleep(LOOK_S)
        wait_until(quiet, "the plane is quiet", every_s=LOOK_S)

    def _work_s(self) -> float:
        servers = [one for each in self._contenders.values() for one in each.servers]
        plane = self._plane
        pids = [one.pid for one in (*servers, plane.apiserver, plane.etcd, plane.kwok)]
        return sum(cpu_s(pid) for pid in pids)

    def _cpu_s(self, contender: Contender) -> dict[str, float]:
        of_plane = sum(cpu_s(one.pid) for one in (self._plane.apiserver, self._plane.etcd))
        return contender.cpu_s() | {PLANE: of_plane}


def create(plane: ControlPlane, names: Sequence[str], scheduler: str) -> None:
    """All at once, over many connections."""
    bodies = [json.dumps(a_pod(name, gpus=1, scheduler=scheduler)).encode() for name in names]

    async def run() -> None:
        ahead = iter(bodies)

        async def some() -> None:
            for body in ahead:
                await transport.request("POST", PODS, body=body, timeout_s=120)

        async with Transport(find_access(plane.kubeconfig)) as transport:
            await asyncio.gather(*(some() for _ in range(CREATORS)))

    asyncio.run(run())


def no_pod(api: KubeApi, fields: str) -> None:
    """Wait until no pod is so, without asking often: that would take time from who is measured."""
    found = lambda: api.get(PODS, fieldSelector=fields, limit="1")["items"]  # noqa: E731
    wait_until(lambda: not found(), f"no pod with {fields}", within_s=900, every_s=LOOK_S)


def last_bound(plane: ControlPlane, names: Sequence[str]) -> datetime:
    """When the API server answered the last binding of these pods, as its audit log has it."""
    bound, sought = dict[str, datetime](), set(names)
    for event in plane.audit():
        about = event.get("objectRef") or {}
        name, done = about.get("name", ""), event["responseStatus"].get("code", 0) < 300
        if about.get("subresource") == "binding" and done and name in sought:
            bound[name] = datetime.fromisoformat(event["stageTimestamp"])
    assert len(bound) == len(sought), f"{len(bound)} of {len(sought)} bindings are in the audit log"
    return max(bound.values())


def events_of(api: KubeApi, prefix: str) -> int:
    """How many events tell of the pods of a burst."""
    events = api.get(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
    return sum(event["regarding"].get("name", "").startswith(f"{prefix}-") for event in events)


def answers(contender: Contender) -> dict[str, Histogram]:
    """What an extender tells of its answers, by verb."""
    found: dict[str, Histogram] = {}
    for line in read(contender.metrics).splitlines() if contender.metrics else ():
        if "_bucket{" in line:
            _, verb, _, edge, rest = line.split('"')
            found.setdefault(verb, {})[float(edge)] = int(rest.rpartition(" ")[2])
    return found


def within_ms(edges: Histogram, part: float) -> float:
    """The first edge of the histogram below which at least this part of the answers is."""
    total = max(edges.values())
    return 1000 * min(edge for edge, count in edges.items() if count >= part * total)


def fleet(nodes: int) -> Iterator[Object]:
    for row in range(nodes):
        yield a_node(f"node-{row:05}", labels=T4)


Results = dict[str, dict[str, list[Burst]]]
"""By contender and kind, in the order of the rounds."""


def main() -> None:
    options = _options()
    results: Results = {name: {kind: [] for kind in KINDS} for name in options.only}
    plane = ControlPlane.calm(kube_binaries.folder())
    with closing(plane), ExitStack() as started:
        plane.start()
        plane.api.fleet(fleet(options.nodes))
        plane.api.namespace(NAMESPACE)
        contenders = {name: contender(name, plane) for name in options.only}
        for each in contenders.values():
            started.callback(each.kill)
            each.start()
            each.pause()
        arena = Arena(plane, contenders)
        for number in range(options.rounds + 1):
            for name in options.only if number % 2 == 0 else reversed(options.only):
                for kind, burst in arena.turn(name, options.pods).items():
                    print(f"round {number}, {name}, {KINDS[kind]}: {burst.line()}", flush=True)
                    if number:
                        results[name][kind].append(burst)
        show(results)
        for name, each in contenders.items():
            each.resume()
            show_answers(name, answers(each))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CONTENDERS))
    return parser.parse_args()


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and between which the middle half is."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def show(results: Results) -> None:
    """Medians, and between which the middle half of the rounds is."""
    for name, by_kind in results.items():
        for kind, bursts in by_kind.items():
            speeds = spread([one.pods_per_s for one in bursts], 1)
            cpu = {
                each: statistics.median(one.cpu_ms[each] for one in bursts)
                for each in bursts[0].cpu_ms
            }
            took = ", ".join(f"{each} {ms:.2f} ms" for each, ms in cpu.items())
            told = statistics.mean(one.events for one in bursts)
            print(f"{name}, {KINDS[kind]}: {speeds} pods/s; per pod: {took}; {told:.2f} events")
    seconds = [(name, "stock") for name in results if name.startswith(SECOND)]
    for one, other in (*seconds, ("extender", "plain")):
        if one in results and other in results:
            for kind, words in KINDS.items():
                print(f"{one} / {other}, {words}: {compared(results[one], results[other], kind)}")


def compared(ours: dict[str, list[Burst]], theirs: dict[str, list[Burst]], kind: str) -> str:
    """Pods per second of one as a multiple of the other's, round by round; and processor time."""
    pairs = list(zip(ours[kind], theirs[kind], strict=True))
    speed = spread([one.pods_per_s / other.pods_per_s for one, other in pairs])
    cpu = spread([sum(one.cpu_ms.values()) / sum(other.cpu_ms.values()) for one, other in pairs])
    return f"{speed} of its pods/s, {cpu} of its processor time"


def show_answers(name: str, by_verb: Mapping[str, Histogram]) -> None:
    """How long an extender took to answer."""
    for verb, edges in by_verb.items():
        if edges and max(edges.values()):
            half, most = within_ms(edges, 0.5), within_ms(edges, 0.99)
            count = max(edges.values())
            print(f"{name}, {verb}: {count} answers, half within {half:g} ms, 99% within {most:g}")


if __name__ == "__main__":
    main()
