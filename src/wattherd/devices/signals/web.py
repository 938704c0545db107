"""`http(s)://HOST/PATH?safe=8kW`: limits as a JSON document that a server keeps up to date.

`{"limits": [{"at": TIME, "limit": LEVEL, "until": TIME}, ...], "valid_until": TIME}`, rows as in
`rows`. The document counts until `valid_until`; without that, for `valid` seconds after the server
last answered. After that the safe level counts, until the server is heard again. Unchanged
documents (by their ETag) are not sent twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.limit_rows import level_w, moment_s, spans
from wattherd.devices.signals.polled import LastAnswer, Poller
from wattherd.devices.wire import web
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.uri import Uri
from wattherd.engine.power.limit_timeline import FOREVER, LimitPeriod
from wattherd.errors import UserError

OPTIONS = web.OPTIONS | {"safe", "every", "valid", "timeout", "query"}
FIELDS = {"schema", "limits", "valid_until"}


@dataclass(frozen=True, slots=True)
class Document:
    """What a server said; `valid_until_s` is None where it does not say."""

    spans: tuple[LimitPeriod, ...]
    valid_until_s: float | None


class WebSignal:
    """A document of limits on a web server.

    Raises:
        UserError: (on opening) the address lacks the safe level or has a bad option.
    """

    def __init__(self, uri: Uri, site: SignalSite, clock: Clock = SYSTEM) -> None:
        """Begin to listen."""
        self._uri, self._site, self._clock = uri, site, clock
        self._safe_w = level_w(uri.text_of("safe"), site.base_w, field="safe")
        self._valid_s = uri.seconds("valid", 60.0)
        self._server = web.server(uri, web.bearer)
        query = uri.options.get("query", "")
        self._target = (uri.path or "/") + (f"?{query}" if query else "")
        self._etag = ""
        self._poller: Poller[Document] = Poller(self._ask, uri.seconds("every", 10.0), clock)

    def told(self) -> ToldLimits:
        """The document's limits while it is valid, the safe level after that."""
        heard, now_s = self._poller.heard, self._clock.unix_s()
        contact = self._contact(heard, now_s)
        known = heard.content.spans if heard.content else ()
        safe = LimitPeriod(0.0, FOREVER, self._safe_w, f"{self._uri.text} (safe level)")
        counts = contact in (SourceContact.HEARD, SourceContact.LOST)
        return ToldLimits(
            source=self._uri.text,
            contact=contact,
            spans=known if counts else (safe,),
            heard_at_s=heard.at_s,
            note=heard.note,
        )

    def close(self) -> None:
        """Stop listening."""
        self._poller.close()

    def _contact(self, heard: LastAnswer[Document], now_s: float) -> SourceContact:
        if heard.content is None or heard.at_s is None:
            return SourceContact.WAITING
        until_s = heard.content.valid_until_s
        if now_s >= (heard.at_s + self._valid_s if until_s is None else until_s):
            return SourceContact.EXPIRED
        return SourceContact.LOST if heard.note else SourceContact.HEARD

    def _ask(self) -> Document | None:
        """A new document, None if it has not changed."""
        known = {"If-None-Match": self._etag} if self._etag else {}
        answer = self._server.request("GET", self._target, more=known)
        if answer.unchanged:
            return None
        document = _document(answer.content, self._target, self._site)
        self._etag = answer.etag
        return document


def _document(content: Any, where: str, site: SignalSite) -> Document:
    if not isinstance(content, dict) or "limits" not in content:
        raise UserError("is no JSON object with `limits`", where=where)
    unknown = sorted(set(content) - FIELDS)
    if unknown:
        raise UserError("no such field", where=where, field=unknown[0])
    until = content.get("valid_until")
    return Document(
        spans(content["limits"], where=where, base_w=site.base_w, start_s=None),
        None if until is None else moment_s(until, where=where, field="valid_until"),
    )
