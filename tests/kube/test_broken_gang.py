"""One pod of a gang may not be bound: the gang is undone, and starts whole when it may."""

from __future__ import annotations

import http
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import kube_ledger
import pytest
import safe_copies
from control_plane import ControlPlane
from kube_api import KubeApi, a_pod
from kube_server import wait_until
from safe_copies import DOMAIN, NAME, written

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RULE = "validatingadmissionpolicies"
MEMBERS, BARRED, PROBE = 3, "gang-1", "probe"


@pytest.fixture
def account(plane: ControlPlane, namespace: str) -> Iterator[Path]:
    with (
        safe_copies.safe_fleet(plane),
        safe_copies.shipped_rights(plane, namespace) as kubeconfig,
    ):
        yield kubeconfig


@contextmanager
def barred(api: KubeApi, namespace: str) -> Iterator[None]:
    """Meanwhile the API server refuses to bind two pods, whoever asks for it."""
    about = {"metadata": {"name": namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    where = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "matchConstraints": {
            "resourceRules": [{**rule, "resources": ["pods/binding"]}], "namespaceSelector": where,
        },
        "validations": [{"expression": f"!(request.name in ['{BARRED}', '{PROBE}'])"}],
    }  # fmt: skip
    api.create(f"{ADMISSION}/{RULE}", {**about, "spec": spec})
    used = {"policyName": namespace, "validationActions": ["Deny"]}
    api.create(f"{ADMISSION}/validatingadmissionpolicybindings", {**about, "spec": used})
    try:
        wait_until(lambda: answer_to_probe(api, namespace) == http.HTTPStatus.UNPROCESSABLE_ENTITY,
                   "the policy is in force")  # fmt: skip
        yield
    finally:
        api.call("DELETE", f"{ADMISSION}/validatingadmissionpolicybindings/{namespace}")
        api.call("DELETE", f"{ADMISSION}/{RULE}/{namespace}")
        wait_until(lambda: answer_to_probe(api, namespace) == http.HTTPStatus.NOT_FOUND,
                   "the policy is no longer in force")  # fmt: skip


def answer_to_probe(api: KubeApi, namespace: str) -> int:
    """What the server says to the binding of a pod that does not exist: 404 if it looks for it."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "safe-0"}
    path = f"/api/v1/namespaces/{namespace}/pods/{PROBE}/binding"
    return api.call("POST", path, {"metadata": {"name": PROBE}, "target": target})[0]


def make(api: KubeApi, namespace: str, names: Sequence[str]) -> None:
    made = [
        a_pod(
            name,
            gpus=1,
            scheduler=NAME,
            labels={"kueue.x-k8s.io/pod-group-name": "gang"},
            annotations={"kueue.x-k8s.io/pod-group-total-count": str(MEMBERS)},
        )
        for name in names
    ]
    api.create_all(f"/api/v1/namespaces/{namespace}/pods", made)


def there(api: KubeApi, namespace: str) -> set[str]:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {one["metadata"]["name"] for one in items}


def test_a_gang_of_which_one_pod_may_not_be_bound_is_undone_and_starts_whole_later(
    plane: ControlPlane, namespace: str, account: Path
) -> None:
    api, health = plane.api, kube_ledger.an_address()
    names = [f"gang-{number}" for number in range(MEMBERS)]
    copy = safe_copies.a_copy(account, namespace, f"--health={health}")
    try:
        with barred(api, namespace):
            make(api, namespace, names)
            wait_until(lambda: there(api, namespace) == {BARRED}, "what was bound of it is gone")
            assert written(api, namespace) == {}
            kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
        make(api, namespace, [name for name in names if name != BARRED])
        wait_until(lambda: set(written(api, namespace)) == set(names), "the gang runs")
        kube_ledger.wait_nothing_leaked(api, health, DOMAIN)
    finally:
        safe_copies.end(copy)
