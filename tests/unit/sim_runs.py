"""Run directories of `sim run`, made up without a simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POLICIES = ("fifo", "srtf", "pollux")


def a_row(policy: str, number: int, jobs: int, **changes: Any) -> dict[str, Any]:
    """Figures of one policy; later ones are faster and take more energy."""
    return {
        "policy": policy,
        "jobs": jobs,
        "finished": jobs,
        "rejected": 0,
        "avg_jct_s": 9000.0 - 1000 * number,
        "median_jct_s": 5000.0 - 500 * number,
        "p99_jct_s": 30000.0,
        "makespan_s": 40000.0,
        "avg_queue_s": 100.0,
        "gpu_utilisation_pct": 80.0 + number,
        "restarts": 3 * number,
        "preemptions": number,
        "energy_j": {"run": 2e8 + 1e7 * number, "idle": 1e7, "wake": 0.0, "wasted": 1e6},
        "over_budget_s": 0.0,
        "cpu_s": 0.5,
        **changes,
    }


def a_sim(*policies: str, jobs: int = 6, **changes: Any) -> dict[str, Any]:
    rows = [a_row(name, at, jobs) for at, name in enumerate(policies or POLICIES)]
    return {
        "schema": "wattherd.sim/1",
        "version": "0.1.0",
        "command": "wattherd sim run --jobs jobs.csv",
        "jobs": "data/jobs.csv",
        "format": "pollux",
        "cluster": "2x4:T4",
        "capacity": {"nodes": 2, "gpus": 8, "cpus": 64.0},
        "preset": "pollux-osdi21",
        "budget": "400W",
        "power": "water-filling",
        "policies": rows,
        **changes,
    }


def write_sim(
    folder: Path, document: dict[str, Any] | None = None, *, history: bool = True
) -> Path:
    """The files of a run in which job i is submitted at 600 i and runs for an hour, then half."""
    document = document or a_sim()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sim.json").write_text(json.dumps(document))
    for row in document["policies"]:
        write_jobs(folder, row["policy"], row["jobs"])
        if history:
            write_history(folder, row["policy"], row["jobs"])
    return folder


def write_jobs(folder: Path, policy: str, jobs: int) -> None:
    lines = ["job,state,gpus,submit_s,start_s,finish_s,jct_s,energy_j,restarts,preemptions,detail"]
    for at in range(jobs):
        submit, finish = 600.0 * at, 600.0 * at + 7200
        lines.append(f"j{at},Succeeded,2,{submit},{submit + 60},{finish},7200.0,1.5,1,1,")
    (folder / f"jobs-{policy}.csv").write_text("\n".join(lines) + "\n")


def write_history(folder: Path, policy: str, jobs: int) -> None:
    runs = ["job,start_s,stop_s,gpus,nodes"]
    for at in range(jobs):
        begin = 600.0 * at + 60
        runs.append(f"j{at},{begin},{begin + 3600},2,node-0:2")
        runs.append(f"j{at},{begin + 3600},{begin + 7140},{1 + at % 4},node-1:{1 + at % 4}")
    (folder / f"runs-{policy}.csv").write_text("\n".join(runs) + "\n")
    power = ["time_s,gpus,cpus,run_w,draw_w,peak_w,budget_w"]
    for step in range(100):
        gpus = 8 if step < 80 else 2
        budget = "" if step < 10 else "400.0"
        power.append(
            f"{100.0 * step},{gpus},{4 * gpus},{40 * gpus},{320 + 10 * gpus},{380},{budget}"
        )
    (folder / f"power-{policy}.csv").write_text("\n".join(power) + "\n")
