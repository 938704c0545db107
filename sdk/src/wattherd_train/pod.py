"""On Kubernetes: how far the job is, as an annotation of its own pod.

The pod's service account needs the right to patch pods in its namespace; nothing else is asked of
the cluster. Without that right training goes on, and nothing is reported.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattherd_train import protocol
from wattherd_train.trouble import Trouble

if TYPE_CHECKING:
    import ssl

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANNOTATION = "wattherd.dev/progress"
EVERY_S, AFTER_FAILURE_S, TIMEOUT_S = 10.0, 60.0, 10.0
NUMBERS = ("step", "total", "loss", "noise_scale", "batch")


class PodReporter:
    """Tells the latest of what it is told, at most once in `every_s`, by a thread of its own."""

    def __init__(
        self,
        url: str,
        account: Path,
        trouble: Trouble,
        *,
        every_s: float = EVERY_S,
        after_failure_s: float = AFTER_FAILURE_S,
    ) -> None:
        """`url` is the pod's; `account` has `token`, which is read anew each time, and `ca.crt`."""
        self._url, self._account, self._trouble = url, account, trouble
        self._every_s, self._after_failure_s = every_s, after_failure_s
        self._latest: Mapping[str, Any] | None = None
        self._told = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, document: Mapping[str, Any]) -> None:
        """Have it reported; at once, or with the next one. Never waits for the network."""
        self._latest = document
        self._told.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="wattherd-pod", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            self._told.wait()
            self._told.clear()
            time.sleep(self._every_s if self._send() else self._after_failure_s)

    def _send(self) -> bool:
        """Whether the API server took it."""
        import urllib.request  # tens of ms that only pods need

        latest, failures = self._latest or {}, self._trouble.count
        text = json.dumps({name: latest[name] for name in NUMBERS if name in latest})
        body = json.dumps({"metadata": {"annotations": {ANNOTATION: text}}}).encode()
        with self._trouble.swallowed("cannot report progress to Kubernetes", ValueError):
            token = (self._account / "token").read_text().strip()
            request = urllib.request.Request(  # noqa: S310 - the scheme is ours
                self._url,
                data=body,
                method="PATCH",
                headers={
                    "Authorization": f"Bearer {token}",
                    "Content-Type": "application/merge-patch+json",
                },
            )
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=TIMEOUT_S, context=self._tls()
            ) as answer:
                answer.read()
        return self._trouble.count == failures

    def _tls(self) -> ssl.SSLContext | None:
        import ssl

        if not self._url.startswith("https:"):
            return None
        return ssl.create_default_context(cafile=str(self._account / "ca.crt"))


def pod_reporter(
    environ: Mapping[str, str], trouble: Trouble, account: Path = ACCOUNT
) -> Callable[[Mapping[str, Any]], None] | None:
    """Where the environment names the pod (`WATTHERD_POD_NAME`), and it has a service account."""
    name, host = environ.get(protocol.POD_NAME), environ.get("KUBERNETES_SERVICE_HOST")
    if not (name and host):
        return None
    host = f"[{host}]" if ":" in host else host
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    namespace = ""
    with trouble.swallowed("there is no service account to report progress by", ValueError):
        namespace = (account / "namespace").read_text().strip()
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods/{name}"
    return PodReporter(url, account, trouble).tell if namespace else None
