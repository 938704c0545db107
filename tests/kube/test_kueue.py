"""`wattherd kube admission-check` with Kueue's own manager on a real control plane."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import kube_ledger
import pytest
import safe_copies
from control_plane import ControlPlane
from draw_watch import SampledDraw
from kube_api import IMAGE, KubeApi, Object
from kube_binaries import NoBinaries
from kube_server import end, wait_until
from kueue_manager import a_queue, at_work, workloads
from power_api import an_object, defined, path_of
from shipped_rights import account
from t4_racks import IDLE_W, RISE_W, Racks
from test_power_budgets import AGENT, LEAST_W, Agents

from promises import promise

RACKS = Racks("kueue", nodes=4)
EVERY_S = 0.2
PATIENCE_S = 240.0


@pytest.fixture(scope="module", autouse=True)
def _kueue(plane: ControlPlane) -> Iterator[None]:
    """Kueue and a stock kube-scheduler at work."""
    try:
        with at_work(plane):
            scheduler = plane.scheduler(name="kueue-scheduler")
            scheduler.start()
            yield
            scheduler.kill()
    except NoBinaries as absent:
        pytest.skip(str(absent))


@pytest.fixture
def ours(plane: ControlPlane) -> Iterator[Path]:
    """The rights that the check is shipped with, and no others."""
    with account(plane, "admission-check") as kubeconfig:
        yield kubeconfig


@pytest.fixture
def racks(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Power domains by node."""
    with RACKS.made(plane.api) as domains:
        yield domains


@pytest.fixture
def queue(plane: ControlPlane, namespace: str, racks: dict[str, str]) -> Iterator[str]:
    """A queue with quota for everything, whose workloads must pass our check.

    Its jobs and their pods are gone before their nodes are.
    """
    del racks
    with a_queue(plane.api, namespace) as name:
        yield name
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        for job in plane.api.get(jobs)["items"]:
            name_of = job["metadata"]["name"]
            plane.api.delete(f"{jobs}/{name_of}", propagationPolicy="Background")


def a_job(name: str, queue: str, *, pods: int, priority: str = "") -> Object:
    """Suspended, as Kueue's webhook would make it."""
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": IMAGE, "resources": {"limits": limits}}
    spec: Object = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    if priority:
        spec["priorityClassName"] = priority
    return {
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": spec},
        },
    }


@contextmanager
def answering(kubeconfig: Path, *options: str, health: str = "127.0.0.1:0") -> Iterator[None]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "admission-check"]
    given = [f"--kubeconfig={kubeconfig}", "--retry=1", f"--health={health}", *options]
    with subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(2)]
            assert "wattherd.dev/power" in lines[1], [*lines, process.stderr.read()]
            yield
        finally:
            end(process)


def running(api: KubeApi, namespace: str) -> dict[str, str]:
    """Nodes of pods that draw, by pod."""
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in items
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
    }


def jobs_of(pods: dict[str, str]) -> set[str]:
    return {name.rpartition("-")[0] for name in pods}


def told(api: KubeApi, namespace: str) -> str:
    """Where all workloads stand, for who waits in vain."""
    lines = [str(running(api, namespace))]
    for one in workloads(api, namespace):
        status = one.get("status", {})
        conditions = [
            f"{each['type']}={each['status']} {each['message']}"
            for each in status.get("conditions", ())
        ]
        checks = [
            f"{each['state']}: {each['message']}" for each in status.get("admissionChecks", ())
        ]
        lines.append("; ".join([one["metadata"]["name"], *conditions, *checks]))
    return "\n".join(lines)


class Sampled:
    """The most pods that were ever seen in each domain, and in all."""

    def __init__(self, api: KubeApi, namespace: str, domains: dict[str, str]) -> None:
        self.most = dict.fromkeys(domains.values(), 0)
        self.most_together = self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(api, namespace, domains))
        self._thread.start()

    def _look(self, api: KubeApi, namespace: str, domains: dict[str, str]) -> None:
        while not self._over.wait(EVERY_S):
            nodes = list(running(api, namespace).values())
            self.looks += 1
            self.most_together = max(self.most_together, len(nodes))
            for domain in self.most:
                there = sum(domains[node] == domain for node in nodes)
                self.most[domain] = max(self.most[domain], there)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def wait_full(api: KubeApi, namespace: str) -> None:
    wait_until(lambda: len(running(api, namespace)) == 8, lambda: told(api, namespace),
               within_s=PATIENCE_S)  # fmt: skip


