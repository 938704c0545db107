"""Training jobs that report progress, stop at a step, resume exactly, and change width.

    job = wattherd_train.current()

Standard library only. PyTorch, Lightning and Transformers are imported where their names are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wattherd_train.batches import BatchPlan, MicroBatch
from wattherd_train.checkpoints import Checkpoints
from wattherd_train.distributed import any_rank
from wattherd_train.job import Job, current
from wattherd_train.noise import GradientNoise
from wattherd_train.sampler import ResumableSampler
from wattherd_train.world import World

if TYPE_CHECKING:
    from wattherd_train.huggingface import HFCallback
    from wattherd_train.lightning import LightningCallback

__version__ = "0.1.0"
__all__ = [
    "BatchPlan",
    "Checkpoints",
    "GradientNoise",
    "HFCallback",
    "Job",
    "LightningCallback",
    "MicroBatch",
    "ResumableSampler",
    "World",
    "any_rank",
    "current",
]
_LAZY = {"HFCallback": "huggingface", "LightningCallback": "lightning"}


def __getattr__(name: str) -> Any:
    """Glue of a framework, imported with it."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
