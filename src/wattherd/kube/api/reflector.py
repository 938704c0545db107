"""Follows one kind of object: list, then watch, for ever; hands over changes.

What API servers do, measured on 1.36, and what is done about it:

* A watch from a version that is gone is HTTP 200 with one ERROR event of code 410; a list may be
  HTTP 410. Both mean: list again, after a pause.
* A reader that is slow is cut off by a clean end of stream, in the middle of anything. So an end
  means nothing, a watch is never taken for a list, and reading waits for nobody (`changes`).
* Bookmarks carry a version and nothing else, about once a minute: the clock of `silent_s`.
* A watch from a version of the future (a store restored from an old copy) stays open and says
  nothing, no event and no bookmark. So a watch that said nothing is followed by a list.
* A server that is gone or frozen is found by the break of the stream, or by its silence.
* Kinds of others are installed and removed while we run. One that is not served is 404, for its
  group in discovery, which everybody may read, and for its list; so is one that is being replaced.
  It is looked for again now and then, and what was there is gone when it was missed twice.
* A right may be missing. Where a kind is optional, that is trouble, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import enum
import http
import time
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from wattherd.errors import ClusterError
from wattherd.kube.api.api_objects import (
    ObjectList,
    Status,
    Versioned,
    decoder,
    list_decoder,
    read_watch,
)
from wattherd.kube.api.changes import Changes, Key
from wattherd.kube.api.objects import ListMeta, ObjectMeta
from wattherd.kube.api.pacing import Backoff
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi, Transport

PAGE = 500
"""Objects of one page of a list, as kubectl asks for."""

WATCH_S = (240.0, 480.0)
"""Bounds of how long one watch is asked for; drawn, so that watches do not all end together."""

SILENCE_S = 150.0
"""After which a watch is given up: two bookmarks have failed to come."""

ABSENT_S = (15.0, 30.0)
"""Bounds of how long a kind that is not served, or refused to us, is left alone; drawn."""

REFUSED_TIMES = 3
"""So often in a row, and we lack the right: an account that is made just now has it in a moment."""

NOT_LISTED = "not listed yet"
"""The trouble of a reflector that has just begun."""

_FORBIDDEN = http.HTTPStatus.FORBIDDEN
_GONE = http.HTTPStatus.GONE
_ABSENT = http.HTTPStatus.NOT_FOUND
_STATUS = decoder(Status)
_VERSIONED = decoder(Versioned)
_RAW_PAGE = msgspec.json.Decoder(ObjectList[msgspec.Raw], strict=False)


class _Object(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=_Object)


class Served(enum.Enum):
    """Since when, and until when, the API server knows a kind.

    What must not be taken for gone by mistake is served for ever once it was.
    """

    ALWAYS = "always"
    ONCE_INSTALLED = "once installed"
    WHILE_INSTALLED = "while installed"


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Objects of one kind: `/api/v1/pods`, narrowed by field and label selectors.

    Who may not read an `optional` kind works on without it; of any other, not at all.
    """

    path: str
    kind: type[T]
    fields: str = ""
    labels: str = ""
    served: Served = Served.ALWAYS
    optional: bool = False

    @property
    def api(self) -> str:
        """The address of the group and version, for objects that are listed in all namespaces."""
        return self.path.rpartition("/")[0]

    def query(self) -> dict[str, str]:
        """The selectors as the API takes them."""
        given = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: text for name, text in given.items() if text}


