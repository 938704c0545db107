"""Which pod has which devices, as the kubelet tells on its own socket.

PodResources v1 (`List`, gRPC on /var/lib/kubelet/pod-resources/kubelet.sock; Kubernetes docs,
"Monitoring device plugin resources") is the one place where the choice of a device plugin can be
read. Its messages are few, so that they are read here by hand (protobuf wire format: a varint key
of field number and type before each value) and no generated code is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from wattherd.errors import ClusterError

METHOD = "/v1.PodResourcesLister/List"
SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
TIMEOUT_S = 5.0
MOST_BYTES = 64 << 20
GPU_PLUGINS = ("nvidia.com/", "amd.com/")

_PODS = 1
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_DEVICES = 2
_RESOURCE, _DEVICE_IDS = 1, 2
_MOST_SHIFT = 63


class NoPodResources(ClusterError):
    """The kubelet did not tell."""


@dataclass(slots=True)
class PodResources:
    """The kubelet behind a socket; connects when first asked."""

    socket: Path = SOCKET
    _channel: Any = field(default=None)

    def gpus_by_pod(self) -> dict[str, list[str]]:
        """Device ids of GPU plugins by namespace/name of the pods that have some.

        Replicas of a shared GPU (`GPU-UUID::3`) are named by the GPU.

        Raises:
            NoPodResources: no answer, or one that cannot be read.
        """
        try:
            return decoded(self._asked())
        except grpc.RpcError as error:
            self.close()
            raise NoPodResources(f"the kubelet does not tell who has which GPU: {_said(error)}") \
                from None  # fmt: skip
        except ValueError as error:
            raise NoPodResources(f"the kubelet's answer cannot be read: {error}") from None

    def close(self) -> None:
        """Let go of the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _asked(self) -> bytes:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MOST_BYTES)]
            self._channel = grpc.insecure_channel(f"unix://{self.socket.absolute()}", options)
        call = self._channel.unary_unary(METHOD)
        answer: bytes = call(b"", timeout=TIMEOUT_S)
        return answer


def decoded(answer: bytes) -> dict[str, list[str]]:
    """What `ListPodResourcesResponse` says of GPUs.

    Raises:
        ValueError: it is no such message.
    """
    found: dict[str, list[str]] = {}
    for pod in _messages(answer, _PODS):
        fields = list(byte_fields(pod))
        key = f"{_text(fields, _NAMESPACE)}/{_text(fields, _NAME)}"
        ids = [
            one.partition("::")[0]
            for container in _bytes(fields, _CONTAINERS)
            for devices in _messages(container, _DEVICES)
            for one in _ids(devices)
        ]
        if ids:
            found[key] = list(dict.fromkeys(ids))
    return found


def _ids(devices: bytes) -> list[str]:
    fields = list(byte_fields(devices))
    if not _text(fields, _RESOURCE).startswith(GPU_PLUGINS):
        return []
    return [one.decode() for one in _bytes(fields, _DEVICE_IDS)]


def _messages(data: bytes, number: int) -> Sequence[bytes]:
    return _bytes(list(byte_fields(data)), number)


def _bytes(fields: Sequence[tuple[int, bytes]], number: int) -> Sequence[bytes]:
    return [value for at, value in fields if at == number]


def _text(fields: Sequence[tuple[int, bytes]], number: int) -> str:
    values = _bytes(fields, number)
    return values[-1].decode() if values else ""


def byte_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields that hold bytes, by number; numbers are skipped, as none of them matters here."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise ValueError("it is cut off")
                yield key >> 3, data[at : at + size]
                at += size
            case kind:
                raise ValueError(f"wire type {kind}")
    if at != len(data):
        raise ValueError("it is cut off")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift <= _MOST_SHIFT:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("it is cut off")


def _said(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)