def end_one_and_wait(api: KubeApi, namespace: str, health: str) -> None:
    """Another one follows, by whoever answers at `health` and counts what there is, no more."""
    done = min(jobs_of(running(api, namespace)))
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{done}"
    api.delete(path, propagationPolicy="Background")
    wait_until(lambda: len(jobs_of(running(api, namespace)) - {done}) == 4,
               "its watts go to another one", within_s=PATIENCE_S)  # fmt: skip
    for rack in ("kueue-rack-0", "kueue-rack-1"):
        kube_ledger.wait_nothing_leaked(api, health, rack)


def state(api: KubeApi, namespace: str, job: str) -> Object:
    """What our check says of a job."""
    for one in workloads(api, namespace):
        if one["metadata"]["ownerReferences"][0]["name"] == job:
            for check in one.get("status", {}).get("admissionChecks", ()):
                return dict(check)
    return {"state": "", "message": ""}


def test_jobs_of_a_queue_never_draw_more_than_any_budget(
    plane: ControlPlane, namespace: str, queue: str, racks: dict[str, str], ours: Path
) -> None:
    """30 jobs of two pods where the racks bear 4 and 6, and the site 8; each ends, one follows."""
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    health = kube_ledger.an_address()
    seen = Sampled(api, namespace, racks)
    try:
        with answering(ours, *RACKS.budgets(4, 6, 8), health=health):
            api.create_all(jobs, [a_job(f"job{n}", queue, pods=2) for n in range(30)])
            wait_full(api, namespace)
            assert len(jobs_of(running(api, namespace))) == 4
            end_one_and_wait(api, namespace, health)
    finally:
        seen.close()
    assert seen.looks > 5
    promise(seen.most["kueue-rack-0"] <= 4, seen.most)
    promise(seen.most["kueue-rack-1"] <= 6, seen.most)
    assert seen.most_together == 8


@contextmanager
def race(
    api: KubeApi, namespace: str, queue: str, racks: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], Callable[[], str]]]:
    """Options with watts for 8, and 200 pods amid which the leader is killed; budgets are kept."""
    jobs = [a_job(f"job{n}", queue, pods=2) for n in range(100)]
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    make, there = partial(api.create_all, path, jobs), partial(running, api, namespace)
    begin = partial(safe_copies.kill_holder_amid, api, namespace, "check", make, there)
    with closing(Sampled(api, namespace, racks)) as seen:
        yield (*RACKS.budgets(4, 6, 8), f"--lease={namespace}/check"), begin
    assert seen.looks > 5
    promise(seen.most["kueue-rack-0"] <= 4, seen.most)
    promise(seen.most["kueue-rack-1"] <= 6, seen.most)
    promise(seen.most_together <= 8, seen.most_together)


def test_no_budget_is_exceeded_by_two_copies_whose_leader_is_killed_in_a_race(
    plane: ControlPlane, namespace: str, queue: str, racks: dict[str, str]
) -> None:
    api, health = plane.api, [kube_ledger.an_address() for _ in range(2)]
    with (
        race(api, namespace, queue, racks) as (given, begin),
        answering(plane.kubeconfig, *given, health=health[0]),
        answering(plane.kubeconfig, *given, health=health[1]),
    ):
        killed = begin()
        wait_full(api, namespace)
        safe_copies.wait_succeeded(api, namespace, "check", killed)
        end_one_and_wait(api, namespace, health[not kube_ledger.counted(health[0])])


def test_no_budget_is_exceeded_when_it_is_killed_in_a_race_and_started_again(
    plane: ControlPlane, namespace: str, queue: str, racks: dict[str, str]
) -> None:
    api, health = plane.api, kube_ledger.an_address()
    with race(api, namespace, queue, racks) as (given, begin):
        with answering(plane.kubeconfig, *given):
            begin()
        with answering(plane.kubeconfig, *given, health=health):
            wait_full(api, namespace)
            end_one_and_wait(api, namespace, health)


