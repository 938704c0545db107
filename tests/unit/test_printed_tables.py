"""Tables lose nothing: a pipe gets a line a row, a terminal its width with whole identifiers."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli import tables
from wattherd.cli.tables import headers, print_table, terminal

COLUMNS = 100
HEAD = ["ID", "NAME", "GPUS", "WHERE/WHY"]
WORDS = st.text(st.sampled_from("abcj-123é漢"), min_size=1, max_size=30)
CELLS = st.lists(WORDS, max_size=25).map(" ".join)
ROWS = st.lists(
    st.tuples(st.integers(1, 10**9).map("j-{}".format), CELLS, st.just("4"), CELLS), max_size=5
)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tables.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((COLUMNS, 24))
    )
    monkeypatch.setenv("NO_COLOR", "1")


def printed(rows: list[list[str]], capsys: pytest.CaptureFixture[str], *, tty: bool) -> list[str]:
    at = terminal.set(tty)
    try:
        print_table(HEAD, rows, right_from=2)
    finally:
        terminal.reset(at)
    return capsys.readouterr().out.split("\n")[:-1]


@pytest.mark.long
@given(ROWS)
def test_a_pipe_gets_every_row_in_one_line_with_every_word(rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(tables.click, "echo", said.append)
        print_table(HEAD, [list(row) for row in rows], right_from=2)
    lines = said[0].split("\n")
    assert len(lines) == 1 + len(rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.split() == [word for cell in row for word in cell.split()]
        assert "…" not in line


@given(ROWS)
def test_a_terminal_gets_its_width_and_loses_no_letter(rows: list[tuple[str, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(tables.click, "echo", said.append)
        at = terminal.set(True)
        try:
            print_table(HEAD, [list(row) for row in rows], right_from=2)
        finally:
            terminal.reset(at)
    lines = said[0].split("\n")
    assert all(tables._width(line) <= COLUMNS for line in lines)
    text = "".join(said[0].split())
    for row in rows:
        assert any(line.split()[:1] == [row[0]] for line in lines)  # whole, and at the beginning
    assert sorted(text) == sorted(
        "".join("".join(cell.split()) for row in [HEAD, *rows] for cell in row)
    )


def test_identifiers_are_whole_at_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tables.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((12, 24))
    )
    lines = printed([["j-123456789012", "name", "4", "here"]], capsys, tty=True)
    assert "j-123456789012" in "\n".join(lines)


def test_headers_are_left_out_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    without = headers.set(False)
    try:
        assert printed([["j-1", "a", "4", "b"]], capsys, tty=False) == ["j-1  a  4  b"]
        assert printed([], capsys, tty=False) == []
    finally:
        headers.reset(without)


def test_only_a_terminal_gets_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in "".join(printed([["j-1", "a", "4", "b"]], capsys, tty=False))


def test_ten_thousand_rows_take_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """A guard against a writer that lays out every cell anew: that took 6 s of the processor."""
    import time

    rows = [
        [f"j-{n}", f"resnet-{n}", "2", f"#{n} WaitingForGpus: asked 2 GPUs"] for n in range(10_000)
    ]
    begun_s = time.process_time()
    printed(rows, capsys, tty=False)
    assert time.process_time() - begun_s < 1.0
