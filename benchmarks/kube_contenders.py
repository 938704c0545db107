"""Who takes part in `kube.py`: schedulers on one control plane, stopped while it is not their turn.

* stock: kube-scheduler as it comes; * plain: with `percentageOfNodesToScore: 100`, as the extender
needs it, but without the extender; * extender: `wattherd kube extender`; * second: `wattherd kube
scheduler`; * second-NAME: the same with `--scheduler NAME`.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kube"))

from control_plane import ControlPlane  # noqa: E402
from kube_api import Object  # noqa: E402
from kube_server import Server, free_ports  # noqa: E402

EXTENDED = ROOT / "deploy" / "kubernetes" / "kube-scheduler-extender.yaml"


@dataclass(frozen=True, slots=True)
class Contender:
    """Its processes, in the order in which they start, and where its extender tells of itself."""

    servers: Sequence[Server]
    metrics: str = ""

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.resume()
            server.kill()

    def pause(self) -> None:
        """Those that ask before those that answer: no question waits for an answer meanwhile."""
        for server in reversed(self.servers):
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far, by process."""
        return {server.name: cpu_s(server.pid) for server in self.servers}


def cpu_s(pid: int) -> float:
    """Processor time of a process so far (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(url: str) -> str:
    """The text at a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _ready(address: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return bool(read(f"{address}/readyz"))
        except OSError:
            return False

    return ready


def wattherd(plane: ControlPlane, command: str, address: str, *options: str) -> Server:
    """`wattherd kube COMMAND` that answers for its health at `address`, not started yet."""
    arguments = ["-m", "wattherd.cli.main", "kube", command, f"--kubeconfig={plane.kubeconfig}"]
    log = plane.log(f"wattherd-{command}")
    server = Server(Path(sys.executable), [*arguments, *options], log, ready=_ready(address))
    server.name = "wattherd"
    return server


def _stock(plane: ControlPlane) -> Contender:
    config: Object = {"profiles": [{"schedulerName": "stock"}]}
    return Contender([plane.scheduler(config=config, name="stock")])


def _plain(plane: ControlPlane) -> Contender:
    config: Object = {"profiles": [{"schedulerName": "plain"}], "percentageOfNodesToScore": 100}
    return Contender([plane.scheduler(config=config, name="plain")])


def _extender(plane: ControlPlane) -> Contender:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    decides = wattherd(plane, "extender", address, f"--port={port}")
    config: Object = yaml.safe_load(EXTENDED.read_text())
    config["profiles"] = [{"schedulerName": "extender"}]
    config["extenders"][0]["urlPrefix"] = address
    asks = plane.scheduler(config=config, name="extended")
    return Contender([decides, asks], f"{address}/metrics")


def _second(plane: ControlPlane, scheduler: str = "") -> Contender:
    (port,) = free_ports(1)
    name = f"{SECOND}-{scheduler}" if scheduler else SECOND
    options = [f"--name={name}", f"--health=127.0.0.1:{port}"]
    if scheduler:
        options.append(f"--scheduler={scheduler}")
    server = wattherd(plane, "scheduler", f"http://127.0.0.1:{port}", *options)
    server.name = name
    return Contender([server])


def contender(name: str, plane: ControlPlane) -> Contender:
    """Who takes part under that name; KeyError for none."""
    kind, _, scheduler = name.partition("-")
    return _second(plane, scheduler) if kind == SECOND else CONTENDERS[name](plane)


SECOND = "second"
CONTENDERS: dict[str, Callable[[ControlPlane], Contender]] = {
    "stock": _stock,
    "plain": _plain,
    "extender": _extender,
    "second": _second,
}
