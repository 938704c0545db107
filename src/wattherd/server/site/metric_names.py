"""Every metric of the service: name, kind, labels, meaning. The reference page is made of this.

Names follow the naming guide of Prometheus: one prefix, base units, plural unit suffixes, `_total`
on counters. Watts are gauges, as budgets and caps are watts; joules are counters, whose rate is the
true mean of the watts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

GAUGE, COUNTER, HISTOGRAM, INFO = "gauge", "counter", "histogram", "info"
LONG_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86_400.0, 7 * 86_400.0)
SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CAP_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
WAIT_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 86_400.0)
JOULES = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One family of series; `by_job` ones are there on request only."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    by_job: bool = False
    by_kube: bool = False


_SITE = ("scope",)
_LEVEL = ("level", "parent")
_GPU = ("node", "gpu", "uuid", "model")
_DOMAIN = ("domain",)
_ALL = (
    MetricFamily(name="wattherd_power_budget_watts", kind=GAUGE, labels=_SITE,
           help="What may be drawn now; absent without a budget."),
    MetricFamily(name="wattherd_power_draw_watts", kind=GAUGE, labels=_SITE,
           help="What is drawn, by the last sample."),
    MetricFamily(name="wattherd_power_headroom_watts", kind=GAUGE, labels=_SITE,
           help="Budget less draw; below zero while too much is drawn."),
    MetricFamily(name="wattherd_power_overshoot_seconds_total", kind=COUNTER, labels=_SITE,
           help="Time for which more than the budget was drawn."),
    MetricFamily(name="wattherd_power_overshoot_joules_total", kind=COUNTER, labels=_SITE,
           help="Energy above the budget."),
    MetricFamily(name="wattherd_power_energy_joules_total", kind=COUNTER, labels=_SITE,
           help="Energy of the site; its rate is watts."),
    MetricFamily(name="wattherd_energy_cost_total", kind=COUNTER, labels=("scope", "currency"),
           help="What the site's energy has cost, as far as its price was known (`rates`)."),
    MetricFamily(name="wattherd_energy_co2e_grams_total", kind=COUNTER, labels=_SITE,
           help="What it has emitted, as far as the carbon intensity was known."),
    MetricFamily(name="wattherd_energy_unpriced_joules_total", kind=COUNTER, labels=_SITE,
           help="Energy drawn at a time of unknown price."),
    MetricFamily(name="wattherd_energy_unrated_joules_total", kind=COUNTER, labels=_SITE,
           help="Energy drawn at a time of unknown carbon intensity."),
    MetricFamily(name="wattherd_energy_price_per_kwh", kind=GAUGE, labels=("currency",),
           help="What a kilowatt-hour costs now; absent while that is not known."),
    MetricFamily(name="wattherd_energy_carbon_grams_per_kwh", kind=GAUGE,
           help="What it emits now; absent while that is not known."),
    MetricFamily(name="wattherd_rates_up", kind=GAUGE,
           help="1 while rates can be read and are of this time, else 0; absent without `rates`."),
    MetricFamily(name="wattherd_level_limit_watts", kind=GAUGE, labels=_LEVEL,
           help="What a level above this machine may carry; absent without a limit."),
    MetricFamily(name="wattherd_level_draw_watts", kind=GAUGE, labels=_LEVEL,
           help="What its meter says; absent while that is not known."),
    MetricFamily(name="wattherd_level_other_load_watts", kind=GAUGE, labels=_LEVEL,
           help="The part of it that this machine does not draw."),
    MetricFamily(name="wattherd_level_headroom_watts", kind=GAUGE, labels=_LEVEL,
           help="Limit less draw; below zero while too much is drawn."),
    MetricFamily(name="wattherd_level_over_seconds_total", kind=COUNTER, labels=_LEVEL,
           help="Time for which more than the limit was seen to be drawn."),
    MetricFamily(name="wattherd_level_silent_seconds", kind=GAUGE, labels=_LEVEL,
           help="Since the last reading of its meter; of the start, if there never was one."),
    MetricFamily(name="wattherd_gpu_energy_joules_total", kind=COUNTER, labels=_GPU,
           help="Energy of a device; its rate is watts."),
    MetricFamily(name="wattherd_gpu_power_limit_watts", kind=GAUGE, labels=_GPU,
           help="The cap in force, or the most the device can draw."),
    MetricFamily(name="wattherd_gpu_power_draw_watts", kind=GAUGE, labels=_GPU,
           help="What the device draws, by the last sample."),
    MetricFamily(name="wattherd_gpu_faults_total", kind=COUNTER, labels=("node", "gpu", "kind"),
           help="Faults in the kernel's log (xid-NUMBER, ecc); `gpu` is the PCI address."),
    MetricFamily(name="wattherd_job_stragglers_total", kind=COUNTER, labels=("queue",),
           help="Runs that fell below half of their pace at the same cap, or went silent."),
    MetricFamily(name="wattherd_rank_stragglers_total", kind=COUNTER, labels=("node", "gpu"),
           help="Ranks that held up the others of their run, by the device they were on; `gpu` is "
           "empty where a rank has none, or several."),
    MetricFamily(name="wattherd_gpu_drained", kind=GAUGE, labels=_GPU,
           help="1 while a device is out of use, else 0."),
    MetricFamily(name="wattherd_cap_changes_total", kind=COUNTER, labels=("direction", "result"),
           help="Caps that were ordered (lower, raise, lift, repeat) and what came of them "
           "(applied, superseded, dropped)."),
    MetricFamily(name="wattherd_cap_apply_seconds", kind=HISTOGRAM, buckets=CAP_S,
           help="From the order of a cap until it was read back."),
    MetricFamily(name="wattherd_jobs", kind=GAUGE, labels=("state", "queue"),
           help="Jobs that are not over."),
    MetricFamily(name="wattherd_pending_jobs", kind=GAUGE, labels=("reason", "queue"),
           help="Jobs that wait, by the reason that `explain` gives."),
    MetricFamily(name="wattherd_oldest_pending_seconds", kind=GAUGE, labels=("queue",),
           help="For how long the job that has waited longest has."),
    MetricFamily(name="wattherd_job_transitions_total", kind=COUNTER,
           labels=("from", "to", "reason"),
           help="Steps in the lives of jobs."),
    MetricFamily(name="wattherd_job_wait_seconds", kind=HISTOGRAM,
           labels=("queue",), buckets=LONG_S,
           help="From submission to the first start."),
    MetricFamily(name="wattherd_job_run_seconds", kind=HISTOGRAM, labels=("queue",), buckets=LONG_S,
           help="For how long a job held devices, when it is over."),
    MetricFamily(name="wattherd_job_energy_joules", kind=HISTOGRAM,
           labels=("queue",), buckets=JOULES,
           help="What a job took, when it is over."),
    MetricFamily(name="wattherd_cycle_seconds", kind=HISTOGRAM, labels=("policy",), buckets=SHORT_S,
           help="From an event on disk to orders handed out."),
    MetricFamily(name="wattherd_plan_items_total", kind=COUNTER, labels=("kind", "outcome"),
           help="Orders of the core, counted when their outcome is known."),
    MetricFamily(name="wattherd_guard_strikes_total", kind=COUNTER, labels=("rule",),
           help="Proposals of the policy that the guard refused."),
    MetricFamily(name="wattherd_estimate_error_ratio", kind=HISTOGRAM,
           labels=("kind",), buckets=RATIO,
           help="What came about by what was expected; 1 is right."),
    MetricFamily(name="wattherd_sensor_age_seconds", kind=GAUGE, labels=("node",),
           help="Since the last sample of a node's watts."),
    MetricFamily(name="wattherd_nodes", kind=GAUGE, labels=("state",),
           help="Nodes that are ready, or lost and drained."),
    MetricFamily(name="wattherd_keeper_up", kind=GAUGE,
           help="1 while events are dealt with; 0 when the core has stopped or does not answer."),
    MetricFamily(name="wattherd_journal_up", kind=GAUGE,
           help="1 while the journal takes what happens; 0 while it refuses."),
    MetricFamily(name="wattherd_journal_head_entry", kind=GAUGE,
           help="Number of the journal's last entry: kept elsewhere, it shows a cut-off end."),
    MetricFamily(name="wattherd_journal_head_digest", kind=GAUGE,
           help="First 48 bits of that entry's digest; as `%012x` for `store verify --head`."),
    MetricFamily(name="wattherd_troubled_runs", kind=GAUGE,
           help="Runs that cannot be read, begun or told something now, and are tried again."),
    MetricFamily(name="wattherd_build_info", kind=INFO, labels=("version", "commit"),
           help="What runs; always 1."),
    MetricFamily(name="wattherd_job_info", kind=INFO, by_job=True,
           labels=("job", "name", "user", "tenant", "queue"),
           help="Who a job belongs to; always 1, to be joined with the series below."),
    MetricFamily(name="wattherd_job_power_draw_watts", kind=GAUGE, labels=("job",), by_job=True,
           help="What a running job draws."),
    MetricFamily(name="wattherd_job_energy_joules_total", kind=COUNTER,
           labels=("job",), by_job=True,
           help="What a job has taken so far."),
    MetricFamily(name="wattherd_job_cost_total", kind=COUNTER,
           labels=("job", "currency"), by_job=True,
           help="What its energy has cost, as far as its price was known."),
    MetricFamily(name="wattherd_job_co2e_grams_total", kind=COUNTER, labels=("job",), by_job=True,
           help="What it has emitted, as far as the carbon intensity was known."),
    MetricFamily(name="wattherd_job_progress_ratio", kind=GAUGE, labels=("job",), by_job=True,
           help="Part that is done, where the job says how much there is."),
    MetricFamily(name="wattherd_kube_pods", kind=GAUGE, labels=("state",), by_kube=True,
           help="Pods that count: seen on their nodes, or promised and not seen there yet."),
    MetricFamily(name="wattherd_kube_counted_watts", kind=GAUGE, labels=_DOMAIN, by_kube=True,
           help="What a power domain may draw at most with the pods that count."),
    MetricFamily(name="wattherd_kube_budget_watts", kind=GAUGE, labels=_DOMAIN, by_kube=True,
           help="What a power domain may draw now."),
    MetricFamily(name="wattherd_kube_over_budget_seconds_total", kind=COUNTER,
           labels=("domain", "basis"), by_kube=True,
           help="Time above the budget, by what counts (`counted`), or by what metered nodes "
           "alone draw (`measured`)."),
    MetricFamily(name="wattherd_kube_node_draw_watts", kind=GAUGE, labels=("node",), by_kube=True,
           help="What a node draws, as its agent read it last."),
    MetricFamily(name="wattherd_kube_node_energy_joules_total", kind=COUNTER, labels=("node",),
           by_kube=True,
           help="Energy of a node since this copy started, by those readings."),
    MetricFamily(name="wattherd_kube_pending_pods", kind=GAUGE, labels=("reason", "queue"),
           by_kube=True, help="Pods that wait, by the reason that they are told."),
    MetricFamily(name="wattherd_kube_attempts_total", kind=COUNTER, labels=("outcome",),
           by_kube=True, help="Bindings that were tried, and what came of them."),
    MetricFamily(name="wattherd_kube_wait_seconds", kind=HISTOGRAM, buckets=WAIT_S, by_kube=True,
           help="From a pod's first being seen until it was bound."),
    MetricFamily(name="wattherd_kube_plan_seconds", kind=HISTOGRAM, buckets=SHORT_S, by_kube=True,
           help="For a plan of which orders came."),
    MetricFamily(name="wattherd_kube_stopped_pods_total", kind=COUNTER, labels=("reason", "way"),
           by_kube=True,
           help="Pods that were told to go, why (preemptions: `PreemptedForPriority`), and whether "
           "by suspending their job or by eviction."),
    MetricFamily(name="wattherd_kube_job_orders_total", kind=COUNTER, labels=("order",),
           by_kube=True,
           help="Jobs that were ordered suspended for want of watts, resumed or resized."),
    MetricFamily(name="wattherd_kube_cap_orders_total", kind=COUNTER, labels=("order",),
           by_kube=True, help="Caps that were ordered of pods: `set`, or `lift`."),
    MetricFamily(name="wattherd_kube_caps_read_back_total", kind=COUNTER, by_kube=True,
           help="Caps that agents said they had read back."),
    MetricFamily(name="wattherd_kube_claimable_watts", kind=GAUGE, labels=_DOMAIN, by_kube=True,
           help="Watts of a power domain that pods may claim (mode `dra`)."),
    MetricFamily(name="wattherd_kube_claimed_watts", kind=GAUGE, labels=_DOMAIN, by_kube=True,
           help="Watts of a power domain that pods have claimed (mode `dra`)."),
)  # fmt: skip
METRICS = {metric.name: metric for metric in _ALL if not metric.by_kube}
"""Of the service, by name, in the order of the page."""
KUBE_METRICS = {metric.name: metric for metric in _ALL if metric.by_kube}
"""Of `wattherd kube`, by name."""

_HEAD = """\
# Metrics

