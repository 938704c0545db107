"""`kubectl get pods,nodes -o json`: nodes as they are, pods of one owner as one job.

Pods with the same job label (`job-name`, Kubeflow, JobSet, Volcano, Kueue) are a gang; a pod
without one is a job. Pods of DaemonSets run on every node and belong to none of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from wattherd.errors import UserError
from wattherd.model.cluster import NodeSpec
from wattherd.workload.imports.site import ImportLog, LoggedJob, catalogue_name

HINT = "kubectl get pods,nodes --all-namespaces -o json"
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
_PRODUCTS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
)
_GANGS = (
    "batch.kubernetes.io/job-name", "job-name", "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name", "volcano.sh/job-name", "pytorch-job-name",
    "kueue.x-k8s.io/pod-group-name", "ray.io/cluster",
)  # fmt: skip
_SUFFIXES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip


def quantity(text: str) -> float:
    """`500m`, `2Gi`, `1e3` as a number.

    Raises:
        ValueError: another form.
    """
    plain = str(text).strip()
    try:
        return float(plain)
    except ValueError:
        pass
    digits = plain.rstrip("numkKMGTPEi")
    suffix = plain[len(digits) :]
    if suffix not in _SUFFIXES:
        raise ValueError(f"{plain!r} is no quantity")
    return float(digits) * _SUFFIXES[suffix]


def read_kube(
    text: str, log: ImportLog, default_s: float, default_model: str
) -> tuple[list[LoggedJob], list[NodeSpec]]:
    """Jobs and nodes of a list; objects that cannot be read are told to `log`.

    Raises:
        UserError: no JSON, or no list.
    """
    try:
        items = json.loads(text)["items"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"no list of objects: {error}", where=log.where, hint=HINT) from None
    nodes: list[NodeSpec] = []
    gangs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for number, item in enumerate(items):
        place = f"items[{number}]"
        log.records += 1
        try:
            if item["kind"] == "Node":
                nodes.append(_node(item, default_model, log))
            elif item["kind"] == "Pod":
                _sort_pod(item, gangs, log)
            else:
                log.leave_out("neither pod nor node", f"{place} {item['kind']}")
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            log.refuse(place, f"cannot be read: {error!r}")
    jobs = []
    for name, pods in gangs.items():
        try:
            jobs.append(_gang(name, pods, log, default_s))
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            log.refuse(name, f"cannot be read: {error!r}")
    return jobs, nodes


def _node(item: Mapping[str, Any], default_model: str, log: ImportLog) -> NodeSpec:
    name, status = item["metadata"]["name"], item["status"]
    room = status.get("allocatable") or status["capacity"]
    gpus = int(sum(quantity(room.get(kind, "0")) for kind in _GPUS))
    labels = item["metadata"].get("labels") or {}
    product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
    model = catalogue_name(product.removesuffix("-SHARED")) or ""
    if gpus and not model:
        said = f"GPU type {product!r} is not in the catalogue" if product else "no GPU type label"
        log.assume(f"{said}: taken for {default_model} (--gpu-model)", name)
        model = default_model
    return NodeSpec(
        name=name,
        cpu_milli=round(quantity(room.get("cpu", "0")) * 1000),
        memory_mib=int(quantity(room.get("memory", "0")) / 2**20),
        gpu_count=gpus,
        gpu_model=model if gpus else "",
    )


def _sort_pod(
    item: Mapping[str, Any], gangs: dict[str, list[Mapping[str, Any]]], log: ImportLog
) -> None:
    meta = item["metadata"]
    full = f"{meta.get('namespace', 'default')}/{meta['name']}"
    if any(one.get("kind") == "DaemonSet" for one in meta.get("ownerReferences") or []):
        log.leave_out("pods of DaemonSets", full)
        return
    labels = meta.get("labels") or {}
    gang = next((labels[key] for key in _GANGS if labels.get(key)), "")
    if gang:
        log.assume("pods with one job label are a gang", full)
    gangs[f"{meta.get('namespace', 'default')}/{gang or meta['name']}"].append(item)


def _moment(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _gang(name: str, pods: list[Mapping[str, Any]], log: ImportLog, default_s: float) -> LoggedJob:
    asked = [_asked(pod) for pod in pods]
    submits = [_moment(pod["metadata"]["creationTimestamp"]) for pod in pods]
    submit_s = min(one for one in submits if one is not None)
    starts = [one for pod in pods if (one := _moment(pod["status"].get("startTime"))) is not None]
    ends = [_end_s(pod) for pod in pods]
    start_s = max(starts) if len(starts) == len(pods) else None
    known = [one for one in ends if one is not None]
    end_s = max(known) if len(known) == len(pods) else None
    if start_s is not None and end_s is not None:
        duration_s = max(0.0, end_s - start_s)
    else:
        log.assume(f"a job that waits or runs takes {default_s:g} s (--duration)", name)
        duration_s = default_s
    namespace = name.split("/", maxsplit=1)[0]
    return LoggedJob(
        id=name,
        submit_s=submit_s,
        duration_s=duration_s,
        start_s=start_s,
        end_s=end_s,
        gpus=sum(one[0] for one in asked),
        cpus=sum(one[1] for one in asked),
        memory_mib=sum(one[2] for one in asked),
        nodes=len(pods),
        queue=namespace,
        tenant=namespace,
        labels=(("phase", str(pods[0]["status"].get("phase", ""))),),
    )


def _asked(pod: Mapping[str, Any]) -> tuple[int, float, float]:
    """GPUs, CPUs and MiB of a pod's containers, by requests, else limits."""
    gpus, cpus, memory = 0.0, 0.0, 0.0
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        room = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        gpus += sum(quantity(room.get(kind, "0")) for kind in _GPUS)
        cpus += quantity(room.get("cpu", "0"))
        memory += quantity(room.get("memory", "0")) / 2**20
    return int(gpus), cpus, memory


def _end_s(pod: Mapping[str, Any]) -> float | None:
    """When the last container of a pod that is over ended."""
    if pod["status"].get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        _moment(((one.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for one in pod["status"].get("containerStatuses") or []
    ]
    return max((one for one in ends if one is not None), default=None)
