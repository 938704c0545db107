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
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = (REPOSITORY / "deploy" / "kubernetes" / "Containerfile").read_text().replace("\\\n", " ")
BUILD, SHIPPED = RECIPE.split("\nFROM ")[1:]
MOST_S = 400

DISTROLESS = {
    "libc", "libdl", "libgcc_s", "libgomp", "libm", "libpthread", "librt", "libstdc++", "libz",
}  # fmt: skip
"""Libraries which packages may load and the image that is shipped has."""
OPTIONAL = {"tbbpool"}
"""Extensions that are loaded only where their library is: Numba's threads by TBB."""


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


@pytest.mark.long
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


def packages_of(extras: set[str]) -> dict[str, metadata.Distribution]:
    """What installing these extras of ours brings, by name."""
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = [Requirement(line) for line in ours["dependencies"]]
    asked += [
        Requirement(line) for extra in extras for line in ours["optional-dependencies"][extra]
    ]
    found: dict[str, metadata.Distribution] = {}
    while asked:
        wanted = asked.pop()
        if wanted.name == "wattherd":
            lines = [ours["optional-dependencies"][extra] for extra in wanted.extras]
            asked += [Requirement(line) for each in lines for line in each]
        elif wanted.name not in found or wanted.extras:
            found[wanted.name] = metadata.distribution(wanted.name)
            asked += _needs(found[wanted.name], wanted.extras)
    return found


def _needs(package: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for needs in map(Requirement, package.requires or []):
        marks = needs.marker
        if marks is None or any(marks.evaluate({"extra": each}) for each in extras | {""}):
            yield needs


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("ldd"), reason="there is no ldd")
def test_every_library_that_compiled_packages_load_is_in_what_is_shipped() -> None:
    [extras] = re.findall(r'"\.\[([\w,-]+)\]"', BUILD)
    packages = packages_of(set(extras.split(",")))
    assert {"numba", "msgspec", "grpcio", "uvicorn"} <= packages.keys()
    loaded: dict[str, set[str]] = {}
    for name, one in packages.items():
        compiled = [one.locate_file(path) for path in one.files or () if path.suffix == ".so"]
        for file in map(Path, compiled):
            if file.name.split(".")[0] not in OPTIONAL:
                for library in _needed(file):
                    loaded.setdefault(library, set()).add(name)
    assert {"libc", "libstdc++"} <= loaded.keys()
    assert {library: who for library, who in loaded.items() if library not in DISTROLESS} == {}


def _needed(file: Path) -> set[str]:
    """Libraries of the system that it, or what comes with its package, is linked with."""
    lines = run(["ldd", str(file)], file.parent).stdout.splitlines()
    named = [line.split()[0] for line in lines if line.strip() and "site-packages" not in line]
    return {one.split(".so")[0] for one in named if one.startswith("lib")}


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
