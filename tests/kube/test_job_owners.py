"""Gangs and suspension of those who own jobs: JobSet, TrainJob, PyTorchJob, LeaderWorkerSet.

Their definitions are made here with as much as is looked at, and the test does what their
controllers would: it makes pods and jobs, and takes them away from what is suspended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from power_api import an_object, defined, path_of
from test_group_objects import supposed
from test_second_scheduler import T4, a_scheduler, bound, why

KINDS = {
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
    "MPIJob": ("kubeflow.org", "v2beta1", "mpijobs"),
    "RayJob": ("ray.io", "v1", "rayjobs"),
    "RayCluster": ("ray.io", "v1", "rayclusters"),
    "AppWrapper": ("workload.codeflare.dev", "v1beta2", "appwrappers"),
}
GPUS, IDLE_W, RISE_W = 8, 10, 60
EMPTY_W = GPUS * IDLE_W
LONG_S = 240.0
NAME = "wattherd-owners"


def path(kind: str, namespace: str, name: str = "") -> str:
    group, version, plural = KINDS[kind]
    return f"/apis/{group}/{version}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


@pytest.fixture
def kinds(plane: ControlPlane) -> Iterator[None]:
    """The kinds are served, with any fields."""
    kinds = {plural: (group, version, kind) for kind, (group, version, plural) in KINDS.items()}
    with served(plane.api, kinds), defined(plane.api):
        yield


@pytest.fixture
def hall(plane: ControlPlane) -> Iterator[str]:
    """A node of eight GPUs in a domain that bears all of them; yields its budget's name."""
    nodes = plane.api.fleet([a_node("owners", gpus=GPUS, labels=T4 | {"hall": "owners"})])
    yield "owners"
    plane.api.remove_nodes(nodes)


def create(api: KubeApi, kind: str, namespace: str, name: str, spec: Object, **more: Any) -> Object:
    group, version, _ = KINDS[kind]
    about = {"apiVersion": f"{group}/{version}", "kind": kind}
    made: Object = api.create(
        path(kind, namespace), {**about, "metadata": {"name": name, **more}, "spec": spec}
    )
    return made


def owned(owner: Object) -> list[Object]:
    about = owner["metadata"]
    return [
        {
            **{key: owner[key] for key in ("apiVersion", "kind")},
            **{key: about[key] for key in ("name", "uid")},
            "controller": True,
        }
    ]


def a_pod_of(owner: Object, name: str, **labels: str) -> Object:
    references = owned(owner)
    return a_pod(name, gpus=1, scheduler=NAME, labels=labels, ownerReferences=references)


def a_job_of(owner: Object, name: str) -> Object:
    """A Job of two pods, as a JobSet makes it."""
    labels = {"jobset.sigs.k8s.io/jobset-name": owner["metadata"]["name"]}
    pod = a_pod("any", gpus=1, scheduler=NAME, spec={"restartPolicy": "Never"})
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"parallelism": 2, "completions": 2, "template": template}
    return {"metadata": {"name": name, "ownerReferences": owned(owner)}, "spec": spec}


TWO_JOBS = {"replicatedJobs": [{"name": "n", "replicas": 2, "template": {
    "spec": {"parallelism": 2, "completions": 2}}}]}  # fmt: skip
WORKERS = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}}


