"""What is read when a Prometheus scrapes: gauges of the moment, and counters that others keep."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from wattherd import __version__
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.errors import ClusterError
from wattherd.model.job import JobSpec
from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.draw import WORST_CASE, DrawBook, DrawSample
from wattherd.server.limits.site_limits import SiteLevel
from wattherd.server.site.installed import commit
from wattherd.server.site.metric_names import COUNTER, INFO, METRICS
from wattherd.server.site.power_tree import TreeBook
from wattherd.server.site.site import LiveSite

PATIENCE_S = 2.0
"""How long a scrape waits for the keeper; then it tells what it knew last, and that it waited."""
SITE = "site"
Labels = Sequence[str]
Series = Iterable[tuple[Labels, float]]


@dataclass(slots=True)
class Moment:
    """What the core knows at one time, counted."""

    now_s: float = 0.0
    budget_w: float | None = None
    jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    pending: Counter[tuple[str, str]] = field(default_factory=Counter)
    oldest_s: dict[str, float] = field(default_factory=dict)
    """Since when the job of each queue waits that has waited longest."""
    caps_w: dict[int, float] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    owners: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    progress: dict[str, float] = field(default_factory=dict)
    drained: frozenset[int] = frozenset()
    """Numbers of devices that are out of use."""


def moment_of(look: SiteView, named: Callable[[JobSpec], bool]) -> Moment:
    """Count everything, once over all jobs that are not over; some of them by name."""
    core = look.core
    found = Moment(core.now_s, core.watts.stated_w, strikes=dict(core.strikes))
    lost = len(core.lost)
    found.drained = frozenset(look.machine.number(*place) for place in core.drained.out)
    found.nodes = {"ready": len(core.config.cluster.nodes) - lost, "lost": lost}
    for record in core.jobs.values():
        _count(found, record, look)
        if named(record.spec):
            _name(found, look, record)
    return found


def _count(found: Moment, record: JobRecord, look: SiteView) -> None:
    queue = record.spec.queue
    found.jobs[str(record.state), queue] += 1
    if record.active:
        if record.cap_w is not None:
            numbers = look.machine.numbers(record.allocations)
            found.caps_w.update(dict.fromkeys(numbers, record.cap_w))
        return
    reason = str(record.reason.code) if record.reason is not None else str(record.state)
    reason = _WAITS.get(record.state, reason)
    if record.state is State.BLOCKED:
        reason = str(look.core.waits.code(record))
    found.pending[reason, queue] += 1
    if record.state is State.QUEUED:
        found.oldest_s[queue] = min(
            found.oldest_s.get(queue, look.core.now_s), record.state_since_s
        )


_WAITS = {State.HELD: "Held", State.BACKING_OFF: "BackingOff"}


def _name(found: Moment, look: SiteView, record: JobRecord) -> None:
    past, spec = look.history[record.id], record.spec
    name = str(past.paper.get("name") or "")
    found.owners.append((spec.id, name, spec.user, spec.tenant, spec.queue))
    if past.total:
        found.progress[spec.id] = min(1.0, past.progress / past.total)


class Exposition:
    """The series of a site that are read, for whoever asks."""

    def __init__(self, site: LiveSite) -> None:
        """Counters that outlive a service are told from where they stand now."""
        self._site, self._last = site, Moment()
        self._over = (site.meter.book.over_s, site.meter.book.over_j)

    def families(self, sees: Callable[[JobSpec], bool]) -> Iterator[Any]:
        """One family after the other, in the order of the reference page; jobs that `sees` sees."""
        series = self.series(sees)
        for name, metric in METRICS.items():
            if name in series:
                yield _family(name, metric.kind, series[name])

    def series(self, sees: Callable[[JobSpec], bool]) -> dict[str, Series]:
        """Labels and values of each family by its name."""
        up, moment = self._moment(sees)
        series = {**self._power(moment), **self._jobs(moment), **self._service(up=up)}
        series |= level_series(self._site.levels(), self._site.tree, self._site.clock.now_s())
        series |= self._energy()
        if self._site.config.job_metrics:
            series |= self._by_job(moment)
        return series

    def _moment(self, sees: Callable[[JobSpec], bool]) -> tuple[bool, Moment]:
        named = sees if self._site.config.job_metrics else _nobody
        try:
            found = self._site.look(lambda look: moment_of(look, named), PATIENCE_S)
        except (Late, ClusterError):
            return False, self._last
        self._last = replace(found, owners=[], progress={})  # another may ask next
        return True, found

    def _power(self, moment: Moment) -> dict[str, Series]:
        book, scope = self._site.meter.book, (SITE,)
        sample = book.samples[-1] if book.samples else None
        draw_w = None if sample is None else sample.draw_w
        left_w = None if draw_w is None or moment.budget_w is None else moment.budget_w - draw_w
        most_w = self._site.machine.gpu.max_w
        devices = self._devices()
        found: dict[str, Series] = {
            "wattherd_power_budget_watts": _known(scope, moment.budget_w),
            "wattherd_power_draw_watts": _known(scope, draw_w),
            "wattherd_power_headroom_watts": _known(scope, left_w),
            "wattherd_power_overshoot_seconds_total": [(scope, book.over_s - self._over[0])],
            "wattherd_power_overshoot_joules_total": [(scope, book.over_j - self._over[1])],
            "wattherd_power_energy_joules_total": [(scope, book.site_j)],
            "wattherd_gpu_energy_joules_total": [
                (labels, book.device_j.get(n, 0.0)) for n, labels in enumerate(devices)
            ],
            "wattherd_gpu_power_limit_watts": [
                (labels, moment.caps_w.get(n, most_w)) for n, labels in enumerate(devices)
            ],
        }
        found["wattherd_gpu_drained"] = [
            (labels, float(n in moment.drained)) for n, labels in enumerate(devices)
        ]
        if sample is not None:
            node = self._site.machine.node.name
            age_s = max(0.0, self._site.clock.now_s() - last_heard_s(list(book.samples)))
            found["wattherd_gpu_power_draw_watts"] = list(zip(devices, sample.by_device))  # noqa: B905 - none in samples of an earlier start
            found["wattherd_sensor_age_seconds"] = [((node,), age_s)]
        return found

    def _energy(self) -> dict[str, Series]:
        """Cost and emissions, where there are rates; they count on from the last start."""
        rates, book = self._site.rates, self._site.meter.book
        if rates is None:
            return {}
        scope, bill = (SITE,), book.site_bill
        told = rates.document(time.time())
        return {
            "wattherd_energy_cost_total": [((SITE, book.currency), bill.cost)],
            "wattherd_energy_co2e_grams_total": [(scope, 1e3 * bill.co2e_kg)],
            "wattherd_energy_unpriced_joules_total": [(scope, bill.unpriced_j)],
            "wattherd_energy_unrated_joules_total": [(scope, bill.unrated_j)],
            "wattherd_energy_price_per_kwh": _known((told["currency"],), told["price_per_kwh"]),
            "wattherd_energy_carbon_grams_per_kwh": _known((), told["carbon_g_per_kwh"]),
            "wattherd_rates_up": [((), float(not told["problem"]))],
        }

    def _devices(self) -> list[Labels]:
        machine = self._site.machine
        return [
            (machine.place(n)[0], str(n), device.uuid, device.model)
            for n, device in enumerate(machine.devices)
        ]

    def _jobs(self, moment: Moment) -> dict[str, Series]:
        now_s = self._site.clock.now_s()
        return {
            "wattherd_jobs": moment.jobs.items(),
            "wattherd_pending_jobs": moment.pending.items(),
            "wattherd_oldest_pending_seconds": [
                ((queue,), now_s - since_s) for queue, since_s in moment.oldest_s.items()
            ],
            "wattherd_nodes": [((state,), count) for state, count in moment.nodes.items()],
            "wattherd_guard_strikes_total": [((r,), n) for r, n in moment.strikes.items()],
        }

    def _service(self, *, up: bool) -> dict[str, Series]:
        keeper, (entry, digest) = self._site.keeper, self._site.store.journal.told
        return {
            "wattherd_keeper_up": [((), float(up and keeper.broken is None))],
            "wattherd_journal_up": [((), float(not keeper.store_problem))],
            "wattherd_journal_head_entry": [((), float(entry))],
            "wattherd_journal_head_digest": [((), float(int(digest[:12] or "0", 16)))],
            "wattherd_troubled_runs": [((), float(len(self._site.executor.troubles)))],
            "wattherd_build_info": [((__version__, commit()), 1.0)],
        }

    def _by_job(self, moment: Moment) -> dict[str, Series]:
        book: DrawBook = self._site.meter.book
        watts: Mapping[str, float] = book.samples[-1].by_job if book.samples else {}
        ids = [owner[0] for owner in moment.owners]
        return {
            "wattherd_job_info": [(owner, 1.0) for owner in moment.owners],
            "wattherd_job_power_draw_watts": [((i,), watts[i]) for i in ids if i in watts],
            "wattherd_job_energy_joules_total": [((i,), book.joules(i)) for i in ids],
            "wattherd_job_cost_total": [
                ((i, book.currency), book.bills[i].cost) for i in ids if i in book.bills
            ],
            "wattherd_job_co2e_grams_total": [
                ((i,), 1e3 * book.bills[i].co2e_kg) for i in ids if i in book.bills
            ],
            "wattherd_job_progress_ratio": [((i,), r) for i, r in moment.progress.items()],
        }


def level_series(
    levels: Sequence[SiteLevel], book: TreeBook, now_s: float
) -> dict[str, list[tuple[Labels, float]]]:
    """Series of levels above this machine; there is none of what is not known."""
    told: dict[str, list[tuple[Labels, float]]] = {
        name: [] for name in METRICS if name.startswith("wattherd_level_")
    }
    for one in {level.name: level for level in levels}.values():
        labels, past = (one.name, one.parent), book.past.get(one.name)
        silent_s = book.silent_s(one.name, now_s)
        for name, value in (
            ("limit_watts", one.limit_w),
            ("draw_watts", one.draw_w),
            ("other_load_watts", one.other_w),
            ("headroom_watts", one.headroom_w),
            ("over_seconds_total", 0.0 if past is None else past.over_s),
            ("silent_seconds", math.nan if silent_s is None else silent_s),
        ):
            if math.isfinite(value):
                told[f"wattherd_level_{name}"].append((labels, value))
    return told


def last_heard_s(samples: Sequence[DrawSample]) -> float:
    """When all devices last said what they draw; a silent one is counted at its worst."""
    heard = (one.at_s for one in reversed(samples) if one.stated != WORST_CASE)
    return next(heard, samples[0].at_s)


def everybody(spec: JobSpec) -> bool:
    """For readers who may see all jobs."""
    del spec
    return True


def _nobody(spec: JobSpec) -> bool:
    del spec
    return False


def _known(labels: Labels, value: float | None) -> Series:
    return [] if value is None else [(labels, value)]


def _family(name: str, kind: str, series: Series) -> Any:
    metric = METRICS[name]
    make: Callable[..., Any] = CounterMetricFamily if kind == COUNTER else GaugeMetricFamily
    assert kind in (COUNTER, INFO, "gauge")  # noqa: S101 - histograms are the tally's
    family = make(name, metric.help, labels=metric.labels)
    for labels, value in series:
        family.add_metric(list(labels), value)
    return family
