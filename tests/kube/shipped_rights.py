"""The rights that each mode is shipped with, and no others, for whoever works in that mode.

And the admission policies that it brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from control_plane import ControlPlane
from helm_chart import DEPLOY
from kube_api import KubeApi, Object, a_pod
from kube_server import wait_until
from safe_copies import path_of

PLURALS = {
    "DeviceClass": "deviceclasses",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
OWN = {
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "Role": f"{_RBAC}/roles",
    "RoleBinding": f"{_RBAC}/rolebindings",
}


def kind_path(made: Object) -> str:
    """Where objects of its kind are made that belong to a policy."""
    return f"/apis/{made['apiVersion']}/{PLURALS[made['kind']]}"


def shipped_policies(mode: str) -> list[Object]:
    """All that a mode's manifest has, but what asks for its lease."""
    objects = yaml.safe_load_all((DEPLOY / f"{mode}.yaml").read_text())
    return [
        one
        for one in objects
        if one["kind"] in PLURALS and not one["metadata"]["name"].endswith("-fence")
    ]


@contextmanager
def policies(api: KubeApi, mode: str) -> Iterator[None]:
    """These are in force, once a pod that nobody may make is refused."""
    made = shipped_policies(mode)
    for one in made:
        api.create(kind_path(one), one)
    try:
        with _outsider(api) as outsider:
            wait_until(lambda: _is_refused(outsider), "the policies are in force")
        yield
    finally:
        for one in made:
            api.delete(f"{kind_path(one)}/{one['metadata']['name']}")
        with _outsider(api) as outsider:
            wait_until(lambda: not _is_refused(outsider), "the policies are forgotten")


def _is_refused(outsider: KubeApi) -> bool:
    """Whether what only we may write is refused to others."""
    forged = a_pod("tried", annotations={"wattherd.dev/watts": "0"})
    told = outsider.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", forged)
    return "is written by wattherd" in str(told[1])


@contextmanager
def _outsider(api: KubeApi) -> Iterator[KubeApi]:
    with a_tenant(api, "default", "outsider") as tenant:
        yield tenant


@contextmanager
def a_tenant(api: KubeApi, namespace: str, name: str = "tenant") -> Iterator[KubeApi]:
    """Somebody with the built-in role `edit` in one namespace, and no other right."""
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    token = api.token(namespace, name)
    api.create(bindings, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    tenant = KubeApi(api.server, api.tls, token)
    may_make = lambda: tenant.call("GET", f"/api/v1/namespaces/{namespace}/pods")[0] == 200  # noqa: E731
    try:
        wait_until(may_make, "it has its rights")
        yield tenant
    finally:
        tenant.close()
        api.delete(f"{bindings}/{name}")


@contextmanager
def own_objects(api: KubeApi, mode: str) -> Iterator[None]:
    """What a mode's manifest has in its own namespace (lease, ConfigMap, rights to them).

    It is made in the namespace `default`, for the account that `account` makes.
    """
    subject = {"kind": "ServiceAccount", "name": f"shipped-{mode}", "namespace": "default"}
    paths = []
    for one in yaml.safe_load_all((DEPLOY / f"{mode}.yaml").read_text()):
        if one["kind"] in OWN:
            one["metadata"]["namespace"] = "default"
            path = OWN[one["kind"]]
            if one["kind"] == "RoleBinding":
                one["subjects"] = [subject]
            api.create(path, one)
            paths.append(f"{path}/{one['metadata']['name']}")
    try:
        yield
    finally:
        for path in paths:
            api.delete(path)


@contextmanager
def account(plane: ControlPlane, mode: str) -> Iterator[Path]:
    """A kubeconfig with the rights of the manifest of `mode`, which is what the chart makes."""
    name = f"shipped-{mode}"
    objects = yaml.safe_load_all((DEPLOY / f"{mode}.yaml").read_text())
    rules = [one["rules"] for one in objects if one["kind"] == "ClusterRole"]
    token = plane.api.token("default", name)
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    made = [
        {**about, "kind": "ClusterRole", "rules": [each for one in rules for each in one]},
        {**about, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]
    for one in made:
        plane.api.create(path_of(one), one)
    try:
        yield plane.kubeconfig_of(token, name)
    finally:
        for one in made:
            plane.api.delete(f"{path_of(one)}/{name}")
