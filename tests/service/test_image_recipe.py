"""The image's recipe carried out on this machine, without the image it starts from.

Nothing here builds images. What the recipe copies and runs is done in a folder: the wheel is made
of the files that it copies and of no others, installed into an environment of its own that finds
its dependencies in ours, and started as the user that the recipe names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = (REPOSITORY / "deploy" / "kubernetes" / "Containerfile").read_text().replace("\\\n", " ")
BUILD, SHIPPED = RECIPE.split("\nFROM ")[1:]
MOST_S = 400


def said(word: str, stage: str) -> list[str]:
    return re.findall(rf"^{word} (.+)$", stage, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def build() -> Iterator[Path]:
    """The first stage's folder, with what it copies; whoever the recipe names may read it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for each in said("COPY", BUILD):
            *sources, target = shlex.split(each)
            for source in sources:
                _copy(REPOSITORY / source, folder / target, into=len(sources) > 1)
        yield folder


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if into else target)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Without our own sources on the path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=MOST_S, check=False
    )


def test_versions_are_those_of_the_lock(build: Path) -> None:
    [command] = [each for each in said("RUN", BUILD) if "versions.txt" in each and "sed" in each]
    done = run(json.loads(command), build)
    assert done.returncode == 0, done.stderr
    pinned = (build / "versions.txt").read_text()
    assert "--hash" not in pinned
    assert "\\" not in pinned
    names = {line.split("==")[0].split("[")[0] for line in pinned.splitlines() if "==" in line}
    declared = tomllib.loads((build / "pyproject.toml").read_text())["project"]
    for needed in declared["dependencies"]:
        assert re.match(r"[\w-]+", needed)[0].lower() in names, needed  # type: ignore[index]


def test_what_it_installs_starts_as_the_user_that_it_names(build: Path) -> None:
    wheels = build / "wheels"
    made = run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", "wheels", "."], build
    )
    if "No matching distribution found" in made.stderr or "No module named pip" in made.stderr:
        pytest.skip("the wheel cannot be built here: pip, or the build backend, is not to be had")
    assert made.returncode == 0, made.stderr
    [wheel] = wheels.glob("wattherd-*.whl")
    opt = build / "opt"
    assert run([sys.executable, "-m", "venv", "--without-pip", str(opt)], build).returncode == 0
    pip = [sys.executable, "-m", "pip", f"--python={opt}/bin/python", "install", "--no-deps", "-q"]
    done = run([*pip, str(wheel)], build)
    assert done.returncode == 0, done.stderr
    [packages] = opt.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    [entry], [arguments] = said("ENTRYPOINT", SHIPPED), said("CMD", SHIPPED)
    program = opt / Path(json.loads(entry)[0]).relative_to("/opt/wattherd")
    done = run([*_as_user(packages), str(program), *json.loads(arguments)], build)
    assert done.returncode == 0, done.stderr
    assert "scheduler" in done.stdout
    where = run([f"{opt}/bin/python", "-c", "import wattherd; print(wattherd.__file__)"], build)
    assert Path(where.stdout.strip()).is_relative_to(opt), where.stdout + where.stderr


def _as_user(packages: Path) -> list[str]:
    """How to become the recipe's user, where that is possible and the user may read Python."""
    [user] = said("USER", SHIPPED)
    uid, gid = user.split(":")
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    python = str(packages.parents[2] / "bin" / "python")
    if (
        os.getuid()
        or not shutil.which("setpriv")
        or run([*become, python, "-c", ""], packages).returncode
    ):
        return []
    return become
