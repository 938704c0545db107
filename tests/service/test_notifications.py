"""Users are told of their jobs: by a real mail server, and a real receiver of webhooks."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from service.serving import Serving, free_port, until
from wattherd.devices.wire.http_client import MayNotConnect
from wattherd.engine.jobs.lifecycle import FINAL
from wattherd.errors import UserError
from wattherd.model.event import Woke
from wattherd.server.notify.channels import guard
from wattherd.server.notify.notifier import notices_of
from wattherd.store.entry import JournalEntry
from wattherd.workload.job_file import validated_job
from wattherd.workload.notify_spec import ENDINGS

SECRET = b"only-the-two-of-us"
ALL = ["started", "preempted", "succeeded", "failed", "timed_out", "cancelled"]


class Receiver:
    """Takes webhooks on loopback; may be ended and begun again at the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.got: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers: list[int] = []
        """Codes of the next answers; then 204."""
        self.silent_s = 0.0
        self._server: http.server.ThreadingHTTPServer | None = None

    def begin(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(outer.silent_s)
                body = self.rfile.read(int(self.headers["content-length"]))
                code = outer.answers.pop(0) if outer.answers else 204
                if code == 204:
                    outer.bodies.append(body)
                    outer.heads.append({k.lower(): v for k, v in self.headers.items()})
                    outer.got.append(json.loads(body))
                self.send_response(code)
                self.send_header("content-length", "0")
                if code == 302:
                    self.send_header("location", "http://169.254.169.254/")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.block_on_close = False  # one that is silent is not waited for
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?team=vision"

    def whats(self, job: str) -> list[str]:
        return [one["what"] for one in self.got if one["job"]["id"] == job]


class Mailbox:
    """What a mail server has taken; it knows no `gone@`."""

    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it so
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address.startswith("gone@"):
            return "550 no such person"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, _server: Any, _session: Any, envelope: Any
    ) -> str:
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    made.begin()
    yield made
    made.end()


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[tuple[Mailbox, dict[str, Any]]]:
    """A mail server with TLS and a password, and the settings to reach it."""
    authority, box = trustme.CA(), Mailbox()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "mail.yaml").write_text("username: herd\npassword: open-sesame\n")

    def known(_server: Any, _session: Any, _envelope: Any, _how: str, data: Any) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"herd", b"open-sesame"))

    controller = Controller(
        box, "127.0.0.1", free_port(), tls_context=tls, authenticator=known, auth_required=True,
        require_starttls=True,
    )  # fmt: skip
    controller.start()
    smtp = {"host": "127.0.0.1", "port": controller.port, "from": "herd@gpus.example",
            "ca_file": str(tmp_path / "ca.pem"), "credentials": str(tmp_path / "mail.yaml"),
            "domains": ["example.org"]}  # fmt: skip
    yield box, smtp
    controller.stop()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path / "state", "--config", str(tmp_path / "serve.yaml"))
    yield serving
    serving.end()


def begin(service: Serving, **notify: Any) -> None:
    config = service.state.with_name("serve.yaml")
    secret = config.with_name("secret")
    secret.write_bytes(SECRET + b"\n")
    known = {"allow": ["127.0.0.0/8"], "secret_file": str(secret), "timeout_s": 3.0}
    config.write_text(yaml.safe_dump({"notify": {**known, **notify}}))
    service.begin()
    service.ready()


def undelivered(service: Serving, job: str) -> str:
    return str((service.ask(f"jobs/{job}") or {}).get("undelivered", ""))


@pytest.mark.long
def test_a_webhook_hears_of_each_end_signed_and_only_of_what_was_asked_for(
    service: Serving, receiver: Receiver
) -> None:
    begin(service, url="https://gpus.example/")
    hook = {"webhook": receiver.url, "on": ALL}
    well = service.submit("true", name="well", notify=hook)
    bad = service.submit("exit 3", notify=hook)
    late = service.submit("sleep 60", time={"limit": "1s"}, notify=hook, checkpoint={"grace": "0s"})
    quiet = service.submit("true", notify={"webhook": receiver.url, "on": ["failed"]})
    until(lambda: sorted(receiver.whats(well)) == ["started", "succeeded"])
    until(lambda: sorted(receiver.whats(bad)) == ["failed", "started"])
    until(lambda: sorted(receiver.whats(late)) == ["started", "timed_out"])
    service.wait_for(quiet, "Succeeded")
    end = next(one for one in receiver.got if one["job"]["id"] == bad and one["what"] == "failed")
    assert (end["exit_code"], end["attempt"]) == (3, 1)
    assert end["url"] == f"https://gpus.example/jobs/{bad}"
    assert end["schema"] == "wattherd.notification/1"
    assert receiver.whats(quiet) == []
    for head, body in zip(receiver.heads, receiver.bodies, strict=True):
        signed = head["x-wattherd-timestamp"].encode() + b"." + body
        right = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
        assert head["x-wattherd-signature"] == f"sha256={right}"


@pytest.mark.long
def test_receiver_and_service_are_killed_and_each_is_told_at_least_once(
    service: Serving, receiver: Receiver
) -> None:
    begin(service)
    receiver.end()
    hook = {"webhook": receiver.url}
    before = [service.submit("true", notify=hook) for _ in range(3)]
    for job in before:
        service.wait_for(job, "Succeeded")
    until(lambda: "tried again" in undelivered(service, before[0]))
    assert "warning: notification" in service.call("show", before[0]).stdout
    service.kill()
    service.begin()
    service.ready()
    until(lambda: "may come twice" in service.errors.read_text())
    receiver.begin()
    after = service.submit("true", notify=hook)
    until(lambda: all(receiver.whats(job) for job in (*before, after)))
    until(lambda: undelivered(service, before[0]) == "")
    # What was settled is not told once more by the next life.
    count = len(receiver.got)
    time.sleep(1.5)
    assert service.process is not None
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(30)
    service.begin()
    service.ready()
    last = service.submit("true", notify=hook)
    until(lambda: receiver.whats(last))
    assert len(receiver.got) == count + 1
    assert len({one["id"] for one in receiver.got}) == len(receiver.got)


