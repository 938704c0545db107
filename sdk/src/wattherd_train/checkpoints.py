"""Checkpoints that are whole or not there: written aside, checked by hash, the last few kept.

A checkpoint is a folder `step-N` with `data` and `manifest.json`. It gets that name in one step,
after everything is on disk, so that a kill or a power cut at any moment leaves the one before.
What was damaged later is found by its hash, and the one before is taken.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from wattherd_train import files
from wattherd_train.trouble import Trouble

DATA, MANIFEST, NAME, ASIDE = "data", "manifest.json", "step-", ".writing-"
CHUNK = 1 << 20
Dump = Callable[[Any, IO[bytes]], object]
"""Writes a state to a stream: `pickle.dump`, `torch.save`."""
Load = Callable[[IO[bytes]], Any]
"""Reads one back: `pickle.load`, `torch.load`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The `state` that was saved after `step`."""

    step: int
    state: Any


class Checkpoints:
    """The checkpoints of one writer in `folder`, `keep` of them.

    Ranks that save states of their own take a folder each, and load the newest step that all have.
    """

    def __init__(self, folder: Path, *, keep: int = 2, trouble: Trouble | None = None) -> None:
        """Nothing is made yet.

        Raises:
            ValueError: none is to be kept.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder, self._keep = Path(folder), keep
        self._trouble = trouble or Trouble()

    def save(self, step: int, state: Any, dump: Dump = pickle.dump) -> Path | None:
        """Keep `state` as that after `step`; its folder, or None if the disk did not take it.

        Errors of `dump` itself that are none of the system's are raised: the state cannot be saved.
        """
        done = self.folder / f"{NAME}{step:012d}"
        aside = self.folder / f"{ASIDE}{step}"
        kept = None
        with self._trouble.swallowed("cannot save a checkpoint"):
            try:
                self._tidy()
                self._write(aside, step, state, dump)
                if done.exists():  # saved before, and no longer trusted or wanted
                    shutil.rmtree(done)
                aside.rename(done)
                kept = done
                files.sync_folder(self.folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            self._drop_old()
        return kept

    def _tidy(self) -> None:
        """Make the folder, and remove what a kill left half written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{ASIDE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _write(self, aside: Path, step: int, state: Any, dump: Dump) -> None:
        aside.mkdir()
        with (aside / DATA).open("w+b") as stream:
            dump(state, stream)
            stream.flush()
            files.sync(stream.fileno())
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            digest = _digest(stream)
        files.replace(aside / MANIFEST, {"step": step, "bytes": size, "sha256": digest})
        files.sync_folder(aside)

    def _drop_old(self) -> None:
        for folder in self._folders()[self._keep :]:
            shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob(f"{NAME}*"), reverse=True)

    def load(self, load: Load = pickle.load, *, step: int | None = None) -> Found | None:
        """The newest that is sound, or that of `step`; None if there is none.

        Errors of `load` itself are raised: what is sound was written by other code.
        """
        for folder in self._folders():
            with self._trouble.swallowed(f"skipped checkpoint {folder.name}"):
                found = self._sound(folder)
                if step is None or found == step:
                    with (folder / DATA).open("rb") as stream:
                        return Found(found, load(stream))
        return None

    def steps(self) -> list[int]:
        """Steps of all that are sound, newest first."""
        known = []
        for folder in self._folders():
            with self._trouble.swallowed(f"skipped checkpoint {folder.name}"):
                known.append(self._sound(folder))
        return known

    def _sound(self, folder: Path) -> int:
        """The step of a checkpoint that is as it was written.

        Raises:
            OSError: it is not, or cannot be read.
        """
        manifest = files.document(folder / MANIFEST) or {}
        with (folder / DATA).open("rb") as stream:
            if _digest(stream) != manifest.get("sha256"):
                raise OSError("it is not as it was written")
        return int(manifest["step"])


def _digest(stream: IO[bytes]) -> str:
    found = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        found.update(chunk)
    return found.hexdigest()
