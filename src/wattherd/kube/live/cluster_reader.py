"""Takes a snapshot of a cluster: every part listed once, with the rights of whoever asks."""

from __future__ import annotations

import asyncio
import http
from typing import Any

import msgspec

from wattherd.errors import UserError
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import list_decoder
from wattherd.kube.api.event_objects import ApiEvent
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi, Transport
from wattherd.kube.facts.cluster_snapshot import PARTS, SnapshotPart

_PAGE = "500"
_NOT_HERE = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN)


def listed(access: Access) -> dict[str, list[Any]]:
    """The items of every part, by field; optional parts that cannot be read are left out.

    Raises:
        UserError: the API server refuses what is needed.
        Unreachable: it does not answer.
    """
    return asyncio.run(_all(access))


async def _all(access: Access) -> dict[str, list[Any]]:
    async with Transport(access) as transport:
        found: dict[str, list[Any]] = {}
        for part in PARTS:
            items = None if part.field in found else await _part(transport, part)
            if items is not None:
                found[part.field] = items
        return found


async def _part(transport: Transport, part: SnapshotPart) -> list[Any] | None:
    try:
        return await _pages(transport, part.path, part.kind)
    except RefusedByApi as refused:
        if part.optional and refused.status in _NOT_HERE:
            return None
        hint = f"whoever asks must be allowed to list {part.path.rpartition('/')[2]}"
        raise UserError(str(refused), where=part.path, hint=hint) from None


async def _pages(
    transport: Transport, path: str, kind: type[Any], query: dict[str, str] | None = None
) -> list[Any]:
    page_of = list_decoder(kind)
    found: list[Any] = []
    more = ""
    while True:
        asked = {**(query or {}), "limit": _PAGE} | ({"continue": more} if more else {})
        answer = await transport.request("GET", path, query=asked)
        try:
            page = page_of.decode(answer.body)
        except msgspec.ValidationError as error:
            raise UserError(f"cannot be read: {error}", where=path) from None
        found += page.items or ()
        more = page.metadata.continue_
        if not more:
            return found


def events_of(access: Access, namespace: str, name: str) -> list[ApiEvent]:
    """What was told of a pod, oldest first; nothing where events may not be read."""

    async def ask() -> list[ApiEvent]:
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        wanted = {"fieldSelector": f"regarding.kind=Pod,regarding.name={name}"}
        async with Transport(access) as transport:
            try:
                return await _pages(transport, path, ApiEvent, wanted)
            except (RefusedByApi, ApiUnreachable):
                return []

    found = asyncio.run(ask())
    return sorted(found, key=lambda one: _last(one) or "")


def _last(event: ApiEvent) -> str | None:
    if event.series is not None and event.series.last_observed_time:
        return event.series.last_observed_time
    return event.event_time or event.metadata.creation_timestamp


def last_time(event: ApiEvent) -> str:
    """When it was told last."""
    return _last(event) or ""
