"""`kubectl describe pod` says the one reason why a pod waits, and what would unblock it."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
import urllib.request
from datetime import datetime
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import free_ports, wait_until
from power_api import an_object, defined, path_of
from test_second_scheduler import T4, a_scheduler, bound, members, nodes_of

NATIVE = "/apis/scheduling.k8s.io/v1alpha2"
OLDER = "/apis/scheduling.x-k8s.io/v1alpha1"


class Kubectl:
    """The command, as users have it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        built = plane.programs / "kubectl"
        found = str(built) if built.exists() else shutil.which("kubectl")
        if found is None:
            pytest.skip("no kubectl")
        self._command = [found, f"--kubeconfig={plane.kubeconfig}", f"--namespace={namespace}"]

    def __call__(self, *arguments: str) -> str:
        command = [*self._command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def reasons(self, pod: str) -> list[str]:
        """What `describe` shows of why a pod waits, oldest first."""
        lines = self("describe", "pod", pod).split("Events:")[1].splitlines()
        return [line.split("  ")[-1].strip() for line in lines if "FailedScheduling" in line]


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    return Kubectl(plane, namespace)


def condition(api: KubeApi, path: str, kind: str) -> Object:
    found = api.get(path).get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})


def test_a_pod_without_watts_says_how_many_are_missing_where(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    labels = T4 | {"wattherd.dev/power-domain": "why-1"}
    # 4 T4s idle at 10 W, and rise by 60 W each (catalog).
    budget = "why-1=120W"
    with (
        nodes_of(api, [a_node("why-watts", gpus=4, labels=labels)]),
        a_scheduler(plane, "wattherd-why", "--budget", budget) as scheduler,
    ):
        api.create(pods, a_pod("first", gpus=1, scheduler=scheduler))
        wait_until(lambda: bound(api, namespace), "the first one runs")
        api.create(pods, a_pod("second", gpus=1, scheduler=scheduler))
        wait_until(lambda: kubectl.reasons("second"), "it is told why")
        said = (
            "WaitingForPower: the pod adds 60 W, power domain why-1 has 20 W left of 120 W; "
            "raise the budget of power domain why-1 by 40 W, or free 40 W there"
        )
        assert kubectl.reasons("second") == [said]
        told = condition(api, f"{pods}/second", "PodScheduled")
        assert (told["status"], told["reason"], told["message"]) == ("False", "Unschedulable", said)
        where = "where it adds 60 W in power domain why-1"
        wait_until(lambda: where in kubectl("describe", "pod", "first"), "where it went is told")


def test_a_pod_for_which_gpus_are_free_only_in_pieces_says_so(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    nodes = [a_node(f"why-piece-{row}", gpus=2, labels=T4) for row in range(2)]
    with nodes_of(api, nodes), a_scheduler(plane, "wattherd-pieces") as scheduler:
        for row in range(2):
            spec = {"nodeSelector": {"kubernetes.io/hostname": f"why-piece-{row}"}}
            api.create(pods, a_pod(f"small-{row}", gpus=1, scheduler=scheduler, spec=spec))
        wait_until(lambda: len(bound(api, namespace)) == 2, "one on each node")
        api.create(pods, a_pod("large", gpus=2, scheduler=scheduler))
        wait_until(lambda: kubectl.reasons("large"), "it is told why")
        [said] = kubectl.reasons("large")
        assert said.startswith(
            "Fragmented: needs 2 GPUs on one node; 2 of 4 are free, but on 2 nodes, at most 1 on "
            "one (why-piece-0); wait until 1 more GPU on why-piece-0 is free, or ask for 1 GPU"
        )
        api.delete(f"{pods}/small-0", gracePeriodSeconds=0)
        wait_until(lambda: "large" in bound(api, namespace), "what was said to help helps")


def test_a_pod_that_waits_for_its_gang_says_how_many_are_missing(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with (
        nodes_of(api, [a_node("why-gang", gpus=4, labels=T4)]),
        a_scheduler(plane, "wattherd-why-gang") as scheduler,
    ):
        api.create_all(pods, members("ring", 3, scheduler)[:2])
        wait_until(lambda: kubectl.reasons("ring-0"), "it is told why")
        said = "WaitingForGang: 2 of 3 pods of ring are there; create the others"
        assert kubectl.reasons("ring-0") == [said]


def test_a_pod_without_quota_says_what_its_queue_may_hold(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    small = an_object("Queue", "why-small", guaranteedPercent=25, maximumPercent=25)
    ours = {"wattherd.dev/queue": "why-small"}
    with defined(api), nodes_of(api, [a_node("why-quota", gpus=4, labels=T4)]):
        api.create(path_of("Queue"), small)
        with a_scheduler(plane, "wattherd-quota") as scheduler:
            api.create(pods, a_pod("first", gpus=1, scheduler=scheduler, labels=ours))
            wait_until(lambda: bound(api, namespace), "the first one runs")
            api.create(pods, a_pod("second", gpus=1, scheduler=scheduler, labels=ours))
            wait_until(lambda: kubectl.reasons("second"), "it is told why")
            [said] = kubectl.reasons("second")
            assert said == (
                "QuotaExceeded: asked 1 GPU, in use 1 GPU, available 0 GPUs (queue 'why-small' "
                "may hold 1 GPU at most; raise its maximum); or wait until pods of its queue end"
            )
            api.delete(f"{pods}/first", gracePeriodSeconds=0)
            wait_until(lambda: "second" in bound(api, namespace), "what was said to help helps")


def test_a_native_group_says_why_it_waits_and_when_it_does_no_more(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    groups = f"{NATIVE}/namespaces/{namespace}/podgroups"
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    about = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
    named = {"schedulingGroup": {"podGroupName": "told"}}
    with (
        nodes_of(api, [a_node("why-native", gpus=2, labels=T4)]),
        a_scheduler(plane, "wattherd-why-native") as scheduler,
    ):
        api.create(groups, {**about, "metadata": {"name": "told"}, "spec": spec})
        made = [a_pod(f"t-{n}", gpus=1, scheduler=scheduler, spec=named) for n in range(2)]
        api.create(pods, made[0])
        said = lambda: condition(api, f"{groups}/told", "PodGroupScheduled")  # noqa: E731
        wait_until(lambda: "1 of 2 pods" in said().get("message", ""), "the group is told")
        assert (said()["status"], said()["reason"]) == ("False", "Unschedulable")
        events = lambda: kubectl("describe", "podgroup", "told").split("Events:")[1]  # noqa: E731
        wait_until(lambda: "WaitingForGang" in events(), "describe shows it")
        api.create(pods, made[1])
        wait_until(lambda: said()["status"] == "True", "the group is told that it runs")


def test_reasons_are_not_written_again_and_again(
    plane: ControlPlane, namespace: str, kubectl: Kubectl
) -> None:
    """Thirty pods come and go beside one that waits: its reason is written a few times only."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    with (
        nodes_of(api, [a_node("why-calm", gpus=4, labels=T4)]),
        a_scheduler(plane, "wattherd-calm") as scheduler,
    ):
        api.create(pods, a_pod("stays", gpus=1, scheduler=scheduler))
        wait_until(lambda: "stays" in bound(api, namespace), "it runs")
        api.create(pods, a_pod("large", gpus=4, scheduler=scheduler))
        wait_until(lambda: kubectl.reasons("large"), "it is told why")
        for number in range(30):
            name = f"passing-{number}"
            api.create(pods, a_pod(name, gpus=1, scheduler=scheduler))
            wait_until(lambda name=name: name in bound(api, namespace), "it runs")  # type: ignore[misc]
            api.delete(f"{pods}/{name}", gracePeriodSeconds=0)
        wait_until(lambda: len(bound(api, namespace)) == 1, "those that came have gone")
        written = [
            each.get("series", {}).get("count", 1)
            for each in api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
            if each["regarding"]["name"] == "large"
        ]
        seconds = _age_s(api, pods)
        assert 1 <= sum(written) <= 1 + seconds / 30


def _age_s(api: KubeApi, pods: str) -> float:
    """How long the pod that waits has been there, by the API server's clock."""
    made = api.get(f"{pods}/large")["metadata"]["creationTimestamp"]
    last = api.create(pods, a_pod("now"))["metadata"]["creationTimestamp"]
    return (datetime.fromisoformat(last) - datetime.fromisoformat(made)).total_seconds()


def wattherd(plane: ControlPlane, *arguments: str, given: str = "") -> str:
    """What the command prints, as users start it."""
    command = [sys.executable, "-m", "wattherd.cli.main", *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pods_are_explained_from_the_api_alone(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Of our scheduler, which has told why, and of a native gang that nobody schedules."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    kubeconfig = f"--kubeconfig={plane.kubeconfig}"
    labels = T4 | {"wattherd.dev/power-domain": "why-2"}
    about = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    named = {"schedulingGroup": {"podGroupName": "silent"}}
    secret = [{"name": "TOKEN", "value": "s3cret"}]
    with (
        nodes_of(api, [a_node("why-api", gpus=4, labels=labels)]),
        a_scheduler(plane, "wattherd-api", "--budget", "why-2=120W") as scheduler,
    ):
        api.create(pods, a_pod("first", gpus=1, scheduler=scheduler))
        wait_until(lambda: bound(api, namespace), "the first one runs")
        waits = a_pod("second", gpus=1, scheduler=scheduler)
        waits["spec"]["containers"][0]["env"] = secret
        api.create(pods, waits)
        groups = f"{NATIVE}/namespaces/{namespace}/podgroups"
        api.create(groups, {**about, "metadata": {"name": "silent"}, "spec": spec})
        api.create(pods, a_pod("mute", gpus=1, scheduler="nobody", spec=named))
        told = lambda: condition(api, f"{pods}/second", "PodScheduled").get("message")  # noqa: E731
        wait_until(told, "it is told why")
        asked = ("-n", namespace, kubeconfig, "--budget=why-2=120W", "-o", "json")
        ours = json.loads(wattherd(plane, "explain", "pod/second", *asked))
        assert (ours["reason"], ours["told"]) == ("WaitingForPower", told())
        helps = {one["kind"]: one for one in ours["would_start"]}
        assert helps["budget"]["raise_w"] == {"why-2": 40.0}
        assert helps["end"]["pods"] == [f"{namespace}/first"]
        first = json.loads(wattherd(plane, "explain", "pod/first", *asked))
        assert (first["state"], first["node"]) == ("Placed", "why-api")
        assert first["written"]["watts"] == "60"
        mute = json.loads(wattherd(plane, "explain", "pod/mute", *asked))
        assert (mute["told"], mute["reason"]) == (None, "WaitingForGang")
        assert "1 of 3 pods of silent are there" in mute["text"]
        taken = wattherd(plane, "kube", "snapshot", kubeconfig, "--budget=why-2=120W")
        assert "s3cret" not in taken
        assert wattherd(plane, "kube", "snapshot", kubeconfig, "--budget=why-2=120W") == taken
        file = tmp_path / "cluster.json"
        file.write_text(taken)
        ask = json.dumps(a_pod("x", gpus=1, scheduler=scheduler, spec=None))
        simulate = ("kube", "simulate", "-f", "-", "--snapshot", str(file), "--name", scheduler)
        assert wattherd(plane, *simulate, given=ask).startswith("not feasible: WaitingForPower")
        richer = wattherd(plane, *simulate, "--budget", "1.5x", given=ask)
        assert richer.startswith("not feasible")  # `second` comes first
        richest = wattherd(plane, *simulate, "--budget", "2x", given=ask)
        assert richest.endswith("feasible, not reserved\n")


def test_the_dashboard_shows_watts_pods_reasons_and_decisions(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    labels = T4 | {"wattherd.dev/power-domain": "why-3"}
    (port,) = free_ports(1)
    budgets = ("--budget", "why-3=120W", "--budget", "10kW")
    here = f"http://127.0.0.1:{port}"
    with (
        nodes_of(api, [a_node("why-pages", gpus=4, labels=labels)]),
        a_scheduler(
            plane, "wattherd-pages", *budgets, "--dashboard", f"127.0.0.1:{port}"
        ) as scheduler,
    ):
        api.create(pods, a_pod("first", gpus=1, scheduler=scheduler))
        wait_until(lambda: bound(api, namespace), "the first one runs")
        api.create(pods, a_pod("second", gpus=1, scheduler=scheduler))
        wait_until(lambda: "WaitingForPower" in page(f"{here}/queue?shown=waiting"), "why it waits")
        assert f"{namespace}/second" in page(f"{here}/queue?shown=waiting")
        now = page(f"{here}/")
        assert "power domain why-3" in now
        assert "100 W may be drawn of 120 W" in now
        assert f"{namespace}/first" in now
        assert "why-pages: 4 x T4" in page(f"{here}/cluster")
        assert f"{namespace}/first" in page(f"{here}/decisions")
        assert "raise the budget of power domain why-3 by 40 W" in page(
            f"{here}/jobs/{namespace}/second"
        )
        asked = json.dumps(a_pod("x", gpus=1, scheduler=scheduler)).encode()
        with urllib.request.urlopen(f"{here}/simulate", asked, timeout=60) as answer:
            told = json.loads(answer.read())
        assert (told["feasible"], told["reason"]) == (False, "WaitingForPower")


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return html.unescape(answer.read().decode())
