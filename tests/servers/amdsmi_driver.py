"""A libamd_smi.so of two GPUs, built here: what the amdsmi package calls, and stubs for the rest.

The package binds every function of the library when it is imported, so the stubs are generated
from its own list of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from nvml_driver import replace

COMPILER = shutil.which("cc") or shutil.which("gcc")
NOT_SUPPORTED, NO_PERMISSION, NO_DRIVER, IGNORED = 2, 10, 34, 1000


def wrapper() -> Path | None:
    """Where the package lists the functions of its library."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("amdsmi_wrapper.py")


class AmdDriver:
    """The library in a folder, and the files that say what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = Path(__file__).with_name("fake_amdsmi.c").read_text()
        listed = wrapper()
        assert listed is not None
        named = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", listed.read_text()))
        stubs = sorted(named - set(re.findall(r"(\w+)\(", source)))
        text = source + "".join(f"\nint {name}(void) {{ return 2; }}" for name in stubs)
        (folder / "smi.c").write_text(f"{text}\n")
        command = [COMPILER or "", "-shared", "-fPIC", "-Wall", "-o", folder / "libamd_smi.so"]
        subprocess.run([*command, folder / "smi.c"], check=True)
        self.say("watts", 420)
        self.say("code", 0)
        self.say("set", 0)

    def say(self, what: str, value: int) -> None:
        replace(self.folder / what, str(value))

    def kept(self, gpu: int) -> int | None:
        path = self.folder / f"cap{gpu}"
        return int(path.read_text()) if path.exists() else None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "FAKE_AMDSMI": str(self.folder)}
