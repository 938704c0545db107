"""Where commands listen for HTTP."""

from __future__ import annotations

import socket


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
