"""In every mode what the shell asks of the API is allowed by what that mode is shipped with.

Each is at work on an API server of tests that has every kind, and the rules of the manifest. All
that a mode writes comes about here; what was asked and what was refused is looked at.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra kube")
pytest.importorskip("msgspec", reason="needs the extra kube")

from kube_builders import Json, bound, node_json, pod_json
from kube_rights_api import Asked, RightsApi, rules_of, served

from wattherd.estimate.learned_memory import LearnedMemory
from wattherd.kube.api import feed as feeds
from wattherd.kube.api.objects import OwnerReference
from wattherd.kube.decide.extender import Grant
from wattherd.kube.decide.extender_wire import BindArgs
from wattherd.kube.decide.pool_growth import PoolLimit, Provision
from wattherd.kube.decide.pools import Empty, Remove, Return
from wattherd.kube.facts.orders import (
    AskAgain,
    CapPod,
    EvictPod,
    ResizeOwner,
    ResumeOwner,
    StopPods,
    StopRun,
)
from wattherd.kube.live.foreign_reasons import _asked_again
from wattherd.server.kube.pooling import PoolOptions, live_pools
from wattherd.server.kube.run import (
    KubeOptions,
    live_admission,
    live_claims,
    live_extender,
    live_kueue_check,
    live_scheduler,
)
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

DEPLOY = Path(__file__).parents[2] / "deploy/kubernetes"
ONE = exclusive(1_000, 1)
JOB = OwnerReference(
    api_version="batch/v1", kind="Job", name="train", uid="uid-train", controller=True
)
GATED = {"schedulingGates": [{"name": "wattherd.dev/power"}]}
CLAIMING = {
    "resourceClaims": [
        {"name": "wattherd-watts", "resourceClaimTemplateName": "wattherd-1-gpus-any"}
    ]
}
WISHES: dict[str, Json] = {
    "scheduler": {"schedulerName": "wattherd"},
    "extender": {},
    "admit": GATED,
    "admission-check": {},
    "dra": CLAIMING,
    "pools": {},
}
"""What a pod says that is for this mode."""


def begun(mode: str, kubeconfig: Path) -> Any:
    """The shell of a mode, as the command makes it."""
    lease = f"wattherd/wattherd{'-pools' if mode == 'pools' else ''}"
    if mode == "pools":
        return live_pools(
            PoolOptions(kubeconfig=kubeconfig, lease=lease, grow=True), lambda _: None
        )
    learned = "wattherd/wattherd-learned" if mode == "scheduler" else ""
    options = KubeOptions(policy="first-fit", kubeconfig=kubeconfig, lease=lease, learned=learned)
    match mode:
        case "scheduler":
            return live_scheduler(options)
        case "extender":
            return live_extender(options)[0]
        case "admit":
            return live_admission(options)
        case "admission-check":
            return live_kueue_check(options, 60)
        case _:
            return live_claims(options)


def cluster(mode: str) -> dict[str, list[Json]]:
    """Two nodes of which one is silent, who runs and who waits, a gang with a member too few."""
    fed = {"wattherd.dev/power-domain": "hall"}
    there, silent = (node_json(a_machine(name, gpus=4, model="T4"), **fed) for name in ("n0", "n1"))
    for node, ready in ((there, "True"), (silent, "Unknown")):
        node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    wish = WISHES[mode]
    ungated = {} if wish is GATED else wish
    runs, lost = (
        bound(pod_json(name, ONE, **ungated), node, **{"wattherd.dev/decision": "d-1"})
        for name, node in (("runs", "n0"), ("lost", "n1"))
    )
    waits, large = pod_json("waits", ONE, **wish), pod_json("large", exclusive(1_000, 16), **wish)
    ring = pod_json("ring-0", ONE, **wish)
    ring["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "ring"}
    objects = {
        "nodes": [there, silent],
        "pods": [runs, lost, waits, large, ring],
        "podgroups": [named("ring", spec={"minMember": 2})],
        "powerdomains": [named("hall", space="", spec={"limit": "9kW"})],
        "powerbudgets": [named("half", space="", spec={"domain": "hall", "limit": "5kW"})],
        "queues": [named("ml", space="", spec={})],
        "jobs": [named("train", spec={"parallelism": 1, "completionMode": "Indexed"})],
        "deviceclasses": [named("watts.wattherd.dev", space="", spec={})],
        "leases": [named("wattherd", spec={}), named("wattherd-pools", spec={})],
        "configmaps": [named("wattherd-learned", space="wattherd")],
        "admissionchecks": [
            named("power", space="", spec={"controllerName": "wattherd.dev/power"})
        ],
    }
    quota = {"type": "QuotaReserved", "status": "True"}
    state = {"name": "power", "state": "Pending", "lastTransitionTime": "x", "message": ""}
    sets = [{"name": "main", "count": 1, "template": pod_json("template", ONE)}]
    status = {"conditions": [quota], "admissionChecks": [state]}
    objects["nodepools"] = [named("grown", space="", spec={})]
    objects["nodeclaims"] = [named("c0", space="", status={"nodeName": "n0"})]
    objects["workloads"] = [named("one", spec={"podSets": sets}, status=status)]
    stray = named("stray", space="", spec={"driver": "watts.wattherd.dev", "pool": {"name": "x"}})
    other = {"driver": "watts.wattherd.dev", "pool": {"name": "level-0.site"}}
    objects["resourceslices"] = [stray, named("wattherd.level-0.site", space="", spec=other)]
    return objects


def named(name: str, *, space: str = "default", **more: Any) -> Json:
    about = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    return {"metadata": about | ({"namespace": space} if space else {}), **more}


@contextmanager
def at_work(
    api: RightsApi, mode: str, tmp_path: Path, absent_s: tuple[float, float] = feeds.ABSENT_S
) -> Iterator[Any]:
    with served(api, tmp_path / "config") as kubeconfig:
        live = begun(mode, kubeconfig)
        live.feed._absent_s = absent_s
        live.begin()
        try:
            yield live
        finally:
            live.close()


def an_api(mode: str) -> RightsApi:
    return RightsApi(rules_of(DEPLOY / f"{mode}.yaml"), cluster(mode))


def wait_until(
    done: Callable[[], object], what: Callable[[], object], within_s: float = 60
) -> None:
    end_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end_s, what()
        time.sleep(0.05)


def ordered(live: Any, mode: str) -> None:
    """Everything that is ordered of those who run in this mode, whatever becomes of it."""
    if mode == "pools":
        switched_and_grown(live)
        return
    one = EvictPod("uid-runs", "default/runs", "budget-cut: x", 0.0)
    live.steward.carry_out(CapPod("uid-runs", "default/runs", 100.0, forgets=True))
    if mode == "admission-check":
        return  # Kueue is told
    run = live.feed.loop.run
    live.steward.carry_out(StopPods(("uid-runs",), "default", JOB, {"hall": 60.0}, 0, "a cut"))
    path = "/apis/batch/v1/namespaces/default/jobs/train"
    live.steward.carry_out(ResumeOwner("uid-train", path))
    live.steward.carry_out(ResizeOwner("uid-train", "default", "train", 1))
    stop = StopRun(evictions=(one,), owner=None, notice_s=0.01)
    run(live.steward.stop_run(stop, lambda: True))
    if mode == "scheduler":
        wait_until(live._learned.is_read, lambda: live.feed.complaints)
        ended = LearnedMemory(services_gpu_s={"default": (60.0,)})
        live.feed.turn(live.scheduler.learned.recall, ended)
        live._learned._keep()
    if mode == "extender":
        run(_asked_again(live.feed.transport, AskAgain("uid-waits", "default/waits")))
        args = BindArgs(pod_name="waits", pod_namespace="default", pod_uid="uid-waits", node="n0")
        wait_until(live.seat.ready, lambda: live.feed.complaints)
        run(live.bind(args, Grant("d-2", {})))


def switched_and_grown(live: Any) -> None:
    """What pools write."""
    growth = live.grow.__self__
    wait_until(lambda: "c0" in growth._claims, lambda: live.feed.complaints)
    for order in (Return("n0"), Empty("n0", "uid-runs", "default/runs"), Remove("n0")):
        live._carry_out(order)
    growth._limit(PoolLimit("grown", "nvidia.com/gpu", 4, ""))
    growth._provision(Provision("default", "asks", "check-capacity", "default/waits", 1))


POWER = {
    Asked("patch", "wattherd.dev", "powerdomains/status"),
    Asked("patch", "wattherd.dev", "powerbudgets/status"),
}
STOPS = {
    Asked("patch", "", "pods/status"),
    Asked("patch", "batch", "jobs"),
    Asked("create", "", "pods/eviction"),
    Asked("create", "events.k8s.io", "events"),
}
DECIDES = {Asked("update", "coordination.k8s.io", "leases"), Asked("patch", "", "nodes/status")}
QUEUED = {Asked("patch", "wattherd.dev", "queues/status")}
BINDS = {Asked("create", "", "pods/binding")}
GROUPS = {Asked("patch", "scheduling.x-k8s.io", "podgroups/status")}
LEARNED = {Asked("patch", "", "configmaps")}
WRITES: dict[str, set[Asked]] = {
    "scheduler": DECIDES | POWER | STOPS | QUEUED | BINDS | GROUPS | LEARNED,
    "extender": DECIDES | POWER | STOPS | QUEUED | BINDS,
    "admit": DECIDES | POWER | STOPS | QUEUED | GROUPS | {Asked("patch", "", "pods")},
    "admission-check": DECIDES
    | POWER
    | {
        Asked("patch", "", "pods/status"),
        Asked("patch", "kueue.x-k8s.io", "workloads/status"),
        Asked("patch", "kueue.x-k8s.io", "admissionchecks/status"),
    },
    "dra": DECIDES
    | POWER
    | STOPS
    | {
        Asked("create", "resource.k8s.io", "resourceslices"),
        Asked("update", "resource.k8s.io", "resourceslices"),
        Asked("delete", "resource.k8s.io", "resourceslices"),
        Asked("create", "resource.k8s.io", "resourceclaimtemplates"),
    },
    "pools": {
        Asked("update", "coordination.k8s.io", "leases"),
        Asked("patch", "", "nodes"),
        Asked("create", "", "pods/eviction"),
        Asked("create", "", "podtemplates"),
        Asked("patch", "karpenter.sh", "nodepools"),
        Asked("delete", "karpenter.sh", "nodeclaims"),
        Asked("create", "autoscaling.x-k8s.io", "provisioningrequests"),
    },
}


@pytest.mark.long
@pytest.mark.parametrize("mode", WRITES)
def test_all_that_a_mode_asks_is_what_it_is_shipped_with(mode: str, tmp_path: Path) -> None:
    api = an_api(mode)
    with at_work(api, mode, tmp_path) as live:
        wait_until(live.feed.sees, lambda: (api.refused, live.feed.complaints))
        ordered(live, mode)
        wait_until(lambda: WRITES[mode] <= api.asked, lambda: sorted(WRITES[mode] - api.asked))
    assert api.refused == set()


OPTIONAL = {
    "scheduler": (
        "resourceclaims",
        "topologies",
        "podgroups",
        "jobsets",
        "leaderworkersets",
        "rayjobs",
    ),
    "extender": ("podgroups", "jobs", "appwrappers", "resourceslices"),
    "admit": ("podgroups", "jobs", "trainjobs"),
    "admission-check": ("podgroups",),
    "dra": ("podgroups", "mpijobs", "rayclusters"),
    "pools": ("nodepools", "nodeclaims", "provisioningrequests", "resourceclaims"),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", OPTIONAL)
def test_an_optional_kind_that_may_not_be_read_is_told_and_stops_nothing(
    mode: str, tmp_path: Path
) -> None:
    api = an_api(mode)
    api.without(*OPTIONAL[mode])
    with at_work(api, mode, tmp_path) as live:
        wait_until(live.feed.sees, lambda: (api.refused, live.feed.complaints))
        told = "\n".join(live.feed.complaints)
        for plural in OPTIONAL[mode]:
            assert f'cannot list resource "{plural}"' in told


@pytest.mark.long
@pytest.mark.parametrize(
    "plural", ["nodes", "pods", "persistentvolumes", "powerdomains", "powerbudgets", "queues"]
)
def test_what_decides_over_watts_must_be_read(plural: str, tmp_path: Path) -> None:
    api = an_api("scheduler")
    api.without(plural)
    with at_work(api, "scheduler", tmp_path) as live:
        told = lambda: f'cannot list resource "{plural}"' in "\n".join(live.feed.troubles)  # noqa: E731
        wait_until(told, lambda: live.feed.complaints)
        assert not live.feed.sees()


@pytest.mark.long
def test_a_gang_whose_size_may_not_be_read_waits_until_it_may(tmp_path: Path) -> None:
    api = an_api("scheduler")
    whole, rules = copy.deepcopy(api.rules), api.rules
    api.without("podgroups")

    def why(live: Any) -> list[str]:
        waiting = live.feed.turn(lambda: live.scheduler._queueing.waiting)
        of_ring = [one for one in waiting if "uid-ring-0" in [each.uid for each in one.members]]
        return [one.refusal[1] for one in of_ring if one.refusal is not None]

    with at_work(api, "scheduler", tmp_path, absent_s=(0.2, 0.3)) as live:
        bound_one = lambda: Asked("create", "", "pods/binding") in api.asked  # noqa: E731
        wait_until(bound_one, lambda: live.feed.complaints)
        wait_until(lambda: any("may not read" in one for one in why(live)), lambda: why(live))
        rules[:] = whole
        wait_until(lambda: any("create the others" in one for one in why(live)), lambda: why(live))
        wait_until(lambda: not live.feed.troubles, lambda: live.feed.troubles)


@pytest.mark.long
def test_what_was_known_of_a_kind_stays_when_the_right_to_it_is_taken_away(tmp_path: Path) -> None:
    api = an_api("scheduler")
    with at_work(api, "scheduler", tmp_path, absent_s=(0.2, 0.3)) as live:
        known = lambda: {one.name for one in live.scheduler.groups}  # noqa: E731
        wait_until(lambda: live.feed.sees() and "ring" in known(), lambda: live.feed.complaints)
        api.without("podgroups", "topologies")
        live.feed.look_again(live.feed._look + 1)
        wait_until(lambda: len(live.feed.troubles) >= 4, lambda: live.feed.troubles)
        wait_until(lambda: live.feed.sees(live.feed._look), lambda: live.feed.troubles)
        assert "ring" in known()
