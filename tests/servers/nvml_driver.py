"""A small driver library of two GPUs, built here, on which nvidia-ml-py works as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COMPILER = shutil.which("cc") or shutil.which("gcc")

LOST, NO_PERMISSION, NOT_SUPPORTED, IGNORED = 15, 4, 3, 1000


def replace(path: Path, text: str) -> None:
    """At once: a reader never sees half of it."""
    fresh = path.with_name(f"fresh-{path.name}")
    fresh.write_text(text)
    fresh.replace(path)


class Driver:
    """The library in a folder, and the file that says what it answers."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.script = folder, folder / "script"
        source = Path(__file__).with_name("fake_nvml.c")
        library = folder / "libnvidia-ml.so.1"
        command = [COMPILER or "", "-shared", "-fPIC", "-Wall", "-Werror", *flags]
        subprocess.run([*command, "-o", library, source], check=True)
        self.say(300.0)

    def say(self, watts: float, code: int = 0, delay_s: float = 0.0) -> None:
        replace(self.script, f"{watts * 1000:.0f} {code} {delay_s * 1000:.0f}")

    def setters(self, code: int) -> None:
        replace(self.script.with_name("script.set"), str(code))

    def kept(self, what: str) -> int | None:
        path = self.script.with_name(f"script.{what}")
        return int(path.read_text()) if path.exists() else None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML": str(self.script)}

    def command(self, *arguments: str, of: str = "meter") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "wattherd.cli.main", of, *arguments, "-o", "json"],
            env=self.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(self, uri: str) -> dict[str, Any]:
        with self.command("read", uri) as process:
            found: dict[str, Any] = json.loads(process.communicate(timeout=30)[0])
        return found
