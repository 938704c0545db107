"""API server and store are killed while pods arrive: who decides goes on with the true account.

Run with `-s`, these tests say how long the recovery took, by the audit log.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import kube_ledger
import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, Refused, a_node, a_pod
from kube_server import wait_until
from power_api import an_object, defined, path_of
from test_extender import SCHEDULER as EXTENDED
from test_extender import a_scheduler as a_stock_scheduler
from test_extender import an_extender
from test_power_budgets import NAME, a_scheduler

from promises import promise
from wattherd.kube.api.lease import boot_s

NODES, GPUS, FIT, EXTRA = 2, 8, 6, 6
EMPTY_W, RISE_W = NODES * GPUS * 10, 60
"""Of T4s, by the catalog: free, and what one in use adds."""
BUDGET_W = EMPTY_W + FIT * RISE_W
MODES = {"out-a": NAME, "out-b": EXTENDED}
"""By power domain, whom its pods name as their scheduler: ours, and a stock one with ours."""
KILLED = {"api": ("apiserver",), "store": ("etcd",), "both": ("apiserver", "etcd")}
LONG_S = 300.0
OUTAGES = [
    pytest.param("both", 3.0, id="both-3s"),
    *(pytest.param(who, 40.0, id=f"{who}-40s", marks=pytest.mark.slow) for who in KILLED),
]


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    made = [
        a_node(f"{domain}-{row}", gpus=GPUS, labels=labels_of(domain))
        for domain in MODES
        for row in range(NODES)
    ]
    names = plane.api.fleet(made)
    yield
    plane.api.remove_nodes(names)


def labels_of(domain: str) -> dict[str, str]:
    return {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/power-domain": domain}


@contextmanager
def at_work(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Both modes, each with the budget of its own domain; where they tell how they are doing."""
    health = {domain: kube_ledger.an_address() for domain in MODES}
    given = {
        domain: (f"--budget={domain}={BUDGET_W}W", f"--health={health[domain]}") for domain in MODES
    }
    with (
        a_scheduler(plane, *given["out-a"]),
        an_extender(plane, *given["out-b"]) as extender,
        a_stock_scheduler(plane, extender, "outage"),
    ):
        yield health


def asked(what: Callable[[], Any]) -> Any:
    """Its answer, or None while the API server has none."""
    try:
        return what()
    except (OSError, http.client.HTTPException, Refused):
        return None


@contextmanager
def arriving(api: KubeApi, namespace: str) -> Iterator[None]:
    """Pods of both modes, one after the other, each until it is there."""
    over, pods = threading.Event(), f"/api/v1/namespaces/{namespace}/pods"

    def make(domain: str) -> None:
        for number in range(FIT + EXTRA):
            pod = a_pod(f"{domain}-{number}", gpus=1, scheduler=MODES[domain],
                        spec={"nodeSelector": labels_of(domain)})  # fmt: skip
            while not over.is_set():
                answer = asked(lambda made=pod: api.call("POST", pods, made))
                if answer is not None and answer[0] in (201, 409):
                    break
                over.wait(0.2)

    with ThreadPoolExecutor(len(MODES)) as pool:
        making = [pool.submit(make, domain) for domain in MODES]
        try:
            yield
            for one in making:
                one.result()
        finally:
            over.set()


