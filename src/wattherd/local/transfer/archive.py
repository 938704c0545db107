"""The program as one file, which an interpreter runs that may not read this installation."""

from __future__ import annotations

import zipfile
from pathlib import Path

import wattherd

PACKAGE = Path(wattherd.__file__).parent
ROOMS = ("", "devices", "devices/wire", "local", "local/transfer")
MODULES = (
    *(f"{room}/__init__.py".lstrip("/") for room in ROOMS),
    *("errors.py", "units.py", "devices/wire/file_places.py", "local/observation.py"),
    *(
        f"local/transfer/{name}.py"
        for name in ("bucket", "bucket_read", "bucket_write", "checks", "files", "git", "program")
    ),
)
START = "from wattherd.local.transfer.program import main\nmain()\n"
MODE = 0o644


def write(path: Path) -> None:
    """Make the archive.

    Raises:
        OSError: it cannot be written.
    """
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", START)
        for name in MODULES:
            archive.writestr(f"wattherd/{name}", (PACKAGE / name).read_bytes())
    path.chmod(MODE)
