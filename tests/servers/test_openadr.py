"""The OpenADR 2.0b end node against openleadr's own server (VTN), on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from wattherd.devices.signals.contract import LimitSignal, SignalSite, SourceContact, ToldLimits
from wattherd.devices.signals.registry import open_signal

openleadr = pytest.importorskip("openleadr", reason="openleadr (extra `grid`) is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:It is recommended to use web.AppKey"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SITE = SignalSite(base_w=40_000.0, least_w=10_000.0)
WATTS = openleadr.objects.Measurement(
    name="powerReal", description="RealPower", unit="W", scale="k",
    power_attributes=openleadr.objects.PowerAttributes(hertz=50, voltage=230, ac=True),
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Vtn:
    """openleadr's server in a thread; it may be stopped and started again with its events."""

    def __init__(self, **secure: Any) -> None:
        self.port, self.secure = free_port(), secure
        self.answers: dict[str, str] = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.start()

    def start(self) -> None:
        self.call(self._start())

    async def _start(self) -> None:
        self.server = openleadr.OpenADRServer(
            vtn_id="vtn", http_port=self.port, requested_poll_freq=timedelta(seconds=0.1),
            show_fingerprint=False, show_server_cert_domain=False, **self.secure,
        )  # fmt: skip
        self.server.add_handler("on_create_party_registration", self._register)
        await self.server.run()

    async def _register(self, _info: dict[str, Any]) -> tuple[str, str]:
        return "ven", "registration"

    async def _answered(self, ven_id: str, event_id: str, opt_type: str) -> None:
        self.answers[event_id] = opt_type

    def stop(self) -> None:
        self.call(self.server.stop())

    def close(self) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=10)

    def announce(
        self,
        key: str,
        *payloads: float,
        in_s: float = 60,
        signal: tuple[str, str] = ("LOAD_CONTROL", "x-loadControlCapacity"),
        measurement: Any = None,
    ) -> None:
        """An event of intervals of a minute each."""
        objects = openleadr.objects
        start = datetime.now(UTC) + timedelta(seconds=in_s)
        minute = timedelta(minutes=1)
        intervals = [
            objects.Interval(dtstart=start + number * minute, duration=minute, signal_payload=value)
            for number, value in enumerate(payloads)
        ]
        event = objects.Event(
            event_descriptor=objects.EventDescriptor(
                event_id=key, modification_number=0, market_context="http://grid", priority=1,
                event_status="far",
            ),
            event_signals=[objects.EventSignal(
                intervals=intervals, signal_name=signal[0], signal_type=signal[1],
                signal_id=key, measurement=measurement,
            )],
            targets=[objects.Target(ven_id="ven")],
            response_required="always",
        )  # fmt: skip

        async def add() -> None:
            self.server.add_raw_event(ven_id="ven", event=event, callback=self._answered)

        self.call(add())

    def change(self, key: str, payload: float) -> None:
        async def change() -> None:
            event = self._event(key)
            event.event_signals[0].intervals[0].signal_payload = payload
            event.event_descriptor.modification_number += 1
            self.server.events_updated["ven"] = True

        self.call(change())

    def cancel(self, key: str) -> None:
        async def cancel() -> None:
            self.server.cancel_event("ven", key)

        self.call(cancel())

    def _event(self, key: str) -> Any:
        events = self.server.events["ven"]
        return next(one for one in events if one.event_descriptor.event_id == key)


@pytest.fixture
def vtn() -> Iterator[Vtn]:
    made = Vtn()
    yield made
    made.close()


@contextmanager
def opened(port: int, *, scheme: str = "openadr+http", more: str = "") -> Iterator[LimitSignal]:
    signal = open_signal(
        f"{scheme}://127.0.0.1:{port}?ven=herd&retry=0.2s&timeout=0.5s{more}", SITE
    )
    try:
        yield signal
    finally:
        signal.close()


def until(
    signal: LimitSignal, wanted: Callable[[ToldLimits], bool], patience_s: float = 20.0
) -> ToldLimits:
    end_s = time.monotonic() + patience_s
    while not wanted(found := signal.told()):
        assert time.monotonic() < end_s, found
        time.sleep(0.02)
    return found


def kilowatts(told: ToldLimits) -> list[float]:
    return [round(one.limit_w / 1e3, 3) for one in told.spans]


def test_an_event_to_come_is_known_and_answered_before_it_begins(vtn: Vtn) -> None:
    vtn.announce("far", 0.75, 0.5)
    with opened(vtn.port) as signal:
        told = until(signal, lambda told: bool(told.spans))
    assert kilowatts(told) == [30, 20]
    assert told.contact is SourceContact.HEARD
    first = told.spans[0]
    assert 50 < first.start_s - time.time() < 61
    assert first.end_s - first.start_s == 60
    assert vtn.answers == {"far": "optIn"}


