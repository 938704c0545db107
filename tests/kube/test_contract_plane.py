"""`wattherd kube scheduler` on a control plane decides as the simulator does.

Jobs are Jobs, users namespaces, queues Queue objects, and the budget is a PowerBudget of a domain
with all nodes. Agents are played: they hold the caps that they are asked for, and say so. What was
decided is read from the API alone: starts in the order of their decisions' numbers, stops as the
pods of a run go, caps where what agents read back is what was asked for last.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from power_api import an_object, defined, path_of, there
from test_second_scheduler import nodes_of

from shell_contract import (
    GPU,
    GPUS_EACH,
    MODEL,
    PATIENCE_S,
    POLICIES,
    POWER,
    Decided,
    Places,
    ScriptJob,
    hold_to_the_simulator,
    nodes,
    script,
)

HALL = {"test.wattherd.dev/hall": "contract"}
LABELS = HALL | {
    "nvidia.com/gpu.product": MODEL,
    "wattherd.dev/gpu-shares": "annotation",
    "wattherd.dev/agent": "true",
}
QUEUES = {"blue": 50, "red": 49}
"""Promises in percent; what is left is the queue `default`."""
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
EVERY_S, HEARD_S = 0.2, 1.5
"""How often the API is looked at, and within how long news are mostly decided upon."""
_numbers = itertools.count(1)


@dataclass(slots=True)
class _Run:
    """The pods of a job that are on nodes, by uid, from the first to the last."""

    places: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    decisions: list[int] = field(default_factory=list)
    gone: bool = False

    @property
    def all_places(self) -> Places:
        found: dict[str, list[int]] = {}
        for node, gpus in self.places.values():
            found.setdefault(node, []).extend(gpus)
        return tuple((node, tuple(sorted(gpus))) for node, gpus in sorted(found.items()))


class PlaneShell:
    """A script's jobs on the plane, in namespaces that begin with `prefix`."""

    def __init__(
        self, api: KubeApi, prefix: str, name: str, process: subprocess.Popen[bytes]
    ) -> None:
        self._api, self._prefix, self._name, self._process = api, prefix, name, process
        self._jobs: dict[str, ScriptJob] = {}
        self._runs: dict[str, list[_Run]] = {}
        self._ended: set[str] = set()
        self._stops: list[str] = []
        self._caps_w: dict[str, float] = {}
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    # What happens ---------------------------------------------------------------------------------

    def submit(self, job: ScriptJob) -> None:
        self._jobs[job.name] = job
        pod = a_pod("any", gpus=job.gpus, scheduler=self._name, spec={"restartPolicy": "Never"})
        pod["spec"]["priorityClassName"] = _class_of(job.priority)
        group = {"kueue.x-k8s.io/pod-group-name": job.name} if job.pods > 1 else {}
        size = {"kueue.x-k8s.io/pod-group-total-count": str(job.pods)} if job.pods > 1 else {}
        about = {
            "labels": {"wattherd.dev/queue": job.queue} | group,
            "annotations": {"wattherd.dev/duration": f"{job.hours:g}h"} | size,
        }
        template = {"metadata": about, "spec": pod["spec"]}
        spec = {"parallelism": job.pods, "completions": job.pods, "template": template}
        space = f"{self._prefix}-{job.user}"
        made = {"metadata": {"name": job.name}, "spec": spec}
        self._api.create(f"/apis/batch/v1/namespaces/{space}/jobs", made)
        mine = lambda: [one for one in self._pods(space) if _owner(one) == job.name]  # noqa: E731
        wait_until(lambda: len(mine()) == job.pods, f"pods of {job.name}", within_s=PATIENCE_S)

    def budget(self, watts: float) -> None:
        self._api.merge(path_of("PowerBudget", "now"), {"spec": {"constant": f"{watts:g}W"}})

    def end(self, name: str) -> None:
        """All pods of a job succeed at once: the scheduler looks when the last has."""
        space = f"{self._prefix}-{self._jobs[name].user}"
        with self._looking:
            self._ended.add(name)
        self._process.send_signal(signal.SIGSTOP)
        try:
            for pod in self._pods(space):
                if _owner(pod) == name and not _is_going(pod):
                    path = f"/api/v1/namespaces/{space}/pods/{pod['metadata']['name']}/status"
                    self._api.merge(path, {"status": {"phase": "Succeeded"}})
            time.sleep(HEARD_S)  # the API server has sent news of the last one, too
        finally:
            self._process.send_signal(signal.SIGCONT)

    def let_pass(self, seconds: float) -> None:
        time.sleep(seconds)

    def until(self, true: Callable[[], bool]) -> None:
        """Times of creation are whole seconds: no step is as short as one."""
        time.sleep(HEARD_S)
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and not true():
            assert self._process.poll() is None, "the scheduler has ended"
            assert self._failed is None, self._failed
            time.sleep(EVERY_S)

    # What is seen ---------------------------------------------------------------------------------

    def decided(self) -> Decided:
        with self._looking:
            runs = [
                (min(run.decisions), name, run.all_places)
                for name, line in self._runs.items()
                for run in line
                if len(run.places) == self._jobs[name].pods
            ]
            starts = tuple((name, places) for _, name, places in sorted(runs))
            return Decided(starts, tuple(self._stops), dict(self._caps_w))

    def _pods(self, space: str) -> list[Object]:
        found: list[Object] = self._api.get(f"/api/v1/namespaces/{space}/pods")["items"]
        return found

    def _watch(self) -> None:
        try:
            while not self._over.wait(EVERY_S):
                with self._looking:
                    self._look()
        except BaseException as failed:
            self._failed = failed
            raise

    def _look(self) -> None:
        live: dict[str, list[Object]] = {}
        for user in ("ann", "bob"):
            for pod in self._pods(f"{self._prefix}-{user}"):
                bound = pod["spec"].get("nodeName") and not _is_going(pod)
                if bound and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                    live.setdefault(_owner(pod), []).append(pod)
        for name, pods in live.items():
            self._note_start(name, pods)
        for name, line in self._runs.items():
            there = {pod["metadata"]["uid"] for pod in live.get(name, ())}
            for run in line:
                if not run.gone and there.isdisjoint(run.places):
                    run.gone = True
                    if name not in self._ended:
                        self._stops.append(name)
        self._caps_w = {
            name: max(self._agent(pod, self._jobs[name].gpus) for pod in pods)
            for name, pods in live.items()
            if name not in self._ended and len(pods) == self._jobs[name].pods
        }

    def _note_start(self, name: str, pods: list[Object]) -> None:
        line = self._runs.setdefault(name, [])
        if not line or line[-1].gone or not _may_be_of(line[-1], pods):
            line.append(_Run())
        run = line[-1]
        for pod in pods:
            meta, notes = pod["metadata"], pod["metadata"]["annotations"]
            if meta["uid"] not in run.places:
                gpus = tuple(int(one) for one in notes["wattherd.dev/gpus"].split(","))
                node = pod["spec"]["nodeName"].rpartition("-")[2]
                run.places[meta["uid"]] = node, gpus
                run.decisions.append(int(notes["wattherd.dev/decision"].rpartition("/")[2]))

    def _agent(self, pod: Object, gpus: int) -> float:
        """Hold what is asked for, and say so; the watts of a GPU that are known to be kept."""
        meta, notes = pod["metadata"], pod["metadata"]["annotations"]
        asked, read = (notes.get(f"wattherd.dev/{one}") for one in ("cap-w", "cap-applied-w"))
        if asked == read:
            return GPU.max_w if asked is None else float(asked) / gpus
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        told = {"metadata": {"annotations": {"wattherd.dev/cap-applied-w": asked}}}
        self._api.call("PATCH", path, told, kind="application/merge-patch+json")
        return GPU.max_w


