"""Speed and memory of the placement simulator, as docs/speed.md reports them.

    python benchmarks/run.py [NAME ...] [--out FILE.json] [--svg FILE.svg]

Every figure comes from a process of its own, so that user CPU and peak memory are that case's
alone. Targets are those of the project; the exit code is 1 if one is missed. With WATTHERD_DATA
the public default trace is used, else a generated one of the same size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

WATTHERD = [sys.executable, "-m", "wattherd.cli.main"]
SEVEN = "random,dot-product,gpu-clustering,gpu-packing,best-fit,fgd,pwr+fgd:0.1"
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000)


@dataclass(frozen=True)
class Figure:
    case: str
    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> bool:
        return self.target is None or self.value <= self.target


def timed(command: list[str]) -> tuple[float, float, float, str]:
    """Run; user CPU s (with its children's), wall s, peak MiB, stdout."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        if status:
            sys.exit(f"failed: {' '.join(command)}")
        out.seek(0)
        return usage.ru_utime, wall_s, usage.ru_maxrss / 1024, out.read()


def trace(folder: Path) -> list[str]:
    public = Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "openb"
    if (public / "openb_pod_list_default.csv").exists():
        return ["--nodes", str(public / "openb_node_list_gpu_node.csv"),
                "--pods", str(public / "openb_pod_list_default.csv")]  # fmt: skip
    return generated(folder, nodes=1213)


def generated(folder: Path, *, nodes: int) -> list[str]:
    out = folder / f"generated-{nodes}"
    if not out.exists():
        what = ["--family", "default", "--nodes", str(nodes), "--seed", "1", "--out", str(out)]
        subprocess.run([*WATTHERD, "traces", "generate", *what], check=True, capture_output=True)
    return ["--nodes", str(out / "nodes.csv"), "--pods", str(out / "pods.csv")]


def pack(inputs: list[str], *more: str) -> list[str]:
    return [*WATTHERD, "sim", "pack", *inputs, "--load", "1.3", "-o", "json", *more]


def default_run(folder: Path) -> list[Figure]:
    command = pack(trace(folder), "--policy", "fgd", "--seed", "42")
    timed(command)  # fills the cache of compiled kernels
    runs = [timed(command) for _ in range(3)]
    case = "default trace, FGD"
    cpu_s = min(json.loads(out)["runs"][0]["cpu_s"] for *_, out in runs)
    return [
        Figure(case, "with all per-step metrics, after warm-up", cpu_s, "s CPU", 1.0),
        Figure(case, "whole process, cold start", min(run[0] for run in runs), "s CPU", 4.0),
        Figure(case, "peak memory", max(run[2] for run in runs), "MiB"),
    ]


def seventy_runs(folder: Path) -> list[Figure]:
    user_s, wall_s, _, _ = timed(pack(trace(folder), "--policy", SEVEN, "--seed", "42..51"))
    return [
        Figure("7 policies x 10 seeds", "two processes", wall_s, "s wall", 60.0),
        Figure("7 policies x 10 seeds", "all processes", user_s, "s CPU"),
    ]


def large_cluster(folder: Path) -> list[Figure]:
    inputs = generated(folder, nodes=20000)
    user_s, _, peak_mib, out = timed(pack(inputs, "--policy", "fgd", "--seed", "1"))
    run = json.loads(out)
    case = (
        f"20,000 nodes, {run['cluster']['gpus']:,} GPUs, {run['runs'][0]['pods']:,} arrivals, FGD"
    )
    return [
        Figure(case, "whole process", user_s, "s CPU", 60.0),
        Figure(case, "peak memory", peak_mib, "MiB", 2048.0),
    ]


def growth(folder: Path) -> list[Figure]:
    """Cost per arrival against cluster size; the slope in log-log must stay well below one."""
    import math

    figures = []
    for nodes in SIZES:
        _, _, _, out = timed(pack(generated(folder, nodes=nodes), "--policy", "fgd", "--seed", "1"))
        run = json.loads(out)["runs"][0]
        micro = 1e6 * run["cpu_s"] / run["pods"]
        figures.append(Figure("cost per arrival, FGD", f"{nodes:,} nodes", micro, "us CPU"))
    factor = math.log(figures[-1].value / figures[0].value)
    slope = factor / math.log(SIZES[-1] / SIZES[0])
    return [*figures, Figure("cost per arrival, FGD", "exponent of growth", slope, "", 0.7)]


def definitions(folder: Path) -> list[Figure]:
    """The NumPy definitions against the compiled kernels, on the same decisions."""
    command = pack(trace(folder), "--policy", "fgd", "--seed", "42", "--load", "0.3")
    outputs = [timed([*command, *more])[3] for more in ([], ["--reference"])]
    seconds = [json.loads(output)["runs"][0]["cpu_s"] for output in outputs]
    return [Figure("NumPy path over compiled path", "FGD, 30 % load", seconds[1] / seconds[0], "x")]


def help_text(_: Path) -> list[Figure]:
    best = min(timed([*WATTHERD, "--help"])[0] for _ in range(5))
    return [Figure("wattherd --help", "whole process", best, "s CPU", 0.3)]


CASES = {
    "default": default_run,
    "seventy": seventy_runs,
    "large": large_cluster,
    "growth": growth,
    "definitions": definitions,
    "help": help_text,
}


def growth_svg(figures: list[Figure]) -> str:
    """Cost per arrival against nodes, for docs/speed.md."""
    from wattherd.report.charts import Chart
    from wattherd.report.export import standalone
    from wattherd.report.lines import LinePlot, Series, draw_lines

    rows = [figure for figure in figures if figure.unit == "us CPU"]
    nodes = [float(figure.what.split()[0].replace(",", "")) for figure in rows]
    cost = [figure.value for figure in rows]
    plot = LinePlot(
        title="CPU time per arrival",
        about="Measured cost of one placement decision against the number of nodes",
        x_title="nodes",
        y_title="microseconds per arrival, FGD",
        series=(Series(name="measured", number=0, x=nodes, y=cost),),
        x_low=0.0,
        x_high=nodes[-1],
        y_low=0.0,
        y_high=2 * max(cost),
    )
    draw = partial(draw_lines, plot)
    chart = Chart(key="growth", title=plot.title, caption="", draw=draw)
    return standalone(chart, 1, "growth")


def line(figure: Figure) -> str:
    verdict = "met" if figure.met else "MISSED"
    target = "" if figure.target is None else f"target {figure.target:g}: {verdict}"
    return f"{figure.case:58} {figure.what:42} {figure.value:9.2f} {figure.unit:7} {target}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases or CASES:
            for figure in CASES[name](Path(folder)):
                print(line(figure), flush=True)
                figures.append(figure)
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n")
    if arguments.svg:
        arguments.svg.write_text(growth_svg([f for f in figures if f.case.startswith("cost per")]))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
