"""The shipped policy that refuses what comes of an earlier term, in force for one lease."""

from __future__ import annotations

import http
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import yaml
from helm_chart import DEPLOY
from kube_api import KubeApi, Object, Refused, a_pod
from kube_server import wait_until

POLICIES = "/apis/admissionregistration.k8s.io/v1"
GATE = {"schedulingGates": [{"name": "wattherd.dev/power"}]}
Act = Callable[..., None]
"""`bind` or `release`: what one who decides does to a pod."""


def bind(api: KubeApi, namespace: str, pod: str, notes: dict[str, str], query: str = "") -> None:
    """To a node that need not be there: the API server does not ask."""
    about = {"name": pod, "annotations": notes}
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding{query}"
    api.create(path, {"metadata": about, "target": target})


def release(api: KubeApi, namespace: str, pod: str, notes: dict[str, str], query: str = "") -> None:
    change = {"metadata": {"annotations": notes}, "spec": {"schedulingGates": None}}
    api.merge(f"/api/v1/namespaces/{namespace}/pods/{pod}{query}", change)


ACTS: dict[str, Act] = {"scheduler": bind, "admit": release}
"""By the mode that does it, and whose manifest has the policy."""


def signed(lease: str, term: object, number: int = 1) -> dict[str, str]:
    """As a leader of this term signs its decision of this number; `lease` is a uid."""
    return {
        "wattherd.dev/decision": f"one/{term}/{number}",
        "wattherd.dev/epoch": str(term),
        "wattherd.dev/lease": lease,
    }


def refusal(act: Callable[[], None]) -> str:
    """Why it is forbidden; empty if it is not."""
    try:
        act()
    except Refused as refused:
        return str(refused) if refused.status == http.HTTPStatus.FORBIDDEN else ""
    return ""


def leases_of(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def uid_of(api: KubeApi, namespace: str, lease: str) -> str:
    return str(api.get(f"{leases_of(namespace)}/{lease}")["metadata"]["uid"])


def path_of(made: Object) -> str:
    return f"{POLICIES}/{made['kind'].lower()}s".replace("policys", "policies")


def shipped(mode: str, namespace: str, lease: str) -> list[Object]:
    """Policy and binding of a mode's plain manifest, for another lease."""
    text = (DEPLOY / f"{mode}.yaml").read_text()
    made = [
        one
        for one in yaml.safe_load_all(text)
        if one["kind"].startswith("ValidatingAdmission")
        and one["metadata"]["name"].endswith("-fence")
    ]
    for one in made:
        one["spec"].get("paramRef", {}).update(name=lease, namespace=namespace)
    return made


def keep_leases_watched(api: KubeApi) -> None:
    """For good, by a policy that asks nothing of anybody.

    Once no policy has leases for parameters any more, an API server stops to watch them, and does
    not begin again before it is restarted (kubernetes/kubernetes#130887, open as of 1.36).
    """
    name, nothing = {"name": "keep-leases-watched"}, {"apiGroups": ["none.test"]}
    rule = {**nothing, "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}
    policy = {
        "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    param = {"name": "none", "namespace": "default", "parameterNotFoundAction": "Allow"}
    binding = {"policyName": name["name"], "validationActions": ["Deny"], "paramRef": param}
    for kind, spec in (("Policy", policy), ("PolicyBinding", binding)):
        made: Object = {"kind": f"ValidatingAdmission{kind}", "metadata": name, "spec": spec}
        api.create(path_of(made), {"apiVersion": "admissionregistration.k8s.io/v1", **made})


@contextmanager
def fenced(
    api: KubeApi, namespace: str, lease: str, mode: str = "scheduler", **spec: object
) -> Iterator[str]:
    """The policy of a mode is in force; the lease is made, with `spec`, if there is none yet.

    Yields the lease's uid.
    """
    api.call("POST", leases_of(namespace), {"metadata": {"name": lease}, "spec": spec})
    uid = uid_of(api, namespace, lease)
    made = shipped(mode, namespace, lease)
    for one in made:
        api.create(path_of(one), one)
    try:
        _wait_in_force(api, namespace, uid, ACTS[mode])
        yield uid
    finally:
        for one in made:
            api.call("DELETE", f"{path_of(one)}/{one['metadata']['name']}")


def _wait_in_force(api: KubeApi, namespace: str, lease: str, act: Act) -> None:
    """It refuses a term that is no number.

    Of bindings that is asked before the pod is looked for, which is therefore not made.
    """
    pods = f"/api/v1/namespaces/{namespace}/pods"
    if act is release:
        api.create(pods, a_pod("probe", scheduler="tests", spec=GATE))
    try_once = lambda: act(api, namespace, "probe", signed(lease, "none"), "?dryRun=All")  # noqa: E731
    wait_until(lambda: "decided in term" in refusal(try_once), "the policy is in force")
    api.call("DELETE", f"{pods}/probe?gracePeriodSeconds=0")


def late_binding(api: KubeApi, namespace: str, lease: str, term: str) -> str:
    """What a leader of this term is told that sends a binding now, of a pod that still waits."""
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    waiting = next(pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName"))
    return refusal(
        lambda: bind(api, namespace, waiting, signed(uid_of(api, namespace, lease), term))
    )
