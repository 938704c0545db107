"""Fetching against a real HTTP server on this machine, well and badly behaved."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.workload import fetch as fetching
from wattherd.workload.fetch import FetchTimeouts, fetch
from wattherd.workload.public_files import (
    LOCK_FILE,
    PUBLIC_FILES,
    FileCondition,
    PublicFile,
    condition,
    data_directory,
    public_file,
)

pytest.importorskip("pooch", reason="the extra 'fetch' is not installed")

CONTENT = b"name,cpu_milli\n" + b"pod,1000\n" * 5000
HASTE = FetchTimeouts(connect_s=1.0, stall_s=0.3, file_s=1.0)

Behaviour = Callable[[BaseHTTPRequestHandler], None]


def a_file(*, known: bool = True, content: bytes = CONTENT) -> PublicFile:
    digest = hashlib.sha256(content).hexdigest()
    return PublicFile(
        name="tiny",
        kind="pods",
        file="tiny.csv",
        size_bytes=len(content),
        sha256=digest if known else None,
    )


def send(content: bytes, handler: BaseHTTPRequestHandler, *, says: int | None = None) -> None:
    """Answer 200 with `content`, claiming `says` bytes (default: the truth)."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content) if says is None else says))
    handler.end_headers()
    handler.wfile.write(content)


def send_without_length(content: bytes, handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)


