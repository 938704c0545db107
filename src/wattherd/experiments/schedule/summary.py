"""The figures of a simulated run: a row of `wattherd.sim/1` (docs/reference/sim-json.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from wattherd.sim.branch_meter import LevelUse
from wattherd.sim.collector import JobOutcome, ModelUse
from wattherd.sim.meter import EnergyMeter
from wattherd.sim.usage import UsageMeter

JOB_COLUMNS = (
    "job",
    "state",
    "gpus",
    "submit_s",
    "start_s",
    "finish_s",
    "jct_s",
    "energy_j",
    "restarts",
    "preemptions",
    "detail",
)


def model_rows(by_model: Mapping[str, ModelUse]) -> dict[str, object]:
    """Which jobs went where, at which watts: GPU hours and mean draw per GPU by GPU model."""
    return {
        "by_model": [
            {
                "model": model,
                "gpu_h": use.gpu_s / 3600,
                "mean_w": use.energy_j / use.gpu_s,
                "gpu_h_by_profile": {
                    kind: gpu_s / 3600 for kind, gpu_s in sorted(use.kinds.items())
                },
            }
            for model, use in sorted(by_model.items())
        ]
    }


def summary(
    policy: str,
    outcomes: Sequence[JobOutcome],
    meter: EnergyMeter,
    usage: UsageMeter,
    *,
    alone_s: Mapping[str, float],
    cpu_s: float,
) -> dict[str, object]:
    """One policy's figures; averages are over jobs that succeeded.

    `alone_s` is how long jobs would take alone on the cluster, by id, where that is known.
    """
    gpus = int(usage.core.held.gpu_count.sum())
    cpus_asked = usage.cpu_milli_s > 0
    ratios = np.array(
        [
            one.jct_s / alone_s[one.job_id]
            for one in outcomes
            if one.jct_s is not None and one.job_id in alone_s
        ]
    )
    jcts = np.array([one.jct_s for one in outcomes if one.jct_s is not None])
    finishes = [one.finish_s for one in outcomes if one.finish_s is not None]
    begin_s = min((one.submit_s for one in outcomes), default=0.0)
    span_s = max(finishes, default=begin_s) - begin_s
    held_gpu_s = math.fsum(one.gpu_s for one in outcomes)
    with_deadline = [one for one in outcomes if one.deadline_s is not None]
    return {
        "policy": policy,
        "jobs": len(outcomes),
        "finished": len(jcts),
        "failed": sum(one.state in ("Failed", "TimedOut") for one in outcomes),
        "rejected": sum(one.state == "Rejected" for one in outcomes),
        "waiting": sum(not one.state for one in outcomes),
        "avg_jct_s": _mean(jcts),
        "median_jct_s": _percentile(jcts, 50),
        "p99_jct_s": _percentile(jcts, 99),
        "makespan_s": span_s,
        "avg_queue_s": _mean(np.array(_waits(outcomes))),
        "gpu_utilisation_pct": _share_pct(held_gpu_s, gpus * span_s),
        "cpu_utilisation_pct": _share_pct(usage.cpu_milli_s, usage.cpu_capacity_milli * span_s)
        if cpus_asked
        else None,
        "cpu_gpu_gap_pct": _share_pct(usage.gap_s, span_s) if cpus_asked else None,
        "fragmentation_pct": usage.fragmentation_pct,
        "avg_finish_time_ratio": _mean(ratios),
        "max_finish_time_ratio": float(ratios.max()) if len(ratios) else None,
        "jain_slowdown": _jain(outcomes),
        "restarts": sum(max(one.runs - 1, 0) for one in outcomes),
        "preemptions": sum(one.preemptions for one in outcomes),
        "deadlines": len(with_deadline),
        "deadlines_missed": sum(one.missed for one in with_deadline),
        "energy_j": meter.energy_j(),
        "over_budget_s": meter.over_budget_s,
        "over_budget_j": meter.over_budget_j,
        "exempt_s": meter.exempt_s,
        "exempt_j": meter.exempt_j,
        "cpu_s": round(cpu_s, 3),
    }


def level_rows(levels: Sequence[LevelUse]) -> dict[str, object]:
    """What a power tree adds to the row; time above the site's budget counts losses too."""
    return {
        "over_budget_s": levels[0].over_budget_s,
        "over_budget_j": levels[0].over_budget_j,
        "exempt_s": levels[0].exempt_s,
        "levels": [asdict(one) for one in levels],
    }


def _share_pct(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: np.ndarray, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _waits(outcomes: Sequence[JobOutcome]) -> list[float]:
    """Time without devices, from submission to the end, of jobs that succeeded."""
    # What held devices until the end of a slice of time was done a little before.
    return [max(one.jct_s - one.held_s, 0.0) for one in outcomes if one.jct_s is not None]


def _jain(outcomes: Sequence[JobOutcome]) -> float | None:
    """Jain's index of slowdown (completion time over time with devices): 1 is even."""
    slow = np.array(
        [
            max(one.jct_s / one.held_s, 1.0)
            for one in outcomes
            if one.jct_s is not None and one.held_s > 0
        ]
    )
    return float(slow.sum() ** 2 / (len(slow) * (slow**2).sum())) if len(slow) else None


def job_rows(outcomes: Sequence[JobOutcome]) -> list[tuple[object, ...]]:
    """Rows of `jobs-<policy>.csv`; an empty cell is a time that never came."""
    return [
        (
            one.job_id,
            one.state or "Waiting",
            one.gpus,
            one.submit_s,
            "" if one.start_s is None else one.start_s,
            "" if one.finish_s is None else one.finish_s,
            "" if one.jct_s is None else one.jct_s,
            round(one.energy_j, 3),
            max(one.runs - 1, 0),
            one.preemptions,
            one.detail,
        )
        for one in outcomes
    ]