def test_who_waits_is_told_why_and_a_cut_ends_the_least_important(
    plane: ControlPlane, namespace: str, queue: str, racks: dict[str, str], ours: Path
) -> None:
    del racks
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    low = f"{namespace}-low"
    api.create(classes, {"metadata": {"name": low}, "value": -10})
    with answering(ours, *RACKS.budgets(4, 4, 4)):
        api.create(jobs, a_job("less", queue, pods=2, priority=low))
        api.create(jobs, a_job("more", queue, pods=2))
        wait_until(lambda: jobs_of(running(api, namespace)) == {"less", "more"},
                   lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
        api.create(jobs, a_job("large", queue, pods=3, priority=low))
        wait_until(lambda: _waits_for_power(state(api, namespace, "large")),
                   lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
    with answering(ours, *RACKS.budgets(4, 4, 2)):
        wait_until(lambda: jobs_of(running(api, namespace)) == {"more"},
                   lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
        wait_until(lambda: _is_suspended(api, f"{jobs}/less"), "Kueue has taken its quota back")
    api.delete(f"{classes}/{low}")


def test_a_cut_caps_first_then_kueue_ends_the_least_important_and_runs_it_again(
    plane: ControlPlane, namespace: str, queue: str, racks: dict[str, str], ours: Path
) -> None:
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    classes, low = "/apis/scheduling.k8s.io/v1/priorityclasses", f"{namespace}-low"
    empty_w = RACKS.nodes * RACKS.gpus * IDLE_W
    for name in racks:
        api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": AGENT}})

    seen = SampledDraw(api, namespace, "kueue-now", rise_w=4 * RISE_W, empty_w=empty_w)
    api.create(classes, {"metadata": {"name": low}, "value": -10})
    kwok = {"matchLabels": {"type": "kwok"}}
    now = {"domain": "kueue-hall", "constant": f"{empty_w + 4 * RISE_W}W"}
    with defined(api):
        api.create(
            path_of("PowerDomain"), an_object("PowerDomain", "kueue-hall", nodeSelector=kwok)
        )
        api.create(path_of("PowerBudget"), an_object("PowerBudget", "kueue-now", **now))
        with answering(ours), Agents(api, namespace), seen:
            api.create(jobs, a_job("less", queue, pods=2, priority=low))
            api.create(jobs, a_job("more", queue, pods=2))
            wait_until(lambda: jobs_of(running(api, namespace)) == {"less", "more"}
                       and seen.full(),
                       lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
            seen.set(3 * RISE_W)
            wait_until(seen.kept, lambda: f"capped: {seen.drawn_w()}",
                       within_s=PATIENCE_S)  # fmt: skip
            assert len(running(api, namespace)) == 4
            below = 4 * (LEAST_W - IDLE_W) - 20
            seen.set(below)
            wait_until(lambda: jobs_of(running(api, namespace)) == {"more"}
                       and seen.kept(),
                       lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
            wait_until(lambda: _is_suspended(api, f"{jobs}/less"), "Kueue has suspended it")
            said = lambda: state(api, namespace, "less")["message"]  # noqa: E731
            wait_until(lambda: "kueue-hall" in said(), said)
            seen.set(4 * RISE_W)
            wait_until(lambda: jobs_of(running(api, namespace)) == {"less", "more"}
                       and seen.full(),
                       lambda: told(api, namespace), within_s=PATIENCE_S)  # fmt: skip
    assert seen.looks > 5
    promise(not seen.broken, seen.broken)
    api.delete(f"{classes}/{low}")


def _waits_for_power(check: Object) -> bool:
    """With numbers, and what would help."""
    text = check["message"]
    said = text.startswith("WaitingForPower: ") and "the site has 0 W left" in text
    return check["state"] == "Retry" and said and "raise the budget of the site by" in text


def _is_suspended(api: KubeApi, path: str) -> bool:
    return bool(api.get(path)["spec"]["suspend"])
