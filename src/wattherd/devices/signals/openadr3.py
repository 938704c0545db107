"""`openadr3+https://VTN/PATH?program=ID&credentials=FILE`: OpenADR 3 events, plain REST and JSON.

A server's (VTN's) `GET /events?programID=ID` is read again and again, page by page, with a bearer
token or one that client credentials bring. The list is complete, so that an event that is gone from
it is cancelled. Where the server is lost, what it said last keeps counting; so does the last
version of an event that has become unreadable. What events mean is in `openadr3_events`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.limit_rows import level_w
from wattherd.devices.signals.openadr3_events import EventReader, EventSpans, counting
from wattherd.devices.signals.polled import Poller
from wattherd.devices.wire import web
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.credentials import read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.oauth import ClientCredentials
from wattherd.devices.wire.uri import Uri
from wattherd.engine.power.limit_timeline import EventBook, LimitEvent, LimitPeriod, OptState
from wattherd.errors import UserError

OPTIONS = web.OPTIONS | {"program", "every", "timeout", "name", "targets", "simple", "report"}
PAGE = 50
"""The most that a server has to give at once."""
MOST_PAGES = 200
TIMEOUT_S = 10.0


class Vtn:
    """A server and who we are to it.

    Raises:
        UserError: (on opening) the address names no host or program, or has a bad option.
    """

    def __init__(self, uri: Uri, clock: Clock = SYSTEM) -> None:
        """Nothing is asked yet."""
        self._uri = uri
        self._server = replace(
            web.server(uri, web.bearer), timeout_s=uri.seconds("timeout", TIMEOUT_S)
        )
        self.program = uri.text_of("program")
        self._path = uri.path.rstrip("/")
        self._oauth = ClientCredentials(
            self._token_url,
            tls=self._server.tls,
            timeout_s=self._server.timeout_s,
            clock=clock,
        )

    def events(self, targets: Iterable[str]) -> tuple[list[Any], int]:
        """All events of the program, and how many pages they came on.

        A page that brings nothing new is the last: some servers do not know `skip`.
        """
        found: dict[str, Any] = {}
        named = "".join(f"&targets={quote(one, safe='')}" for one in targets)
        for number in range(MOST_PAGES):
            query = f"programID={quote(self.program, safe='')}&skip={len(found)}&limit={PAGE}"
            target = f"{self._path}/events?{query}{named}"
            rows = self._request("GET", target)
            if not isinstance(rows, list):
                raise UserError("is no list of events", where=target)
            before = len(found)
            for row in rows:
                key = row.get("id") if isinstance(row, Mapping) else None
                found.setdefault(str(key) if key else json.dumps(row), row)
            if len(found) == before:
                return list(found.values()), number
        raise UserError(f"has more than {MOST_PAGES} pages of events", where=self._uri.text)

    def report(self, body: Mapping[str, Any]) -> Any:
        """Tell the server; what it has made of it."""
        content = {"objectType": "REPORT", "programID": self.program, **body}
        return self._request("POST", f"{self._path}/reports", content)

    def _request(self, method: str, target: str, content: Any = None) -> Any:
        """One question; where a token is refused, once more with another one."""
        credentials = read_credentials(self._server.secrets)
        if not credentials.client_id:
            return self._server.request(method, target, content).content
        for last in (False, True):
            head = self._oauth.header(credentials)
            try:
                return self._server.request(method, target, content, head).content
            except DeviceError as error:
                if (
                    last
                    or error.trouble is not DeviceErrorKind.REFUSED
                    or " 401 " not in str(error)
                ):
                    raise
                self._oauth.forget()
        raise AssertionError  # the loop returns or raises

    def _token_url(self, credentials: Any) -> str:
        """Where tokens are: as the credentials, or else the server itself, says."""
        if credentials.token_url:
            return str(credentials.token_url)
        scheme = "http" if self._server.tls is None else "https"
        own = f"{scheme}://{self._uri.authority}{self._path}/auth/token"
        try:
            said = self._server.request("GET", f"{self._path}/auth/server").content
        except DeviceError as error:
            if error.trouble is DeviceErrorKind.ABSENT:
                return own
            raise
        url = said.get("tokenURL") if isinstance(said, Mapping) else None
        if not isinstance(url, str) or not url:
            return own
        if scheme == "https" and not url.startswith("https://"):
            problem = f"the server names {url} for tokens, which would show our secret to anybody"
            raise DeviceError(DeviceErrorKind.REFUSED, problem)
        return url


@dataclass(frozen=True, slots=True)
class _Known:
    """What was made of the last list: events, what is wrong with some, and what was reported."""

    events: Mapping[str, EventSpans]
    missing: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


class OpenAdr3:
    """The events of one program.

    Raises:
        UserError: (on opening) the address names no program or has a bad option.
    """

    def __init__(self, uri: Uri, site: SignalSite, clock: Clock = SYSTEM) -> None:
        """Begin to listen."""
        self._uri, self._site, self._clock = uri, site, clock
        self._vtn = Vtn(uri, clock)
        self._targets = tuple(one for one in uri.options.get("targets", "").split(",") if one)
        simple = [one for one in uri.options.get("simple", "").split(",") if one]
        self._reader = EventReader(
            site=site,
            name=uri.options.get("name", ""),
            targets=frozenset(self._targets),
            simple_w=tuple(level_w(one, site.base_w, field="simple") for one in simple),
        )
        self._reported: set[tuple[str, float]] = set()
        self._known = _Known({})
        self._poller: Poller[_Known] = Poller(self._ask, uri.seconds("every", 10.0), clock)

    def told(self) -> ToldLimits:
        """All events that are followed, whether or not the server still answers."""
        heard = self._poller.heard
        known = heard.content or _Known({})
        book = self._book(known)
        book.forget(self._clock.unix_s())
        followed = [
            known.events[key] for key, one in book.events.items() if book.opt(one) is OptState.IN
        ]
        waiting = heard.content is None
        return ToldLimits(
            source=self._uri.text,
            contact=SourceContact.WAITING
            if waiting
            else SourceContact.LOST
            if heard.note
            else SourceContact.HEARD,
            spans=counting(followed),
            heard_at_s=heard.at_s,
            note=heard.note or "; ".join(known.notes),
            events=tuple(
                (key, str(book.opt(one)), book.problem(one)) for key, one in book.events.items()
            ),
        )

    def close(self) -> None:
        """Stop listening."""
        self._poller.close()

    def _book(self, known: _Known) -> EventBook:
        book = EventBook(self._site.least_w)
        for key, one in known.events.items():
            book.take(LimitEvent(event_id=key, spans=one.spans, problem=one.problem))
        return book

    def _ask(self) -> _Known:
        rows, pages = self._vtn.events(self._targets)
        self._known = self._taken(list(self._reader.read(rows, self._clock.unix_s())), pages)
        if "report" not in self._uri.options:
            return self._known
        problem = self._answer(self._known)
        return replace(self._known, notes=(*self._known.notes, problem)) if problem else self._known

    def _taken(self, listed: list[EventSpans], pages: int) -> _Known:
        """The new list beside what was known: old news and unreadable news change nothing."""
        before, notes = self._known.events, []
        events: dict[str, EventSpans] = {}
        for one in listed:
            old = before.get(one.event_id)
            events[one.event_id] = one
            if old is not None and old.revision > one.revision and not one.unreadable:
                events[one.event_id] = old
            elif old is not None and one.unreadable and old.spans:
                notes.append(f"event {one.event_id}: {one.problem}; its last version counts")
                events[one.event_id] = old
        gone = set(before) - set(events)
        # Of a list on several pages an event may slip from one to the other while they are read: it
        # is cancelled only once it is missing from two lists in a row.
        waits = gone - self._known.missing if pages > 1 else set()
        events.update({key: before[key] for key in before if key in waits})
        return _Known(events, frozenset(waits), tuple(notes))

    def _answer(self, known: _Known) -> str:
        """Report on every event that is new or changed; why that failed, if it did."""
        book = self._book(known)
        for key, one in known.events.items():
            if (key, one.revision) in self._reported:
                continue
            follows = book.opt(book.events[key]) is OptState.IN
            body = promise_report(
                one.event_id,
                self._uri.options["report"],
                one.spans if follows else (),
                self._site.base_w,
            )
            try:
                self._vtn.report(body)
            except (DeviceError, UserError) as error:
                return f"report on {key}: {error}"
            self._reported.add((key, one.revision))
        return ""


def promise_report(
    event_id: str,
    client: str,
    spans: Iterable[LimitPeriod],
    base_w: float,
    confidence: float | None = None,
) -> dict[str, Any]:
    """What is promised of an event: kilowatts below the base, interval by interval; none: nothing.

    `confidence` is the probability (0 to 1) that it is kept, reported in percent.
    """
    descriptor: dict[str, Any] = {"payloadType": "LOAD_SHED_DELTA_AVAILABLE", "units": "KW"}
    descriptor["objectType"] = "REPORT_PAYLOAD_DESCRIPTOR"
    if confidence is not None:
        descriptor["confidence"] = round(100 * confidence)
    intervals = [
        {
            "id": number,
            "intervalPeriod": _period(span),
            "payloads": [_payload("LOAD_SHED_DELTA_AVAILABLE", base_w - span.limit_w)],
        }
        for number, span in enumerate(sorted(spans))
    ]
    refused = {"id": 0, "payloads": [_payload("LOAD_SHED_DELTA_AVAILABLE", 0.0)]}
    return {
        "eventID": event_id,
        "clientName": client,
        "reportName": f"{client} {event_id}",
        "payloadDescriptors": [descriptor],
        "resources": [{"resourceName": client, "intervals": intervals or [refused]}],
    }


def _payload(kind: str, watts: float) -> dict[str, Any]:
    return {"type": kind, "values": [round(max(0.0, watts) / 1e3, 3)]}


def _period(span: LimitPeriod) -> dict[str, str]:
    start = datetime.fromtimestamp(span.start_s, UTC).isoformat().replace("+00:00", "Z")
    length_s = span.end_s - span.start_s
    endless = length_s == float("inf")
    return {"start": start, "duration": "P9999Y" if endless else f"PT{length_s:.0f}S"}