class Account:
    """What is written on bound pods of a namespace, looked at again and again."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.most_w = dict.fromkeys(MODES, 0.0)
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"

    def bound(self) -> dict[str, list[str]] | None:
        """Pods by domain; None while nobody answers."""
        items = asked(lambda: self._api.get(self._path)["items"])
        if items is None:
            return None
        found: dict[str, list[str]] = {domain: [] for domain in MODES}
        drawn = dict.fromkeys(MODES, float(EMPTY_W))
        for pod in items:
            if pod["spec"].get("nodeName"):
                notes = pod["metadata"]["annotations"]
                found[notes["wattherd.dev/power-domain"]].append(pod["metadata"]["name"])
                drawn[notes["wattherd.dev/power-domain"]] += float(notes["wattherd.dev/watts"])
        self.most_w = {domain: max(drawn[domain], most) for domain, most in self.most_w.items()}
        return found

    def full(self) -> bool:
        """Whether as many run in each domain as there are watts for."""
        found = self.bound()
        return found is not None and all(len(pods) == FIT for pods in found.values())


@pytest.mark.parametrize(("killed", "away_s"), OUTAGES)
def test_nothing_is_bound_twice_and_no_watts_are_lost_over_an_outage(
    plane: ControlPlane, namespace: str, nodes: None, killed: str, away_s: float
) -> None:
    del nodes
    api, account = plane.api, Account(plane.api, namespace)
    servers = [plane.etcd, plane.apiserver]
    gone = [getattr(plane, name) for name in KILLED[killed]]
    with at_work(plane) as health:
        with arriving(api, namespace):
            wait_until(lambda: any((account.bound() or {}).values()), "the first pods are bound")
            for server in gone:
                server.kill()
            killed_s = boot_s()
            wait_until(lambda: boot_s() > killed_s + away_s, "the outage is over")
            for server in (one for one in servers if one in gone):
                server.start()
            wait_until(api.ready, "the API server answers")
            back = datetime.now(UTC)
        wait_until(account.full, "all that fit run", within_s=LONG_S, every_s=0.2)
        first = [pods[0] for pods in (account.bound() or {}).values()]
        for name in first:
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds=0)
        wait_until(lambda: account.full() and not still_there(account, first),
                   "what ended gave its watts back", within_s=LONG_S, every_s=0.2)  # fmt: skip
        for domain, address in health.items():
            kube_ledger.wait_nothing_leaked(api, address, domain)
    promise(max(account.most_w.values()) <= BUDGET_W, account.most_w)
    assert account.most_w == dict.fromkeys(MODES, float(BUDGET_W))
    when = bound_at(plane, namespace)
    promise(all(len(times) == 1 for times in when.values()), when)
    tell(killed, away_s, back, when)


def still_there(account: Account, names: list[str]) -> bool:
    return any(name in names for pods in (account.bound() or {}).values() for name in pods)


def bound_at(plane: ControlPlane, namespace: str) -> dict[str, list[datetime]]:
    """When each pod was bound, as often as it was."""
    found: dict[str, list[datetime]] = {}
    for one in plane.audit():
        about = one["objectRef"]
        is_binding = (about.get("subresource"), about["namespace"]) == ("binding", namespace)
        if is_binding and one["responseStatus"]["code"] == http.client.CREATED:
            at = datetime.fromisoformat(str(one["stageTimestamp"]))
            found.setdefault(about["name"], []).append(at)
    return found


def tell(killed: str, away_s: float, back: datetime, when: dict[str, list[datetime]]) -> None:
    """From the API server's first answer to the first binding of each mode."""
    for domain, scheduler in MODES.items():
        later = [at for name, [at] in when.items() if name.startswith(domain) and at > back]
        if later:
            took_s = (min(later) - back).total_seconds()
            print(f"\n{killed} away for {away_s:g} s, {scheduler}: "
                  f"first binding {took_s:.1f} s after the API server is back")  # fmt: skip


def test_a_cut_made_just_before_an_outage_is_carried_out_after_it(
    plane: ControlPlane, namespace: str, nodes: None
) -> None:
    """A job is suspended, its new pods wait, and run when there are watts again."""
    del nodes
    api = plane.api
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def names() -> set[str]:
        items = asked(lambda: api.get(f"/api/v1/namespaces/{namespace}/pods")["items"])
        return {one["metadata"]["name"] for one in items or ()}

    def running() -> int:
        items = asked(lambda: api.get(f"/api/v1/namespaces/{namespace}/pods")["items"])
        return -1 if items is None else sum(bool(one["spec"].get("nodeName")) for one in items)

    health = kube_ledger.an_address()
    with defined(api), a_scheduler(plane, f"--health={health}"):
        try:
            api.create(path_of("PowerDomain"), an_object("PowerDomain", "out-a", limit="1MW"))
            budget = an_object("PowerBudget", "out", domain="out-a", constant=f"{BUDGET_W}W")
            api.create(path_of("PowerBudget"), budget)
            api.create(jobs, a_job(3))
            wait_until(lambda: running() == 3, "the job runs", within_s=LONG_S)
            first = names()
            cut = {"spec": {"constant": f"{EMPTY_W + RISE_W}W"}}
            api.merge(path_of("PowerBudget", "out"), cut)
            plane.apiserver.kill()
            plane.etcd.kill()
            plane.etcd.start()
            plane.apiserver.start()
            suspended = lambda: asked(lambda: api.get(f"{jobs}/work")["spec"]["suspend"])  # noqa: E731
            wait_until(lambda: suspended() is False and len(names() - first) == 3,
                       "new pods are made", within_s=LONG_S)  # fmt: skip
            assert running() == 0
            api.merge(path_of("PowerBudget", "out"), {"spec": {"constant": f"{BUDGET_W}W"}})
            wait_until(lambda: running() == 3, "it runs again", within_s=LONG_S)
            assert not suspended()
            kube_ledger.wait_nothing_leaked(api, health, "out-a")
        finally:
            wait_until(api.ready, "the API server answers")
            api.call("DELETE", f"{jobs}/work?propagationPolicy=Background")


def a_job(pods: int) -> Object:
    """A gang of so many pods, in the first domain."""
    template = a_pod("work", gpus=1, scheduler=NAME)
    template["spec"] |= {"restartPolicy": "Never", "nodeSelector": labels_of("out-a")}
    gang = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "work"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(pods)},
    }
    about = {"metadata": gang, "spec": template["spec"]}
    spec = {"parallelism": pods, "completions": pods, "template": about}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": spec}
