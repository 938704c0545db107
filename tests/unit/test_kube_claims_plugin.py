"""The plugin that kubelets ask about claims to watts, asked as they ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="the extra `kube-agent` is not installed")
from wattherd.kube.live.claims_plugin import ClaimsPlugin  # noqa: E402

DRIVER = b"watts.wattherd.dev"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[ClaimsPlugin]:
    made = ClaimsPlugin(tmp_path / "p", tmp_path / "r")
    made.begin()
    yield made
    made.close()


def asked(socket: Path, method: str, request: bytes) -> bytes:
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        answer: bytes = channel.unary_unary(method)(request, timeout=60)
    return answer


def test_a_kubelet_finds_it_and_is_told_where_it_serves(plugin: ClaimsPlugin) -> None:
    method = "/pluginregistration.Registration/GetInfo"
    told = asked(plugin.registration, method, b"")
    endpoint = str(plugin.endpoint).encode()
    assert told == (
        b"\x0a\x09DRAPlugin\x12\x12"
        + DRIVER
        + b"\x1a"
        + _length(endpoint)
        + endpoint
        + b"\x22\x0cv1.DRAPlugin"
    )
    assert plugin.registration.name == "watts.wattherd.dev-reg.sock"


def _length(text: bytes) -> bytes:
    size = len(text)
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
def test_every_claim_is_ready_without_a_device(plugin: ClaimsPlugin, method: str) -> None:
    """Two claims (namespace, uid, name) in; a map from uid to an empty answer out."""
    first = b"\x0a\x02ns\x12\x03u-1\x1a\x01a"
    second = b"\x0a\x02ns\x12\x03u-2\x1a\x01b"
    request = b"".join(b"\x0a" + bytes([len(one)]) + one for one in (first, second))
    answer = asked(plugin.endpoint, f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", request)
    assert answer == b"\x0a\x07\x0a\x03u-1\x12\x00" + b"\x0a\x07\x0a\x03u-2\x12\x00"
    assert asked(plugin.endpoint, f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", b"") == b""


def test_it_knows_whether_the_kubelet_took_it(plugin: ClaimsPlugin) -> None:
    method = "/pluginregistration.Registration/NotifyRegistrationStatus"
    assert asked(plugin.registration, method, b"\x12\x02no") == b""
    assert (plugin.registered, plugin.refused) == (False, "no")
    asked(plugin.registration, method, b"\x08\x01")
    assert (plugin.registered, plugin.refused) == (True, "")


def test_its_sockets_go_with_it(tmp_path: Path) -> None:
    made = ClaimsPlugin(tmp_path / "p", tmp_path / "r")
    made.begin()
    assert made.registration.exists()
    made.close()
    assert not made.registration.exists()
    assert not made.endpoint.exists()
