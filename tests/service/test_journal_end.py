"""The end of a journal cannot be cut off unseen, and a crash raises no false alarm."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from click.testing import CliRunner

from service.guarded import Guarded
from wattherd.cli.store import store as command
from wattherd.errors import UserError
from wattherd.model.event import BudgetChanged
from wattherd.server.auth.caller import Role
from wattherd.store.entry import JournalEntry
from wattherd.store.head import HEAD_FILE, Head, HeadFile
from wattherd.store.journal import Journal
from wattherd.store.store import ClusterStore

CUT = "DELETE FROM entries WHERE seq > 7"
UNNOTED = "UPDATE facts SET value = (SELECT seq || ' ' || digest FROM entries WHERE seq = 7)"


def filled(folder: Path, count: int = 10) -> ClusterStore:
    store = ClusterStore.open(f"sqlite:///{folder / 'journal.sqlite'}")
    add(store.journal, count)
    return store


def add(journal: Journal, count: int) -> None:
    for _ in range(count):
        seq = journal.last_seq + 1
        journal.append(
            [JournalEntry(seq=seq, event=BudgetChanged(at_s=float(seq), budget_w=5.0 + seq))]
        )


def sql(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def verified(folder: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(command, ["verify", "--state", str(folder), "-o", "json", *options])
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (1 if found["problems"] else 0)
    return found


@pytest.mark.parametrize(
    "statements",
    [(CUT,), (CUT, f"{UNNOTED} WHERE name = 'head'"), ("DELETE FROM entries",)],
    ids=["entries", "entries and the note in the store", "all entries"],
)
def test_a_cut_off_end_is_found(tmp_path: Path, statements: tuple[str, ...]) -> None:
    filled(tmp_path).close()
    assert verified(tmp_path)["problems"] == []
    sql(tmp_path, *statements)
    (problem,) = verified(tmp_path)["problems"]
    assert "knows of entry 10" in problem
    assert "missing" in problem


def test_a_cut_off_end_is_found_without_the_file(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / HEAD_FILE).unlink()
    sql(tmp_path, CUT)
    assert "the store itself knows of entry 10" in verified(tmp_path)["problems"][0]


def test_an_end_that_was_rewritten_is_found(tmp_path: Path) -> None:
    """Cut off, and as many others in its place: every digest follows from the one before."""
    filled(tmp_path).close()
    sql(tmp_path, CUT, "DELETE FROM facts WHERE name = 'head'")
    shutil.move(tmp_path / HEAD_FILE, tmp_path / "noted")
    again = ClusterStore.open(f"sqlite:///{tmp_path / 'journal.sqlite'}")
    for seq in range(8, 14):
        again.journal.append([JournalEntry(seq=seq, event=BudgetChanged(at_s=20.0, budget_w=1.0))])
    again.close()
    assert verified(tmp_path)["problems"] == []
    shutil.move(tmp_path / "noted", tmp_path / HEAD_FILE)
    assert "entry 10 is another than" in verified(tmp_path)["problems"][0]


def test_an_operator_may_keep_a_note_of_the_end(tmp_path: Path) -> None:
    store = filled(tmp_path)
    digest = store.journal.digest(10)
    add(store.journal, 5)
    store.close()
    for head in (digest, digest[:12]):
        assert verified(tmp_path, "--head", head)["problems"] == []
    sql(tmp_path, CUT, "DELETE FROM facts")
    (tmp_path / HEAD_FILE).unlink()
    assert verified(tmp_path)["problems"] == []  # whoever can write all of it can hide it
    assert "no entry has the digest" in verified(tmp_path, "--head", digest)["problems"][0]
    refused = CliRunner().invoke(
        command, ["verify", "--state", str(tmp_path), "--head", "HEAD"], standalone_mode=False
    )
    assert isinstance(refused.exception, UserError)


@pytest.mark.parametrize("behind", range(10))
def test_a_file_that_is_behind_by_a_crash_is_no_alarm(tmp_path: Path, behind: int) -> None:
    store = filled(tmp_path, 10 - behind)
    store.journal.identity()
    kept = (tmp_path / HEAD_FILE).read_bytes()
    add(store.journal, behind)
    store.close()
    (tmp_path / HEAD_FILE).write_bytes(kept)
    assert verified(tmp_path)["problems"] == []
    again = ClusterStore.open(f"sqlite:///{tmp_path / 'journal.sqlite'}")
    add(again.journal, 1)
    again.close()
    assert verified(tmp_path)["problems"] == []
    found = HeadFile(tmp_path / HEAD_FILE).read()
    assert found is not None
    assert found.seq == 11


@pytest.mark.parametrize("cut", range(0, 160, 7))
def test_a_write_that_was_cut_short_leaves_the_head_before(tmp_path: Path, cut: int) -> None:
    file = HeadFile(tmp_path / "head")
    for seq in (1, 2, 3):
        file.write(Head("s" * 32, seq, f"{seq:064x}"))
    file.close()
    whole = (tmp_path / "head").read_bytes()
    slot = whole.index(b"3 ")  # the last one takes the place of the first
    assert slot == 0
    torn = Head("s" * 32, 4, "f" * 64).line().ljust(159) + b"\n"
    half = torn[:cut] + whole[160 + cut : 320]
    (tmp_path / "head").write_bytes(whole[:160] + half)
    found = HeadFile(tmp_path / "head").read()
    assert found is not None
    assert found.seq in (3, 4)
    assert found.seq == 3 or cut >= len(Head("s" * 32, 4, "f" * 64).line())
    after = HeadFile(tmp_path / "head")
    after.write(Head("s" * 32, 5, "e" * 64))
    after.close()
    found = HeadFile(tmp_path / "head").read()
    assert found is not None
    assert found.seq == 5


def test_a_head_that_cannot_be_written_stops_nothing_and_is_told(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    file = store.journal.head
    assert file is not None
    file.close()
    (tmp_path / HEAD_FILE).rename(tmp_path / "aside")
    (tmp_path / HEAD_FILE).mkdir()
    add(store.journal, 1)
    assert "Is a directory" in file.problem
    (tmp_path / HEAD_FILE).rmdir()
    add(store.journal, 1)
    assert file.problem == ""
    store.close()
    assert verified(tmp_path)["problems"] == []


def test_the_end_is_in_the_audit_and_in_the_metrics(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "state", budget="9W")
    try:
        guarded.let_in("root", Role.ADMIN)
        head = guarded.ask("GET", "/api/v1/audit", "root").json["head"]
        lines = guarded.ask("GET", "/metrics", "root").text.splitlines()
        journal = guarded.site.store.journal
        assert head == {"store": journal.identity(), "entry": journal.last_seq,
                        "digest": journal.digest(journal.last_seq)}  # fmt: skip
        told = dict(line.split(" ") for line in lines if line.startswith("wattherd_journal_head"))
        assert float(told["wattherd_journal_head_entry"]) == head["entry"] > 0
        digest = f"{int(float(told['wattherd_journal_head_digest'])):012x}"
        assert head["digest"].startswith(digest)
        assert journal.holds(digest) == head["entry"]
    finally:
        guarded.close()
