"""How long a month of jobs takes to import: 50,000 jobs of `sacct -P`, each with three steps.

The log is drawn from a seed, written to a temporary folder and read by `wattherd import sacct` in
a process of its own. Exit code 1 if 50,000 take more than 20 s of a processor.

    python benchmarks/import_site.py
    python benchmarks/import_site.py --jobs 5000
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from wattherd.workload.imports.slurm import SACCT_FORMAT

MONTH_S = 30 * 86_400
NODES = 100
STEPS = ("batch", "extern", "0")
TARGET_S, OF_JOBS = 20.0, 50_000


def lines(jobs: int) -> Iterator[str]:
    """The log, header first."""
    chance = random.Random(1)
    begin = datetime(2026, 10, 1)  # noqa: DTZ001 - Slurm prints local times without a zone
    yield SACCT_FORMAT.replace(",", "|")
    for number in range(jobs):
        submit = begin + timedelta(seconds=number * MONTH_S // jobs)
        start = submit + timedelta(seconds=chance.randrange(3600))
        run_s = chance.randrange(10, 20_000)
        end = start + timedelta(seconds=run_s)
        nodes, each = chance.choice([1, 1, 1, 1, 2, 4]), chance.choice([1, 2, 4, 8])
        first = chance.randrange(NODES)
        gpus = nodes * each
        tres = f"cpu={gpus * 8},gres/gpu:a100={gpus},gres/gpu={gpus},mem={gpus * 32}G,node={nodes}"
        where = f"{nodes}|gpu[{first:03}-{first + nodes - 1:03}]"
        times = f"{submit:%FT%T}|{submit:%FT%T}|{start:%FT%T}|{end:%FT%T}|COMPLETED"
        yield f"{number}|train|u{number % 40}|a{number % 7}|gpu|n|{times}|{tres}|{tres}|{where}||"
        for step in STEPS:
            yield f"{number}.{step}|{step}||a|||{times}|cpu=8,node=1||{where}||{run_s * 300}"


def main() -> int:
    """Print seconds of the wall and of the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "sacct.txt"
        log.write_text("\n".join(lines(jobs)) + "\n", encoding="utf-8")
        command = ["import", "sacct", str(log), "--out", f"{folder}/site"]
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "wattherd", *command], check=True)
        wall_s = time.monotonic() - began_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    target_s = TARGET_S * jobs / OF_JOBS
    print(f"{jobs:,} jobs: {wall_s:.1f} s, {cpu_s:.1f} s of a processor (target: {target_s:g} s)")
    return int(jobs >= OF_JOBS and cpu_s > target_s)


if __name__ == "__main__":
    sys.exit(main())
