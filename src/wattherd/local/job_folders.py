"""Where a job's files are on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def own_checkpoint(state: Path, job_id: str) -> Path:
    """Where a job of the service with that state folder keeps its own checkpoints."""
    job = state.absolute() / "jobs" / job_id
    return Folders(job=job, run=job).checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a job's files are; `run` is this attempt's."""

    job: Path
    run: Path

    @property
    def work(self) -> Path:
        """Current directory of its tasks, unless it names another."""
        return self.job / "work"

    @property
    def inputs(self) -> Path:
        """Data that is brought."""
        return self.work / "inputs"

    @property
    def outputs(self) -> Path:
        """Results that are taken away."""
        return self.work / "outputs"

    @property
    def code(self) -> Path:
        """Code that is brought; where tasks then begin."""
        return self.work / "code"

    @property
    def checkpoint(self) -> Path:
        """Kept from attempt to attempt."""
        return self.job / "checkpoint"
