"""What sharing watts by priors is worth: `water-filling` against `uniform`, no curve measured.

    python benchmarks/sharing_priors.py [--seeds 3]

Each set has 250 jobs drawn from the seed (Poisson arrivals, log-normal durations). Figures are
percent against `uniform` on the same jobs: mean, and the least and the most over the seeds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

import wattherd as wh

JOBS = 250
SHARE = 0.6
"""The budget, of what all GPUs draw at most."""
SETS = {
    "1 GPU each": ((1,), 45.0, 0.0),
    "1 to 8 GPUs": ((1, 1, 1, 1, 2, 2, 4, 8), 120.0, 0.0),
    "1 to 8 GPUs, wide ones longer": ((1, 1, 1, 1, 2, 2, 4, 8), 150.0, 0.5),
    "8 GPUs each": ((8,), 360.0, 0.0),
}
"""Widths drawn from, mean seconds between jobs, and by which power of the width durations grow."""
CLUSTERS = {"12x8:V100M16": 96 * 300.0, "8x8:V100M16,4x8:A100": 64 * 300.0 + 32 * 400.0}
FIGURES = {"avg_jct_s": "mean completion", "makespan_s": "makespan", "energy_j": "energy"}


def job_file(folder: Path, name: str, seed: int) -> Path:
    """One set of jobs as a native CSV."""
    widths, gap_s, grows = SETS[name]
    drawn, submit_s, lines = random.Random(seed), 0.0, ["id,submit_s,gpus,duration_s"]
    for number in range(JOBS):
        submit_s += drawn.expovariate(1 / gap_s)
        gpus = drawn.choice(widths)
        duration_s = (60 + drawn.lognormvariate(8.0, 1.2)) * gpus**grows
        lines.append(f"job-{number:03d},{submit_s:.0f},{gpus},{duration_s:.0f}")
    file = folder / f"{seed}.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def figures(jobs: Path, cluster: str, policy: str, power: str) -> dict[str, float]:
    """What one run came to."""
    budget = f"{SHARE * CLUSTERS[cluster]:.0f}W"
    run = wh.simulate(
        jobs=jobs, cluster=cluster, policies=[policy], budget=budget, power=power, preset="none"
    )
    (row,) = run.summary
    return {name: float(row[name]) for name in FIGURES}


def compared(name: str, cluster: str, policy: str, seeds: int) -> str:
    """A row of the table."""
    against: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            jobs = job_file(Path(folder), name, seed)
            ours, even = (
                figures(jobs, cluster, policy, power) for power in ("water-filling", "uniform")
            )
            for figure in FIGURES:
                against[figure].append(100 * (ours[figure] / even[figure] - 1))
    told = [
        f"{statistics.fmean(v):+.1f} ({min(v):+.1f} to {max(v):+.1f})" for v in against.values()
    ]
    return f"| {name} | {cluster} | {policy} | {' | '.join(told)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print(
        "| jobs | cluster | scheduler | " + " | ".join(f"{f}, %" for f in FIGURES.values()) + " |"
    )
    print("|---|---|---|---:|---:|---:|")
    for name in SETS:
        for cluster in CLUSTERS:
            for policy in ("fifo-backfill", "tiresias"):
                print(compared(name, cluster, policy, seeds), flush=True)


if __name__ == "__main__":
    main()