@pytest.mark.long
def test_what_a_receiver_answers_decides_and_nobody_else_waits(
    service: Serving, receiver: Receiver
) -> None:
    begin(service)
    receiver.answers = [503]
    again = service.submit("true", notify={"webhook": receiver.url})
    until(lambda: receiver.whats(again) == ["succeeded"])
    for code in (404, 302):
        receiver.answers = [code]
        job = service.submit("true", notify={"webhook": receiver.url})
        until(lambda job=job: "given up" in undelivered(service, job))
        assert str(code) in undelivered(service, job)
    silent, quick = Receiver(), receiver
    silent.silent_s = 30.0
    silent.begin()
    try:
        stuck = service.submit("true", notify={"webhook": silent.url})
        service.wait_for(stuck, "Succeeded")
        fine = service.submit("true", notify={"webhook": quick.url})
        until(lambda: quick.whats(fine) == ["succeeded"], 20.0)
        until(lambda: "within 3 s" in undelivered(service, stuck))
    finally:
        silent.end()


@pytest.mark.long
def test_a_webhook_reaches_neither_metadata_nor_this_service(
    service: Serving, receiver: Receiver
) -> None:
    begin(service)
    own = f"http://127.0.0.1:{service.port}/api/v1/jobs"
    for url, why in (
        (own, "this service itself"),
        ("http://169.254.169.254/latest/meta-data/", "not a public address"),
        ("http://[::ffff:10.0.0.1]/", "not a public address"),
    ):
        job = service.submit("true", notify={"webhook": url})
        until(lambda job=job: undelivered(service, job))
        told = undelivered(service, job)
        assert why in told
        assert "given up" in told
    assert receiver.got == []


@pytest.mark.long
def test_a_person_gets_a_mail_by_tls_with_a_password(
    service: Serving, mailbox: tuple[Mailbox, dict[str, Any]]
) -> None:
    box, smtp = mailbox
    begin(service, smtp=smtp)
    done = service.call("submit", "--notify", "ann@example.org", "--notify-on", "failed",
                        "-n", "resnet", "--", "sh", "-c", "exit 7")  # fmt: skip
    assert done.returncode == 0, done.stderr
    until(lambda: box.mails)
    (mail,) = box.mails
    assert mail["To"] == "ann@example.org"
    assert mail["Subject"].endswith("resnet: failed")
    assert "exit code: 7" in str(mail.get_payload())
    gone = service.submit("true", notify={"email": "gone@example.org"})
    until(lambda: "no such person" in undelivered(service, gone))
    assert "given up" in undelivered(service, gone)
    told = service.ask("jobs", {"run": "true", "notify": {"email": "a@elsewhere.example"}})
    assert told["code"] == 400
    assert "no mail is sent to elsewhere.example" in told["error"]


@pytest.mark.long
def test_without_a_mail_server_a_job_that_wants_mail_is_refused(service: Serving) -> None:
    begin(service)
    done = service.call("submit", "--notify", "ann@example.org", "--", "true")
    assert done.returncode != 0
    assert "this service sends no mail" in done.stderr
    assert "notify.smtp" in done.stderr


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.1.2.3", "192.168.0.1", "::1", "fe80::1%eth0", "fd00::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0", "224.0.0.1",
     "100.100.100.200"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused_unless_listed(address: str) -> None:
    with pytest.raises(MayNotConnect):
        guard("hooks.example", 80, (), ())(address)
    guard("hooks.example", 80, ["hooks.example"], ())(address)
    with pytest.raises(MayNotConnect):
        guard("hooks.example", 80, ["192.0.2.0/24", "other.example"], ())(address)


def test_a_public_address_and_a_listed_network_are_reached() -> None:
    guard("hooks.example", 443, (), ())("93.184.215.14")
    guard("hooks.example", 443, ["10.0.0.0/8"], ())("10.1.2.3")


@pytest.mark.parametrize(
    "notify",
    [{}, {"on": ["failed"]}, {"webhook": "ftp://x"}, {"webhook": "http://u:p@x/"},
     {"webhook": "http://x/\r\nevil: 1"}, {"email": "a@b\r\nBcc: c@d"}, {"email": "a,b@c"},
     {"email": "a@b.org", "on": []}, {"email": "a@b.org", "on": ["someday"]}],
)  # fmt: skip
def test_a_wish_that_cannot_be_meant_is_refused(notify: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        validated_job({"run": "true", "notify": notify}, "job.yaml")
    assert "notify" in error.value.field


def test_there_is_a_word_for_every_end_of_a_job() -> None:
    """A new final state would otherwise be told to nobody."""
    entry = JournalEntry(seq=7, event=Woke(at_s=1.0, key="x"), by="system")
    told = [
        [
            one.what
            for one in notices_of(entry, [{"type": "FinishJob", "job_id": "j-1", "state": s}])
        ]
        for s in map(str, FINAL)
    ]
    assert sorted(word for words in told for word in words) == sorted(ENDINGS)
