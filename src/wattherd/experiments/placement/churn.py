"""The churn experiment: pods with run times, averages over time, one run per policy and seed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from wattherd import __version__
from wattherd.errors import UserError
from wattherd.experiments.placement.policies import build_placer, place_policy, warm_up
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import TracePod
from wattherd.sim.churn import ChurnRequest, ChurnTimeline, churn, steady_visits
from wattherd.sim.pack import ready_placer
from wattherd.workload.random_streams import stream

SCHEMA = "wattherd.churn/1"
WARM_UP = 0.1
"""Share of the simulated time left out of the averages, while the first pods settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnExperiment:
    """Offered load in the long run (GPU-time asked over capacity), and how many arrivals."""

    cluster: ClusterSpec
    pods: tuple[TracePod, ...]
    load: float
    arrivals: int


def run_churn(experiment: ChurnExperiment, policy: str, seed: int) -> dict[str, object]:
    """One run as a row of the `wattherd.churn/1` document (docs/reference/churn-json.md)."""
    visits = _visits(experiment, seed)
    order = stream(seed, "tie order").permutation(len(experiment.cluster.nodes))
    placer = build_placer(
        experiment.cluster.reordered(tuple(order.tolist())),
        experiment.pods,
        place_policy(policy),
        draws=stream(seed, "placement"),
    )
    ready_placer(placer, [visit.request for visit in visits])
    warm_up(placer.policy)
    began = time.process_time()
    timeline = churn(placer, visits)
    cpu_s = time.process_time() - began
    row = {"policy": policy, "seed": seed, **_averages(experiment, visits, timeline)}
    return {**row, "cpu_s": round(cpu_s, 3)}


def _visits(experiment: ChurnExperiment, seed: int) -> list[ChurnRequest]:
    if not experiment.cluster.gpu_milli:
        raise UserError("the cluster has no GPU", hint="load is a share of its GPUs")
    lasting = [pod for pod in experiment.pods if pod.duration_s]
    if not any(pod.request.gpu_count for pod in lasting):
        raise UserError(
            "no GPU pod has a run time",
            field="deletion_time",
            hint="churn needs creation_time, scheduled_time and deletion_time columns",
        )
    return steady_visits(
        [pod.request for pod in lasting],
        np.array([pod.duration_s for pod in lasting], dtype=np.float64),
        capacity_milli=experiment.cluster.gpu_milli,
        load=experiment.load,
        arrivals=experiment.arrivals,
        rng=stream(seed, "visits"),
    )


def _averages(
    experiment: ChurnExperiment, visits: list[ChurnRequest], timeline: ChurnTimeline
) -> dict[str, object]:
    capacity = experiment.cluster.gpu_milli
    start_s = WARM_UP * float(timeline.time_s[-1])
    counted = np.array([visit.at_s >= start_s for visit in visits])
    gpu_s = np.array([visit.request.total_gpu_milli * visit.stay_s for visit in visits])
    idle = np.maximum(capacity - timeline.used_milli, 1)
    power_w = timeline.mean_after(start_s, timeline.power_w)
    used = timeline.mean_after(start_s, timeline.used_milli)
    return {
        "arrivals": len(visits),
        "lost": int((~timeline.admitted).sum()),
        "simulated_s": float(timeline.time_s[-1]),
        "admitted_pct": 100 * float(timeline.admitted[counted].mean()),
        "admitted_gpu_time_pct": 100
        * float(gpu_s[counted & timeline.admitted].sum())
        / max(float(gpu_s[counted].sum()), 1.0),
        "allocated_pct": 100 * used / capacity,
        "frag_ratio_pct": 100 * timeline.mean_after(start_s, timeline.fragment_milli / idle),
        "power_w": power_w,
        "w_per_allocated_gpu": 1000 * power_w / max(used, 1.0),
    }


def churn_document(
    experiment: ChurnExperiment, rows: list[dict[str, object]], command: str
) -> dict[str, object]:
    """The `wattherd.churn/1` document."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "load": experiment.load,
        "warm_up": WARM_UP,
        "runs": rows,
    }
