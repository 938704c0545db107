"""Random: a uniformly random node with room, and a random GPU on it (baseline of FGD)."""

from __future__ import annotations

from wattherd.policy.place.contract import Scorer
from wattherd.policy.place.first_fit import KERNEL_ID, first_fit_rows

SCORER = Scorer(
    name="random",
    doc="A uniformly random node with room, and a random GPU on it",
    rows=first_fit_rows,
    kernel_id=KERNEL_ID,
    random_ties=True,
    random_gpu=True,
)
