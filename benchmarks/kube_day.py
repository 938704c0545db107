"""A day of jobs on a real control plane under a power budget: who gets most out of its watts.

    python benchmarks/kube_day.py [--nodes 50] [--jobs 300] [--minutes 8] [--only wattherd,kueue]
    python benchmarks/kube_day.py --desk --nodes 1000 --jobs 3000 [--only wattherd,gang,srtf]

One plane on loopback for each contender (`make kube-binaries`), nodes of two GPU models carried by
KWOK. The same Jobs (fixed `--seed`) come for all: shares of a GPU, GPUs, gangs, three priorities;
`kube_day_ledger.py` says how they are drawn. A day takes `--minutes`: a player makes each Job when
its time has come, watches its pods, and has them succeed once their work is done, which goes on at
the pace that the caps in force allow. It plays the agents of the nodes too: they set a cap when
they see it, and say so. Draw and work are told by the catalogue's curves, the same for everybody.

* wattherd: `wattherd kube scheduler --scheduler wattherd --power water-filling`.
* gang: the same without `--scheduler`: gangs by priority.
* stock: kube-scheduler as it comes, every GPU capped so that all of them fit the budget.
* kueue: Kueue before kube-scheduler, no caps, a quota in GPUs of each model that fits the budget.

Stock and Kueue give a share of a GPU a whole one. A scheduler's own time is not compressed: if a
day takes eight minutes, one second of its own is three minutes of the day. While processes of the
plane wait for a core, the day's clock goes slower by as much (proc_pid_schedstat: time on a core
over that and the time in a queue for one), so that a busy machine costs nobody anything but time.

With `--desk` there is no plane: `kube_day_desk.py` plays the day with our scheduler's decisions
alone, under any of its schedulers, and compresses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kube"))

import kube_binaries  # noqa: E402
import kueue_manager  # noqa: E402
from control_plane import CALM, POD_GROUPS, ControlPlane  # noqa: E402
from kube_api import KubeApi, Object, a_node, a_pod  # noqa: E402
from kube_contenders import cpu_s, wattherd  # noqa: E402
from kube_day_ledger import (  # noqa: E402
    DAY_S,
    NODE_GPUS,
    PRIORITIES,
    DayJob,
    DayLedger,
    a_day,
    budget_w,
    fleet_models,
    gpus_by_model,
    quotas,
    static_caps_w,
)
from kube_server import Server, free_ports, wait_until  # noqa: E402
from kube_watch import Watch  # noqa: E402

NAMESPACE = "day"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PRODUCT = "nvidia.com/gpu.product"
OURS = "wattherd.dev/"
CONTROLLERS = (f"{CALM.controllers[0]},job-controller", "--concurrent-job-syncs=10")
TICK_S = 0.25
SILENT_S = 3600.0
WRITERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is the same for all: nodes by number, the budget, and how fast the day goes."""

    nodes: int
    budget_w: float
    speed: float
    """Seconds of the day in a real one."""

    @property
    def gpus(self) -> dict[str, int]:
        return gpus_by_model(self.nodes)


@dataclass(slots=True)
class AtWork:
    """A contender at work: its processes, and what it makes of a job."""

    servers: Sequence[Server]
    make: Callable[[DayJob], list[tuple[str, Object]]]
    """Paths and objects, in the order in which they are made."""
    caps_w: Mapping[str, float] = field(default_factory=dict)

    def cpu_s(self) -> float:
        return sum(cpu_s(server.pid) for server in self.servers)


# --- jobs as objects ------------------------------------------------------------------------------


