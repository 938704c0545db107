"""The loop beside those who decide: what is at work there ends in its own way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time

import pytest
import trustme

from wattherd.kube.api.access import Access
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.identity import Fixed
from wattherd.kube.api.transport import ApiUnreachable, RequestLimits, Transport


def test_who_is_cancelled_may_still_say_goodbye_before_anything_is_closed() -> None:
    """As a leader gives its lease back: it takes a request, for which the loop must go on."""
    loop, begun, said = LoopThread("test"), threading.Event(), list[str]()

    async def leader() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for word in ("the", "lease", "is", "yours"):
                await asyncio.sleep(0)
                said.append(word)

    try:
        loop.begin(leader())
        assert begun.wait(60)
        loop.quieten()
        assert said == ["the", "lease", "is", "yours"]
    finally:
        loop.close()


@pytest.mark.parametrize("deaf", [1, 2])
def test_who_misses_the_word_to_end_is_told_again(
    monkeypatch: pytest.MonkeyPatch, deaf: int
) -> None:
    """A time limit of the same moment takes the cancellation for its own, and the work goes on."""
    monkeypatch.setattr("wattherd.kube.api.feed._HEARD_WITHIN_S", 0.05)
    loop, begun, missed = LoopThread("test"), threading.Event(), list[int]()

    async def reads() -> None:
        while True:
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if len(missed) == deaf:
                    raise
                missed.append(1)

    reading = loop.begin(reads())
    assert begun.wait(60)
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert reading.cancelled()
    assert len(missed) == deaf


def test_who_never_listens_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattherd.kube.api.feed._HEARD_WITHIN_S", 0.02)
    loop, begun, let_go = LoopThread("test"), threading.Event(), asyncio.Event()

    async def deaf() -> None:
        begun.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    loop.begin(deaf())
    assert begun.wait(60)
    quiet = threading.Thread(target=loop.quieten, daemon=True)
    quiet.start()
    quiet.join(30)
    assert not quiet.is_alive()
    let_go.set()
    loop.close()


def test_under_tls_what_is_written_leaves_before_the_loop_does_anything_else() -> None:
    """A leader asks whether it still leads right before it writes a binding: it must not lie."""
    authority, loop, came = trustme.CA(), LoopThread("test"), threading.Event()
    trusting, ours = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(trusting)
    authority.issue_cert("127.0.0.1").configure_cert(ours)

    def serve(listener: socket.socket) -> None:
        with ours.wrap_socket(listener.accept()[0], server_side=True) as connection:
            while connection.recv(1):
                came.set()

    async def client(port: int) -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"a binding")
        left = came.wait(60)  # in the loop's own thread
        writer.close()
        await writer.wait_closed()
        return left

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            assert loop.run(client(listener.getsockname()[1]))
        finally:
            server.join()
            loop.close()


@pytest.mark.parametrize("answers", [0, 1])
def test_a_server_that_says_no_farewell_does_not_hold_up_the_end(answers: int) -> None:
    """Where it is frozen, TLS waits for its last word; the loop is closed before that comes."""
    authority, loop = trustme.CA(), LoopThread("test")
    trusting, ours = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(trusting)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with ours.wrap_socket(listener.accept()[0], server_side=True) as connection:
            for _ in range(answers):
                connection.recv(65_536)
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        access = Access(f"https://127.0.0.1:{listener.getsockname()[1]}", trusting, Fixed())
        transport = Transport(access, RequestLimits(timeout_s=0.3))
        try:
            loop.run(transport.__aenter__())
            for _ in range(answers):
                assert loop.run(transport.request("GET", "/version")).body == b"{}"
            with pytest.raises(ApiUnreachable):
                loop.run(transport.request("GET", "/version"))
            loop.run(transport.__aexit__(None, None, None))
            began_s = time.monotonic()
            loop.close()
            assert time.monotonic() - began_s < 10
        finally:
            over.set()
            server.join()
