"""The modes that help a stock kube-scheduler, each at work beside one on the plane of the tests.

Each has the rights that it is shipped with, and no others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from control_plane import ControlPlane
from kube_api import Object, a_pod
from kube_server import end, wait_until
from shipped_rights import account, policies
from test_extender import SCHEDULER, a_scheduler, an_extender
from test_modes_tree import touched

STOCK = ("extender", "admit", "dra")
WORDS = {"admit": "gate", "dra": "claim"}


@dataclass(frozen=True)
class Mode:
    """How pods ask for it."""

    name: str

    @property
    def scheduler(self) -> str | None:
        return SCHEDULER if self.name == "extender" else None

    @property
    def labels(self) -> dict[str, str]:
        word = WORDS.get(self.name)
        return {} if word is None else {"wattherd.dev/admission": word}

    def pod(self, name: str, *, gpus: int = 1, **more: Any) -> Object:
        labels = {**self.labels, **more.pop("labels", {})}
        return a_pod(name, gpus=gpus, scheduler=self.scheduler, labels=labels, **more)

    def job(self, name: str, pods: int, priority: str) -> Object:
        """A Job of as many pods at once, a GPU each."""
        made = self.pod("any", spec={"restartPolicy": "Never", "priorityClassName": priority})
        template = {"metadata": {"labels": self.labels}, "spec": made["spec"]}
        spec = {"parallelism": pods, "completions": pods, "template": template}
        return {"metadata": {"name": name}, "spec": spec}


@contextmanager
def beside_kube_scheduler(
    plane: ControlPlane, name: str, namespace: str, *options: str, flags: tuple[str, ...] = ()
) -> Iterator[Mode]:
    """A stock kube-scheduler (`flags` are its own) and wattherd in one of the modes of `STOCK`."""
    mode = Mode(name)
    if name == "extender":
        with (
            policies(plane.api, name),
            account(plane, name) as ours,
            an_extender(plane, f"--kubeconfig={ours}", *options) as address,
            a_scheduler(plane, address, namespace, *flags),
        ):
            yield mode
        return
    scheduler = plane.scheduler(name=f"{namespace}-{name}", flags=flags)
    scheduler.start()
    try:
        with policies(plane.api, name), _command(plane, name, *options):
            tried = mode.pod("dry")
            made = lambda: plane.api.as_made(namespace, tried)  # noqa: E731
            wait_until(lambda: touched(made()), "the policy is in force")
            yield mode
    finally:
        scheduler.kill()


@contextmanager
def _command(plane: ControlPlane, name: str, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", name, *arguments]
    with (
        account(plane, name) as ours,
        subprocess.Popen([*command, f"--kubeconfig={ours}"]) as process,
    ):
        try:
            yield
        finally:
            end(process)