@pytest.mark.long
def test_near_changed_and_cancelled_events(vtn: Vtn) -> None:
    with opened(vtn.port) as signal:
        until(signal, lambda told: told.contact is SourceContact.HEARD)
        vtn.announce("near", 0.75, in_s=-5)
        told = until(signal, lambda told: bool(told.spans))
        assert told.spans[0].holds(time.time())
        vtn.change("near", 0.6)
        until(signal, lambda told: kilowatts(told) == [24])
        vtn.cancel("near")
        until(signal, lambda told: not told.spans)


def test_setpoints_in_kilowatts_and_what_cannot_be_done_is_declined(vtn: Vtn) -> None:
    dispatch = ("LOAD_DISPATCH", "setpoint")
    vtn.announce("setpoint", 12.5, signal=dispatch, measurement=WATTS)
    vtn.announce("too-deep", 0.2)
    vtn.announce("price", 0.3, signal=("ELECTRICITY_PRICE", "price"))
    with opened(vtn.port) as signal:
        told = until(signal, lambda told: len(told.events) == 3)
        assert kilowatts(told) == [12.5]
        end_s = time.monotonic() + 10
        while len(vtn.answers) < 3 and time.monotonic() < end_s:
            time.sleep(0.02)
    assert vtn.answers == {"setpoint": "optIn", "too-deep": "optOut", "price": "optOut"}
    reasons = {key: reason for key, _, reason in told.events}
    assert "10,000 W is the least" in reasons["too-deep"]


@pytest.mark.long
def test_a_lost_server_keeps_its_word_and_is_found_again(vtn: Vtn) -> None:
    vtn.announce("far", 0.75)
    with opened(vtn.port) as signal:
        until(signal, lambda told: bool(told.spans))
        vtn.stop()
        told = until(signal, lambda told: told.contact is SourceContact.LOST)
        assert kilowatts(told) == [30]
        vtn.start()
        vtn.announce("later", 0.5)
        until(signal, lambda told: kilowatts(told) == [20])  # and "far" is on its list no more


@pytest.mark.parametrize("fault", ["garbage", "silence"])
def test_a_server_that_talks_nonsense_or_not_at_all_changes_nothing(vtn: Vtn, fault: str) -> None:
    vtn.announce("far", 0.75)
    with opened(vtn.port) as signal:
        until(signal, lambda told: bool(told.spans))
        vtn.stop()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<oadr" if fault == "garbage" else b""
        with impostor(vtn.port, answer):
            told = until(signal, lambda told: told.contact is SourceContact.LOST)
            assert kilowatts(told) == [30]
        vtn.start()


def test_a_server_that_is_not_there_is_waited_for() -> None:
    with opened(free_port()) as signal:
        told = until(signal, lambda told: bool(told.note))
    assert told.contact is SourceContact.WAITING
    assert "no registration" in told.note


@contextmanager
def impostor(port: int, answer: bytes) -> Iterator[None]:
    """Answers everybody on `port` the same, or nobody if there is nothing to say."""
    listener = socket.create_server(("127.0.0.1", port))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                wire, _ = listener.accept()
            except OSError:
                return
            held.append(wire)
            if answer:
                wire.recv(65_536)
                wire.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for wire in held:
            wire.close()


def pem(folder: Path, authority: Any, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, each in a file."""
    issued = authority.issue_cert("127.0.0.1", common_name=name)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(issued.cert_chain_pems[0].bytes())
    issued.private_key_pem.write_to_path(key)
    return cert, key


def test_messages_are_signed_and_a_foreign_signature_is_not_believed(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")
    from openleadr.utils import certificate_fingerprint

    logging.getLogger("openleadr").setLevel(logging.CRITICAL)
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    (cert, key), (own, own_key) = pem(tmp_path, authority, "vtn"), pem(tmp_path, authority, "ven")
    vens = certificate_fingerprint(own.read_text())
    made = Vtn(
        cert=str(cert), key=str(key), http_cert=str(cert), http_key=str(key), http_ca_file=str(ca),
        ven_lookup=lambda ven_id: {"ven_id": "ven", "registration_id": "registration",
                                   "ven_name": "herd", "fingerprint": vens},
    )  # fmt: skip
    try:
        made.announce("far", 0.75)
        ours = f"&cert={own}&key={own_key}&ca={ca}"
        known = certificate_fingerprint(cert.read_text())
        with opened(
            made.port, scheme="openadr+https", more=f"{ours}&fingerprint={known}"
        ) as signal:
            assert kilowatts(until(signal, lambda told: bool(told.spans))) == [30]
        foreign = "00:" * 9 + "00"
        with opened(
            made.port, scheme="openadr+https", more=f"{ours}&fingerprint={foreign}"
        ) as signal:
            assert "no registration" in until(signal, lambda told: bool(told.note)).note
        with opened(made.port, scheme="openadr+https", more=f"&cert={own}&key={own_key}") as signal:
            assert until(signal, lambda told: bool(told.note)).contact is SourceContact.WAITING
    finally:
        made.close()
