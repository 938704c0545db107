"""A watch as tests need it: wait for a change without asking again and again."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from kube_api import KubeApi, Object

LASTS_S = 6 * 3600


class Watch:
    """What happens under `path` from the moment it is entered, in order.

    Args:
        api: whose credentials are used.
        path: of the collection, such as that of a namespace's pods.
        silence_s: how long may pass between two changes.
    """

    def __init__(self, api: KubeApi, path: str, *, silence_s: float) -> None:
        self.path = path
        self._api = api
        self._connection = api.connection(silence_s)

    def __enter__(self) -> Self:
        self._seen = self._api.get(self.path, limit="1")["metadata"]["resourceVersion"]
        self._ask()
        return self

    def _ask(self) -> None:
        """For all that happened since the last change that was seen."""
        query = {"watch": "1", "resourceVersion": self._seen, "timeoutSeconds": str(LASTS_S)}
        self._connection.request("GET", f"{self.path}?{urlencode(query)}", None, self._api.headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == http.client.OK, self._answer.read()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def changes(self) -> Iterator[tuple[str, Object]]:
        """What happens to whom, in the order of the API server; none is lost or told twice.

        Slow readers are cut off, and go on where they were. A TimeoutError if nothing happens for
        too long.
        """
        while True:
            while line := self._answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise AssertionError(event["object"])
                self._seen = event["object"]["metadata"]["resourceVersion"]
                yield event["type"], event["object"]
            self._connection.close()
            self._ask()

    def until(self, name: str, true: Callable[[Object], object]) -> Object:
        """The first state to come of the object `name` that is so; what happens to others is lost.

        A TimeoutError if nothing happens for too long.
        """
        for _, found in self.changes():
            if found["metadata"]["name"] == name and true(found):
                return found
        raise AssertionError("a watch has no end")
