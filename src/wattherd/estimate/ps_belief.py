"""What is believed of a parameter-server job: a fitted speed, and what its user declared."""

from __future__ import annotations

from dataclasses import dataclass

from wattherd.estimate.speed import SpeedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class PsBelief:
    """`speed` comes from sample runs; training goes on until the loss is `target_loss`.

    `most_steps` is where its user would give up, `epoch_steps` how many steps make an epoch.
    """

    speed: SpeedModel
    target_loss: float
    most_steps: float
    epoch_steps: float
