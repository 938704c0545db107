"""`openadr+https://VTN/PATH?ven=NAME`: an OpenADR 2.0b end node (VEN), on the openleadr library.

The library registers, polls, answers and checks signatures; here its events become limits. Where
the grid operator's server (VTN) is lost, what it said last keeps counting, events to come included.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.devices.signals.contract import SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.limit_rows import level_w
from wattherd.devices.signals.openadr2_events import PayloadMeaning, limit_event
from wattherd.devices.wire.clock import SYSTEM, Clock
from wattherd.devices.wire.uri import Uri
from wattherd.engine.power.limit_timeline import EventBook, OptState

OPTIONS = frozenset(
    {"ven", "id", "cert", "key", "ca", "fingerprint", "insecure", "simple", "timeout", "retry"}
)
PATH = "/OpenADR2/Simple/2.0b"
LATE = 3.0
"""Lost after this many polls without an answer."""
FALLBACK_POLL_S = 10.0


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who we are to the server, and how we know it: files and the fingerprint of its key."""

    name: str
    ven_id: str | None
    cert: Path | None
    key: Path | None
    authority: Path | None
    fingerprint: str | None
    unchecked: bool

    def context(self) -> ssl.SSLContext:
        """TLS with the server verified, our certificate shown where there is one."""
        context = ssl.create_default_context(cafile=self.authority)
        if self.unchecked:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


class OpenAdr2:
    """An end node in a thread of its own.

    Raises:
        UserError: (on opening) the address has no name for us, or names files that cannot be used.
    """

    def __init__(self, uri: Uri, site: SignalSite, clock: Clock = SYSTEM) -> None:
        """Begin to register."""
        self._uri, self._clock = uri, clock
        self._url = (
            f"{uri.scheme.partition('+')[2]}://{uri.authority}{uri.path.rstrip('/') or PATH}"
        )
        self._who = _identity(uri)
        self._tls = self._context()
        simple = uri.options.get("simple", "")
        levels_w = [level_w(one, site.base_w, field="simple") for one in simple.split(",") if one]
        self._meaning = PayloadMeaning(site, levels_w)
        self._book = EventBook(site.least_w)
        self._lock = threading.Lock()
        self._heard_at_s: float | None = None
        self._poll_s, self._note = FALLBACK_POLL_S, ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openadr", daemon=True)
        self._thread.start()

    def told(self) -> ToldLimits:
        """All events that are followed, whether or not the server still answers."""
        now_s = self._clock.unix_s()
        with self._lock:
            self._book.forget(now_s)
            return ToldLimits(
                source=self._uri.text,
                contact=self._contact(now_s),
                spans=self._book.spans(),
                heard_at_s=self._heard_at_s,
                note=self._note,
                events=tuple(self._answers()),
            )

    def close(self) -> None:
        """Stop polling; the registration stays, so that a successor finds its events."""
        self._ended.set()
        self._thread.join(timeout=2.0 * self._uri.timeout_s)

    def _contact(self, now_s: float) -> SourceContact:
        if self._heard_at_s is None:
            return SourceContact.WAITING
        late = now_s - self._heard_at_s > LATE * self._poll_s + self._uri.timeout_s
        return SourceContact.LOST if late else SourceContact.HEARD

    def _answers(self) -> list[tuple[str, str, str]]:
        return [
            (key, "cancelled" if one.cancelled else str(self._book.opt(one)),
             self._book.problem(one))
            for key, one in sorted(self._book.events.items())
        ]  # fmt: skip

    def _context(self) -> ssl.SSLContext | None:
        if not self._url.startswith("https"):
            return None
        try:
            return self._who.context()
        except (ssl.SSLError, OSError) as error:
            raise self._uri.error(f"cannot use cert, key or ca: {error}") from None

    def _run(self) -> None:
        asyncio.run(self._stay_registered())

    async def _stay_registered(self) -> None:
        """Register, poll until it fails, and begin again after a while."""
        retry_s = self._uri.seconds("retry", 5.0)
        while not self._ended.is_set():
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001  # the library raises whatever comes
                self._note = f"{type(error).__name__}: {error}"
            await self._wait(retry_s)

    async def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while not self._ended.is_set() and loop.time() < until_s:
            await asyncio.sleep(0.1)

    async def _serve(self) -> None:
        client = self._client()
        import aiohttp

        client.client_session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or False),
            headers={"content-type": "application/xml"},
            timeout=aiohttp.ClientTimeout(total=self._uri.timeout_s),
        )
        try:
            await client.run()
            if client.registration_id is None:
                self._note = f"no registration at {self._url}"
                return
            self._poll_s = client.poll_frequency.total_seconds()
            while not self._ended.is_set() and client.registration_id is not None:
                await asyncio.sleep(0.1)
        finally:
            if not client.client_session.closed:
                await client.stop()

    def _client(self) -> Any:
        from openleadr import OpenADRClient

        # Its import has set the level; what it would say again and again stands in our note once.
        logging.getLogger("openleadr").setLevel(logging.CRITICAL)
        who = self._who
        client = OpenADRClient(
            ven_name=who.name, vtn_url=self._url, ven_id=who.ven_id,
            cert=who.cert and str(who.cert), key=who.key and str(who.key),
            ca_file=who.authority and str(who.authority), vtn_fingerprint=who.fingerprint,
            show_fingerprint=False,
        )  # fmt: skip
        client.add_handler("on_event", self._on_event)
        client.add_handler("on_update_event", self._on_event)
        client.add_hook("after_parse_xml", self._on_message)
        return client

    async def _on_event(self, content: Mapping[str, Any]) -> str:
        event = limit_event(content, self._meaning)
        with self._lock:
            return str(self._book.take(event) if event.event_id else OptState.OUT)

    def _on_message(self, kind: str, content: Mapping[str, Any]) -> None:
        """Every message that was read and, where a fingerprint is given, properly signed."""
        with self._lock:
            self._heard_at_s, self._note = self._clock.unix_s(), ""
            if kind == "oadrDistributeEvent":
                # A list without an event that was on the one before cancels it.
                listed = [one["event_descriptor"]["event_id"] for one in content.get("events", ())]
                self._book.only(listed)


def _identity(uri: Uri) -> _Identity:
    cert, key = uri.file("cert"), uri.file("key")
    if (cert is None) != (key is None):
        raise uri.error("cert and key go together", field="cert" if cert is None else "key")
    return _Identity(
        name=uri.text_of("ven"),
        ven_id=uri.options.get("id"),
        cert=cert,
        key=key,
        authority=uri.file("ca"),
        fingerprint=uri.options.get("fingerprint"),
        unchecked=uri.flag("insecure"),
    )
