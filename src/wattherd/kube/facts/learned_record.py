"""What jobs taught, as the text of a ConfigMap: read by whoever leads next.

The text is bounded (a ConfigMap takes 1 MiB). Where more was learned the oldest goes first, within
each namespace: nobody's kinds of jobs push out another's, as long as room is shared evenly. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from wattherd.errors import ClusterError
from wattherd.estimate.learned_memory import LearnedMemory
from wattherd.estimate.learned_rates import FASTEST, LEAST_RELATIVE, JobSpeed, WayRun
from wattherd.estimate.learned_restarts import MOST_RESTART_S

VERSION = 1
"""Of the text; one that another version wrote is not read."""
MOST_BYTES = 900_000
"""Of a text of the largest size."""
_SPEEDS, _RESTARTS, _SERVICES = 0.5, 0.1, 0.35
"""Parts of it, at most; what is left is for what stands around them."""
_MOST_GPUS = 1_000_000
_MOST_GPU_S = 1e15


class UnusableRecord(ClusterError):
    """A text that cannot be used: damaged, or of another version."""


Voice = tuple[float, float, int]
Way = tuple[str, int, int, int | None, int | None, float | None]


class _Head(msgspec.Struct, frozen=True):
    version: int


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text; `speeds` by kind and way, in pairs, so that their order is kept."""

    version: int
    speeds: list[tuple[str, list[tuple[Way, list[Voice]]]]]
    restarts_s: list[tuple[str, list[float]]]
    services_gpu_s: list[tuple[str, list[float]]]


_HEAD, _RECORD = msgspec.json.Decoder(_Head), msgspec.json.Decoder(_Record)
_Row = tuple[str, bytes]
"""Whose it is, and its text."""


def record_text(memory: LearnedMemory, most_bytes: int = MOST_BYTES) -> str:
    """The text of what is remembered, of at most `most_bytes` bytes."""
    speeds = [
        (_tenant(kind), _json((kind, [(tuple(way), voices) for way, voices in ways.items()])))
        for kind, ways in memory.speeds.items()
    ]
    restarts = [
        (_tenant(kind), _json((kind, voices))) for kind, voices in memory.restarts_s.items()
    ]
    services = [
        (tenant, _json(gpu_s)) for tenant, ended in memory.services_gpu_s.items() for gpu_s in ended
    ]
    ended: dict[str, list[bytes]] = {}
    for tenant, text in _kept(services, int(most_bytes * _SERVICES)):
        ended.setdefault(tenant, []).append(text)
    of_tenants = (b"[%b,%b]" % (_json(tenant), _list(texts)) for tenant, texts in ended.items())
    parts = (
        (b"version", _json(VERSION)),
        (b"speeds", _list(text for _, text in _kept(speeds, int(most_bytes * _SPEEDS)))),
        (b"restarts_s", _list(text for _, text in _kept(restarts, int(most_bytes * _RESTARTS)))),
        (b"services_gpu_s", _list(of_tenants)),
    )
    return (b"{" + b",".join(b'"%b":%b' % part for part in parts) + b"}").decode()


def read_record(text: str) -> LearnedMemory:
    """What a text says.

    Raises:
        UnusableRecord: it is damaged, or of another version.
    """
    try:
        version = _HEAD.decode(text).version
        if version != VERSION:
            raise UnusableRecord(f"version {version} wrote it, and version {VERSION} is read here")
        record = _RECORD.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UnusableRecord(f"it is damaged: {error}") from None
    _check(record)
    return LearnedMemory(
        speeds={
            kind: {
                WayRun(*way): tuple(JobSpeed(*voice) for voice in voices)
                for way, voices in ways
                if voices
            }
            for kind, ways in record.speeds
        },
        restarts_s={kind: tuple(voices) for kind, voices in record.restarts_s if voices},
        services_gpu_s={tenant: tuple(ended) for tenant, ended in record.services_gpu_s if ended},
    )


def _check(record: _Record) -> None:
    """All numbers are such as could have been learned.

    Raises:
        UnusableRecord: one is not.
    """
    for _, ways in record.speeds:
        for (_, gpus, nodes, batch, accumulation, cap_w), voices in ways:
            _within("GPUs", (gpus, nodes), _MOST_GPUS)
            counts = (one for one in (batch, accumulation, cap_w) if one is not None)
            _within("batch or cap", counts, math.inf)
            _within("steps per second", (one[0] for one in voices), FASTEST)
            _within("steps per second", (one[1] for one in voices), FASTEST / LEAST_RELATIVE)
            _within("windows", (one[2] for one in voices), math.inf)
    for _, voices_s in record.restarts_s:
        _within("seconds of a restart", voices_s, MOST_RESTART_S)
    for _, ended in record.services_gpu_s:
        _within("GPU seconds", ended, _MOST_GPU_S)


def _within(what: str, values: Iterable[float], most: float) -> None:
    for value in values:
        if not (0 < value <= most and math.isfinite(value)):
            raise UnusableRecord(f"it is damaged: {value} {what}")


def _tenant(kind: str) -> str:
    return kind.rpartition("\n")[0]


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _list(texts: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def _kept(rows: Sequence[_Row], most_bytes: int) -> list[_Row]:
    """The last rows of each tenant that fit, in their order; tenants have equal parts of the room.

    What one needs less than its part is shared among the others. Each row counts a comma, each
    tenant its name.
    """
    sizes: dict[str, list[int]] = {}
    for tenant, text in rows:
        sizes.setdefault(tenant, [len(_json(tenant)) + 4]).append(len(text) + 1)
    left, drops = most_bytes, dict[str, int]()
    ranked = sorted(sizes, key=lambda tenant: sum(sizes[tenant]))
    for at, tenant in enumerate(ranked):
        part = left // (len(ranked) - at)
        name, *each = sizes[tenant]
        used = name
        while each and used + each[-1] <= part:
            used += each.pop()
        drops[tenant] = len(each)
        left -= used if drops[tenant] < len(sizes[tenant]) - 1 else 0
    found = list[_Row]()
    for row in rows:
        if drops[row[0]] > 0:
            drops[row[0]] -= 1
        else:
            found.append(row)
    return found
