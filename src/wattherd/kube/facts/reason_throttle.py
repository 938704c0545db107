"""What is worth writing about why things wait, and when: once, soon, not again and again.

Conditions and events are for people and for programs that watch them. A reason that comes is
written at once; another one only when it has held for a while, since a cluster at work changes its
mind with every pod that ends; other numbers of the same reason now and then. What still holds is
said again before the API server forgets it (events live for an hour). All writes together keep
within a rate, oldest wish first. What became of pods is said last: bindings that are under way go
before words about those that are done, up to a bound.
Reads no clock: times are arguments, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from wattherd.kube.api.pacing import TokenBucket

SETTLE_S = 3.0
"""Another reason must hold so long."""
REFRESH_S = 30.0
"""Other numbers of the same reason are written no more often."""
REPEAT_S = 900.0
"""What still holds is said again."""
AGAIN_S = 5.0
"""After a write that failed."""
RATE_PER_S = 100.0
BURST = 500
BEHIND_S = 5.0
"""What became of a pod may have to wait so long for those that are being bound."""
MOST_NEWS = 20_000
"""Of what became of pods; with more, the newest are not told of."""


class SubjectKind(StrEnum):
    """What kind of object something is said of."""

    POD = "Pod"
    GROUP = "PodGroup"


SCHEDULED = "Scheduled"
"""The token of those who wait no more."""


@dataclass(frozen=True, slots=True)
class ReasonSubject:
    """Of whom: `path` is the object's in the API, by which it is known as well."""

    about: SubjectKind
    api_version: str
    namespace: str
    name: str
    path: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ReasonNotice:
    """Something to write: why its subject waits (`waits`), or what became of it.

    `times` counts how often the very same was said, this time included; the `first` one is the
    first word on its subject.
    """

    subject: ReasonSubject
    token: str
    text: str
    waits: bool = True
    times: int = 1
    first: bool = False

    def line(self) -> str:
        """As it stands in conditions and events."""
        return f"{self.token}: {self.text}"


@dataclass(slots=True)
class _Wish:
    wanted: ReasonNotice
    since_s: float
    """Since when it is wanted with this token."""
    told: ReasonNotice | None = None
    told_s: float = 0.0
    not_before_s: float = 0.0

    def due_s(self) -> float:
        """When it may be written."""
        told, wanted = self.told, self.wanted
        if told is None:
            return self.not_before_s
        if told.token != wanted.token:
            return max(self.since_s + SETTLE_S, self.not_before_s)
        apart_s = REPEAT_S if told.text == wanted.text else REFRESH_S
        return max(self.told_s + apart_s, self.not_before_s)


@dataclass(slots=True)
class ReasonThrottle:
    """Keeps what is to be said, and says when."""

    rate_per_s: float = RATE_PER_S
    burst: int = BURST
    _wishes: dict[str, _Wish] = field(default_factory=dict)
    _news: deque[tuple[float, ReasonNotice]] = field(default_factory=deque)
    """With when it was heard."""
    _bucket: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        """A bucket of its own."""
        self._bucket = TokenBucket(self.rate_per_s, self.burst)

    def tell(self, notice: ReasonNotice, now_s: float) -> None:
        """From now on, this is why its subject waits."""
        known = self._wishes.get(notice.subject.path)
        if known is None or known.wanted.subject.uid != notice.subject.uid:
            self._wishes[notice.subject.path] = _Wish(notice, now_s)
            return
        if known.wanted.token != notice.token:
            known.since_s = now_s
        known.wanted = notice

    def say(self, notice: ReasonNotice, now_s: float) -> None:
        """Say once that something happened to its subject; it waits no more."""
        self._wishes.pop(notice.subject.path, None)
        if len(self._news) < MOST_NEWS:
            self._news.append((now_s, notice))

    def forget(self, path: str) -> None:
        """Its subject is gone, or waits no more."""
        self._wishes.pop(path, None)

    def knows(self, path: str) -> bool:
        """Whether its subject still waits for something."""
        return path in self._wishes

    def failed(self, notice: ReasonNotice, now_s: float) -> None:
        """It was not written: say it again in a while, as if for the first time."""
        known = self._wishes.get(notice.subject.path)
        if known is not None:
            known.told, known.not_before_s = None, now_s + AGAIN_S

    def due(self, now_s: float, *, busy: bool = False) -> Iterator[ReasonNotice]:
        """What is to be written now, as far as the rate allows; it counts as written.

        While those who bind are `busy`, what became of pods waits, but not for ever.
        """
        ready = [one for one in self._wishes.values() if one.due_s() <= now_s]
        ready.sort(key=lambda one: one.due_s())
        for wish in ready:
            if not self._may(now_s):
                return
            yield self._taken(wish, now_s)
        while self._news and not (busy and now_s - self._news[0][0] < BEHIND_S):
            if not self._may(now_s):
                return
            yield self._news.popleft()[1]

    def _may(self, now_s: float) -> bool:
        return self._bucket.take(now_s)

    def _taken(self, wish: _Wish, now_s: float) -> ReasonNotice:
        told, wanted = wish.told, wish.wanted
        same = told is not None and (told.token, told.text) == (wanted.token, wanted.text)
        times = 1 + (told.times if told is not None and same else 0)
        wish.told = replace(wanted, times=times, first=told is None)
        wish.told_s = now_s
        return wish.told