def a_job(
    job: DayJob,
    *,
    shares: bool = False,
    suspend: bool = False,
    scheduler: str | None = None,
    labels: Mapping[str, str] | None = None,
    about: Object | None = None,
    spec: Object | None = None,
) -> Object:
    """A Job whose pods may be stopped and made anew as often as it takes.

    Args:
        job: what it does.
        shares: whether a share of a GPU is asked for as one; else it takes a whole GPU.
        suspend: whether somebody else lets it run.
        scheduler: of its pods; the cluster's default if None.
        labels: of the Job.
        about: labels and annotations of its pods.
        spec: further fields of their spec.
    """
    share = {f"{OURS}gpu-milli": str(job.milli)} if shares and job.milli < 1000 else {}
    given: Object = about or {}
    pod = a_pod(
        job.name,
        gpus=0 if share else job.gpus,
        scheduler=scheduler,
        spec={
            "restartPolicy": "Never",
            "nodeSelector": {PRODUCT: job.model},
            "priorityClassName": f"day-{job.priority}",
            **(spec or {}),
        },
    )
    metadata = {
        "labels": {"day": job.name, **given.get("labels", {})},
        "annotations": {**given.get("annotations", {}), **share},
    }
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    return {
        "metadata": {"name": job.name, "labels": dict(labels or {})},
        "spec": {
            "suspend": suspend,
            "parallelism": job.pods,
            "completions": job.pods,
            "backoffLimit": 1_000_000,
            "podFailurePolicy": {"rules": [ignore]},
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }


# --- contenders -----------------------------------------------------------------------------------


@contextmanager
def _ours(plane: ControlPlane, site: Site, *options: str) -> Iterator[AtWork]:
    (port,) = free_ports(1)
    given = ("--name=day", f"--budget={site.budget_w:g}W", "--power=water-filling", *options)
    address = f"127.0.0.1:{port}"
    server = wattherd(plane, "scheduler", f"http://{address}", f"--health={address}", *given)

    def make(job: DayJob) -> list[tuple[str, Object]]:
        notes = {f"{OURS}duration": f"{max(1.0, 3600 * job.hours / site.speed):.0f}s"}
        if job.kind:
            notes[f"{OURS}power-profile"] = job.kind
        labels = {}
        if job.pods > 1:
            labels["kueue.x-k8s.io/pod-group-name"] = job.name
            notes["kueue.x-k8s.io/pod-group-total-count"] = str(job.pods)
        about = {"labels": labels, "annotations": notes}
        return [(JOBS, a_job(job, shares=True, scheduler="day", about=about))]

    server.begin()
    try:
        # Its kernels may have to be compiled, which takes minutes on a busy machine.
        wait_until(lambda: not server.running or server.is_ready(), "it is ready", within_s=900)
        assert server.running, server.said()
        yield AtWork([server], make)
    finally:
        server.kill()


@contextmanager
def _stock(plane: ControlPlane, site: Site) -> Iterator[AtWork]:
    server = plane.scheduler(name="stock")
    server.start()
    make = lambda job: [(JOBS, a_job(job))]  # noqa: E731
    yield AtWork([server], make, static_caps_w(site.gpus, site.budget_w))


@contextmanager
def _kueue(plane: ControlPlane, site: Site) -> Iterator[AtWork]:
    scheduler = plane.scheduler(name="behind-kueue")
    with kueue_manager.at_work(plane) as manager:
        for path, made in kueue_objects(quotas(site.gpus, site.budget_w)):
            plane.api.create(f"{kueue_manager.KUEUE}/{path}", made)
        scheduler.start()
        labels = {"kueue.x-k8s.io/queue-name": "day"}
        make = lambda job: [(JOBS, a_job(job, suspend=True, labels=labels))]  # noqa: E731
        yield AtWork([manager, scheduler], make)


def kueue_objects(quota: Mapping[str, int]) -> list[tuple[str, Object]]:
    """One queue with a flavor for each GPU model; who is more important preempts."""

    def a(kind: str, name: str, spec: Object) -> Object:
        version = "kueue.x-k8s.io/v1beta2"
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}

    names = {model: model.lower() for model in quota}
    flavors = [
        {
            "name": names[model],
            "resources": [
                {"name": "cpu", "nominalQuota": "100000"},
                {"name": "memory", "nominalQuota": "1000000Gi"},
                {"name": "nvidia.com/gpu", "nominalQuota": str(count)},
            ],
        }
        for model, count in quota.items()
    ]
    covered = [one["name"] for one in flavors[0]["resources"]]
    queue_spec = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
    }
    return [
        *(
            ("resourceflavors", a("ResourceFlavor", name, {"nodeLabels": {PRODUCT: model}}))
            for model, name in names.items()
        ),
        ("clusterqueues", a("ClusterQueue", "day", queue_spec)),
        (
            f"namespaces/{NAMESPACE}/localqueues",
            a("LocalQueue", "day", {"clusterQueue": "day"}),
        ),
    ]


Starts = Callable[[ControlPlane, Site], AbstractContextManager[AtWork]]
CONTENDERS: dict[str, Starts] = {
    "wattherd": lambda plane, site: _ours(plane, site, "--scheduler=wattherd"),
    "gang": _ours,
    "stock": _stock,
    "kueue": _kueue,
}


# --- the clock ------------------------------------------------------------------------------------


