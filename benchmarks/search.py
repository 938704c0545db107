"""Hyper-parameter search: how soon the best of many trials is through, with and without early ends.

    python benchmarks/search.py

27 trials of one hour on 4 GPUs, means over seeds (see `experiments.schedule.search_trials` for the
loss curves).
"""

from __future__ import annotations

import argparse
from statistics import fmean

from wattherd.catalog.gpus import GPUS
from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn
from wattherd.experiments.schedule.search_trials import a_search
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import Fifo
from wattherd.policy.schedule.search import MedianStopping, Search, SuccessiveHalving
from wattherd.workload.cluster_text import parse_cluster
from wattherd.workload.random_streams import stream


def planners(work_s: float) -> dict[str, Planner]:
    fifo = in_turn(OrderedTerms(), Fifo(), Discipline.STRICT)
    gandiva = Gandiva()
    halving = SuccessiveHalving(first=work_s / 27, eta=3, rungs=3)
    asha = SuccessiveHalving(first=work_s / 27, eta=3, rungs=3, asynchronous=True)
    stopping = MedianStopping(grace=work_s / 27)
    return {
        "fifo, all to the end": fifo,
        "gandiva, all to the end": gandiva,
        "fifo, halving": Search(planner=fifo, rule=halving),
        "fifo, asha": Search(planner=fifo, rule=asha),
        "gandiva, halving": Search(planner=gandiva, rule=halving),
        "gandiva, asha": Search(planner=gandiva, rule=asha),
        "fifo, median": Search(planner=fifo, rule=stopping),
        "gandiva, median": Search(planner=gandiva, rule=stopping),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=27)
    parser.add_argument("--work-s", type=float, default=3600.0)
    parser.add_argument("--cluster", default="1x4:T4")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    cluster = parse_cluster(options.cluster, known=GPUS)
    print(
        f"{'':26}{'best through s':>15}{'known s':>10}{'rank':>7}{'loss':>8}{'GPU h':>8}"
        f"{'to the end':>12}"
    )
    for name, planner in planners(options.work_s).items():
        found = [
            a_search(options.trials, options.work_s, stream(seed, "trials")).run(planner, cluster)
            for seed in range(1, options.seeds + 1)
        ]
        print(
            f"{name:26}{fmean(f.best_s for f in found):15,.0f}"
            f"{fmean(f.known_s for f in found):10,.0f}{fmean(f.rank for f in found):7.1f}"
            f"{fmean(f.loss for f in found):8.3f}{fmean(f.gpu_s for f in found) / 3600:8.1f}"
            f"{fmean(f.finished for f in found):12.1f}"
        )


if __name__ == "__main__":
    main()
