"""Run directories as `wattherd sim pack --out` leaves them, made up without a simulator.

Curves follow simple formulas: load is granted until `full` percent is reached, fragmentation
rises near the end, and power grows from idle to full with a saving that fades out. They look
like the real thing, which is enough to test and to look at a report.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

IDLE_W, FULL_W, GPUS = 230_000.0, 1_474_000.0, 6212
Payload = dict[str, Any]

POLICIES: Mapping[str, tuple[float, float]] = {
    "random": (87.5, 3.0),
    "dot-product": (90.8, 2.0),
    "gpu-packing": (92.0, 0.8),
    "best-fit": (93.1, 4.0),
    "fgd": (95.4, 0.0),
    "pwr": (90.5, 14.0),
    "pwr+fgd:0.1": (92.9, 13.3),
}
"""Policy to (percent allocated in the end, percent of power saved at half load)."""


def a_curve(
    full: float, saved: float, *, bins: Iterable[int] = range(131), gaps: Sequence[int] = ()
) -> Payload:
    """Curves of one run; the bins numbered in `gaps` are empty."""
    loads = list(bins)
    held = [min(load, full - 3 * math.exp(-max(load - full, 0) / 12)) for load in loads]
    ratio = [min(99.0, 14 + 85 / (1 + math.exp((full - 6 - load) / 4))) for load in loads]
    amount = [part * (100 - have) / 100 for part, have in zip(ratio, held, strict=True)]
    power = [
        (IDLE_W + (FULL_W - IDLE_W) * have / 100) * (1 - saved / 100 * math.sin(load / 42))
        if load < 130
        else IDLE_W + (FULL_W - IDLE_W) * have / 100
        for load, have in zip(loads, held, strict=True)
    ]
    columns = {
        "allocated_pct": held,
        "frag_ratio_pct": ratio,
        "frag_amount_pct": amount,
        "power_w": power,
    }
    return {
        "arrived_pct": loads,
        **{
            name: [None if at in gaps else value for at, value in zip(loads, values, strict=True)]
            for name, values in columns.items()
        },
    }


def a_run(policy: str = "fgd", seed: int = 42, **changes: Any) -> Payload:
    """One run; `full`, `saved`, `bins` and `gaps` shape its curve, the rest replaces fields."""
    full, saved = POLICIES.get(policy, (91.0, 1.0))
    full = changes.pop("full", full + 0.4 * math.sin(7 * seed))
    saved = changes.pop("saved", saved + 0.2 * math.sin(5 * seed))
    shape = {name: changes.pop(name) for name in ("bins", "gaps") if name in changes}
    curve = a_curve(full, saved, **shape)
    return {
        "policy": policy,
        "seed": seed,
        "trace": "openb_pod_list_default",
        "pods": 10_866,
        "placed": 8_334,
        "failed": 2_532,
        "allocated_pct": full,
        "grar": full / 100,
        "frag_ratio_pct": 98.9,
        "power_w": next(value for value in reversed(curve["power_w"]) if value is not None),
        "cpu_s": 0.8 + seed % 10 / 100,
        "curve": curve,
        **changes,
    }


def a_pack(runs: Sequence[Payload], **changes: Any) -> Payload:
    """The content of a `pack.json`; `changes` replaces fields."""
    return {
        "schema": "wattherd.pack/1",
        "version": "0.1.0",
        "nodes_file": "nodes.csv",
        "pods_file": "openb_pod_list_default.csv",
        "trace": "openb_pod_list_default",
        "load": 1.3,
        "cluster": {
            "nodes": 1213,
            "gpus": GPUS,
            "gpu_milli": 1000 * GPUS,
            "cpu_milli": 107_018_000,
            "idle_w": IDLE_W,
            "full_w": FULL_W,
        },
        "impossible": {"pods": 0, "requests": []},
        "runs": list(runs),
        **changes,
    }


def all_runs(seeds: Iterable[int] = range(42, 52), **changes: Any) -> list[Payload]:
    """Every policy with every seed."""
    return [a_run(policy, seed, **changes) for policy in POLICIES for seed in seeds]


def write_pack(directory: Path, pack: Payload) -> Path:
    """Write `pack.json` and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pack.json").write_text(json.dumps(pack), encoding="utf-8")
    return directory


def a_node(name: str, free: Sequence[int], *, model: str = "G2", cpu_free: int = 0) -> list[str]:
    """One row of a final cluster, by free milli of each GPU; 96 vCPU."""
    gpus = "-".join(map(str, free))
    return [name, model, "96000", str(cpu_free), "1024", gpus]


def write_final(directory: Path, stem: str, nodes: Iterable[Sequence[str]]) -> Path:
    """Write `final-STEM.csv.gz`, where STEM is `policy-seed` as spelled in file names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ("node", "gpu_model", "cpu_milli", "cpu_free_milli", "memory_free_mib")
    writer.writerow((*head, "gpu_free_milli"))
    writer.writerows(nodes)
    file = directory / f"final-{stem}.csv.gz"
    file.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    return file


def a_cluster(nodes: int, *, busy: float = 0.95) -> list[list[str]]:
    """A mixed cluster of which about `busy` is in use, the same for the same arguments."""
    models = (("G2", 8), ("T4", 2), ("V100M16", 4))
    rows = []
    for index in range(nodes):
        model, count = models[(0, 0, 0, 1, 1, 2)[index % 6]]
        free = [
            0 if (index * 37 + slot * 11) % 100 < 100 * busy else (index * 53 + slot * 310) % 1001
            for slot in range(count)
        ]
        rows.append(a_node(f"node-{index:05d}", free, model=model, cpu_free=index * 911 % 96_001))
    return rows
