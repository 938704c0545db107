"""Every command that talks to a service, with one that is not there or not itself.

The commands are found by walking the tree; the exit codes are those that the reference of the
command line promises: 2 unusable, 3 not there, 4 nobody answers, 5 refused. None shows a traceback.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from wattherd.cli.main import cli, main
from wattherd.library import client

pytestmark = pytest.mark.long

WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("submit", "run"), ("--", "true")),
    **dict.fromkeys(("explain", "show", "logs", "cancel", "pause", "resume", "rerun"), ("j-1",)),
    "attach": ("j-1",),
    "exec": ("j-1", "true"),
    "edit": ("j-1", "--priority", "low"),
    **dict.fromkeys(("gpus drain", "gpus undrain"), ("0",)),
    **dict.fromkeys(("queues remove", "queues stop", "queues start"), ("q",)),
    "queues set": ("q", "--maximum", "50"),
    "queues add": ("q", "--under", "root"),
    "queues apply": ("queues.yaml",),
    **dict.fromkeys(("search show", "search cancel", "search pause", "search resume"), ("lr",)),
    "tenants set": ("a", "--gpus", "4"),
    "token revoke": ("abc",),
    "power set": ("40kW",),
    "power promise": ("--limit", "6kW"),
    "power swings": ("--job", "j-1"),
    "power delivery": (
        "--start",
        "2026-01-01T00:00:00Z",
        "--end",
        "2026-01-01T01:00:00Z",
        "--limit",
        "6kW",
    ),
}
"""What a command cannot do without."""
LEFT_OUT = {"context": "asks nobody", "top": "takes the screen; `watch` and it begin alike"}
HEAD = "HTTP/1.1 {} X\r\ncontent-type: {}\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n{}"


def commands(
    at: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), at
    if isinstance(at, click.Group):
        for name in at.list_commands(click.Context(at)):
            found = at.get_command(click.Context(at), name)
            assert found is not None
            yield from commands(found, (*path, name))


ASKING = sorted(
    name
    for name, one in commands()
    if any("--server" in option.opts for option in one.params) and name not in LEFT_OUT
)


def said(status: int, body: str, kind: str = "application/json", head: str = "") -> bytes:
    return HEAD.format(status, kind, len(body), head, body).encode()


ANSWERS: dict[str, tuple[bytes | None, tuple[int, ...]]] = {
    "cut off at once": (b"", (4,)),
    "cut off amid the head": (b"HTTP/1.1 200 OK\r\ncontent-le", (2, 4)),
    "cut off amid the body": (said(200, '{"jobs": ')[:-3], (4,)),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", (4,)),
    "another program": (said(200, "<html>hello</html>", "text/html"), (2,)),
    "a proxy's page": (said(502, "<html>bad gateway</html>", "text/html"), (2, 4)),
    "an error of its own": (said(500, "Internal Server Error", "text/plain"), (2, 4)),
    "no token": (said(401, '{"error": "needs a token", "hint": "x"}'), (5,)),
    "not allowed": (said(403, '{"error": "not yours"}'), (5,)),
    "not there": (said(404, '{"error": "no such thing", "hint": "y"}'), (3,)),
    "unusable": (said(422, '{"error": "is no number", "field": "gpus"}'), (2,)),
    "too many": (said(429, '{"error": "too many"}'), (5,)),
    "busy": (said(503, '{"error": "the store is away"}'), (4,)),
    "silent": (None, (4,)),
}
NOT_JSON = {"logs", "watch"}
"""Whatever comes is the text that was asked for, or news of another shape."""


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that says the same to everybody; None: nothing, ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    held: list[socket.socket] = []

    def serve() -> None:
        while not over.is_set():
            try:
                one, _ = listener.accept()
            except OSError:
                return
            if answer is None:
                held.append(one)
                continue
            with one, contextlib.suppress(OSError):
                one.settimeout(5)
                one.recv(65_536)
                one.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for one in held:
            one.close()


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    for name in ("WATTHERD_SERVER", "WATTHERD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "queues.yaml").write_text("queues: {name: root}\n")

    def run(name: str, server: str) -> tuple[int, str]:
        words = [*name.split(), *("--server", server), *WORDS.get(name, ())]
        if name == "watch":
            words.append("--past")
        with pytest.raises(SystemExit) as left:
            main(words)
        return int(left.value.code or 0), capfd.readouterr().err

    return run


def test_there_are_commands_that_ask() -> None:
    known = {"submit", "queue", "power set", "queues apply", "token list", "watch", "audit"}
    assert known <= set(ASKING)


@pytest.mark.parametrize("fault", sorted(ANSWERS))
def test_no_command_falls_over_a_service_that_is_not_itself(
    typed: Callable[..., tuple[int, str]], fault: str
) -> None:
    answer, codes = ANSWERS[fault]
    wrong = []
    with answering(answer) as server:
        for name in ASKING:
            if fault == "silent" and name not in ("queue", "submit", "power"):
                continue  # each waits out its time
            if name in NOT_JSON and fault in ("another program", "cut off amid the head"):
                continue
            code, err = typed(name, server)
            last = err.strip().split("\n")[-1]
            fine = code in codes and last.startswith("wattherd: error: ") and "Traceback" not in err
            if not fine:
                wrong.append((name, code, err))
    assert wrong == []


def test_nobody_there_is_told_with_a_way_out(typed: Callable[..., tuple[int, str]]) -> None:
    wrong = []
    for name in ASKING:
        code, err = typed(name, "http://127.0.0.1:1")
        if (code, "hint: start one with `wattherd serve`" in err) != (4, True):
            wrong.append((name, code, err))
    assert wrong == []


@pytest.mark.parametrize("server", ["nonsense", "ftp://x", "http://", "http://x:99999", "http://["])
def test_what_is_no_address_is_refused(typed: Callable[..., tuple[int, str]], server: str) -> None:
    for name in ASKING:
        code, err = typed(name, server)
        assert (code, "Traceback" in err, "hint:" in err) == (2, False, True), (name, err)
