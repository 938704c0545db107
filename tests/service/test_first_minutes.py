"""The first minutes of somebody who has two wheels: README typed line by line, in an empty folder.

Nothing of the checkout is on any path: an environment is made, pip installs both wheels and what
they need from the index, a service is started, and jobs run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

import docs_commands as docs
from wattherd import __version__
from wattherd.cli.examples import KINDS

pytestmark = pytest.mark.long

SCRIPT = docs.REPOSITORY / "scripts" / "first_minutes.py"
INDEX = "https://pypi.org/simple/pip/"
MOST_S = 300


def run(*command: str, folder: Path = docs.REPOSITORY) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=MOST_S, check=False
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built; skipped where no index is to be had, which building asks, too."""
    try:
        urllib.request.urlopen(INDEX, timeout=20).close()
    except OSError as error:
        pytest.skip(f"no package index: {error}")
    folder = tmp_path_factory.mktemp("wheels")
    made = run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"),
        *("--wheel-dir", str(folder), "./sdk", "."),
    )
    assert made.returncode == 0, made.stderr
    return folder


def test_readme_can_be_typed_with_two_wheels_and_nothing_else(wheels: Path) -> None:
    demo = "wattherd demo --scale 0.02"
    done = run(sys.executable, str(SCRIPT), "--wheels", str(wheels), "--also", demo)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.search(r"^\d+ s from two wheels to the first job$", done.stdout, re.MULTILINE)
    assert "hello" in done.stderr
    assert "all 6 trainings finished" in done.stderr


def test_a_comparison_and_a_notebook_can_be_had_with_two_wheels_and_nothing_else(
    wheels: Path,
) -> None:
    done = run(sys.executable, str(SCRIPT), "--wheels", str(wheels), "--comparison")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.search(r"^\d+ s from two wheels to the first comparison$", done.stdout, re.MULTILINE)
    assert "wattherd                14kW " in done.stderr
    assert "| `jupyter execute examples/notebooks/power.ipynb` |" in done.stdout


def test_a_command_that_fails_is_told(wheels: Path, tmp_path: Path) -> None:
    """The walk itself, of a README that is wrong."""
    for name, text in (("README.md", WRONG), ("scripts/first_minutes.py", SCRIPT.read_text())):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run(sys.executable, "scripts/first_minutes.py", "--wheels", str(wheels), folder=tmp_path)
    assert done.returncode == 1
    assert "it did not go well" in done.stderr
    assert "`true`" in done.stdout
    assert "never" not in done.stdout


WRONG = "<!-- first minutes -->\n```sh\ntrue\nfalse\necho never\n```\n"


def test_every_example_is_in_the_wheel(wheels: Path) -> None:
    [wheel] = wheels.glob("wattherd-*.whl")
    with zipfile.ZipFile(wheel) as inside:
        shipped = {name for name in inside.namelist() if name.startswith("wattherd/examples/")}
    top = docs.REPOSITORY / "examples"
    kept = {one for kind in KINDS for one in top.rglob(f"*{kind}")}
    assert shipped == {f"wattherd/examples/{one.relative_to(top)}" for one in kept}


def test_the_server_wants_the_sdk_of_its_own_version() -> None:
    import wattherd_train

    project = tomllib.loads((docs.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"wattherd-train=={__version__}" in project["optional-dependencies"]["server"]
    assert wattherd_train.__version__ == __version__


def wattherd(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "wattherd.cli.main", *arguments, folder=folder)


def test_examples_are_copied_and_what_is_there_stays(tmp_path: Path) -> None:
    assert wattherd(tmp_path, "examples", "copy").returncode == 0
    mine = tmp_path / "examples" / "train" / "mlp.yaml"
    assert mine.read_bytes() == (docs.REPOSITORY / "examples/train/mlp.yaml").read_bytes()
    assert wattherd(tmp_path, "examples", "copy").returncode == 0  # nothing is changed
    mine.write_text("run: mine\n")
    (tmp_path / "examples" / "train" / "cnn.py").unlink()
    done = wattherd(tmp_path, "examples", "copy", "train")
    assert done.returncode == 2
    assert "examples/train/mlp.yaml" in done.stderr
    assert mine.read_text() == "run: mine\n"
    assert not (tmp_path / "examples" / "train" / "cnn.py").exists()


def test_one_example_is_copied_by_name(tmp_path: Path) -> None:
    done = wattherd(tmp_path, "examples", "copy", "train/mlp.yaml", "--to", "mine")
    assert done.stdout == "mine/train/mlp.yaml\n"
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [tmp_path / done.stdout.strip()]


def test_an_unknown_example_is_refused_with_what_comes_near(tmp_path: Path) -> None:
    done = wattherd(tmp_path, "examples", "copy", "mlp.yml")
    assert done.returncode == 2
    assert "no example 'mlp.yml'" in done.stderr
    assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []
