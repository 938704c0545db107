"""A plain client of an API server for tests, which shares no code with what they test."""

from __future__ import annotations

import http.client
import json
import ssl
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from kube_server import PATIENCE_S, wait_until

Object = dict[str, Any]

PODS_OF_NODE = 110
IMAGE = "registry.k8s.io/pause:3.10"


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class KubeApi:
    """JSON over as many connections as threads ask at once.

    Args:
        server: `https://host:port` or `http://host:port`.
        tls: who the server must be, and our certificate if that is how we are known.
        token: the bearer token, if that is how.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | None, token: str | None = None) -> None:
        self.server = server
        self._host = server.split("://")[1]
        self.tls = tls
        self.headers = {"Accept": "application/json"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self._idle: deque[http.client.HTTPConnection] = deque()

    def call(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Status and decoded answer; a connection that the server closed is made once more."""
        text = None if body is None else json.dumps(body)
        headers = {**self.headers, "Content-Type": kind}
        while True:
            connection, used = self._taken()
            try:
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if not used:
                    raise
                continue  # the server may have closed it long ago
            self._idle.append(connection)
            return answer.status, _decoded(data)

    def _taken(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return self.connection(PATIENCE_S), False

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A new one, for whoever asks for it alone."""
        if self.tls is None:
            return http.client.HTTPConnection(self._host, timeout=timeout_s)
        return http.client.HTTPSConnection(self._host, timeout=timeout_s, context=self.tls)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _must(self, method: str, path: str, body: object = None, **options: str) -> Any:
        status, answer = self.call(method, path, body, **options)
        if status >= http.client.BAD_REQUEST:
            message = answer.get("message", "") if isinstance(answer, dict) else str(answer)
            raise Refused(status, message)
        return answer

    def get(self, path: str, **query: str) -> Any:
        return self._must("GET", f"{path}?{urlencode(query)}" if query else path)

    def create(self, path: str, body: Object) -> Any:
        return self._must("POST", path, body)

    def as_made(self, namespace: str, pod: Object) -> Object:
        """What would be made of a pod, without making it.

        Empty where it is refused: of several policies one may be in force before another, and what
        the first one asks for is what the second one adds.
        """
        status, answer = self.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        if status == http.client.FORBIDDEN:
            return {"metadata": {}, "spec": {}}
        if status >= http.client.BAD_REQUEST:
            raise Refused(status, str(answer))
        found: Object = answer
        return found

    def merge(self, path: str, body: Object) -> Any:
        return self._must("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str, **options: object) -> Any:
        return self._must("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def create_all(self, path: str, bodies: Iterable[Object], *, threads: int = 8) -> list[Any]:
        """Create many, several at a time; answers in the order of `bodies`."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda body: self.create(path, body), bodies))

    # --- what tests make -----------------------------------------------------------------------

    def namespace(self, name: str) -> str:
        """A new namespace, in which pods may be made at once."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        # The controller would make it too, but after a restart of the API server it sleeps a while.
        self._account(name, "default")
        return name

    def _account(self, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        status, answer = self.call("POST", path, {"metadata": {"name": name}})
        assert status in (http.client.CREATED, http.client.CONFLICT), answer

    def fleet(self, nodes: Iterable[Object]) -> list[str]:
        """Nodes carried by KWOK, once they are Ready and untainted; their names. All or none."""
        names = [made["metadata"]["name"] for made in self.create_all("/api/v1/nodes", nodes)]
        wanted = set(names)

        def all_ready() -> bool:
            return wanted <= {
                node["metadata"]["name"]
                for node in self.get("/api/v1/nodes", resourceVersion="0")["items"]
                if is_ready(node)
            }

        try:
            wait_until(all_ready, f"{len(names)} nodes Ready", every_s=0.2)
        except BaseException:
            self.remove_nodes(names)  # or whoever tries once more finds them there
            raise
        return names

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account, made if it is new: someone with the rights given alone."""
        self._account(namespace, account)
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        request = {"spec": {"expirationSeconds": 3600}}
        return str(self.create(f"{accounts}/{account}/token", request)["status"]["token"])

    def pod(self, namespace: str, name: str) -> Object:
        found: Object = self.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def phase(self, namespace: str, name: str) -> str:
        return str(self.pod(namespace, name)["status"].get("phase"))

    def remove_nodes(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self.call("DELETE", f"/api/v1/nodes/{name}"), names))

    def remove_namespace(self, name: str) -> None:
        """Its pods at once, without grace; the rest is left to the controller."""
        pods = f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0"
        self.call("DELETE", pods)
        self.call("DELETE", f"/api/v1/namespaces/{name}")


def is_ready(node: Object) -> bool:
    """Whether pods may go there: Ready, and no taint of a young or silent node."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    tainted = any(
        each["key"].startswith("node.kubernetes.io/") for each in node["spec"].get("taints", ())
    )
    return ready and not tainted


def a_node(
    name: str,
    *,
    gpus: int = 8,
    cpu: str = "96",
    memory: str = "768Gi",
    pods: int = PODS_OF_NODE,
    labels: dict[str, str] | None = None,
) -> Object:
    """A node that KWOK carries, with `nvidia.com/gpu` devices."""
    resources = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok", **(labels or {})},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def a_pod(
    name: str,
    *,
    gpus: int = 0,
    scheduler: str | None = None,
    runs: str | None = None,
    spec: Object | None = None,
    **metadata: Any,
) -> Object:
    """A pod of one container.

    Args:
        name: the pod's.
        gpus: whole `nvidia.com/gpu` devices.
        scheduler: its `schedulerName`; the cluster's default if None.
        runs: how long KWOK lets it run ("2s"); for ever if None.
        spec: further fields of the pod's spec.
        **metadata: further fields of its metadata.
    """
    limits = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    annotations = {**metadata.pop("annotations", {})}
    if runs:
        annotations["test.wattherd.dev/runs"] = runs
    container = {"name": "main", "image": IMAGE, "resources": {"limits": limits}}
    body: Object = {"containers": [container], "terminationGracePeriodSeconds": 0, **(spec or {})}
    if scheduler:
        body["schedulerName"] = scheduler
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, **metadata},
        "spec": body,
    }


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
