"""Hugging Face Transformers: a callback that reports steps, and saves and ends when asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from wattherd_train.distributed import any_rank
from wattherd_train.job import Job, current


class HFCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Pass it to the trainer, and `callback.last_checkpoint(output_dir)` to `trainer.train`.

    The checkpoint is the trainer's own, with everything it needs to go on.
    """

    def __init__(self, job: Job | None = None) -> None:
        self.job = job or current()
        self.job.agree_by(any_rank)
        self._loss: float | None = None
        self._ends = False

    @staticmethod
    def last_checkpoint(output_dir: str | Path) -> str | None:
        """For `trainer.train(resume_from_checkpoint=...)`: the newest that is complete, or None.

        The trainer writes `trainer_state.json` after weights and optimiser.
        """
        complete = [
            (int(folder.name.removeprefix("checkpoint-")), str(folder))
            for folder in Path(output_dir).glob("checkpoint-*")
            if folder.name.removeprefix("checkpoint-").isdigit()
            and (folder / "trainer_state.json").exists()
        ]
        return max(complete)[1] if complete else None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Remember the loss, which the trainer works out only now and then."""
        if logs and "loss" in logs:
            self._loss = logs["loss"]

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After each optimiser step."""
        total = state.max_steps if state.max_steps > 0 else None
        self.job.step(state.global_step, loss=self._loss, total=total)
        if self.job.should_stop:
            self._ends = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The checkpoint that was asked for is written."""
        if self._ends:
            self.job.exit_checkpointed()
