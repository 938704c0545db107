"""A real service tells a collector on loopback what is drawn and what it decides."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, free_port, until

from wattherd.errors import UserError

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no OpenTelemetry here")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from wattherd.server.site.open_telemetry import base_of

pytestmark = pytest.mark.long


def plain(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@dataclass
class Collector:
    """Takes OTLP over HTTP, as protobuf."""

    port: int
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last of each name."""
    resources: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(plain(sent.resource.attributes))
                self.spans += [span for scope in sent.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in told.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def named(self, name: str, job: str) -> list[Any]:
        return [
            span
            for span in self.spans
            if span.name == name and plain(span.attributes).get("wattherd.job.id") == job
        ]


@contextmanager
def collecting(port: int) -> Iterator[Collector]:
    collector = Collector(port)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.heads.append({k.lower(): v for k, v in self.headers.items()})
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served(folder: Path, address: str) -> Iterator[Serving]:
    serving = Serving(folder / "state", "--allow-root-jobs", "--budget", "100W", "--otlp", address)
    serving.begin()
    try:
        serving.ready()
        yield serving
    finally:
        serving.end()


def test_a_decision_is_a_trace_from_the_event_to_the_answer_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "site.name=hall-3")
    with collecting(free_port()) as collector:
        with served(tmp_path, f"http://127.0.0.1:{collector.port}") as serving:
            job = serving.submit("sleep 0.5")
            until(lambda: serving.state_of(job) == "Succeeded")
        (starts,) = collector.named("StartJob", job)
        (root,) = [span for span in collector.spans if span.span_id == starts.parent_span_id]
        (ends,) = collector.named("FinishJob", job)
    assert root.name == "JobSubmitted" or plain(root.attributes)["wattherd.entry"] > 0, root
    assert starts.trace_id == root.trace_id != ends.trace_id
    assert root.start_time_unix_nano <= starts.start_time_unix_nano
    assert starts.end_time_unix_nano > starts.start_time_unix_nano + 1_000_000  # a process began
    assert plain(starts.attributes)["wattherd.gpus"] == 1
    assert len(plain(starts.attributes)["wattherd.nodes"]) == 1
    about = collector.resources[-1]
    assert (about["service.name"], about["site.name"]) == ("wattherd", "hall-3")
    assert {one["authorization"] for one in collector.heads} == {"Bearer mine"}


def test_watts_and_joules_go_by_the_names_of_the_conventions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    with collecting(free_port()) as collector:
        with served(tmp_path, f"http://127.0.0.1:{collector.port}/") as serving:
            page = serving.ask("power")
            assert page["budget_w"] == 100.0, page
            until(lambda: "hw.power" in collector.metrics, 30)
        budget = collector.metrics["wattherd_power_budget_watts"]
        power, energy = collector.metrics["hw.power"], collector.metrics["hw.energy"]
    assert (budget.unit, budget.gauge.data_points[0].as_double) == ("W", 100.0)
    assert (power.unit, energy.unit, energy.sum.is_monotonic) == ("W", "J", True)
    devices = [plain(one.attributes) for one in power.gauge.data_points]
    assert len(devices) == 2
    assert {one["hw.type"] for one in devices} == {"cpu"}
    assert len({one["hw.id"] for one in devices}) == 2


def test_a_collector_that_is_away_keeps_nobody_waiting(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, f"http://127.0.0.1:{port}") as serving:
        first = serving.submit("true")
        until(lambda: serving.state_of(first) == "Succeeded")
        with collecting(port) as collector:
            second = serving.submit("true")
            until(lambda: serving.state_of(second) == "Succeeded")
            until(lambda: collector.named("FinishJob", second), 60)
        serving.end_service()  # within its 20 s, though the collector is away again
        assert "Traceback" not in serving.errors.read_text()
        assert "Connection refused" not in serving.errors.read_text()


def test_what_is_no_address_is_refused() -> None:
    for wrong in ("127.0.0.1:4317", "grpc://here", ""):
        with pytest.raises(UserError, match="is no HTTP address") as caught:
            base_of(wrong)
        assert "4318" in caught.value.hint
    assert base_of("http://here:4318/v1/traces") == "http://here:4318"
