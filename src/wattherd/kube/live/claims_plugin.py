"""What kubelets ask before they start pods that claimed watts: the driver's plugin on a node.

A kubelet prepares all claims of a pod by a plugin of their driver (Kubernetes docs, "Dynamic
Resource Allocation"; k8s.io/kubelet/pkg/apis/dra/v1). Watts need no preparing: whether they are
there was settled when the claim was allocated. So every claim is ready, with no device.

The kubelet finds the plugin by a socket in its registry folder, asks there for the plugin's name
and where it serves, and then calls it. The few messages are read and written by hand, as in
`pod_resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from wattherd.kube.account.watt_slices import DRIVER
from wattherd.kube.live.pod_resources import byte_fields

PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
_REGISTRATION = "pluginregistration.Registration"
_DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_TYPE, _NAME, _ENDPOINT, _VERSIONS = 1, 2, 3, 4
_VERSION = "v1.DRAPlugin"
_CLAIMS, _UID = 1, 2
_KEY, _VALUE = 1, 2
_SHUT_S = 5.0
_SEVEN_BITS = 0x7F


class ClaimsPlugin:
    """Serves on two sockets below the kubelet's folders, from `begin` to `close`."""

    def __init__(self, plugins: Path = PLUGINS, registry: Path = REGISTRY) -> None:
        """The folders are the kubelet's."""
        self.endpoint = plugins / DRIVER / "dra.sock"
        self.registration = registry / f"{DRIVER}-reg.sock"
        self.refused = ""
        """Why the kubelet would not register it, if it would not."""
        self.registered = False
        self._servers: list[grpc.Server] = []

    def begin(self) -> None:
        """Serve; the one that kubelets look for comes last."""
        answers = {"NodePrepareResources": all_ready, "NodeUnprepareResources": all_ready}
        self._serve(self.endpoint, _DRA, answers)
        told = {"GetInfo": self._info, "NotifyRegistrationStatus": self._status}
        self._serve(self.registration, _REGISTRATION, told)

    def close(self) -> None:
        """Stop; the sockets go, so that the kubelet knows."""
        for server in reversed(self._servers):
            server.stop(_SHUT_S).wait()
        for socket in (self.registration, self.endpoint):
            socket.unlink(missing_ok=True)

    def _serve(
        self, socket: Path, service: str, methods: Mapping[str, Callable[[bytes], bytes]]
    ) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="wattherd-claims"))
        handlers = {name: grpc.unary_unary_rpc_method_handler(_plain(answer))
                    for name, answer in methods.items()}  # fmt: skip
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix://{socket.absolute()}")
        server.start()
        self._servers.append(server)

    def _info(self, request: bytes) -> bytes:
        del request
        told = [(_TYPE, "DRAPlugin"), (_NAME, DRIVER), (_ENDPOINT, str(self.endpoint.absolute()))]
        return b"".join(_field(at, text.encode()) for at, text in [*told, (_VERSIONS, _VERSION)])

    def _status(self, request: bytes) -> bytes:
        """`RegistrationStatus`: an error, or none."""
        said = [value for at, value in byte_fields(request) if at == _NAME]
        self.refused = said[-1].decode() if said else ""
        self.registered = not self.refused
        return b""


def _plain(answer: Callable[[bytes], bytes]) -> Callable[[bytes, Any], bytes]:
    def handle(request: bytes, context: Any) -> bytes:
        del context
        return answer(request)

    return handle


def all_ready(request: bytes) -> bytes:
    """To each claim that was asked about, by uid, an answer without devices and without error."""
    return b"".join(
        _field(_CLAIMS, _field(_KEY, uid) + _field(_VALUE, b"")) for uid in _uids(request)
    )


def _uids(request: bytes) -> Iterable[bytes]:
    for at, claim in byte_fields(request):
        if at == _CLAIMS:
            yield from (value for number, value in byte_fields(claim) if number == _UID)


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append(value & _SEVEN_BITS | 0x80)
        value >>= 7
    return bytes([*found, value])
