"""Pods tell how far they are, by the SDK and the rights of a tenant; the scheduler acts on it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, Object, Refused, a_node, a_pod
from kube_server import end, wait_until
from shipped_rights import a_tenant, account, own_objects, policies
from test_second_scheduler import T4, bound, nodes_of

from wattherd_train.pod import ANNOTATION, PodReporter
from wattherd_train.trouble import Trouble

RBAC = "/apis/rbac.authorization.k8s.io/v1"
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
KIND = {"wattherd.dev/power-profile": "recommender"}
PATIENCE_S = 240.0


@contextmanager
def reporters_account(api: KubeApi, namespace: str, folder: Path, ca: Path) -> Iterator[Path]:
    """A service account as the guide has it: it may patch pods of its namespace, and no more."""
    roles, name = f"{RBAC}/namespaces/{namespace}", "tells-progress"
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    subject = {"kind": "ServiceAccount", "name": "trains", "namespace": namespace}
    (folder / "token").write_text(api.token(namespace, "trains"))
    (folder / "ca.crt").write_bytes(ca.read_bytes())
    api.create(f"{roles}/roles", {"metadata": {"name": name}, "rules": rules})
    bound_to = {"metadata": {"name": name}, "roleRef": group, "subjects": [subject]}
    api.create(f"{roles}/rolebindings", bound_to)
    yield folder


@contextmanager
def training(pod: PodReporter, steps_per_s: float) -> Iterator[None]:
    """A job that reports all the time, as the SDK has it."""
    over, began_s = threading.Event(), time.monotonic()

    def train() -> None:
        while not over.wait(0.2):
            pod.tell({"step": steps_per_s * (time.monotonic() - began_s), "total": 1e6})

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def a_copy(name: str, kubeconfig: Path) -> Iterator[subprocess.Popen[str]]:
    """A scheduler as the chart starts it, with the names of the plain manifest."""
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "scheduler", f"--name={name}"]
    own = ("--lease=default/wattherd", "--learned=default/wattherd-learned")
    given = (f"--kubeconfig={kubeconfig}", "--scheduler=fifo@fastest", *own)
    with subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any(name in line for line in iter(process.stderr.readline, ""))
            yield process
        finally:
            end(process)


LEARNED = "/api/v1/namespaces/default/configmaps/wattherd-learned"


def kept(api: KubeApi) -> str:
    """What is kept of jobs."""
    return str(api.get(LEARNED).get("data", {}).get("learned", ""))


def a_job(name: str, scheduler: str, **spec: object) -> Object:
    return a_pod(name, gpus=1, scheduler=scheduler, annotations=KIND, spec=dict(spec))


@pytest.mark.slow
def test_what_pods_report_decides_on_which_model_their_kind_runs(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """A kind that is ten times as fast on a T4, which nobody would guess, goes there.

    Also once the leader was killed, when nobody reports any more.
    """
    api = plane.api
    pods = f"/api/v1/namespaces/{namespace}/pods"
    fleet = [a_node("p-t4", gpus=4, labels=T4), a_node("p-a100", gpus=4, labels=A100)]
    with ExitStack() as stack:
        stack.enter_context(nodes_of(api, fleet))
        stack.enter_context(policies(api, "scheduler"))
        ours = stack.enter_context(account(plane, "scheduler"))
        stack.enter_context(own_objects(api, "scheduler"))
        name = "wattherd-progress"
        leader = stack.enter_context(a_copy(name, ours))
        api.create(pods, a_job("before", name))
        wait_until(lambda: bound(api, namespace) == {"before": "p-a100"}, "by the catalogue",
                   within_s=PATIENCE_S)  # fmt: skip
        for at in ("p-t4", "p-a100"):
            api.create(pods, a_job(f"on-{at}", name, nodeSelector={"kubernetes.io/hostname": at}))
        wait_until(lambda: len(bound(api, namespace)) == 3, "those that teach", within_s=PATIENCE_S)
        ca = Path(plane.folder / "ca.crt")
        may = stack.enter_context(reporters_account(api, namespace, tmp_path, ca))
        trouble, reports = Trouble(), stack.enter_context(ExitStack())
        for at, speed in (("p-t4", 10.0), ("p-a100", 1.0)):
            url = f"{plane.url}{pods}/on-{at}"
            pod = PodReporter(url, may, trouble, every_s=2.0)
            reports.enter_context(training(pod, speed))

        def goes_to() -> str:
            api.create(pods, a_job(f"asks-{time.monotonic_ns()}", name))
            wait_until(lambda: len(_asking(api, namespace)) == 1, "it is bound", within_s=120.0)
            ((asked, node),) = _asking(api, namespace).items()
            api.delete(f"{pods}/{asked}")
            wait_until(lambda: not _asking(api, namespace), "it is gone", within_s=60.0)
            return node

        wait_until(lambda: goes_to() == "p-t4", "what was learned is acted on",
                   within_s=PATIENCE_S, every_s=2.0)  # fmt: skip
        assert trouble.count == 0, trouble.last
        told = api.pod(namespace, "on-p-t4")["metadata"]["annotations"]
        assert json.loads(told[ANNOTATION])["total"] == 1e6
        with a_tenant(api, namespace) as tenant:  # whoever has `edit` may say so, too
            said = {"metadata": {"annotations": {ANNOTATION: '{"step": 7}'}}}
            tenant.merge(f"{pods}/before", said)
            forged = {"metadata": {"annotations": {"wattherd.dev/gpus": "3"}}}
            with pytest.raises(Refused, match="is written by wattherd"):
                tenant.merge(f"{pods}/before", forged)
            with pytest.raises(Refused, match='cannot patch resource "configmaps"'):
                tenant.merge(LEARNED, {"data": {"learned": ""}})
        wait_until(lambda: all(one in kept(api) for one in (namespace, "T4", "A100")),
                   lambda: kept(api), within_s=PATIENCE_S)  # fmt: skip
        reports.close()  # whoever leads next hears no more of them
        api.delete(f"{pods}/on-p-t4")
        api.delete(f"{pods}/on-p-a100")
        stack.enter_context(a_copy(name, ours))
        leader.kill()
        leader.wait()
        assert goes_to() == "p-t4", "the next leader plans with what was learned"


def _asking(api: KubeApi, namespace: str) -> dict[str, str]:
    return {pod: node for pod, node in bound(api, namespace).items() if pod.startswith("asks-")}