def stall(handler: BaseHTTPRequestHandler) -> None:
    """Send half, then nothing for longer than anyone waits here."""
    send(CONTENT[: len(CONTENT) // 2], handler, says=len(CONTENT))
    time.sleep(1.0)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Never stall, never come to an end."""
    handler.send_response(200)
    handler.end_headers()
    for start in range(0, len(CONTENT), 2000):
        handler.wfile.write(CONTENT[start : start + 2000])
        time.sleep(0.1)


class Server:
    """An HTTP server whose behaviour a test sets; counts the requests it got."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = partial(send, CONTENT)
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                try:
                    server.behaviour(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/csv"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Server()
    yield running
    running.stop()


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*"))


def test_a_good_file_is_fetched_whole_and_readable_by_others(
    server: Server, tmp_path: Path
) -> None:
    got = fetch(a_file(), tmp_path / "a" / "b", url=server.url)
    assert got.path.read_bytes() == CONTENT
    assert got.path.stat().st_mode & 0o777 == 0o644
    assert got.before is FileCondition.MISSING
    assert server.asked == ["/csv/tiny.csv"]
    assert left_in(tmp_path / "a" / "b") == ["tiny.csv"]


def test_a_slash_after_the_address_makes_no_difference(server: Server, tmp_path: Path) -> None:
    fetch(a_file(), tmp_path, url=f"{server.url}/")
    assert server.asked == ["/csv/tiny.csv"]


def test_a_file_that_is_here_needs_no_network(server: Server, tmp_path: Path) -> None:
    fetch(a_file(), tmp_path, url=server.url)
    server.stop()
    assert fetch(a_file(), tmp_path, url=server.url).before is FileCondition.VERIFIED


def test_a_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_bytes(CONTENT[::-1])
    assert fetch(a_file(), tmp_path, url=server.url).before is FileCondition.DIFFERS
    assert (tmp_path / "tiny.csv").read_bytes() == CONTENT


def _answer(status: int, handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(status)


def _redirect_for_ever(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


BAD_SERVERS: dict[str, tuple[Behaviour, str]] = {
    "other content of the same size": (partial(send, CONTENT[::-1]), "another SHA-256"),
    "not found": (partial(_answer, 404), "404"),
    "server trouble": (partial(_answer, 503), "503"),
    "cut short of its stated length": (
        partial(send, CONTENT[:20_000], says=len(CONTENT)),
        "the connection broke off",
    ),
    "cut short without a stated length": (
        partial(send_without_length, CONTENT[:20_000]),
        "sent 20,000 instead of 45,015 bytes",
    ),
    "too long": (partial(send, CONTENT * 3), "more than 45,015 bytes"),
    "empty": (partial(send, b""), "sent 0 instead of"),
    "stalls half way": (stall, "stopped sending"),
    "takes for ever": (trickle, "not complete after 1 s"),
    "redirects for ever": (_redirect_for_ever, "TooManyRedirects"),
    "hangs up at once": (lambda handler: handler.connection.close(), "the server cannot be"),
}


@pytest.mark.parametrize("story", BAD_SERVERS)
def test_a_bad_answer_is_one_line_and_leaves_nothing(
    story: str, server: Server, tmp_path: Path
) -> None:
    server.behaviour, said = BAD_SERVERS[story]
    with pytest.raises(UserError, match=said) as refused:
        fetch(a_file(), tmp_path, url=server.url, patience=HASTE)
    line = refused.value.line()
    assert "\n" not in line
    assert f"{server.url}/tiny.csv" in line
    assert left_in(tmp_path) == []


def test_a_bad_answer_leaves_the_old_file_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_bytes(b"old")
    server.behaviour = partial(_answer, 404)
    with pytest.raises(UserError):
        fetch(a_file(), tmp_path, url=server.url)
    assert (tmp_path / "tiny.csv").read_bytes() == b"old"


def test_a_server_that_is_gone_is_named_with_a_way_out(server: Server, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(UserError, match="cannot be reached") as refused:
        fetch(a_file(), tmp_path, url=server.url, patience=HASTE)
    assert f"put the file there yourself: {tmp_path / 'tiny.csv'}" in refused.value.line()


@pytest.mark.parametrize("url", ["", "data", "file:///etc", "ftp://a/b", "http://", "/srv"])
def test_only_http_addresses_are_taken(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an http"):
        fetch(a_file(), tmp_path, url=url)


def test_an_unresolvable_address_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(UserError) as refused:
        fetch(a_file(), tmp_path, url=f"http://{'x' * 70}.invalid", patience=HASTE)
    assert "\n" not in refused.value.line()
    assert left_in(tmp_path) == []


def test_without_a_checksum_nothing_is_fetched_unasked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checksum is known") as refused:
        fetch(a_file(known=False), tmp_path, url=server.url)
    assert "--unverified" in refused.value.line()
    assert server.asked == []


def test_what_is_taken_unverified_is_recorded_for_sha256sum(server: Server, tmp_path: Path) -> None:
    got = fetch(a_file(known=False), tmp_path, url=server.url, unverified=True)
    assert got.path.read_bytes() == CONTENT
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / LOCK_FILE).read_text() == f"{digest}  tiny.csv\n"
    assert condition(a_file(known=False), tmp_path) is FileCondition.LOCKED


def test_what_was_recorded_is_held_to(server: Server, tmp_path: Path) -> None:
    entry = a_file(known=False)
    fetch(entry, tmp_path, url=server.url, unverified=True)
    (tmp_path / "tiny.csv").unlink()
    assert fetch(entry, tmp_path, url=server.url).before is FileCondition.MISSING
    (tmp_path / "tiny.csv").unlink()
    server.behaviour = partial(send, CONTENT[::-1])
    with pytest.raises(UserError, match="another SHA-256") as refused:
        fetch(entry, tmp_path, url=server.url, unverified=True)
    assert str(tmp_path / LOCK_FILE) in refused.value.line()
    assert left_in(tmp_path) == [LOCK_FILE]


def test_a_file_put_there_by_hand_is_recorded_without_network(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_bytes(CONTENT)
    got = fetch(a_file(known=False), tmp_path, url="http://nowhere.invalid", unverified=True)
    assert got.before is FileCondition.UNVERIFIED
    assert condition(a_file(known=False), tmp_path) is FileCondition.LOCKED


def test_recording_keeps_what_was_recorded_before(server: Server, tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text(f"{'0' * 64}  zebra.csv\n")
    fetch(a_file(known=False), tmp_path, url=server.url, unverified=True)
    files = [line.split("  ")[1] for line in (tmp_path / LOCK_FILE).read_text().splitlines()]
    assert files == ["tiny.csv", "zebra.csv"]


def test_a_lock_file_that_makes_no_sense_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_bytes(CONTENT)
    (tmp_path / LOCK_FILE).write_text(f"{'0' * 64}  zebra.csv\nnonsense\n")
    with pytest.raises(UserError, match=f"{LOCK_FILE}:2"):
        condition(a_file(known=False), tmp_path)


def test_a_directory_that_cannot_be_made_is_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write") as refused:
        fetch(a_file(), tmp_path / "file", url=server.url)
    assert "WATTHERD_DATA" in refused.value.line()


def test_without_the_extra_the_hint_is_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs the package pooch") as refused:
        fetch(a_file(), tmp_path)
    assert "wattherd[fetch]" in refused.value.line()


def test_the_registry_lists_two_node_lists_and_24_pod_lists() -> None:
    kinds = [entry.kind for entry in PUBLIC_FILES.values()]
    assert (kinds.count("nodes"), kinds.count("pods")) == (2, 24)
    assert sum(1 for entry in PUBLIC_FILES.values() if entry.sha256) == 15
    assert public_file("openb_pod_list_cpu050.csv") is public_file("cpu050")
    with pytest.raises(UserError, match="did you mean 'cpu050'"):
        public_file("cpu0500")


def test_the_data_directory_is_chosen_by_the_environment(tmp_path: Path) -> None:
    assert data_directory({"WATTHERD_DATA": str(tmp_path)}) == tmp_path / "openb"
    assert data_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/wattherd/openb")
    assert data_directory({}) == Path.home() / ".cache/wattherd/openb"


def test_the_registry_is_right_about_the_files_at_hand(openb: Path) -> None:
    at_hand = [entry for entry in PUBLIC_FILES.values() if (openb / entry.file).exists()]
    assert at_hand
    for entry in at_hand:
        wanted = FileCondition.VERIFIED if entry.sha256 else FileCondition.UNVERIFIED
        assert condition(entry, openb) is wanted
        assert condition(replace(entry, sha256="0" * 64), openb) is FileCondition.DIFFERS
