"""Learn whose turn it is: a scheduler of six weights, and how it does on jobs it never saw.

    python scheduler.py [ROUNDS]

The cross-entropy method: draw weights, keep the best, draw around them. Needs `wattherd[rl]`.
"""

import sys

import numpy as np

from wattherd.experiments.schedule.schedule_env import NOBODY, Ground, ScheduleEnv, judged
from wattherd.policy.schedule.turn_by_turn import JOB_FEATURES, TURNS

GROUND = Ground(gpus=16, jobs=40, longest_s=7200.0, load=1.6, budget="0:2.4kW,2h:1.8kW")
SIZE = len(JOB_FEATURES)
TRIED, KEPT = 12, 4


def chosen(weights, jobs):
    """Of the jobs whose GPUs are free, the row with the highest score; None if there is none."""
    fits = jobs[:, JOB_FEATURES.index("fits")] > 0
    return int(np.where(fits, jobs @ weights, -np.inf).argmax()) if fits.any() else None


def episode(env, weights, seed):
    """The rewards of one whole run."""
    seen, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        row = chosen(weights, seen[: TURNS * SIZE].reshape(TURNS, SIZE))
        seen, reward, over, _, _ = env.step(NOBODY if row is None else row)
        total += reward
    return total


def learned(rounds):
    """Weights, by episodes 0 to 2."""
    env, draws = ScheduleEnv(GROUND), np.random.default_rng(1)
    centre, spread = np.zeros(SIZE), np.ones(SIZE)
    for number in range(rounds):
        tried = centre + spread * draws.standard_normal((TRIED, SIZE))
        told = [np.mean([episode(env, one, seed) for seed in range(3)]) for one in tried]
        best = tried[np.argsort(told)[-KEPT:]]
        centre, spread = best.mean(axis=0), best.std(axis=0) + 0.05
        print(f"round {number}: mean completion {-max(told):.2f} mean durations at best")
    return centre


def main():
    """Learn, and judge on workloads 100 to 109."""
    weights = learned(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
    print(
        "weights:", ", ".join(f"{n} {w:+.2f}" for n, w in zip(JOB_FEATURES, weights, strict=True))
    )
    beside = ("fifo", "fifo-first-fit", "sjf")
    unseen = judged(lambda turn: chosen(weights, turn.jobs), GROUND, range(100, 110), beside)
    print("mean completion on workloads never seen:")
    for name, time_s in unseen.items():
        print(f"{name:16} {time_s / 60:5.1f} min")


if __name__ == "__main__":
    main()
