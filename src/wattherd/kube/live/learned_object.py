"""What jobs taught, kept in a ConfigMap: written by the copy that leads, read when it begins to.

Written once in `EVERY_S` where something new was learned, and when the process ends. A write is
taken only if nobody else wrote in between, and sent only as long as this copy leads; one that fails
is tried again later. Plans wait for none of it, but for the reading, at the beginning of a term and
`PATIENCE_S` at most.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from wattherd.estimate.learned_memory import LearnedMemory
from wattherd.kube.api.api_objects import decoder
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Object, ObjectMeta
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi, Withheld
from wattherd.kube.facts.learned_record import UnusableRecord, read_record, record_text

EVERY_S = 30.0
PATIENCE_S = 3.0
AGAIN_S = 2.0
"""Until a reading is tried again that failed."""
_LOOK_S = 0.25
_TIMEOUT_S = 5.0
_KEY = "learned"
_UNREAD, _UNKEPT = "what jobs taught earlier is not known", "what jobs teach is not kept"


class _ConfigMap(Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """What is kept in it."""
        return (self.data or {}).get(_KEY, "")


_CONFIG_MAP = decoder(_ConfigMap)
_NOTHING = record_text(LearnedMemory())


class Learning(Protocol):
    """Who learns from jobs; asked in its turn."""

    def remembered(self) -> LearnedMemory:
        """What the next process is to know."""
        ...

    def recall(self, memory: LearnedMemory) -> None:
        """This is what kinds and namespaces taught up to now."""
        ...


class Seat(Protocol):
    """Who leads."""

    def leads(self) -> bool:
        """Whether this copy may write at this moment."""
        ...

    @property
    def standing(self) -> tuple[str, int]:
        """The lease, and the number of our last term in it."""
        ...


class LearnedObject:
    """Keeps what `learning` knows in the ConfigMap `about`; `begin` it before its feed."""

    def __init__(
        self,
        feed: ApiFeed,
        learning: Learning,
        seat: Seat,
        about: ObjectMeta,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`about` is name and namespace."""
        self._feed, self._learning, self._seat, self._clock = feed, learning, seat, clock
        self._about = about
        self._path = f"/api/v1/namespaces/{about.namespace}/configmaps/{about.name}"
        self._begun: tuple[str, int] | None = None
        """The term that planning asked about last, and since when it waits."""
        self._since_s = 0.0
        self._read_in: tuple[str, int] | None = None
        """The term in which it was read; in no other it is written."""
        self._failed_in: tuple[str, int] | None = None
        """The term in which it cannot be read for the moment, as the API server says."""
        self._version = ""
        self._text = ""
        """What stands there, as far as we know."""
        self._due_s = 0.0

    def begin(self) -> None:
        """Read and write in a thread of its own."""
        self._feed.also(self._work)

    def is_read(self) -> bool:
        """Whether to plan in this term: it was read, or cannot be, or was waited for enough."""
        standing, now_s = self._seat.standing, self._clock()
        if standing != self._begun:
            self._begun, self._since_s = standing, now_s
        known = standing in (self._read_in, self._failed_in)
        return known or now_s - self._since_s >= PATIENCE_S

    def _work(self) -> None:
        while not self._feed.over.wait(_LOOK_S):
            self.look()
        self._keep()  # the lease is given back later

    def look(self) -> None:
        """Read or write, if that is due."""
        standing = self._seat.standing
        if not self._seat.leads():
            return
        if self._read_in != standing:
            if self._clock() >= self._due_s or self._failed_in != standing:
                self._read(standing)
        elif self._clock() >= self._due_s:
            self._due_s = self._clock() + EVERY_S
            self._keep()

    def _read(self, standing: tuple[str, int]) -> None:
        try:
            found = self._fetched()
        except RefusedByApi as refused:
            missing = refused.status == http.HTTPStatus.NOT_FOUND
            hint = f"; kubectl create configmap {self._about.name} -n {self._about.namespace}"
            self._feed.note(_UNREAD, str(refused) + (hint if missing else ""))
            self._failed_in, self._due_s = standing, self._clock() + EVERY_S
            return
        except ApiUnreachable as error:
            self._feed.note(_UNREAD, str(error))
            self._due_s = self._clock() + AGAIN_S
            return
        ours = self._version and found.metadata.resource_version == self._version
        if not ours:
            self._take(found)
        self._read_in, self._due_s = standing, self._clock() + EVERY_S

    def _fetched(self) -> _ConfigMap:
        answer = self._request("GET", None)
        try:
            return _CONFIG_MAP.decode(answer)
        except msgspec.MsgspecError as error:
            raise ApiUnreachable(f"no ConfigMap was answered: {error}") from None

    def _request(self, method: str, body: bytes | None) -> bytes:
        request = self._feed.transport.request(
            method, self._path, body=body, kind=MERGE, timeout_s=_TIMEOUT_S,
            may_go=self._seat.leads,
        )  # fmt: skip
        return self._feed.loop.run(request).body

    def _take(self, found: _ConfigMap) -> None:
        """Somebody else wrote last, or nobody: what stands there is what is known."""
        self._version, self._text = (
            found.metadata.resource_version,
            (found.data or {}).get(_KEY, ""),
        )
        self._feed.note(_UNREAD)
        if not self._text:
            return
        try:
            memory = read_record(self._text)
        except UnusableRecord as error:
            self._feed.note(_UNREAD, f"{error}; it is learned anew")
            return
        self._feed.turn(self._learning.recall, memory)

    def _keep(self) -> None:
        """Write what is known, if it is another than stands there, and ours to write."""
        standing = self._seat.standing
        if self._read_in != standing or not self._seat.leads():
            return
        text = record_text(self._feed.turn(self._learning.remembered))
        if text == (self._text or _NOTHING):
            return
        about = {"resourceVersion": self._version}
        body = msgspec.json.encode({"metadata": about, "data": {_KEY: text}})
        try:
            written = _CONFIG_MAP.decode(self._request("PATCH", body))
        except Withheld:
            return
        except RefusedByApi as refused:
            if refused.status == http.HTTPStatus.CONFLICT:
                self._look_who_wrote()
            self._feed.note(_UNKEPT, f"{refused}; it is tried again")
            return
        except (ApiUnreachable, msgspec.MsgspecError) as error:
            self._feed.note(_UNKEPT, f"{error}; it is tried again")
            return
        self._version, self._text = written.metadata.resource_version, text
        self._feed.note(_UNKEPT)
        self._feed.note(_UNREAD)

    def _look_who_wrote(self) -> None:
        """A leader before us, late, or ourselves without an answer: as we lead, ours counts."""
        try:
            found = self._fetched()
        except (RefusedByApi, ApiUnreachable):
            return
        self._version, self._text = (
            found.metadata.resource_version,
            (found.data or {}).get(_KEY, ""),
        )
