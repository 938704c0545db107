"""Compile the kernels of Pollux' searches and of its fit into the cache on disk.

Run before tests in several processes: each would compile them for itself, in a minute.
Without Numba there is nothing to compile, and this takes a moment.
"""

from __future__ import annotations

import numpy as np

from wattherd.estimate.goodput_agent import fit
from wattherd.policy.schedule.pollux_problem import PolluxApplicant, question
from wattherd.policy.schedule.pollux_search import KINDS, searchers


def main() -> None:
    """Ask each search, and the fit, something small."""
    jobs = [
        PolluxApplicant(unit=1, least=1, most=4, factor=0.5, held=(), barred=(), report=None)
        for _ in range(3)
    ]
    asked = {**question([4, 4, 2], jobs), "states": [], "seed": [1, 2]}
    answers = searchers(np.random.default_rng)
    for kind in KINDS.values():
        answers[kind]({**asked, "population": 12, "generations": 8})
    fit({(1, 1, 16): (0.1, 0.0), (1, 2, 16): (0.15, 0.05), (2, 4, 32): (0.3, 0.1)})


if __name__ == "__main__":
    main()
