"""In a pod a job tells how far it is on the pod itself, and trains on where that cannot be."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattherd_train.pod import PodReporter, pod_reporter
from wattherd_train.progress import Reporter
from wattherd_train.trouble import Trouble

PATIENCE_S = 20.0


class Api:
    """An API server that notes what it is told, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told = self.path, self.headers["Authorization"], json.loads(body)
                outer.heard.append(told)
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/api/v1/namespaces/ml/pods/p"

    def texts(self) -> list[dict[str, Any]]:
        notes = [told["metadata"]["annotations"] for _, _, told in self.heard]
        return [json.loads(one["wattherd.dev/progress"]) for one in notes]


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t-1\n")
    (tmp_path / "namespace").write_text("ml\n")
    return tmp_path


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, "it never comes"
        time.sleep(0.01)


def test_the_latest_is_told_and_no_more_often_than_that(api: Api, account: Path) -> None:
    pod = PodReporter(api.url, account, Trouble(), every_s=0.3)
    reporter = Reporter(None, Trouble(), also=pod.tell, every_s=0.0)
    for step in range(1, 201):
        told = {"loss": 1 / step, "total": 1000, "micro_batch": 4, "noise_scale": 96.0}
        reporter.step(step, 8, told)
    until(lambda: api.texts() and api.texts()[-1]["step"] == 200)
    assert len(api.heard) <= 3, "two hundred steps in a moment"
    told = {"step": 200, "total": 1000, "loss": 0.005, "noise_scale": 96, "batch": 8}
    assert api.texts()[-1] == told
    path, by, _ = api.heard[-1]
    assert (path, by) == ("/api/v1/namespaces/ml/pods/p", "Bearer t-1")


def test_a_token_that_changes_is_read_anew(api: Api, account: Path) -> None:
    pod = PodReporter(api.url, account, Trouble(), every_s=0.01)
    pod.tell({"step": 1})
    until(lambda: api.heard)
    (account / "token").write_text("t-2")
    pod.tell({"step": 2})
    until(lambda: len(api.heard) == 2)
    assert api.heard[1][1] == "Bearer t-2"


@pytest.mark.parametrize("status", [403, 404, 422, 500])
def test_a_refusal_is_counted_and_asked_again_later(api: Api, account: Path, status: int) -> None:
    trouble = Trouble()
    api.status = status
    pod = PodReporter(api.url, account, trouble, every_s=0.01, after_failure_s=0.2)
    pod.tell({"step": 1})
    until(lambda: trouble.count == 1)
    assert str(status) in trouble.last
    api.status = 200
    pod.tell({"step": 2})
    until(lambda: len(api.heard) == 2)
    assert trouble.count == 1


def test_nobody_waits_for_a_server_that_does_not_answer(account: Path) -> None:
    pod = PodReporter("http://127.0.0.1:1/x", account, Trouble(), after_failure_s=0.01)
    began_s = time.monotonic()
    for step in range(1000):
        pod.tell({"step": step})
    assert time.monotonic() - began_s < 5.0


def test_only_a_pod_that_is_told_its_name_reports(account: Path, tmp_path: Path) -> None:
    trouble, host = Trouble(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert pod_reporter(host, trouble, account) is None
    assert pod_reporter({"WATTHERD_POD_NAME": "p"}, trouble, account) is None
    assert trouble.count == 0
    named = {"WATTHERD_POD_NAME": "p", **host}
    assert pod_reporter(named, trouble, account) is not None
    assert pod_reporter(named, trouble, tmp_path / "none") is None
    assert "no service account" in trouble.last
