"""What another machine says is printed as words: nothing of it writes elsewhere on a terminal."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wattherd.cli.main import main
from wattherd.cli.tables import print_table
from wattherd.cli.watch import parsed
from wattherd.errors import MOST_WORDS, harmless
from wattherd.kube.api.transport import RefusedByApi

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\x08"
BAD = ("\x1b", "\x07", "\x08", "\r", "\x9b", "\u202e")
JOB = {
    "id": "j-1", "name": f"train{EVIL}", "user": f"eve{EVIL}\nj-2 forged", "state": "Queued",
}  # fmt: skip


class _Hostile(http.server.BaseHTTPRequestHandler):
    """Answers as its server's `answer` says: status, words, body."""

    def do_GET(self) -> None:
        status, words, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response_only(status, words)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - as the library calls them

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[Any]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Hostile)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def said(text: str) -> bool:
    return not any(bad in text for bad in BAD)


REFUSALS: dict[str, tuple[int, str, bytes]] = {
    "words of the status": (500, f"No{EVIL}".encode().decode("latin-1"), b"no JSON"),
    "an error": (400, "No", json.dumps({"error": f"no{EVIL}", "hint": f"do{EVIL}"}).encode()),
    "raw": (403, "No", json.dumps({"error": f"no{EVIL}"}, ensure_ascii=False).encode()),
    "a field": (422, "No", json.dumps({"detail": [{"msg": EVIL, "loc": ["body", EVIL]}]}).encode()),
    "a detail of another shape": (422, "No", json.dumps({"detail": [EVIL]}).encode()),
    "without end": (500, "No", json.dumps({"error": "no " * 1_000_000}).encode()),
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("command", [["queue"], ["show", "j-1"], ["cancel", "j-1"]])
def test_a_refusal_is_words(
    hostile: Any,
    answer: tuple[int, str, bytes],
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile.answer = answer
    with pytest.raises(SystemExit) as ended:
        main([*command, "--server", f"http://127.0.0.1:{hostile.server_port}"])
    assert ended.value.code not in (0, None)
    told = capsys.readouterr()
    assert said(told.out + told.err)
    assert "error" in told.err
    assert len(told.err) < 3 * MOST_WORDS


def test_names_in_documents_are_words(hostile: Any) -> None:
    """In JSON, too: what is no text is of no use to a program either."""
    body = json.dumps({"schema": "wattherd.context/1", "jobs": [JOB]}).encode()
    from wattherd.library.client import Client

    hostile.answer = (200, "OK", body)
    found = Client(f"http://127.0.0.1:{hostile.server_port}").get("jobs")
    (job,) = found["jobs"]
    assert said(json.dumps(job, ensure_ascii=False).encode().decode())
    assert job["name"].startswith("train?]0;owned??[2J")
    assert job["id"] == "j-1"


def test_a_cell_is_one_line_whatever_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["ID", "USER"], [[JOB["id"], JOB["user"]], ["j-3", "ann"]])
    told = capsys.readouterr().out
    assert said(told)
    assert len(told.splitlines()) == 3


def test_events_are_words() -> None:
    block = f"event: note\nid: 1\ndata: {json.dumps({'why': EVIL})}\n\n".encode()
    (event,) = parsed([block])
    assert said(event["why"])


def test_what_an_api_server_refuses_with_is_words() -> None:
    refused = RefusedByApi(403, f"Forbidden{EVIL}", EVIL + "x" * 100_000)
    assert said(str(refused))
    assert len(str(refused)) < 3 * MOST_WORDS


def test_texts_that_are_text_stay_as_they_are() -> None:
    for text in ("", "naïve Größe", "数据 🚀", "a\tb\nc", "‘quoted’ – and…"):
        assert harmless(text) == text
