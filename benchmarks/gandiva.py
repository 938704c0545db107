"""Gandiva against FIFO on a crowded cluster: how soon jobs show something, how busy GPUs are.

    python benchmarks/gandiva.py

One day of one virtual cluster of the Philly trace, on GPU sharing as Lucid measured it.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.time_slicing import (
    TimeSlicingExperiment,
    TimeSlicingFigures,
    profiled,
    stretch,
)
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.pairs import read_alone, read_packed
from wattherd.workload.philly import read_jobs
from wattherd.workload.random_streams import stream

FIRST = datetime(2017, 9, 4, 10, 30, 41)  # noqa: DTZ001 - first submission of the trace
COLUMNS = "mean_feedback_s median_feedback_s p95_feedback_s utilisation mean_jct_s makespan_s"


def crowd(options: argparse.Namespace) -> TimeSlicingExperiment:
    traces = Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "traces"
    alone = read_alone(traces / "lucid" / "single_data.csv")
    packed = read_packed(traces / "lucid" / "colocate_info.csv")
    everything = read_jobs(traces / "sia" / "philly_82248jobs.csv.gz")
    from_s = (datetime.fromisoformat(options.day) - FIRST).total_seconds()
    day = stretch(everything, queue=options.queue, from_s=from_s, length_s=options.hours * 3600)
    short = [spec for spec in day if (spec.duration_s or 0.0) <= options.longest_h * 3600]
    print(f"{len(short)} of {len(day)} jobs, {sum(s.gpus > 1 for s in short)} of several GPUs")
    known = {name: alone[name] for pair in packed.utilisation for name in pair}
    specs = profiled(short, known, stream(options.seed, "profiles of crowd"))
    cluster = parse_cluster(options.cluster, known=GPUS)
    gpus = sum(node.gpu_count for node in cluster.nodes)
    asked_h = sum(spec.gpus * (spec.duration_s or 0.0) for spec in specs) / 3600
    print(f"{asked_h:.0f} GPU hours asked in {options.hours} h of {gpus} GPUs")
    return TimeSlicingExperiment(cluster=cluster, specs=specs, alone=alone, packed=packed)


def planners(crowd: TimeSlicingExperiment) -> dict[str, Planner]:
    given = SchedulerContext(jobs=ReadJobs(specs=tuple(crowd.specs)), cluster=crowd.cluster)
    whole = Gandiva()
    return {
        **{name: preset("none").scheduler(name, given).planner for name in ("fifo", "tiresias")},
        "turns only": replace(whole, packing=False, migration=False, growth=False),
        "without packing": replace(whole, packing=False),
        "without migration": replace(whole, migration=False),
        "gandiva": whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="4x4:3090")
    parser.add_argument("--queue", default="6c71a0")
    parser.add_argument("--day", default="2017-10-24")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--longest-h", type=float, default=12.0, help="leave out longer jobs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    made = crowd(options)
    print(f"{'planner':18}", *(f"{name:>18}" for name in COLUMNS.split()), "  runs/job  cpu_s")
    for name, planner in planners(made).items():
        if not options.only or name in options.only:
            show(name, made.run(planner))


def show(name: str, felt: TimeSlicingFigures) -> None:
    cells = [getattr(felt, column) for column in COLUMNS.split()]
    row = (f"{cell:18.3f}" if cell < 1 else f"{cell:18,.0f}" for cell in cells)
    print(f"{name:18}", *row, f"{felt.runs_per_job:10.1f} {felt.cpu_s:6.1f}")
    assert felt.finished == felt.jobs
    sys.stdout.flush()


if __name__ == "__main__":
    main()
