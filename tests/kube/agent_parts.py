"""A node with two GPUs of a small driver library, its cap helper and its agent, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control_plane import ControlPlane
from kube_api import KubeApi, Object, a_node, a_pod
from kube_server import wait_until
from nvml_driver import Driver

LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "wattherd.dev/gpu-shares": "annotation"}
APPLIED, ASKED = "wattherd.dev/cap-applied-w", "wattherd.dev/cap-w"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
BEAT_S = 0.5


class Program:
    """A wattherd command that can be killed and started again; dies with the test."""

    def __init__(self, driver: Driver, *arguments: str) -> None:
        self._driver, self._arguments = driver, arguments
        self.said: list[str] = []
        self.begin()

    def begin(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "wattherd.cli.main"]
        self.process = subprocess.Popen(
            [*command, "kube", *self._arguments],
            env=self._driver.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def has_said(self, words: str) -> bool:
        assert self.process.poll() is None, "".join(self.said)
        return any(words in line for line in self.said)

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def stop(self) -> None:
        """As the kubelet does."""
        self.process.terminate()
        self._ended()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _ended(self) -> None:
        self.process.wait(timeout=120)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@dataclass
class Controller:
    """Somebody who renews a lease until told to be silent."""

    api: KubeApi
    namespace: str
    silent: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        spec = {"holderIdentity": "somebody", "renewTime": _now(), "leaseDurationSeconds": 15}
        path = LEASES.format(self.namespace)
        self.api.create(path, {"metadata": {"name": "wattherd"}, "spec": spec})
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        path = f"{LEASES.format(self.namespace)}/wattherd"
        while not self.over.wait(BEAT_S):
            if not self.silent.is_set():
                self.api.call(
                    "PATCH", path, {"spec": {"renewTime": _now()}},
                    kind="application/merge-patch+json",
                )  # fmt: skip

    def close(self) -> None:
        self.over.set()
        self._thread.join()


def _now() -> str:
    now_s = time.time()
    micro = f"{now_s % 1:.6f}"[1:]
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + micro + "Z"


@dataclass
class AgentNode:
    """One node, and all that works there."""

    plane: ControlPlane
    namespace: str
    driver: Driver
    folder: Path
    silence: str = "4s"
    kubeconfig: Path | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = self.plane.api
        self.name = f"{self.namespace}-node"
        self.socket = self.folder / "caps.sock"
        self.api.fleet([a_node(self.name, gpus=2, labels=LABELS | self.labels)])

    def helper(self, *more: str) -> Program:
        state = f"--state={self.folder / 'state'}"
        given = (f"--socket={self.socket}", state, f"--silence={self.silence}", *more)
        made = Program(self.driver, "cap-helper", *given)
        wait_until(lambda: made.has_said("holds caps"), "the helper listens")
        return made

    def agent(self, *more: str) -> Program:
        config = self.kubeconfig or self.plane.kubeconfig
        given = (f"--node={self.name}", f"--kubeconfig={config}", f"--silence={self.silence}")
        made = Program(self.driver, "agent", f"--helper={self.socket}", *given, *more)
        wait_until(lambda: made.has_said("is the agent of"), "the agent is at work")
        return made

    def pod(self, name: str, gpus: str, cap_w: str | None = None) -> Object:
        count = len(gpus.split(","))
        written = {"wattherd.dev/gpus": gpus, **({ASKED: cap_w} if cap_w else {})}
        body = a_pod(name, gpus=count, annotations=written, spec={"nodeName": self.name})
        made: Object = self.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return made

    def ask(self, name: str, cap_w: str | None) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.api.merge(path, {"metadata": {"annotations": {ASKED: cap_w}}})

    def applied(self, name: str) -> str | None:
        written = self.api.pod(self.namespace, name)["metadata"].get("annotations", {})
        found: str | None = written.get(APPLIED)
        return found

    def limits_w(self) -> list[float]:
        """Of the GPUs, as their driver keeps them."""
        return [(self.driver.kept(f"limit{gpu}") or 300_000) / 1000 for gpu in (0, 1)]

    def about(self) -> Any:
        return self.api.get(f"/api/v1/nodes/{self.name}")["metadata"]

    def forget_limits(self) -> None:
        """As a driver that was loaded anew."""
        for path in self.driver.folder.glob("script.limit*"):
            path.unlink()

    def journal(self) -> Any:
        text = (self.folder / "state" / "node-caps.json").read_text()
        return json.loads(text)["found"]


@contextmanager
def running(*programs: Program) -> Iterator[None]:
    try:
        yield
    finally:
        for program in programs:
            if program.process.poll() is None:
                os.kill(program.process.pid, signal.SIGCONT)
                program.kill()
