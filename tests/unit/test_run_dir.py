"""Run directories: what lies in them, under which names, and always the same bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.store.run_dir import RunDir, file_stem

ROWS = [(0, "a", 1.5), (1, "b,c", -2), (2, 'quote "', "")]


@pytest.mark.parametrize(
    ("policy", "seed", "stem"),
    [
        ("fgd", 42, "fgd-42"),
        ("pwr+fgd:0.1", 42, "pwr_fgd_0.1-42"),
        ("pwr+best-fit+fgd:0.2:0.3", 0, "pwr_best-fit_fgd_0.2_0.3-0"),
        ("fgd@scale=1000", 7, "fgd@scale=1000-7"),
    ],
)
def test_policies_in_file_names(policy: str, seed: int, stem: str) -> None:
    assert file_stem(policy, seed) == stem


def test_a_table_reads_back(tmp_path: Path) -> None:
    path = RunDir(tmp_path / "deep" / "run").write_table("t.csv.gz", ("n", "name", "x"), ROWS)
    text = gzip.decompress(path.read_bytes()).decode()
    assert text.endswith("\n")
    assert "\r" not in text
    assert list(csv.reader(io.StringIO(text))) == [
        ["n", "name", "x"],
        *([str(cell) for cell in row] for row in ROWS),
    ]


def test_a_document_reads_back(tmp_path: Path) -> None:
    document = {"b": [1, None, 2.5], "a": {"ä": "µ"}}
    path = RunDir(tmp_path).write_json("d.json", document)
    assert json.loads(path.read_text(encoding="utf-8")) == document
    assert path.read_bytes().endswith(b"\n")


def test_the_same_content_is_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere, under another name and in another year."""
    first = RunDir(tmp_path / "one").write_table("t.csv.gz", ("a", "b", "c"), ROWS)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    second = RunDir(tmp_path / "two").write_table("u.csv.gz", ["a", "b", "c"], iter(ROWS))
    assert first.read_bytes() == second.read_bytes()
    documents = [
        RunDir(tmp_path / name).write_json(f"{name}.json", {"x": 1, "y": [2.0, "é"]})
        for name in ("one", "two")
    ]
    assert documents[0].read_bytes() == documents[1].read_bytes()


def test_a_table_carries_no_file_name_or_time(tmp_path: Path) -> None:
    content = RunDir(tmp_path).write_table("secret.csv.gz", ("a",), [(1,)]).read_bytes()
    assert content[4:8] == b"\0\0\0\0"
    assert b"secret" not in content


def test_writing_again_replaces(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_json("d.json", {"long": "x" * 1000})
    assert json.loads(run.write_json("d.json", {}).read_text()) == {}


def test_no_number_that_json_lacks_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunDir(tmp_path).write_json("d.json", {"x": float("nan")})


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError) as error:
        RunDir(tmp_path / "file" / "run").write_json("d.json", {})
    line = error.value.line()
    assert line.startswith(f"{tmp_path / 'file' / 'run' / 'd.json'}: cannot write: ")
    assert line.endswith("(hint: choose another directory with --out)")
    assert "\n" not in line


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").mkdir()
    with pytest.raises(UserError, match="cannot write: Is a directory"):
        RunDir(tmp_path).write_table("t.csv.gz", ("a",), [])
