"""PyTorch Lightning: a callback that reports steps, and saves and ends when asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from wattherd_train.job import Job, current
from wattherd_train.sampler import ResumableSampler

NAME = "wattherd-stop.ckpt"


class LightningCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Pass it to the trainer, and `callback.ckpt_path` to `trainer.fit`.

    Lightning's own reduction makes all ranks stop at the same step. Within an epoch Lightning does
    not know by itself how far its data was read: with the loader's `sampler` (its `batch_sampler`)
    given here, that is in the checkpoint, too.
    """

    def __init__(self, job: Job | None = None, *, sampler: ResumableSampler | None = None) -> None:
        super().__init__()
        self.job = job or current()
        self._sampler = sampler
        self._step = -1

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint of the last stop, None where there is none."""
        return str(self._path) if self._path.exists() else None

    @property
    def _path(self) -> Path:
        return self.job.checkpoint_dir / NAME

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Have Lightning reduce the wish to stop."""
        reduce = trainer.strategy.reduce_boolean_decision
        self.job.agree_by(lambda wanted: bool(reduce(wanted, all=False)))

    def state_dict(self) -> dict[str, Any]:
        """What Lightning keeps of this in its checkpoints."""
        return {} if self._sampler is None else {"sampler": self._sampler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What it kept."""
        if self._sampler is not None and "sampler" in state_dict:
            self._sampler.load_state_dict(state_dict["sampler"])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report once per optimiser step, not for each batch that is accumulated."""
        if self._sampler is not None:
            self._sampler.commit()
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        steps = trainer.estimated_stepping_batches
        total = steps if 0 < steps < float("inf") else None
        self.job.step(self._step, loss=loss, total=total)
        if self.job.should_stop:
            self.job.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            trainer.save_checkpoint(str(self._path))  # all ranks, as sharded states need it
            self.job.exit_checkpointed()
