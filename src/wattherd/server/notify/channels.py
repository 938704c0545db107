"""How one notification is sent: a POST with JSON, or a mail.

Mail goes by the standard library (`smtplib`, `email`): one message at a time, in a thread of its
own, is all that is needed; `aiosmtplib` would bring an event loop and nothing that is missing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattherd.devices.wire.credentials import read_credentials
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind
from wattherd.devices.wire.http_client import (
    HttpClient,
    HttpRequest,
    HttpRules,
    MayNotConnect,
    NoAnswer,
    origin_of,
)
from wattherd.errors import UserError
from wattherd.server.settings.notify_settings import NotifySettings, SmtpSettings

# --- Which addresses a webhook may reach: a user names it, and the service asks from where it
# stands.
#
# The service may reach what its users may not: itself, the cloud's metadata, machines behind the
# firewall. So public addresses only, unless the operator lists more; this service never. What
# counts is the address that is connected to, not the name, which may stand for another one a moment
# later.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The 32 bits before an IPv4 address (RFC 5214)."""
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "::/96",  # "IPv4-compatible", given up (RFC 4291)
            "64:ff9b:1::/48",  # translated to IPv4 by a rule of the site (RFC 8215)
            "100::/64",  # discarded
            "2001::/32",  # Teredo: two IPv4 addresses, one of them in disguise (RFC 4380)
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing within a site
            "fec0::/10",  # site-local, given up (RFC 3879)
            "168.63.129.16/32",  # Azure's own services, from within any of its machines
            "192.0.0.0/24",  # protocols; Oracle's cloud has its metadata there
            "192.88.99.0/24",  # relays of 6to4, given up (RFC 7526)
        ),
    )
)
"""Networks that `is_global` of some Python takes for public and that are not for users."""


def guard(
    host: str, port: int, allow: Collection[str], own_ports: Collection[int]
) -> Callable[[str], None]:
    """What refuses, by `MayNotConnect`, an address that `host` may not stand for."""
    networks = [ipaddress.ip_network(one, strict=False) for one in allow if _is_network(one)]
    named = host.lower().rstrip(".") in {one.lower() for one in allow}

    def check(text: str) -> None:
        for address in _faces(ipaddress.ip_address(text.partition("%")[0])):
            ours = _is_ours(address)
            if port in own_ports and ours:
                raise MayNotConnect(f"{address} port {port} is this service itself")
            listed = named or any(address in one for one in networks)
            if not listed and (ours or not _is_public(address)):
                raise MayNotConnect(
                    f"{address} is not a public address, and not listed in `notify.allow`"
                )

    return check


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _faces(address: Address) -> tuple[Address, ...]:
    """The address and the IPv4 ones within it that a gateway may take it for; each must do."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:  # the very same, written otherwise
        return (address.ipv4_mapped,)
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    carries_last = address in NAT64 or (int(address) >> 32) & 0xFFFF_FFFF in ISATAP
    inner = [address.sixtofour, *(address.teredo or ()), last if carries_last else None]
    return (address, *(one for one in inner if one is not None))


def _is_public(address: Address) -> bool:
    if (
        not address.is_global
        or address.is_multicast
        or (address.is_reserved and address not in NAT64)
    ):
        return False
    return not any(address in one for one in NOT_PUBLIC)


def _is_ours(address: Address) -> bool:
    """Whether this machine has the address."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


LATER = frozenset({408, 425, 429})
"""Refusals that may be over later; other ones of the kind 4xx would come again."""


MOST_TOLD = 200
"""Characters kept of a problem: a receiver may answer with as many as it likes."""


class NotSent(Exception):
    """It was not taken; `final` if it would not be the next time either.

    The problem may be a stranger's words. They are shown in terminals and stand in the log, so
    there are only printable ASCII characters in it, and not many.
    """

    def __init__(self, problem: str, *, final: bool = False) -> None:
        """Keep both."""
        super().__init__(_printable(problem))
        self.final = final


