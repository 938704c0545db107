"""What happens and what is drawn, for an OpenTelemetry collector (OTLP over HTTP).

A trace is one decision: the entry of the journal that brought it, and below it each order that the
core gave. Orders to a run last until the run answers, so a trace also tells how long a job took to
start, to stop, or to have its cap. Entries without an order are no decision, and leave no trace.

Metrics are the gauges and counters of `/metrics` under their names there; watts and joules of
devices are told once more as `hw.power` and `hw.energy`, the names of OpenTelemetry's semantic
conventions for hardware, with `hw.id`, `hw.type`, `hw.name` and `hw.parent`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from wattherd import __version__
from wattherd.errors import UserError
from wattherd.model.command import Command, SetCap, StartJob, StopJob
from wattherd.model.event import CapApplied, JobExited, JobStarted, JobStopped, JobSubmitted
from wattherd.server.site.metric_names import COUNTER, HISTOGRAM, METRICS, MetricFamily
from wattherd.store.entry import JournalEntry

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
EVERY_MS = 15_000.0
"""Between two exports of metrics, unless `INTERVAL` says otherwise."""
FRESH_S = 1.0
"""All series of an export are of one look at the site."""
ENDS_WITHIN_S = 3.0
"""A collector that does not answer keeps no service from ending."""
_UNITS = {"watts": "W", "joules": "J", "seconds": "s", "ratio": "1"}
_ANSWERS: Mapping[type, type] = {JobStarted: StartJob, JobStopped: StopJob, CapApplied: SetCap}
_UNTOLD = frozenset({"at_s", "command"})
"""Fields of events that stand elsewhere, or are for nobody else: what people ran in a job."""
_AWAITED = frozenset(_ANSWERS.values())

Labels = Sequence[str]
Series = Mapping[str, Iterable[tuple[Labels, float]]]
"""Values of each metric by name, with the labels in the order of `METRICS`."""


def base_of(address: str) -> str:
    """The address of a collector, without what OTLP adds to it.

    Raises:
        UserError: it is no HTTP address.
    """
    if not address.startswith(("http://", "https://")):
        hint = "the collector's OTLP port for HTTP, such as http://127.0.0.1:4318"
        raise UserError(f"{address!r} is no HTTP address", field="otlp", hint=hint)
    return address.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")


class DecisionTraces:
    """Spans of decisions; orders that were not answered yet are kept, one of a kind for a run."""

    def __init__(self, provider: TracerProvider, epoch_s: float, nodes: Sequence[str]) -> None:
        """Events are stamped in seconds since `epoch_s`; `nodes` are names by number."""
        self._tracer = provider.get_tracer("wattherd", __version__)
        self._epoch_s, self._nodes = epoch_s, nodes
        self._open: dict[tuple[type, str], tuple[int, Span]] = {}
        """Attempt and span of an order by its kind and job."""

    def told(self, turns: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
        """Entries and the core's answers, in order."""
        now_ns = time.time_ns()
        for entry, commands in turns:
            self._answered(entry.event, now_ns)
            if not commands:
                continue
            begun_ns = min(int(1e9 * (self._epoch_s + entry.event.at_s)), now_ns)
            about = {"wattherd.entry": entry.seq, **self._about(entry.event)}
            if entry.by:
                about["wattherd.by"] = entry.by
            name = type(entry.event).__name__
            root = self._tracer.start_span(name, start_time=begun_ns, attributes=about)
            within = set_span_in_context(root)
            for command in commands:
                span = self._tracer.start_span(
                    type(command).__name__, within, start_time=now_ns,
                    attributes=self._about(command),
                )  # fmt: skip
                self._given(command, span, now_ns)
            root.end(now_ns)

    def end(self) -> None:
        """Orders without an answer end here, and say so."""
        for _, span in self._open.values():
            span.set_status(Status(StatusCode.ERROR, "not answered when the service ended"))
            span.end()
        self._open = {}

    def _given(self, command: Command, span: Span, now_ns: int) -> None:
        if type(command) not in _AWAITED:
            span.end(now_ns)
            return
        key = type(command), command.job_id  # type: ignore[union-attr]
        before = self._open.pop(key, None)
        if before is not None:
            before[1].set_status(Status(StatusCode.ERROR, "overtaken by another order"))
            before[1].end(now_ns)
        self._open[key] = command.attempt, span  # type: ignore[union-attr]

    def _answered(self, event: Any, now_ns: int) -> None:
        if isinstance(event, JobExited):
            for order in _AWAITED:
                self._close(order, event, now_ns, failed=order is StartJob)
            return
        kind = _ANSWERS.get(type(event))
        if kind is not None:
            self._close(kind, event, now_ns)
        if isinstance(event, JobStopped):
            for other in (StartJob, SetCap):
                self._close(other, event, now_ns)

    def _close(self, kind: type, event: Any, now_ns: int, *, failed: bool = False) -> None:
        attempt, span = self._open.get((kind, event.job_id), (0, None))
        if span is None or attempt > event.attempt:
            return
        del self._open[kind, event.job_id]
        if failed:
            span.set_status(Status(StatusCode.ERROR, "it ended before it had started"))
        span.end(now_ns)

    def _about(self, one: Any) -> dict[str, Any]:
        """What an event or order says in plain values; of a submission whose it is and where."""
        found: dict[str, Any] = {}
        if isinstance(one, JobSubmitted):
            spec = one.job
            return {"wattherd.job.id": spec.id, "wattherd.queue": spec.queue}
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            name = f"wattherd.{'job.id' if field.name == 'job_id' else field.name}"
            if field.name == "allocations":
                found["wattherd.gpus"] = sum(len(each.gpus) for each in value)
                found["wattherd.nodes"] = sorted({self._nodes[each.node] for each in value})
            elif isinstance(value, Enum):
                found[name] = str(value.value)
            elif isinstance(value, str | int | float) and field.name not in _UNTOLD:
                found[name] = value
        return found