@dataclass(slots=True)
class ReflectorTally:
    """What one reflector has seen since it began."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    late: int = 0
    expired: int = 0
    ends: int = 0
    breaks: int = 0
    unreadable: int = 0


class _Expired(ClusterError):
    """The version we follow from is gone."""


@dataclass(slots=True)
class Reflector(Generic[T]):
    """Keeps `changes` going; `draws` spreads its pauses.

    `trouble` says what keeps it from reading, and is None while nothing does.
    """

    transport: Transport
    selection: Selection[T]
    changes: Changes[T]
    draws: np.random.Generator
    silence_s: float = SILENCE_S
    absent_s: tuple[float, float] = ABSENT_S
    tally: ReflectorTally = field(default_factory=ReflectorTally)
    trouble: str | None = NOT_LISTED
    _version: str = ""
    _look: int = 0
    _following: asyncio.Timeout | None = None
    _missed: int = 0
    """How often in a row the kind was not served."""
    _refused: int = 0
    """How often in a row we might not read it."""
    _known: dict[str, Key] = field(default_factory=dict)
    _heard_s: float = float("-inf")
    _pauses: Backoff = field(init=False)
    _item: msgspec.json.Decoder[T] = field(init=False)
    _page: msgspec.json.Decoder[ObjectList[T]] = field(init=False)

    def __post_init__(self) -> None:
        """Decoders, made once."""
        self._pauses = Backoff(self.draws)
        self._item = decoder(self.selection.kind)
        self._page = list_decoder(self.selection.kind)

    def silent_s(self) -> float:
        """Since when nothing was heard, not even a bookmark; infinite before the first list."""
        return time.monotonic() - self._heard_s

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                if not await self._is_served():
                    await self._do_without()
                    continue
                look = await self._list()
                await self._follow_unless_asked(look)
                if look != self._look:
                    continue
            except _Expired:
                self.tally.expired += 1
            except (RefusedByApi, ApiUnreachable, msgspec.MsgspecError) as error:
                self._note(error)
                if self._tells_absence(error):
                    await self._do_without()
                    continue
                if self._is_refused(error):
                    self.changes.mark_refused()
                    await asyncio.sleep(self.draws.uniform(*self.absent_s))
                    continue
            await asyncio.sleep(self._pauses.pause_s())

    def list_again(self, look: int) -> None:
        """Leave the watch and list, as the look of this number; called in the loop it runs in.

        A list under way was asked for too early, and is followed by another one.
        """
        self._look = look
        if self._following is not None:
            self._following.reschedule(asyncio.get_running_loop().time())

    async def _follow_unless_asked(self, look: int) -> None:
        """Until the list of `look` is too old."""
        try:
            async with asyncio.timeout(None) as self._following:
                if look == self._look:
                    await self._follow()
        except TimeoutError:
            pass
        finally:
            self._following = None

    # --- kinds that may not be there -----------------------------------------------------------

    async def _is_served(self) -> bool:
        """Whether the kind may be listed: asked where that was not done before, or not lately.

        By discovery: to list what is not there may be forbidden to us, and that be no trouble.
        """
        if self.selection.served is Served.ALWAYS or (self.tally.lists and not self.changes.absent):
            return True
        try:
            await self.transport.request("GET", self.selection.api)
        except RefusedByApi as refused:
            if refused.status == _ABSENT:
                return False
            raise
        return True

    def _tells_absence(self, error: Exception) -> bool:
        """Whether there may be no such kind, and that is no trouble."""
        if not isinstance(error, RefusedByApi) or error.status != _ABSENT:
            return False
        may_go = self.selection.served is Served.WHILE_INSTALLED
        return may_go or (self.selection.served is Served.ONCE_INSTALLED and not self.tally.lists)

    def _is_refused(self, error: Exception) -> bool:
        """Whether we lack the right to an optional kind."""
        forbidden = isinstance(error, RefusedByApi) and error.status == _FORBIDDEN
        self._refused = self._refused + 1 if forbidden else 0
        return self.selection.optional and self._refused >= REFUSED_TIMES

    async def _do_without(self) -> None:
        """Until it is time to look again; what was there is gone once it was missed twice."""
        self._missed += 1
        self._refused = 0
        if self._missed > 1 or not self.tally.lists:
            for key in self._known.values():
                self.changes.put(key, None)
            self._known, self._version, self.trouble = {}, "", None
            self.changes.mark_absent()
        await asyncio.sleep(self.draws.uniform(*self.absent_s))

    # --- lists ---------------------------------------------------------------------------------

    async def _list(self) -> int:
        """The truth of one moment: what it does not name is gone. For which look it was asked."""
        look = self._look
        listed: dict[str, Key] = {}
        page = await self._read_page("", listed)
        version = page.resource_version
        while page.continue_:
            page = await self._read_page(page.continue_, listed)
        for uid in self._known.keys() - listed.keys():
            self.changes.put(self._known[uid], None)
        self._known, self._version, self.trouble = listed, version, None
        self._missed = self._refused = 0
        self.tally.lists += 1
        self._hear()
        self.changes.mark_complete(look)
        return look

    async def _read_page(self, continued: str, listed: dict[str, Key]) -> ListMeta:
        query = {**self.selection.query(), "limit": str(PAGE)}
        if continued:
            query["continue"] = continued
        try:
            # Without a version: never older than this moment, unlike version 0.
            answer = await self.transport.request("GET", self.selection.path, query=query)
        except RefusedByApi as refused:
            raise _Expired(refused.message) if refused.status == _GONE else refused from None
        try:
            page = self._page.decode(answer.body)
        except msgspec.ValidationError:
            return self._take_readable(answer.body, listed)
        for item in page.items or ():
            self._take_listed(item, listed)
        return page.metadata

    def _take_readable(self, body: bytes, listed: dict[str, Key]) -> ListMeta:
        """A page of which some items cannot be read: they are neither shown nor taken for gone."""
        page = _RAW_PAGE.decode(body)
        for raw in page.items or ():
            item = self._decoded(raw)
            if item is not None:
                self._take_listed(item, listed)
            elif key := self._known.get(_VERSIONED.decode(raw).metadata.uid):
                listed[key.uid] = key
        return page.metadata

    def _take_listed(self, item: T, listed: dict[str, Key]) -> None:
        key = _key(item)
        # Known from now on: should this list break off, the next one must see whether it is gone.
        listed[key.uid] = self._known[key.uid] = key
        self.changes.put(key, item)

    def _decoded(self, raw: msgspec.Raw) -> T | None:
        try:
            return self._item.decode(raw)
        except msgspec.ValidationError:
            self.tally.unreadable += 1
            return None

    # --- watches -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Watch after watch, each from where the last one ended, until one says nothing at all.

        Raises:
            _Expired: the version is gone.
        """
        told = True
        while told:
            before = self.tally.events + self.tally.bookmarks
            try:
                await self._watch()
                self.tally.ends += 1
            except ApiUnreachable as error:
                self.tally.breaks += 1
                self._note(error)
            told = self.tally.events + self.tally.bookmarks > before

    async def _watch(self) -> None:
        self.tally.watches += 1
        query = {
            **self.selection.query(),
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(self.draws.uniform(*WATCH_S))),
        }
        try:
            async with self.transport.lines(
                self.selection.path, query=query, silence_s=self.silence_s
            ) as lines:
                self.trouble = None
                async for line in lines:
                    self._take(line)
        except RefusedByApi as refused:
            raise _Expired(refused.message) if refused.status == _GONE else refused from None

    def _take(self, line: bytes) -> None:
        """One event of a watch."""
        event = read_watch(line)
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            if status.code == _GONE:
                raise _Expired(status.message)
            raise RefusedByApi(status.code, status.reason, status.message)
        self._hear()
        self._pauses.reset()
        about = _VERSIONED.decode(event.object).metadata
        if event.type == "BOOKMARK":
            self.tally.bookmarks += 1
            if about.resource_version != self._version and self._is_late(about.resource_version):
                raise _Expired("the server has gone back")
        elif self._is_late(about.resource_version):
            self.tally.late += 1
            return
        else:
            self.tally.events += 1
            self._take_object(event.type, event.object, about)
        self._version = about.resource_version

    def _take_object(self, what: str, raw: msgspec.Raw, about: ObjectMeta) -> None:
        key = Key(about.uid, about.namespace, about.name)
        if what == "DELETED":
            self._known.pop(key.uid, None)
            self.changes.put(key, None)
            return
        item = self._decoded(raw)
        if item is not None:
            self._known[key.uid] = key
            self.changes.put(key, item)

    def _is_late(self, version: str) -> bool:
        """Told before: versions of one kind of object are ordered (KEP 5504)."""
        known = self._version
        return version.isdecimal() and known.isdecimal() and int(version) <= int(known)

    def _hear(self) -> None:
        self._heard_s = time.monotonic()

    def _note(self, error: Exception) -> None:
        self.trouble = str(error)


def _key(item: _Object) -> Key:
    about = item.metadata
    return Key(about.uid, about.namespace, about.name)