@dataclass(frozen=True, slots=True)
class Channels:
    """Sends by the operator's settings; `own_ports` are those of this service."""

    settings: NotifySettings
    own_ports: Collection[int] = ()

    def send(self, kind: str, target: str, document: Mapping[str, Any]) -> None:
        """One notification, within the time limit.

        Raises:
            NotSent: nobody has taken it.
        """
        if kind == "webhook":
            self._post(target, document)
        else:
            self._mail(target, document)

    def _post(self, url: str, document: Mapping[str, Any]) -> None:
        origin, parts = origin_of(url), urlsplit(url)
        may = guard(origin.host, origin.port, self.settings.allow, self.own_ports)
        rules = HttpRules(timeout_s=self.settings.timeout_s, most_bytes=65_536, may_connect=may)
        body = json.dumps(document, sort_keys=True).encode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = {"Content-Type": "application/json", "X-Wattherd-Id": document["id"]}
        request = HttpRequest("POST", target, {**head, **self._signed(body)}, body)
        try:
            answer = HttpClient(origin, rules).ask(request)
        except NoAnswer as error:
            raise NotSent(str(error), final=error.trouble is DeviceErrorKind.REFUSED) from None
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            final = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status not in LATER
            raise NotSent(f"answers {answer.status} {answer.reason}", final=final)

    def _signed(self, body: bytes) -> dict[str, str]:
        path = self.settings.secret_file
        if path is None:
            return {}
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise NotSent(f"secret in {path}: {error.strerror}") from None
        stamp = str(int(time.time()))
        return {"X-Wattherd-Timestamp": stamp,
                "X-Wattherd-Signature": f"sha256={signature(secret, stamp, body)}"}  # fmt: skip

    def _mail(self, address: str, document: Mapping[str, Any]) -> None:
        smtp = self.settings.smtp
        if smtp is None:
            raise NotSent("no mail server is configured (`notify.smtp`)", final=True)
        try:
            with _opened(smtp, self.settings.timeout_s) as server:
                server.send_message(mail_of(smtp, address, document))
        except smtplib.SMTPResponseException as error:
            words: str | bytes = error.smtp_error
            told = words.decode(errors="replace") if isinstance(words, bytes) else words
            permanent = error.smtp_code >= HTTPStatus.INTERNAL_SERVER_ERROR
            raise NotSent(f"mail server: {error.smtp_code} {told}", final=permanent) from None
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = next(iter(error.recipients.values()))
            final = code >= HTTPStatus.INTERNAL_SERVER_ERROR
            raise NotSent(
                f"mail server: {code} {reply.decode(errors='replace')}", final=final
            ) from None
        except (OSError, smtplib.SMTPException, DeviceError, ValueError) as error:
            raise NotSent(f"mail server {smtp.host}: {error}") from None


def _printable(text: str) -> str:
    """One line without anything that a terminal would obey."""
    # Cut twice: the whole is not gone through, and what is left after that is no more than it says.
    words = " ".join(text[: 4 * MOST_TOLD].split())
    shown = "".join(one if " " <= one <= "~" else "?" for one in words)
    return shown if len(shown) <= MOST_TOLD else f"{shown[: MOST_TOLD - 3]}..."


def signature(secret: bytes, stamp: str, body: bytes) -> str:
    """HMAC-SHA256 of the time stamp, a dot, and the body, in hexadecimal digits."""
    return hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _opened(smtp: SmtpSettings, timeout_s: float) -> smtplib.SMTP:
    tls = ssl.create_default_context(cafile=str(smtp.ca_file) if smtp.ca_file else None)
    if smtp.tls == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            smtp.host, smtp.port, timeout=timeout_s, context=tls
        )
    else:
        server = smtplib.SMTP(smtp.host, smtp.port, timeout=timeout_s)
    try:
        if smtp.tls == "starttls":
            server.starttls(context=tls)
        if smtp.credentials is not None:
            known = read_credentials(Path(smtp.credentials))
            server.login(known.username, known.password.get_secret_value())
    except BaseException:
        server.close()
        raise
    return server


def mail_of(smtp: SmtpSettings, address: str, document: Mapping[str, Any]) -> EmailMessage:
    """The notification as a mail; one that is sent twice has the same Message-ID."""
    job, message = document["job"], EmailMessage()
    what = str(document["what"]).replace("_", " ")
    message["From"], message["To"] = smtp.sender, address
    message["Subject"] = f"{job['id']} {job['name']}".strip() + f": {what}"
    message["Message-ID"] = f"<{document['id']}@{smtp.sender.rpartition('@')[2] or 'wattherd'}>"
    message["Auto-Submitted"] = "auto-generated"
    rows = {"time": document["at"], "user": job["user"], "queue": job["queue"],
            "attempt": document["attempt"], "exit code": document["exit_code"],
            "why": document["why"], "page": document["url"]}  # fmt: skip
    known = (f"{name}: {value}" for name, value in rows.items() if value not in (None, ""))
    message.set_content("\n".join([f"{job['id']} {job['name']}: {what}", "", *known]) + "\n")
    return message


def check_notify(settings: NotifySettings, asked: Mapping[str, Any] | None) -> None:
    """What can be told of a wish when a job is handed in.

    Raises:
        UserError: mail cannot be sent here, or not to that address.
    """
    address = None if asked is None else asked.get("email")
    if address is None:
        return
    if settings.smtp is None:
        hint = "an operator sets `notify.smtp`; a `webhook` needs nothing"
        raise UserError("this service sends no mail", field="notify.email", hint=hint)
    domain = address.rpartition("@")[2].lower()
    if settings.smtp.domains and domain not in {one.lower() for one in settings.smtp.domains}:
        hint = f"one of {', '.join(settings.smtp.domains)}"
        raise UserError(f"no mail is sent to {domain}", field="notify.email", hint=hint)
