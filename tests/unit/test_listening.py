"""Sockets of servers: no part of an answer waits for the other side's acknowledgement."""

from __future__ import annotations

import socket

import pytest

from wattherd.cli.listening import listen_on


def test_accepted_connections_send_small_parts_at_once() -> None:
    with (
        listen_on("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_of_ipv6_is_listened_on_as_such() -> None:
    try:
        listener = listen_on("::1", 0)
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    with listener:
        assert listener.family is socket.AF_INET6
