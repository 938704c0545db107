"""The extender's server on a real socket: whole answers, each in one piece."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trustme
from kube_builders import an_extender, pod_json

from wattherd.cli.listening import listen_on
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.serial import SerialExecutor
from wattherd.kube.decide.extender import Grant
from wattherd.kube.decide.extender_wire import BindArgs
from wattherd.kube.live.extender_app import BindResult, ExtenderApp
from wattherd.server.kube.answering import extender_server
from wattherd.testing.builders import exclusive

PATIENCE_S = 60.0
ANSWERS = {b"/healthz": (200, b"ok\n"), b"/nowhere": (404, b"not found\n")}


def question(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: here\r\n\r\n"


async def _bind(args: BindArgs, grant: Grant) -> BindResult:
    del args, grant
    return BindResult()


@pytest.fixture
def port() -> Iterator[int]:
    with serving({}) as port:
        yield port


@contextmanager
def serving(tls: Mapping[str, str]) -> Iterator[int]:
    with closing(SerialExecutor()) as turns, closing(LoopThread("answers")) as loop:
        app = ExtenderApp(an_extender("first-fit"), turns, _bind)
        server, listener = extender_server(app, tls), listen_on("127.0.0.1", 0)
        served = loop.begin(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            served.result(PATIENCE_S)


ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as connection:
    for _ in range(200):
        connection.sendall(sys.argv[2].encode())
        came = connection.recv(1 << 16)
        assert came.endswith(sys.argv[3].encode()), came
        assert came.startswith(b"HTTP/1.1 " + sys.argv[4].encode()), came
"""
"""By a process of its own: a thread beside the server runs only when that lets it."""


@pytest.mark.parametrize("path", ANSWERS, ids=["known", "unknown"])
def test_head_and_body_come_together(port: int, path: bytes) -> None:
    """The first read that brings anything brings all of it."""
    status, wanted = ANSWERS[path]
    asked = (str(port), question(path).decode(), wanted.decode(), str(status))
    done = subprocess.run([sys.executable, "-c", ASK, *asked], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_questions_sent_together_are_answered_in_their_order(port: int) -> None:
    paths = [b"/healthz", b"/nowhere", b"/healthz"] * 20
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(b"".join(map(question, paths)))
        with connection.makefile("rb") as came:
            for path in paths:
                assert int(came.readline().split()[1]) == ANSWERS[path][0]
                head = dict(line.strip().split(b": ") for line in iter(came.readline, b"\r\n"))
                assert came.read(int(head[b"content-length"])) == ANSWERS[path][1]


def test_the_last_answer_of_a_connection_is_whole(port: int) -> None:
    """It is closed right behind it."""
    names = [f"node-{number}" for number in range(5_000)]
    asked = {"Pod": pod_json("p", exclusive(1_000, 1)), "NodeNames": names}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:
        client.request("POST", "/prioritize", json.dumps(asked), {"Connection": "close"})
        scores = json.loads(client.getresponse().read())
    assert [one["Host"] for one in scores] == names


@pytest.mark.long
def test_a_renewed_certificate_is_shown_to_who_comes_then(tmp_path: Path) -> None:
    """First half of it is there, then all, by a link that leads elsewhere, as Secrets are."""
    authority, file = trustme.CA(), tmp_path / "tls.pem"
    names = ["127.0.0.1"]
    for number in range(2):
        made = authority.issue_cert(*names, organization_name=f"number {number}")
        made.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{number}.pem")
    file.symlink_to(tmp_path / "0.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def shown(port: int) -> str:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            certificate = connection.getpeercert()
            assert certificate is not None
            return str(certificate["subject"])

    with serving({"ssl_certfile": str(file)}) as port:
        assert "number 0" in shown(port)
        half = (tmp_path / "1.pem").read_text()[:400]
        (tmp_path / "half.pem").write_text(half)
        link(file, tmp_path / "half.pem")
        time.sleep(6)
        assert "number 0" in shown(port), "it answers on"
        link(file, tmp_path / "1.pem")
        deadline_s = time.monotonic() + PATIENCE_S
        while "number 1" not in shown(port):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


def link(file: Path, to: Path) -> None:
    """In one step."""
    fresh = file.with_suffix(".new")
    fresh.symlink_to(to)
    fresh.replace(file)


def test_under_tls_head_and_body_come_together(tmp_path: Path) -> None:
    """Records are read one by one: the second must be there when the first one is."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with (
        serving({"ssl_certfile": str(tmp_path / "both.pem")}) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
    ):
        client = TlsClient(connection, trusting)
        for _ in range(50):
            head, _, body = client.asked(question(b"/healthz")).partition(b"\r\n\r\n")
            assert (head.split()[1], body) == (b"200", b"ok\n")


class TlsClient:
    """Knows what came with one read of its socket."""

    def __init__(self, connection: socket.socket, trusting: ssl.SSLContext) -> None:
        self._connection = connection
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trusting.wrap_bio(self._came, self._goes, server_hostname="127.0.0.1")
        while not self._greeted():
            self._came.write(connection.recv(1 << 16))

    def _greeted(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._connection.sendall(self._goes.read())
        return True

    def asked(self, question: bytes) -> bytes:
        """All that came with the first read that brought anything of an answer."""
        self._tls.write(question)
        self._connection.sendall(self._goes.read())
        answer = b""
        while not answer:  # session tickets may come first
            self._came.write(self._connection.recv(1 << 16))
            answer = b"".join(iter(self._record, b""))
        return answer

    def _record(self) -> bytes:
        try:
            return self._tls.read(1 << 16)
        except ssl.SSLWantReadError:
            return b""