class OpenTelemetry:
    """Sends metrics and traces from threads of its own; headers and more by `OTEL_*` variables."""

    def __init__(self, address: str, instance: str, epoch_s: float, nodes: Sequence[str]) -> None:
        """`instance` tells this service from others; `nodes` are names by number.

        Raises:
            UserError: the address is none.
        """
        base = base_of(address)
        about = {
            "service.name": "wattherd",
            "service.version": __version__,
            "service.instance.id": instance,
        }
        resource = Resource.create(about)
        # A collector that is away is no news each few seconds; what it missed is lost.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
        sender = OTLPSpanExporter(f"{base}/v1/traces", timeout=ENDS_WITHIN_S)
        self._tracing.add_span_processor(BatchSpanProcessor(sender))
        self.decisions = DecisionTraces(self._tracing, epoch_s, nodes)
        self._reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{base}/v1/metrics", timeout=ENDS_WITHIN_S),
            export_interval_millis=None if INTERVAL in os.environ else EVERY_MS,
        )
        self._metering = MeterProvider([self._reader], resource, shutdown_on_exit=False)

    def observe(self, read: Callable[[], Series]) -> None:
        """Export what `read` tells from now on; it is called once for each export."""
        look = _OneLook(read)
        meter = self._metering.get_meter("wattherd", __version__)
        for metric in METRICS.values():
            if metric.kind == HISTOGRAM or metric.by_kube:
                continue
            kind = "counter" if metric.kind == COUNTER else "gauge"
            make = getattr(meter, f"create_observable_{kind}")
            make(metric.name, [look.of(metric)], _unit(metric.name), metric.help)
        power, energy = METRICS[_POWER], METRICS[_ENERGY]
        meter.create_observable_gauge(
            "hw.power", [look.of_hardware(power)], "W", "Watts that a device draws."
        )
        meter.create_observable_counter(
            "hw.energy", [look.of_hardware(energy)], "J", "Joules that a device has drawn."
        )

    def flush(self) -> None:
        """Send all that there is now."""
        self._tracing.force_flush(round(1e3 * ENDS_WITHIN_S))
        self._metering.force_flush(1e3 * ENDS_WITHIN_S)

    def end(self) -> None:
        """Send what is left, and stop."""
        self.decisions.end()
        self._tracing.shutdown()
        self._metering.shutdown(1e3 * ENDS_WITHIN_S)


_POWER, _ENERGY = "wattherd_gpu_power_draw_watts", "wattherd_gpu_energy_joules_total"


class _OneLook:
    """All series at one moment, for callbacks that come one after the other."""

    def __init__(self, read: Callable[[], Series]) -> None:
        self._read = read
        self._series: Series = {}
        self._at_s = -FRESH_S

    def of(self, metric: MetricFamily) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in self._now().get(metric.name, ()):
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return observed

    def of_hardware(
        self, metric: MetricFamily
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in self._now().get(metric.name, ()):
                yield Observation(value, hardware(*labels))

        return observed

    def _now(self) -> Series:
        now_s = time.monotonic()
        if now_s - self._at_s >= FRESH_S:
            self._series, self._at_s = self._read(), now_s
        return self._series


def hardware(node: str, number: str, uuid: str, model: str) -> dict[str, str]:
    """Attributes of a device; parts of a processor (slots) are of type `cpu`."""
    return {
        "hw.id": uuid or f"{node}/{number}",
        "hw.type": "gpu" if uuid and not uuid.startswith("slot-") else "cpu",
        "hw.name": model,
        "hw.parent": node,
    }


def _unit(name: str) -> str:
    words = name.removesuffix("_total").rsplit("_", 1)
    return _UNITS.get(words[-1], "1")
