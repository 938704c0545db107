"""What happens on Kubernetes, counted, in a registry of its own; and what is, when it is asked."""

from __future__ import annotations

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from wattherd import __version__
from wattherd.kube.account.power_metrics import PREFIX, Series
from wattherd.server.site.installed import commit
from wattherd.server.site.metric_names import COUNTER, GAUGE, HISTOGRAM, KUBE_METRICS, METRICS

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class _Read(Collector):
    """Gauges, as they are told for one answer."""

    def __init__(self, series: Series) -> None:
        self.series = series

    def collect(self) -> list[GaugeMetricFamily]:
        found = []
        for name, values in self.series.items():
            family = KUBE_METRICS[name]
            made = GaugeMetricFamily(name, family.help, labels=family.labels)
            for labels, value in values:
                made.add_metric(list(labels), value)
            found.append(made)
        return found


class ShellMetrics:
    """Implements `kube.account.power_metrics.Tally`."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        about = METRICS["wattherd_build_info"]
        build = Gauge(about.name, about.help, about.labels, registry=self._registry)
        build.labels(__version__, commit()).set(1)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, one in KUBE_METRICS.items():
            if one.kind == COUNTER:
                self._counters[name] = Counter(name, one.help, one.labels, registry=self._registry)
            elif one.kind == HISTOGRAM:
                self._histograms[name] = Histogram(
                    name, one.help, one.labels, buckets=one.buckets, registry=self._registry
                )
            else:
                assert one.kind == GAUGE  # noqa: S101 - read when asked

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Something happened."""
        counter = self._counters[PREFIX + name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def took(self, name: str, seconds: float, *labels: str) -> None:
        """Something took so long."""
        histogram = self._histograms[PREFIX + name]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def text(self, series: Series) -> str:
        """The exposition format, with these gauges."""
        read = CollectorRegistry()
        read.register(_Read(series))
        return (generate_latest(self._registry) + generate_latest(read)).decode()