`GET /metrics` of a service, for Prometheus; the [guide](../guides/monitoring.md) shows how to
scrape them, what to alert on, and a dashboard. This page is what
`python -m wattherd.server.site.metric_names` prints.

Counters begin at zero when the service starts, as `rate` and `increase` expect; totals over all
starts are in the store (`wattherd power -o json`, `wattherd show JOB -o json`). Where watts are not
measured they are a model's, and `wattherd power` says so.
"""
_BY_JOB = """
## Series by job

A series per job outlives its job by weeks in a Prometheus. They are there with
`wattherd serve --job-metrics` only.
"""

_BY_KUBE = """
## Kubernetes

`GET /metrics` of `wattherd kube` at the address of `--health`: of whoever decides in any mode. What
is counted begins at zero with each copy; only the copy that leads orders. The extender tells the
gauges of pods and watts alone. Beside these there are `wattherd_kube_sees`, `wattherd_kube_leads`
and `wattherd_kube_troubles`, of the extender `wattherd_extender_answer_seconds` and
`wattherd_extender_late_total` ([health](../guides/kubernetes-install.md)), `wattherd_build_info` as
above, and `process_*` of this process (processor time, memory, open files).
"""


def page() -> str:
    """The reference page, in Markdown."""
    site = [metric for metric in METRICS.values() if not metric.by_job]
    jobs = [metric for metric in METRICS.values() if metric.by_job]
    parts = (_HEAD, _table(site) + _BY_JOB, _table(jobs) + _BY_KUBE)
    return "\n".join((*parts, _table(list(KUBE_METRICS.values()))))


def _table(metrics: list[MetricFamily]) -> str:
    rows = [
        f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |"
        for m in metrics
    ]
    return "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