@pytest.mark.usefixtures("kinds")
def test_gangs_of_owners_start_whole_and_are_suspended_at_the_top(
    plane: ControlPlane, namespace: str, hall: str
) -> None:
    """Four pods of a TrainJob's JobSet, two of a PyTorchJob, two of a LeaderWorkerSet."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    here = {"nodeSelector": {"matchLabels": {"hall": hall}}}
    full = f"{EMPTY_W + GPUS * RISE_W}W"
    api.create(path_of("PowerDomain"), an_object("PowerDomain", hall, **here))
    api.create(path_of("PowerBudget"), an_object("PowerBudget", hall, domain=hall, constant=full))

    def budget(watts: int) -> None:
        api.merge(path_of("PowerBudget", hall), {"spec": {"constant": f"{watts}W"}})

    def spec(kind: str, name: str) -> Object:
        found: Object = api.get(path(kind, namespace, name))["spec"]
        return found

    def suspended() -> tuple[bool, bool]:
        """The TrainJob, and the PyTorchJob."""
        train, torch = spec("TrainJob", "train"), spec("PyTorchJob", "torch")
        return bool(train.get("suspend")), bool(torch.get("runPolicy", {}).get("suspend"))

    with a_scheduler(plane, NAME):
        train = create(api, "TrainJob", namespace, "train", {})
        job_set = create(api, "JobSet", namespace, "train", TWO_JOBS, ownerReferences=owned(train))
        api.create(jobs, a_job_of(job_set, "train-n-0"))
        missing = "2 of 4 pods of train are there"
        first = lambda: next(iter(api.get(pods)["items"]), {"metadata": {"name": "-"}})  # noqa: E731
        wait_until(lambda: len(api.get(pods)["items"]) == 2, "two pods are made")
        waits = lambda: why(api, namespace, first()["metadata"]["name"])  # noqa: E731
        wait_until(lambda: missing in waits(), waits)
        torch = create(api, "PyTorchJob", namespace, "torch", WORKERS)
        api.create(pods, a_pod_of(torch, "torch-master-0"))
        said = "1 of 2 pods of torch are there"
        wait_until(lambda: said in why(api, namespace, "torch-master-0"), "its worker is missing")
        assert bound(api, namespace) == {}
        names = [one["metadata"]["name"] for one in api.get(pods)["items"]]
        told = {name: why(api, namespace, name) for name in names}
        assert supposed(plane, namespace, NAME) == told
        api.create(jobs, a_job_of(job_set, "train-n-1"))
        api.create(pods, a_pod_of(torch, "torch-worker-0"))
        wait_until(lambda: len(bound(api, namespace)) == 6, "both run", within_s=LONG_S)
        group = {"leaderworkerset.sigs.k8s.io/group-key": "lws-0"}
        size = {"leaderworkerset.sigs.k8s.io/size": "2"}
        members = [
            a_pod(f"lws-0-{n}", gpus=1, scheduler=NAME, labels=group, annotations=size)
            for n in range(2)
        ]
        api.create(pods, members[0])
        wait_until(lambda: "1 of 2 pods of lws-0" in why(api, namespace, "lws-0-0"), "so with LWS")
        api.create(pods, members[1])
        wait_until(lambda: len(bound(api, namespace)) == 8, "all run", within_s=LONG_S)
        budget(EMPTY_W)
        wait_until(lambda: suspended() == (True, True), "both are suspended", within_s=LONG_S)
        wait_until(lambda: api.call("GET", f"{pods}/lws-0-0")[0] == 404, "who cannot be is evicted")
        assert not spec("JobSet", "train").get("suspend")
        assert not any(one["spec"].get("suspend") for one in api.get(jobs)["items"])
        about = api.get(path("PyTorchJob", namespace, "torch"))["metadata"]
        assert about["labels"]["wattherd.dev/suspended"] == "turn"
        for job in ("train-n-0", "train-n-1"):
            api.delete(f"{jobs}/{job}", propagationPolicy="Background")
        for pod in ("torch-master-0", "torch-worker-0"):
            api.delete(f"{pods}/{pod}", gracePeriodSeconds=0)
        wait_until(lambda: not api.get(pods)["items"], "their controllers end what is theirs")
        wait_until(lambda: suspended() == (False, False), "their pods may wait", within_s=LONG_S)


@pytest.mark.usefixtures("kinds")
def test_mpi_and_ray_jobs_and_what_wraps_others_are_suspended_and_run_again(
    plane: ControlPlane, namespace: str, hall: str
) -> None:
    """Each of a pod, as their controllers make them; a cluster of Ray of its own, too."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    here = {"nodeSelector": {"matchLabels": {"hall": hall}}}
    full = f"{EMPTY_W + GPUS * RISE_W}W"
    api.create(path_of("PowerDomain"), an_object("PowerDomain", hall, **here))
    api.create(path_of("PowerBudget"), an_object("PowerBudget", hall, domain=hall, constant=full))
    alone = create(api, "RayCluster", namespace, "alone", {})
    job = create(api, "RayJob", namespace, "job", {})
    of_job = create(api, "RayCluster", namespace, "job-x2x4z", {}, ownerReferences=owned(job))
    mpi = create(api, "MPIJob", namespace, "mpi", {})
    wrapper = create(api, "AppWrapper", namespace, "wrapper", {})
    wrapped = create(api, "PyTorchJob", namespace, "wrapped", {"pytorchReplicaSpecs": {
        "Worker": {"replicas": 1}}}, ownerReferences=owned(wrapper))  # fmt: skip
    made = [
        a_pod_of(alone, "alone-head", **{"ray.io/cluster": "alone"}),
        a_pod_of(of_job, "job-head", **{"ray.io/cluster": "job-x2x4z"}),
        a_pod_of(mpi, "mpi-worker-0", **{"training.kubeflow.org/job-name": "mpi"}),
        a_pod_of(wrapped, "wrapped-worker-0", **{"workload.codeflare.dev/appwrapper": "wrapper"}),
    ]
    tops = {"RayCluster": "alone", "RayJob": "job", "MPIJob": "mpi", "AppWrapper": "wrapper"}

    def spec(kind: str, name: str) -> Object:
        found: Object = api.get(path(kind, namespace, name)).get("spec", {})
        return found.get("runPolicy", {}) if kind in ("MPIJob", "PyTorchJob") else found

    def suspended() -> set[str]:
        return {kind for kind, name in tops.items() if spec(kind, name).get("suspend")}

    with a_scheduler(plane, NAME):
        api.create_all(pods, made)
        wait_until(lambda: len(bound(api, namespace)) == 4, "all run", within_s=LONG_S)
        api.merge(path_of("PowerBudget", hall), {"spec": {"constant": f"{EMPTY_W}W"}})
        wait_until(lambda: suspended() == tops.keys(), lambda: f"{suspended()}", within_s=LONG_S)
        assert not spec("RayCluster", "job-x2x4z").get("suspend")
        assert not spec("PyTorchJob", "wrapped").get("suspend")
        for pod in made:
            api.delete(f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        api.merge(path_of("PowerBudget", hall), {"spec": {"constant": full}})
        wait_until(lambda: not suspended(), lambda: f"{suspended()}", within_s=LONG_S)
