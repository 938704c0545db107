"""Versions of Python: what the classifiers say is what pages say, and how another one is tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "test-python.sh"
_VERSION = re.compile(r"Programming Language :: Python :: (3\.\d+)$")


def classified(project: Path) -> list[str]:
    found = tomllib.loads(project.read_text("utf-8"))["project"]["classifiers"]
    return [known[1] for one in found if (known := _VERSION.match(one))]


def test_pages_name_the_versions_that_the_classifiers_name() -> None:
    ours, of_sdk = (classified(ROOT / name) for name in ("pyproject.toml", "sdk/pyproject.toml"))
    assert ours[0] == "3.11"
    assert of_sdk == ["3.10", *ours]  # which lives in its users' environments
    told = re.search(r"have passed with it: (.+) so far", (ROOT / "CONTRIBUTING.md").read_text())
    assert told is not None
    assert re.findall(r"3\.\d+", told[1]) == ours


@pytest.mark.parametrize("python", ["", "no-such-python"])
def test_a_python_that_is_none_is_refused_with_what_to_type(python: str) -> None:
    done = subprocess.run(
        [str(SCRIPT), python], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "say which Python: make test-python PYTHON=python3.13\n"


def test_another_python_gets_an_environment_of_its_own_and_the_quick_tests(tmp_path: Path) -> None:
    """Everything but the environment itself, which a stand-in makes."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "pyproject.toml").touch()
    there = f"runs/python-{version}"
    stand_in = tmp_path / "scripts" / "venv.sh"
    stand_in.write_text(
        '#!/bin/sh\necho "$VENV $*" >>made\nmkdir -p "$VENV/bin"\ntouch "$VENV/$1"\n'
        'printf \'#!/bin/sh\\nprintf "%%s;" "$HYPOTHESIS_PROFILE" "$@" >asked\\n\''
        ' >"$VENV/bin/python"\nchmod +x "$VENV/bin/python"\n'
    )
    stand_in.chmod(0o755)
    env = {name: text for name, text in os.environ.items() if name != "HYPOTHESIS_PROFILE"}
    for _ in range(2):
        subprocess.run(
            [str(SCRIPT), sys.executable, "3", "-x"],
            cwd=tmp_path, env=env, check=True, timeout=60, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    assert (tmp_path / "made").read_text() == f"{there} .dev all dev\n"  # once
    profile, *asked = (tmp_path / "asked").read_text().split(";")[:-1]
    assert profile == "quick"
    assert asked[:6] == ["-m", "pytest", "-n", "3", "--dist", "worksteal"]
    assert "not slow and not long and not kube" in asked
    assert asked[-3:] == ["--write-passed", f"runs/passed-{version}", "-x"]
