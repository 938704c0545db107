"""A tenant with the built-in role `edit` in its namespace gets no watts that it was not granted.

In each mode with the admission policies that the mode is shipped with: whatever it tries with what
is its own (pods, jobs, claims, templates) is refused by the API server, or changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from power_api import an_object, defined, path_of, there
from shipped_rights import a_tenant, policies
from stock_modes import STOCK, beside_kube_scheduler
from test_power_budgets import a_scheduler

from promises import promise

MODES = ("scheduler", *STOCK)
SCHEDULERS = {"scheduler": "wattherd", "extender": "wattherd-extended"}
RULED = {"scheduler": "scheduler", "extender": "scheduler", "admit": "gate", "dra": "claim"}
"""By mode, what an operator labels the namespaces of tenants with."""
MERGE, JSON = "application/merge-patch+json", "application/json-patch+json"
OURS = (
    "gpus", "watts", "power-domain", "decision", "epoch", "lease", "planned-node", "workload",
    "asked-again", "cap-w", "cap-applied-w", "something-new",
)  # fmt: skip
TAKEN_AS_NEW = ("workload", "power-domain")
"""What Kueue writes into templates; nothing is counted by what a pod says of itself there."""
GRANTED = {
    "wattherd.dev/decision": "one/1/1",
    "wattherd.dev/watts": "60",
    "wattherd.dev/planned-node": "n",
    "wattherd.dev/cap-w": "250",
    "wattherd.dev/cap-applied-w": "250",
}
DRA = "/apis/resource.k8s.io/v1"
REFUSED = (400, 403, 404, 405, 422)


@dataclass
class Attempts:
    """What a tenant tries in its namespace, and what became of it."""

    tenant: KubeApi
    namespace: str
    mode: str

    def __post_init__(self) -> None:
        self.through: list[object] = []
        self.tried = 0

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def refused(self, method: str, path: str, body: Any = None, kind: str = "") -> None:
        """Neither done, nor said to be so by a dry run."""
        self.tried += 1
        told = self.tenant.call(method, f"{path}?dryRun=All", body, kind=kind or "application/json")
        if told[0] not in REFUSED:
            self.through.append((method, path, body, told[0]))

    def patched(self, path: str, change: object) -> None:
        self.refused("PATCH", path, change, MERGE)


@pytest.fixture(params=MODES)
def attempts(
    plane: ControlPlane, namespace: str, request: pytest.FixtureRequest
) -> Iterator[Attempts]:
    mode = request.param
    ruled = {"metadata": {"labels": {"wattherd.dev/admission": RULED[mode]}}}
    plane.api.merge(f"/api/v1/namespaces/{namespace}", ruled)
    with policies(plane.api, mode), a_tenant(plane.api, namespace) as tenant:
        made = Attempts(tenant, namespace, mode)
        tried = as_meant(mode, "tried")
        field = {"admit": "schedulingGates", "dra": "resourceClaims"}.get(mode, "containers")
        see = lambda: plane.api.as_made(namespace, tried)["spec"].get(field)  # noqa: E731
        wait_until(see, "pods are changed as they are made")
        if mode in SCHEDULERS:  # the API server may not have heard of the namespace's label
            astray = lambda: tenant.call("POST", f"{made.pods}?dryRun=All", a_pod("astray", gpus=1))  # noqa: E731
            wait_until(lambda: astray()[0] in REFUSED, "the namespace's rule is in force")
        yield made


def as_meant(mode: str, name: str, gpus: int = 1, **more: Any) -> Object:
    return a_pod(name, gpus=gpus, scheduler=SCHEDULERS.get(mode), **more)


def test_nothing_of_ours_can_be_written_taken_off_or_forged(
    plane: ControlPlane, attempts: Attempts
) -> None:
    mode, pods = attempts.mode, attempts.pods
    plane.api.create(pods, as_meant(mode, "granted", annotations=dict(GRANTED)))
    mine = f"{pods}/granted"
    for name in OURS:
        key = f"wattherd.dev/{name}"
        if name not in TAKEN_AS_NEW:
            attempts.refused("POST", pods, as_meant(mode, "forged", annotations={key: "1"}))
            attempts.refused("POST", pods, as_meant(mode, "forged", labels={key: "1"}))
        for about in ({"annotations": {key: "0"}}, {"labels": {key: "0"}}):
            for part in ("", "/status"):
                attempts.patched(f"{mine}{part}", {"metadata": about})
    for key in GRANTED:
        attempts.patched(mine, {"metadata": {"annotations": {key: None}}})
    attempts.patched(mine, {"metadata": {"annotations": None}})
    whole = attempts.tenant.get(mine)
    whole["metadata"]["annotations"] = {}
    attempts.refused("PUT", mine, whole)
    promise(not attempts.through, attempts.through)
    for part in ("resize", "ephemeralcontainers"):  # these change nothing of what a pod says
        for about in ({"annotations": None}, {"annotations": {"wattherd.dev/watts": "0"}}):
            attempts.tenant.call("PATCH", f"{mine}/{part}", {"metadata": about}, kind=MERGE)
    before = plane.api.get(mine)["metadata"]["annotations"]
    assert GRANTED.items() <= before.items()
    assert attempts.tried > 60


def test_what_is_a_users_to_say_can_be_said(attempts: Attempts) -> None:
    """Or else nobody could work."""
    pods, api = attempts.pods, attempts.tenant
    words = {"wattherd.dev/queue": "research", "team": "ml"}
    api.create(pods, as_meant(attempts.mode, "mine", labels=words))
    said = {"duration": "2h", "deadline": "6h", "power-profile": "any", "checkpoint-notice": "5s"}
    said["progress"] = '{"step": 1}'
    notes = {"annotations": {f"wattherd.dev/{key}": text for key, text in said.items()}}
    api.merge(f"{pods}/mine", {"metadata": notes})
    api.merge(f"{pods}/mine", {"metadata": {"labels": {"wattherd.dev/queue": "vision"}}})
    api.merge(f"{pods}/mine", {"metadata": {"annotations": {"example.com/note": "x"}}})
    spec = {**as_meant(attempts.mode, "any")["spec"], "restartPolicy": "Never"}
    jobs = f"/apis/batch/v1/namespaces/{attempts.namespace}/jobs"
    api.create(jobs, {"metadata": {"name": "job"}, "spec": {"template": {"spec": spec}}})
    wait_until(lambda: len(api.get(pods)["items"]) == 2, "its pod is made")
    api.merge(f"{jobs}/job", {"spec": {"suspend": True}})
    api.delete(f"{jobs}/job", propagationPolicy="Background")
    api.delete(f"{pods}/mine")


def test_no_pod_with_gpus_is_put_on_a_node_past_all_schedulers(
    plane: ControlPlane, attempts: Attempts
) -> None:
    """Neither by itself nor by a controller that makes it."""
    mode, pods, api, space = attempts.mode, attempts.pods, attempts.tenant, attempts.namespace
    node = f"{space}-node"
    plane.api.fleet([a_node(node, gpus=4, labels={"nvidia.com/gpu.product": "Tesla-T4"})])
    try:
        for kind in ("gate", "claim", "none", "scheduler", ""):
            labels = {"wattherd.dev/admission": kind}
            put = as_meant(mode, "put", labels=labels, spec={"nodeName": node})
            attempts.refused("POST", pods, put)
        for name in ("nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpu"):
            other = as_meant(mode, "put", gpus=0, spec={"nodeName": node})
            other["spec"]["containers"][0]["resources"]["limits"][name] = "1"
            attempts.refused("POST", pods, other)
        plane.api.create(pods, as_meant(mode, "waits"))
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waits"},
                   "target": {"apiVersion": "v1", "kind": "Node", "name": node}}  # fmt: skip
        attempts.refused("POST", f"{pods}/waits/binding", binding)
        attempts.refused("POST", f"/api/v1/namespaces/{space}/bindings", binding)
        attempts.patched(f"{pods}/waits", {"spec": {"nodeName": node}})
        if mode in SCHEDULERS:
            attempts.refused("POST", pods, a_pod("past", gpus=1))
        promise(not attempts.through, attempts.through)
        spec = {**as_meant(mode, "any", spec={"nodeName": node})["spec"], "restartPolicy": "Never"}
        jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
        api.create(jobs, {"metadata": {"name": "job"}, "spec": {"template": {"spec": spec}}})
        events = f"/api/v1/namespaces/{space}/events"
        wait_until(lambda: "by hand" in str(api.get(events)["items"]), "its controller is told")
        found = [pod for pod in api.get(pods)["items"] if pod["spec"].get("nodeName")]
        promise(not found, found)
    finally:
        plane.api.delete(pods)
        plane.api.remove_nodes([node])


def test_what_is_the_operators_is_not_the_tenants(plane: ControlPlane, attempts: Attempts) -> None:
    """Namespaces, domains and budgets, policies."""
    free = {"metadata": {"labels": {"wattherd.dev/admission": "none"}}}
    attempts.patched(f"/api/v1/namespaces/{attempts.namespace}", free)
    with defined(plane.api), there(plane.api, [an_object("PowerDomain", "hall", limit="1kW")]):
        hall = path_of("PowerDomain", "hall")
        attempts.patched(hall, {"spec": {"limit": "1MW"}})
        attempts.patched(f"{hall}/status", {"status": {"budgetWatts": 10**6}})
        attempts.refused("DELETE", hall)
        more = an_object("PowerBudget", "more", domain="hall", constant="1MW")
        attempts.refused("POST", path_of("PowerBudget"), more)
    kinds = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    attempts.refused("DELETE", f"{kinds}/wattherd-reserved")
    promise(not attempts.through, attempts.through)


@pytest.mark.parametrize("attempts", ["admit"], indirect=True)
def test_a_gate_goes_when_there_are_watts_and_by_nobody_else(
    plane: ControlPlane, attempts: Attempts
) -> None:
    pods, api = attempts.pods, attempts.tenant
    for number, word in enumerate(("gate", "none", "claim", "")):
        made = a_pod(f"p-{number}", gpus=1, labels={"wattherd.dev/admission": word})
        taken = api.create(pods, made)
        assert [one["name"] for one in taken["spec"]["schedulingGates"]] == ["wattherd.dev/power"]
    mine = f"{pods}/p-0"
    attempts.patched(mine, {"spec": {"schedulingGates": None}})
    attempts.patched(mine, {"spec": {"schedulingGates": []}})
    drop = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    attempts.refused("PATCH", mine, drop, JSON)
    whole = api.get(mine)
    del whole["spec"]["schedulingGates"]
    attempts.refused("PUT", mine, whole)
    promise(not attempts.through, attempts.through)
    assert plane.api.get(mine)["spec"]["schedulingGates"] == [{"name": "wattherd.dev/power"}]


@pytest.mark.parametrize("attempts", ["dra"], indirect=True)
def test_nobody_else_says_what_a_claim_to_watts_is(plane: ControlPlane, attempts: Attempts) -> None:
    pods, api, space = attempts.pods, attempts.tenant, attempts.namespace
    templates = f"{DRA}/namespaces/{space}/resourceclaimtemplates"
    claims = f"{DRA}/namespaces/{space}/resourceclaims"
    nothing: Object = {"devices": {}}
    ours = {"devices": {"requests": [{"name": "w", "exactly": {
        "deviceClassName": "watts.wattherd.dev"}}]}}  # fmt: skip
    either = {"devices": {"requests": [{"name": "w", "firstAvailable": [
        {"name": "one", "deviceClassName": "watts.wattherd.dev"}]}]}}  # fmt: skip
    for spec in (nothing, ours, either):
        named = {"metadata": {"name": "wattherd-8-gpus-any"}, "spec": {"spec": spec}}
        attempts.refused("POST", templates, named)
    for spec in (ours, either):
        attempts.refused("POST", templates, {"metadata": {"name": "x"}, "spec": {"spec": spec}})
        attempts.refused("POST", claims, {"metadata": {"name": "x"}, "spec": spec})
    pod = api.create(pods, a_pod("mine", gpus=4))
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "wattherd-4-gpus-any"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "mine", "uid": pod["metadata"]["uid"],
             "controller": True, "blockOwnerDeletion": True}  # fmt: skip
    note = {"resource.kubernetes.io/pod-claim-name": "wattherd-watts"}
    about = {"name": "as-if", "annotations": note, "ownerReferences": [owner]}
    attempts.refused("POST", claims, {"metadata": about, "spec": nothing})
    api.create(claims, {"metadata": {"name": "own"}, "spec": nothing})
    attempts.patched(f"{claims}/own", {"metadata": {"annotations": note}})
    for kind in ("resourceClaimName", "resourceClaimTemplateName"):
        own = [{"name": "wattherd-watts", kind: "own"}]
        # Another template's name is written over; a claim beside it makes no valid pod.
        made = a_pod("other", gpus=8, spec={"resourceClaims": own})
        status, told = api.call("POST", f"{pods}?dryRun=All", made)
        assert status in (201, *REFUSED)
        for given in told["spec"]["resourceClaims"] if status == 201 else ():
            assert given.get("resourceClaimTemplateName") == "wattherd-8-gpus-any", given
            assert "resourceClaimName" not in given
    for word in ("none", "gate", ""):
        left = a_pod("left", gpus=2, labels={"wattherd.dev/admission": word})
        [given] = api.create(f"{pods}?dryRun=All", left)["spec"]["resourceClaims"]
        assert given["resourceClaimTemplateName"] == "wattherd-2-gpus-any"
    hoard = [{"name": "small", "resourceClaimTemplateName": "wattherd-8-gpus-any"}]
    attempts.refused("POST", pods, a_pod("hoards", spec={"resourceClaims": hoard}))
    held = "resource.kubernetes.io/delete-protection"
    plane.api.create(claims, {"metadata": {"name": "granted", "finalizers": [held]}, "spec": ours})
    attempts.patched(f"{claims}/granted", {"metadata": {"finalizers": None}})
    attempts.patched(f"{claims}/granted/status", {"status": {"allocation": None}})
    promise(not attempts.through, attempts.through)


def test_a_suspension_for_watts_is_ours_to_write(plane: ControlPlane, attempts: Attempts) -> None:
    """Who says that its job needs all the watts there are, first of all, keeps others waiting."""
    jobs = f"/apis/batch/v1/namespaces/{attempts.namespace}/jobs"
    spec = {**a_pod("any")["spec"], "restartPolicy": "Never"}
    notes = {"wattherd.dev/suspended-w": '{"hall": 1e9, "priority": 1000000}'}
    labels = {"wattherd.dev/suspended": "power"}
    job: Object = {"metadata": {"name": "job"}, "spec": {"suspend": True,
                                                         "template": {"spec": spec}}}  # fmt: skip
    forged: tuple[Object, ...] = ({"annotations": notes}, {"labels": labels})
    for about in forged:
        attempts.refused("POST", jobs, {**job, "metadata": {"name": "forged", **about}})
    attempts.tenant.create(jobs, job)
    for about in forged:
        attempts.patched(f"{jobs}/job", {"metadata": about})
    plane.api.merge(f"{jobs}/job", {"metadata": {"labels": labels, "annotations": notes}})
    for gone in ("labels", "annotations"):
        attempts.patched(f"{jobs}/job", {"metadata": {gone: None}})
    promise(not attempts.through, attempts.through)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_honest_pods_go_on_while_a_tenant_takes_what_it_can(
    plane: ControlPlane, namespace: str, mode: str
) -> None:
    """Watts for six GPUs, of which honest pods have three: others get the rest, and no more."""
    api, space = plane.api, f"{namespace}-hostile"
    ruled = {"metadata": {"labels": {"wattherd.dev/admission": RULED[mode]}}}
    api.namespace(space)
    api.merge(f"/api/v1/namespaces/{space}", ruled)
    most, empty_w, rise_w = 6, 4 * 4 * 10, 60
    product = {"nvidia.com/gpu.product": "Tesla-T4"}
    nodes = [a_node(f"{namespace}-{row}", gpus=4, labels=product) for row in range(4)]
    kwok = {"matchLabels": {"type": "kwok"}}
    objects = [
        an_object("PowerDomain", "hall", limit="1MW", nodeSelector=kwok),
        an_object("PowerBudget", "now", domain="hall", constant=f"{empty_w + most * rise_w}W"),
    ]
    honest, pods = (f"/api/v1/namespaces/{one}/pods" for one in (namespace, space))
    with defined(api):
        made = api.fleet(nodes)
        try:
            with there(api, objects), _at_work(plane, mode, namespace) as asked:
                for number in range(3):
                    api.create(honest, asked(f"honest-{number}"))
                wait_until(lambda: len(_bound(api, namespace)) == 3, "they run", within_s=240)
                uids = _bound(api, namespace)
                with a_tenant(api, space) as tenant:
                    for number in range(24):
                        node = made[number % 4]
                        more: Object = (
                            {}, {"annotations": dict(GRANTED)}, {"spec": {"nodeName": node}},
                            {"labels": {"wattherd.dev/admission": "none"}},
                        )[number % 4]  # fmt: skip
                        tenant.call("POST", pods, asked(f"p-{number}", **more))
                    both = lambda: len(_bound(api, space)) + len(_bound(api, namespace))  # noqa: E731
                    drawn = [both()]
                    until_s = time.monotonic() + 10
                    while time.monotonic() < until_s or max(drawn) < most:
                        for name in _bound(api, space):
                            change = {"metadata": {"annotations": None}}
                            tenant.call("PATCH", f"{pods}/{name}", change, kind=MERGE)
                        drawn.append(both())
                        assert time.monotonic() < until_s + 240, drawn
                        time.sleep(0.2)
                promise(max(drawn) == most, drawn)
                promise(_bound(api, namespace) == uids, "honest pods were stopped")
                api.delete(honest)
                api.delete(pods)
        finally:
            api.remove_nodes(made)
            api.remove_namespace(space)


def _bound(api: KubeApi, namespace: str) -> dict[str, str]:
    items = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        one["metadata"]["name"]: one["metadata"]["uid"]
        for one in items
        if one["spec"].get("nodeName")
    }


@contextmanager
def _at_work(plane: ControlPlane, mode: str, namespace: str) -> Iterator[Callable[..., Object]]:
    """The mode and its policies; yields how pods ask for it."""
    if mode == "scheduler":
        with policies(plane.api, mode), a_scheduler(plane, "--name=wattherd"):
            yield lambda name, **more: as_meant(mode, name, **more)
        return
    with beside_kube_scheduler(plane, mode, namespace) as beside:
        yield beside.pod
