"""Two processes stand for election on a real API server; one is stopped, killed, cut off."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_server import Server, wait_until

from wattherd.kube.api.lease import boot_s, wall

HERE = Path(__file__).parent
Candidates = tuple[Server, Server]
WRONG_S = 600.0
"""How far clocks are from that of the API server."""
RESPECTED_S = 4


@pytest.fixture
def told(tmp_path: Path) -> Path:
    path = tmp_path / "told"
    path.touch()
    return path


@pytest.fixture
def candidates(plane: ControlPlane, namespace: str, told: Path) -> Iterator[Candidates]:
    """Two whose clocks are twenty minutes apart; the first one leads already."""
    both = (
        a_candidate(plane, namespace, "one", told, WRONG_S),
        a_candidate(plane, namespace, "two", told, -WRONG_S),
    )
    both[0].begin()
    wait_until(lambda: leader_since(told, 0.0) == "one", "the first one leads")
    both[1].begin()
    yield both
    for each in both:
        each.resume()
        each.kill()


def a_candidate(
    plane: ControlPlane, namespace: str, identity: str, told: Path, ahead_s: float
) -> Server:
    about = [str(plane.kubeconfig), namespace, identity, str(told), str(ahead_s)]
    command, log = [str(HERE / "candidate.py"), *about], told.with_name(f"{identity}.log")
    return Server(Path(sys.executable), command, log, ready=lambda: True)


def moments(told: Path) -> list[tuple[float, str, int]]:
    """When who held to lead, in which term, in the order of time."""
    lines = [line.split() for line in told.read_text().splitlines(keepends=True) if "\n" in line]
    return sorted((float(at), who, int(epoch)) for at, who, epoch in lines)


def leader_since(told: Path, since_s: float) -> str | None:
    """Who has led since then, if anybody has."""
    return next((who for at_s, who, _ in reversed(moments(told)) if at_s > since_s), None)


def terms(told: Path) -> list[tuple[int, str]]:
    """Leader after leader, as time went by; one name twice if two led in turns."""
    led = [(epoch, who) for _, who, epoch in moments(told)]
    return [key for key, _ in itertools.groupby(led)]


def assert_one_at_a_time(told: Path) -> None:
    epochs = [epoch for epoch, _ in terms(told)]
    assert epochs == sorted(set(epochs)), f"terms overlap: {terms(told)}"


def test_a_leader_that_is_stopped_and_goes_on_finds_itself_replaced(
    candidates: Candidates, told: Path
) -> None:
    one, _ = candidates
    one.pause()
    paused_s = boot_s()
    wait_until(lambda: leader_since(told, paused_s + 1) == "two", "the other one leads")
    one.resume()
    resumed_s = boot_s()
    wait_until(lambda: boot_s() > resumed_s + 3 and leader_since(told, resumed_s + 2), "a while")
    assert_one_at_a_time(told)


def test_a_leader_that_is_killed_is_followed_by_the_other(
    candidates: Candidates, told: Path
) -> None:
    one, _ = candidates
    one.kill()
    killed_s = boot_s()
    wait_until(lambda: leader_since(told, killed_s) == "two", "the other one leads")
    one.begin()  # of the same name, but not of the same term
    wait_until(lambda: leader_since(told, boot_s() - 1) == "two", "the other one still leads")
    assert_one_at_a_time(told)


def test_while_nobody_can_renew_nobody_leads(
    plane: ControlPlane, candidates: Candidates, told: Path
) -> None:
    plane.apiserver.pause()
    try:
        last_s = moments(told)[-1][0]
        wait_until(lambda: boot_s() > last_s + 7, "longer than any term")
        ended_s = moments(told)[-1][0]
        assert ended_s < boot_s() - 3, "the leader has stopped by itself"
    finally:
        plane.apiserver.resume()
    wait_until(lambda: leader_since(told, ended_s + 3), "somebody leads again")
    assert_one_at_a_time(told)


@pytest.mark.parametrize("ahead_s", [-WRONG_S, WRONG_S], ids=["behind", "ahead"])
def test_a_record_is_respected_by_how_long_it_stands_and_not_by_what_is_written(
    plane: ControlPlane, namespace: str, told: Path, ahead_s: float
) -> None:
    """Of a holder that is no more, whose clock was wrong by ten minutes."""
    at = (wall() + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": RESPECTED_S, "leaseTransitions": 7}
    lease = {"metadata": {"name": "leader"}, "spec": {**spec, "acquireTime": at, "renewTime": at}}
    plane.api.create(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", lease)
    begun_s, one = boot_s(), a_candidate(plane, namespace, "one", told, 0.0)
    one.begin()
    try:
        wait_until(lambda: leader_since(told, begun_s) == "one", "it leads in the end")
    finally:
        one.kill()
    first_s, _, epoch = moments(told)[0]
    assert first_s - begun_s >= RESPECTED_S
    assert epoch == 8


def test_kubectl_shows_who_leads(
    plane: ControlPlane, namespace: str, candidates: Candidates, kube_programs: Path
) -> None:
    command = [kube_programs / "kubectl", f"--kubeconfig={plane.kubeconfig}", "-n", namespace]
    command += ["get", "lease", "leader", "-o", "jsonpath={.spec.holderIdentity}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "one"
