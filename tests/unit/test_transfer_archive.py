"""The program that brings and takes files runs from its archive alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wattherd.local.transfer import archive


def test_the_archive_holds_all_that_the_program_imports(tmp_path: Path) -> None:
    file = tmp_path / "transfer.zip"
    archive.write(file)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import wattherd.local.transfer.program as program\n"
        "print(program.__file__)"
    )
    # Isolated and without site packages: nothing of this installation is in reach.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(file))
