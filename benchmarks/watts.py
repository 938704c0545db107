"""What the account of watts costs: one budget, a tree of one domain, a tree of 1 + 10 + 100.

    python benchmarks/watts.py [--jobs 1500] [--repeat 1] [--power water-filling] [--against DIR]

The same jobs on 100 nodes of 8 GPUs under tiresias, user CPU time of the whole simulation and its
ratio to the single budget of the same round; the median of `--repeat` rounds counts, each after a
short run that loads what is compiled. The budgets of rows and racks leave 10 and 30 % more than
their part of the site's (`tight`: all three levels bind) or 50 and 100 % (`loose`: mostly the
site's does).

`--against` is another checkout (`git worktree add DIR COMMIT`): it runs in turn with this one, and
the last column is this one's time over that one's. SHA-256 of all commands says whether both
decided alike.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

NODES, GPUS_EACH, ROWS, RACKS = 100, 8, 10, 100
SITE_PART = 0.6
"""The site's budget, of what all GPUs draw uncapped."""
TREES = ("one budget", "tree of one", "tight tree", "loose tree")


def simulated(name: str, jobs: int, power: str) -> dict[str, Any]:
    """One run in this process; imports what `sys.path` says, which may be another checkout."""
    from wattherd.catalog.gpus import GPUS
    from wattherd.experiments.schedule.run import ComparisonSetup, simulate
    from wattherd.experiments.schedule.scheduler_context import SchedulerContext
    from wattherd.experiments.schedule.simulators import preset
    from wattherd.experiments.schedule.workloads import ReadJobs
    from wattherd.model.power_tree import PowerTree, TreeDomain
    from wattherd.workload.cluster_text import parse_cluster
    from wattherd.workload.generate_jobs import JobMix, generate_jobs

    cluster = parse_cluster(f"{NODES}x{GPUS_EACH}:V100M16", known=GPUS)
    mix = JobMix(jobs=jobs, gpus=NODES * GPUS_EACH, load=1.3, longest_s=14_400.0)
    site_w = SITE_PART * GPUS["V100M16"].max_w * NODES * GPUS_EACH
    nodes = tuple(node.name for node in cluster.nodes)

    def levels(row: float, rack: float) -> PowerTree:
        found = [TreeDomain(name="site", budget_w=site_w)]
        for at in range(ROWS):
            budget_w = row * site_w / ROWS
            found.append(TreeDomain(name=f"row-{at}", parent="site", budget_w=budget_w))
        for at in range(RACKS):
            mine, budget_w = nodes[at * NODES // RACKS : (at + 1) * NODES // RACKS], rack * site_w
            found.append(
                TreeDomain(
                    name=f"rack-{at}", parent=f"row-{at % ROWS}", budget_w=budget_w / RACKS,
                    nodes=mine,
                )
            )  # fmt: skip
        return PowerTree(tuple(found))

    given = SchedulerContext(jobs=ReadJobs(specs=generate_jobs(mix, 1)), cluster=cluster)
    tree = {
        "one budget": None,
        "tree of one": PowerTree((TreeDomain(name="site", budget_w=site_w, nodes=nodes),)),
        "tight tree": levels(1.1, 1.3),
        "loose tree": levels(1.5, 2.0),
    }[name]
    budget = ((0.0, site_w),) if tree is None else ()
    setting = ComparisonSetup(
        preset=preset("none"), given=given, budget=budget, tree=tree, power=power, record=True
    )
    found = simulate(setting, "tiresias")
    commands = [repr(one) for one in found.recording.commands]
    digest = hashlib.sha256("\n".join(commands).encode()).hexdigest()[:12]
    return {"cpu_s": found.row["cpu_s"], "commands": len(commands), "digest": digest}


def rounds(checkout: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """One round of all trees in a process of its own, each run twice: the second one counts."""
    order = [sys.executable, str(Path(__file__).resolve()), "--inside", str(checkout / "src")]
    order += ["--jobs", str(options.jobs), "--power", options.power]
    done = subprocess.run(order, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def inside(source: str, options: argparse.Namespace) -> None:
    sys.path.insert(0, source)
    found = {}
    for name in TREES:
        simulated(name, min(options.jobs, 200), options.power)  # loads compiled kernels
        found[name] = simulated(name, options.jobs, options.power)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--power", default="water-filling")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options)
        return
    here = Path(__file__).resolve().parents[1]
    checkouts = [here, *([options.against.resolve()] if options.against else [])]
    runs = [[rounds(one, options) for one in checkouts] for _ in range(options.repeat)]
    print(f"{'':14}{'CPU s':>8}{'of one budget':>15}{'commands':>10}  {'digest':14}of the other")
    for name in TREES:
        mine = [found[0][name] for found in runs]
        to_flat = median(found[0][name]["cpu_s"] / found[0][TREES[0]]["cpu_s"] for found in runs)
        other = ""
        if options.against:
            ratio = median(found[0][name]["cpu_s"] / found[1][name]["cpu_s"] for found in runs)
            same = mine[0]["digest"] == runs[0][1][name]["digest"]
            other = f"{ratio:.2f}, {'equal' if same else 'other'} commands"
        cpu_s = median(one["cpu_s"] for one in mine)
        print(f"{name:14}{cpu_s:8.2f}{to_flat:15.2f}{mine[0]['commands']:10,}  "
              f"{mine[0]['digest']:14}{other}")  # fmt: skip


if __name__ == "__main__":
    main()
