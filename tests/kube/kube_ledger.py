"""Whether anything leaked: what a copy counts, beside what the API server shows.

To be asked when nothing changes any more. A pod that is promised and is not bound, one that is
counted and is no more, watts that nobody draws: each is a reservation that leaked.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from kube_api import KubeApi, Object
from kube_server import free_ports, wait_until

IDLE_W, RISE_W = 10.0, 60.0
"""Of a T4, by the catalog: free, and what one in use adds."""
_T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
_DOMAIN = "wattherd.dev/power-domain"
_OVER = ("Succeeded", "Failed")


def an_address() -> str:
    """For `--health` of a copy."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def counted(address: str) -> dict[str, float]:
    """What a copy says of its account, by metric with its labels; empty while it says nothing."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    pairs = (line.rpartition(" ") for line in lines if line.startswith("wattherd_kube_"))
    return {name.removeprefix("wattherd_kube_"): float(value) for name, _, value in pairs}


def shown(api: KubeApi, domain: str, labels: Mapping[str, str] | None = None) -> dict[str, float]:
    """The same, of bound pods and nodes; all GPUs of the domain are T4s that nobody shares.

    Its nodes have `labels`; without those, the label that names the domain.
    """
    path, fed = "/api/v1/{}", _T4 | dict({_DOMAIN: domain} if labels is None else labels)
    nodes: dict[str, Object] = {
        node["metadata"]["name"]: node
        for node in api.get(path.format("nodes"))["items"]
        if fed.items() <= node["metadata"]["labels"].items()
    }
    pods: list[Object] = [
        pod
        for pod in api.get(path.format("pods"))["items"]
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in _OVER
    ]
    gpus = sum(int(node["status"]["allocatable"]["nvidia.com/gpu"]) for node in nodes.values())
    used = sum(_gpus(pod) for pod in pods if pod["spec"]["nodeName"] in nodes)
    return {
        'pods{state="seen"}': len(pods),
        'pods{state="promised"}': 0,
        f'counted_watts{{domain="{domain}"}}': IDLE_W * gpus + RISE_W * used,
    }


def _gpus(pod: Object) -> int:
    return sum(
        int(one["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
        for one in pod["spec"]["containers"]
    )


def wait_nothing_leaked(
    api: KubeApi, address: str, domain: str, labels: Mapping[str, str] | None = None
) -> None:
    """Until a copy counts in `domain` (which has a budget) what the API shows there, no more.

    Nodes of the domain are found by `labels`, as in `shown`.
    """

    def differs() -> dict[str, tuple[float, float | None]]:
        told, there = counted(address), shown(api, domain, labels)
        return {name: (value, told.get(name)) for name, value in there.items()
                if told.get(name) != value}  # fmt: skip

    wait_until(lambda: not differs(), lambda: f"the API shows, and it counts: {differs()}",
               every_s=0.2)  # fmt: skip
