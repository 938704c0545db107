"""Where commands listen for HTTP: for the service, a dashboard, and questions about health."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.kube.api.health import Checkup

_LAST_PORT = 65535


def listen_on(host: str, port: int, *, backlog: int = 128) -> socket.socket:
    """A socket that listens; what is accepted from it sends at once.

    An answer is written as head and body, and asyncio has small parts sent at once only on sockets
    made with the protocol's number, which those accepted here are not. Left as they are, the body
    waits for the other side's delayed acknowledgement of the head: 40 ms on Linux.

    Raises:
        OSError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=backlog)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def listen(host: str, port: int, field: str = "--port") -> socket.socket:
    """A socket that listens, as `listen_on` makes it.

    Raises:
        UserError: it cannot be listened on; `field` is the option that would help.
    """
    try:
        return listen_on(host, port)
    except OSError as error:
        problem = f"cannot listen: {error.strerror}"
        raise UserError(problem, where=f"{host}:{port}", hint=f"choose another {field}") from None


def address_of(text: str, field: str) -> tuple[str, int]:
    """Of ADDRESS:PORT.

    Raises:
        UserError: it is none.
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdecimal() or int(port) > _LAST_PORT:
        raise UserError(f"{text!r} is no address", field=field, hint="write ADDRESS:PORT")
    return address.strip("[]"), int(port)


@contextmanager
def answering(
    health: str | None, checkup: Checkup | None = None
) -> Iterator[Callable[[Checkup], None]]:
    """Meanwhile `checkup` can be asked at the address, if there is one; yields what changes it.

    Without one it lives and is not ready: what decides is imported and compiled meanwhile, which
    takes a new container the better part of a minute.

    Raises:
        UserError: it is no ADDRESS:PORT, or cannot be listened on.
    """
    if health is None:
        yield lambda _: None
        return
    from wattherd.kube.api.health import Beginning, HealthServer

    listener = listen(*address_of(health, "--health"), "--health")
    shown = listener.getsockname()[:2]
    click.echo(f"health on http://{shown[0]}:{shown[1]}", err=True)
    server = HealthServer(checkup or Beginning(), listener)
    server.begin()
    try:
        yield server.tell
    finally:
        server.close()


def say(text: str) -> None:
    """Tell people something, if they can be told: who keeps running must not end by its talk.

    Where the log is on a full disk, or its reader has gone, writing fails.
    """
    with contextlib.suppress(OSError, ValueError):  # the latter of a stream that was closed
        click.echo(text, err=True)
