"""Loads as they were measured: AC power of 8xH100 nodes in MLPerf training submissions.

The file is `power/mlperf_train_v4.0_smc/node_power_2s.csv.gz` below $WATTHERD_DATA (mlcommons'
training_results_v4.0, Apache-2.0): one row every 2 s per node and run.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError

Floats = NDArray[np.float64]
FILE = Path("power/mlperf_train_v4.0_smc/node_power_2s.csv.gz")
KEPT_S = 1_800.0
"""Of every run its first half hour: more would only be read and thrown away."""


def measured_file() -> Path:
    """Where the measurements are.

    Raises:
        UserError: nowhere.
    """
    root = os.environ.get("WATTHERD_DATA", "")
    path = Path(root) / FILE
    if not root or not path.is_file():
        raise UserError(f"no measured loads: {FILE} is not in WATTHERD_DATA", field="--scenario",
                        hint="set WATTHERD_DATA to the folder that has power/")  # fmt: skip
    return path


def measured_w(
    rng: np.random.Generator, seconds: int, jobs: int, job_nodes: int, most_w: float
) -> Floats:
    """Draw (T, jobs * job_nodes) second by second of runs chosen at random.

    Every job replays `job_nodes` nodes of a run on as many or more, from a random moment on; a run
    that is shorter begins anew.

    Raises:
        UserError: there are no such measurements.
    """
    runs = [nodes for nodes in _runs(measured_file()) if len(nodes) >= job_nodes]
    columns = []
    for _ in range(jobs):
        nodes = runs[int(rng.integers(len(runs)))]
        chosen = rng.permutation(len(nodes))[:job_nodes]
        longest_s = min(nodes[row][0][-1] for row in chosen)
        at_s = (rng.uniform(0.0, longest_s) + np.arange(seconds)) % longest_s
        columns += [np.interp(at_s, *nodes[row]) for row in chosen]
    return np.asarray(np.minimum(np.stack(columns, axis=1), most_w))


def _runs(path: Path) -> list[list[tuple[Floats, Floats]]]:
    """Seconds and watts of every node, by run."""
    rows: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            key = (row["system"], row["benchmark"], row["run"], row["node"])
            rows[key].append((float(row["time_ms"]) / 1e3, float(row["power_w"])))
    runs: dict[tuple[str, ...], list[tuple[Floats, Floats]]] = defaultdict(list)
    for node, found in sorted(rows.items()):
        table = np.array(sorted(found))
        at_s = table[:, 0] - table[0, 0]
        runs[node[:3]].append((at_s[at_s <= KEPT_S], table[at_s <= KEPT_S, 1]))
    return list(runs.values())


GPU_FOLDER = Path("power/h100_8gpu_train_ckpt")
GPU_FILES = ("ckpt1.csv.gz", "ckpt50.csv.gz", "ckpt100.csv.gz", "ckpt500.csv.gz")
"""Training that saves its state every so many steps (grantwilkins/training_profile)."""
GPUS = 8


def measured_gpus_w(rng: np.random.Generator, steps: int, count: int) -> Floats:
    """Draw (steps, count) every 100 ms of H100s that train; every eight are one node of a file.

    A file that is shorter begins anew; each node starts at a random moment of its file.

    Raises:
        UserError: there are no such measurements.
    """
    columns: list[Floats] = []
    while len(columns) < count:
        trace = _gpu_trace(_gpu_file(GPU_FILES[len(columns) // GPUS % len(GPU_FILES)]))
        first = int(rng.integers(len(trace)))
        rows = (first + np.arange(steps)) % len(trace)
        columns += list(trace[rows].T)
    return np.stack(columns[:count], axis=1)


def _gpu_file(name: str) -> Path:
    path = Path(os.environ.get("WATTHERD_DATA", "")) / GPU_FOLDER / name
    if not path.is_file():
        problem = f"no measured loads: {GPU_FOLDER / name} is not in WATTHERD_DATA"
        hint = "set WATTHERD_DATA to the folder that has power/"
        raise UserError(problem, field="--scenario", hint=hint)
    return path


def _gpu_trace(path: Path) -> Floats:
    """Watts (T, 8): the file has a row for each GPU in turn, and no number that says which."""
    with gzip.open(path, "rt", encoding="utf-8") as text:
        words = [line.split(",")[1].strip() for line in text if line.count(",") == 3]
    watts = np.array([float(word[:-2]) for word in words if word.endswith(" W")])
    return watts[: len(watts) // GPUS * GPUS].reshape(-1, GPUS)
