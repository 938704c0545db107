"""Logs are read in blocks: the same text as a plain reader's, whatever is in it, while it grows."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.errors import ClusterError
from wattherd.local.logs import RotatingLog
from wattherd.server.documents import task_logs as logs
from wattherd.server.documents.task_logs import TaskLog

TEXT = st.lists(
    st.sampled_from(
        [b"\n", b"\n\n", b"\r", b"\r\n", b"\x00\xff", b"a", b"long " * 9, "é".encode()]
    ),
    max_size=40,
).map(b"".join)


def log_at(root: Path, now: bytes | None = None, before: bytes | None = None) -> TaskLog:
    folder = root / "j-1" / "run-1" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("0.log", now), ("0.log.1", before)):
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_bytes(text)
    return TaskLog(root, "j-1", 1, 0)


def last_lines(text: bytes, lines: int) -> bytes:
    """By definition: a line ends at its newline, and what is left at the end is one, too."""
    parts = text.split(b"\n")
    whole = [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    return b"".join(whole[-lines:]) if lines else b""


def read_all(log: TaskLog, lines: int | None = None) -> bytes:
    with log.reader() as reader:
        if lines is not None:
            reader.skip_to_last(lines)
        return b"".join(reader.blocks())


@settings(max_examples=times(300), deadline=None)
@given(before=TEXT, now=TEXT, lines=st.integers(0, 12), block=st.integers(1, 9))
def test_the_last_lines_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, now: bytes, lines: int, block: int
) -> None:
    log = log_at(tmp_path_factory.mktemp("log"), now, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "BLOCK", block)
        assert read_all(log, lines) == last_lines(before + now, lines)
        assert read_all(log) == before + now
        for most in (1, 5, 1000):
            assert log.end(lines, most) == last_lines(before + now, lines)[-most:]


@settings(max_examples=times(150), deadline=None)
@given(parts=st.lists(st.tuples(TEXT, st.booleans()), max_size=12), most=st.integers(20, 400))
def test_a_log_that_is_read_while_it_is_rotated_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[bytes, bool]], most: int
) -> None:
    root = tmp_path_factory.mktemp("log")
    log = log_at(root)
    writer = RotatingLog(root / "j-1" / "run-1" / "logs" / "0.log", most)
    heard = b""
    with log.reader() as reader:
        for text, looks in parts:
            writer._write(text)
            if looks or len(text) > 0:  # at most one rotation between two looks
                heard += b"".join(reader.blocks())
    assert heard == b"".join(text for text, _ in parts)


def test_a_reader_that_was_away_for_several_rotations_goes_on_with_what_is_left(
    tmp_path: Path,
) -> None:
    log = log_at(tmp_path)
    writer = RotatingLog(tmp_path / "j-1" / "run-1" / "logs" / "0.log", 10)
    writer._write(b"first\n")
    with log.reader() as reader:
        assert reader.read() == b"first\n"
        for number in range(2, 6):
            writer._write(f"number {number}\n".encode())
        assert b"".join(reader.blocks()) == b"number 4\nnumber 5\n"


@pytest.mark.parametrize("line", [b"epoch 1 loss 0.42\n", b"#"], ids=["lines", "one endless line"])
def test_ten_lines_of_a_long_log_take_little_memory(tmp_path: Path, line: bytes) -> None:
    many = line * (24_000_000 // len(line))
    log = log_at(tmp_path, many, many)
    expected = len(last_lines(many, 10)) if b"\n" in line else 2 * len(many)
    del many
    tracemalloc.start()
    try:
        with log.reader() as reader:
            reader.skip_to_last(10)
            assert sum(map(len, reader.blocks())) == expected
        assert len(log.end(200, 64_000)) <= 64_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_a_job_puts_in_place_of_its_log_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of somebody else")
    log = log_at(tmp_path)
    path = tmp_path / "j-1" / "run-1" / "logs" / "0.log"
    path.symlink_to(tmp_path / "secret")
    assert read_all(log) == b""
    path.unlink()
    os.mkfifo(path)
    assert read_all(log) == b""
    assert read_all(TaskLog(tmp_path, "j-2", 1, 0)) == b""


def test_a_log_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path, b"text")

    def no_more_files(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("wattherd.local.run_dir.open_below", no_more_files)
    with pytest.raises(ClusterError, match="Too many open files"):
        log.reader()
