"""Writes on silent nodes who was there, and takes it off again (`fencing`); asked for now and then.

By the status subresource, which takes annotations and leaves the spec of a node alone: whoever may
do no more can put no taint on a node and take none from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.names import UNFENCED
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi

AGAIN_S = 5.0
"""What was sent is seen within a second; if it is not, it is sent again."""


class FencingNotes:
    """On the nodes of the cluster of `feed`."""

    def __init__(self, feed: ApiFeed) -> None:
        """Nothing was written yet."""
        self._feed = feed
        self._sent: dict[str, tuple[str | None, float]] = {}

    def write(self, wanted: Mapping[str, str | None]) -> None:
        """What is to stand on which node, unless that was sent a moment ago."""
        now_s = time.monotonic()
        recent = {node: sent for node, sent in self._sent.items() if now_s - sent[1] < AGAIN_S}
        self._sent = recent
        for node, text in wanted.items():
            if node not in recent or recent[node][0] != text:
                recent[node] = text, now_s
                self._feed.loop.begin(self._write(node, text))

    async def _write(self, node: str, text: str | None) -> None:
        """One that fails is found missing again."""
        body = json.dumps({"metadata": {"annotations": {UNFENCED: text}}}).encode()
        path = f"/api/v1/nodes/{node}/status"
        try:
            await self._feed.transport.request("PATCH", path, body=body, kind=MERGE)
        except (RefusedByApi, ApiUnreachable) as error:
            self._feed.note("who is on silent nodes is not written", str(error))
        else:
            self._feed.note("who is on silent nodes is not written")