def _owner(pod: Object) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["name"])


def _is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _may_be_of(run: _Run, pods: list[Object]) -> bool:
    """Pods of a run are there with each other, of the next one with none of them."""
    uids = {pod["metadata"]["uid"] for pod in pods}
    return not uids.isdisjoint(run.places)


def _class_of(priority: int) -> str:
    return f"contract-{priority}".replace("--", "-minus-")


@contextmanager
def _priorities(api: KubeApi) -> Iterator[None]:
    values = (-1, 0, 1, 2)
    for value in values:
        api.call("POST", CLASSES, {"metadata": {"name": _class_of(value)}, "value": value})
    try:
        yield
    finally:
        for value in values:
            api.call("DELETE", f"{CLASSES}/{_class_of(value)}")


@contextmanager
def _site(plane: ControlPlane, policy: str) -> Iterator[PlaneShell]:
    api, prefix = plane.api, f"contract-{os.getpid()}-{next(_numbers)}"
    name = f"{prefix}-{policy}"
    first = script(policy)[0]
    hall = [
        an_object("PowerDomain", "hall", limit="1MW", nodeSelector={"matchLabels": HALL}),
        an_object("PowerBudget", "now", domain="hall", constant=f"{first.watts:g}W"),
        *(an_object("Queue", queue, guaranteedPercent=pct) for queue, pct in QUEUES.items()),
    ]
    made = [a_node(f"{prefix}-{one.name}", gpus=GPUS_EACH, labels=LABELS) for one in nodes()]
    options = [f"--scheduler={policy}", f"--power={POWER}", f"--name={name}"]
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", *options]
    with ExitStack() as stack:
        stack.enter_context(defined(api))
        stack.enter_context(_priorities(api))
        stack.enter_context(there(api, hall))
        for user in ("ann", "bob"):
            stack.callback(api.remove_namespace, api.namespace(f"{prefix}-{user}"))
        stack.enter_context(nodes_of(api, made))
        process = stack.enter_context(
            subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"])
        )
        stack.callback(process.terminate)
        shell = PlaneShell(api, prefix, name, process)
        stack.callback(shell.close)
        yield shell


@pytest.mark.parametrize("policy", POLICIES)
def test_pods_start_and_stop_as_in_the_simulator(plane: ControlPlane, policy: str) -> None:
    with _site(plane, policy) as shell:
        hold_to_the_simulator(policy, shell)
