"""Gangs of hundreds of pods beside small ones that keep coming, and gangs that are undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from control_plane import GANGS, ControlPlane
from gang_ledger import Account, Gang, Ledger, create, kept
from kube_api import KubeApi, a_node
from kube_server import wait_until
from test_extender import SCHEDULER, an_extender
from test_extender import a_scheduler as extended
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

GPUS = 8
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """Nodes of 8 GPUs, three gangs of `big` pods that fit one at a time, and `small` others."""

    nodes: int
    big: int
    small: int

    def bigs(self) -> list[Gang]:
        return [Gang(f"big-{n}", self.big, "3s", native=n != 1) for n in range(3)]


def small(number: int) -> Gang:
    """2 to 16 pods, half of them native gangs, over after 3 to 6 seconds."""
    return Gang(f"small-{number}", 2 + 7 * number % 15, f"{3 + number % 4}s", native=number % 2 > 0)


class Crowd:
    """`size` small gangs at any time: whoever is over is followed by another one."""

    def __init__(self, size: int, ledger: Ledger, make: Callable[[Gang], None]) -> None:
        self._size, self._ledger, self._make = size, ledger, make
        self.count = 0

    def add(self) -> None:
        gang = small(self.count)
        self.count += 1
        self._ledger.open(gang)
        self._make(gang)

    def go_on_until(self, enough: threading.Event) -> None:
        while not enough.wait(0.05):
            over = sum(account.over for account in self._ledger.all().values())
            while self.count < self._size + over and not enough.is_set():
                self.add()


@contextmanager
def coming(crowd: Crowd) -> Iterator[None]:
    """The crowd goes on while this is entered."""
    enough = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(crowd.go_on_until, enough)
        try:
            yield
        finally:
            enough.set()
    going_on.result()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(nodes=20, big=128, small=14), id="3x128"),
        pytest.param(
            Case(nodes=80, big=512, small=50),
            id="3x512",
            marks=[pytest.mark.slow, pytest.mark.timeout(3600)],
        ),
    ],
)
def test_large_gangs_and_small_ones_that_keep_coming_all_run_whole(
    plane: ControlPlane, namespace: str, case: Case
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    nodes = [a_node(f"hall-{row:03}", gpus=GPUS, labels=T4) for row in range(case.nodes)]
    bigs = case.bigs()
    with (
        nodes_of(api, nodes),
        a_scheduler(plane, "wattherd-halls", "--patience", "2s") as scheduler,
        kept(api, namespace, silence_s=PATIENCE_S) as ledger,
    ):
        crowd = Crowd(case.small, ledger, lambda gang: create(api, namespace, gang, scheduler))
        for _ in range(case.small):
            crowd.add()
        with coming(crowd):
            for gang in bigs:
                ledger.open(gang)
                create(api, namespace, gang, scheduler, all_but=1)
            assert [gang for gang in bigs if ledger.all()[gang.name].bound] == []
            api.create_all(pods, [gang.pods(scheduler)[-1] for gang in bigs])
            large = [ledger.all()[gang.name] for gang in bigs]
            _wait_for(large, lambda one: one.began_at, "the large ones start, small ones or not")
        _wait_for(ledger.all().values(), lambda one: one.over, "all have run")
    _check(ledger, case, crowd)


def _wait_for(accounts: object, true: Callable[[Account], object], what: str) -> None:
    every = list(accounts)  # type: ignore[call-overload]
    wait_until(lambda: all(map(true, every)), what, within_s=PATIENCE_S)


def _check(ledger: Ledger, case: Case, crowd: Crowd) -> None:
    accounts = ledger.accounts
    assert ledger.moved == []
    assert {name for name, one in accounts.items() if one.removed or not one.over} == set()
    assert {name for name, one in accounts.items() if len(one.bound) != one.size} == set()
    # A gang that has one pod bound has room for all of them, at every single moment.
    assert case.big < ledger.most_claimed <= case.nodes * GPUS
    behind = list(_held_up(ledger))
    assert behind
    assert [one for one in behind if accounts[one[0]].began_at < accounts[one[1]].began_at] == []
    longest_s = max(one.whole_s - one.first_s for one in accounts.values())
    print(f"{len(accounts)} gangs, {crowd.count} small, longest start {longest_s:.1f} s")


def _held_up(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Gangs that were told that another one goes first, and which."""
    for gang, told in ledger.told.items():
        for text in told:
            for other in ledger.accounts:
                if f"/{other}-" in text and text.startswith("WaitingForTurn"):
                    yield gang, other


# --- gangs that are undone ------------------------------------------------------------------------


POLICIES = "/apis/admissionregistration.k8s.io/v1"
DENIED = "this member may not be bound"


@contextmanager
def denied(api: KubeApi, namespace: str, pod: str) -> Iterator[None]:
    """The API server refuses every binding of a pod."""
    name = f"deny-{namespace}"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/binding"],
    }
    policy = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"request.name != '{pod}'", "message": DENIED}],
        },
    }
    inside = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"], "matchResources": inside,
        },
    }  # fmt: skip
    made = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    for kind, one in made.items():
        api.create(f"{POLICIES}/{kind}", one)
    try:
        yield
    finally:
        for kind in reversed(made):
            api.delete(f"{POLICIES}/{kind}/{name}")


def refuses(api: KubeApi, namespace: str, pod: str) -> bool:
    """Whether it would refuse a binding now; nothing is bound."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding?dryRun=All"
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    _, answer = api.call("POST", path, {"metadata": {"name": pod}, "target": target})
    return DENIED in answer.get("message", "")


def test_a_gang_of_which_one_pod_may_not_be_bound_is_undone_and_may_start_again(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    nodes = [a_node(f"undone-{row}", gpus=GPUS, labels=T4) for row in range(8)]
    gang = Gang("ring", 64, "1h", native=True)
    last = f"{gang.name}-{gang.size - 1}"
    with nodes_of(api, nodes), a_scheduler(plane, "wattherd-undone") as scheduler:
        create(api, namespace, gang, scheduler, all_but=gang.size)
        with denied(api, namespace, last):
            members = gang.pods(scheduler)
            api.create(pods, members[-1])
            wait_until(lambda: refuses(api, namespace, last), "the policy is in force")
            api.create_all(pods, members[:-1])
            wait_until(lambda: there(api, namespace) == [last], "all others are evicted")
        assert bound(api, namespace) == {}
        wait_until(lambda: "1 of 64 pods" in why(api, namespace, last), "it says what it lacks")
        wait_until(lambda: not refuses(api, namespace, last), "it may be bound again")
        api.create_all(pods, members[:-1])
        wait_until(lambda: len(bound(api, namespace)) == gang.size, "it runs whole")


def test_a_native_gang_is_held_whole_by_kube_scheduler_beside_the_extender(
    plane: ControlPlane, namespace: str
) -> None:
    api, gang = plane.api, Gang("beside", 3, "1h", native=True)
    first, second = (a_node(f"beside-{n}", gpus=2, labels=T4) for n in range(2))
    with (
        nodes_of(api, [first]),
        an_extender(plane) as extender,
        extended(plane, extender, "beside", GANGS),
    ):
        create(api, namespace, gang, SCHEDULER)
        waits = [f"{gang.name}-{n}" for n in range(gang.size)]
        wait_until(lambda: all(why(api, namespace, one) for one in waits), "all are told to wait")
        assert bound(api, namespace) == {}
        with nodes_of(api, [second]):
            wait_until(lambda: len(bound(api, namespace)) == gang.size, "it runs whole")


def there(api: KubeApi, namespace: str) -> list[str]:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [one["metadata"]["name"] for one in items]
