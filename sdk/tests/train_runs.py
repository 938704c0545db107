"""A run directory as wattherd makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class RunDir:
    """One run's directory, written to as wattherd does and read as it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "run-1").mkdir()
        self.run = folder / "run-1"
        self.want()

    def environ(self, rank: int = 0, size: int = 1, **more: str) -> dict[str, str]:
        return {
            "WATTHERD_JOB_ID": "j-7",
            "WATTHERD_ATTEMPT": "3",
            "WATTHERD_DEVICES": "2",
            "WATTHERD_RUN_DIR": str(self.run),
            "WATTHERD_CHECKPOINT_DIR": str(self.folder / "checkpoint"),
            "WATTHERD_CONTROL": str(self.run / "control.json"),
            "WATTHERD_PROGRESS": str(self.run / "progress.jsonl"),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            **more,
        }

    def want(self, **control: Any) -> None:
        fresh = self.run / ".control"
        fresh.write_text(json.dumps({"duty": 1.0, "cap_w": None, **control}))
        fresh.replace(self.run / "control.json")

    def stop(self) -> None:
        self.want(stop={"grace_s": 30.0, "by": 2e9, "reason": "budget cut"})

    def lines(self) -> list[dict[str, Any]]:
        text = (self.run / "progress.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]
