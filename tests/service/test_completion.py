"""Completion as shells ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WATTHERD = (sys.executable, "-m", "wattherd.cli.main")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WATTHERD, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("typed", "found"), [("pow", "power"), ("sub", "submit")])
def test_commands_are_completed(typed: str, found: str) -> None:
    done = run(_WATTHERD_COMPLETE="bash_complete", COMP_WORDS=f"wattherd {typed}", COMP_CWORD="1")
    assert done.stdout.splitlines() == [f"plain,{found}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_written_where_the_shell_looks(shell: str, tmp_path: Path) -> None:
    done = run("completion", "install", HOME=str(tmp_path), SHELL=f"/bin/{shell}")
    assert done.returncode == 0, done.stderr
    written = Path(done.stdout.strip())
    assert written.is_relative_to(tmp_path)
    assert "_WATTHERD_COMPLETE" in written.read_text()
    assert run("completion", "show", shell).stdout.strip() == written.read_text().strip()


def test_an_unknown_shell_is_told() -> None:
    done = run("completion", "install", SHELL="/bin/ksh")
    assert done.returncode == 2
    assert "bash, fish, zsh" in done.stderr
