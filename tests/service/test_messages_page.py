"""docs/reference/messages.md: what it says is said now, and was said, is really said."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="needs the extra kube")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "messages.md"
ROW = re.compile(r"^\| `` (.+?) `` \| `` (.+?) `` \| `` (.+?) `` \|$")
FILES = {
    "nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn0,96000,393216,8,G2\n",
    "site.yaml": "limit: 10kW\nfeeds:\n  row: {limit: 1kW}\ndevices: {}\n",
}


def rows() -> list[tuple[str, str, str, str]]:
    """Commit, command, what was said, what is said now."""
    found, commit = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        named = re.match(r"Commit (\w+)\.", line)
        commit = named[1] if named else commit
        row = ROW.match(line)
        if row:
            found.append((commit, row[1], row[2], row[3]))
    return found


ROWS = rows()


def said(command: str, folder: Path, *sources: Path) -> str:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    path = {"PYTHONPATH": os.pathsep.join(map(str, sources))} if sources else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WATTHERD")}
    done = subprocess.run(
        [sys.executable, "-m", "wattherd", *shlex.split(command)[1:]], cwd=folder, text=True,
        capture_output=True, timeout=60, env={**kept, **path, "COLUMNS": "400", "NO_COLOR": "1"},
        check=False,
    )  # fmt: skip
    assert done.returncode in (2, 4)
    assert "Traceback" not in done.stderr
    lines = [one.strip() for one in done.stderr.splitlines() if not one.startswith("Usage")]
    return " ".join(lines).removeprefix("wattherd: error: ")


def test_twenty_stand_side_by_side_and_all_have_changed() -> None:
    assert len(ROWS) == 20
    assert all(before != now for _, _, before, now in ROWS)


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_what_is_said_now(row: tuple[str, str, str, str], tmp_path: Path) -> None:
    _, command, _, now = row
    assert said(command, tmp_path) == now


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program at each commit that the page names."""
    found = {}
    for commit in {row[0] for row in ROWS}:
        asked = ["git", "archive", commit, "src", "sdk"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False, timeout=60)
        if done.returncode:
            pytest.skip(f"no commit {commit} here: a shallow or exported copy has no history")
        folder = tmp_path_factory.mktemp(commit)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
            packed.extractall(folder, filter="data")
        found[commit] = folder
    return found


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_what_was_said(
    row: tuple[str, str, str, str], earlier: dict[str, Path], tmp_path: Path
) -> None:
    commit, command, before, _ = row
    sources = (earlier[commit] / "src", earlier[commit] / "sdk" / "src")
    assert said(command, tmp_path, *sources) == before