class DayClock:
    """Seconds of the day, `speed` in a real one that the processes `pids` need not wait in.

    Read by any thread, renewed by one.
    """

    def __init__(self, speed: float, pids: Sequence[int]) -> None:
        self._speed, self._pids = speed, pids
        self._spent = self._looked()
        self._state = (time.monotonic(), 0.0, speed)
        self.began_s = time.monotonic()

    def now_s(self) -> float:
        at_s, day_s, rate = self._state
        return day_s + (time.monotonic() - at_s) * rate

    def renew(self) -> None:
        """Go on as fast as processes got on since the last time."""
        before, self._spent = self._spent, self._looked()
        news = [
            (ran - before.get(task, (0, 0))[0], waited - before.get(task, (0, 0))[1])
            for task, (ran, waited) in self._spent.items()
        ]
        ran, waited = sum(one for one, _ in news), sum(other for _, other in news)
        day_s = self.now_s()
        self._state = (time.monotonic(), day_s, self._speed * unhindered(ran, waited))

    @property
    def rate(self) -> float:
        """Seconds of the day in a real one, now."""
        return self._state[2]

    def _looked(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for pid in self._pids:
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with suppress(OSError):  # a thread that has ended
                    ran, waited, _ = path.read_text().split()
                    found[path] = int(ran), int(waited)
        return found


def unhindered(ran: float, waited: float) -> float:
    """The part of the time in which threads wanted a core that they had one; 1 if none wanted."""
    return ran / (ran + waited) if ran > 0 else 1.0


# --- the player -----------------------------------------------------------------------------------


class Player:
    """Makes jobs, plays the agents, has pods succeed whose work is done, and keeps the books."""

    def __init__(
        self,
        api: KubeApi,
        ledger: DayLedger,
        jobs: Sequence[DayJob],
        work: AtWork,
        clock: Callable[[], DayClock],
    ) -> None:
        self._api, self._ledger, self._work = api, ledger, work
        self._jobs = {job.name: job for job in jobs}
        self._due = sorted(jobs, key=lambda job: job.at_s, reverse=True)
        self._begin = clock
        self._pods: dict[str, dict[str, str]] = {job.name: {} for job in jobs}
        """By job the names of its pods that run, by uid."""
        self._seen: queue.SimpleQueue[tuple[float, str, Object] | BaseException] = (
            queue.SimpleQueue()
        )
        self._over = threading.Event()
        self._behind_s: list[float] = []
        self.writes = 0

    def play(self, until_s: float) -> None:
        """From the first to the last second of the day."""
        with Watch(self._api, PODS, silence_s=SILENT_S) as watch:
            self._clock = self._begin()
            looks = threading.Thread(target=self._look, args=(watch,), daemon=True)
            looks.start()
            with ThreadPoolExecutor(WRITERS) as self._pool:
                shown_s = 0.0
                renewed_s = 0.0
                while (now_s := self._now_s()) < until_s:
                    if time.monotonic() - renewed_s >= TICK_S:
                        renewed_s = time.monotonic()
                        self._clock.renew()
                    self._make(now_s)
                    self._end(self._ledger.advance(max(now_s, self._ledger.now_s)))
                    self._hear(self._pause_s(until_s))
                    if now_s - shown_s >= 3600:
                        shown_s = now_s
                        self._show()
                self._end(self._ledger.advance(until_s))
                self._over.set()
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._api.create(PODS, a_pod("the-end"))  # who waits for news hears of it, and ends
            looks.join()

    def _now_s(self) -> float:
        return self._clock.now_s()

    def _pause_s(self, until_s: float) -> float:
        """Real seconds until something is due."""
        due_s = self._due[-1].at_s if self._due else until_s
        next_s = min(due_s, self._ledger.next_end_s(), until_s)
        return min(TICK_S, max(0.0, (next_s - self._now_s()) / self._clock.rate))

    def _make(self, now_s: float) -> None:
        while self._due and self._due[-1].at_s <= now_s:
            made = self._work.make(self._due.pop())
            self._pool.submit(self._created, made).add_done_callback(self._failed)

    def _created(self, made: Sequence[tuple[str, Object]]) -> None:
        for path, body in made:
            self._api.create(path, body)

    def _failed(self, made: Future[None]) -> None:
        if not made.cancelled() and (error := made.exception()) is not None:
            self._seen.put(error)

    def _end(self, names: Sequence[str]) -> None:
        for name in names:
            for pod in self._pods[name].values():
                self._patch(f"{PODS}/{pod}/status", {"status": {"phase": "Succeeded"}})

    def _patch(self, path: str, body: Object) -> None:
        self.writes += 1
        kind = "application/merge-patch+json"
        self._pool.submit(self._api.call, "PATCH", path, body, kind=kind)

    # What is seen ---------------------------------------------------------------------------------

    def _look(self, watch: Watch) -> None:
        try:
            for what, pod in watch.changes():
                self._seen.put((self._now_s(), what, pod))
                if self._over.is_set():
                    return
        except (OSError, HTTPException, AssertionError) as failed:
            self._seen.put(failed)

    def _hear(self, seconds: float) -> None:
        """All that was seen by now; waits so long for the first."""
        wait = True
        while True:
            try:
                found = self._seen.get(timeout=seconds) if wait else self._seen.get_nowait()
            except queue.Empty:
                return
            if isinstance(found, BaseException):
                raise found
            at_s, what, pod = found
            self._end(self._ledger.advance(max(at_s, self._ledger.now_s)))
            self._saw(what, pod)
            if wait:
                self._behind_s.append((self._now_s() - at_s) / self._clock.rate)
            wait = False

    def _saw(self, what: str, pod: Object) -> None:
        meta, name = pod["metadata"], pod["metadata"]["labels"]["day"]
        running = pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running"
        if what == "DELETED" or "deletionTimestamp" in meta or not running:
            self._pods[name].pop(meta["uid"], None)
            self._ledger.gone(meta["uid"])
            return
        notes, job = meta.get("annotations", {}), self._jobs[name]
        asked = self._agent(meta, notes)
        numbers = notes.get(f"{OURS}gpus")
        device = (pod["spec"]["nodeName"], numbers) if numbers else (meta["uid"],)
        cap_w = None if asked is None else float(asked) / job.gpus
        self._pods[name][meta["uid"]] = meta["name"]
        self._ledger.runs(meta["uid"], name, device=device, cap_w=cap_w)

    def _agent(self, meta: Object, notes: Mapping[str, str]) -> str | None:
        """What a pod is asked to draw at most, which its agent sets and then says."""
        asked, read = notes.get(f"{OURS}cap-w"), notes.get(f"{OURS}cap-applied-w")
        if asked != read:
            told = {"metadata": {"annotations": {f"{OURS}cap-applied-w": asked}}}
            self._patch(f"{PODS}/{meta['name']}", told)
        return asked

    def _show(self) -> None:
        ledger = self._ledger
        print(f"  {ledger.now_s / 3600:4.1f} h: {ledger.live()} jobs work, {ledger.ended()} ended, "
              f"{ledger.draw_w / 1000:.1f} of {ledger.budget_w / 1000:.1f} kW, "
              f"{ledger.above_s:.0f} s above", file=sys.stderr, flush=True)  # fmt: skip

    def behind_s(self) -> float:
        """Real seconds between what was seen and its being booked: the worst in a hundred looks."""
        found = sorted(self._behind_s)
        return found[int(0.99 * len(found))] if found else 0.0


def fleet(nodes: int) -> Iterator[Object]:
    for row, model in enumerate(fleet_models(nodes)):
        labels = {PRODUCT: model, f"{OURS}agent": "true", f"{OURS}gpu-shares": "annotation"}
        yield a_node(f"node-{row:05}", gpus=NODE_GPUS, labels=labels)


def play(name: str, jobs: Sequence[DayJob], site: Site, until_s: float = DAY_S) -> dict[str, Any]:
    """One contender's day on a plane of its own; its scores."""
    plane = ControlPlane(
        kube_binaries.folder(),
        apiserver=(*POD_GROUPS, *CALM.apiserver),
        controllers=CONTROLLERS,
        lease_s=CALM.lease_s,
    )
    with closing(plane):
        plane.start()
        plane.api.namespace(NAMESPACE)
        plane.api.fleet(fleet(site.nodes))
        return play_on(plane, name, jobs, site, until_s)


def play_on(
    plane: ControlPlane, name: str, jobs: Sequence[DayJob], site: Site, until_s: float = DAY_S
) -> dict[str, Any]:
    """One contender's day on a plane that has the nodes and the namespace; its scores."""
    with ExitStack() as stack:
        for priority, value in PRIORITIES.items():
            plane.api.create(CLASSES, {"metadata": {"name": f"day-{priority}"}, "value": value})
            stack.callback(plane.api.call, "DELETE", f"{CLASSES}/day-{priority}")
        work = stack.enter_context(CONTENDERS[name](plane, site))
        ledger = DayLedger(jobs, site.gpus, site.budget_w, work.caps_w)
        servers = (*work.servers, plane.apiserver, plane.etcd, plane.controllers, plane.kwok)
        pids = [os.getpid(), *(server.pid for server in servers)]
        player = Player(plane.api, ledger, jobs, work, lambda: DayClock(site.speed, pids))
        before_s = work.cpu_s(), cpu_s(plane.apiserver.pid) + cpu_s(plane.etcd.pid)
        began_s = time.monotonic()
        player.play(until_s)
        spent = {
            "scheduler_cpu_s": work.cpu_s() - before_s[0],
            "plane_cpu_s": cpu_s(plane.apiserver.pid) + cpu_s(plane.etcd.pid) - before_s[1],
            "agent_and_end_writes": player.writes,
            "behind_p99_s": player.behind_s(),
            "real_min": (time.monotonic() - began_s) / 60,
        }
    return {"contender": name, **ledger.scores(), **spent}


def at_desk(name: str, jobs: Sequence[DayJob], site: Site, until_s: float) -> dict[str, Any]:
    """The same day by our decisions alone, under a scheduler of ours."""
    from kube_day_desk import DayDesk

    desk = DayDesk(jobs, site.nodes, site.budget_w, "" if name == "gang" else name)
    return {"contender": name, **desk.play(until_s)}


ROWS = (
    ("work done, GPU-hours", "work_gpu_h", ",.0f"),
    ("jobs ended", "jobs_ended", ",.0f"),
    ("wait, high: mean, min", "wait_high_mean_min", ",.0f"),
    ("wait, high: p95, min", "wait_high_p95_min", ",.0f"),
    ("wait, normal: mean, min", "wait_normal_mean_min", ",.0f"),
    ("wait, normal: p95, min", "wait_normal_p95_min", ",.0f"),
    ("wait, low: mean, min", "wait_low_mean_min", ",.0f"),
    ("wait, low: p95, min", "wait_low_p95_min", ",.0f"),
    ("energy, kWh", "energy_kwh", ",.0f"),
    ("mean draw, part of the budget", "used_part", ".1%"),
    ("seconds above the budget", "above_s", ",.0f"),
    ("above at most, W", "most_above_w", ",.0f"),
    ("stops", "stops", ",.0f"),
    ("work lost by stops, GPU-hours", "lost_gpu_h", ",.0f"),
    ("processor seconds: scheduler", "scheduler_cpu_s", ",.0f"),
    ("processor seconds: API server, etcd", "plane_cpu_s", ",.0f"),
    ("player behind, p99, s", "behind_p99_s", ".2f"),
    ("the day took, real minutes", "real_min", ".1f"),
    ("plans", "plans", ",.0f"),
    ("a plan, median, ms of processor", "plan_median_ms", ".1f"),
    ("a plan, p99, ms of processor", "plan_p99_ms", ".1f"),
)


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Contenders side by side, as Markdown."""
    lines = ["| | " + " | ".join(str(one["contender"]) for one in found) + " |"]
    lines.append("|---|" + "---|" * len(found))
    for words, key, form in ROWS:
        if not all(key in one for one in found):
            continue
        lines.append(f"| {words} | " + " | ".join(format(one[key], form) for one in found) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the day for each contender and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=8.0, help="that the day takes")
    parser.add_argument("--load", type=float, default=0.75, help="of all GPUs at full power")
    parser.add_argument(
        "--budget", type=float, default=0.6, help="part of what GPUs draw above idle"
    )
    parser.add_argument("--hours", type=float, default=24.0, help="of the day that are played")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--desk", action="store_true", help="our decisions alone, without a plane")
    options = parser.parse_args(arguments)
    gpus = gpus_by_model(options.nodes)
    site = Site(
        nodes=options.nodes,
        budget_w=budget_w(gpus, options.budget),
        speed=DAY_S / (60 * options.minutes),
    )
    jobs = a_day(options.jobs, options.nodes, load=options.load, seed=options.seed)
    pods = sum(job.pods for job in jobs)
    print(f"{options.nodes} nodes, {sum(gpus.values())} GPUs, {len(jobs)} jobs of {pods} pods, "
          f"{sum(job.work_s for job in jobs) / 3600:,.0f} GPU-hours; budget "
          f"{site.budget_w / 1000:.1f} kW"
          f"{'' if options.desk else f', a day in {options.minutes:g} min'}")  # fmt: skip
    found = []
    for name in options.only or (["wattherd", "gang"] if options.desk else CONTENDERS):
        print(f"{name}:", file=sys.stderr, flush=True)
        found.append(
            at_desk(name, jobs, site, 3600 * options.hours)
            if options.desk
            else play(name, jobs, site, 3600 * options.hours)
        )
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
