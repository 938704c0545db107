"""Our placement policy against FGD and pwr+fgd:0.1 on every public trace: the tables of the docs.

    python benchmarks/placement.py [--policy NAME] [--seed A..B] [TRACE ...]

Per trace: GPUs allocated at 130 % and 100 % arrived, power saved against FGD at 20, 50 and 80 %,
the least lead in power saved over pwr+fgd:0.1 anywhere from 5 to 80 %, and allocation with random
ties.
Exit code 1 if FGD allocates more at 130 %, pwr+fgd:0.1 saves more at 20, 50 or 80 %, or random ties
cost 0.3 points.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wattherd.cli.options import parse_seeds
from wattherd.experiments.placement.pack import Experiment, run_all
from wattherd.experiments.published.source import OpenbFiles

LOADS = (0.2, 0.5, 0.8)
TIE_LOSS_PCT = 0.3


@dataclass(frozen=True)
class Figures:
    end_pct: float
    full_pct: float
    power_w: np.ndarray
    x: np.ndarray


@dataclass(frozen=True)
class Row:
    trace: str
    ours: Figures
    fgd: Figures
    blend: Figures
    ties_pct: float

    def saved(self, who: Figures) -> np.ndarray:
        return 100 * (1 - who.power_w / self.fgd.power_w)

    @property
    def lead(self) -> np.ndarray:
        return self.saved(self.ours) - self.saved(self.blend)

    @property
    def holds(self) -> bool:
        at = [self.index(load) for load in LOADS]
        ties = self.ours.end_pct - self.ties_pct < TIE_LOSS_PCT
        return self.ours.end_pct >= self.fgd.end_pct and bool((self.lead[at] >= 0).all()) and ties

    def index(self, load: float) -> int:
        return int(np.argmin(np.abs(self.ours.x - load)))

    def text(self) -> str:
        def at(who: Figures) -> str:
            return "/".join(f"{self.saved(who)[self.index(load)]:.1f}" for load in LOADS)

        within = (self.ours.x >= 0.05) & (self.ours.x <= 0.8)
        ours, fgd = self.ours, self.fgd
        return (
            f"{self.trace:12} {fgd.end_pct:6.2f} {ours.end_pct:6.2f} "
            f"{ours.end_pct - fgd.end_pct:+6.2f} {ours.full_pct - fgd.full_pct:+6.2f} "
            f"{at(self.blend):>15} {at(ours):>15} {self.lead[within].min():+6.2f} "
            f"{self.ties_pct:6.2f} {'yes' if self.holds else 'NO'}"
        )


HEAD = (
    f"{'trace':12} {'FGD':>6} {'ours':>6} {'@130':>6} {'@100':>6} "
    f"{'blend saves':>15} {'ours saves':>15} {'lead':>6} {'ties':>6} holds"
)


def figures(experiment: Experiment, policy: str, seeds: list[int]) -> Figures:
    processes = os.cpu_count() or 1
    runs = [run for _, run in run_all(experiment, [policy], seeds, processes=processes)]
    return Figures(
        end_pct=float(np.mean([run.allocated_pct for run in runs])),
        full_pct=100 * float(np.mean([run.grar for run in runs])),
        power_w=np.mean([run.grid.power_w for run in runs], axis=0),
        x=runs[0].grid.x,
    )


def row(files: OpenbFiles, trace: str, policy: str, seeds: list[int]) -> Row:
    experiment = files.experiment(trace)
    random_ties = replace(experiment, random_ties=True)
    return Row(
        trace=trace,
        ours=figures(experiment, policy, seeds),
        fgd=figures(experiment, "fgd", seeds),
        blend=figures(experiment, "pwr+fgd:0.1", seeds),
        ties_pct=figures(random_ties, policy, seeds).end_pct,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--policy", default="wattherd")
    parser.add_argument("--seed", default="42..51")
    arguments = parser.parse_args()
    files = OpenbFiles(Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "openb")
    print(HEAD, flush=True)
    rows = []
    for trace in files.traces(tuple(arguments.traces)):
        rows.append(row(files, trace, arguments.policy, parse_seeds(arguments.seed)))
        print(rows[-1].text(), flush=True)
    return 0 if all(one.holds for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
