"""Pools of nodes on a real control plane, with boards that speak Redfish and IPMI."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from helm_chart import DEPLOY
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound

from wattherd.testing.redfish_boards import Board, BoardRoom, a_room

POOL, SWITCHED = "wattherd.dev/pool-phase", "wattherd.dev/switched"
SOON = ("--idle-after=1s", "--hold=0s")


def account(plane: ControlPlane) -> Path:
    """A kubeconfig with the rights of the manifest that is shipped, and no others."""
    path, name = "/apis/rbac.authorization.k8s.io/v1", "test-pools"
    objects = yaml.safe_load_all((DEPLOY / "pools.yaml").read_text())
    [rules] = [one["rules"] for one in objects if one["kind"] == "ClusterRole"]
    token = plane.api.token("default", name)
    about = {"metadata": {"name": name}}
    plane.api.call("POST", f"{path}/clusterroles", {**about, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    bound = {**about, "roleRef": role, "subjects": [subject]}
    plane.api.call("POST", f"{path}/clusterrolebindings", bound)
    return plane.kubeconfig_of(token, name)


@dataclass
class Keeper:
    """`wattherd kube pools` as users start it."""

    plane: ControlPlane
    switches: Path
    options: tuple[str, ...] = SOON
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = account(self.plane)
        self.begin()

    def begin(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "wattherd.cli.main"]
        given = [f"--kubeconfig={self.config}", f"--switches={self.switches}"]
        self.process = subprocess.Popen(
            [*command, "kube", "pools", *given, *self.options], stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self.has_said("looks after") or self.process.poll() is not None, "work")
        assert self.process.poll() is None, "".join(self.said)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said += iter(self.process.stderr.readline, "")

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self.said)

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=120)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@dataclass
class Site:
    """Nodes with a board each."""

    plane: ControlPlane
    namespace: str
    folder: Path
    names: list[str]
    uris: dict[str, str]

    def __post_init__(self) -> None:
        self.api = self.plane.api
        self.file = self.folder / "switches.yaml"
        self.file.write_text(yaml.safe_dump(self.uris))
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def node(self, name: str) -> Any:
        return self.api.get(f"/api/v1/nodes/{name}")

    def phase(self, name: str) -> str | None:
        found: str | None = self.node(name)["metadata"]["annotations"].get(POOL)
        return found

    def boots(self, name: str, boot: str) -> None:
        """As the kubelet of a machine that was started."""
        told = {"status": {"nodeInfo": {"bootID": boot}}}
        self.api.merge(f"/api/v1/nodes/{name}/status", told)

    def pod(self, name: str, scheduler: str, gpus: int = 1, **more: Any) -> Object:
        made: Object = self.api.create(
            self.pods, a_pod(name, gpus=gpus, scheduler=scheduler, **more)
        )
        return made


@contextmanager
def a_site(
    plane: ControlPlane, namespace: str, folder: Path, uris: list[str], **labels: str
) -> Iterator[Site]:
    names = [f"{namespace}-{row}" for row in range(len(uris))]
    plane.api.fleet([a_node(name, gpus=2, labels=T4 | labels) for name in names])
    site = Site(plane, namespace, folder, names, dict(zip(names, uris, strict=True)))
    for name in names:
        site.boots(name, "first")
    try:
        yield site
    finally:
        plane.api.remove_nodes(names)


@pytest.fixture
def room() -> Iterator[BoardRoom]:
    with a_room(Board(), Board()) as room:
        yield room


def of_room(room: BoardRoom) -> list[str]:
    return [f"{room.uri(number, 'Systems')}?settle=30s" for number in range(len(room.boards))]


def test_idle_nodes_go_and_come_back_for_who_waits(
    plane: ControlPlane, namespace: str, tmp_path: Path, room: BoardRoom
) -> None:
    with (
        a_site(plane, namespace, tmp_path, of_room(room)) as site,
        a_scheduler(plane, namespace) as scheduler,
    ):
        keeper = Keeper(plane, site.file)
        try:
            first, second = site.names
            for number, name in enumerate(site.names):
                wait_until(lambda name=name: site.phase(name) == "off", f"{name} is off")
                assert not room.boards[number].on
                node = site.node(name)
                assert node["spec"]["unschedulable"]
                assert node["metadata"]["annotations"][SWITCHED] == "off"
            keeper.end(signal.SIGKILL)  # its successor has the API to go by
            keeper.begin()
            site.pod("one", scheduler)
            wait_until(lambda: room.boards[0].on, "woken for who waits")
            wait_until(lambda: site.phase(first) == "waking", "which is written on it")
            assert bound(site.api, namespace) == {}
            site.boots(first, "second")
            wait_until(lambda: bound(site.api, namespace) == {"one": first}, "it runs there")
            assert site.phase(first) is None
            assert SWITCHED not in site.node(first)["metadata"]["annotations"]
            assert not room.boards[1].on
            site.api.delete(f"{site.pods}/one", gracePeriodSeconds=0)
            wait_until(lambda: site.phase(first) == "off", "off again")
            assert not any(board.on for board in room.boards)
            assert site.phase(second) == "off"
        finally:
            keeper.end()


def test_nodes_wake_within_the_budget(
    plane: ControlPlane, namespace: str, tmp_path: Path, room: BoardRoom
) -> None:
    """A T4 idles at 10 W and draws 70 W at most (catalog); two nodes of two."""
    domain = f"pdu-{namespace}"
    budget = (f"--budget={domain}=280W", "--wake-power=150W")
    with (
        a_site(plane, namespace, tmp_path, of_room(room),
               **{"wattherd.dev/power-domain": domain}) as site,
        a_scheduler(plane, namespace) as scheduler,
    ):  # fmt: skip
        keeper = Keeper(plane, site.file, (*SOON, *budget))
        try:
            first, second = site.names
            wait_until(lambda: site.phase(second) == "off", "both are off")
            wait_until(lambda: site.phase(first) == "off", "both are off")
            for name in ("a", "b"):
                site.pod(name, scheduler, gpus=2)
            wait_until(lambda: room.boards[0].on, "one is woken")
            wait_until(lambda: keeper.has_said("waking needs"), "and not the other")
            site.boots(first, "second")
            wait_until(lambda: len(bound(site.api, namespace)) == 1, "one runs")
            assert not room.boards[1].on
            [runs] = bound(site.api, namespace)
            site.api.delete(f"{site.pods}/{runs}", gracePeriodSeconds=0)
            wait_until(lambda: len(bound(site.api, namespace)) == 1, "the other one follows")
            assert not room.boards[1].on
        finally:
            keeper.end()


def test_a_node_in_use_is_left_alone_and_small_pods_are_moved(
    plane: ControlPlane, namespace: str, tmp_path: Path, room: BoardRoom
) -> None:
    with a_site(plane, namespace, tmp_path, of_room(room)) as site:
        first, second = site.names
        site.api.create(site.pods, a_pod("work", gpus=1, spec={"nodeName": first}))
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1",
                 "controller": True}  # fmt: skip
        site.api.create(site.pods, a_pod("web", spec={"nodeName": second}, ownerReferences=[owner]))
        keeper = Keeper(plane, site.file)
        try:
            wait_until(lambda: site.phase(second) == "off", "emptied and off")
            assert not [pod for pod in site.api.get(site.pods)["items"]
                        if pod["metadata"]["name"] == "web"]  # fmt: skip
            assert room.boards[0].on
            assert site.phase(first) is None
            assert "unschedulable" not in site.node(first)["spec"]
        finally:
            keeper.end()


def test_a_board_that_does_not_obey_leaves_the_node_cordoned_and_is_told(
    plane: ControlPlane, namespace: str, tmp_path: Path, room: BoardRoom
) -> None:
    room.boards[0].stuck = True
    with a_site(plane, namespace, tmp_path, of_room(room)[:1]) as site:
        uri = f"{room.uri(0, 'Systems')}?settle=0.2s"
        site.file.write_text(yaml.safe_dump({site.names[0]: uri}))
        keeper = Keeper(plane, site.file)
        try:
            wait_until(lambda: keeper.has_said("is not switched off"), "told")
            assert site.phase(site.names[0]) == "leaving"
            assert SWITCHED not in site.node(site.names[0])["metadata"]["annotations"]
        finally:
            keeper.end()


@pytest.mark.skipif(shutil.which("ipmitool") is None, reason="ipmitool is not installed")
@pytest.mark.skipif(importlib.util.find_spec("pyghmi") is None, reason="pyghmi is not installed")
def test_chassis_are_switched_by_ipmi(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    from test_knobs_ipmi import Dcmi

    board = Dcmi(tmp_path)
    try:
        board.started()
        uris = [board.uri("timeout=10s&settle=30s")]
        with (
            a_site(plane, namespace, tmp_path, uris) as site,
            a_scheduler(plane, namespace) as scheduler,
        ):
            keeper = Keeper(plane, site.file)
            try:
                [name] = site.names
                wait_until(lambda: site.phase(name) == "off", "off")
                assert not board.now()["on"]
                site.pod("one", scheduler)
                wait_until(lambda: board.now()["on"], "woken")
                site.boots(name, "second")
                wait_until(lambda: bound(site.api, namespace) == {"one": name}, "it runs")
            finally:
                keeper.end()
    finally:
        board.process.kill()
        board.process.wait()
