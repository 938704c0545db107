"""Rights and tokens that are taken away, nodes that others over-commit: told, and got over."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kube_ledger
import pytest
import recovery
import safe_copies
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_pod
from kube_server import wait_until
from safe_copies import DOMAIN, GPUS, NAME, written

Said = Callable[[], str]


@pytest.fixture(autouse=True)
def fleet(plane: ControlPlane) -> Iterator[list[str]]:
    with safe_copies.safe_fleet(plane) as names:
        yield names


@contextmanager
def a_copy(account: Path, namespace: str, log: Path, health: str) -> Iterator[Said]:
    """A scheduler at work; yields what it has said so far."""
    with log.open("wb") as written_to:
        copy = safe_copies.a_copy(account, namespace, f"--health={health}", stderr=written_to)
    try:
        yield lambda: log.read_text()
    finally:
        safe_copies.end(copy)


LONG_S = 120.0


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def make(api: KubeApi, namespace: str, name: str, **spec: object) -> None:
    pod = a_pod(name, gpus=1, scheduler=NAME, spec=dict(spec))
    api.create(f"/api/v1/namespaces/{namespace}/pods", pod)


def test_rights_and_tokens_that_are_taken_away_are_told_and_their_return_is_enough(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, token, health = plane.api, tmp_path / "token", kube_ledger.an_address()
    with safe_copies.shipped_rights(plane, namespace):
        token.write_text(api.token(namespace, "wattherd"))
        account = plane.write_kubeconfig("lost", {"tokenFile": str(token)})
        with a_copy(account, namespace, tmp_path / "log", health) as said:
            make(api, namespace, "one")
            wait_until(lambda: set(written(api, namespace)) == {"one"}, "it works")
            binding = taken(api, namespace)
            make(api, namespace, "two")
            wait_until(lambda: "pods are not bound: 403 Forbidden" in said(), said)
            assert 'cannot create resource "pods/binding"' in said()
            refused = lambda: asked(f"http://{health}/readyz")  # noqa: E731
            wait_until(lambda: refused()[0] == 503, lambda: f"{refused()}", within_s=LONG_S)
            assert "all that is decided is refused" in refused()[1]
            api.create(safe_copies.path_of(binding), binding)
            with recovery.told("rights that return"):
                wait_until(lambda: set(written(api, namespace)) == {"one", "two"}, said)
            wait_until(lambda: "trouble: over" in said(), said)
            wait_until(lambda: refused()[0] == 200, lambda: f"{refused()}")
            api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/wattherd")
            wait_until(lambda: "it may have expired or been revoked" in said(), said)
            make(api, namespace, "three")
            token.write_text(api.token(namespace, "wattherd"))
            wait_until(lambda: set(written(api, namespace)) == {"one", "two", "three"},
                       said)  # fmt: skip
            wait_until(lambda: said().count("trouble: over") >= 2, said)
            kube_ledger.wait_nothing_leaked(api, health, DOMAIN)


def taken(api: KubeApi, namespace: str) -> Object:
    """The rights of the scheduler's account, which it has no more."""
    [binding] = [
        one for one in safe_copies.shipped_objects(namespace) if one["kind"] == "ClusterRoleBinding"
    ]
    api.delete(f"{safe_copies.path_of(binding)}/{binding['metadata']['name']}")
    return binding


def test_a_node_that_others_over_commit_is_told_and_takes_no_more(
    plane: ControlPlane, namespace: str, fleet: list[str], tmp_path: Path
) -> None:
    api, pods, node = plane.api, f"/api/v1/namespaces/{namespace}/pods", fleet[0]
    there, health = {"kubernetes.io/hostname": node}, kube_ledger.an_address()
    with (
        safe_copies.shipped_rights(plane, namespace) as account,
        a_copy(account, namespace, tmp_path / "log", health) as said,
    ):
        for number in range(GPUS + 2):
            name = f"foreign-{number}"
            api.create(pods, a_pod(name, gpus=1, scheduler="another"))
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            api.create(f"{pods}/{name}/binding", {"metadata": {"name": name}, "target": target})
        wait_until(lambda: f"others put more on nodes than they have: {node}" in said(), said)
        make(api, namespace, "ours", nodeSelector=there)
        wait_until(lambda: why(api, namespace), "it is told why it waits")
        assert not api.pod(namespace, "ours")["spec"].get("nodeName")
        for number in range(3):
            api.delete(f"{pods}/foreign-{number}", gracePeriodSeconds=0)
        wait_until(lambda: api.pod(namespace, "ours")["spec"].get("nodeName") == node, "room")
        wait_until(lambda: "trouble: over" in said(), said)
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)


def why(api: KubeApi, namespace: str) -> str:
    conditions: list[Object] = api.pod(namespace, "ours")["status"].get("conditions", [])
    return "".join(one.get("message", "") for one in conditions if one["status"] == "False")
